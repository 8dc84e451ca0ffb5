# SPDX-License-Identifier: Apache-2.0
"""Numbers as text: three significant digits, and a unit that keeps them short."""

from __future__ import annotations

import re
from math import floor, log10

from nearmetal.core.text import size_text

_THOUSAND = 1000


def digits(value: float, significant: int = 3) -> str:
    """Return a number with its significant digits, never in exponential form."""
    if value == 0:
        return "0"
    places = significant - 1 - floor(log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.{max(places, 0)}f}"


def size(nr_bytes: int) -> str:
    """Return a message size: 8 B, 64 KiB, 4 MiB."""
    return size_text(nr_bytes)


def short_size(nr_bytes: int) -> str:
    """Return a message size for an axis: 8, 64K, 4M."""
    return size(nr_bytes).replace(" ", "").removesuffix("B").replace("i", "")


def microseconds(value: float) -> str:
    """Return a time given in microseconds."""
    if value < 1:
        return f"{digits(value * _THOUSAND)} ns"
    if value < _THOUSAND:
        return f"{digits(value)} µs"
    return f"{digits(value / _THOUSAND)} ms"


def scaled(value: float, unit: str, power: int = 0) -> str:
    """Return a number of 10^power units with the prefix that keeps it short: 31.6 M/s."""
    prefixes = ("", "k", "M", "G", "T", "P")
    step = power // 3
    while value >= _THOUSAND and step < len(prefixes) - 1:
        value, step = value / _THOUSAND, step + 1
    while 0 < value < 1 and step > 0:
        value, step = value * _THOUSAND, step - 1
    return f"{digits(value)} {prefixes[step]}{unit}"


def megabytes_per_second(value: float) -> str:
    """Return a bandwidth given in 10^6 bytes per second."""
    return scaled(value, "B/s", 6)


def megamessages_per_second(value: float) -> str:
    """Return a rate given in 10^6 messages per second."""
    return scaled(value, "/s", 6)


def data(nr_bytes: int) -> str:
    """Return an amount of data in decimal units."""
    return scaled(nr_bytes, "B")


def times(value: float) -> str:
    """Return a ratio, with a multiplication sign."""
    return f"{digits(value)}\N{MULTIPLICATION SIGN}"


def plain_times(value: float) -> str:
    """Return a ratio for an axis, without needless digits."""
    return f"{value:g}\N{MULTIPLICATION SIGN}"


def tick(text: str) -> str:
    """Return the text of a number without needless digits: 10.0 becomes 10."""
    return re.sub(r"(\d)\.0+(?=\D|$)", r"\1", text)
