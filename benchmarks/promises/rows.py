# SPDX-License-Identifier: Apache-2.0
"""The promises of speed, row by row, with their bounds as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.promises.samples import Placement, What, Who
from nearmetal.evidence import Unit

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = Who("", "")
SEALED, SHARED = "sealed", "shared-pids"

ONE_COPY = (
    Who("openmpi5", "sm"),
    Who("mpich5", "posix"),
    Who("mpich5", "ucx"),
    Who("mpich5", "ofi-shm"),
)
"""Transports whose kernel copies between processes (CMA)."""

TITLES = {
    Who("", "shm"): "libfabric shm",
    Who("openmpi5", "sm"): "Open MPI 5 sm",
    Who("openmpi5", "sm-copy"): "Open MPI 5 sm, two copies",
    Who("openmpi5", "tcp"): "Open MPI 5 TCP",
    Who("mpich5", "posix"): "MPICH 5 posix",
    Who("mpich5", "ucx"): "MPICH 5 UCX",
    Who("mpich5", "ofi-shm"): "MPICH 5 over libfabric shm",
    Who("mpich5", "tcp"): "MPICH 5 TCP",
    Who("impi", "shm"): "Intel MPI shm",
    LIMIT: "limit of the cores",
}


@dataclass(frozen=True)
class Quantity:
    """The figure that a time per operation becomes."""

    unit: Unit
    of: Callable[[float, int], float]
    """Microseconds and message size to the figure."""
    less_is_better: bool


MICROSECONDS = Quantity(Unit.MICROSECONDS, lambda us, _size: us, less_is_better=True)
RATE = Quantity(Unit.MEGAMESSAGES_PER_SECOND, lambda us, _size: 1 / us, less_is_better=False)
BANDWIDTH = Quantity(
    Unit.GIGABYTES_PER_SECOND, lambda us, size: size / us / 1e3, less_is_better=False
)


@dataclass(frozen=True)
class Bound:
    """A bound: `factor` times the figure of the best peer, in the same placement.

    `tests` are those of the peers, if they differ from ours.
    """

    factor: float
    peers: tuple[Who, ...]
    words: str
    tests: tuple[str, ...] = ()
    placements: tuple[Placement, ...] = (Placement.NEAR, Placement.FAR)


@dataclass(frozen=True)
class Promise:
    """A figure of nearmetal that takes turns with its peers, and the bounds of the figure."""

    title: str
    ours: Who
    what: What
    quantity: Quantity
    bounds: tuple[Bound, ...]


@dataclass(frozen=True)
class Measure:
    """A figure of a program that is launched repeatedly and takes no turns; less is better.

    The bound is `limit`, or `factor` times the figure of the best peer.
    """

    title: str
    program: str
    test: str
    size: int
    metric: str
    ours: Who
    unit: str
    scale: float = 1.0
    """From the unit of the raw column to the unit shown."""
    limit: float | None = None
    peers: tuple[Who, ...] = ()
    factor: float = 1.0


@dataclass(frozen=True)
class FigureRow:
    """A row of the table: all its promises and measures must hold."""

    name: str
    title: str
    promises: tuple[Promise, ...]
    reference: str = ""
    measures: tuple[Measure, ...] = ()


def title_of(who: Who) -> str:
    """Return the name of a peer."""
    return TITLES.get(who, f"{who.mpi} {who.arm}".strip())


_KIB, _MIB = 1 << 10, 1 << 20
_NEAR, _FAR = (Placement.NEAR,), (Placement.FAR,)

_SM, _TCP = Who("openmpi5", "sm"), Who("openmpi5", "tcp")
_ANY = (*ONE_COPY, Who("openmpi5", "sm-copy"), Who("impi", "shm"))
_POOLS = tuple(f"two_copy@{f}" for f in ("256K", "1M", "2M", "4M"))
_STREAMED = tuple(f"streamed@{f}" for f in ("128K", "256K", "1M", "4M"))


def _of(mpi: str, arm: str = SEALED) -> Who:
    return Who(mpi, arm)


def _small(title: str, test: str, peer: str, words: str) -> Promise:
    unit = MICROSECONDS if test == "pingpong" else RATE
    return Promise(
        title,
        _of("mpich5"),
        What(test, 8),
        unit,
        (Bound(1.0, (Who("mpich5", peer),), words),),
    )


def _bandwidth(title: str, size: int, *near: Bound) -> tuple[Promise, ...]:
    what = What("uniband", size)
    streamed = Bound(0.9, (LIMIT,), "the non-temporal pool", _STREAMED, placements=_FAR)
    best = Bound(0.95, _ANY, "the best peer", placements=_FAR)
    return (
        Promise(title, _of("openmpi5"), what, BANDWIDTH, (*near, streamed)),
        Promise(f"{title}, shared PIDs", _of("openmpi5", SHARED), what, BANDWIDTH, (best,)),
    )


def _one_copy(factor: float) -> Bound:
    return Bound(factor, ONE_COPY, "the best CMA transport", placements=_NEAR)


_POOL = Bound(0.9, (LIMIT,), "the two-copy pool", _POOLS, placements=_NEAR)


def _collective(title: str, test: str, size: int) -> tuple[Promise, ...]:
    def crowd(mpi: str, *arms: str) -> tuple[Who, ...]:
        return tuple(Who(mpi, f"{arm}/4") for arm in arms)

    peers = (
        *crowd("openmpi5", "sm", "sm-copy"),
        *crowd("mpich5", "posix", "ucx", "ofi-shm"),
        *crowd("impi", "shm"),
    )
    bound = Bound(1.25, peers, "the best peer")
    ours = Who("openmpi5", f"{SEALED}/4")
    return (Promise(title, ours, What(test, size), MICROSECONDS, (bound,)),)


def _imb(test: str, title: str, size: int) -> tuple[Measure, ...]:
    def measure(mpi: str, name: str) -> Measure:
        peers = (
            Who("mpich5", "posix"),
            Who("mpich5", "ucx"),
            Who("mpich5", "ofi-shm"),
            Who("impi", "shm"),
        )
        return Measure(
            f"IMB {title}, {name}",
            "imb",
            test,
            size,
            "time_mean",
            Who(mpi, SEALED),
            "µs",
            peers=peers,
            factor=1.25,
        )

    return measure("mpich5", "MPICH 5"), measure("impi", "Intel MPI")


def _addresses(title: str, size: int) -> tuple[Measure, ...]:
    def measure(name: str, metric: str, unit: str, scale: float, limit: float) -> Measure:
        return Measure(
            f"{title}, {name}",
            "addresses",
            "addresses",
            size,
            metric,
            Who("", SEALED),
            unit,
            scale,
            limit,
        )

    return (
        measure("memory of the vector", "vector", "MB", 1e-3, 48),
        measure("time to insert", "insert", "s", 1, 2),
    )


ROWS = (
    FigureRow(
        "fabric-latency",
        "8 B half round trip, fabric level",
        (
            Promise(
                "libfabric",
                _of(""),
                What("pingpong", 8),
                MICROSECONDS,
                (Bound(2.0, (LIMIT,), "the raw cache-line ping-pong", ("cacheline",)),),
            ),
        ),
        "61 ns raw; libfabric shm 190 ns",
    ),
    FigureRow(
        "openmpi-latency",
        "8 B half round trip, Open MPI 5",
        (
            Promise(
                "Open MPI 5",
                _of("openmpi5"),
                What("pingpong", 8),
                MICROSECONDS,
                (
                    Bound(1.8, (_SM,), "Open MPI's own sm"),
                    Bound(0.04, (_TCP,), "Open MPI's TCP"),
                ),
            ),
        ),
        "0.124 µs; 6.3 µs",
    ),
    FigureRow(
        "openmpi-rate",
        "8 B message rate, Open MPI 5",
        (
            Promise(
                "Open MPI 5",
                _of("openmpi5"),
                What("uniband", 8),
                RATE,
                (
                    Bound(0.7, (_SM,), "Open MPI's own sm"),
                    Bound(50, (_TCP,), "Open MPI's TCP"),
                ),
            ),
        ),
        "17.5 M/s; 0.2 M/s",
    ),
    FigureRow(
        "mpich-small",
        "8 B half round trip and rate, MPICH 5",
        (
            _small("latency", "pingpong", "posix", "its posix"),
            _small("latency", "pingpong", "ucx", "its UCX"),
            _small("rate", "uniband", "posix", "its posix"),
            _small("rate", "uniband", "ucx", "its UCX"),
        ),
        "1.0 µs; 7 M/s",
    ),
    FigureRow(
        "bandwidth-large",
        "bandwidth 1 MiB and 4 MiB, windows",
        (
            *_bandwidth("1 MiB", _MIB, _one_copy(2.0), _POOL),
            *_bandwidth("4 MiB", 4 * _MIB, _one_copy(2.0), _POOL),
        ),
        "13.5 GB/s; 31-34 GB/s",
    ),
    FigureRow(
        "bandwidth-64k",
        "bandwidth 64 KiB, windows",
        _bandwidth("64 KiB", 64 * _KIB, _one_copy(1.8)),
        "11 GB/s",
    ),
    FigureRow(
        "collectives-4",
        "4 ranks on 2 cores, Allreduce 8 B and Alltoall 64 KiB",
        (
            *_collective("Allreduce 8 B", "allreduce", 8),
            *_collective("Alltoall 64 KiB", "alltoall", 64 * _KIB),
        ),
        "measure",
        (*_imb("Allreduce", "Allreduce 8 B", 8), *_imb("Alltoall", "Alltoall 64 KiB", 64 * _KIB)),
    ),
    FigureRow(
        "barrier-32",
        "32 ranks on 2 cores, Barrier",
        (
            Promise(
                "Barrier",
                Who("mpich5", f"{SEALED}/32"),
                What("barrier", 0),
                MICROSECONDS,
                (Bound(2.0, (Who("mpich5", "posix/32"),), "MPICH posix"),),
            ),
        ),
        "measure",
    ),
    FigureRow(
        "addresses",
        "10^6 addresses inserted",
        (),
        "libfabric's own AV: 136 B each",
        (*_addresses("IPv4", 16), *_addresses("IPv6", 28)),
    ),
)
