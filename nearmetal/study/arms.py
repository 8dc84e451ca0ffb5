# SPDX-License-Identifier: Apache-2.0
"""The arms of a study: found by name, compared with each other, and split into losses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nearmetal.core.errors import NearmetalError
from nearmetal.core.text import printable
from nearmetal.study.effects import TaxSplit, split_tax
from nearmetal.study.endpoints import Conclusion, choose, conclude
from nearmetal.study.flags import MIN_OUTLIER
from nearmetal.study.gaps import Gap, gaps_of, reasons
from nearmetal.study.gate import RecordedFacts
from nearmetal.study.judge import Comparison, compare
from nearmetal.study.labels import arms_of, parse_labels
from nearmetal.study.losses import Losses
from nearmetal.study.model import Arm, Cell, Point
from nearmetal.study.physics import Severity, Violation, rate_of, violations
from nearmetal.study.store import LABELS, Study


def arms_in(study: Study) -> dict[str, Arm]:
    """Return the arms of a study, described by its labels, or known by name only."""
    text = study.labels()
    known = arms_of(parse_labels(text, str(study.directory / LABELS))[0]) if text else {}
    names = dict.fromkeys(s.arm for s in study.sources() if s.status == "facts")
    return {name: known.get(name, Arm(name)) for name in names}


def pick_arms(study: Study, names: Iterable[str]) -> list[Arm]:
    """Return arms by name; raises NearmetalError if the study lacks one."""
    arms = arms_in(study)
    for name in names:
        if name not in arms:
            raise NearmetalError(f"no arm {name!r} in {study.directory}", known_arms(study, arms))
    return [arms[name] for name in names]


def known_arms(study: Study, arms: Iterable[str]) -> str:
    """Return the hint of an error: the arms of a study, or why it has none."""
    names = ", ".join(arms)
    if names:
        return f"arms: {names}"
    unread = [source for source in study.sources() if source.status != "facts"]
    if not unread:
        return "the study has no logs: run `nearmetal study import` with the directory of the logs"
    first = unread[0]
    return (
        f"the study has no arms, because none of its {len(unread)} files was read; "
        f"{printable(first.path)}: {first.status}, {printable(first.reason)}"
    )


@dataclass(frozen=True)
class Compared:
    """Two arms: the comparisons with their endpoints, what only one has, and the lost launches."""

    comparisons: list[Comparison]
    cells: list[Cell]
    gaps: list[Gap]
    losses: Losses

    @property
    def conclusion(self) -> Conclusion:
        """The headline."""
        survivors = self.losses.survivors(*self.comparisons[0].arms)
        return conclude(self.comparisons, self.gaps, survivors)


def compare_arms(
    study: Study, base: Arm, arm: Arm, *, percent: float | None = None, only: str | None = None
) -> Compared:
    """Return the comparison of two arms.

    `only` is the name of a test.
    """
    recorded = RecordedFacts(study.files())
    wanted = {"test": only} if only else {}
    cells = [list(study.cells(arm=side.name, **wanted)) for side in (base, arm)]
    losses = Losses(study.sources(), [*cells[0], *cells[1]], every=only is None)
    compared = compare(
        (base, cells[0]),
        (arm, cells[1]),
        percent=percent,
        versions=recorded.versions,
        observed=recorded,
        cell_count=study.cell_count(MIN_OUTLIER),
        lost=losses,
    )
    found, gaps = choose(compared, gaps_of((base.name, arm.name), *cells))
    if not found:
        raise _nothing_in_common(base.name, arm.name, gaps)
    return Compared(found, [*cells[0], *cells[1]], gaps, losses)


MAX_REASONS = 6


def _nothing_in_common(base: str, arm: str, gaps: Sequence[Gap]) -> NearmetalError:
    counts = reasons(gaps)
    why = [f"{reason} ({count} points)" for reason, count in list(counts.items())[:MAX_REASONS]]
    more = [f"and {len(counts) - MAX_REASONS} more reasons"] if len(counts) > MAX_REASONS else []
    return NearmetalError(
        "\n".join([f"{base} and {arm} have no point in common", *why, *more]),
        "both need the same test, mode, pair of nodes, size, number of nodes, and unit; where a log "
        "has several tables or a map of its ranks, its pairs and its nodes decide: split the file, "
        "or run the arms in the same way",
    )


def compare_all(study: Study) -> list[Comparison]:
    """Return the comparisons of each arm with each other arm."""
    arms = arms_in(study)
    cells = {name: list(study.cells(arm=name)) for name in arms}
    names = list(arms)
    return [
        found
        for i, base in enumerate(names)
        for test in names[i + 1 :]
        for pair in ((base, test), (test, base))
        for found in compare((arms[pair[0]], cells[pair[0]]), (arms[pair[1]], cells[pair[1]]))
    ]


def impossible(
    arms: Iterable[Arm],
    cells: Iterable[Cell],
    observed: Callable[[Cell], Mapping[str, str]] = lambda _cell: {},
) -> list[Violation]:
    """Return the values of some arms that physics forbids, or nearly forbids."""
    known = list(cells)
    return [
        v
        for arm in arms
        for v in violations([c for c in known if c.arm == arm.name], rate_of(arm), observed)
    ]


def possible(
    arms: Iterable[Arm],
    cells: Iterable[Cell],
    observed: Callable[[Cell], Mapping[str, str]] = lambda _cell: {},
) -> list[Cell]:
    """Return the cells without those that physics forbids: they are in no sum."""
    known = list(cells)
    found = impossible(arms, known, observed)
    broken = {(v.arm, v.point) for v in found if v.severity is Severity.INVALID}
    return [cell for cell in known if (cell.arm, cell.point) not in broken]


def split_losses(study: Study, names: tuple[str, str, str]) -> list[tuple[Point, TaxSplit]]:
    """Return the split of each common point of full bare metal, reduced bare metal, and VM."""
    arms = pick_arms(study, names)
    recorded = RecordedFacts(study.files())
    full, reduced, vm = (
        {
            cell.point._replace(ranks=None): cell
            for cell in possible([arm], study.cells(arm=arm.name), recorded)
        }
        for arm in arms
    )
    found = []
    for point, cell in full.items():
        if not point.neutral and point in reduced and point in vm:
            values = (cell.values, reduced[point].values, vm[point].values)
            if min(min(side) for side in values) > 0:
                found.append((point, split_tax(*values, lower_is_better=point.lower_is_better)))
    if not found:
        raise NearmetalError(
            "the three arms have no point in common",
            "all need the same test, variant, size, nodes and unit",
        )
    return found
