# SPDX-License-Identifier: Apache-2.0
"""Many jobs at once in containers, while jobs, slurmstepds and containers are killed at random."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable

import pytest

from tests.system.slurm_site import NODES, SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(1800),
]

need()

JOBS = 190
SCRIPT = """\
#!/bin/bash
srun bash -c 'touch /run/nearmetal/job/mine /tmp/mine && sleep 0.$((RANDOM % 9))'
"""


def steps(slurm: SlurmSite) -> list[str]:
    """The slurmstepds of jobs, by pid; those that run prologs and epilogs are not among them."""
    listing = slurm.run("root", "ps", "-eo", "pid=,args=").stdout
    return re.findall(r"^ *(\d+) slurmstepd: \[", listing, re.MULTILINE)


def holders(slurm: SlurmSite) -> list[str]:
    """Process 1 of every container, as the site's own pids."""
    found = []
    for node in NODES:
        with contextlib.suppress(FileNotFoundError):
            for directory in slurm.state(node).glob("job-*"):
                with contextlib.suppress(OSError, IndexError):
                    found.append((directory / "holder").read_text().split()[0])
    return found


def jobs(slurm: SlurmSite, states: str) -> list[str]:
    """The jobs of ann in some states."""
    return slurm.ok("ann", "squeue", "-h", "-r", "-t", states, "-o", "%i").split()


def cancel(slurm: SlurmSite, job: str) -> bool:
    return slurm.run("ann", "scancel", job).returncode == 0


def kill(slurm: SlurmSite, pid: str) -> bool:
    return slurm.run("root", "kill", "-9", pid).returncode == 0


def running(slurm: SlurmSite) -> list[str]:
    return jobs(slurm, "RUNNING,CONFIGURING")


def pending(slurm: SlurmSite) -> list[str]:
    return jobs(slurm, "PENDING")


BLOWS: tuple[tuple[Callable[[SlurmSite], list[str]], Callable[[SlurmSite, str], bool]], ...] = (
    (running, cancel),
    (pending, cancel),
    (steps, kill),
    (holders, kill),
)


def test_nothing_is_left_after_a_storm() -> None:
    chance = random.Random(7)
    hits = [0] * len(BLOWS)
    with slurm_site() as slurm:
        path = slurm.home("ann") / "job.sh"
        path.write_text(SCRIPT)
        slurm.ok("ann", "sbatch", "-o", "/dev/null", "--nm-node=container",
                 f"--array=0-{JOBS - 1}", "job.sh")  # fmt: skip
        while pending(slurm):
            number = chance.randrange(len(BLOWS))
            choose, strike = BLOWS[number]
            if found := choose(slurm):
                hits[number] += strike(slurm, chance.choice(found))
            time.sleep(chance.uniform(0, 0.5))
        # Slurm believes that a step runs whose slurmstepd was killed, until somebody cancels it.
        slurm.ok("ann", "scancel", "-u", "ann")
        slurm.assert_clean(within_s=300)
        assert min(hits) > 0, hits
