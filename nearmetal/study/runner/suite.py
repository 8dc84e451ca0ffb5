# SPDX-License-Identifier: Apache-2.0
"""Suites: programs, arms and the order of their launches. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from nearmetal.job.mpi import Mpi, Provider, Stack


@dataclass(frozen=True)
class BenchArm:
    """One way to carry messages. `nodes` (): all nodes. `stack`: one of the ways of an MPI.

    `together`: a pair of processes runs in one node. `env`: settings of nearmetal.
    """

    name: str
    title: str
    provider: Provider
    channels: tuple[str, ...] | None = None
    nodes: tuple[str, ...] = ()
    stack: Stack | None = None
    together: bool = False
    env: tuple[tuple[str, str], ...] = ()


ARMS = {
    arm.name: arm
    for arm in (
        BenchArm("auto", "nearmetal", Provider.NEARMETAL),
        BenchArm("net", "nearmetal, network only", Provider.NEARMETAL, ("self", "net")),
        BenchArm("stock", "the MPI's own stack over TCP", Provider.STOCK),
    )
}

_SHM = ("self", "shm")
GPU_ARMS = {
    arm.name: arm
    for arm in (
        BenchArm("near", "one node, nothing forced", Provider.NEARMETAL, together=True),
        BenchArm(
            "handle", "one node, `shm`: copies on the GPU", Provider.NEARMETAL, _SHM, together=True
        ),
        BenchArm(
            "staged",
            "one node, `shm` without handles: through host memory",
            Provider.NEARMETAL,
            _SHM,
            together=True,
            env=(("NEARMETAL_CMA", "off"),),
        ),
        BenchArm("apart", "two nodes, nothing forced", Provider.NEARMETAL),
        BenchArm("segment", "two nodes, `segment`", Provider.NEARMETAL, ("self", "segment")),
        BenchArm("net", "two nodes, network only", Provider.NEARMETAL, ("self", "net")),
    )
}
"""The ways between two GPU buffers."""


class Where(Enum):
    """The origin of a program."""

    PROGRAMS = "MPI programs of nearmetal"
    IMPI = "Intel MPI"
    SYSTEM = "/usr/bin"
    BENCHMARKS = "programs of nearmetal without MPI"
    SITE = "PATH"


@dataclass(frozen=True)
class Program:
    """One program with its arguments; `{ranks}` in an argument is the number of ranks."""

    label: str
    file: str
    where: Where
    args: tuple[str, ...]
    log_format: str = "nearmetal-bench"
    mpis: tuple[Mpi, ...] = tuple(Mpi)
    log: str = "stdout"
    last_size: int | None = None
    max_ranks: int | None = None
    timeout_s: float = 300.0
    gpu: bool = False
    """Whether it needs a GPU in each node of the pair."""


@dataclass(frozen=True)
class Suite:
    """The programs of every block: the limits of the cores, libfabric alone, MPI programs."""

    name: str
    summary: str
    limits: Program | None
    fabric: tuple[Program, ...]
    programs: tuple[Program, ...]
    blocks: int
    arms: Mapping[str, BenchArm] = field(default_factory=lambda: ARMS)


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch to make.

    `arm` None: the program runs beside the cluster. `mpi` None: a program without MPI.
    """

    block: int
    program: Program
    mpi: Mpi | None
    arm: BenchArm | None

    @property
    def fields(self) -> dict[str, object]:
        """The fields of its record."""
        mpi, arm = self.mpi.value if self.mpi else "", self.arm.name if self.arm else ""
        return {"block": self.block, "mpi": mpi, "arm": arm}


MPICH_ABI = (Mpi.MPICH5, Mpi.IMPI)
OPENMPI_ABI = (Mpi.OPENMPI5, Mpi.OPENMPI4)
"""MPIs whose libraries a program of another vendor loads."""

_NETPIPE_LAST = 4 << 20


def _limits(seconds: str) -> Program:
    return Program("limits", "limits", Where.BENCHMARKS, ("-t", seconds), mpis=(), timeout_s=120)


def _fabric(samples: str) -> tuple[Program, ...]:
    args = ("-t", samples)
    return (Program("fabric", "fabric_pingpong", Where.BENCHMARKS, args, mpis=(), timeout_s=120),)


def _patterns(label: str, *args: str) -> Program:
    return Program(label, "mpi_patterns", Where.PROGRAMS, args)


_IMB_ARGS = ("-npmin", "{ranks}", "-msglog", "22", "-iter", "50", "-time", "1")

_IMB_TESTS = (
    "PingPong PingPing Uniband Biband Sendrecv Exchange Bcast Allreduce Reduce Allgather "
    "Alltoall Alltoallv Barrier"
)

_THIRD_PARTY = (
    Program(
        "IMB-MPI1", "IMB-MPI1", Where.IMPI, (*_IMB_ARGS, *_IMB_TESTS.split()), "imb", MPICH_ABI
    ),
    Program("IMB-RMA", "IMB-RMA", Where.IMPI, _IMB_ARGS, "imb", MPICH_ABI),
    Program(
        "NetPIPE",
        "NPopenmpi",
        Where.SYSTEM,
        ("-o", "/dev/null", "-u", str(_NETPIPE_LAST)),
        "netpipe",
        OPENMPI_ABI,
        "stderr",
        _NETPIPE_LAST,
        2,
    ),
)


def _all(seconds: str) -> tuple[Program, ...]:
    """Return all MPI programs; `seconds` is the time of our own for each point."""
    return (
        _patterns("patterns", "-t", seconds),
        Program("window", "mpi_window", Where.PROGRAMS, ("-t", seconds)),
        *_THIRD_PARTY,
    )


_DEVICE = Program("device", "fabric_device", Where.BENCHMARKS, ("-t", "100"), mpis=(), gpu=True)
_QUICK = (_patterns("patterns", "-p", "pingpong,uniband", "-t", "0.03"),)

SUITES = {
    suite.name: suite
    for suite in (
        Suite("quick", "ping-pong and streams over message sizes", _limits("0.02"), (), _QUICK, 3),
        Suite(
            "standard",
            "libfabric alone, thirteen patterns of MPI messages, one-sided MPI, and the benchmarks IMB and NetPIPE",
            _limits("0.05"),
            _fabric("100"),
            _all("0.03"),
            3,
        ),
        Suite(
            "thorough",
            "the programs of standard, with longer samples and ten blocks",
            _limits("0.2"),
            _fabric("400"),
            _all("0.2"),
            10,
        ),
        Suite(
            "gpu",
            "messages from and to memory of a GPU over each channel, beside the copies of the GPU",
            None,
            (_DEVICE,),
            (),
            6,
            GPU_ARMS,
        ),
    )
}


def schedule(
    suite: Suite, mpis: Sequence[Mpi], arms: Sequence[BenchArm], blocks: int, seed: int = 1
) -> list[PlannedLaunch]:
    """Return all launches in order: blocks of everything, the arms of a comparison in a row.

    Every comparison has a new random order of the arms. So a drift of the machine, or the caches
    after a launch, affect all arms alike.
    """
    dice = random.Random(seed)  # noqa: S311 - an order, no secret
    steps = []
    ours = [arm for arm in arms if arm.provider is Provider.NEARMETAL]
    for block in range(blocks):
        if suite.limits is not None:
            steps.append(PlannedLaunch(block, suite.limits, None, None))
        for program in suite.fabric:
            steps += [
                PlannedLaunch(block, program, None, arm) for arm in dice.sample(ours, len(ours))
            ]
        for program in suite.programs:
            for mpi in mpis:
                if mpi in program.mpis:
                    order = dice.sample(list(arms), len(arms))
                    steps += [PlannedLaunch(block, program, mpi, arm) for arm in order]
    return steps
