# SPDX-License-Identifier: Apache-2.0
"""Elements of SVG as text: lines, words, and the signs of series. Colours are CSS classes. Pure."""

from __future__ import annotations

from html import escape

from nearmetal.report.lettering import width, wrapped

LABEL = 12.5
"""Font size of the names of series and of the values of bars, as in charts.css."""
TICK = 11.5
"""Font size of ticks and of titles of axes."""

LINE = 15
"""Distance of the lines of a wrapped text."""

KEY = 34
"""Room of the sign of a series before its name in a legend."""
_ENTRY_GAP = 18

_CIRCLE = "M-3.4,0a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0"
_SQUARE = "M-3,-3h6v6h-6z"
_UP, _DOWN = "M0,-4l4,7h-8z", "M0,4l4,-7h-8z"
SIGNS = {
    "auto": _CIRCLE,
    "stock": _SQUARE,
    "net": _UP,
    "limit": "M0,-4l4,4l-4,4l-4,-4z",
    "arm-1": _SQUARE,
    "arm-2": _CIRCLE,
    "arm-3": _UP,
    "arm-4": _DOWN,
    "arm-5": "M-1.4,-4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
    "arm-6": "M-4,-2l2,-2l2,2l2,-2l2,2l-2,2l2,2l-2,2l-2,-2l-2,2l-2,-2l2,-2z",
    "arm-7": "M-4,-4l8,8v-8l-8,8z",
    "arm-8": "M-2,-4h4l2.6,4l-2.6,4h-4l-2.6,-4z",
}
"""Outlines of markers by style. Series differ in shape and dashes, not in colour alone."""


def tag(name: str, *content: str, **attributes: str | float) -> str:
    """Return an element. `content` is markup; attributes are escaped, floats have one digit."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="'
        + (f"{value:.1f}" if isinstance(value, float) else escape(str(value)))
        + '"'
        for key, value in attributes.items()
    )
    return f"<{name}{words}>{''.join(content)}</{name}>" if content else f"<{name}{words}/>"


def text(words: str, style: str, x: float, y: float, anchor: str = "") -> str:
    """Return a text at a place; `anchor` is start (the default), middle or end."""
    first = {"class_": style} if style else {}
    last = {"text_anchor": anchor} if anchor else {}
    return tag("text", escape(words), **first, x=x, y=y, **last)


def lines_of_text(lines: list[str], style: str, x: float, y: float) -> str:
    """Return lines below each other; the first one stands at `y`."""
    return "".join(text(words, style, x, y + LINE * n) for n, words in enumerate(lines))


def rule(style: str, x1: float, x2: float, y1: float, y2: float) -> str:
    """Return a straight line."""
    return tag("line", class_=style, x1=x1, x2=x2, y1=y1, y2=y2)


def linked(markup: str, href: str) -> str:
    """Return markup that leads to `href`, if that is not empty."""
    return tag("a", markup, href=href) if href else markup


def sign(style: str, x: float, y: float, title: str, href: str = "") -> str:
    """Return the marker of a series at a place."""
    body = tag(
        "path",
        *([tag("title", escape(title))] if title else []),
        class_=f"mark {style}",
        d=SIGNS.get(style, _CIRCLE),
        transform=f"translate({x:.1f},{y:.1f})",
    )
    return linked(body, href)


def key(style: str, x: float, y: float, title: str) -> str:
    """Return a piece of the line of a series with its marker, for legends; 26 units wide."""
    return rule(f"line {style}", x, x + 26, y, y) + sign(style, x + 13, y, title)


def key_picture(style: str) -> str:
    """Return the sign of a series as a picture of its own, for tables."""
    body = key(style, 0, 6, "")
    return tag("svg", body, class_="key", viewBox="0 0 26 12", aria_hidden="true")


def legend(entries: list[tuple[str, str]], room: float, top: float) -> tuple[str, float]:
    """Return (style, name) entries side by side in `room`, and the height of their rows."""
    parts, x, y, deep = [], 0.0, top, 1
    for style, name in entries:
        lines = wrapped(name, room - KEY, LABEL)
        length = KEY + max(width(line, LABEL) for line in lines)
        if x and x + length > room:
            x, y, deep = 0.0, y + LINE * deep + 2, 1
        deep = max(deep, len(lines))
        parts.append(key(style, x, y, name))
        parts.append(lines_of_text(lines, "label", x + KEY, y + 4))
        x += length + _ENTRY_GAP
    return "".join(parts), y + LINE * deep - top
