# SPDX-License-Identifier: Apache-2.0
"""200 jobs in containers and machines while jobs, processes of Slurm and of ours are killed at random."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest

from tests.system.slurm_site import NODES, SlurmSite, need, slurm_site
from tests.system.slurm_vfs import ModelNode, model_nodes

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(2400),
]

need()

SCRIPT = """\
#!/bin/bash
srun bash -c 'touch /run/nearmetal/job/mine /tmp/mine && sleep 0.$((RANDOM % 9)) && echo through'
"""
ARRAYS = (
    ("--nm-node=container", "--array=0-94"),
    ("--nm-node=container", "--array=0-94", "--nm-vf=1"),
    # As many at once as a small machine can emulate.
    ("--nm-node=vm", "--array=0-6%2", "-J", "machines"),
    ("--nm-node=vm", "--array=0-2%1", "-N2", "-J", "machines"),
)
VFS = 4


@dataclass(frozen=True)
class Process:
    """A process of the site, by the site's own number. `depth`: 1 outside of containers."""

    pid: int
    name: str
    words: tuple[str, ...]
    depth: int
    inner: int

    def node(self) -> str:
        """The node it works for, by what it was started with; "": it does not tell."""
        return next((n for n in NODES if any(f"-{n}-vm" in word for word in self.words)), "")


@dataclass
class Storm:
    """A site, and what was done to it. `blamed`: for each node what may be said of it."""

    slurm: SlurmSite
    vfs: dict[str, ModelNode]
    blamed: set[tuple[str, str]] = field(default_factory=set)
    drained: Counter[str] = field(default_factory=Counter)

    def processes(self) -> Iterator[Process]:
        for entry in self._proc().iterdir():
            with contextlib.suppress(OSError, KeyError, ValueError):
                text = (entry / "status").read_text()
                status = dict(line.split(":", 1) for line in text.splitlines())
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                spaces = status["NSpid"].split()
                yield Process(
                    int(entry.name),
                    status["Name"].strip(),
                    tuple(words),
                    len(spaces),
                    int(spaces[-1]),
                )

    def node_of(self, process: Process) -> str:
        with contextlib.suppress(OSError):
            told = (self._proc() / str(process.pid) / "environ").read_bytes().decode().split("\0")
            for word in told:
                if word.startswith("SLURMD_NODENAME="):
                    return word.partition("=")[2]
        return process.node()

    def kill(self, process: Process) -> bool:
        return self.slurm.run("root", "kill", "-9", str(process.pid)).returncode == 0

    def is_alive(self, holder: str) -> bool:
        """Whether that process 1 of a container is there, by its record."""
        pid, ticks = holder.split()
        with contextlib.suppress(OSError):
            fields = (self._proc() / pid / "stat").read_text().rpartition(")")[2].split()
            return fields[0] not in "ZX" and fields[19] == ticks
        return False

    def assert_no_vf_is_shared(self) -> None:
        for node in NODES:
            found = [c for c in self._vfs_on_record(node) if c[1]]
            for (one, its), (other, others) in combinations(found, 2):
                both = its & others
                assert not (both and self.is_alive(one) and self.is_alive(other)), (node, both)

    def mend(self) -> None:
        """Do what an operator does with a node that Slurm has drained, if it was for a true reason."""
        slurm = self.slurm
        for line in slurm.ok(
            "root", "sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T %E"
        ).splitlines():
            node, state, reason = line.split(None, 2)
            if not state.startswith("drain"):
                assert not state.startswith(("down", "fail", "error", "unknown")), line
                continue
            assert (node, reason) in self.blamed, f"{line}\n{slurm.logs()}"
            self.drained[reason] += 1
            done = slurm.on_node(
                node,
                "env",
                f"SLURMD_NODENAME={node}",
                slurm.launcher,
                "slurm",
                "reclaim",
                "--ended",
                "--drain",
            )
            assert done.returncode == 0, done.stderr
            slurm.ok("root", "scontrol", "update", f"NodeName={node}", "State=RESUME")
        held = slurm.ok("root", "squeue", "-h", "-r", "-t", "PD", "-o", "%i %r").splitlines()
        for job, why in [line.split(None, 1) for line in held]:
            if "held" in why.lower():
                slurm.run("root", "scontrol", "release", job)
            elif why == "BeginTime":
                slurm.run("root", "scontrol", "update", f"JobId={job}", "StartTime=now")

    def assert_nothing_failed_by_itself(self) -> None:
        """Every launch and reclaim that failed was killed, or what it was making was."""
        for node in NODES:
            log = (self.slurm.directory / f"log/slurmd.{node}.log").read_text(errors="replace")
            codes = re.findall(r"slurm (?:launch|reclaim) ended with (\d+)", log)
            beneath = re.findall(r"process 1 ended early|machine \S+ does not start", log)
            assert len([code for code in codes if code != "137"]) <= len(beneath), log

    def settle(self) -> None:
        """Assert that nothing of any job is left, and nothing of it anywhere; epilogs get time."""
        deadline = time.monotonic() + 300
        while self.slurm.left() and time.monotonic() < deadline:
            self.mend()
            time.sleep(0.5)
        self.slurm.assert_clean(within_s=0)
        assert [node for node, model in self.vfs.items() if not model.is_as_found()] == []

    def _proc(self) -> Path:
        return Path(f"/proc/{self.slurm.pid}/root/proc")

    def _vfs_on_record(self, node: str) -> Iterator[tuple[str, set[str]]]:
        with contextlib.suppress(FileNotFoundError):
            for directory in self.slurm.state(node).glob("job-*"):
                with contextlib.suppress(OSError):
                    told = (directory / "environment").read_text().splitlines()
                    vfs = [
                        line.partition("=")[2] for line in told if line.startswith("NM_JOB_VFS=")
                    ]
                    yield (directory / "holder").read_text(), set(",".join(vfs).split(",")) - {""}


def jobs(storm: Storm, *options: str) -> list[str]:
    return storm.slurm.ok("ann", "squeue", "-h", "-r", "-o", "%i", *options).split()


def cancel_one_of(*options: str) -> Callable[[Storm, random.Random], bool]:
    def strike(storm: Storm, chance: random.Random) -> bool:
        found = jobs(storm, *options)
        return (
            bool(found) and storm.slurm.run("ann", "scancel", chance.choice(found)).returncode == 0
        )

    return strike


def kill_one_of(
    chosen: Callable[[Process], bool], *reasons: str
) -> Callable[[Storm, random.Random], bool]:
    """`reasons`: for which Slurm may drain the node of one that was killed."""

    def strike(storm: Storm, chance: random.Random) -> bool:
        found = [process for process in storm.processes() if chosen(process)]
        if not found:
            return False
        process = chance.choice(found)
        node = storm.node_of(process)
        storm.blamed |= {(node, reason) for reason in reasons}
        return storm.kill(process)

    return strike


def runs(process: Process, verb: str) -> bool:
    return process.depth == 1 and f" slurm {verb} " in " ".join(process.words)


BLOWS = {
    "cancel a job that runs": (3, cancel_one_of("-t", "RUNNING,CONFIGURING", "-n", "job.sh")),
    "cancel a job in machines": (1, cancel_one_of("-t", "RUNNING,CONFIGURING", "-n", "machines")),
    "cancel a job that waits": (3, cancel_one_of("-t", "PENDING", "-n", "job.sh")),
    "kill slurmstepd": (
        3,
        kill_one_of(lambda p: p.name == "slurmstepd" and p.words[0].startswith("slurmstepd: [")),
    ),
    "kill who stands for a task": (2, kill_one_of(lambda p: p.name == "nm-outside")),
    # Which may be younger than the end of its prolog.
    "kill process 1": (3, kill_one_of(lambda p: (p.depth, p.inner) == (2, 1), "Prolog error")),
    "kill a launcher": (6, kill_one_of(lambda p: runs(p, "launch"), "Prolog error")),
    "kill a reclaimer": (3, kill_one_of(lambda p: runs(p, "reclaim"), "Epilog error")),
    "kill a machine": (1, kill_one_of(lambda p: p.name.startswith("qemu-system"), "Prolog error")),
}


def test_nothing_is_left_after_a_storm() -> None:
    chance = random.Random(7)
    hits = Counter[str]()
    weights = [weight for weight, _ in BLOWS.values()]
    with (
        slurm_site(vfs=True, machines=True) as slurm,
        model_nodes(slurm.directory / "vfs", NODES, VFS) as vfs,
    ):
        storm = Storm(slurm, vfs)
        path = slurm.home("ann") / "job.sh"
        path.write_text(SCRIPT)
        for number, options in enumerate(ARRAYS):
            slurm.ok("ann", "sbatch", "-o", f"out.{number}.%a", *options, "job.sh", timeout=600)
        while jobs(storm, "-t", "PENDING"):
            (name,) = chance.choices(list(BLOWS), weights)
            hits[name] += BLOWS[name][1](storm, chance)
            storm.assert_no_vf_is_shared()
            storm.mend()
            # Machines need longer between two blows to get anywhere.
            time.sleep(chance.uniform(0, 0.3 if jobs(storm, "-n", "job.sh") else 6))
        # Slurm believes that a step runs whose slurmstepd was killed, until somebody cancels it.
        slurm.ok("ann", "scancel", "-u", "ann")
        storm.settle()
        storm.assert_nothing_failed_by_itself()
        assert all(hits[name] for name in BLOWS), hits
        assert storm.drained["Prolog error"] > 0
        for number in (0, 1):
            assert any(
                "through" in p.read_text() for p in slurm.home("ann").glob(f"out.{number}.*")
            )
        # And the nodes are in service.
        for options in (("-N3", "--nm-node=container", "--nm-vf=1"), ("-N2", "--nm-node=vm")):
            slurm.ok("ann", "srun", *options, "ls", "-d", "/run/nearmetal/job", timeout=600)
        storm.settle()
