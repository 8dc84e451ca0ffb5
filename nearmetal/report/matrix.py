# SPDX-License-Identifier: Apache-2.0
"""The locality matrix of a run: rows of the page, reasons, and a picture of its own."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from nearmetal.evidence import Manifest, NodePair
from nearmetal.evidence.counters import NETWORK, SELF
from nearmetal.report.drawing import tag, text

CELL_W, CELL_H, HEAD, TOP = 92, 46, 92, 52

NONE, OTHER = "none", "other"
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2430}.small{font-size:11px;fill:#5a6675}"
    "@media (prefers-color-scheme:dark){text{fill:#e8edf3}.small{fill:#9fb0c3}}"
)
COLOURS = {
    SELF: ("#dfe5ec", "#2c3848"),
    "shm": ("#b9e3c6", "#1f5a37"),
    "segment": ("#b7dcea", "#1d4f66"),
    NETWORK: ("#fbd9b0", "#6d4415"),
    NONE: ("#f3c1c1", "#6d2020"),
    OTHER: ("#e4d8f0", "#46305f"),
}
"""Light and dark colour by CSS class. A channel without a colour of its own is shown as OTHER."""


def channel_style(rule: str) -> str:
    """Return CSS with a rule for each channel, for both schemes: {0} is the class, {1} the colour."""
    light, dark = (
        "".join(rule.format(name, colours[scheme]) for name, colours in COLOURS.items())
        for scheme in (0, 1)
    )
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"


def channel_class(channel: str) -> str:
    """Return the CSS class of a channel."""
    if not channel:
        return NONE
    return channel if channel in COLOURS else OTHER


class MatrixRow(NamedTuple):
    """One node's row of the matrix: its host, and (class, pair) per peer."""

    node: str
    host: str
    cells: tuple[tuple[str, NodePair | None], ...]


def matrix(manifest: Manifest) -> tuple[list[str], list[MatrixRow]]:
    """Return the names of the nodes, and a row per node."""
    pairs = {(p.node, p.peer): p for p in manifest.locality}
    names = list(dict.fromkeys(p.node for p in manifest.locality))
    hosts = {n.name: n.host for n in manifest.environment.nodes}
    rows = []
    for name in names:
        found = [pairs.get((name, peer)) for peer in names]
        cells = tuple((channel_class(p.channel) if p else NONE, p) for p in found)
        rows.append(MatrixRow(name, hosts.get(name, ""), cells))
    return names, rows


def reasons(manifest: Manifest) -> list[tuple[str, str, str, str, list[str]]]:
    """Return (class, channel, relation, reason, pairs); equal reasons appear once."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for p in manifest.locality:
        integrity = "" if p.integrity in ("", "-") else f", integrity {p.integrity}"
        key = (p.channel, p.relation + integrity, p.reason)
        groups.setdefault(key, []).append(f"{p.node} → {p.peer}")
    return [(channel_class(key[0]), *key, pairs) for key, pairs in groups.items()]


def locality_picture(manifest: Manifest) -> str:
    """Return the matrix as a standalone SVG, for documents that show no HTML."""
    names, rows = matrix(manifest)
    width, height = HEAD + len(names) * CELL_W + 8, TOP + len(names) * CELL_H + 8
    parts = [tag("style", STYLE, channel_style(".{0}{{fill:{1}}}"))]
    for i, row in enumerate(rows):
        x, y = HEAD + i * CELL_W + CELL_W // 2 - 2, TOP + i * CELL_H
        for words, style, dy in ((row.node, "", 0), (row.host, "small", 15)):
            parts.append(text(words, style, x, 20 + dy, "middle"))
            parts.append(text(words, style, HEAD - 12, y + 20 + dy, "end"))
        parts += [
            _cell(style, pair, HEAD + column * CELL_W, y)
            for column, (style, pair) in enumerate(row.cells)
            if pair is not None
        ]
    svg = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label="channel between each pair of nodes",
    )
    return svg + "\n"


def _cell(style: str, pair: NodePair, x: int, y: int) -> str:
    middle = x + CELL_W // 2 - 2
    return tag(
        "g",
        tag("title", escape(f"{pair.node} to {pair.peer}: {pair.reason}")),
        tag("rect", class_=style, x=x, y=y, width=CELL_W - 4, height=CELL_H - 4, rx=5),
        text(pair.channel, "", middle, y + 20, "middle"),
        text(pair.relation, "small", middle, y + 35, "middle"),
    )
