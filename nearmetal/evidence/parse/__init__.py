# SPDX-License-Identifier: Apache-2.0
"""One module per family of formats. Columns are found by their header; an unknown one is an error.

VERSION is recorded with every fact: raise a parser's number when it reads the same bytes otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nearmetal.evidence.parse import (
    clck,
    gromacs,
    hpc,
    imb,
    lammps,
    matrix,
    namd,
    netpipe,
    openfoam,
    osu,
    own,
    perftest,
    qe,
    simple,
    wrf,
)
from nearmetal.evidence.parse.text import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.evidence.model import Log


class Parser(NamedTuple):
    """A function from (text, file) to a Log, and its version."""

    parse: Callable[[str, str], Log]
    version: int = 1


PARSERS = {
    "nearmetal-bench": Parser(own.parse),
    "imb": Parser(imb.parse),
    "netpipe": Parser(netpipe.parse),
    "osu": Parser(osu.parse),
    "perftest": Parser(perftest.parse, 2),
    "hpcc": Parser(hpc.parse_hpcc),
    "hpl": Parser(hpc.parse_hpl),
    "hpcg": Parser(hpc.parse_hpcg),
    "stream": Parser(simple.parse_stream),
    "graph500": Parser(simple.parse_graph500),
    "npb": Parser(simple.parse_npb),
    "gromacs": Parser(gromacs.parse),
    "lammps": Parser(lammps.parse),
    "namd": Parser(namd.parse),
    "openfoam": Parser(openfoam.parse),
    "wrf": Parser(wrf.parse),
    "qe": Parser(qe.parse),
    "matrix": Parser(matrix.parse),
    "clck": Parser(clck.parse),
}

ENDS_IN_FIGURES = {"osu"}
"""Formats whose parsers check by themselves whether the last figure is whole."""


def parse_log(text: str, file: str, log_format: str) -> Log:
    """Read one raw log; raises LogError with file:line when it is not what it claims to be."""
    parser = PARSERS.get(log_format)
    if parser is None:
        raise fail(file, 1, f"unknown log format {log_format!r}", f"known: {', '.join(PARSERS)}")
    log = parser.parse(text, file)
    if not text.endswith("\n") and log_format not in ENDS_IN_FIGURES:
        last = text.count("\n") + 1
        if any(row.line == last for table in log.tables for row in table.rows):
            raise fail(file, last, "no newline behind the last figure", "it may be cut off")
    return log
