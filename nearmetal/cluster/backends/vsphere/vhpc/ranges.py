# SPDX-License-Identifier: Apache-2.0
"""Ranges in a cluster file: `{x:y}`, whose values are taken in turn, and blocks `{{x:y}}`.

A range that occurs again in one value has the same number in both places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PLACEHOLDER = "has a placeholder ${...}|write the value of your site"

MAX_VALUES = 1000

_RANGE = re.compile(r"(\{\{?)(\d{1,9}):(\d{1,9})(\}\}?)")


@dataclass(frozen=True)
class Range:
    """The values of `{x:y}`, or of `{{x:y}}`: a block, so consecutive machines share a value."""

    values: tuple[str, ...]
    block: bool
    padded: bool = False
    """Whether a number is written with leading zeros, which no value has."""


def parse_range(text: str) -> Range | None:
    """Return the range in a text, None for a text without braces; raises ValueError "why|hint"."""
    if "{" not in text and "}" not in text:
        return None
    if "${" in text:
        raise ValueError(PLACEHOLDER)
    found = {match[0]: match for match in _RANGE.finditer(text)}
    if len(found) != 1 or set("{}") & set(_RANGE.sub("", text)):
        raise ValueError(_wrong(text))
    ((span, match),) = found.items()
    if len(match[1]) != len(match[4]):
        raise ValueError("opens and closes with different braces|write {1:8}, or {{1:8}}")
    first, last = int(match[2]), int(match[3])
    if first > last:
        raise ValueError(f"goes down from {first} to {last}|write {{{last}:{first}}}")
    if last - first >= MAX_VALUES:
        raise ValueError(f"has {last - first + 1} values|a range has at most {MAX_VALUES}")
    values = tuple(text.replace(span, str(i)) for i in range(first, last + 1))
    padded = any(len(number) > 1 and number[0] == "0" for number in match.group(2, 3))
    return Range(values, block=match[1] == "{{", padded=padded)


def _wrong(text: str) -> str:
    if text.count("{") != text.count("}"):
        return "has a brace that is not closed, or not opened|write {1:8}, or {{1:8}}"
    if "{{{" in text or "}}}" in text:
        return "has three braces in a row|write {1:8}, or {{1:8}}"
    inner = re.findall(r"\{([^{}]*)\}", text)
    if len(inner) > 1:
        return (
            "has two ranges|a value has one, which may occur again; write the machines in two lines"
        )
    if inner and re.fullmatch(r"-?\d*:-?\d*", "".join(inner[0].split())):
        return "lacks a number, has a blank in it, or is negative|write for example {1:8}"
    return "is not a range of numbers|write {1:8}, or {{1:8}}"


def spread(found: Range, nr_machines: int) -> list[str]:
    """Return one value per machine; raises ValueError "why|hint"."""
    nr_values = len(found.values)
    if nr_values > nr_machines:
        raise ValueError(f"has {nr_values} values for {nr_machines} machines|use a shorter range")
    if not found.block:
        return [found.values[i % nr_values] for i in range(nr_machines)]
    if nr_machines % nr_values:
        raise ValueError(
            f"has {nr_values} values for {nr_machines} machines, and each value needs the same "
            f"number of machines|use a divisor of {nr_machines}, or {{x:y}}, which takes the values in turn"
        )
    each = nr_machines // nr_values
    return [found.values[i // each] for i in range(nr_machines)]
