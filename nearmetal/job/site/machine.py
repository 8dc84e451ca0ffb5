# SPDX-License-Identifier: Apache-2.0
"""The abilities of this machine that decide how ranks meet, as facts."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import CommandError
from nearmetal.core.process import Command, Runner
from nearmetal.core.resources import find_tool
from nearmetal.core.text import printable

_INFO_S = 60.0
_MAX_REASON = 400
SHM = Path("/dev/shm")  # noqa: S108 - the place itself is what is examined
_PCI = "/sys/bus/pci/devices"
_IVSHMEM = ("0x1af4", "0x1110")
"""Vendor and device of QEMU's ivshmem (docs/specs/ivshmem-spec.rst of QEMU)."""


@dataclass(frozen=True)
class Usable:
    """Whether something works here, and why."""

    good: bool
    reason: str


@dataclass(frozen=True)
class MachineFacts:
    """What doctor needs to know. Sizes in bytes.

    `shm_free` None: /dev/shm is missing or not writable. `memlock` None: no limit.
    """

    told: bool
    rundir: str
    rundir_usable: Usable
    window: Usable
    cma: Usable
    segment: Usable
    tuning: Usable
    tuning_file: str
    shm_free: int | None
    memlock: int | None
    rdma: tuple[str, ...]
    shared_devices: tuple[str, ...]
    yama: int
    user_namespaces: Usable
    uid: int


def read_machine(env: Mapping[str, str], runner: Runner) -> MachineFacts:
    """Ask nearmetal-info and the kernel; `env`: the environment of the ranks."""
    told = _told(env, runner)
    rundir = told.get("rundir")
    place = rundir.get("path") if isinstance(rundir, dict) else ""
    tuning = told.get("tuning")
    tuned = tuning.get("path") if isinstance(tuning, dict) else ""
    return MachineFacts(
        told=bool(told),
        rundir=printable(str(place)),
        rundir_usable=_ability(rundir),
        window=_ability(told.get("window")),
        cma=_ability(told.get("cma"), "possible"),
        segment=_ability(told.get("segment")),
        tuning=_ability(tuning),
        tuning_file=printable(str(tuned)),
        shm_free=_free(SHM),
        memlock=_memlock(),
        rdma=_names(Path("/sys/class/infiniband")),
        shared_devices=_shared_devices(),
        yama=_yama(),
        user_namespaces=_user_namespaces(runner),
        uid=os.geteuid(),
    )


def _told(env: Mapping[str, str], runner: Runner) -> dict[str, object]:
    info = find_tool("nearmetal-info")
    if info is None:
        return {}
    done = runner.run(Command((str(info), "--json"), env=env, most=1 << 20), timeout_s=_INFO_S)
    try:
        answer = json.loads(done.text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _ability(answer: object, name: str = "usable") -> Usable:
    if not isinstance(answer, dict):
        return Usable(good=False, reason="nearmetal-info did not report it")
    reason = printable(str(answer.get("reason", "")))[:_MAX_REASON]
    return Usable(good=answer.get(name) is True, reason=reason)


def _free(directory: Path) -> int | None:
    """Return the free bytes of a writable directory; None if it cannot be used."""
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        if os.access(directory, os.W_OK | os.X_OK):
            return status.f_bavail * status.f_frsize
    return None


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _names(directory: Path) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(sorted(printable(path.name) for path in directory.iterdir()))
    return ()


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def _shared_devices() -> tuple[str, ...]:
    """Return the devices that may be memory of other virtual machines."""
    found = [str(path) for path in sorted(Path("/dev").glob("dax*"))]
    found += [
        f"ivshmem {device.name}"
        for device in sorted(Path(_PCI).glob("*"))
        if (_text(device / "vendor"), _text(device / "device")) == _IVSHMEM
    ]
    return tuple(map(printable, found))


def _yama() -> int:
    """Return the restriction of ptrace by Yama, which CMA obeys; 0 without Yama."""
    text = _text(Path("/proc/sys/kernel/yama/ptrace_scope"))
    return int(text) if text.isdigit() else 0


def _user_namespaces(runner: Runner) -> Usable:
    command = Command(("unshare", "--user", "--map-root-user", "--mount", "true"))
    try:
        done = runner.run(command, timeout_s=_INFO_S)
    except CommandError as error:
        return Usable(good=False, reason=printable(str(error)))
    return Usable(good=done.code == 0, reason=printable(done.error_tail)[:_MAX_REASON])
