# SPDX-License-Identifier: Apache-2.0
"""The measurements for each row of the table of figures: jobs, tests, peers. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.promises.turns import Seat
from nearmetal.core.resources import REPOSITORY
from nearmetal.job.mpi import STACKS, Mpi, Provider
from nearmetal.study.runner.suite import BenchArm, PlannedLaunch, Program, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nearmetal.cluster.backends.local.spec import LocalSpec
    from nearmetal.job.mpi import Stack

SEALED = BenchArm("sealed", "nearmetal, sealed nodes", Provider.NEARMETAL, nodes=("a", "b"))
SHARED = BenchArm(
    "shared-pids",
    "nearmetal, nodes that share a PID namespace",
    Provider.NEARMETAL,
    nodes=("c", "d"),
)
OURS = (SEALED, SHARED)
_FABRIC_SHM = BenchArm("shm", "libfabric shm", Provider.STOCK, nodes=("one", "one"))

_LIMITS = Program("limits", "limits", Where.BENCHMARKS, (), mpis=())
_FABRIC = Program("fabric", "fabric_pingpong", Where.BENCHMARKS, ("-b",), mpis=())
_SAMPLES = Program("samples", "mpi_samples", Where.PROGRAMS, ())

_IMB_SIZES = REPOSITORY / "benchmarks" / "mpi" / "imb-sizes.txt"
IMB = Program(
    "imb",
    "IMB-MPI1",
    Where.IMPI,
    (
        "-npmin",
        "4",
        "-msglen",
        str(_IMB_SIZES),
        "-iter",
        "400",
        "-time",
        "0.3",
        "Allreduce",
        "Alltoall",
    ),
    "imb",
    (Mpi.MPICH5, Mpi.IMPI),
    timeout_s=120,
)
IMB_RANKS = 4
ADDRESSES = Program("addresses", "fabric_addresses", Where.BENCHMARKS, (), mpis=(), timeout_s=300)

_FOOTPRINTS = ("256K", "1M", "2M", "4M")
_STREAMED = ("128K", "256K", "1M", "4M")


def _sizes(name: str, *sizes: str) -> tuple[str, ...]:
    return tuple(f"{name}:{size}" for size in sizes)


def _pools(*sizes: str) -> tuple[str, ...]:
    """Return every limit of bandwidth at some sizes."""
    names = [
        "cma_read",
        "cma_both",
        *(f"two_copy@{f}" for f in _FOOTPRINTS),
        *(f"streamed@{f}" for f in _STREAMED),
    ]
    return tuple(test for name in names for test in _sizes(name, *sizes))


@dataclass(frozen=True)
class FigureRun:
    """The measurements of one row. `mpis`: their jobs take turns; `fabric`: libfabric alone too."""

    name: str
    tests: tuple[str, ...]
    mpis: tuple[Mpi, ...] = ()
    fabric: bool = False
    stacks: tuple[str, ...] = ()
    """Names of the ways of the MPIs that are peers; empty: all."""
    limits: tuple[str, ...] = ()
    ranks: int = 2
    imb: bool = False
    """Whether the Intel MPI Benchmarks run too, for the MPIs that can run them."""
    addresses: bool = False
    """Whether the program that fills address vectors runs; it sends no messages."""


_ALL = (Mpi.OPENMPI5, Mpi.MPICH5, Mpi.IMPI)

ROWS = (
    FigureRun("fabric-latency", ("pingpong:8",), fabric=True),
    FigureRun("openmpi-latency", ("pingpong:8",), (Mpi.OPENMPI5,)),
    FigureRun("openmpi-rate", ("uniband:8",), (Mpi.OPENMPI5,), limits=("slots:8",)),
    FigureRun("mpich-small", ("pingpong:8", "uniband:8"), (Mpi.MPICH5,)),
    FigureRun("bandwidth-large", _sizes("uniband", "1M", "4M"), _ALL, limits=_pools("1M", "4M")),
    FigureRun("bandwidth-64k", _sizes("uniband", "64K"), _ALL, limits=_pools("64K")),
    FigureRun(
        "collectives-4",
        ("allreduce:8", "alltoall:64K"),
        _ALL,
        ranks=4,
        stacks=("sm", "sm-copy", "posix", "ucx", "ofi-shm", "shm"),
        imb=True,
    ),
    FigureRun(
        "barrier-32", ("barrier:0",), (Mpi.OPENMPI5, Mpi.MPICH5), ranks=32, stacks=("posix", "sm")
    ),
    FigureRun("addresses", (), addresses=True),
)


def limits_seat(rows: Iterable[FigureRun]) -> Seat:
    """Return the limits program, with the limits that are bounds of the rows."""
    tests = ["cacheline:8", *(test for row in rows for test in row.limits)]
    return Seat(PlannedLaunch(0, _LIMITS, None, None), 1, tuple(dict.fromkeys(tests)))


def stack_arm(stack: Stack) -> BenchArm:
    """Return the arm of one of the ways of an MPI within one node."""
    return BenchArm(stack.name, stack.title, Provider.STOCK, nodes=("one",), stack=stack)


def seats(
    rows: Sequence[FigureRun], installed: Iterable[Mpi], ours: Sequence[BenchArm]
) -> list[Seat]:
    """Return the jobs that take turns for these rows, each once with all its tests.

    `ours`: the ways in which nearmetal carries messages between nodes.
    """
    here = set(installed)
    wanted: dict[tuple[Mpi | None, str], Seat] = {}

    def add(program: Program, mpi: Mpi | None, arm: BenchArm, row: FigureRun) -> None:
        key = (mpi, arm.name)
        seat = wanted.get(key, Seat(PlannedLaunch(0, program, mpi, arm), row.ranks, ()))
        tests = tuple(dict.fromkeys((*seat.tests, *row.tests)))
        wanted[key] = replace(seat, tests=tests)

    for row in rows:
        if row.fabric:
            shm = replace(_FABRIC, args=(*_FABRIC.args, "-p", "shm"))
            add(shm, None, _FABRIC_SHM, row)
            for arm in ours:
                add(_FABRIC, None, arm, row)
        for mpi in row.mpis:
            if mpi not in here:
                continue
            for arm in ours:
                add(_SAMPLES, mpi, arm, row)
            for stack in STACKS:
                if stack.mpi is mpi and (not row.stacks or stack.name in row.stacks):
                    add(_SAMPLES, mpi, stack_arm(stack), row)
    return list(wanted.values())


def imb_steps(
    installed: Iterable[Mpi], ours: Sequence[BenchArm], block: int
) -> list[PlannedLaunch]:
    """Return the launches of one round of the Intel MPI Benchmarks, in random order."""
    here = set(installed)
    steps = []
    for mpi in IMB.mpis:
        if mpi in here:
            stacks = [stack_arm(s) for s in STACKS if s.mpi is mpi and s.name != "tcp"]
            steps += [PlannedLaunch(block, IMB, mpi, arm) for arm in (*ours, *stacks)]
    dice = random.Random(block)  # noqa: S311 - an order, no secret
    return dice.sample(steps, len(steps))


def addresses_step(block: int) -> PlannedLaunch:
    """Return the launch of the program that fills address vectors."""
    return PlannedLaunch(block, ADDRESSES, None, SEALED)


def pinned_spec(spec: LocalSpec, cores: Sequence[int]) -> LocalSpec:
    """Return the spec with two cores of this process instead of its cores 0 and 1."""
    hosts = []
    for host in spec.hosts:
        nodes = [
            node.model_copy(update={"cpus": [cores[i] for i in node.cpus]})
            if node.cpus != "auto"
            else node
            for node in host.nodes
        ]
        hosts.append(host.model_copy(update={"nodes": nodes}))
    return spec.model_copy(update={"hosts": hosts})
