# SPDX-License-Identifier: Apache-2.0
"""All facts as one CSV file, one value per line."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearmetal.evidence import RunFacts

COLUMNS = (
    "launch",
    "block",
    "mpi",
    "arm",
    "program",
    "test",
    "variant",
    "ranks",
    "size_bytes",
    "metric",
    "unit",
    "value",
    "file",
    "line",
)


def render_csv(run: RunFacts) -> str:
    """Return the facts in the order of the raw files."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for f in run.facts:
        writer.writerow(
            (
                f.launch,
                f.block,
                f.mpi,
                f.arm,
                f.program,
                f.test,
                f.variant,
                f.ranks,
                f.size,
                f.metric,
                f.unit.value,
                repr(f.value),
                f.file,
                f.line,
            )
        )
    return out.getvalue()
