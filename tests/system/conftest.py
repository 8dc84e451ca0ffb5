# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.faults.arena import Arena


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    """A place for endpoints to meet in. A test that ends well must leave it clean."""
    place = Arena(tmp_path)
    try:
        yield place
        place.close()
    finally:
        place.abandon()
