# SPDX-License-Identifier: Apache-2.0
"""The records of containers: a directory per job, which only root can write.

A reboot empties `/run`, and ends the processes that the records describe.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from nearmetal.core.errors import SlurmError
from nearmetal.core.files import read_json, replace_file
from nearmetal.slurm.holder import start_ticks

STATE = Path("/run/nearmetal/slurm")
"""As NM_SPANK_STATE of src/spank/container.h."""

_PREFIX = "job-"
VFS, GUARD, SERVERS = range(1 << 40, (1 << 40) + 3)
"""Locks in the place of a job: all VFs of the node, the guard of its tunnel port, and the number of
servers that its jobs have in a cloud."""


@dataclass(frozen=True)
class Instance(ABC):
    """The container or server of a job on one node of Slurm, or the refusal of one.

    `since` is in Unix seconds. If they are not recorded, `uid` is -1 and `node` is "".
    """

    job: int
    uid: int
    node: str
    since: float
    request: str
    refusal: str = ""
    """The reason why the job got nothing here."""

    @abstractmethod
    def lives(self) -> bool:
        """Whether it still exists, and not only its record."""

    def is_leak(self, *, known: bool) -> bool:
        """Whether it is to be ended. `known`: Slurm has its job on its node."""
        return not known

    @property
    def blames_node(self) -> bool:
        """Whether a node on which it does not end needs help."""
        return True


@dataclass(frozen=True, kw_only=True)
class Container(Instance):
    """The records of a job on this node. `pid` 0: no process 1 was recorded."""

    directory: Path
    pid: int
    ticks: int

    def lives(self) -> bool:
        """Whether the recorded process 1 exists, and is not another one of the same number."""
        return self.pid > 0 and start_ticks(self.pid) == self.ticks


def directory_of(state: Path, job: int) -> Path:
    """Return the directory with the records of a job."""
    return state / f"{_PREFIX}{job}"


@contextlib.contextmanager
def locked(state: Path, job: int) -> Iterator[None]:
    """One launch or reclaim of a job at a time: a late prolog may meet its own epilog.

    Other jobs do not wait. The holder of a job's lock may also take VFS, GUARD or SERVERS.
    """
    with _lock_file(state) as descriptor:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _byte(job))
        yield


@contextlib.contextmanager
def _lock_file(state: Path) -> Iterator[int]:
    """Open it; the end of the block releases its locks. Raises SlurmError without permission.

    One file serves all jobs: a launcher cannot remove a file of its own, because the container
    hides this directory from it.
    """
    try:
        state.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SlurmError(f"{state}: {error.strerror}", "run this as root") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _byte(job: int) -> bytes:
    """Return a lock of one byte per job; as part of the open file it excludes threads too."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, job, 1, 0)


def write(path: Path, text: str) -> None:
    """Write a record that all users may read, whole or not at all."""
    replace_file(path, text, mode=0o644, sync=False)


def of_job(job: int, state: Path = STATE) -> Container | None:
    """Return the records of a job; None if there are none."""
    directory = directory_of(state, job)
    if not directory.is_dir():
        return None
    read = read_json(directory / "about")
    about: dict[str, object] = read if isinstance(read, dict) else {}
    pid, ticks, refusal = 0, 0, ""
    with contextlib.suppress(OSError, ValueError):
        pid, ticks = map(int, (directory / "holder").read_text(encoding="ascii").split())
    with contextlib.suppress(OSError):
        refusal = (directory / "refusal").read_text(encoding="utf-8", errors="replace")
    return Container(
        job=job,
        directory=directory,
        uid=_number(about.get("uid"), -1),
        node=str(about.get("node", "")),
        since=float(_number(about.get("since"), 0)),
        request=str(about.get("request", "")),
        pid=pid if pid > 1 else 0,
        ticks=ticks,
        refusal=refusal.partition("\n")[0],
    )


def containers(state: Path = STATE) -> tuple[Container, ...]:
    """Return every recorded container, by job."""
    try:
        names = [path.name.partition(_PREFIX) for path in state.iterdir()]
    except OSError:
        return ()
    jobs = sorted(int(job) for begin, _, job in names if not begin and job.isdecimal())
    return tuple(found for job in jobs if (found := of_job(job, state)) is not None)


def settled(state: Path = STATE) -> tuple[Container, ...]:
    """Return every container without a launch or reclaim in progress. Does not wait.

    Raises SlurmError without permission.
    """
    found = []
    with _lock_file(state) as descriptor:
        for container in containers(state):
            # EAGAIN: a launch or reclaim is in progress there.
            with contextlib.suppress(BlockingIOError):
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _byte(container.job))
                found.append(of_job(container.job, state))
    return tuple(container for container in found if container is not None)


def _number(value: object, fallback: int) -> int:
    """Return a number of a record, which may hold NaN or Infinity. Pure."""
    return int(value) if isinstance(value, int | float) and isfinite(value) else fallback
