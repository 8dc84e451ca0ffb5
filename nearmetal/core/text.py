# SPDX-License-Identifier: Apache-2.0
"""Foreign text where people see it: without characters that a terminal obeys."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return text as one line that changes nothing but its own place on a terminal.

    Control, format and undecodable characters become escapes such as `\x1b`: a file name or a log
    may hold commands for the terminal, line ends that forge a message, or reversed text.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def printable_lines(text: str) -> str:
    """Return text with its lines and tabs, each line as `printable` returns it."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def size_text(nr_bytes: int) -> str:
    """Return a message size: 8 B, 64 KiB, 4 MiB."""
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if nr_bytes >= 1 << shift and nr_bytes % (1 << shift) == 0:
            return f"{nr_bytes >> shift} {unit}"
    return f"{nr_bytes} B"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 launch, 2 launches."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{ending}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
