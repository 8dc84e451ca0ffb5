# SPDX-License-Identifier: Apache-2.0
"""A job's directories, where its ranks find them: shared with this machine, or in every node."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nearmetal.errors import LaunchError
from nearmetal.launch.stale import MARKER, is_stale
from nearmetal.launch.stats import cause, read_exit_codes, read_stats

if TYPE_CHECKING:
    from nearmetal.backend import Backend
    from nearmetal.run import Command, Runner
    from nearmetal.spec import ClusterSpec

Files = Sequence[tuple[Path, str]]
"""Files or directories here, and the directory each gets below the jobs' in a node."""

FILES = ".files"
SUFFIXES = ("", ".stats", ".providers")
_STEP_S = 120.0
_CARRY_S = 1800.0
"""An MPI is some ten megabytes, and a guest under TCG decrypts less than one in a second."""

_MAX_STATS = 64 << 20
_PATH = {"PATH": "/usr/bin:/bin"}


class Places(Protocol):
    """The directories of one job: segments, statistics, links to providers."""

    @property
    def job(self) -> str:
        """The job's name."""

    def make(self, providers: Sequence[Path] = (), files: Files = ()) -> None:
        """Make them, with a link to each provider; carry files to nodes that do not see ours."""

    def stats(self) -> list[dict[str, Any]]:
        """Return what every endpoint left."""

    def first_failure(self) -> int | None:
        """Return the exit code of the rank that failed first, where one was recorded."""

    def remove(self) -> None:
        """Remove them; no error when they are not there."""


@dataclass(frozen=True)
class SharedPlaces:
    """Directories of hosts that this machine sees as its own."""

    bases: tuple[Path, ...]
    job: str

    @property
    def all(self) -> list[Path]:
        """Every directory of the job."""
        return [base / (self.job + suffix) for base in self.bases for suffix in SUFFIXES]

    def make(self, providers: Sequence[Path] = (), files: Files = ()) -> None:
        """Make them here; the nodes see our files."""
        del files
        for path in self.all:
            path.mkdir(mode=0o700)
            if path.suffix == ".providers":
                for library in providers:
                    (path / library.name).symlink_to(library)

    def stats(self) -> list[dict[str, Any]]:
        """Read them here."""
        return [e for base in self.bases for e in read_stats(base / f"{self.job}.stats")]

    def first_failure(self) -> int | None:
        """Read it here."""
        places = (base / f"{self.job}.stats" for base in self.bases)
        return cause([failure for place in places for failure in read_exit_codes(place)])

    def remove(self) -> None:
        """Remove them here."""
        for path in self.all:
            shutil.rmtree(path, ignore_errors=True)


class NodePlaces:
    """Directories within machines that share no file with this one; read by copying."""

    def __init__(self, backend: Backend, nodes: Sequence[str], job: str, runner: Runner) -> None:
        """Nothing is made yet."""
        self._backend = backend
        self._nodes = tuple(nodes)
        self._runner = runner
        self._root = backend.job_root()
        self._copies: Path | None = None
        self.job = job

    def _commands(
        self, nodes: Sequence[str], argv: Sequence[str], stdin: bytes = b""
    ) -> list[Command]:
        made = (self._backend.on_node(node, argv, env=_PATH) for node in nodes)
        return [replace(command, stdin=stdin) for command in made]

    def _run(
        self, nodes: Sequence[str], what: str, script: str, *words: str, stdin: bytes = b""
    ) -> list[bytes]:
        """Run a script in these nodes side by side, for each takes a while; returns what they said."""
        commands = self._commands(nodes, ["sh", "-c", script, "sh", *words], stdin)
        ends = self._runner.run_all(commands, timeout_s=_CARRY_S if stdin else _STEP_S)
        for node, done in zip(nodes, ends, strict=True):
            if done.code != 0 or done.timed_out:
                raise LaunchError(f"node {node}: {what}: {done.error_tail or 'no answer'}")
        return [done.stdout for done in ends]

    def make(self, providers: Sequence[Path] = (), files: Files = ()) -> None:
        """Make them in every node."""
        paths = [str(self._root / (self.job + suffix)) for suffix in SUFFIXES]
        links = [str(path) for path in providers]
        script = (
            'umask 077; mkdir -- "$1" "$2" "$3" && cd "$3" && shift 3 && '
            'for file; do ln -s -- "$file" . || exit; done'
        )
        self._run(self._nodes, "cannot make the job's directories", script, *paths, *links)
        self._carry(files)

    def _carry(self, files: Files) -> None:
        """Copy what is not in a node yet; an MPI stays there for the jobs that follow."""
        script = (
            'umask 022; [ -e "$1" ] && exit; mkdir -p -- "$1.new" && tar -xzf - -C "$1.new" && '
            'mv -- "$1.new" "$1"'
        )
        for path, name in files:
            where = self._root / name
            looks = self._commands(self._nodes, ["test", "-e", str(where)])
            ends = self._runner.run_all(looks, timeout_s=_STEP_S)
            lacking = [n for n, done in zip(self._nodes, ends, strict=True) if done.code != 0]
            if lacking:
                what = f"cannot copy {path.name} there"
                self._run(lacking, what, script, str(where), stdin=packed(path))

    def _copied(self) -> Path:
        """Return a directory here with what the nodes' statistics directories hold."""
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="nearmetal-"))
            name = f"{self.job}.stats"
            script = 'cd "$1" 2>/dev/null && tar -cf - -- "$2"'
            what, root = "cannot read its counters", str(self._root)
            taken = self._run(self._nodes, what, script, root, name)
            for node, archive in zip(self._nodes, taken, strict=True):
                unpack(archive, self._copies / node)
        return self._copies

    def stats(self) -> list[dict[str, Any]]:
        """Read copies: what comes from a node is hostile until checked."""
        top = self._copied()
        return [e for node in self._nodes for e in read_stats(top / node)]

    def first_failure(self) -> int | None:
        """Read copies; the nodes' clocks decide, which a host keeps together."""
        top = self._copied()
        return cause([f for node in self._nodes for f in read_exit_codes(top / node)])

    def remove(self) -> None:
        """Remove them in every node that answers."""
        if self._copies is not None:
            shutil.rmtree(self._copies, ignore_errors=True)
            self._copies = None
        paths = [str(self._root / (self.job + suffix)) for suffix in (*SUFFIXES, FILES)]
        commands = self._commands(self._nodes, ["rm", "-rf", "--", *paths])
        self._runner.run_all(commands, timeout_s=_STEP_S)


def packed(path: Path) -> bytes:
    """Return a compressed tar archive of a file, or of a directory's content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
        for entry in sorted(path.iterdir()) if path.is_dir() else [path]:
            archive.add(entry, entry.name, filter=_needed)
    return stream.getvalue()


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what only compilers read, and who owns a file here."""
    if member.name.split("/")[0] == "include" or member.name.endswith((".a", ".la")):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: bytes, directory: Path) -> None:
    """Write the regular files of a foreign archive flat into a new directory, sizes limited."""
    directory.mkdir(mode=0o700)
    left = _MAX_STATS
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as content:
            for member in content:
                name = Path(member.name).name
                if not member.isreg() or not name or member.size > left:
                    continue
                left -= member.size
                data = content.extractfile(member)
                target = directory / name
                if data is not None and not target.exists():
                    target.write_bytes(data.read())
                    os.utime(target, (member.mtime, member.mtime))
    except (tarfile.TarError, EOFError) as error:
        raise LaunchError(f"a node sent damaged counters: {error}") from error


def places_for(
    backend: Backend, spec: ClusterSpec, nodes: Sequence[str], job: str, runner: Runner
) -> Places:
    """Return the directories of a job on these nodes; nothing is made yet."""
    if not backend.shares_files:
        return NodePlaces(backend, nodes, job, runner)
    used = sorted({host.name for host, node in spec.nodes if node.name in nodes})
    return SharedPlaces(tuple(backend.meeting_directory(host) for host in used), job)


def end_stale(backend: Backend, spec: ClusterSpec, runner: Runner) -> tuple[str, ...]:
    """End and remove every job whose owner on this machine is gone; returns their names."""
    nodes = [node.name for _, node in spec.nodes]
    names: set[str] = set()
    if backend.shares_files:
        for host in spec.hosts:
            names |= {path.name for path in backend.meeting_directory(host.name).iterdir()}
    else:
        root = str(backend.job_root())
        looks = [backend.on_node(node, ["ls", root], env=_PATH) for node in nodes]
        names |= {
            name for done in runner.run_all(looks, timeout_s=_STEP_S) for name in done.text.split()
        }
    jobs = sorted({name.partition(".")[0] for name in names if is_stale(name)})
    for job in jobs:
        backend.end_marked(f"{MARKER}={job}")
    for job in jobs:
        places_for(backend, spec, nodes, job, runner).remove()
    return tuple(jobs)
