# SPDX-License-Identifier: Apache-2.0
"""The identity of a cluster's process 1, because another process may get the same pid later."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_END_S = 10.0
CLUSTER = "run/nearmetal-cluster"


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the start of a process in ticks since boot; None if it is gone or a zombie."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def uptime_s(started: int) -> float:
    """Return the age of a process that started at this tick."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True)
class Init:
    """The living process 1 of a cluster."""

    pid: int
    started: int

    @property
    def inside(self) -> Path:
        """The cluster's volatile directory, as the machine sees it."""
        return Path(f"/proc/{self.pid}/root") / CLUSTER

    @property
    def proc(self) -> Path:
        """The cluster's own /proc."""
        return Path(f"/proc/{self.pid}/root/proc")

    def end(self) -> bool:
        """Kill it and so everything in the cluster; returns whether it is gone."""
        deadline = time.monotonic() + _END_S
        while start_time(self.pid) == self.started:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


def find_init(directory: Path) -> Init | None:
    """Return the living process 1 recorded in a cluster's directory."""
    try:
        record = json.loads((directory / "init.json").read_text(encoding="utf-8"))
        pid, started = int(record["pid"]), int(record["start_time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if record.get("boot_id") != boot_id() or start_time(pid) != started:
        return None
    return Init(pid, started)


def machine_pid(init: Init, inner: int) -> int:
    """Translate a pid of the cluster into one of the machine; 0 when it is gone."""
    try:
        wanted = (init.proc / str(inner) / "ns/pid_for_children").readlink()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    status = (entry / "status").read_text(encoding="utf-8", errors="replace")
                    chain = status.split("NSpid:", 1)[1].split("\n", 1)[0].split()
                    if chain[1:] == [str(inner), "1"] and (
                        (entry / "ns/pid_for_children").readlink() == wanted
                    ):
                        return int(entry.name)
    except OSError:
        pass
    return 0
