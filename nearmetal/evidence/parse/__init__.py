# SPDX-License-Identifier: Apache-2.0
"""One module per family of formats. Columns are found by their header; an unknown one is an error."""

from __future__ import annotations

from nearmetal.evidence.model import Log
from nearmetal.evidence.parse import (
    applications,
    gpcnet,
    hpc,
    imb,
    nccl,
    node_sets,
    osu,
    own,
    point_to_point,
    reframe,
)
from nearmetal.evidence.parse.reader import Reader, fail
from nearmetal.evidence.prefixes import EVERY_RANK, find_prefix
from nearmetal.evidence.signatures import shows

PARSERS: dict[str, type[Reader]] = {
    reader.format: reader
    for reader in (
        own.Own,
        imb.Imb,
        point_to_point.NetPipe,
        osu.Osu,
        point_to_point.Perftest,
        hpc.Hpcc,
        hpc.Hpl,
        hpc.Hpcg,
        hpc.Stream,
        hpc.Graph500,
        hpc.Npb,
        applications.Gromacs,
        applications.Lammps,
        applications.Namd,
        applications.OpenFoam,
        applications.Wrf,
        applications.QuantumEspresso,
        nccl.Nccl,
        gpcnet.GpcNet,
        reframe.Reframe,
        node_sets.Matrix,
        node_sets.ClusterChecker,
    )
}


def parse_log(text: str, file: str, log_format: str) -> Log:
    """Read one raw log; raises LogError with file:line when it is damaged or has another format."""
    reader = PARSERS.get(log_format)
    if reader is None:
        raise fail(file, 1, f"unknown log format {log_format!r}", f"known: {', '.join(PARSERS)}")
    if prefix := find_prefix(text, log_format):
        if shows(log_format, text) and log_format not in EVERY_RANK:
            why = "another title has none: two outputs are in one file, split it"
            raise fail(file, prefix.title, "the rank or the time stands before a title", why)
        text = prefix.of_one_rank(text, file, log_format)
    log = reader.parse(text, file)
    if not text.endswith("\n") and not reader.ends_in_figures:
        last = text.count("\n") + 1
        if any(row.line == last for table in log.tables for row in table.rows):
            raise fail(file, last, "no newline after the last figure", "it may be cut off")
    return log
