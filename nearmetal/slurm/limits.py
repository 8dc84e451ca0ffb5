# SPDX-License-Identifier: Apache-2.0
"""Limits of a job's machines: a control group of their own, as large as what the job has on the node.

Slurm makes the job's own control group with its first step and removes it with the last, while
machines last as long as the job. So QEMU is in a group beside Slurm's, held to the same, where
Slurm holds jobs to it. On record before it is made, removed before the record is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import HostError, SlurmError
from nearmetal.slurm.records import write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nearmetal.slurm.wanted import Allocated

RECORD = "groups"
PARENT = "nearmetal"
END_S = 20.0
"""How long the kernel may take to let go of a group whose processes have been killed."""

_LOOK_S = 0.01
_TRIES = 20
_PERIOD_US = 100_000
"""Of processor time; the kernel's default."""


@dataclass(frozen=True)
class Limits:
    """What Slurm holds a job to on a node; None: it does not."""

    cpus: int | None
    memory_bytes: int | None
    swap_bytes: int | None

    def any(self) -> bool:
        """Whether there is anything to hold it to."""
        return self.cpus is not None or self.memory_bytes is not None


@dataclass(frozen=True)
class Groups:
    """Control groups with these limits. `events`: a file that counts who was killed for memory."""

    directories: tuple[Path, ...]
    events: Path | None

    @property
    def doors(self) -> tuple[str, ...]:
        """The files by which a process goes in."""
        return tuple(str(directory / "cgroup.procs") for directory in self.directories)


NONE = Groups((), None)


def limits_of(config: Mapping[str, str], allocated: Allocated) -> Limits:
    """Return what Slurm, as it is configured, holds to a job with that. Pure."""
    if "task/cgroup" not in config.get("TaskPlugin", ""):
        return Limits(None, None, None)
    memory = swap = None
    if config.get("ConstrainRAMSpace") == "yes" and allocated.memory_bytes:
        memory = int(allocated.memory_bytes * _share(config, "AllowedRAMSpace", 100))
        if config.get("ConstrainSwapSpace") == "yes":
            swap = int(allocated.memory_bytes * _share(config, "AllowedSwapSpace", 0))
    cores = config.get("ConstrainCores") == "yes" and allocated.cpus
    return Limits(allocated.cpus if cores else None, memory, swap)


def _share(config: Mapping[str, str], name: str, fallback: int) -> float:
    found = re.match(r"[0-9]{1,9}(\.[0-9]{1,9})?(?=%|$)", config.get(name, ""))
    return float(found[0] if found else fallback) / 100


def settings(mount: Path, limits: Limits, *, unified: bool) -> dict[str, dict[str, str]]:
    """Return what to write into which files below which hierarchies of `mount`, in order. Pure."""
    memory, cpu = limits.memory_bytes, limits.cpus
    found: dict[str, dict[str, str]] = {}
    if unified:
        files = {"memory.max": memory, "memory.swap.max": limits.swap_bytes}
        quota = {} if cpu is None else {"cpu.max": f"{cpu * _PERIOD_US} {_PERIOD_US}"}
        return {str(mount): {n: str(v) for n, v in files.items() if v is not None} | quota}
    if memory is not None:
        found[str(mount / "memory")] = {"memory.limit_in_bytes": str(memory)}
        if limits.swap_bytes is not None:
            both = str(memory + limits.swap_bytes)
            found[str(mount / "memory")]["memory.memsw.limit_in_bytes"] = both
    if cpu is not None:
        found[str(mount / "cpu")] = {
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": str(cpu * _PERIOD_US),
        }
    return found


def make(records: Path, name: str, mount: Path, limits: Limits) -> Groups:
    """Make the control groups of a job; none where Slurm holds it to nothing.

    `records`: the job's. Raises SlurmError when this node cannot: then there are none.
    """
    if not limits.any():
        return NONE
    unified = (mount / "cgroup.controllers").exists()
    wanted = settings(mount, limits, unified=unified)
    own = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    places = {Path(root, PARENT, own): files for root, files in wanted.items()}
    write(records / RECORD, "".join(f"{place}\n" for place in places))
    try:
        for place, files in places.items():
            _directory(place, limits, unified=unified)
            for file, text in files.items():
                _set(place / file, text)
    except OSError as error:
        remove(Groups(tuple(places), None))
        raise SlurmError(
            f"no control group for virtual machines, to which Slurm would hold the job: "
            f"{error.filename}: {error.strerror}",
            f"are control groups mounted at {mount} (CgroupMountpoint of cgroup.conf) for root to write?",
        ) from error
    events = None
    if limits.memory_bytes is not None:
        events = next(iter(places)) / ("memory.events" if unified else "memory.oom_control")
    return Groups(tuple(places), events)


def _directory(place: Path, limits: Limits, *, unified: bool) -> None:
    """Make a group; who removes the last one removes the parent, perhaps just now."""
    needed = {"memory": limits.memory_bytes, "cpu": limits.cpus}
    enable = " ".join(f"+{name}" for name, limit in needed.items() if limit is not None)
    for left in reversed(range(_TRIES)):
        try:
            place.parent.mkdir(exist_ok=True)
            for above in (place.parent.parent, place.parent) if unified else ():
                _set(above / "cgroup.subtree_control", enable)
            place.mkdir(exist_ok=True)
        except FileNotFoundError:
            if not left:
                raise
        else:
            return


def _set(file: Path, text: str) -> None:
    # Swap is not counted everywhere, and then there is nothing to limit.
    if ("swap" in file.name or "memsw" in file.name) and not file.exists():
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        os.close(descriptor)


def recorded(records: Path) -> Groups:
    """Return the control groups that a job may have."""
    with contextlib.suppress(OSError):
        lines = (records / RECORD).read_text(encoding="utf-8").splitlines()
        return Groups(tuple(Path(line) for line in lines if line), None)
    return NONE


def remove(groups: Groups) -> None:
    """Remove control groups whose processes have been killed; none is no error. Raises HostError."""
    deadline = time.monotonic() + END_S
    for place in groups.directories:
        while not _removed(place):
            if time.monotonic() > deadline:
                raise HostError(
                    f"control group {place} does not end", f"look at {place}/cgroup.procs"
                )
            time.sleep(_LOOK_S)
        # Others' groups may be in it.
        with contextlib.suppress(OSError):
            place.parent.rmdir()


@contextlib.contextmanager
def removed_on_failure(groups: Groups) -> Iterator[None]:
    """Remove control groups when the body fails, whose processes have ended then."""
    try:
        yield
    except BaseException:
        remove(groups)
        raise


def _removed(place: Path) -> bool:
    try:
        place.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise HostError(
                f"control group {place}: {error.strerror}", "run this as root"
            ) from error
        return False
    return True
