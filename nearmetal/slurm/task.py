# SPDX-License-Identifier: Apache-2.0
"""Containers as nodes without plugin and root: the tasks of one step, by user namespaces.

`srun ... nearmetal slurm task PROGRAM`: on each node the first task of the step makes user, mount
and IPC namespaces, the others join them, and all become PROGRAM. Private are /tmp and /dev/shm,
which holds the step's rundir. Only the tasks keep the namespaces, so the kernel ends them with the
step; nothing is recorded, and nothing is left to reclaim.
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
from nearmetal.core.files import replace_file
from nearmetal.slurm import holder
from nearmetal.slurm.container import check_sizes, mount_scratch, mpi_environment

HOME = "/dev/shm/nearmetal"  # noqa: S108 - a mount point in a tmpfs of our own
SEGMENT = f"{HOME}/job"
PROVIDERS = f"{HOME}/providers"
_STEP = "step"
"""In HOME: the name of the step, written when all is ready."""

JOIN_S = 60.0
"""The longest wait of a node's tasks for each other: srun starts them together."""

_LOOK_S = 0.01
_MAX_TASKS = 1 << 16
_NEWUSER = 0x10000000
_SPACES = (("user", _NEWUSER), ("ipc", holder.CLONE_NEWIPC), ("mnt", holder.CLONE_NEWNS))

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class TaskStep:
    """The step of a task: `name` for its tasks on this node, the task's number, and their number.

    The name contains the node, because several nodes may see each other's processes.
    """

    name: str
    local: int
    nr: int


@dataclass(frozen=True)
class Share:
    """The resources of a step's tasks on each node."""

    segment_bytes: int
    scratch_bytes: int
    mpi: str = ""
    channels: str = ""


def step_of(env: Mapping[str, str]) -> TaskStep:
    """Return the step in a task's variables. Raises UsageError outside of a step."""
    try:
        job, step = int(env["SLURM_JOB_ID"]), int(env["SLURM_STEP_ID"])
        node, local = int(env["SLURM_NODEID"]), int(env["SLURM_LOCALID"])
        nr = tasks_per_node(env["SLURM_STEP_TASKS_PER_NODE"])[node]
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(
            "this process is not a task of a Slurm step",
            "start it with srun in an allocation: srun nearmetal slurm task ./program",
        ) from error
    return TaskStep(f"{job}.{step}.{node}", local, nr)


def tasks_per_node(text: str) -> list[int]:
    """Return the number for each node in `2(x3),1`. Raises ValueError."""
    found: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", word)
        if match is None or len(found) > _MAX_TASKS:
            raise ValueError(word)
        found += [int(match[1])] * min(int(match[2] or 1), _MAX_TASKS)
    return found


def variables(share: Share, env: Mapping[str, str]) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the program's whole environment, and the providers to link.

    The user's variables stay, except the rundir.
    """
    ours, providers = mpi_environment(share.mpi, share.channels, PROVIDERS)
    return ours | dict(env) | {"NEARMETAL_RUNDIR": SEGMENT}, providers


def enter(
    step: TaskStep, share: Share, env: Mapping[str, str], wait_s: float = JOIN_S
) -> dict[str, str]:
    """Put this task into the container of its step on this node; return the program's environment.

    Raises SlurmError if that is impossible. The working directory stays.
    """
    check_sizes(share.segment_bytes, share.scratch_bytes)
    whole, providers = variables(share, env)
    deadline = time.monotonic() + wait_s
    if step.local == 0:
        _make(step, share, providers)
        # A task that comes after the end of the first task would find nothing.
        _await(
            lambda: len(_joined()) >= step.nr - 1,
            deadline,
            f"step {step.name}: not all of its {step.nr} tasks on this node have started",
        )
    else:
        _join(step, deadline)
    return whole


def _await(there: Callable[[], bool], deadline: float, words: str) -> None:
    while not there():
        if time.monotonic() > deadline:
            raise SlurmError(words, "the messages of the other tasks give the reason")
        time.sleep(_LOOK_S)


def _joined() -> list[str]:
    return [name for name in os.listdir(HOME) if name.startswith("task-")]  # noqa: PTH208 - names


def _make(step: TaskStep, share: Share, providers: tuple[Path, ...]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        if _libc.unshare(_NEWUSER | holder.CLONE_NEWNS | holder.CLONE_NEWIPC) < 0:
            code = ctypes.get_errno()
            raise SlurmError(
                f"no user namespace: {os.strerror(code)}",
                "allow them on this node (sysctl user.max_user_namespaces, "
                "kernel.unprivileged_userns_clone), or use the plugin: --nm-node=container",
            )
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny", encoding="ascii")
        (own / "uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        (own / "gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
        holder.mount(None, "/", holder.MS_REC | holder.MS_SLAVE)
        safe = holder.MS_NOSUID | holder.MS_NODEV
        mount_scratch(share.scratch_bytes)
        for place in (HOME, SEGMENT, PROVIDERS):
            Path(place).mkdir(mode=0o700)
        holder.mount("tmpfs", SEGMENT, safe, f"mode=700,size={share.segment_bytes}")
        for path in providers:
            (Path(PROVIDERS) / path.name).symlink_to(path)
        replace_file(Path(HOME, _STEP), step.name, sync=False)
    except OSError as error:
        raise SlurmError(f"no container for step {step.name}: {error.strerror or error}") from error


def _join(step: TaskStep, deadline: float) -> None:
    found: list[int] = []

    def there() -> bool:
        found[:] = _spaces(step)
        return bool(found)

    words = f"step {step.name}: the first task on this node has not made the container"
    _await(there, deadline, words)
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


def _spaces(step: TaskStep) -> list[int]:
    """Return descriptors of the namespaces of the step's first task; [] while there are none.

    Only processes of our own user show their files, and another step has another name.
    """
    outside = Path("/proc/self/ns/user").stat().st_ino
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        opened: list[int] = []
        with contextlib.suppress(OSError):
            if entry.stat().st_uid != os.geteuid():
                continue
            # It has no namespaces of its own: other users may have put such a file, or a pipe.
            if (entry / "ns/user").stat().st_ino == outside:
                continue
            if (entry / "root" / HOME[1:] / _STEP).read_text(encoding="ascii") != step.name:
                continue
            for name, _ in _SPACES:
                opened.append(os.open(entry / "ns" / name, os.O_RDONLY | os.O_CLOEXEC))
            # The same name again: it was that process while the namespaces were opened.
            if (entry / "root" / HOME[1:] / _STEP).read_text(encoding="ascii") == step.name:
                return opened
        for descriptor in opened:
            os.close(descriptor)
    return []
