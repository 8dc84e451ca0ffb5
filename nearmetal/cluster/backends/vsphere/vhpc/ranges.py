# SPDX-License-Identifier: Apache-2.0
"""Ranges: `{x:y}` goes round in turn, `{{x:y}}` gives each value to as many in a row.

Everything with a brace that is not exactly one of the two is an error in words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_VALUES = 1000

_RANGE = re.compile(
    r"(?P<before>[^{}]*)(?P<open>\{\{?)(?P<first>\d{1,9}):(?P<last>\d{1,9})(?P<close>\}\}?)"
    r"(?P<after>[^{}]*)"
)


@dataclass(frozen=True)
class Range:
    """The values of one range. `block`: each stays for several machines in a row."""

    values: tuple[str, ...]
    block: bool


def parse_range(text: str) -> Range | None:
    """Return the range in a text, None where there is none; raises ValueError "why|hint"."""
    if "{" not in text and "}" not in text:
        return None
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(_wrong(text))
    if len(match["open"]) != len(match["close"]):
        msg = "opens and closes with different braces|write {1:8}, or {{1:8}}"
        raise ValueError(msg)
    first, last = int(match["first"]), int(match["last"])
    if first > last:
        msg = f"goes down from {first} to {last}|write {{{last}:{first}}}"
        raise ValueError(msg)
    if last - first >= MAX_VALUES:
        msg = f"has {last - first + 1} values|a range has at most {MAX_VALUES}"
        raise ValueError(msg)
    values = tuple(f"{match['before']}{i}{match['after']}" for i in range(first, last + 1))
    return Range(values, block=match["open"] == "{{")


def _wrong(text: str) -> str:
    if text.count("{") != text.count("}"):
        return "has a brace that is not closed, or not opened|write {1:8}, or {{1:8}}"
    if "{{{" in text or "}}}" in text:
        return "has three braces in a row|write {1:8}, or {{1:8}}"
    inner = re.findall(r"\{+([^{}]*)\}+", text)
    if len(inner) > 1:
        return "has two ranges|a value has one; write the machines in two lines"
    between = inner[0] if inner else ""
    if re.fullmatch(r"\s*-?\d*\s*:\s*-?\d*\s*", between):
        return "lacks a number, has a blank in it, or is negative|write for example {1:8}"
    return "is no range of numbers|write {1:8}, or {{1:8}}"


def spread(found: Range, nr_machines: int) -> list[str]:
    """Return one value per machine; raises ValueError "why|hint"."""
    nr_values = len(found.values)
    if nr_values > nr_machines:
        msg = f"has {nr_values} values for {nr_machines} machines|a range is at most as long"
        raise ValueError(msg)
    if not found.block:
        return [found.values[i % nr_values] for i in range(nr_machines)]
    if nr_machines % nr_values:
        msg = (
            f"has {nr_values} values for {nr_machines} machines, which cannot be dealt out evenly"
            f"|use a divisor of {nr_machines}, or {{x:y}}, which goes round"
        )
        raise ValueError(msg)
    each = nr_machines // nr_values
    return [found.values[i // each] for i in range(nr_machines)]
