# SPDX-License-Identifier: Apache-2.0
"""The names and the directories of jobs: shared with this machine, or in every node.

A login to an emulated machine takes about a second, a command over an open one a tenth, so a job
has two scripts per node: one before it, one after. Both run as root of the node, which alone makes
and removes the directories of jobs. A third one waits beside the job, and ends it if we end first.

If these guards were killed as well, the next run finds the job by its name and removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearmetal.cluster.backend import JOB_SUFFIXES, STAGED, Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import BackendError, LaunchError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.image.seed import GUEST_USER
from nearmetal.job.copies import FILES, NEW, Staging, packed, stage, unpack
from nearmetal.job.scripts import CARRY, END, GUARD, LINKS, MAKE
from nearmetal.job.stats import Failure, cause, read_failures, read_stats

MARKER = "NEARMETAL_JOB"
"""The variable that every process of a job carries."""

_NAME = re.compile(r"[a-z]{1,16}-([0-9]{1,20})-([0-9]{1,20})-[0-9a-f]{6}")
"""Nodes report such names, and directories with such names are removed: no other characters."""

_STEP_S = 120.0
_MAX_STALE = 64
"""How many jobs without an owner one job ends: a node may invent their names."""

_CARRY_S = 1800.0
"""An MPI is some ten megabytes, and a guest under TCG decrypts less than one in a second."""

_PATH = {"PATH": "/usr/bin:/bin"}


def _started(pid: int) -> int | None:
    """Return when a process of this machine started, in ticks since boot; None: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def new_name(kind: str) -> str:
    """Return a fresh name of a job, with its owner: kind, our pid, our start, chance."""
    return f"{kind}-{os.getpid()}-{_started(os.getpid()) or 0}-{secrets.token_hex(3)}"


def is_stale(name: str) -> bool:
    """Whether this names a job whose owner has ended; other names are never stale."""
    found = _NAME.fullmatch(name.partition(".")[0])
    return found is not None and _started(int(found[1])) != int(found[2])


def _stale(names: set[str]) -> list[str]:
    return sorted({name.partition(".")[0] for name in names if is_stale(name)})


def surely(clear: Callable[[], None]) -> None:
    """Clean up, and start again if a signal interrupts it: only the first one raises."""
    try:
        clear()
    except BaseException:
        clear()
        raise


@dataclass(frozen=True)
class Wanted:
    """What a job needs beside its directories."""

    providers: tuple[Path, ...] = ()
    """Each gets a link in the job's directory of providers, in nodes that do not see our files."""
    files: Sequence[Staging] = ()
    """Those that nodes without our files need."""
    seen: tuple[Path, ...] = ()
    """Files that such nodes must have themselves."""


@dataclass(frozen=True)
class SharedPlaces:
    """The rundirs and statistics of a job on hosts whose files this machine sees."""

    backend: Backend
    bases: tuple[Path, ...]
    nodes: tuple[str, ...]
    job: str

    tmp = Path("/run/job")
    """The TMPDIR of the ranks: the same files in all places of the job."""

    @property
    def all(self) -> list[Path]:
        """Every directory of the job."""
        return [base / (self.job + suffix) for base in self.bases for suffix in JOB_SUFFIXES]

    def guards(self, deadline_s: float | None, _patience_s: float) -> list[Command]:
        """Return the commands that end the job when their input ends, or after the deadline."""
        return [self.backend.supervisor(self.job, self.nodes, deadline_s)]

    def make(self, _wanted: Wanted) -> None:
        """Make them here; the nodes see our files. Raises OSError.

        They have no link to a provider: every node of the host can write to them.
        """
        for path in self.all:
            path.mkdir(mode=0o700)

    def stats(self, *, required: bool = True) -> list[dict[str, Any]]:
        """Return the statistics of every endpoint; the launcher has ended."""
        del required
        return [e for base in self.bases for e in read_stats(base / f"{self.job}.stats")]

    def first_failure(self) -> Failure | None:
        """Return the failure that came first, if one was recorded."""
        places = (base / f"{self.job}.stats" for base in self.bases)
        return cause([failure for place in places for failure in read_failures(place)])

    def end(self) -> None:
        """End the rest of the job and remove them; the cluster may no longer exist."""
        try:
            self.backend.end_marked(f"{MARKER}={self.job}")
        except BackendError:
            return
        finally:
            for path in self.all:
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    path.unlink()  # a node may have made a file with the name of a job


@dataclass(frozen=True)
class _NodeAnswer:
    """The answer of a node: names beside the job's, and files that it does not have."""

    there: set[str]
    unseen: tuple[str, ...]
    lacks: frozenset[str]


def _answer(text: str) -> _NodeAnswer:
    """Read a node's lines; unknown ones are ignored. Pure."""
    found: dict[str, list[str]] = {"there": [], "unseen": [], "lacks": []}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word in found:
            found[word].append(rest)
    return _NodeAnswer(set(found["there"]), tuple(found["unseen"]), frozenset(found["lacks"]))


class NodePlaces:
    """The same directories in every node, which are read by copying."""

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[str],
        job: str,
        runner: Runner,
        *,
        everyone: Sequence[str] = (),
        user: str = GUEST_USER,
        tmp: Path = Path("/tmp"),  # noqa: S108 - of the nodes; only root makes the directory
        shm: Path = Path("/dev/shm"),  # noqa: S108 - of the nodes
    ) -> None:
        """Make nothing yet. `everyone`: all nodes of the cluster; any may hold jobs to end."""
        self._backend = backend
        self._nodes = tuple(nodes)
        self._everyone = tuple(everyone or nodes)
        self._runner = runner
        self._user = user
        self._tmp = tmp
        self._shm = shm
        self._root = backend.job_root()
        self._copies: Path | None = None
        self._ended = False
        self.job = job

    @property
    def tmp(self) -> Path:
        """The TMPDIR of the ranks, in each node for itself."""
        return self._tmp / self.job

    def guards(self, deadline_s: float | None, patience_s: float) -> list[Command]:
        """As `SharedPlaces.guards`, one per node, which may stand still for `patience_s`."""
        words = self._end_words([self.job], "")
        start = ["sh", "-c", GUARD, "sh", "" if deadline_s is None else f"{deadline_s:.0f}"]
        return [
            self._backend.on_node(
                node, [*start, *words[node]], env=_PATH, root=True, patience_s=patience_s
            )
            for node in self._nodes
        ]

    def _run(
        self, nodes: Sequence[str], script: str, words: dict[str, list[str]], stdin: bytes = b""
    ) -> dict[str, Completed]:
        """Run a script in these nodes side by side, each with its own words."""
        start = ["sh", "-c", script, "sh"]
        on = self._backend.on_node
        commands = [on(node, [*start, *words[node]], env=_PATH, root=True) for node in nodes]
        given = [replace(command, stdin=stdin) for command in commands]
        ends = self._runner.run_all(given, timeout_s=_CARRY_S if stdin else _STEP_S)
        return dict(zip(nodes, ends, strict=True))

    def make(self, wanted: Wanted) -> None:
        """Make them, and remove jobs without an owner. Raises LaunchError."""
        asked = [f"see={path}" for path in wanted.seen]
        asked += [f"have={one.name}" for one in wanted.files]
        asked += [f"link={path}" for path in wanted.providers]
        done = self._try(self._everyone, asked)
        names = {name for end in done.values() for name in _answer(end.text).there}
        gone = _stale(names)[:_MAX_STALE]
        if gone:
            self._clear(gone)
        failed = [node for node in self._nodes if _failed(done[node])]
        if gone and failed:
            # The cause may be a lack of space that the removed jobs took.
            done |= self._try(failed, asked)
        _check(done, self._nodes, "cannot make the job's directories")
        answers = {node: _answer(done[node].text) for node in self._nodes}
        for node, answer in answers.items():
            if answer.unseen:
                raise LaunchError(
                    f"node {node} has no {answer.unseen[0]}",
                    "give the path of a file on this machine; it is copied to the nodes",
                )
        self._bring(wanted, answers)

    def _try(self, nodes: Sequence[str], asked: list[str]) -> dict[str, Completed]:
        words = {
            node: [str(self._root), self._user, str(self._tmp), job, *asked]
            for node in nodes
            for job in [self.job if node in self._nodes else ""]
        }
        return self._run(nodes, MAKE, words)

    def _bring(self, wanted: Wanted, answers: dict[str, _NodeAnswer]) -> None:
        """Stage the missing files; an MPI and UCX stay for later jobs."""
        there = self._root / STAGED
        for one in wanted.files:
            lacking = [node for node in self._nodes if one.name in answers[node].lacks]
            shared = {node: self._backend.staged(node) for node in lacking}
            for place in {place for place in shared.values() if place is not None}:
                stage(one, place, self.job)
            rest = [node for node in lacking if shared[node] is None]
            if rest:
                names = [str(there / name) for name in (one.name, self.job + NEW)]
                done = self._run(
                    rest, CARRY, dict.fromkeys(rest, names), packed(one.path, one.only)
                )
                _check(done, rest, f"cannot copy {one.path.name} there")

    def _end(self) -> dict[str, Completed]:
        """End and remove everything; return the archives of statistics."""
        done = self._clear([self.job], f"{self.job}.stats")
        self._ended = True
        return done

    def _clear(self, jobs: Sequence[str], stats: str = "") -> dict[str, Completed]:
        """End and remove these jobs everywhere, with one command per node."""
        try:
            return self._run(self._everyone, END, self._end_words(jobs, stats))
        finally:
            shared = {self._backend.staged(node) for node in self._everyone}
            for place in {place for place in shared if place is not None}:
                for name in _copies(jobs):
                    shutil.rmtree(place / name, ignore_errors=True)

    def _end_words(self, jobs: Sequence[str], stats: str) -> dict[str, list[str]]:
        """Return the words of END for every node."""
        markers = "\n".join(f"{MARKER}={job}" for job in jobs)
        made = [job + suffix for job in jobs for suffix in (*JOB_SUFFIXES, LINKS)]
        made += [str(self._tmp / job) for job in jobs]
        own = [f"{STAGED}/{name}" for name in _copies(jobs)]
        start = [str(self._root), markers, stats, self._user, str(self._shm), *made]
        return {
            node: [*start, *(own if self._backend.staged(node) is None else ())]
            for node in self._everyone
        }

    def stats(self, *, required: bool = True) -> list[dict[str, Any]]:
        """End the job, and read copies: bytes from a node are hostile until checked.

        `required`: raise LaunchError if a node does not answer.
        """
        top = self._copied(required=required)
        return [e for node in self._nodes for e in read_stats(top / node)]

    def first_failure(self) -> Failure | None:
        """As `stats`; the nodes' clocks decide, which their host synchronizes."""
        top = self._copied()
        return cause([f for node in self._nodes for f in read_failures(top / node)])

    def _copied(self, *, required: bool = True) -> Path:
        """Return a directory here with copies of the nodes' statistics directories."""
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="nearmetal-"))
            done = self._end()
            if required:
                _check(done, self._nodes, "cannot read its counters")
            for node in self._nodes:
                if not _failed(done[node]):
                    unpack(done[node].stdout, self._copies / node)
        return self._copies

    def end(self) -> None:
        """End the job if it has not ended; drop the copies. Nodes may no longer exist."""
        if not self._ended:
            self._end()
        if self._copies is not None:
            shutil.rmtree(self._copies, ignore_errors=True)
            self._copies = None


Places = SharedPlaces | NodePlaces
"""The directories of one job: make, read the statistics, end."""


def _copies(jobs: Sequence[str]) -> list[str]:
    """Return the names of the copies that only these jobs use."""
    return [job + suffix for job in jobs for suffix in (FILES, NEW)]


def _failed(end: Completed) -> bool:
    return end.code != 0 or end.timed_out


def _check(done: dict[str, Completed], nodes: Sequence[str], what: str) -> None:
    """Raise LaunchError for the first of these nodes that failed; others may be dead."""
    for node in nodes:
        if _failed(done[node]):
            raise LaunchError(f"node {node}: {what}: {done[node].error_tail or 'no answer'}")


def places_for(
    backend: Backend, spec: ClusterSpec, nodes: Sequence[str], job: str, runner: Runner
) -> Places:
    """Return the directories of a job on these nodes; nothing is made yet."""
    if not backend.shares_files:
        everyone = [node.name for _, node in spec.nodes]
        return NodePlaces(backend, nodes, job, runner, everyone=everyone)
    used = sorted({host.name for host, node in spec.nodes if node.name in nodes})
    bases = tuple(backend.meeting_directory(host) for host in used)
    return SharedPlaces(backend, bases, tuple(nodes), job)


def end_stale(backend: Backend, spec: ClusterSpec, runner: Runner) -> None:
    """End and remove every job whose owner on this machine has ended.

    In virtual machines a job does that when it makes its directories, which saves a login.
    """
    if not backend.shares_files:
        return
    nodes = [node.name for _, node in spec.nodes]
    names: set[str] = set()
    for host in spec.hosts:
        names |= {path.name for path in backend.meeting_directory(host.name).iterdir()}
    for job in _stale(names)[:_MAX_STALE]:
        places_for(backend, spec, nodes, job, runner).end()
