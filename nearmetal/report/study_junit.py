# SPDX-License-Identifier: Apache-2.0
"""The verdicts of a study as a JUnit report. Pure.

Each arm has a suite, with a case for its headline, for each point, and for each point that only one
arm has. The report of `study judge` has a failure or an error exactly if the exit code is 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nearmetal.core.junit import JunitCase, JunitRemark, JunitTag, junit_report
from nearmetal.report.study_view import Judged, point_title, signed_percent
from nearmetal.study.judge import Comparison, Verdict
from nearmetal.study.model import Point
from nearmetal.study.physics import Severity, Violation

_TAGS = {
    Verdict.REJECT: JunitTag.FAILURE,
    Verdict.INVALID: JunitTag.ERROR,
    Verdict.INCONCLUSIVE: JunitTag.SKIPPED,
    Verdict.REFUSED: JunitTag.SKIPPED,
    Verdict.NO_MARGIN: JunitTag.SKIPPED,
    Verdict.MISSING: JunitTag.SKIPPED,
    Verdict.ACCEPT: JunitTag.NOTE,
}


def render_study_junit(
    study: str, base: str, judged: Iterable[Judged], against_physics: Sequence[Violation]
) -> str:
    """Return the report of some arms, and of the values of these arms that physics forbids."""
    return junit_report(
        f"nearmetal study {study}",
        {f"{one.arm.name} against {base}": list(_cases(one, against_physics)) for one in judged},
    )


def _cases(judged: Judged, against_physics: Sequence[Violation]) -> Iterator[JunitCase]:
    """Yield the headline, the points, and impossible values that no point has."""
    arm, found = judged.arm.name, judged.conclusion
    tag = JunitTag.ERROR if found.verdict is Verdict.REFUSED else _TAGS[found.verdict]
    yield JunitCase(arm, "headline", (_remark(tag, found.verdict, found.words),))
    for one in judged.comparisons:
        yield _case(arm, one.point, _remark(_TAGS[one.verdict], one.verdict, *_words(one)))
    for gap in judged.gaps:
        missing = _remark(JunitTag.SKIPPED, Verdict.MISSING, f"only {gap.having}: {gap.why}")
        yield _case(arm, gap.cell.point, missing)
    known = {one.point.place for one in judged.comparisons if one.verdict is Verdict.INVALID}
    sides = judged.comparisons[0].arms
    for violation in against_physics:
        outside = violation.arm in sides and violation.point.place not in known
        if outside and violation.severity is Severity.INVALID:
            why = f"{violation.arm}: {violation.what}"
            yield _case(arm, violation.point, _remark(JunitTag.ERROR, Verdict.INVALID, why))


def _case(arm: str, point: Point, remark: JunitRemark) -> JunitCase:
    return JunitCase(f"{arm}.{point.test}", point_title(point), (remark,))


def _remark(tag: JunitTag, verdict: Verdict, reason: str, more: str = "") -> JunitRemark:
    return JunitRemark(tag, verdict.value, f"{verdict.value}: {reason}", more)


def _words(one: Comparison) -> tuple[str, str]:
    """Return the reason of a verdict, and the numbers behind it."""
    sides = zip(one.arms, (one.base, one.test), strict=True)
    lines = [
        f"{name}: median {side.median:g} {one.point.unit.value}, {side.n} launches"
        for name, side in sides
    ]
    if one.tax_percent is not None and one.ratio is not None:
        interval = ""
        if one.ratio.low is not None and one.ratio.high is not None:
            interval = f", 95 % interval {one.ratio.low:.3f} to {one.ratio.high:.3f}"
        lines.append(
            f"loss {signed_percent(one.tax_percent)}, ratio {one.ratio.value:.3f}{interval}"
        )
    if one.primary:
        lines.append("primary endpoint")
    return one.reason, "\n".join(lines)
