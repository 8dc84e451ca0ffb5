# SPDX-License-Identifier: Apache-2.0
"""Containers of Slurm jobs: the launcher, the reclaimer, the watchdog, and the present state.

The plugin (src/spank) calls `launch` from the prolog of a node and `reclaim` from its epilog, and
puts tasks into the container. It alone reads the site's settings and passes them on. All state is
below one directory of /run; docs/design/slurm.md gives the reasons.
"""

from __future__ import annotations

from nearmetal.slurm.backend import Instance, JobBackend, ThisNode, leaks, reclaim_ended
from nearmetal.slurm.container import (
    ContainerRequest,
    Launched,
    MachineRequest,
    Machines,
    launch,
)
from nearmetal.slurm.queue import GRES, gres
from nearmetal.slurm.reclaim import reclaim
from nearmetal.slurm.records import STATE, Container, containers, of_job
from nearmetal.slurm.vfs import Count, JobVf, JobVfs

__all__ = [
    "GRES",
    "STATE",
    "Container",
    "ContainerRequest",
    "Count",
    "Instance",
    "JobBackend",
    "JobVf",
    "JobVfs",
    "Launched",
    "MachineRequest",
    "Machines",
    "ThisNode",
    "containers",
    "gres",
    "launch",
    "leaks",
    "of_job",
    "reclaim",
    "reclaim_ended",
]
