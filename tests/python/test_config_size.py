# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.config.size import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "nr_bytes"),
    [("512 MiB", 512 << 20), ("1GiB", 1 << 30), ("1.5 KiB", 1536), ("7 B", 7), ("2 TiB", 2 << 40)],
)
def test_sizes_with_units(text: str, nr_bytes: int) -> None:
    assert parse_size(text) == nr_bytes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("512", "has no unit|write 512 MiB"),
        ("10 MB", "unknown unit MB|write 10 MiB"),
        ("10 parsec", "unknown unit parsec|use one of"),
        ("-1 MiB", "is negative"),
        ("much", "is not a number"),
        ("", "is not a number"),
        ("9" * 16 + " B", "is not a number"),
    ],
)
def test_wrong_sizes_say_why_and_what_instead(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("|", r"\|")):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 44))
def test_format_is_read_back_exactly(nr_bytes: int) -> None:
    assert parse_size(format_size(nr_bytes)) == nr_bytes
