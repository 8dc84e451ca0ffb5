# SPDX-License-Identifier: Apache-2.0
"""The table of figures as Markdown, HTML and JSON."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from benchmarks.promises.samples import Placement
from nearmetal.report import numbers
from nearmetal.report.sections import interval_text
from nearmetal.study.judge import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.promises.figures import Figure, Part
    from benchmarks.promises.samples import Samples
    from nearmetal.evidence import Manifest

COLUMNS = (
    "figure",
    "cores",
    "nearmetal",
    "against",
    "its figure",
    "ratio",
    "95 % interval",
    "turns",
    "must",
    "verdict",
)
_RIGHT = (2, 4, 5, 6, 7)
"""Columns of numbers."""


def _value(value: float, unit: str) -> str:
    return f"{numbers.digits(value)} {unit}"


def _verdict(part: Part) -> str:
    """Return the verdict in words, with the reason."""
    if part.comparison is None:
        return f"not measured: {part.why}"
    if part.comparison.verdict is Verdict.NO_MARGIN:
        return part.why
    word = {True: "holds", False: "DOES NOT HOLD", None: "cannot tell"}[part.holds]
    return f"{word}: {part.why}" if part.why else word


def part_cells(figure: Figure, part: Part) -> tuple[str, ...]:
    """Return one line of the table."""
    one = part.comparison
    measured = ("-",) * 5
    if one is not None:
        ours, theirs = (_value(side.median, part.unit) for side in (one.test, one.base))
        ratio = numbers.times(one.ratio.value) if one.ratio else "-"
        interval = interval_text(one.ratio) if one.ratio else "-"
        measured = (ours, theirs, ratio, interval, f"{one.test.n} / {one.base.n}")
    return (
        f"{figure.title}: {part.name}",
        part.placement,
        measured[0],
        part.peer,
        *measured[1:],
        part.must,
        _verdict(part),
    )


def _facts(samples: Samples, manifest: Manifest) -> list[str]:
    siblings, near, far = (samples.turns[placement] for placement in Placement)
    lines = [
        (
            f"Run of {manifest.started}: {manifest.blocks} blocks; {near} turns with the cores near "
            f"(a cache in common), {far} far, {siblings} on the threads of one core, "
            f"{samples.unsettled} while they moved (left out)."
        ),
        "Figures are medians of turns, a turn's value is the median of its samples.",
        "Programs that take no turns: medians of launches. Intervals are of the ratio.",
        *(f"{name}: {value}" for name, value in manifest.environment.machine),
        *(f"{name}: {value}" for name, value in manifest.environment.software),
    ]
    lines += [f"not run: {text}" for text in manifest.skipped]
    lines += [f"failed: {' '.join(filter(None, names))}" for names in samples.failed]
    return lines


def _lines(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    return [part_cells(figure, part) for figure in figures for part in figure.parts]


def render_markdown(figures: Sequence[Figure], samples: Samples, manifest: Manifest) -> str:
    """Return the table as Markdown."""

    def cells(words: Sequence[str]) -> str:
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

    text = ["# Figures", ""]
    text += [f"- {line}" for line in _facts(samples, manifest)]
    text += ["", cells(COLUMNS), cells(["---"] * len(COLUMNS))]
    text += [cells(line) for line in _lines(figures)]
    return "\n".join(text) + "\n"


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}
table{border-collapse:collapse;font-size:14px}th,td{border-bottom:1px solid #ccc;padding:.35rem .6rem;
text-align:left;vertical-align:top}td.number{text-align:right;white-space:nowrap}
tr.no td:last-child{color:#a40000;font-weight:600}tr.yes td:last-child{color:#0a6b2b}"""


def render_html(figures: Sequence[Figure], samples: Samples, manifest: Manifest) -> str:
    """Return the table as one offline page."""
    head = "".join(f"<th scope=col>{html.escape(c)}</th>" for c in COLUMNS)
    rows = []
    for figure in figures:
        for part in figure.parts:
            kind = {True: "yes", False: "no", None: "none"}[part.holds]
            tds = "".join(
                f"<td{' class=number' if i in _RIGHT else ''}>{html.escape(text)}</td>"
                for i, text in enumerate(part_cells(figure, part))
            )
            rows.append(f"<tr class={kind}>{tds}</tr>")
    facts = "".join(f"<li>{html.escape(line)}</li>" for line in _facts(samples, manifest))
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Figures</title>"
        f"<style>{_STYLE}</style>\n<h1>Figures</h1>\n<ul>{facts}</ul>\n"
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table>\n</html>\n"
    )


def figures_data(figures: Sequence[Figure], samples: Samples, manifest: Manifest) -> dict[str, Any]:
    """Return what stands in figures.json."""
    return {
        "format": 2,
        "started": manifest.started,
        "finished": manifest.finished,
        "blocks": manifest.blocks,
        "turns": {p.value: nr for p, nr in samples.turns.items()} | {"moving": samples.unsettled},
        "machine": dict(manifest.environment.machine),
        "software": dict(manifest.environment.software),
        "figures": [figure.data() for figure in figures],
    }


def render_json(figures: Sequence[Figure], samples: Samples, manifest: Manifest) -> str:
    """Return figures.json."""
    return json.dumps(figures_data(figures, samples, manifest), indent=1, ensure_ascii=False) + "\n"
