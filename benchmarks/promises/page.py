# SPDX-License-Identifier: Apache-2.0
"""The table of figures as Markdown, HTML and JSON."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from benchmarks.promises.samples import Placement
from nearmetal.report import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.promises.figures import Figure, Part
    from benchmarks.promises.samples import Samples
    from nearmetal.evidence import Manifest

COLUMNS = (
    "figure",
    "cores",
    "nearmetal",
    "median",
    "against",
    "its figure",
    "its median",
    "ratio",
    "must",
    "holds",
)
_WORDS = {True: "yes", False: "NO", None: "not measured"}


def _value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{numbers.digits(value)} {unit}"


def part_cells(figure: Figure, part: Part) -> tuple[str, ...]:
    """Return one line of the table."""
    told = part.holds is None and part.ratio is not None
    holds = part.why if told else _WORDS[part.holds] + (f": {part.why}" if part.why else "")
    return (
        f"{figure.title}: {part.name}",
        part.placement,
        _value(part.value, part.unit),
        _value(part.median, part.unit),
        part.peer,
        _value(part.peer_value, part.unit),
        _value(part.peer_median, part.unit),
        "-" if part.ratio is None else numbers.times(part.ratio),
        part.must,
        holds,
    )


def _facts(samples: Samples, manifest: Manifest) -> list[str]:
    siblings, near, far = (samples.turns[placement] for placement in Placement)
    lines = [
        (
            f"Run of {manifest.started}: {manifest.blocks} blocks; {near} turns with the cores near "
            f"(a cache in common), {far} far, {siblings} on the threads of one core, "
            f"{samples.unsettled} while they moved (left out)."
        ),
        "Figures are 2nd percentiles of times and 98th percentiles of rates; medians stand beside.",
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
_RIGHT = range(2, 8)


def render_html(figures: Sequence[Figure], samples: Samples, manifest: Manifest) -> str:
    """Return the table as one offline page."""
    head = "".join(f"<th scope=col>{html.escape(c)}</th>" for c in COLUMNS)
    rows = []
    for figure in figures:
        for part in figure.parts:
            kind = {True: "yes", False: "no", None: "none"}[part.holds]
            tds = "".join(
                f"<td{' class=number' if i in _RIGHT and i != 4 else ''}>{html.escape(text)}</td>"  # noqa: PLR2004
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
        "format": 1,
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
