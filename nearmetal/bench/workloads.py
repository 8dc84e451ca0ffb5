# SPDX-License-Identifier: Apache-2.0
"""Workloads that a study can name: small, declarative, each a program with its arguments."""

from __future__ import annotations

from nearmetal.bench.suite import Program, Where
from nearmetal.mpi import Mpi

_MPICH_ABI = (Mpi.MPICH5, Mpi.IMPI)
_OPENMPI = (Mpi.OPENMPI5, Mpi.OPENMPI4)
_LAST = 1 << 20


def _imb(*names: str, log2_size: int = 20) -> Program:
    args = ("-npmin", "{ranks}", "-msglog", str(log2_size), "-iter", "100", "-time", "0.2", *names)
    return Program("-".join(("IMB", *names)), "IMB-MPI1", Where.IMPI, args, "imb", _MPICH_ABI)


def _own(pattern: str) -> Program:
    return Program(pattern, "mpi_patterns", Where.PROGRAMS, ("-p", pattern, "-t", "0.03"))


WORKLOADS = {
    "imb-pingpong": _imb("PingPong"),
    "imb-sendrecv": _imb("Sendrecv"),
    "imb-exchange": _imb("Exchange"),
    "imb-biband": _imb("Biband"),
    "imb-allreduce": _imb("Allreduce"),
    "imb-alltoall": _imb("Alltoall", log2_size=16),
    "imb-alltoallv": _imb("Alltoallv", log2_size=16),
    "imb-bcast": _imb("Bcast"),
    "imb-barrier": _imb("Barrier"),
    "netpipe": Program("NetPIPE", "NPopenmpi", Where.SYSTEM,
                       ("-o", "/dev/null", "-u", str(_LAST)), "netpipe", _OPENMPI, "stderr", _LAST,
                       2),
    "pingpong": _own("pingpong"),
    "uniband": _own("uniband"),
}  # fmt: skip
"""By the name that a study uses."""
