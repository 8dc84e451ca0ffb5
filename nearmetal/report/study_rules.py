# SPDX-License-Identifier: Apache-2.0
"""The twelve rules of Hoefler and Belli (SC'15), filled in from the content of a study.

T. Hoefler, R. Belli: Scientific Benchmarking of Parallel Computing Systems, SC'15,
doi:10.1145/2807591.2807644. The wording of the rules is ours.
"""

from __future__ import annotations

from typing import NamedTuple

from nearmetal.report.study_view import StudyView
from nearmetal.study.flags import MIN_SHAPE, FlagKind
from nearmetal.study.gate import FACTS
from nearmetal.study.stats import MIN_LAUNCHES


class Rule(NamedTuple):
    """One rule: its number, its demand, whether it is met (None: it does not apply), and why."""

    number: int
    asks: str
    met: bool | None
    why: str

    @property
    def word(self) -> str:
        """The result in one word."""
        return {None: "n/a", True: "yes", False: "no"}[self.met]

    @property
    def style(self) -> str:
        """The CSS class of the result."""
        return {None: "plain", True: "good", False: "doubt"}[self.met]


_Answer = tuple[bool | None, str]


def _scaling(view: StudyView) -> _Answer:
    nodes = {one.point.nodes for one in view.comparisons if one.point.size is None}
    if len(nodes) <= 1:
        return None, "no speed-up is shown"
    return True, "the base is the fewest nodes; the table has its absolute figure"


def _subsets(view: StudyView) -> _Answer:
    left_out = view.left_out
    early = {s.path for judged in view.judged if judged.losses for s in judged.losses.early}
    gaps = sum(len(judged.gaps) for judged in view.judged)
    counts = (
        (len(left_out), "files were left out"),
        (len(early), "files end early"),
        (gaps, "points of one arm only are not compared"),
    )
    said = [f"{count} {what}" for count, what in counts if count]
    why = f"{', '.join(said)}; each is listed with its reason" if said else "all files, all points"
    return all(s.reason for s in left_out), why


def _intervals(view: StudyView) -> _Answer:
    found = view.comparisons
    with_interval = [one for one in found if one.ratio and one.ratio.low is not None]
    why = f"{len(with_interval)} of {len(found)} points have intervals"
    if len(with_interval) < len(found):
        why += f"; the others have fewer than {MIN_LAUNCHES} launches or no ratio"
    return len(with_interval) == len(found), why


def _normality(view: StudyView) -> _Answer:
    tested = [one for one in view.comparisons if min(one.base.n, one.test.n) >= MIN_SHAPE]
    odd = [
        one for one in tested if any(f.kind is FlagKind.NON_NORMAL for s in one.flags for f in s)
    ]
    why = "no statistic here assumes a normal distribution"
    if tested:
        why += (
            f"; Anderson-Darling flags {len(odd)} of {len(tested)} points "
            "(5 % for any in the whole study)"
        )
    return True, why


def _tails(view: StudyView) -> _Answer:
    found = view.comparisons
    deep = [one for one in found if one.base.p95 is not None and one.test.p95 is not None]
    why = f"medians, extremes and MAD everywhere; 95th percentiles at {len(deep)} points"
    return bool(found), why


def _factors(view: StudyView) -> _Answer:
    missing = sorted(
        {words for name, words in FACTS.items() if any(name not in arm.facts for arm in view.arms)}
    )
    why = f"not known of every arm: {', '.join(missing)}" if missing else "all facts are known"
    return not missing, why


def _bound(view: StudyView) -> _Answer:
    known = any("line_rate_gbit" in arm.facts for arm in view.arms)
    return known, "the line rate" if known else "no line rate is known (fact line_rate_gbit)"


def rules(view: StudyView) -> list[Rule]:
    """Return the twelve rules."""
    answers: tuple[tuple[str, _Answer], ...] = (
        ("the base of a speed-up is named, with its absolute figure", _scaling(view)),
        ("omitted data are listed, with the reason", _subsets(view)),
        (
            "means suit the data that they summarize",
            (True, "medians are compared; means only stand beside them"),
        ),
        (
            "ratios are not averaged",
            (True, "every ratio is of two medians at one point; none is averaged over points"),
        ),
        ("figures that vary have confidence intervals", _intervals(view)),
        ("data are not taken for normal without a test", _normality(view)),
        (
            "differences are judged by sound statistics",
            (
                True,
                "endpoints fixed before looking, exact intervals of ratios, adjusted errors",
            ),
        ),
        ("where tails matter, more than the middle is shown", _tails(view)),
        ("all factors and the whole testbed are written down", _factors(view)),
        (
            "the method of taking and summarizing times is stated",
            (None, "the benchmark does this: the sources name it with its version"),
        ),
        ("an upper bound stands beside the figures", _bound(view)),
        (
            "plots show the spread, and lines only where points between make sense",
            (True, "bands are intervals or all launches; lines only over sizes and nodes"),
        ),
    )
    return [Rule(n, asks, *answer) for n, (asks, answer) in enumerate(answers, 1)]
