# SPDX-License-Identifier: Apache-2.0
"""What tests need of that which set-up installs and builds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from nearmetal.core.errors import LaunchError
from nearmetal.core.resources import provider_library, tool
from nearmetal.job.mpi.installed import find_installations

if TYPE_CHECKING:
    from nearmetal.job.mpi import Mpi
    from nearmetal.job.mpi.installed import SearchPath

BUILD = Path(__file__).parents[2] / "build"


def lacking(reason: str) -> NoReturn:
    """Leave the test or module for lack of something that set-up brings.

    At a desk it is skipped. With CI=true, where set-up has run before, it fails: a test that never
    runs there would not be missed.
    """
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, although set-up should have brought it", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def need_mpi(*names: Mpi, places: SearchPath | None = None) -> None:
    """Leave the test or module unless these MPIs are there; `places` as find_installations()."""
    found = find_installations(places)
    absent = [mpi.title for mpi in names if mpi not in found]
    if absent:
        lacking(f"{', '.join(absent)} is not installed")


def need_ucx() -> None:
    """Leave the test or module unless UCX and the transport for it are there."""
    needed = ("c/src/ucx/libuct_nearmetal.so.0", "ucx/libucx/bin/ucx_perftest")
    if not all((BUILD / path).exists() for path in needed):
        lacking("the transport for UCX is not built")


def need_root() -> None:
    """Leave the test or module unless it runs as root, which set-up cannot bring."""
    if os.geteuid() != 0:
        pytest.skip("the tests do not run as root", allow_module_level=True)


def need_build() -> None:
    """Leave the test or module unless provider and nearmetal-info are built."""
    try:
        provider_library()
        tool("nearmetal-info")
    except LaunchError as missing:
        lacking(f"not built: {missing}")
