# SPDX-License-Identifier: Apache-2.0
"""Sizes with binary units: "512 MiB"."""

from __future__ import annotations

import re

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_SIZE = re.compile(r"(-?[0-9]{1,15}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)")


def parse_size(text: str) -> int:
    """Return the bytes in `text`; raises ValueError whose text is "why|hint"."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("is not a number with a unit|write for example 512 MiB")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"has no unit|write {number} MiB, or {number} B for bytes")
    if unit not in UNITS:
        guess = next((u for u in UNITS if u[0].upper() == unit[0].upper()), None)
        hint = f"write {number} {guess}" if guess else f"use one of {', '.join(UNITS)}"
        raise ValueError(f"has the unknown unit {unit}|{hint}")
    value = float(number) * UNITS[unit]
    if value < 0:
        raise ValueError("is negative|write a size of 1 MiB or more")
    return int(value)


def format_size(nr_bytes: int) -> str:
    """Return the shortest exact form with a binary unit."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if nr_bytes and nr_bytes % UNITS[unit] == 0:
            return f"{nr_bytes // UNITS[unit]} {unit}"
    return f"{nr_bytes} B"
