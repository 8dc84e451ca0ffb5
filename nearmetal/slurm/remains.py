# SPDX-License-Identifier: Apache-2.0
"""Files and namespaces of a container that processes outside of it hold beyond its end.

Another process of the job's user may open them through `/proc/PID`. The kernel keeps the memory of
such a file, and the namespace, until that process closes them. The memory is released here; who
holds a namespace is recorded, so that `slurm status` can name the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nearmetal.core.files import read_json
from nearmetal.core.process import Command, LocalRunner
from nearmetal.slurm.holder import start_ticks
from nearmetal.slurm.records import STATE, write

_NAMESPACES = ("mnt", "pid", "ipc", "uts", "net")
_PREFIX = "held-"
_ROUNDS = 5
"""Searches: a holder may pass a descriptor on during one."""
_SWEEP_S = 30.0


@dataclass(frozen=True)
class Holder:
    """A process that held a namespace of a job's container when the job was reclaimed."""

    job: int
    pid: int
    ticks: int
    uid: int

    def lives(self) -> bool:
        """Whether the process still exists, and is not another one of the same number."""
        return start_ticks(self.pid) == self.ticks


@dataclass
class Hold:
    """Open descriptors of a container: while they are open, no number is given to another one.

    `places`: mount point and root of each tmpfs by its device. `namespaces`: inodes, without those
    of the node. `mounts`: the descriptor of the mount namespace; -1: none.
    """

    places: dict[int, tuple[str, int]] = field(default_factory=dict)
    namespaces: set[int] = field(default_factory=set)
    mounts: int = -1
    _descriptors: list[int] = field(default_factory=list)

    def keep(self, path: Path, flags: int) -> int:
        """Open a path until `close`; return the descriptor."""
        self._descriptors.append(os.open(path, flags | os.O_CLOEXEC))
        return self._descriptors[-1]

    def close(self) -> None:
        """Close everything."""
        for descriptor in self._descriptors:
            os.close(descriptor)


@contextlib.contextmanager
def held(pid: int) -> Iterator[Hold]:
    """Hold the namespaces and the tmpfs of the container of a living process 1."""
    hold = Hold()
    try:
        process = Path(f"/proc/{pid}")
        for name in _NAMESPACES:
            with contextlib.suppress(OSError):
                descriptor = hold.keep(process / "ns" / name, os.O_RDONLY)
                if name == "mnt":
                    hold.mounts = descriptor
                number = os.fstat(descriptor).st_ino
                if number != Path(f"/proc/self/ns/{name}").stat().st_ino:
                    hold.namespaces.add(number)
        ours = set(_tmpfs(Path("/proc/self/mountinfo")))
        for device, place in _tmpfs(process / "mountinfo").items():
            if device in ours:
                continue
            # The job's user has no part in these paths: they are mount points of the launcher.
            with contextlib.suppress(OSError):
                root = hold.keep(Path(f"{process}/root{place}"), os.O_PATH | os.O_NOFOLLOW)
                if os.fstat(root).st_dev == device:
                    hold.places[device] = place, root
        yield hold
    finally:
        hold.close()


def _tmpfs(mounts: Path) -> dict[int, str]:
    """Return the mount points of tmpfs by device."""
    found = {}
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            words, _, kind = line.partition(" - ")
            number, root, place = words.split()[2:5]
            if kind.startswith("tmpfs ") and root == "/":
                major, minor = map(int, number.split(":"))
                found[os.makedev(major, minor)] = place
    return found


def release(job: int, uid: int, hold: Hold, state: Path = STATE) -> tuple[Holder, ...]:
    """Release the memory of a container whose processes are dead; record who holds a namespace."""
    found: set[Holder] = set()
    for _ in range(_ROUNDS):
        users = [user for entry in _processes(uid) if (user := _user(entry, hold))]
        for entry, names in users:
            for name in names:
                _empty(entry / name, hold)
            about = Holder(job, int(entry.name), start_ticks(int(entry.name)), uid)
            found.add(about)
        if not any(names for _, names in users):
            break
    if found:
        _sweep(hold)
        stay = [asdict(one) for one in sorted(found, key=lambda one: one.pid) if one.ticks]
        write(state / f"{_PREFIX}{job}", json.dumps(stay) + "\n")
    return tuple(found)


def _processes(uid: int) -> Iterator[Path]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    yield entry


def _user(process: Path, hold: Hold) -> tuple[Path, list[str]] | None:
    """Return a process that holds anything of the container, with the files that have a size."""
    names, holds = [], False
    for name in (
        "cwd",
        "root",
        *_names(process / "fd", "fd"),
        *_names(process / "map_files", "map_files"),
    ):
        with contextlib.suppress(OSError):
            about = (process / name).stat()
            if about.st_dev in hold.places:
                holds = True
                if stat.S_ISREG(about.st_mode) and about.st_blocks:
                    names.append(name)
            elif about.st_ino in hold.namespaces and _is_namespace(process / name):
                holds = True
    return (process, names) if holds else None


def _names(directory: Path, prefix: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - names, no paths
            yield f"{prefix}/{name}"


def _is_namespace(link: Path) -> bool:
    return str(link.readlink()).partition(":")[0] in _NAMESPACES


def _empty(link: Path, hold: Hold) -> None:
    """Truncate a file of the container that a process holds."""
    with contextlib.suppress(OSError):
        descriptor = os.open(link, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # The process may have changed the descriptor since.
            if os.fstat(descriptor).st_dev in hold.places:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)


def _sweep(hold: Hold) -> None:
    """Remove all files that a directory or a working directory keeps, and let none grow again."""
    own = f"/proc/{os.getpid()}/fd"
    enter = ("nsenter", f"--mount={own}/{hold.mounts}")
    for place, root in hold.places.values():
        for argv in (
            ("find", f"{own}/{root}/", "-xdev", "-mindepth", "1", "-delete"),
            (*enter, "mount", "-i", "-o", "remount,size=4k", place),
        ):
            LocalRunner().run(Command(argv), timeout_s=_SWEEP_S)


def holders(state: Path = STATE) -> tuple[Holder, ...]:
    """Return the recorded processes that still exist, by job; removes records without any."""
    found = []
    for path in sorted(state.glob(f"{_PREFIX}*")):
        alive = [one for one in _read(path) if one.lives()]
        found += alive
        if not alive:
            with contextlib.suppress(OSError):
                path.unlink()
    return tuple(found)


def _read(path: Path) -> list[Holder]:
    with contextlib.suppress(TypeError):
        read = read_json(path)
        return [Holder(**one) for one in read] if isinstance(read, list) else []
    return []
