# SPDX-License-Identifier: Apache-2.0
"""How each MPI is found, set up and started. Settings and argument lists are pure data."""

from nearmetal.job.mpi.installed import Family, Installation, Mpi, Places, find_installations, pick
from nearmetal.job.mpi.launcher import MapBy, Placement, launcher_argv
from nearmetal.job.mpi.settings import Provider, Request, Settings, settings_for
from nearmetal.job.mpi.stacks import STACKS, Stack

__all__ = [
    "STACKS",
    "Family",
    "Installation",
    "MapBy",
    "Mpi",
    "Placement",
    "Places",
    "Provider",
    "Request",
    "Settings",
    "Stack",
    "find_installations",
    "launcher_argv",
    "pick",
    "settings_for",
]
