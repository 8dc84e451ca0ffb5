# SPDX-License-Identifier: Apache-2.0
"""Counts the test cases in the JUnit files of all runners and prints one line.

usage: summary.py [BROKEN-MAKE-TARGET...]

Exits 0 only if no target is broken, no case failed and at least one passed.
"""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

PATTERNS = ("build/log/junit/*.xml", "build/c*/meson-logs/testlog*.junit.xml")


def outcome(case: ET.Element) -> str:
    """Return what became of one test case: passed, failed or skipped."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def count(root: Path) -> Counter[str]:
    """Return how many cases passed, failed and were skipped in all files under root."""
    counts: Counter[str] = Counter(passed=0, failed=0, skipped=0)
    for pattern in PATTERNS:
        for path in sorted(root.glob(pattern)):
            # The files are written by the test runners of this very run.
            counts.update(outcome(case) for case in ET.parse(path).iter("testcase"))
    return counts


def main(broken: list[str]) -> int:
    """Print the totals, return the exit status."""
    counts = count(Path())
    if broken and not counts["failed"]:
        # A runner that ended before it wrote its results: set-up, a build, a crash.
        counts["failed"] = len(broken)
    for target in broken:
        print(f"make {target} failed")
    print(", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")))
    return 1 if broken or counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
