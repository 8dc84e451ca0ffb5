# SPDX-License-Identifier: Apache-2.0
"""The reclaimer: ends everything that is left of a job on this node, at any time and repeatedly.

Process 1 of a container holds everything: after its death the kernel kills every process in its
PID namespace, and the mounts, the rundir and the memory end with the last of them, except for what
a process outside has opened (remains.py). The reclaimer also kills processes of the job outside,
which a dead slurmstepd left. Then it removes the control groups and the servers in a cloud, returns
the VFs, and removes the records last.
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
from collections.abc import Callable
from pathlib import Path

from nearmetal.core.errors import SlurmError
from nearmetal.core.process import LocalRunner
from nearmetal.slurm import limits, remains
from nearmetal.slurm.network import guard, has_tunnel
from nearmetal.slurm.records import STATE, Container, directory_of, locked, of_job
from nearmetal.slurm.servers import FAULT, ServerStore
from nearmetal.slurm.vfs import JobVfs

THIS_MACHINE = JobVfs()
SERVERS_HERE = ServerStore()

END_S = 20.0
"""The longest time for processes to die: a process that waits for a dead file server never dies."""

_LOOK_S = 0.005
_OUTSIDE_ROUNDS = 100
"""Searches for processes outside: processes that keep coming belong to another job or to none."""

_JOB_GROUP = re.compile(rb"/job_([0-9]+)(?=/|$)", re.MULTILINE)
"""A control group that Slurm made for a job."""


def reclaim(
    job: int,
    state: Path = STATE,
    *,
    only: Container | None = None,
    vfs: JobVfs = THIS_MACHINE,
    store: ServerStore = SERVERS_HERE,
) -> bool:
    """End a job's container and remove its records; return whether there was one.

    `only`: the records at the time of the verdict; a container made since then stays. Raises
    SlurmError if something does not end: then its records stay, and the node needs help.
    """
    with locked(state, job):
        if only is not None and of_job(job, state) != only:
            return False
        return remove(job, state, vfs, store)


def remove(
    job: int,
    state: Path,
    vfs: JobVfs = THIS_MACHINE,
    store: ServerStore = SERVERS_HERE,
    *,
    asks: bool = True,
) -> bool:
    """As `reclaim`, for a caller that holds the lock. `asks`: whether to ask the cloud of servers.

    If not, the watchdog removes them.
    """
    found = of_job(job, state)
    if found is None:
        return False
    if found.lives():
        with remains.held(found.pid) as hold:
            _end(found)
            # Root's own processes are the node's, and its jobs may hold what they like.
            if found.uid > 0:
                _report(remains.release(job, found.uid, hold, state))
    _end_outside(found)
    limits.remove(limits.recorded(found.directory))
    # Nothing here makes servers any more. A cloud that fails is no fault of the node.
    if not asks:
        store.abandon(store.every(job))
    for fault in (*_faults(found), *store.end_job(job)):
        sys.stderr.write(f"nearmetal: job {job}: servers: {fault}\n")
    # First the VFs: while the records exist, the ledger knows that the job has them.
    vfs.give_back(job)
    tunnelled = has_tunnel(found.directory)
    try:
        shutil.rmtree(directory_of(state, job))
    except OSError as error:
        raise SlurmError(f"job {job}: {found.directory}: {error.strerror or error}") from error
    if tunnelled:
        # Packets that the guard still admits reach nothing without a tunnel; the next run fixes it.
        with contextlib.suppress(SlurmError):
            guard(state, LocalRunner())
    return True


def _faults(found: Container) -> tuple[str, ...]:
    """Return why the job had no servers, if it had none."""
    with contextlib.suppress(OSError):
        text = (found.directory / FAULT).read_text(encoding="utf-8", errors="replace")
        return (text.strip(),)
    return ()


def _report(found: tuple[remains.Holder, ...]) -> None:
    for one in found:
        sys.stderr.write(
            f"nearmetal: job {one.job}: process {one.pid} of user {one.uid} held files or "
            "namespaces of its container; their memory was released\n"
        )


def _end(found: Container) -> None:
    """Kill process 1, and processes that are in its mounts but not in its PID namespace."""
    # The open namespace cannot end and give its number to another one.
    try:
        mounts = os.open(f"/proc/{found.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not found.lives():
            return
        number = os.fstat(mounts).st_ino
        deadline = time.monotonic() + END_S
        while _kill_inside(found, number):
            if time.monotonic() > deadline:
                raise SlurmError(
                    f"job {found.job}: process {found.pid} and its container do not end",
                    "check for processes in state D, which wait for a device or a file server",
                )
            time.sleep(_LOOK_S)
    finally:
        os.close(mounts)


def _kill_inside(found: Container, mounts: int) -> bool:
    """SIGKILL process 1, else all processes in its mounts; return whether there was one."""
    if found.pid > 0 and _kill(found.pid, found.lives):
        return True
    return _kill_where(lambda process: (process / "ns/mnt").stat().st_ino == mounts)


def _end_outside(found: Container) -> None:
    """SIGKILL the processes of the job's user under slurmstepd, outside of any container.

    A batch script beside virtual machines is there, and outlives a killed slurmstepd. Root also
    owns Slurm's own programs, so its jobs are left out.
    """
    if found.uid <= 0 or not found.node:
        return
    for _ in range(_OUTSIDE_ROUNDS):
        if not _kill_where(lambda process: _is_of_job(process, found)):
            return
        time.sleep(_LOOK_S)
    sys.stderr.write(
        f"nearmetal: job {found.job}: processes of its user with its number keep coming\n"
    )


def _is_of_job(process: Path, found: Container) -> bool:
    """Whether a process is of a job. Its own variables count only without a control group."""
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
    """SIGKILL a process if it is chosen, and no later one of its number."""
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if chosen():
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False
