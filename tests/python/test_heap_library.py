# SPDX-License-Identifier: Apache-2.0
"""The library that `run --heap` preloads."""

from pathlib import Path

import pytest

from nearmetal.core.errors import LaunchError
from nearmetal.core.resources import heap_library


def test_a_heap_that_is_not_built(tmp_path: Path) -> None:
    library = tmp_path / "libnearmetal-heap.so"
    with pytest.raises(LaunchError, match=r"libnearmetal-heap\.so is not there"):
        heap_library([library])
    library.touch()
    assert heap_library([library]) == library
