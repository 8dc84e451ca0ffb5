# SPDX-License-Identifier: Apache-2.0
"""Process 1 of a container: makes it from within, and then only collects orphans.

A job waits for this, so it imports little. The local backend has the same for its nodes, but
imports specs and plans with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

CLONE_NEWNET = 0x40000000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x4000000, 0x8000000, 0x20000000
CONTAINED = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 2, 4, 8, 0x4000, 1 << 19
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(kind: str | None, target: str, flags: int, data: str | None = None) -> None:
    """Mount a file system without a device; None: change how mounts propagate."""
    name = None if kind is None else kind.encode()
    options = None if data is None else data.encode()
    result = _libc.mount(name, os.fsencode(target), name, ctypes.c_ulong(flags), options)
    _check(result, f"mount {kind} on {target}")


def fresh_network() -> int:
    """Return a descriptor of a new network namespace; this process stays in its own."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(CLONE_NEWNET), "make a network")
        fresh = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter_network(here)
    finally:
        os.close(here)
    return fresh


def enter_network(descriptor: int) -> None:
    """Enter a network namespace; later children are in it, too."""
    _check(_libc.setns(descriptor, CLONE_NEWNET), "enter a network")


def own_pid() -> int:
    """Return our process id as our maker sees it; valid until /proc is mounted again."""
    return int(Path("/proc/self").readlink().name)


def start_ticks(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0: there is no such process."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0


def be_ordinary(own: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Let the kernel kill us and our children if memory is short, even if it spares slurmd."""
    if int(own.read_text(encoding="ascii")) < 0:
        own.write_text("0", encoding="ascii")


def _die_with_parent(signum: int) -> None:
    _check(_libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl")


def detach(but: int = 2) -> None:
    """Cut the ties to our maker: session, streams, descriptors. `but`: one that stays open."""
    os.setsid()
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, but)
    os.closerange(max(but + 1, 3), os.sysconf("SC_OPEN_MAX"))


def _collect() -> NoReturn:
    """Wait for orphans until SIGKILL; no process inside may signal process 1."""
    while True:
        signal.sigwait({signal.SIGCHLD})
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def hold(body: Callable[[], None]) -> int:
    """Fork process 1 of new namespaces, which runs `body` and stays; return its pid.

    `body` makes the container and records it last: until then process 1 dies with us, and
    afterwards the record suffices to end it. Raises OSError if `body` does. This process stays in
    the new namespaces, except the one of PIDs.
    """
    ready, tell = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _check(_libc.unshare(CONTAINED), "make namespaces")
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        try:
            _die_with_parent(signal.SIGKILL)
            be_ordinary()
            os.umask(0o022)
            body()
            _die_with_parent(0)
            os.write(tell, b"ok")
            detach()
            _collect()
        except BaseException as error:  # noqa: BLE001 - our maker shows it
            with suppress(OSError):
                os.write(tell, str(error).encode())
        os._exit(1)
    os.close(tell)
    words = b""
    while chunk := os.read(ready, 4096):
        words += chunk
    os.close(ready)
    if words != b"ok":
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise OSError(0, words.decode("utf-8", "replace") or "process 1 ended early")
    return pid
