# SPDX-License-Identifier: Apache-2.0
"""A walk over all points has a sample for CI, with both ends, and leaves no point out."""

import pytest

from tests.walks import spread, walk


@pytest.mark.parametrize(("count", "keep"), [(4, 4), (5, 4), (14, 4), (22, 5)])
def test_a_sample_has_both_ends_and_its_size(count: int, keep: int) -> None:
    sample = spread(count, keep)
    assert len(sample) == keep
    assert {0, count - 1} <= sample <= set(range(count))


def test_every_point_is_there_and_those_outside_the_sample_are_long_tests() -> None:
    found = walk(range(14))
    assert [p.values for p in found] == [(i,) for i in range(14)]
    assert [p.values[0] for p in found if not p.marks] == [0, 4, 9, 13]
    assert {m.name for p in found for m in p.marks} == {"full"}
    assert walk([("a", 1), ("b", 2), ("c", 3), ("d", 4)])[3].values == ("d", 4)
