# SPDX-License-Identifier: Apache-2.0
"""Walks over every point at which a process may die: a sample in CI, the whole in `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def spread(count: int, keep: int) -> set[int]:
    """Return `keep` of the indices below count: the first, the last, and others evenly between."""
    return {round(i * (count - 1) / (keep - 1)) for i in range(keep)}


def walk(points: Iterable[Any], keep: int = 4) -> list[Any]:
    """Parameters of a test, one per point; those outside the sample run in `make test-full` only.

    The sample is the same in every run, so that a failure can be repeated.
    """
    found = [point if isinstance(point, tuple) else (point,) for point in points]
    sample = spread(len(found), keep)
    return [
        pytest.param(*point, marks=[] if i in sample else [pytest.mark.full])
        for i, point in enumerate(found)
    ]
