# SPDX-License-Identifier: Apache-2.0
"""Versions of products, compared number by number: 8.0U2 is after 8.0, 6.7 before 6.12."""

from __future__ import annotations

import re

_FORM = re.compile(r"\d{1,6}(\.\d{1,6}){0,3}([uU]\d{1,3}[a-z]?)?")


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at the end.

    Raises ValueError when the text is no version such as `8.0U2` or `6.12.5`.
    """
    if not _FORM.fullmatch(text):
        msg = f"{text!r} is no version|write it like 8.0U2 or 6.12"
        raise ValueError(msg)
    main, _, update = text.lower().partition("u")
    numbers = [int(part) for part in main.split(".")]
    if update:
        # An update stands where a third number would: 7.0U3 is 7.0.3.
        numbers = [*[*numbers, 0][:2], int(re.sub(r"\D", "", update))]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
