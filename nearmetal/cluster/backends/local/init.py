# SPDX-License-Identifier: Apache-2.0
# Works by descriptors and system calls, and imports little to start at once: no pathlib.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH106, PTH108, PTH110, PTH114, PTH115, PTH120
# ruff: noqa: PTH123, PTH208
"""Process 1 of the cluster and of each node: makes the namespaces, then only reaps.

Started as a script (`python -I -S init.py cluster|node|remove`, its configuration as JSON on
standard input), by root or by an ordinary user. It needs only the standard library.

    cluster   the outer set of namespaces: launcher, bridge, segment directories. The end of its
              process 1 removes the whole cluster, because everything lives inside.
    node      one node within it: own PID, IPC, UTS, mount and network namespace, a read-only
              file system, private /tmp, /dev/shm and /run.
    remove    ends one node and removes its records.

A process 1 without a record dies with its creator (PDEATHSIG). A recorded one is found, and used
or removed. So a kill at any moment leaves no unknown process.
Prints one JSON line: {"pid": N} or {"error": "..."}.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

Config = dict[str, Any]
Held = list[tuple[str, int]]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CONTAINED = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
AT_FDCWD, AT_RECURSIVE, SYS_MOUNT_SETATTR = -100, 0x8000, 442
SYS_PIVOT_ROOT = 155 if os.uname().machine == "x86_64" else 41
MOUNT_ATTR_RDONLY = 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

CLUSTER = "/run/nearmetal-cluster"
"""Volatile state of the outer namespace, which ends with its process 1."""

PRIVATE = ("/tmp", "/dev/shm", "/run")  # noqa: S108 - mount points, not files of ours
"""Mount points that each node has for itself."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Raise OSError with `what` for a failed system call."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


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


def unshare(flags: int) -> None:
    """Leave the given namespaces for new ones."""
    check(libc.unshare(flags), "make namespaces")


def die_with_parent(signum: int) -> None:
    """Get this signal when the creating process ends; 0: none."""
    check(libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl")


def read_only(path: str) -> None:
    """Make a mount and all below it read-only."""
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    buffer = ctypes.create_string_buffer(attributes)
    result = libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, buffer, len(attributes)
    )
    check(result, f"make {path} read-only")


def loopback_up() -> None:
    """Bring up `lo` of the current network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def write_file(path: str, text: str) -> None:
    """Write a file, whole or not at all."""
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(path + ".new", path)


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


def reveal(held: Held, root: str = "") -> None:
    """Bind the held paths back, read-only, at the same place below `root`."""
    for path, descriptor in held:
        target = root + path
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "a").close()
        bind(descriptor, target)
        read_only(target)
        os.close(descriptor)


def private_tmpfs(root: str, shm_bytes: int) -> None:
    """Give `root` its own /tmp, /dev/shm and /run."""
    flags = MS_NOSUID | MS_NODEV
    for place in PRIVATE:
        options = "mode=755,size=64m" if place == "/run" else f"mode=1777,size={shm_bytes}"
        mount("tmpfs", root + place, "tmpfs", flags, options)


def machine_pid() -> int:
    """Return our process id as the creator sees it; valid until /proc is mounted again."""
    return int(os.readlink("/proc/self"))


def start_time(pid: int) -> int:
    """Return the start of a process in clock ticks since boot: with the pid, its identity."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
        return int(stream.read().rpartition(")")[2].split()[19])


def reap() -> NoReturn:
    """Work as process 1: collect every orphan, and end on SIGTERM."""
    signals = {signal.SIGCHLD, signal.SIGTERM}
    while True:
        if signal.sigwait(signals) == signal.SIGTERM:
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def quiet() -> None:
    """Cut the ties to the creator: session, streams, descriptors, directory."""
    os.setsid()
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, 4096)


def become_user_root() -> None:
    """Enter a user namespace in which the calling user is root."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {uid} 1"),
        ("gid_map", f"0 {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as stream:
            stream.write(text)


def contained(body: Callable[[Config], None], config: Config) -> int:
    """Fork process 1 of new namespaces, and return its pid after `body` has recorded it.

    Returns in the creator only; raises OSError with the reason if `body` fails.
    """
    ready, tell = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
    unshare(CONTAINED & ~CLONE_NEWPID if config.get("pids") == "cluster" else CONTAINED)
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        try:
            die_with_parent(signal.SIGKILL)
            os.umask(0o022)
            body(config)
            die_with_parent(0)
            os.write(tell, b"ok")
            os.close(tell)
            quiet()
            reap()
        except BaseException as error:  # noqa: BLE001 - the creator reports it
            with contextlib.suppress(OSError):
                os.write(tell, str(error).encode())
        os._exit(1)
    os.close(tell)
    words = b""
    while chunk := os.read(ready, 4096):
        words += chunk
    if words != b"ok":
        os.kill(pid, signal.SIGKILL)
        raise OSError(0, words.decode("utf-8", "replace") or "process 1 ended early")
    return pid


def cluster_body(config: Config) -> None:
    """Set up the outer namespace and record its process 1 in the state directory."""
    pid = machine_pid()
    identity = {"pid": pid, "start_time": start_time(pid), "boot_id": config["boot_id"]}
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    record = os.open(config["directory"], os.O_PATH | os.O_DIRECTORY)
    held = hold(config["show"])
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    private_tmpfs("", config["tmp_bytes"])
    reveal(held)
    for name in ("", "/nodes", "/resources", "/segments", "/shared", "/root"):
        os.makedirs(CLUSTER + name, mode=0o755, exist_ok=True)
    os.mkdir("/run/shared")  # nodes have it too: a TMPDIR for all places must exist here
    write_file(CLUSTER + "/agent", config["agent"])
    os.chmod(CLUSTER + "/agent", 0o755)  # noqa: S103 - a program
    write_file(CLUSTER + "/hosts", config["hosts"])
    mount(CLUSTER + "/hosts", "/etc/hosts", None, MS_BIND)
    socket.sethostname("launcher")
    loopback_up()
    os.fchdir(record)
    write_file("init.json", json.dumps(identity) + "\n")


def node_body(config: Config) -> None:
    """Set up one node from within the cluster's namespaces."""
    name, root = config["name"], CLUSTER + "/root"
    pid = machine_pid()
    begin = start_time(pid)
    node = f"{CLUSTER}/nodes/{name}"
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    held = hold(config["show"])
    segments = os.open(f"{CLUSTER}/segments/{config['host']}", os.O_PATH)
    shared = os.open(f"{CLUSTER}/shared/{config['host']}", os.O_PATH)
    agent = os.open(CLUSTER + "/agent", os.O_PATH)
    hosts = os.open(f"{node}/hosts", os.O_PATH)
    record = os.open(node, os.O_PATH | os.O_DIRECTORY)
    mount("/", root, None, MS_BIND | MS_REC)
    for place in (*PRIVATE, "/etc/hosts"):
        # The launcher's own, with the rundirs of all hosts: a node must not have them, even hidden.
        check(libc.umount2(os.fsencode(root + place), MNT_DETACH), f"leave {place}")
    read_only(root)
    bind(hosts, root + "/etc/hosts")
    private_tmpfs(root, config["shm_bytes"])
    new_pts(root)
    for path, descriptor in (("/run/nearmetal", segments), ("/run/shared", shared)):
        os.mkdir(root + path)
        bind(descriptor, root + path)
    os.mkdir(root + CLUSTER)
    open(root + CLUSTER + "/agent", "a").close()
    bind(agent, root + CLUSTER + "/agent")
    reveal(held, root)
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    with contextlib.suppress(OSError):
        # It shows this node's network devices. If the kernel forbids it, the machine's sysfs stays.
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY
        mount("sysfs", root + "/sys", "sysfs", flags)
    os.chdir(root)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "detach the old root")
    os.chdir("/")
    socket.sethostname(config["hostname"])
    loopback_up()
    os.fchdir(record)
    write_file("pid", f"{pid} {begin}\n")


def new_pts(root: str) -> None:
    """Mount the node's own pseudo-terminals."""
    mount("devpts", root + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
    if not os.path.islink(root + "/dev/ptmx"):
        mount(root + "/dev/pts/ptmx", root + "/dev/ptmx", None, MS_BIND)


def start_cluster(config: Config) -> int:
    """Make the outer namespaces; their process 1 dies with the caller until it is recorded."""
    if config["user_namespace"]:
        become_user_root()
    die_with_parent(signal.SIGKILL)
    if os.getppid() == 1:
        raise OSError(0, "the creator has ended")
    return contained(cluster_body, config)


def start_node(config: Config) -> int:
    """Make one node; its pid is recorded before any other process needs it."""
    os.makedirs(f"{CLUSTER}/nodes/{config['name']}", exist_ok=True)
    write_file(f"{CLUSTER}/nodes/{config['name']}/hosts", config["hosts"])
    return contained(node_body, config)


def end_members(pid: int) -> None:
    """End the processes of a node without its own PID namespace, which outlive its process 1."""
    node = os.readlink(f"/proc/{pid}/ns/mnt")
    for _ in range(100):
        found = False
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == pid:
                continue
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/mnt") == node:
                    os.kill(int(entry), signal.SIGKILL)
                    found = True
        if not found:
            return
        time.sleep(0.005)


def remove(config: Config) -> int:
    """End a node in any state and remove its records; returns its pid or 0."""
    node, pid = f"{CLUSTER}/nodes/{config['name']}", 0
    with contextlib.suppress(OSError, ValueError):
        with open(node + "/pid", encoding="ascii") as stream:
            pid, begin = map(int, stream.read().split())
        if start_time(pid) == begin:
            end_members(pid)
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while start_time(pid) == begin and time.monotonic() < deadline:
                time.sleep(0.005)
    for name in ("pid", "cpus", "hosts", "pid.new", "cpus.new", "hosts.new"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{node}/{name}")
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(node)
    return pid


def main() -> int:
    """Run one mode; the answer is one JSON line."""
    modes: dict[str, Callable[[Config], int]] = {
        "cluster": start_cluster,
        "node": start_node,
        "remove": remove,
    }
    answer: dict[str, int | str]
    try:
        answer = {"pid": modes[sys.argv[1]](json.load(sys.stdin))}
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    print(json.dumps(answer))  # noqa: T201 - this script's only output
    return 0 if "pid" in answer else 1


if __name__ == "__main__":
    sys.exit(main())
