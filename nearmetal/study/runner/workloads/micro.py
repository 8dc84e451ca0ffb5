# SPDX-License-Identifier: Apache-2.0
"""Micro-benchmarks: our own, IMB, OSU where the site has it, NetPIPE, perftest."""

from __future__ import annotations

from nearmetal.study.runner.suite import Program, Where
from nearmetal.study.runner.workloads.model import MPICH_ABI, OPENMPI_ABI, Module

_LAST = 1 << 20
_IDLE_S = 60.0
"""A size that prints nothing for so long hangs."""


def _imb(file: str, name: str, summary: str, *more: str, log2_size: int = 20) -> Module:
    args = (
        *more,
        "-npmin",
        "@ranks@",
        "-msglog",
        str(log2_size),
        "-iter",
        "100",
        "-time",
        "0.2",
        name,
    )
    program = Program(f"{file}-{name}", file, Where.IMPI, args, "imb", MPICH_ABI)
    return Module(summary, program, idle_s=_IDLE_S, doubling=True)


def _mpi1(name: str, summary: str, *more: str, log2_size: int = 20) -> Module:
    return _imb("IMB-MPI1", name, summary, *more, log2_size=log2_size)


def _osu(file: str, summary: str, max_ranks: int | None = None) -> Module:
    program = Program(file, file, Where.SITE, (), "osu", max_ranks=max_ranks)
    return Module(summary, program, idle_s=_IDLE_S, doubling=True)


def _own(pattern: str, summary: str) -> Module:
    args = ("-p", pattern, "-t", "0.03")
    return Module(summary, Program(pattern, "mpi_patterns", Where.PROGRAMS, args))


def _netpipe(summary: str, last: int, *more: str) -> Module:
    args = ("-o", "/dev/null", "-u", str(last), *more)
    program = Program(
        "NetPIPE", "NPopenmpi", Where.SYSTEM, args, "netpipe", OPENMPI_ABI, "stderr", last, 2
    )
    return Module(summary, program, idle_s=_IDLE_S)


def _perftest(file: str, summary: str) -> Module:
    program = Program(file, file, Where.SITE, (), "perftest", mpis=(), max_ranks=2)
    return Module(
        summary, program, idle_s=_IDLE_S, doubling=True, sizes=tuple(1 << n for n in range(1, 24))
    )


MICRO = {
    "pingpong": _own("pingpong", "half round trip between two ranks"),
    "uniband": _own("uniband", "windows of messages one way"),
    "imb-pingpong": _mpi1("PingPong", "half round trip between two ranks"),
    "imb-multi-pingpong": _mpi1("PingPong", "all pairs at a time", "-multi", "0"),
    "imb-sendrecv": _mpi1("Sendrecv", "a ring, one way"),
    "imb-exchange": _mpi1("Exchange", "a ring, both ways"),
    "imb-uniband": _mpi1("Uniband", "pairs, windows one way"),
    "imb-biband": _mpi1("Biband", "pairs, windows both ways"),
    "imb-allreduce": _mpi1("Allreduce", "sum over all ranks"),
    "imb-reduce": _mpi1("Reduce", "sum to one rank"),
    "imb-allgather": _mpi1("Allgather", "all to all the same", log2_size=16),
    "imb-alltoall": _mpi1("Alltoall", "all to all", log2_size=16),
    "imb-alltoallv": _mpi1("Alltoallv", "all to all, sizes given apart", log2_size=16),
    "imb-bcast": _mpi1("Bcast", "one to all"),
    "imb-barrier": _mpi1("Barrier", "all wait for all"),
    "imb-put": _imb("IMB-RMA", "Unidir_put", "puts of one rank"),
    "imb-get": _imb("IMB-RMA", "Unidir_get", "gets of one rank"),
    "imb-bidir-put": _imb("IMB-RMA", "Bidir_put", "puts of two ranks"),
    "imb-all-put-all": _imb("IMB-RMA", "All_put_all", "puts of all to all", log2_size=16),
    "osu-latency": _osu("osu_latency", "half round trip", 2),
    "osu-bw": _osu("osu_bw", "windows one way", 2),
    "osu-bibw": _osu("osu_bibw", "windows both ways", 2),
    "osu-mbw-mr": _osu("osu_mbw_mr", "pairs: bandwidth and message rate"),
    "osu-multi-lat": _osu("osu_multi_lat", "pairs: latency"),
    "osu-put-latency": _osu("osu_put_latency", "latency of puts", 2),
    "osu-get-latency": _osu("osu_get_latency", "latency of gets", 2),
    "osu-put-bw": _osu("osu_put_bw", "bandwidth of puts", 2),
    "osu-get-bw": _osu("osu_get_bw", "bandwidth of gets", 2),
    "osu-allreduce": _osu("osu_allreduce", "sum over all ranks"),
    "osu-allgather": _osu("osu_allgather", "all to all the same"),
    "osu-alltoall": _osu("osu_alltoall", "all to all"),
    "osu-alltoallv": _osu("osu_alltoallv", "all to all, sizes given apart"),
    "osu-bcast": _osu("osu_bcast", "one to all"),
    "osu-barrier": _osu("osu_barrier", "all wait for all"),
    "netpipe": _netpipe("half round trip, sizes beside powers of two too", _LAST),
    "netpipe-quick": _netpipe("the same in a few seconds, to 64 KiB", 1 << 16, "-n", "20"),
    "perftest-send-lat": _perftest("ib_send_lat", "latency of sends, verbs"),
    "perftest-send-bw": _perftest("ib_send_bw", "bandwidth of sends, verbs"),
    "perftest-write-lat": _perftest("ib_write_lat", "latency of writes, verbs"),
    "perftest-write-bw": _perftest("ib_write_bw", "bandwidth of writes, verbs"),
    "perftest-read-lat": _perftest("ib_read_lat", "latency of reads, verbs"),
    "perftest-read-bw": _perftest("ib_read_bw", "bandwidth of reads, verbs"),
}
