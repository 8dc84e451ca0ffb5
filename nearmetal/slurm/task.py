# SPDX-License-Identifier: Apache-2.0
"""Containers as nodes without any plugin or help of root: the tasks of one step, by user namespaces.

`srun ... nearmetal slurm task PROGRAM`: on each node the first task of the step makes user, mount and
IPC namespaces, the others join them, and all become PROGRAM. Private are /tmp and /dev/shm, in which
the step's segment directory lies. Nobody keeps the namespaces but the tasks, so the kernel ends
them with the step; nothing is recorded, and nothing is left to take back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import SlurmError, UsageError
from nearmetal.core.resources import provider_library
from nearmetal.job.mpi import Provider, Request, pick, settings_for
from nearmetal.slurm import holder
from nearmetal.slurm.container import MIN_BYTES, OUTSIDE_PMI, as_variables

HOME = "/dev/shm/nearmetal"  # noqa: S108 - a mount point in a tmpfs of our own
SEGMENT = f"{HOME}/job"
PROVIDERS = f"{HOME}/providers"
_STEP = "step"
"""In HOME: whose it is, written when all is ready."""

JOIN_S = 60.0
"""For how long tasks of one node wait for each other: srun starts them together."""

_LOOK_S = 0.01
_MAX_TASKS = 1 << 16
_NEWUSER = 0x10000000
_SPACES = (("user", _NEWUSER), ("ipc", holder.CLONE_NEWIPC), ("mnt", holder.CLONE_NEWNS))

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Step:
    """Which step this is a task of: `name` is that of its tasks on this node, `nr` how many.

    The node is in the name, as several may see each other's processes.
    """

    name: str
    local: int
    nr: int


@dataclass(frozen=True)
class Share:
    """What the tasks of a step get on each node."""

    segment_bytes: int
    scratch_bytes: int
    mpi: str = ""
    channels: str = ""


def step_of(env: Mapping[str, str]) -> Step:
    """Return the step that a task's variables tell. Raises UsageError outside of one."""
    try:
        job, step = int(env["SLURM_JOB_ID"]), int(env["SLURM_STEP_ID"])
        node, local = int(env["SLURM_NODEID"]), int(env["SLURM_LOCALID"])
        nr = tasks_per_node(env["SLURM_STEP_TASKS_PER_NODE"])[node]
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(
            "this is no task of a step of Slurm",
            "start it by srun in an allocation: srun nearmetal slurm task ./program",
        ) from error
    return Step(f"{job}.{step}.{node}", local, nr)


def tasks_per_node(text: str) -> list[int]:
    """Return what `2(x3),1` says of each node. Raises ValueError."""
    found: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", word)
        if match is None or len(found) > _MAX_TASKS:
            raise ValueError(word)
        found += [int(match[1])] * min(int(match[2] or 1), _MAX_TASKS)
    return found


def variables(share: Share, env: Mapping[str, str]) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the program's whole environment, and the providers to link.

    What the user has set stays, but for where the tasks meet.
    """
    ours = dict(OUTSIDE_PMI)
    providers: tuple[Path, ...] = ()
    if share.channels:
        ours["NEARMETAL_CHANNELS"] = share.channels
    if share.mpi:
        asked = Request(Provider.NEARMETAL, provider_library(), Path(PROVIDERS))
        settings = settings_for(pick(share.mpi), asked)
        ours |= {k: v for k, v in settings.env.items() if "ALLOW_RUN_AS_ROOT" not in k}
        ours |= as_variables(settings.options)
        providers = settings.providers
    return ours | dict(env) | {"NEARMETAL_RUNDIR": SEGMENT}, providers


def enter(
    step: Step, share: Share, env: Mapping[str, str], wait_s: float = JOIN_S
) -> dict[str, str]:
    """Put this task into the container of its step on this node; return the program's environment.

    Raises SlurmError when there can be none. The working directory stays.
    """
    for name, size in (("segment", share.segment_bytes), ("scratch", share.scratch_bytes)):
        if size < MIN_BYTES:
            raise SlurmError(f"{name} of {size} bytes", "give at least 1 MiB")
    told, providers = variables(share, env)
    deadline = time.monotonic() + wait_s
    if step.local == 0:
        _make(step, share, providers)
        # Whoever comes after the first task has ended would find nothing.
        _await(
            lambda: len(_joined()) >= step.nr - 1,
            deadline,
            f"{step.nr} tasks were to come on this node, and not all did",
        )
    else:
        _join(step, deadline)
    return told


def _await(there: Callable[[], bool], deadline: float, words: str) -> None:
    while not there():
        if time.monotonic() > deadline:
            raise SlurmError(words, "what the other tasks say tells why")
        time.sleep(_LOOK_S)


def _joined() -> list[str]:
    return [name for name in os.listdir(HOME) if name.startswith("task-")]  # noqa: PTH208 - names


def _make(step: Step, share: Share, providers: tuple[Path, ...]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        if _libc.unshare(_NEWUSER | holder.CLONE_NEWNS | holder.CLONE_NEWIPC) < 0:
            code = ctypes.get_errno()
            raise SlurmError(
                f"no user namespace: {os.strerror(code)}",
                "does this node allow them (sysctl user.max_user_namespaces, "
                "kernel.unprivileged_userns_clone)? Else the plugin is the way: --nm-node=container",
            )
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny", encoding="ascii")
        (own / "uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        (own / "gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
        holder.mount(None, "/", holder.MS_REC | holder.MS_SLAVE)
        safe = holder.MS_NOSUID | holder.MS_NODEV
        for place in ("/tmp", "/dev/shm"):  # noqa: S108 - mount points, not files of ours
            holder.mount("tmpfs", place, safe, f"mode=1777,size={share.scratch_bytes}")
        for place in (HOME, SEGMENT, PROVIDERS):
            Path(place).mkdir(mode=0o700)
        holder.mount("tmpfs", SEGMENT, safe, f"mode=700,size={share.segment_bytes}")
        for path in providers:
            (Path(PROVIDERS) / path.name).symlink_to(path)
        fresh = Path(HOME, f"{_STEP}.new")
        fresh.write_text(step.name, encoding="ascii")
        fresh.rename(Path(HOME, _STEP))
    except OSError as error:
        raise SlurmError(f"no container for step {step.name}: {error.strerror or error}") from error


def _join(step: Step, deadline: float) -> None:
    found: list[int] = []

    def there() -> bool:
        found[:] = _spaces(step)
        return bool(found)

    _await(there, deadline, f"step {step.name}: the first task on this node makes no container")
    cwd = os.getcwd()  # noqa: PTH109 - text, as it is
    try:
        for descriptor, (name, kind) in zip(found, _SPACES, strict=True):
            if _libc.setns(descriptor, kind) < 0:
                code = ctypes.get_errno()
                raise SlurmError(f"cannot join the {name} namespace: {os.strerror(code)}")
    finally:
        for descriptor in found:
            os.close(descriptor)
    try:
        os.chdir(cwd)
        Path(HOME, f"task-{step.local}").touch(mode=0o600)
    except OSError as error:
        raise SlurmError(f"{error.filename}: {error.strerror}") from error


def _spaces(step: Step) -> list[int]:
    """Return descriptors of the namespaces of the step's first task; [] while there are none.

    Only processes of our own user show their files, and what another step wrote has its name.
    """
    outside = Path("/proc/self/ns/user").stat().st_ino
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        opened: list[int] = []
        with contextlib.suppress(OSError):
            if entry.stat().st_uid != os.geteuid():
                continue
            # Without namespaces of its own: there others may have put such a file, or a pipe.
            if (entry / "ns/user").stat().st_ino == outside:
                continue
            if (entry / "root" / HOME[1:] / _STEP).read_text(encoding="ascii") != step.name:
                continue
            for name, _ in _SPACES:
                opened.append(os.open(entry / "ns" / name, os.O_RDONLY | os.O_CLOEXEC))
            # It was that process all the time: it has not changed while its namespaces are held.
            if (entry / "root" / HOME[1:] / _STEP).read_text(encoding="ascii") == step.name:
                return opened
        for descriptor in opened:
            os.close(descriptor)
    return []
