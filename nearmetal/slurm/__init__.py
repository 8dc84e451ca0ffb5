# SPDX-License-Identifier: Apache-2.0
"""Containers that Slurm jobs run in: the launcher, the reclaimer, the watchdog, and what is here.

The plugin (src/spank) calls `launch` from the prolog of a node and `reclaim` from its epilog, and
puts tasks into what `launch` made. It alone reads the site's settings, so these functions are told
everything. All state is below one directory of /run; docs/design/slurm.md says why that suffices.
"""

from __future__ import annotations

from nearmetal.slurm.backend import Backend, Instance, ThisNode
from nearmetal.slurm.container import Launched, Machines, Wish, launch
from nearmetal.slurm.queue import GRES, gres
from nearmetal.slurm.reclaim import reclaim
from nearmetal.slurm.records import STATE, Container, containers, of_job
from nearmetal.slurm.vfs import Count, JobVf, JobVfs
from nearmetal.slurm.wanted import Wanted
from nearmetal.slurm.watchdog import leaks, reclaim_ended

__all__ = [
    "GRES",
    "STATE",
    "Backend",
    "Container",
    "Count",
    "Instance",
    "JobVf",
    "JobVfs",
    "Launched",
    "Machines",
    "ThisNode",
    "Wanted",
    "Wish",
    "containers",
    "gres",
    "launch",
    "leaks",
    "of_job",
    "reclaim",
    "reclaim_ended",
]
