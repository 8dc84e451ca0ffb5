# SPDX-License-Identifier: Apache-2.0
"""The contract of a backend: it observes, makes and removes resources, and reaches into nodes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from nearmetal.cluster import backends
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.resource import Facts, Key, Observed, Resource
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, Interrupted
from nearmetal.core.extras import ExtraError
from nearmetal.core.process import Command, Runner

JOB_SUFFIXES = ("", ".stats")
"""The directories of a job: its name with each of these."""

STAGED = "files"
"""Directory below `job_root` for the files that are carried to nodes which do not see ours."""

SWEEP = """
killed=0 end=$(($(date +%s) + 15))
while [ $(date +%s) -lt $end ]; do
  found=$(grep -lzFxs -e "$marker" /proc/[0-9]*/environ | cut -d/ -f3)
  [ -n "$found" ] || break
  kill -KILL $found 2>/dev/null
  killed=$((killed + $(echo "$found" | wc -l)))
  sleep 0.1
done
"""
"""Shell script: kills every process that carries `$marker`, and counts them in `$killed`.

It runs one grep for all processes, because a program for each takes a minute under TCG.
"""


def swept(text: str) -> int:
    """Return the number that SWEEP printed last; 0 if a node says something else."""
    last = text.split()[-1:]
    return int(last[0]) if last and re.fullmatch("[0-9]{1,9}", last[0]) else 0


@dataclass(frozen=True)
class NodeStatus:
    """One node as it is now. `pid` as the machine sees process 1 of the node; 0: none."""

    name: str
    host: str
    hostname: str
    address: str
    slots: int
    cpus: tuple[int, ...]
    shm: str
    pid: int
    uptime_s: float
    healthy: bool
    health: str
    own_cpus: int = 0
    """Processors that no other node has, where the cores of the host are not known."""


class CommandEntry(TypedDict, total=False):
    """How a command starts: in `workdir`, if that exists there, and with these variables."""

    env: Mapping[str, str] | None
    workdir: Path | None
    patience_s: float
    """Time that a machine may stand still under it, where commands go by ssh."""


class NodeEntry(CommandEntry, total=False):
    """How a command starts in a node.

    `root`: as root of the node instead of the user of jobs, where nodes are machines.
    """

    root: bool


class Backend(Protocol):
    """One cluster on one kind of infrastructure. Errors are BackendError with the reason."""

    @property
    def shares_files(self) -> bool:
        """Whether nodes see this machine's files; otherwise programs are carried to them."""

    @property
    def interface(self) -> str:
        """The launcher's network interface on the cluster's network; "": by the host's name."""
        return ""

    @property
    def apart(self) -> str:
        """Why nodes of one host share no memory; "" where they may."""
        return ""

    def why_apart(self, node: str, peer: str) -> str:
        """Return why these two nodes of one host use the network; "" where no reason is known."""
        del node, peer
        return self.apart

    def prepare(self) -> None:
        """Make what the plan of an `up` needs and what outlives clusters: images."""

    def finish(self) -> None:
        """Wait until everything is usable. The last step of an `up` that changed anything."""

    def leave(self, error: Interrupted) -> None:
        """End work that was interrupted: begin nothing else, and say in `error` what continues."""
        del error

    def facts(self) -> Facts:
        """Return the facts of the infrastructure that planning needs."""

    def observe(self) -> Observed:
        """Return the resources that exist; reads only."""

    def details(self) -> Observed:
        """Return what `observe` returns, with the values that no plan compares."""
        return self.observe()

    def check(self, plan: Plan) -> None:
        """Look up everything that a plan needs, before its first change; changes nothing.

        Raises one BackendError for all that is missing.
        """
        del plan

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        """Make one resource, after those that it needs. `finish` may have to wait for it."""

    def change(self, item: Resource, spec: ClusterSpec) -> None:
        """Change a resource in place, where the plan allows it; recreate it by default."""
        self.delete(item.key)
        self.create(item, spec)

    def delete(self, key: Key) -> None:
        """Remove one resource in any state; no error if it does not exist."""

    def status(self) -> list[NodeStatus]:
        """Return the state of every node that exists or should exist."""

    def incarnations(self) -> Mapping[str, str]:
        """Return the identity of each node's machine; a recreated machine has another one."""

    def on_node(self, node: str, argv: Sequence[str], **entry: Unpack[NodeEntry]) -> Command:
        """Return the command that runs `argv` in a node, on its cores."""

    def on_launcher(self, argv: Sequence[str], **entry: Unpack[CommandEntry]) -> Command:
        """Return the command that runs `argv` where MPI launchers run."""

    def remote_shell(self) -> str:
        """Return the path of the remote-shell agent, as launcher and nodes see it."""

    def job_root(self) -> Path:
        """Return the directory of all jobs, as the nodes see it."""

    def staged(self, node: str) -> Path | None:
        """Return our directory that a node sees as `job_root` / STAGED; None: the node has its own."""

    def meeting_directory(self, host: str) -> Path:
        """Return the rundir of a host (/run/nearmetal in its nodes), as we reach it."""
        raise BackendError(
            f"host {host}: virtual machines share no directory",
            "this verb works on local clusters only",
        )

    def supervisor(self, job: str, nodes: Sequence[str], deadline_s: float | None) -> Command:
        """Return the command that makes a job's places in these nodes, and ends the job.

        Only for backends that share files. It prints a JSON line: {"pid": N} when the places exist,
        or {"error": REASON}. Its input keeps the job: at its end, after the deadline, or when a node
        ends, it kills all processes of the job; at the end of its input it removes the directories
        of the job. A last line `done` announces the end of its input.
        """
        del deadline_s
        raise BackendError(f"job {job} has no place in {', '.join(nodes)}")

    def end_marked(self, marker: str) -> int:
        """Kill every process in the cluster that has `NAME=value` in its environment.

        It also forgets the places of a job whose name is that value.
        """


def agent_text(body: Path) -> str:
    """Return the remote-shell agent of a backend: the common functions, then its own part."""
    common = Path(__file__).with_name("agent.sh").read_text(encoding="utf-8")
    return common + body.read_text(encoding="utf-8")


def open_backend(spec: ClusterSpec, store: Store, runner: Runner) -> Backend:
    """Return the backend of a spec's cluster; nothing is touched yet.

    The module `driver` of each backend has a function of the same form. An SDK that it needs is an
    extra of the package, with the name of the backend.
    """
    try:
        driver = importlib.import_module(f"{backends.__name__}.{spec.backend}.driver")
    except ImportError as error:
        raise ExtraError(spec.backend, f"backend {spec.backend}", error) from error
    found: Backend = driver.open_backend(spec, store, runner)
    return found
