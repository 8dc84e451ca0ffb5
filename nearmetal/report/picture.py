# SPDX-License-Identifier: Apache-2.0
"""The locality matrix as a picture of its own, for documents that show no HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearmetal.evidence import Manifest, NodePair

CELL_W, CELL_H, HEAD = 92, 46, 92

STYLE = """
text{font:13px system-ui,sans-serif;fill:#1c2430}
.small{font-size:11px;fill:#5a6675}
.self{fill:#dfe5ec}.shm{fill:#b9e3c6}.segment{fill:#b7dcea}.net{fill:#fbd9b0}
.none{fill:#f3c1c1}
@media (prefers-color-scheme:dark){text{fill:#e8edf3}.small{fill:#9fb0c3}
.self{fill:#2c3848}.shm{fill:#1f5a37}.segment{fill:#1d4f66}.net{fill:#6d4415}
.none{fill:#6d2020}}
"""

KNOWN = ("self", "shm", "segment", "net")


def channel_class(channel: str) -> str:
    """Return the class a channel is coloured by."""
    return channel if channel in KNOWN else "none"


def _cell(pair: NodePair, column: int, row: int) -> str:
    x, y = HEAD + column * CELL_W, HEAD - 40 + row * CELL_H
    return (
        f"<g><title>{escape(f'{pair.node} to {pair.peer}: {pair.reason}')}</title>"
        f'<rect class="{channel_class(pair.channel)}" x="{x}" y="{y}" width="{CELL_W - 4}" '
        f'height="{CELL_H - 4}" rx="5"/>'
        f'<text x="{x + CELL_W / 2 - 2}" y="{y + 20}" text-anchor="middle">'
        f"{escape(pair.channel)}</text>"
        f'<text class="small" x="{x + CELL_W / 2 - 2}" y="{y + 35}" text-anchor="middle">'
        f"{escape(pair.relation)}</text></g>"
    )


def locality_picture(manifest: Manifest) -> str:
    """Return a standalone SVG of who reaches whom through what."""
    names = list(dict.fromkeys(pair.node for pair in manifest.locality))
    hosts = {node.name: node.host for node in manifest.environment.nodes}
    width = HEAD + len(names) * CELL_W + 8
    height = HEAD - 40 + len(names) * CELL_H + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f'aria-label="who reaches whom through what"><style>{STYLE}</style>'
    )
    parts = [head]
    for i, name in enumerate(names):
        x, y = HEAD + i * CELL_W + CELL_W / 2 - 2, HEAD - 40 + i * CELL_H
        for text, small, dy in ((name, "", 0), (hosts.get(name, ""), ' class="small"', 15)):
            parts.append(
                f'<text{small} x="{x}" y="{20 + dy}" text-anchor="middle">{escape(text)}</text>'
            )
            parts.append(
                f'<text{small} x="{HEAD - 12}" y="{y + 20 + dy}" text-anchor="end">'
                f"{escape(text)}</text>"
            )
    parts += [
        _cell(pair, names.index(pair.peer), names.index(pair.node))
        for pair in manifest.locality
        if pair.peer in names
    ]
    return "".join(parts) + "</svg>\n"
