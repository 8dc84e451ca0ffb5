# SPDX-License-Identifier: Apache-2.0
"""The expected tax of an application, from its MPI profile and the benchmarks of two arms. Pure.

Computation is taken as equal. Each group of calls has messages of known sizes, and a benchmark of
the study has the time of a message in both arms. Three numbers follow (docs/design/predict.md):

* the expected change: the messages cost what the benchmark says, and the rest of the time in MPI is
  waiting, which stays;
* the worst change: all the time in MPI changes by the ratio, or both ranks wait for each message;
* the best change: all communication is hidden behind computation, as far as there is enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from nearmetal.core.errors import NearmetalError
from nearmetal.evidence.profiles.calls import (
    LOCAL,
    POINT_TO_POINT,
    CallUse,
    Profile,
    group_of,
    sends,
)
from nearmetal.study.curves import Cost, Curve, Curves, Sized

MOST_UNMAPPED = 10.0
"""Percent of the time in MPI that may have no benchmark; without times, of the calls."""

_ROUNDED = 1.05
"""Profiles print times with few digits."""

_STANDS_FOR = {
    "Allgatherv": "Allgather",
    "Alltoallw": "Alltoallv",
    "Gatherv": "Gather",
    "Scatterv": "Scatter",
}
"""Calls with the benchmark that stands for them if they have none of their own."""


def benchmarks_for(group: str) -> list[str]:
    """Return the tests that measure a group of calls, the best first."""
    if group == POINT_TO_POINT:
        return ["osu_latency", "PingPong", "pingpong"]
    if group in ("Put", "Get"):
        return [f"osu_{group.lower()}_latency", f"Unidir_{group.lower()}"]
    names = [group, *([_STANDS_FOR[group]] if group in _STANDS_FOR else [])]
    return [test for n in names for test in (f"osu_{n.lower()}", n, n.lower())]


@dataclass(frozen=True)
class TaxLimits:
    """A change of the time, in seconds summed over all ranks."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True)
class GroupTax:
    """The calls of one group. `why` is empty, or the reason why they have no benchmark.

    `seconds` is the time in the profile, `messages_seconds` the time of the messages in the base
    arm; both are summed over all ranks.
    """

    name: str
    calls: tuple[str, ...]
    count: float
    seconds: float | None
    test: str = ""
    messages_seconds: float = 0.0
    cost: Cost | None = None
    change: TaxLimits = TaxLimits(0.0, 0.0, 0.0)
    why: str = ""
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """The expected tax of the test arm in percent of the run time in the base arm.

    `tax` is (low, expected, high), or None: `why` says why nothing is predicted.
    """

    profile: Profile
    seconds: float
    groups: tuple[GroupTax, ...]
    unmapped_percent: float
    remarks: tuple[str, ...]
    tax: TaxLimits | None
    why: str = ""


@dataclass
class _Group:
    name: str
    calls: list[CallUse]

    @property
    def count(self) -> float:
        return sum(use.count for use in self.calls)

    @property
    def seconds(self) -> float | None:
        times = [use.seconds for use in self.calls if use.seconds is not None]
        return sum(times) if times else None

    def tax(self, **more: object) -> GroupTax:
        names = tuple(dict.fromkeys(use.call for use in self.calls))
        return GroupTax(self.name, names, self.count, self.seconds, **more)  # type: ignore[arg-type]


def _grouped(calls: Iterable[CallUse]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for use in calls:
        name = group_of(use.call) or use.call
        groups.setdefault(name, _Group(name, [])).calls.append(use)
    return list(groups.values())


def _change(curve: Curve, group: _Group, messages: Sized, unsized: float) -> tuple[Cost, TaxLimits]:
    """Return the cost of the messages of a group, and the change of the time."""
    if unsized or not messages:
        cost = Cost(curve.least(unsized), curve.anywhere())
    else:
        cost = curve.cost(messages)
    low, high = cost.ratio.low, cost.ratio.high
    assert low is not None and high is not None  # noqa: S101, PT018 - a curve has its launches
    moved = cost.seconds
    if group.seconds is None:
        # At worst the receiver waits as long as the sender.
        most = moved * (2 if group.name == POINT_TO_POINT else 1)
    else:
        moved = group.seconds if unsized else min(cost.seconds, group.seconds)
        most = max(cost.seconds, group.seconds)
    limits = [seconds * (r - 1) for seconds in (moved, most) for r in (low, high)]
    expected = moved * (cost.ratio.value - 1)
    return cost, TaxLimits(min(*limits, expected), expected, max(*limits, expected))


def _judge(group: _Group, curves: Curves, ranks: int | None) -> GroupTax:
    tests = benchmarks_for(group.name)
    pair = group.name in (POINT_TO_POINT, "Put", "Get")
    if not pair and ranks is None:
        return group.tax(why="the number of ranks is not known: give --ranks")
    curve = curves.find(tests, None if pair else ranks)
    if isinstance(curve, str):
        return group.tax(why=curve)
    sized = [m for use in group.calls if sends(use.call) for m in use.messages]
    counts: defaultdict[float, float] = defaultdict(float)
    for one in sized:
        if one.size is not None:
            counts[one.size] += one.count
    messages = list(counts.items())
    unsized = sum(m.count for m in sized if m.size is None)
    if why := curve.why_not(messages):
        return group.tax(why=why)
    if not sized:
        return group.tax(why="the profile has no sizes of the messages that are waited for")
    cost, change = _change(curve, group, messages, unsized)
    return group.tax(
        test=curve.test,
        messages_seconds=cost.seconds,
        cost=cost,
        change=change,
        marks=tuple(f"{curve.test}: {mark}" for mark in curve.marks),
    )


def _run_time(profile: Profile, seconds: float | None, ranks: int | None) -> float:
    """Return the run time in the base arm, summed over all ranks."""
    if seconds is not None:
        if ranks is None:
            raise NearmetalError(f"{profile.file} has no number of ranks", "give --ranks")
        return seconds * ranks
    if not profile.seconds:
        raise NearmetalError(
            f"{profile.file} has no run time", "give --seconds, the run time in BASE"
        )
    return profile.seconds


def _share(groups: Iterable[GroupTax], *, timed: bool) -> float:
    """Return the percentage of time or calls without a benchmark."""
    known = list(groups)
    weights = [(g.seconds or 0.0) if timed else g.count for g in known]
    without = sum(w for g, w in zip(known, weights, strict=True) if g.why)
    return 100 * without / sum(weights) if sum(weights) else 0.0


def _whole(groups: Iterable[GroupTax], run: float) -> TaxLimits:
    """Return the change of the run time, with and without computation that hides messages."""
    known = [g for g in groups if not g.why and g.cost is not None]
    low, expected, high = (
        sum(getattr(g.change, name) for g in known) for name in ("low", "expected", "high")
    )
    # Hidden communication costs time only beyond the run time.
    beyond = sum(g.messages_seconds * (g.cost.ratio.low or 0.0) for g in known if g.cost) - run
    hidden = max(0.0, beyond)
    return TaxLimits(min(low, hidden), expected, max(high, hidden))


def predict(
    profile: Profile,
    curves: Curves,
    *,
    seconds: float | None = None,
    ranks: int | None = None,
    most_unmapped: float = MOST_UNMAPPED,
) -> Prediction:
    """Return the expected tax; raises NearmetalError if the run time is not known.

    `seconds` and `ranks` are those of the run in the base arm, if the profile lacks them.
    """
    if ranks is not None and profile.ranks not in (None, ranks):
        raise NearmetalError(
            f"{profile.file} has {profile.ranks} ranks, not {ranks}", "omit --ranks"
        )
    ranks = ranks or profile.ranks
    run = _run_time(profile, seconds, ranks)
    groups = [
        group.tax() if group.name == LOCAL else _judge(group, curves, ranks)
        for group in _grouped(profile.calls)
    ]
    exchanged = [g for g in groups if g.name != LOCAL]
    timed = any(g.seconds is not None for g in exchanged)
    unmapped = _share(exchanged, timed=timed)
    if sum(g.seconds or 0.0 for g in exchanged) > run * _ROUNDED:
        raise NearmetalError(
            f"{profile.file}: more time in MPI than the run time", "give the right --seconds"
        )
    remarks = [*profile.remarks, *(mark for g in groups for mark in g.marks)]
    made = Prediction(profile, run, tuple(groups), unmapped, tuple(dict.fromkeys(remarks)), None)
    if unmapped > most_unmapped:
        what = "time in MPI" if timed else "calls"
        worst = max((g for g in exchanged if g.why), key=lambda g: (g.seconds or 0.0, g.count))
        why = (
            f"no benchmark stands for {unmapped:.0f} % of the {what}, at most "
            f"{most_unmapped:g} % may lack one: {worst.name}: {worst.why}"
        )
        return replace(made, why=why)
    whole = _whole(groups, run)
    percent = TaxLimits(*(100 * v / run for v in (whole.low, whole.expected, whole.high)))
    return replace(made, tax=percent)
