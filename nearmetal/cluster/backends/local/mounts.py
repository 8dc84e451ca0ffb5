# SPDX-License-Identifier: Apache-2.0
# Works by system calls, and imports little to start at once: no pathlib.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH120, PTH123, PTH208, PTH211
"""The file systems of the launcher's place and of nodes. Errors are OSError with the reason.

They are mounted with the rights of the cluster's user namespace. The processes of nodes lack these
rights, so they cannot undo it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Mapping, Sequence

from nearmetal.cluster.backends.local.confine import check, libc

Held = list[tuple[str, int]]

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, SYS_MOUNT_SETATTR = -100, 0x8000, 442
SYS_PIVOT_ROOT = 155 if os.uname().machine == "x86_64" else 41
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

PRIVATE = ("/tmp", "/dev/shm", "/run")  # noqa: S108 - mount points, not files of ours
"""Mount points that each node has for itself."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "infiniband")
"""The devices of a node. Every user may open them; the last is the directory of RDMA adapters."""

HIDDEN = ("firmware", "kernel/debug", "kernel/tracing", "kernel/security", "fs/cgroup", "fs/pstore")
"""Directories of /sys that only administrators need."""


def mount(
    source: str | None,
    target: str,
    kind: str | None = None,
    flags: int = 0,
    data: str | None = None,
) -> None:
    """Mount; the arguments are those of the system call."""
    encoded = [None if x is None else os.fsencode(x) for x in (source, target, kind, data)]
    result = libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3])
    check(result, f"mount {kind or source} on {target}")


def read_only(path: str, *, devices: bool = False) -> None:
    """Make a mount and all below it read-only, without devices unless they are wanted."""
    wanted = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (0 if devices else MOUNT_ATTR_NODEV)
    attributes = struct.pack("QQQQ", wanted, 0, 0, 0)
    buffer = ctypes.create_string_buffer(attributes)
    result = libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, buffer, len(attributes)
    )
    check(result, f"make {path} read-only")


def bind(descriptor: int, target: str) -> None:
    """Bind the file of an O_PATH descriptor, also if a newer mount hides its path."""
    mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)


def hold(paths: Sequence[str]) -> Held:
    """Open every existing path that a private mount will hide."""
    held = []
    for path in paths:
        hidden = any(path == p or path.startswith(p + "/") for p in PRIVATE)
        if hidden and os.path.exists(path):
            held.append((path, os.open(path, os.O_PATH | os.O_CLOEXEC)))
    return held


def attach(descriptor: int, target: str, *, writable: bool = True) -> None:
    """Bind an O_PATH descriptor at `target`, which is made if necessary; a file is read-only."""
    directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    if directory:
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    bind(descriptor, target)
    if not (directory and writable):
        read_only(target)
    os.close(descriptor)


def reveal(held: Held, root: str = "") -> None:
    """Bind the held paths back, read-only, at the same place below `root`."""
    for path, descriptor in held:
        attach(descriptor, root + path, writable=False)


def private_tmpfs(root: str, shm_bytes: int) -> None:
    """Give `root` its own /tmp, /dev/shm and /run."""
    flags = MS_NOSUID | MS_NODEV
    for place in PRIVATE:
        options = "mode=755,size=64m" if place == "/run" else f"mode=1777,size={shm_bytes}"
        mount("tmpfs", root + place, "tmpfs", flags, options)


def own_devices(dev: str) -> None:
    """Replace the machine's devices by DEVICES; others of the same mount are out of reach."""
    mount("tmpfs", dev, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k")
    # GPUs of NVIDIA, with the permissions that they have outside: nvidia0, nvidiactl, nvidia-uvm.
    gpus = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    for name in (*DEVICES, *gpus):
        source, target = f"/dev/{name}", f"{dev}/{name}"
        if os.path.isdir(source):
            os.mkdir(target)
        elif os.path.exists(source):
            open(target, "w").close()
        else:
            continue
        mount(source, target, None, MS_BIND | MS_REC)
    for name, number in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{number}", f"{dev}/{name}")
    os.symlink("pts/ptmx", dev + "/ptmx")
    for name in ("pts", "shm"):
        os.mkdir(f"{dev}/{name}")
    read_only(dev, devices=True)


def open_network(settings: str) -> None:
    """Allow low ports and ping, which are harmless on a node's own network, without privileges."""
    for name, value in (("ip_unprivileged_port_start", "0"), ("ping_group_range", "0 0")):
        with open(f"{settings}/{name}", "w", encoding="ascii") as stream:
            stream.write(value)


def own_sys(sys: str) -> None:
    """Mount /sys with our network devices, and hide what is for administrators."""
    with contextlib.suppress(OSError):
        # If the kernel forbids it, the machine's sysfs stays, which is read-only too.
        mount("sysfs", sys, "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    for name in HIDDEN:
        if os.path.isdir(f"{sys}/{name}"):
            hide(f"{sys}/{name}")


def hide(path: str) -> None:
    """Cover a file or a directory with an empty one."""
    if os.path.isdir(path):
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    else:
        mount("/dev/null", path, None, MS_BIND)
        read_only(path, devices=True)


def own_proc(proc: str) -> None:
    """Mount /proc of our PID namespace, with the kernel's own files read-only or hidden.

    Root of the machine owns these files, so in a node of root it could use them without any
    capability. What only root may read is hidden.
    """
    mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    open_network(proc + "/sys/net/ipv4")
    for name in sorted(os.listdir(proc)):
        path = f"{proc}/{name}"
        mode = os.lstat(path).st_mode
        if name.isdigit() or stat.S_ISLNK(mode):
            continue
        if not mode & stat.S_IROTH:
            hide(path)
        elif stat.S_ISDIR(mode) or mode & 0o222:
            mount(path, path, None, MS_BIND)
            read_only(path)


def own_root(root: str, parts: Mapping[str, str], show: Sequence[str], nr_bytes: int) -> None:
    """Make what a confined place sees, and make it our root directory.

    It is the launcher's, read-only, with its own /tmp, /dev/shm and /run of `nr_bytes` each.
    `parts`: files (read-only) and directories by their place in it.
    """
    held = hold(show)
    opened = {place: os.open(source, os.O_PATH | os.O_CLOEXEC) for place, source in parts.items()}
    mount("/", root, None, MS_BIND | MS_REC)
    for place in (*PRIVATE, "/etc/hosts"):
        # The launcher's own, with the rundirs of all hosts: no place must have them, even hidden.
        check(libc.umount2(os.fsencode(root + place), MNT_DETACH), f"leave {place}")
    read_only(root)
    own_devices(root + "/dev")
    private_tmpfs(root, nr_bytes)
    mount("devpts", root + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
    for place, descriptor in opened.items():
        attach(descriptor, root + place)
    reveal(held, root)
    own_proc(root + "/proc")
    own_sys(root + "/sys")
    os.chdir(root)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "detach the old root")
    os.chdir("/")
