# SPDX-License-Identifier: Apache-2.0
"""How each MPI is found, set up and started. Settings and argument lists are pure data."""

from nearmetal.job.mpi.installed import NO_MPI, Family, Installation, Mpi, find_installations, pick
from nearmetal.job.mpi.launcher import MapBy, Placement, launcher_argv
from nearmetal.job.mpi.settings import STACKS, Provider, Request, Settings, Stack, settings_for

__all__ = [
    "NO_MPI",
    "STACKS",
    "Family",
    "Installation",
    "MapBy",
    "Mpi",
    "Placement",
    "Provider",
    "Request",
    "Settings",
    "Stack",
    "find_installations",
    "launcher_argv",
    "pick",
    "settings_for",
]
