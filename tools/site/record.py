# SPDX-License-Identifier: Apache-2.0
"""Records a command in a terminal as a moving picture: `record.py FILE.svg COMMAND...`.

The picture plays once, several times as fast as the command ran, and stops at the last screen.
It needs no script, and with `prefers-reduced-motion` it is the last screen. FILE.txt gets the whole
output as text, below the date and the machine. Both contain what the command printed, and nothing
else but the line of the prompt. The command runs in a temporary folder, which is removed.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

COLUMNS, LINES = 128, 30
SPEED = 8
"""Seconds of the command in a second of the picture."""

SHORTEST = 0.4
"""Seconds that a screen is shown at least, so that an eye can follow."""

LONGEST = 2.0
"""Seconds that a screen is shown at most."""

WIDTH, HEIGHT, EDGE = 8.4, 18, 14
"""Of a character, of a line, and of the frame around the screen."""

COLOURS = {
    "black": "#8b949e",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#56d4dd",
    "white": "#ffffff",
}

Line = tuple[tuple[int, str, str, bool], ...]
"""Pieces of a line: column, text, colour, bold."""


class Screen(NamedTuple):
    """What the terminal shows, from a time on."""

    since: float
    lines: tuple[Line, ...]


def line_of(row: dict[int, pyte.screens.Char]) -> Line:
    """Return the pieces of a row of a terminal, without blanks at its end."""
    found = []
    cells = [(column, row[column]) for column in range(COLUMNS)]
    for (colour, bold), group in groupby(cells, key=lambda cell: (cell[1].fg, cell[1].bold)):
        members = list(group)
        text = "".join(char.data for _, char in members)
        if text.strip():
            lead = len(text) - len(text.lstrip())
            found.append((members[0][0] + lead, text.strip(), colour, bold))
    return tuple(found)


def screens(command: Sequence[str], folder: str) -> Iterator[tuple[Screen, str]]:
    """Run a command in a terminal; yield each screen with all lines until then; exit if it fails."""
    terminal = pyte.HistoryScreen(COLUMNS, LINES, history=10_000, ratio=1.0)
    stream = pyte.ByteStream(terminal)
    stream.feed(f"$ {shlex.join(command)}\r\n".encode())
    begin = time.monotonic()

    def seen() -> tuple[Screen, str]:
        rows = [terminal.buffer[number] for number in range(LINES)]
        every = [*terminal.history.top, *rows]
        plain = ("".join(row[column].data for column in range(COLUMNS)).rstrip() for row in every)
        shown = tuple(line_of(row) for row in rows)
        return Screen(time.monotonic() - begin, shown), "\n".join(plain).rstrip() + "\n"

    yield seen()
    child, master = pty.fork()
    if child == 0:
        size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
        os.chdir(folder)
        os.execvpe(command[0], command, os.environ | size)  # noqa: S606 - what the user asks for
    try:
        while data := os.read(master, 65536):
            stream.feed(data)
            yield seen()
    except OSError:
        pass  # the terminal of an ended command
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        sys.exit(f"{shlex.join(command)} ended with {status}: nothing is written")
    yield seen()


def _goes_on(one: Screen, other: Screen) -> bool:
    """Return whether only the last line of two screens differs: a bar, or a clock."""
    first, second = ([line for line in screen.lines if line] for screen in (one, other))
    return len(first) == len(second) and first[:-1] == second[:-1]


def film(found: Sequence[Screen]) -> list[tuple[float, Screen]]:
    """Return the screens that are shown, each with its seconds. The last is shown for good."""
    kept: list[Screen] = []
    for screen in found:
        short = kept and (screen.since - kept[-1].since) / SPEED < SHORTEST
        if kept and (short or _goes_on(kept[-1], screen)):
            kept[-1] = Screen(kept[-1].since, screen.lines)
        else:
            kept.append(screen)
    ends = [screen.since for screen in kept[1:]]
    times = [min((end - one.since) / SPEED, LONGEST) for one, end in zip(kept, ends, strict=False)]
    return list(zip([*times, SHORTEST], kept, strict=True))


def _piece(column: int, text: str, colour: str, bold: bool) -> str:  # noqa: FBT001 - see Line
    style = f' fill="{COLOURS[colour]}"' if colour in COLOURS else ""
    style += ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{column * WIDTH:.1f}" textLength="{len(text) * WIDTH:.1f}"'
        f' lengthAdjust="spacingAndGlyphs"{style}>{escape(text)}</text>'
    )


def picture(shown: Sequence[tuple[float, Screen]], title: str, caption: str) -> str:
    """Return the film as SVG: all screens below each other, and one that is seen at a time."""
    width, tall = COLUMNS * WIDTH + 2 * EDGE, LINES * HEIGHT
    names: dict[Line, str] = {}
    frames, steps, now = [], [], 0.0
    total = sum(seconds for seconds, _ in shown)
    for number, (seconds, screen) in enumerate(shown):
        uses = []
        for row, line in enumerate(screen.lines):
            if line:
                name = names.setdefault(line, f"l{len(names)}")
                uses.append(f'<use href="#{name}" y="{number * tall + row * HEIGHT + 13}"/>')
        frames.append("".join(uses) + "\n")
        steps.append(f"{100 * now / total:.2f}%{{transform:translateY(-{number * tall}px)}}")
        now += seconds
    last = f"transform:translateY(-{(len(shown) - 1) * tall}px)"
    lines = "".join(
        f'<g id="{name}">{"".join(_piece(*piece) for piece in line)}</g>\n'
        for line, name in names.items()
    )
    style = (
        "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        f"@keyframes film{{{''.join(steps)}to{{{last}}}}}"
        f".film{{{last};animation:film {total:.1f}s step-end}}"
        "svg:hover .film,svg:focus .film{animation-play-state:paused}"
        "@media(prefers-reduced-motion:reduce){.film{animation:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {tall + 62}" role="img"'
        f' tabindex="0" aria-labelledby="title about"><title id="title">{escape(title)}</title>'
        f'<desc id="about">{escape(caption)}</desc><style>{style}</style><defs>{lines}</defs>'
        '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
        f'<svg x="{EDGE}" y="{EDGE}" width="{COLUMNS * WIDTH:.0f}" height="{tall}">'
        f'<g class="film" fill="#c9d1d9">{"".join(frames)}</g></svg>'
        f'<text x="{EDGE}" y="{tall + 44}" fill="#8b949e">{escape(caption)}</text></svg>\n'
    )


def machine() -> str:
    """Return the kind of this machine: its processor, and how many of them a process may use."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    cores = len(os.sched_getaffinity(0))
    guest = "virtual machine" if re.search(r"^flags\b.* hypervisor\b", text, re.MULTILINE) else ""
    return f"{name[1] if name else os.uname().machine}, {cores} cores" + (guest and f", {guest}")


def main(target: Path, command: Sequence[str]) -> None:
    """Record, and write both files."""
    found = []
    output = ""
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        for screen, text in screens(command, folder):
            found.append(screen)
            output = text
    day = datetime.now(UTC).date().isoformat()
    caption = f"Recorded on {day}: {machine()}. Played {SPEED} times as fast."
    target.with_suffix(".txt").write_text(f"{caption}\n\n{output}", encoding="utf-8")
    title = f"Recording of the command {shlex.join(command)}"
    target.write_text(picture(film(found), title, caption), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:  # noqa: PLR2004 - a file and a command
        sys.exit("usage: record.py FILE.svg COMMAND...")
    main(Path(sys.argv[1]), sys.argv[2:])
