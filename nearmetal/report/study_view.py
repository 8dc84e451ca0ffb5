# SPDX-License-Identifier: Apache-2.0
"""The data of the page of a study: verdicts, the cells behind them, and their raw lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from nearmetal.core.errors import UsageError
from nearmetal.evidence import Unit
from nearmetal.report import numbers
from nearmetal.study.arms import compare_arms, impossible, pick_arms
from nearmetal.study.endpoints import Conclusion, conclude
from nearmetal.study.gaps import Gap
from nearmetal.study.gate import RecordedFacts
from nearmetal.study.judge import Comparison, Verdict
from nearmetal.study.losses import Losses
from nearmetal.study.model import Arm, Cell, Observation, Point, SourceFile
from nearmetal.study.pairing import nearest
from nearmetal.study.physics import Severity, Violation
from nearmetal.study.store import Study

MAX_ARMS = 8
"""Number of arms in a page, with the base: the palette of charts has eight colours."""

MAX_RAW = 20_000
"""Number of raw lines in the page; the others are counted, and stay in the study's objects."""


@dataclass(frozen=True)
class Judged:
    """One arm against the base: comparisons, what only one of them has, and lost launches."""

    arm: Arm
    comparisons: tuple[Comparison, ...]
    gaps: tuple[Gap, ...] = ()
    losses: Losses | None = None

    @property
    def endpoints(self) -> tuple[Comparison, ...]:
        """The comparisons that make the headline."""
        chosen = tuple(one for one in self.comparisons if one.primary)
        return chosen if chosen or self.missing else self.comparisons

    @property
    def missing(self) -> tuple[Gap, ...]:
        """The endpoints that one of the arms lacks."""
        return tuple(gap for gap in self.gaps if gap.primary)

    @cached_property
    def conclusion(self) -> Conclusion:
        """The headline of the arm."""
        mark = self.losses.survivors(*self.comparisons[0].arms) if self.losses else ""
        return conclude(self.comparisons, self.gaps, mark)

    @property
    def verdicts(self) -> Counter[Verdict]:
        """The number of endpoints by verdict."""
        return self.conclusion.primary or Counter(one.verdict for one in self.endpoints)


@dataclass(frozen=True)
class StudyView:
    """All that is shown. `sources` are the files with numbers, by path; `left_out` the others.

    `lines` holds raw lines by path and line number.
    """

    name: str
    base: Arm
    judged: tuple[Judged, ...]
    cells: tuple[Cell, ...]
    violations: tuple[Violation, ...]
    sources: Mapping[str, SourceFile]
    lines: Mapping[tuple[str, int], str]
    left_out: tuple[SourceFile, ...] = ()
    max_raw: int = MAX_RAW

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The base first."""
        return (self.base, *(judged.arm for judged in self.judged))

    @property
    def comparisons(self) -> list[Comparison]:
        """The comparisons of all arms."""
        return [one for judged in self.judged for one in judged.comparisons]

    @cached_property
    def observed(self) -> RecordedFacts:
        """The records of launchers, by cell."""
        return RecordedFacts(self.sources)

    @cached_property
    def broken(self) -> frozenset[tuple[str, Point]]:
        """The points of arms that physics forbids. They are in no chart and in no sum."""
        invalid = (v for v in self.violations if v.severity is Severity.INVALID)
        return frozenset((v.arm, v.point) for v in invalid)

    @cached_property
    def valid(self) -> tuple[Cell, ...]:
        """The cells that physics allows."""
        return tuple(cell for cell in self.cells if (cell.arm, cell.point) not in self.broken)

    @cached_property
    def _by_place(self) -> dict[tuple[str, Point], list[Cell]]:
        found: dict[tuple[str, Point], list[Cell]] = {}
        for cell in self.cells:
            found.setdefault((cell.arm, cell.point.place), []).append(cell)
        return found

    def shown_cell(self, arm: str, point: Point) -> Cell | None:
        """Return an arm's cell at a point, or the one that is nearest in ranks and setup."""
        return nearest(point, self._by_place.get((arm, point.place), []))

    def cell(self, arm: str, point: Point) -> Cell | None:
        """Return the cell at a point, unless physics forbids it."""
        found = self.shown_cell(arm, point)
        return None if found is None or (found.arm, found.point) in self.broken else found


@dataclass(frozen=True)
class Raw:
    """The raw lines behind one cell, under an anchor."""

    anchor: str
    cell: Cell
    rows: tuple[tuple[Observation, str, str], ...]
    """Observation, `path:line`, the line itself."""

    @property
    def group(self) -> str:
        """The heading above the cells of one test."""
        return f"{self.cell.arm}: {self.cell.point.test}"

    @property
    def title(self) -> str:
        """The heading of the cell, with its configuration."""
        point = self.cell.point
        return "; ".join(filter(None, (point_title(point), point.setup.words)))


def point_title(point: Point) -> str:
    """Return a point in words."""
    parts = [point.test, point.variant, point.metric]
    if point.size is not None:
        parts.append(numbers.size(point.size))
    return ", ".join(part for part in (*parts, scale_title(point)) if part)


def scale_title(point: Point) -> str:
    """Return nodes and ranks in words."""
    scale = ((point.nodes, "node"), (point.ranks, "rank"))
    return ", ".join(f"{n} {word}" + "s" * (n > 1) for n, word in scale if n)


def raw_lines(view: StudyView) -> tuple[list[Raw], int]:
    """Return the raw lines of all shown cells, and the number of lines that did not fit."""
    found, room, left_out = [], view.max_raw, 0
    for number, cell in enumerate(view.cells):
        rows = tuple(
            (
                seen,
                f"{seen.source}:{seen.line}",
                view.lines.get((seen.source, seen.line), ""),
            )
            for seen in cell.observations
        )
        if len(rows) > room:
            left_out += len(rows)
            continue
        room -= len(rows)
        found.append(Raw(f"c{number}", cell, rows))
    return found, left_out


class Anchors:
    """Links to the raw lines of cells."""

    def __init__(self, view: StudyView, shown: Sequence[Raw]) -> None:
        self._view = view
        self._of = {(raw.cell.arm, raw.cell.point): f"#{raw.anchor}" for raw in shown}
        self._rows = {
            (one.arms[1], one.point): f"p{number}" for number, one in enumerate(view.comparisons)
        }

    def row(self, one: Comparison) -> str:
        """Return the name of the row of a comparison in the tables."""
        return self._rows[one.arms[1], one.point]

    def of(self, arm: str, point: Point) -> str:
        """Return the link, or an empty text if the lines did not fit."""
        cell = self._view.shown_cell(arm, point)
        return "" if cell is None else self._of.get((cell.arm, cell.point), "")


_TEXTS: dict[Unit, Callable[[float], str]] = {
    Unit.MICROSECONDS: numbers.microseconds,
    Unit.MEGABYTES_PER_SECOND: numbers.megabytes_per_second,
    Unit.MESSAGES_PER_SECOND: partial(numbers.scaled, unit="/s"),
    Unit.MEGAMESSAGES_PER_SECOND: numbers.megamessages_per_second,
    Unit.MEGAOPS: partial(numbers.scaled, unit="op/s", power=6),
    Unit.TRAVERSED_EDGES: partial(numbers.scaled, unit="TEPS"),
}


def value_text(value: float, unit: Unit) -> str:
    """Return a number with its unit."""
    if unit in _TEXTS:
        return _TEXTS[unit](value)
    return f"{numbers.digits(value)} {unit.value}".rstrip()


def verdict_style(verdict: Verdict) -> str:
    """Return the CSS class of a verdict."""
    return verdict.value.split()[0]


def signed_percent(value: float) -> str:
    """Return a percentage with its sign: a tax is positive, a gain negative."""
    digits = 1 if abs(value) < 100 else 0  # noqa: PLR2004 - a tenth adds nothing to large values
    return f"{value:+,.{digits}f} %".replace("-", "\N{MINUS SIGN}")


_SHORT = {"bare metal": "BM", "bare-metal": "BM", "vm": "VM", "virtual machine": "VM"}


def legend(arm: Arm) -> str:
    """Return an arm in the style of VMW-IB, such as VM.44.144.LatSens.IB.SRIOV.

    Platform, cores, memory in GB, latency sensitivity, fabric, adapter; unknown parts are left out.
    """
    facts = arm.facts
    fabric = {"infiniband": "IB", "ib": "IB", "roce": "RoCE"}.get(arm.fabric.lower(), arm.fabric)
    parts = [
        _SHORT.get(arm.platform.lower(), arm.platform),
        str(arm.cores_per_node or ""),
        facts.get("memory_gb", ""),
        "LatSens" if facts.get("latency_sensitivity", "").lower() == "high" else "",
        fabric,
        facts.get("adapter", ""),
    ]
    return ".".join(part.replace(" ", "-") for part in parts if part) or arm.name


def study_name(study: Study) -> str:
    """Return the name of a study: that of its directory, without the ending."""
    return study.directory.resolve().name.removesuffix(".study")


def study_view(
    study: Study, base: str, arms: list[str], *, percent: float | None, only: str | None
) -> StudyView:
    """Judge the arms and collect the content of the page."""
    if base in arms or len(set(arms)) < len(arms):
        raise UsageError("an arm is named twice", "name BASE once, and every other ARM once")
    if len(arms) >= MAX_ARMS:
        raise UsageError(
            f"a page shows the base and at most {MAX_ARMS - 1} arms, {len(arms)} are named",
            "make several pages, with --output",
        )
    first, *others = pick_arms(study, (base, *arms))
    judged = []
    cells: dict[tuple[object, ...], Cell] = {}
    for arm in others:
        found = compare_arms(study, first, arm, percent=percent, only=only)
        judged.append(Judged(arm, tuple(found.comparisons), tuple(found.gaps), found.losses))
        points = {one.point.place for one in found.comparisons}
        cells |= {
            (cell.arm, cell.point): cell for cell in found.cells if cell.point.place in points
        }
    chosen = tuple(cells.values())
    sources = study.files()
    return StudyView(
        name=study_name(study),
        base=first,
        judged=tuple(judged),
        cells=chosen,
        violations=tuple(impossible((first, *others), chosen, RecordedFacts(sources))),
        sources=sources,
        lines=_lines(study, sources, chosen),
        left_out=tuple(s for s in study.sources() if s.status != "facts"),
    )


def _lines(
    study: Study, sources: Mapping[str, SourceFile], cells: Iterable[Cell]
) -> dict[tuple[str, int], str]:
    """Return the raw lines of as many cells as the page shows; each file is read once."""
    wanted: dict[str, set[int]] = {}
    room = MAX_RAW
    for cell in cells:
        if len(cell.observations) <= room:
            room -= len(cell.observations)
            for seen in cell.observations:
                wanted.setdefault(seen.source, set()).add(seen.line)
    found: dict[tuple[str, int], str] = {}
    for path, chosen in wanted.items():
        lines = study.raw(sources[path].source).decode("utf-8", "replace").splitlines()
        found |= {(path, n): lines[n - 1].strip() for n in chosen if n <= len(lines)}
    return found
