# SPDX-License-Identifier: Apache-2.0
"""Failures that LBNL Node Health Check (NHC) printed on the nodes. Pure.

NHC prints `ERROR:  nhc:  Health check failed:  check_fs_mount:  /home not mounted`, and its log has
the same without `ERROR:  nhc:`. pdsh and clush put the node before it: `compute-01: ERROR: …`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.node_pattern import NODE
from nearmetal.core.errors import LogError
from nearmetal.core.text import printable

MAX_BYTES = 8 << 20
_MOST_FAILURES = 20_000
_MOST_LINE = 2000
_FAILED = re.compile(
    r"(?:(?P<node>[A-Za-z0-9][A-Za-z0-9._-]*):\s+)?(?:\[[0-9]+\] - )?(?:ERROR:\s+\S{1,64}:\s+)?"
    r"Health check failed:\s+(?:(?P<check>check_\w{1,60}|[\w/.-]{1,60}):\s+)?(?P<why>.*)"
)
_SOURCE = "the configuration of NHC on the node"

FAILED = HealthCheck("nhc.failed", Gravity.FAULT, "NHC finds no failure", _SOURCE)
"""Its findings are made of the output of NHC and not of a snapshot."""


def failures(text: str, file: str) -> Iterator[tuple[HealthCheck, tuple[str, ...], Spotted]]:
    """Yield the failures of an output of NHC; raises LogError with the file and the line.

    Other lines, such as those of its checks that passed, are passed over.
    """
    count = 0
    # Other ends of lines are characters of a node, which could then speak for another node.
    for number, line in enumerate(text.split("\n"), 1):
        found = _FAILED.fullmatch(line[:_MOST_LINE].strip())
        if found is None:
            continue
        if not found["node"] or not NODE.fullmatch(found["node"]):
            raise LogError(
                f"{file}:{number}: a failure without the name of its node",
                f"collect the output with the names: pdsh -a nhc >{file}",
            )
        count += 1
        if count > _MOST_FAILURES:
            raise LogError(f"{file}:{number}: more than {_MOST_FAILURES} failures", "split it")
        yield FAILED, (found["node"],), _spotted(found["check"] or "", found["why"])


def _spotted(check: str, why: str) -> Spotted:
    about = printable(check)[:60]
    return Spotted(
        printable(why.strip())[:200] or "failed",
        "no failure",
        "NHC, which checks this node by the configuration of the site, reports a failure",
        f"nhc -v -a  # and see {about} in /etc/nhc/nhc.conf" if about else "nhc -v -a",
        about,
    )
