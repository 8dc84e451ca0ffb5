# SPDX-License-Identifier: Apache-2.0
"""Kernels: HPCC, HPL, HPCG, STREAM, Graph500, NPB. Small inputs are here; a study may give its own."""

from __future__ import annotations

from nearmetal.study.runner.suite import Program, Where
from nearmetal.study.runner.workloads.model import Module


def _kernel(file: str, log_format: str, *args: str, max_ranks: int | None = None) -> Program:
    return Program(file, file, Where.SITE, args, log_format, max_ranks=max_ranks, timeout_s=1800)


def _npb(name: str, summary: str) -> Module:
    return Module(f"NPB {name.upper()}, class A: {summary}", _kernel(f"{name}.A.x", "npb"))


KERNELS = {
    "hpcc": Module("HPC Challenge", _kernel("hpcc", "hpcc"), "hpcc", figures="hpccoutf.txt"),
    "hpl": Module("HPL", _kernel("xhpl", "hpl"), "hpl"),
    "hpcg": Module("HPCG", _kernel("xhpcg", "hpcg"), "hpcg", figures="HPCG-Benchmark*.txt"),
    "stream": Module("STREAM, one process", _kernel("stream", "stream", max_ranks=1)),
    "graph500": Module(
        "Graph500, breadth-first search, scale 16",
        _kernel("graph500_reference_bfs", "graph500", "16", "16"),
    ),
    "npb-cg": _npb("cg", "conjugate gradients"),
    "npb-ep": _npb("ep", "no messages"),
    "npb-ft": _npb("ft", "all to all"),
    "npb-is": _npb("is", "integer sort"),
    "npb-lu": _npb("lu", "small messages"),
    "npb-mg": _npb("mg", "near and far neighbours"),
}
