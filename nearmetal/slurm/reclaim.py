# SPDX-License-Identifier: Apache-2.0
"""The reclaimer: ends whatever is left of a job on this node. May run at any time, any number of times.

Process 1 of a container is the handle of all of it: when it is killed the kernel kills every
process in its PID namespace, and with the last of them the mounts, the segment directory and
the memory go. So do processes that a slurmstepd which died left of the job outside of it. Then go its control groups, its VFs go back, and its records go last.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import SlurmError
from nearmetal.core.process import LocalRunner
from nearmetal.slurm import guard, limits
from nearmetal.slurm.records import STATE, Container, directory_of, locked, of_job
from nearmetal.slurm.vfs import JobVfs

if TYPE_CHECKING:
    from collections.abc import Callable

THIS_MACHINE = JobVfs()

END_S = 20.0
"""How long processes may take to die: one that waits for a dead file server takes for ever."""

_LOOK_S = 0.005
_OUTSIDE_ROUNDS = 100
"""How often to look for what is outside: what is started again and again is of another job, or nobody's."""

_JOB_GROUP = re.compile(rb"/job_([0-9]+)(?=/|$)", re.MULTILINE)
"""A control group that Slurm made for a job."""


def reclaim(
    job: int, state: Path = STATE, *, only: Container | None = None, vfs: JobVfs = THIS_MACHINE
) -> bool:
    """End a job's container and forget it; returns whether there was one.

    `only`: what was on record when it was judged; a container made since then stays. Raises
    SlurmError when something does not end: then its records stay, and the node needs help.
    """
    with locked(state, job):
        if only is not None and of_job(job, state) != only:
            return False
        return remove(job, state, vfs)


def remove(job: int, state: Path, vfs: JobVfs = THIS_MACHINE) -> bool:
    """As `reclaim`, for a caller who holds the lock."""
    found = of_job(job, state)
    if found is None:
        return False
    if found.lives():
        _end(found)
    _end_outside(found)
    limits.remove(limits.recorded(found.directory))
    # Before the records go, by which the ledger knows that the job still has them.
    vfs.give_back(job)
    tunnelled = guard.has_tunnel(found.directory)
    try:
        shutil.rmtree(directory_of(state, job))
    except OSError as error:
        raise SlurmError(f"job {job}: {found.directory}: {error.strerror or error}") from error
    if tunnelled:
        # Without its tunnel, what the guard still lets through goes nowhere; the next one sweeps it.
        with contextlib.suppress(SlurmError):
            guard.renew(state, LocalRunner())
    return True


def _end(found: Container) -> None:
    """Kill process 1 and who is in its mounts without being in its PID namespace."""
    # Held open, the namespace cannot end and give its number to another one.
    try:
        mounts = os.open(f"/proc/{found.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not found.lives():
            return
        number = os.fstat(mounts).st_ino
        _until_none(lambda: _kill_holder(found) or _kill_members(number), found)
    finally:
        os.close(mounts)


def _until_none(kill: Callable[[], bool], found: Container) -> None:
    """Kill until nobody is left; raises SlurmError when that takes too long."""
    deadline = time.monotonic() + END_S
    while kill():
        if time.monotonic() > deadline:
            raise SlurmError(
                f"job {found.job}: process {found.pid} and its container do not end",
                "does one of its processes wait for a device or a file server (state D)?",
            )
        time.sleep(_LOOK_S)


def _kill_holder(found: Container) -> bool:
    return found.pid > 0 and _kill(found.pid, found.lives)


def _kill_members(number: int) -> bool:
    """SIGKILL every process in a mount namespace; returns whether there was one."""
    return _kill_where(lambda process: (process / "ns/mnt").stat().st_ino == number)


def _end_outside(found: Container) -> None:
    """SIGKILL what the job's user has here by slurmstepd, outside of any container.

    A batch script beside virtual machines is there, and outlives a slurmstepd that is killed. Root is
    the user of Slurm's own programs as well.
    """
    if found.uid <= 0 or not found.node:
        return
    for _ in range(_OUTSIDE_ROUNDS):
        if not _kill_where(lambda process: _is_of_job(process, found)):
            return
        time.sleep(_LOOK_S)
    sys.stderr.write(
        f"nearmetal: job {found.job}: processes of its user that bear its number keep coming\n"
    )


def _is_of_job(process: Path, found: Container) -> bool:
    """Whether a process is of a job. What it says itself counts only where no control group says it."""
    if process.stat().st_uid != found.uid:
        return False
    named = {f"SLURMD_NODENAME={found.node}".encode()}
    groups = {int(job) for job in _JOB_GROUP.findall((process / "cgroup").read_bytes())}
    if not groups:
        named.add(f"SLURM_JOB_ID={found.job}".encode())
    elif found.job not in groups:
        return False
    return named <= set((process / "environ").read_bytes().split(b"\0"))


def _kill_where(chosen: Callable[[Path], bool]) -> bool:
    found = False
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            found |= _kill(int(entry.name), functools.partial(chosen, entry))
    return found


def _kill(pid: int, chosen: Callable[[], bool]) -> bool:
    """SIGKILL a process if it is chosen, and no other that has got its number since."""
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if chosen():
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False
