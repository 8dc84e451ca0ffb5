# SPDX-License-Identifier: Apache-2.0
"""Limits of a job's machines: a control group of their own, as large as the job's allocation.

Slurm makes the job's own control group with its first step and removes it with the last, while
machines live as long as the job. So QEMU is in a group beside Slurm's, with the same limits, if
Slurm limits jobs. Its record is written before it is made, and removed after it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import HostError, SlurmError
from nearmetal.slurm.queue import Allocated
from nearmetal.slurm.records import write

RECORD = "groups"
PARENT = "nearmetal"
END_S = 20.0
"""The longest time for the kernel to release a group whose processes were killed."""

_LOOK_S = 0.01
_TRIES = 20
_PERIOD_US = 100_000
"""Period of processor time; the kernel's default."""


@dataclass(frozen=True)
class Limits:
    """The limits of a job on a node; None: Slurm does not limit it."""

    cpus: int | None
    memory_bytes: int | None
    swap_bytes: int | None

    def any(self) -> bool:
        """Whether there is a limit that needs a group."""
        return self.cpus is not None or self.memory_bytes is not None


@dataclass(frozen=True)
class Groups:
    """Control groups with these limits. `events`: a file that counts kills for lack of memory."""

    directories: tuple[Path, ...]
    events: Path | None

    @property
    def doors(self) -> tuple[str, ...]:
        """The files by which a process enters."""
        return tuple(str(directory / "cgroup.procs") for directory in self.directories)


NONE = Groups((), None)


def limits_of(config: Mapping[str, str], allocated: Allocated) -> Limits:
    """Return the limits that Slurm's configuration gives a job with this allocation. Pure."""
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
    """Return the content of files by the hierarchy below `mount`, in order. Pure."""
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
    """Make the control groups of a job; none if Slurm does not limit it.

    `records`: the job's. Raises SlurmError if this node cannot: then there are none.
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
            f"no control group for virtual machines with the limits of the job: "
            f"{error.filename}: {error.strerror}",
            f"let root write control groups at {mount} (CgroupMountpoint of cgroup.conf)",
        ) from error
    events = None
    if limits.memory_bytes is not None:
        events = next(iter(places)) / ("memory.events" if unified else "memory.oom_control")
    return Groups(tuple(places), events)


def _directory(place: Path, limits: Limits, *, unified: bool) -> None:
    """Make a group, again if the end of the last group just removed the parent."""
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
    # Some kernels do not count swap; then there is no limit to set.
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
    """Return the recorded control groups of a job."""
    with contextlib.suppress(OSError):
        lines = (records / RECORD).read_text(encoding="utf-8").splitlines()
        return Groups(tuple(Path(line) for line in lines if line), None)
    return NONE


def remove(groups: Groups) -> None:
    """Remove control groups whose processes were killed; missing ones are no error.

    Raises HostError.
    """
    deadline = time.monotonic() + END_S
    for place in groups.directories:
        while not _removed(place):
            if time.monotonic() > deadline:
                raise HostError(
                    f"control group {place} does not end",
                    f"see its processes in {place}/cgroup.procs",
                )
            time.sleep(_LOOK_S)
        # The parent may hold groups of other jobs.
        with contextlib.suppress(OSError):
            place.parent.rmdir()


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
