# SPDX-License-Identifier: Apache-2.0
"""How each MPI is found, set up and started. Settings and argument lists are pure data."""

from nearmetal.job.mpi.installed import NO_MPI, Family, Installation, Mpi, find_installations, pick
from nearmetal.job.mpi.launcher import MapBy, Placement, launcher_argv
from nearmetal.job.mpi.settings import (
    STACKS,
    Library,
    Provider,
    Request,
    Settings,
    Stack,
    Ucx,
    settings_for,
)

__all__ = [
    "NO_MPI",
    "STACKS",
    "Family",
    "Installation",
    "Library",
    "MapBy",
    "Mpi",
    "Placement",
    "Provider",
    "Request",
    "Settings",
    "Stack",
    "Ucx",
    "find_installations",
    "launcher_argv",
    "pick",
    "settings_for",
]
