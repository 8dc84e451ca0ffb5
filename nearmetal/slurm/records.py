# SPDX-License-Identifier: Apache-2.0
"""What is written down of each container: a directory per job, root's alone.

`/run` is emptied by a reboot, as are the processes that the records speak of.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import SlurmError
from nearmetal.slurm.holder import start_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE = Path("/run/nearmetal/slurm")
"""As NM_SPANK_STATE of src/spank/container.h."""

_PREFIX = "job-"
VFS = 1 << 40
"""In the place of a job: all VFs of the node."""


@dataclass(frozen=True)
class Container:
    """What is on record of a job on this node. `pid` 0: no process 1 was recorded."""

    job: int
    directory: Path
    uid: int
    node: str
    since: float
    request: str
    pid: int
    ticks: int
    refusal: str = ""
    """Why the job was given nothing here."""

    def lives(self) -> bool:
        """Whether the recorded process 1 is there, and no other of the same number."""
        return self.pid > 0 and start_ticks(self.pid) == self.ticks


def directory_of(state: Path, job: int) -> Path:
    """Return where the records of a job are."""
    return state / f"{_PREFIX}{job}"


@contextlib.contextmanager
def locked(state: Path, job: int) -> Iterator[None]:
    """One launch or reclaim of a job at a time: a prolog that is late may meet its own epilog.

    Other jobs go on meanwhile. Who holds a job's lock may take that of VFS as well.
    """
    with _lock_file(state) as descriptor:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _byte(job))
        yield


@contextlib.contextmanager
def _lock_file(state: Path) -> Iterator[int]:
    """Open it; locks are let go at the end. Raises SlurmError for who may not."""
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
    """A byte for each job; of the open file, so that threads are kept out, too."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, job, 1, 0)


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file so that it is there entirely or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.rename(path)


def of_job(job: int, state: Path = STATE) -> Container | None:
    """Return what is on record of a job; None when there is nothing."""
    directory = directory_of(state, job)
    if not directory.is_dir():
        return None
    about: dict[str, object] = {}
    with contextlib.suppress(OSError, ValueError):
        read = json.loads((directory / "about").read_text(encoding="utf-8"))
        about = read if isinstance(read, dict) else {}
    pid, ticks = _holder(directory)
    return Container(
        job=job,
        directory=directory,
        uid=_number(about.get("uid"), -1),
        node=str(about.get("node", "")),
        since=float(_number(about.get("since"), 0)),
        request=str(about.get("request", "")),
        pid=pid,
        ticks=ticks,
        refusal=_text(directory / "refusal"),
    )


def containers(state: Path = STATE) -> tuple[Container, ...]:
    """Return every container on record, by job."""
    try:
        names = sorted(entry.name for entry in state.iterdir())
    except OSError:
        return ()
    jobs = sorted(
        int(n.removeprefix(_PREFIX))
        for n in names
        if n.startswith(_PREFIX) and n.removeprefix(_PREFIX).isdecimal()
    )
    return tuple(found for job in jobs if (found := of_job(job, state)) is not None)


def settled(state: Path = STATE) -> tuple[Container, ...]:
    """Return every container that nobody launches or reclaims just now. Waits for nobody.

    Raises SlurmError for who may not lock.
    """
    found = []
    with _lock_file(state) as descriptor:
        for container in containers(state):
            # EAGAIN: work is under way there.
            with contextlib.suppress(BlockingIOError):
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _byte(container.job))
                found.append(of_job(container.job, state))
    return tuple(container for container in found if container is not None)


def _holder(directory: Path) -> tuple[int, int]:
    """Return pid and start of process 1; (0, 0) when the record is missing or damaged."""
    try:
        words = (directory / "holder").read_text(encoding="ascii").split()
        pid, ticks = map(int, words)
    except (OSError, ValueError):
        return 0, 0
    return (pid, ticks) if pid > 1 else (0, 0)


def _text(path: Path) -> str:
    """Return the first line of a record; "" when there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return ""


def _number(value: object, fallback: int) -> int:
    return int(value) if isinstance(value, int | float) else fallback
