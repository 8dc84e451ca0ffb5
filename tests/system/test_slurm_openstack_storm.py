# SPDX-License-Identifier: Apache-2.0
"""50 jobs with servers of real services while jobs and processes are killed at random.

Nova's hypervisors are fakes, so no guest boots: each job ends when its guests do not answer, or
when it is killed before that. What is made for it, and that all of it goes, is real.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("openstack")

from tests.system.openstack_cloud import QUIET, RealCloud, objects, running_cloud
from tests.system.slurm_cloud import holders, joined, keepers, last_look, reclaim, settle, watchdog
from tests.system.slurm_site import NODES, SlurmSite, need, slurm_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(2400),
    *QUIET,
]

need()

JOBS, SEED = 50, 20
LATE = "guests do not answer after 10 s"
KILLED = "-0 does not run: its keeper on this node was killed"
BLOWS = {
    "cancel": 3,
    "keeper": 3,
    "holder": 2,
    "launch": 3,
    "reclaim": 3,
    "step": 2,
    "slurmd": 1,
    "api": 1,
}
"""What may happen to a cluster, and how often."""
PATIENCE_S = 10
"""The longest wait for something that may be killed: prologs are short."""
BLAMED = {
    "launch": "Prolog error",
    "holder": "Prolog error",
    "reclaim": "Epilog error",
}
"""For what Slurm drains a node when that was killed."""
ENDS = {"FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"}
APIS = ("keystone", "nova", "neutron", "glance", "placement")
STRIKE_S = 600
"""The longest time for blows. Jobs that are left then run to their ends."""
SETTLE_S = 600
"""The longest time for the end of all after the last blow."""
LIMIT_MIN = "3"
"""Slurm believes that a step runs whose slurmstepd was killed, until the job's time is over."""
TIMER_S = 30
"""Between two runs of the watchdog."""

log = logging.getLogger(__name__)


@dataclass
class Storm:
    """A site beside a cloud, and what was done to it.

    `ends`: the last state of each job. `comments`: the AdminComment of each. `strange`: drained
    nodes that nothing was done to.
    """

    slurm: SlurmSite
    cloud: RealCloud
    chance: random.Random
    before: dict[str, list[str]]
    struck: Counter[str] = field(default_factory=Counter)
    drained: Counter[str] = field(default_factory=Counter)
    ends: dict[str, str] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    pool: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    watchdogs: dict[str, Future[str]] = field(default_factory=dict)
    looked: float = field(default_factory=time.monotonic)

    def processes(self, *words: str) -> list[int]:
        """The processes of the site whose command lines have all of these words."""
        found = []
        for entry in Path(f"/proc/{self.slurm.pid}/root/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit():
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found += [int(entry.name)] if all(w in line for w in words) else []
        return found

    def jobs(self) -> list[str]:
        """The jobs that have not ended; remembers the states of all."""
        words = ("-O", "JobID:12,State:24,admin_comment:200")
        told = self.slurm.ok("ann", "squeue", "-h", "-t", "all", *words).splitlines()
        for job, state, comment in (line.split(None, 2) for line in told):
            self.ends[job], self.comments[job] = state, comment.strip()
        return [job for job, state in self.ends.items() if state not in ENDS | {"COMPLETED"}]

    def victims(self, kind: str) -> list[int]:
        """The processes of a kind, by what the site calls them."""
        words = {
            "launch": ("slurm launch",),
            "reclaim": ("slurm reclaim --job",),
            "step": ("slurmstepd: [",),
        }
        if kind in words:
            # Launchers become both.
            others = {*keepers(self.slurm), *holders(self.slurm)}
            return [pid for pid in self.processes(*words[kind]) if pid not in others]
        return keepers(self.slurm) if kind == "keeper" else holders(self.slurm)

    def strike(self) -> None:
        """Do one thing that may happen to a cluster."""
        # Each kind at least once: launchers and some others live for less than a second.
        kinds = {kind: often for kind, often in BLOWS.items() if not self.struck[kind]} or BLOWS
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        if kind == "cancel":
            hit = bool(found := self.jobs())
            if found:
                self.slurm.run("ann", "scancel", self.chance.choice(found))
        elif kind == "slurmd":
            hit = self.restart(self.chance.choice(NODES))
        elif kind == "api":
            with self.cloud.without(self.chance.choice(APIS)):
                time.sleep(self.chance.uniform(1, 6))
            hit = True
        else:
            end = time.monotonic() + PATIENCE_S
            while not (pids := self.victims(kind)) and time.monotonic() < end:
                time.sleep(0.1)
            hit = bool(pids) and self.kill(self.chance.choice(pids))
        if hit:
            self.struck[kind] += 1
            log.info("%s; %d jobs have ended", kind, len(self.ends) - len(self.jobs()))

    def kill(self, pid: int) -> bool:
        return self.slurm.run("root", "kill", "-9", str(pid)).returncode == 0

    def restart(self, node: str) -> bool:
        """Kill the slurmd of a node, and start it again."""
        pid = int((self.slurm.directory / f"spool/slurmd.{node}.pid").read_text())
        hit = self.kill(pid)
        time.sleep(self.chance.uniform(0, 3))
        for _ in self.cloud.waiting("the start of slurmd"):
            # A child of the old one may still have its port.
            if self.slurm.on_node(node, "slurmd", "-N", node).returncode == 0:
                break
        return hit

    def mend(self) -> None:
        """Do what an operator does with nodes that Slurm drained, if there was a true reason."""
        told = self.slurm.ok("root", "sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T %E")
        blamed = {BLAMED[kind] for kind in self.struck if kind in BLAMED}
        for node, state, reason in (line.split(None, 2) for line in told.splitlines()):
            if not state.startswith("drain"):
                continue
            if reason not in blamed:
                self.strange.append(f"{node} {reason}\n{self.slurm.logs()}")
            self.drained[reason] += 1
            self.slurm.run("root", "scontrol", "update", f"NodeName={node}", "State=RESUME")
        held = self.slurm.ok("root", "squeue", "-h", "-t", "PD", "-o", "%i %r").splitlines()
        for job, why in (line.split(None, 1) for line in held):
            if "held" in why.lower():
                self.slurm.run("root", "scontrol", "release", job)
            elif why == "BeginTime":
                self.slurm.run("root", "scontrol", "update", f"JobId={job}", "StartTime=now")

    def watch(self) -> None:
        """Start the watchdogs that have ended, as the timer does."""
        if time.monotonic() < self.looked + TIMER_S:
            return
        self.looked = time.monotonic()
        for node in NODES:
            if node in self.watchdogs:
                if not self.watchdogs[node].done():
                    continue
                if said := self.watchdogs[node].result():
                    log.info("watchdog of %s: %s", node, said)
            self.watchdogs[node] = self.pool.submit(watchdog, self.slurm, node)

    def settle(self) -> None:
        """Wait for the end of all jobs, then for the last look at what died in doubt."""
        deadline = time.monotonic() + SETTLE_S
        # A slurmd that was killed ran no epilog: only the watchdog ends its containers.
        while (self.jobs() or self.slurm.left()) and time.monotonic() < deadline:
            self.mend()
            self.watch()
            time.sleep(1)
        wait(self.watchdogs.values())
        self.slurm.assert_clean(within_s=0)
        for node in NODES:
            reclaim(self.slurm, node)
        last_look(self.slurm)
        assert objects(self.cloud) == self.before


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    folder = tmp_path_factory.mktemp("storm")
    with running_cloud(folder) as cloud, slurm_site() as slurm, joined(slurm, cloud):
        settle(slurm, "hpc", subnet="10.83.0.0/24", most=8, boot=10)
        yield Storm(slurm, cloud, random.Random(SEED), objects(cloud))


def test_50_jobs_and_everything_that_dies_leave_no_server(storm: Storm) -> None:
    slurm = storm.slurm
    (slurm.home("ann") / "job.sh").write_text("#!/bin/bash\nsrun true\n")
    words = ("--nm-node=openstack", "-n1", "-c2", "--requeue", "-t", LIMIT_MIN, "-o", "out.%j")
    for number in range(JOBS):
        more = ("--nm-vms-per-node=2",) if number % 5 == 0 else ()
        slurm.ok("ann", "sbatch", *words, *more, "job.sh")
    begin = time.monotonic()
    while storm.jobs() and time.monotonic() < begin + STRIKE_S:
        # Some jobs escape.
        time.sleep(storm.chance.uniform(2, 9))
        storm.strike()
        storm.mend()
        storm.watch()
    log.info("the last blow after %.0f s", time.monotonic() - begin)
    storm.settle()
    said = {p.suffix[1:]: p.read_text(errors="replace") for p in slurm.home("ann").glob("out.*")}
    log.info("struck %s, drained %s", dict(storm.struck), dict(storm.drained))
    ends = Counter(storm.ends.values())
    log.info("ends %s after %.0f s", dict(ends), time.monotonic() - begin)
    for job, text in sorted(said.items()):
        log.info("%s %s (%s): %s", job, storm.ends[job], storm.comments[job], text)
    assert storm.strange == []
    assert len(storm.ends) == JOBS
    assert set(ends) <= ENDS
    # A job that failed says why, unless its slurmstepd was killed.
    failed = [job for job, state in storm.ends.items() if state == "FAILED"]
    silent = [job for job in failed if "error: " not in said.get(job, "")]
    assert len(silent) <= storm.struck["step"], silent
    assert [text for text in said.values() if re.search("Traceback|[a-z]Error:", text)] == []
    assert sum(LATE in text for text in said.values()) >= JOBS // 10, said
    assert any(KILLED in text for text in said.values()), said
    assert any(LATE in text for text in storm.comments.values()), storm.comments
    assert storm.struck.keys() >= BLOWS.keys(), storm.struck
