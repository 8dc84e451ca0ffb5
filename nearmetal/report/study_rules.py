# SPDX-License-Identifier: Apache-2.0
"""The twelve rules of Hoefler and Belli (SC'15), filled in from what a study really holds.

T. Hoefler, R. Belli: Scientific Benchmarking of Parallel Computing Systems, SC'15,
doi:10.1145/2807591.2807644. The rules are told in our own words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.study.flags import MIN_SHAPE, FlagKind
from nearmetal.study.gate import FACTS
from nearmetal.study.stats import MIN_LAUNCHES

if TYPE_CHECKING:
    from nearmetal.report.study_view import StudyView
    from nearmetal.study.judge import Comparison


@dataclass(frozen=True)
class Rule:
    """One rule: its number, what it asks, whether it is met (None: it does not apply), and why."""

    number: int
    asks: str
    met: bool | None
    why: str


def _all(view: StudyView) -> list[Comparison]:
    return [one for judged in view.judged for one in judged.comparisons]


def _scaling(view: StudyView) -> Rule:
    nodes = {one.point.nodes for one in _all(view) if one.point.size is None}
    met = True if len(nodes) > 1 else None
    why = (
        "speed-ups are against the fewest nodes, whose absolute figure stands in the table"
        if met
        else "no speed-up is shown"
    )
    return Rule(1, "the base of a speed-up is named, with its absolute figure", met, why)


def _subsets(view: StudyView) -> Rule:
    left_out = [s for s in view.sources.values() if s.status in ("refused", "ignored")]
    unsaid = [s for s in left_out if not s.reason]
    why = f"{len(left_out)} files were left out, each with its reason" if left_out else "all files"
    return Rule(2, "what was left out is said, with the reason", not unsaid, why)


def _intervals(view: StudyView) -> Rule:
    found = _all(view)
    with_interval = [one for one in found if one.ratio and one.ratio.low is not None]
    why = f"{len(with_interval)} of {len(found)} points have intervals"
    if len(with_interval) < len(found):
        why += f"; the others have fewer than {MIN_LAUNCHES} launches or no ratio"
    return Rule(
        5, "figures that vary have confidence intervals", len(with_interval) == len(found), why
    )


def _normality(view: StudyView) -> Rule:
    tested = [one for one in _all(view) if min(one.base.n, one.test.n) >= MIN_SHAPE]
    odd = [
        one for one in tested if any(f.kind is FlagKind.NON_NORMAL for s in one.flags for f in s)
    ]
    why = "no statistic here assumes a normal distribution"
    if tested:
        why += f"; Anderson-Darling flags {len(odd)} of {len(tested)} points (5 % for any in the whole study)"
    return Rule(6, "nothing is taken for normal without a test", True, why)


def _tails(view: StudyView) -> Rule:
    found = _all(view)
    deep = [one for one in found if one.base.p95 is not None and one.test.p95 is not None]
    why = f"medians, extremes and MAD everywhere; 95th percentiles at {len(deep)} points"
    return Rule(8, "where tails matter, more than the middle is shown", bool(found), why)


def _factors(view: StudyView) -> Rule:
    missing = sorted(
        {words for name, words in FACTS.items() if any(name not in arm.facts for arm in view.arms)}
    )
    why = "all facts are known" if not missing else "not told of every arm: " + ", ".join(missing)
    return Rule(9, "all factors and the whole testbed are written down", not missing, why)


def rules(view: StudyView) -> list[Rule]:
    """Return the twelve rules."""
    limit = any("line_rate_gbit" in arm.facts for arm in view.arms)
    return [
        _scaling(view),
        _subsets(view),
        Rule(
            3,
            "means are right for what they summarize",
            True,
            "medians are compared; means only stand beside them",
        ),
        Rule(
            4,
            "ratios are not averaged",
            True,
            "every ratio is of two medians at one point; none is averaged over points",
        ),
        _intervals(view),
        _normality(view),
        Rule(
            7,
            "differences are judged by sound statistics",
            True,
            "intervals of ratios against a margin, errors adjusted for the number of points",
        ),
        _tails(view),
        _factors(view),
        Rule(
            10,
            "how time was taken and summarized is said",
            None,
            "it is the benchmark's: its name and version stand with the sources",
        ),
        Rule(
            11,
            "an upper bound stands beside the figures",
            limit,
            "the line rate" if limit else "no line rate was told (fact line_rate_gbit)",
        ),
        Rule(
            12,
            "plots show the spread, and lines only where points between make sense",
            True,
            "bands are intervals or all launches; lines only over sizes and nodes",
        ),
    ]
