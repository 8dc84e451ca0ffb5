# SPDX-License-Identifier: Apache-2.0
"""The page of `check performance`: verdict, heat maps, bars, classes, evidence, raw values. Pure.

The rules of studies hold: each number leads to the values behind it, a value that was not measured
is shown as that, and the page says how and where it was measured.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, isfinite
from statistics import median

from nearmetal.check.families.uniformity import kind_of
from nearmetal.check.model import Analysis, Gravity
from nearmetal.check.performance.checks import OF_QUANTITY
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.line_verdict import MeasuredLine
from nearmetal.check.performance.naming import Named, name_parts
from nearmetal.check.performance.robust import FALSE_ALARM, FLOOR, SHARE, spread, suspicious_z
from nearmetal.check.performance.run import QUANTITIES, Item, PerformanceRun, run_text
from nearmetal.check.performance.screen import ClassKey, QuantityModel, Side
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import counted
from nearmetal.evidence.line_rate import BEYOND, FULL
from nearmetal.host.hosts_file import fold
from nearmetal.report import numbers
from nearmetal.report.check_heat import LEGEND, HeatMap, heat_map, raw_values, slower, values_of
from nearmetal.report.page import Grid, GridCell, render

MOST_ROWS = 400
"""Rows of a table; the rest is counted."""

_SIDES = {
    Side.WHOLE: "all",
    Side.SENDS: "sends",
    Side.RECEIVES: "receives",
    Side.PAIR: "the pair",
}
_PROVEN = {True: "slow", False: "not slow", None: "not settled"}
_STYLES = {Gravity.FAULT: "bad", Gravity.WARNING: "doubt", Gravity.NOTE: ""}

_KINDS = {
    "container": "container",
    "guest": "virtual machine",
    "host": "host of virtual machines",
    "machine": "no virtual machine",
}

_PERFORMANCE = {check.name for check in OF_QUANTITY.values()}

_FACTS = {
    "model": ("system", "dmi", "product_name"),
    "processor": ("processor", "model"),
    "cores": ("processor", "cores"),
    "usable threads": ("processor", "usable"),
    "kernel": ("system", "kernel"),
    "distribution": ("system", "os", "id"),
    "clock source": ("virtual", "clock"),
}


@dataclass(frozen=True)
class CheckRun:
    """What a page is about. `command`: that made it; `lines`: the shares of lines."""

    run: PerformanceRun
    classes: NodeClasses
    analysis: Analysis
    lines: Sequence[MeasuredLine] = ()
    environment: tuple[tuple[str, str], ...] = ()
    command: str = ""


def environment(snapshots: Iterable[Snapshot]) -> tuple[tuple[str, str], ...]:
    """Return the facts of nodes, those of equal nodes together."""
    found: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in _FACTS}
    found["kind"] = defaultdict(list)
    for node in snapshots:
        found["kind"][_KINDS[kind_of(node)]].append(node.name)
        for name, path in _FACTS.items():
            number = node.number(*path)
            text = node.text(*path) or ("" if number is None else f"{number:g}")
            if text:
                found[name][text].append(node.name)
    return tuple(
        (name, "; ".join(f"{text} ({fold(nodes)})" for text, nodes in values.items()))
        for name, values in found.items()
        if values
    )


def render_check(check: CheckRun) -> str:
    """Return the whole page."""
    run, named = check.run, name_parts(check.run, check.classes)
    models = named.screening.models.values()
    maps = [heat_map(run, model) for model in models]
    return render(
        "check.html",
        check=check,
        sentence=_sentence(check),
        maps=maps,
        legend=LEGEND,
        findings=_findings(check.analysis),
        tables=[
            table
            for table in (
                _classes(named),
                _evidence(named),
                _lines(check.lines),
                _noise(run, models),
            )
            if table is not None
        ],
        failures=[(" to ".join(i), why) for i, why in islice(run.failures.items(), MOST_ROWS)],
        more_failures=max(0, len(run.failures) - MOST_ROWS),
        lacking=[(title, why.partition("|")[0]) for title, why in _known(run.lacking)],
        setup=list(_known(run.setup)),
        hosts=_groups(run.hosts),
        software=_groups(run.software),
        raw=[
            (picture.title, picture.unit, raw_values(run, picture.name, _items(picture)))
            for picture in maps
        ],
        digest=hashlib.sha256(run_text(run).encode()).hexdigest(),
        rules=(FLOOR, SHARE, FALSE_ALARM, suspicious_z(named.screening.tests)),
        counted=counted,
    )


def _known(words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the words of quantities, with their titles."""
    return ((QUANTITIES[name].title, text) for name, text in words.items() if name in QUANTITIES)


def _sentence(check: CheckRun) -> str:
    found = [f for f in check.analysis.findings if f.grade is not Gravity.NOTE]
    if not found:
        names = len(check.run.names)
        missing = bool(check.run.failures or check.run.lacking)
        rest = ", but values are missing" if missing else ""
        if any(part.partition(" of ")[0] in _PERFORMANCE for part in check.analysis.not_run):
            rest += f"{' and' if missing else ', but'} some were not compared"
        return f"Nothing in {names} nodes is slower than its class{rest}"
    nodes = fold(sorted({name for finding in found for name in finding.nodes}))
    return f"{counted(len(found), 'finding')}, on {nodes}"


def _findings(analysis: Analysis) -> list[tuple[str, str, str, str]]:
    """Return style, severity, title and words of each finding."""
    return [
        (
            _STYLES[one.grade],
            one.grade.word,
            f"{one.folded}: {one.key}",
            f"{one.value}; expected {one.expected}. {one.reason}. Remedy: {one.remedy}",
        )
        for one in analysis.findings
    ]


def _groups(words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each text with the nodes that have it."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for name, text in words.items():
        nodes[text].append(name)
    return [(text, fold(found)) for text, found in nodes.items()]


def _items(picture: HeatMap) -> list[Item]:
    if picture.bars:
        return [(row.node,) for row in picture.bars]
    return [(a, b) for a in picture.names for b in picture.names if a != b]


def _value(quantity: str, number: float) -> str:
    return f"{numbers.digits(number)} {QUANTITIES[quantity].unit}".strip()


def _cut(
    title: str, columns: tuple[str, ...], rows: Sequence[tuple[GridCell, ...]], why: str
) -> Grid:
    rest = len(rows) - MOST_ROWS
    more = f" {rest} more rows are left out." if rest > 0 else ""
    return Grid(title, columns, tuple(rows[:MOST_ROWS]), why + more)


def _classes(named: Named) -> Grid | None:
    rows = []
    for quantity, model in named.screening.models.items():
        members: dict[ClassKey, list[float]] = defaultdict(list)
        for item, key in model.class_of.items():
            members[key].append(model.left[item])
        for key, lefts in members.items():
            rows.append(
                (
                    GridCell(QUANTITIES[quantity].title),
                    GridCell(_class_words(key), style="words"),
                    GridCell(str(len(lefts))),
                    GridCell(_value(quantity, QUANTITIES[quantity].value(model.centres[key]))),
                    GridCell(f"{100 * (exp(spread(lefts).deviation) - 1):.1f} %"),
                )
            )
    columns = ("quantity", "class", "members", "norm", "deviation")
    caption = (
        "The norm is the median of the members, and the deviation 1.4826 of their median absolute "
        "deviations. A member is a node, or a pair in one direction."
    )
    return _cut("Classes", columns, rows, caption) if rows else None


def _class_words(key: ClassKey) -> str:
    """Return a class as text: its hop and its hardware, each word once."""
    found: dict[str, None] = {}

    def take(part: object) -> None:
        if isinstance(part, tuple):
            for one in part:
                take(one)
        elif isinstance(part, str) and part:
            found[part] = None

    take(key)
    return ", ".join(found) or "hardware not known"


def _evidence(named: Named) -> Grid | None:
    rows = []
    for one in named.confirmations:
        suspicion = one.suspicion
        z = f"{suspicion.z:.1f}" if isfinite(suspicion.z) else "no deviation"
        exchanged = " and ".join(slower(slow) for slow in one.exchanged)
        pair = suspicion.side is Side.PAIR
        rows.append(
            (
                GridCell(" to ".join(suspicion.item)),
                GridCell(QUANTITIES[suspicion.quantity].title),
                GridCell(_SIDES[suspicion.side]),
                GridCell(slower(suspicion.slow)),
                GridCell(z),
                GridCell(f"{one.slow} of {one.retests}"),
                GridCell(slower(one.typical) if one.retests else "none"),
                GridCell(exchanged if pair else "each retest"),
                GridCell(_PROVEN[one.proven]),
            )
        )
    columns = (
        "suspect",
        "quantity",
        "side",
        "slower",
        "z",
        "slow retests",
        "slower in retests",
        "with other partners",
        "result",
    )
    caption = (
        "Each suspicion of the screening, and its retests up to the decision. A node has another "
        "partner in each retest. Of a pair, the sender and the receiver were also measured with "
        "other partners."
    )
    return _cut("Suspicions and retests", columns, rows, caption) if rows else None


def _lines(lines: Sequence[MeasuredLine]) -> Grid | None:
    rows = []
    for line in sorted(lines, key=lambda one: one.found.share):
        share = line.found.share
        verdict = (
            "impossible" if share > BEYOND else "full" if share >= FULL else "does not fill it"
        )
        rows.append(
            (
                GridCell(" to ".join(line.item)),
                GridCell(QUANTITIES[line.quantity].title),
                GridCell(f"{line.found.gbit:.4g}"),
                GridCell(f"{line.found.capacity.gbit:.4g}"),
                GridCell(f"{share:.1%}"),
                GridCell(
                    f"{line.found.capacity.limit} of {line.found.capacity.node}", style="words"
                ),
                GridCell(verdict),
            )
        )
    columns = ("pair", "quantity", "Gbit/s", "of the line", "share", "limited by", "verdict")
    caption = (
        "The line is the weakest port or PCIe slot of both ends, without encoding and headers; the "
        "smallest shares first."
    )
    return _cut("Line rate", columns, rows, caption) if rows else None


def _noise(run: PerformanceRun, models: Iterable[QuantityModel]) -> Grid | None:
    rows = []
    for model in models:
        values = values_of(run.screening, model.quantity).values()
        spans = [max(found) / min(found) - 1 for found in values if len(found) > 1]
        if spans:
            rows.append(
                (
                    GridCell(QUANTITIES[model.quantity].title),
                    GridCell(str(len(spans))),
                    GridCell(f"{100 * median(spans):.1f} %"),
                    GridCell(f"{100 * max(spans):.1f} %"),
                )
            )
    columns = ("quantity", "members", "median span", "largest span")
    caption = (
        "How far the values of one node or pair are apart, from the least to the highest turn."
    )
    return Grid("Noise", columns, tuple(rows), caption) if rows else None
