# SPDX-License-Identifier: Apache-2.0
"""One module per format. Columns are found by their header; an unknown one is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.evidence.parse import imb, netpipe, own
from nearmetal.evidence.parse.text import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.evidence.model import Log

PARSERS: dict[str, Callable[[str, str], Log]] = {
    "nearmetal-bench": own.parse,
    "imb": imb.parse,
    "netpipe": netpipe.parse,
}


def parse_log(text: str, file: str, log_format: str) -> Log:
    """Read one raw log; raises LogError with file:line when it is not what it claims to be."""
    parser = PARSERS.get(log_format)
    if parser is None:
        raise fail(file, 1, f"unknown log format {log_format!r}", f"known: {', '.join(PARSERS)}")
    return parser(text, file)
