# SPDX-License-Identifier: Apache-2.0
"""The table of figures: each promise, what was measured for it, and whether it holds. Pure.

Times are compared by their 2nd percentile, rates and bandwidths by their 98th: the machine
undisturbed, on both sides alike. Everything is judged within one placement of the cores. Bounds are
set for two cores: where the two processors were threads of one, figures are told and not judged.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.promises.samples import Placement, What, Who
from nearmetal.study.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.promises.samples import Samples
    from nearmetal.evidence import RunFacts

MIN_SAMPLES = 48
"""Fewer say nothing about a 2nd percentile."""

QUIET = 2

NO_BOUND = "threads of one core: no bound"
"""Why a figure that was measured is not judged."""
_KIB, _MIB = 1 << 10, 1 << 20

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
class Unit:
    """How a time per operation becomes the figure shown."""

    name: str
    of: Callable[[float, int], float]
    """Microseconds and message size to the figure."""
    less_is_better: bool


MICROSECONDS = Unit("µs", lambda us, _size: us, less_is_better=True)
RATE = Unit("10^6/s", lambda us, _size: 1 / us, less_is_better=False)
BANDWIDTH = Unit("GB/s", lambda us, size: size / us / 1e3, less_is_better=False)


@dataclass(frozen=True)
class Against:
    """One bound: our figure against the best of some others' in the same placement.

    `sense` "<=": at most `factor` times theirs; ">=": at least. `test` and `size`: theirs, where
    they differ from ours.
    """

    sense: str
    factor: float
    peers: tuple[Who, ...]
    words: str
    tests: tuple[str, ...] = ()
    size: int | None = None
    placements: tuple[Placement, ...] = (Placement.NEAR, Placement.FAR)

    @property
    def must(self) -> str:
        """The bound as text."""
        return f"{self.sense} {self.factor:g} x {self.words}"


@dataclass(frozen=True)
class Promise:
    """A figure of ours with its bounds."""

    title: str
    ours: Who
    what: What
    unit: Unit
    bounds: tuple[Against, ...]
    enough: int = MIN_SAMPLES
    """Fewer samples decide nothing; crowds of ranks give few, of many operations each."""


@dataclass(frozen=True)
class Measure:
    """A figure of a program that takes no turns: the least of its launches, whatever the cores.

    Its bound is `limit`, or `factor` times the least of the peers' figures.
    """

    title: str
    program: str
    test: str
    size: int
    metric: str
    ours: Who
    unit: str
    scale: float = 1.0
    """From the raw column's unit to the one shown."""
    limit: float | None = None
    peers: tuple[Who, ...] = ()
    factor: float = 1.0

    @property
    def must(self) -> str:
        """The bound as text."""
        if self.limit is not None:
            return f"<= {self.limit:g} {self.unit}"
        return f"<= {self.factor:g} x the best peer"


@dataclass(frozen=True)
class FigureRow:
    """A row of the table: all its claims and measures must hold."""

    name: str
    title: str
    claims: tuple[Promise, ...]
    reference: str = ""
    measures: tuple[Measure, ...] = ()


@dataclass(frozen=True)
class Part:
    """One bound, measured in one placement.

    `holds` None: it was not measured, or no bound is set there; `why` says which.
    """

    name: str
    placement: str
    value: float | None
    median: float | None
    unit: str
    peer: str
    peer_value: float | None
    peer_median: float | None
    ratio: float | None
    samples: int
    percentile: int
    must: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True)
class Figure:
    """A row with what was measured: the part that decides, and all of them."""

    row: str
    title: str
    reference: str
    holds: bool | None
    deciding: Part | None
    parts: tuple[Part, ...] = field(default=())

    def data(self) -> dict[str, Any]:
        """Return the row as it stands in figures.json."""
        part = self.deciding
        keys = ("value", "unit", "peer", "ratio", "samples", "percentile", "placement")
        return {
            "name": self.row,
            "title": self.title,
            **{key: getattr(part, key) if part else None for key in keys},
            "must": "; ".join(dict.fromkeys(f"{p.name}: {p.must}" for p in self.parts)),
            "holds": self.holds,
            "why": part.why if part else "not measured",
            "reference": self.reference,
            "parts": [asdict(p) for p in self.parts],
        }


@dataclass(frozen=True)
class _Measured:
    quiet: float
    median: float
    samples: int


def _measure(times_us: Sequence[float], unit: Unit, size: int) -> _Measured | None:
    """Return the figure of some samples; the quick end of times is the high end of rates."""
    good = [t for t in times_us if t > 0]
    if not good:
        return None
    return _Measured(
        unit.of(percentile(good, QUIET), size), unit.of(percentile(good, 50), size), len(good)
    )


def _best(
    samples: Samples, claim: Promise, bound: Against, placement: Placement
) -> tuple[str, _Measured] | None:
    """Return the best peer with its figure; None when there is none."""
    size = claim.what.size if bound.size is None else bound.size
    found: list[tuple[str, _Measured]] = []
    for who in bound.peers:
        for test in bound.tests or (claim.what.test,):
            times = samples.of(who, What(test, size), placement)
            figure = _measure(times, claim.unit, size) if len(times) >= claim.enough else None
            if figure is not None:
                name = TITLES.get(who, f"{who.mpi} {who.arm}".strip())
                found.append((f"{name} {test}" if bound.tests else name, figure))
    if not found:
        return None
    key = (lambda f: f[1].quiet) if claim.unit.less_is_better else (lambda f: -f[1].quiet)
    return min(found, key=key)


def _judge(samples: Samples, claim: Promise, bound: Against, placement: Placement) -> Part:
    """Hold one figure against one bound in one placement."""
    times = samples.of(claim.ours, claim.what, placement)
    ours = _measure(times, claim.unit, claim.what.size)
    peer = _best(samples, claim, bound, placement)
    less = claim.unit.less_is_better
    holds, ratio, why = None, None, ""
    if ours is None or ours.samples < claim.enough:
        why = _why_missing(samples, claim.ours, placement, ours.samples if ours else 0)
    elif peer is None:
        why = _why_missing(samples, bound.peers[0] if bound.peers else claim.ours, placement, 0)
    else:
        ratio = ours.quiet / peer[1].quiet
        if placement not in bound.placements:
            why = NO_BOUND
        else:
            holds = ratio <= bound.factor if bound.sense == "<=" else ratio >= bound.factor
        if holds is False:
            missed = ratio / bound.factor if bound.sense == "<=" else bound.factor / ratio
            why = f"missed by {(missed - 1) * 100:.0f} %"
    return Part(
        claim.title,
        placement.value,
        ours.quiet if ours else None,
        ours.median if ours else None,
        claim.unit.name,
        peer[0] if peer else bound.words,
        peer[1].quiet if peer else None,
        peer[1].median if peer else None,
        ratio,
        ours.samples if ours else 0,
        QUIET if less else 100 - QUIET,
        bound.must,
        holds,
        why,
    )


def is_rare(samples: Samples, placement: Placement) -> bool:
    """Whether too few turns were seen there to say anything."""
    total = sum(samples.turns.values()) + samples.unsettled
    return not total or samples.turns[placement] < total / 20


def _why_missing(samples: Samples, who: Who, placement: Placement, nr: int) -> str:
    if is_rare(samples, placement):
        total = sum(samples.turns.values()) + samples.unsettled
        return (
            f"the cores were {placement.value} in {samples.turns[placement]} of {total} turns only"
        )
    name = TITLES.get(who, f"{who.mpi} {who.arm}".strip())
    return f"{nr} samples of {name}: it was not started, failed, or had too few turns"


def _least(run: RunFacts, measure: Measure, who: Who) -> tuple[float, float, int] | None:
    """Return the least and the median value, in the unit shown, and how many launches."""
    facts = run.select(
        program=measure.program,
        mpi=who.mpi,
        arm=who.arm,
        test=measure.test,
        size=measure.size,
        metric=measure.metric,
    )
    # A test that IMB gave up for lack of time stands there with zeros.
    values = [fact.value * measure.scale for fact in facts if fact.value > 0]
    if not values:
        return None
    return min(values), percentile(values, 50), len(values)


def _hold(run: RunFacts, measure: Measure) -> Part:
    """Hold one measure against its bound."""
    ours = _least(run, measure, measure.ours)
    found = [(who, _least(run, measure, who)) for who in measure.peers]
    peers = [(value[0], value[1], who) for who, value in found if value is not None]
    best = min(peers, key=lambda p: p[0]) if peers else None
    bound = measure.limit if measure.limit is not None else (best[0] if best else None)
    factor = 1.0 if measure.limit is not None else measure.factor
    ratio = ours[0] / bound if ours and bound else None
    holds = None if ratio is None else ratio <= factor
    why = "" if ratio is not None else "it was not run, or failed"
    if ratio is not None and not holds:
        why = f"missed by {(ratio / factor - 1) * 100:.0f} %"
    return Part(
        measure.title,
        "any",
        ours[0] if ours else None,
        ours[1] if ours else None,
        measure.unit,
        TITLES[best[2]] if best else "",
        best[0] if best else None,
        best[1] if best else None,
        ratio,
        ours[2] if ours else 0,
        0,
        measure.must,
        holds,
        why,
    )


def _told(samples: Samples, bound: Against) -> tuple[Placement, ...]:
    """Return where a bound's figures are told without being judged."""
    seen = not is_rare(samples, Placement.SIBLINGS)
    return (Placement.SIBLINGS,) if seen and Placement.NEAR in bound.placements else ()


def judge(samples: Samples, run: RunFacts, rows: Iterable[FigureRow]) -> list[Figure]:
    """Return every row with what was measured for it.

    A row holds when all its bounds hold in every placement that was seen, and at least one was.
    """
    figures = []
    for row in rows:
        parts = tuple(
            _judge(samples, claim, bound, placement)
            for claim in row.claims
            for bound in claim.bounds
            for placement in (*_told(samples, bound), *bound.placements)
        ) + tuple(_hold(run, measure) for measure in row.measures)
        settled = [p for p in parts if p.holds is not None]
        missed = [p for p in settled if not p.holds]
        holds = None if not settled else not missed
        deciding = (
            max(missed, key=_distance)
            if missed
            else max(settled, key=_distance, default=parts[0] if parts else None)
        )
        figures.append(Figure(row.name, row.title, row.reference, holds, deciding, parts))
    return figures


def _distance(part: Part) -> float:
    """How close to its bound, or how far past it; larger is worse."""
    sense, factor = part.must.split()[:2]
    if not part.ratio:
        return 0.0
    if part.peer == "":
        return part.ratio  # of a limit
    return part.ratio / float(factor) if sense == "<=" else float(factor) / part.ratio
