# SPDX-License-Identifier: Apache-2.0
"""Intel Cluster Checker: the findings of its report that are measurements, by folded node set."""

from __future__ import annotations

import re

from nearmetal.evidence.model import Column, Log, Unit
from nearmetal.evidence.parse.text import Figures, fail, shown, split_lines

UNITS = {
    "GFLOP/s": Unit.GIGAFLOPS,
    "TFLOP/s": Unit.TERAFLOPS,
    "GB/s": Unit.GIGABYTES_PER_SECOND,
    "MB/s": Unit.MEGABYTES_PER_SECOND,
    "mcseconds": Unit.MICROSECONDS,
    "microseconds": Unit.MICROSECONDS,
}

_TITLE = re.compile(r"Intel(?:\(R\)|®)?\s+Cluster Checker (.+?)\s*$")
_DATABASE = re.compile(r"Databases used:\s*(.+?)\s*$")
_FINDING = re.compile(r"\s*\[(.+?)\]\s*\[nodes:\s*(.+)\]\s*$")
_PERFORMANCE = re.compile(r"([A-Z]+)(?: (\d+)-Node)? Performance: (\S+) (\S+?)\.?$")
_PINGPONG = re.compile(r"IMB pingpong bandwidth: (\S+) (\S+) and latency: (\S+) (\S+?)\.?$")


def _column(metric: str, unit: str, file: str, nr: int) -> Column:
    if unit not in UNITS:
        raise fail(file, nr, f"unknown unit {shown(unit)}", f"known: {', '.join(UNITS)}")
    return Column(metric, UNITS[unit])


def parse(text: str, file: str) -> Log:
    """Read one report; raises LogError when it is something else or has no measurement."""
    figures = Figures(file)
    lines = split_lines(text)
    found = 0
    for nr, line in enumerate(lines, 1):
        if match := _TITLE.match(line.strip()):
            figures.header["version"] = match[1]
        elif match := _DATABASE.match(line.strip()):
            figures.header["database"] = match[1]
        elif match := _FINDING.match(line):
            what, nodes = match.groups()
            if inner := _PERFORMANCE.fullmatch(what):
                test = f"clck_{inner[1].lower()}" + (f"_{inner[2]}_node" if inner[2] else "")
                figures.add(test, _column("rate", inner[4], file, nr), inner[3], nr, nodes)
            elif inner := _PINGPONG.fullmatch(what):
                for metric, word, unit in (
                    ("bandwidth", *inner.groups()[:2]),
                    ("latency", *inner.groups()[2:]),
                ):
                    column = _column(metric, unit, file, nr)
                    figures.add("clck_imb_pingpong", column, word, nr, nodes)
            else:
                figures.remarks.append((nr, line.strip()))
                continue
            found += 1
    if "version" not in figures.header:
        raise fail(file, 1, "not a report of Intel Cluster Checker", "its title is missing")
    if not found:
        raise fail(file, len(lines), "no measurement", "the report is cut off or holds none")
    return figures.log("clck")
