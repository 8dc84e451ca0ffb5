# SPDX-License-Identifier: Apache-2.0
# Works by descriptors and system calls, and imports little to start at once: no pathlib.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH106, PTH108, PTH115
# ruff: noqa: PTH123, PTH208, PTH211
"""Process 1 of the cluster and of each node: makes the namespaces, then only reaps.

Started as a script (`python -I -S init.py cluster|node|remove`, its configuration as JSON on
standard input), by root or by an ordinary user. It needs only the standard library.

    cluster   the outer set of namespaces: launcher, bridge, rundirs. The end of its
              process 1 removes the whole cluster, because everything lives inside.
    node      one node within it: own PID, IPC, UTS, mount and network namespace, a read-only
              file system, private /tmp, /dev/shm and /run; confined as in confine.py.
    remove    ends one node and removes its records.

A process 1 without a record dies with its creator (PDEATHSIG). A recorded one is found, and used
or removed. So a kill at any moment leaves no unknown process.
Prints one JSON line: {"pid": N} or {"error": "..."}.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

sys.path.append(__file__.rpartition("/nearmetal/")[0])  # -I leaves it out

from nearmetal.cluster.backends.local.confine import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    USERS,
    be_unreadable,
    check,
    confine,
    libc,
    open_users,
    start_time,
)
from nearmetal.cluster.backends.local.mounts import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    hold,
    mount,
    own_root,
    private_tmpfs,
    read_only,
    reveal,
)

Config = dict[str, Any]

CONTAINED = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

CLUSTER = "/run/nearmetal-cluster"
"""Volatile state of the outer namespace, which ends with its process 1."""


def unshare(flags: int) -> None:
    """Leave the given namespaces for new ones."""
    check(libc.unshare(flags), "make namespaces")


def die_with_parent(signum: int) -> None:
    """Get this signal when the creating process ends; 0: none."""
    check(libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl")


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


def machine_pid() -> int:
    """Return our process id as the creator sees it; valid until /proc is mounted again."""
    return int(os.readlink("/proc/self"))


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


def map_ids(pid: int) -> None:
    """Give the new user namespace of a process all ids of ours, unchanged."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", encoding="ascii") as stream:
            ranges = [line.split() for line in stream]
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as stream:
            stream.write("".join(f"{first} {first} {count}\n" for first, _, count in ranges))


def own_user_namespace() -> None:
    """Enter a user namespace: an ordinary user is its root, and root has all ids as before.

    The kernel ids stay the caller's, so files are read as the caller reads them.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        map_from_outside()
        return
    unshare(CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {uid} 1"),
        ("gid_map", f"0 {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as stream:
            stream.write(text)


def map_from_outside() -> None:
    """Enter a user namespace with all ids, which only a process of the old one can map."""
    entered, tell = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        code = 1
        os.close(tell)
        with contextlib.suppress(OSError):
            if os.read(entered, 1):
                map_ids(os.getppid())
                code = 0
        os._exit(code)
    try:
        unshare(CLONE_NEWUSER)
        os.write(tell, b"+")
    finally:
        os.close(tell)
        os.close(entered)
        status = os.waitpid(mapper, 0)[1]
    if status:
        raise OSError(0, "make namespaces: the ids of the user namespace cannot be mapped")


def keep_node_users(path: str) -> None:
    """Make the user namespace of the nodes, which owns nothing, and keep it as a file."""
    entered, tell = os.pipe()
    waiting, end = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.close(end)
            unshare(CLONE_NEWUSER)
            os.write(tell, b"+")
            os.read(waiting, 1)
        os._exit(0)
    os.close(tell)
    try:
        if not os.read(entered, 1):
            raise OSError(0, "make namespaces: no second user namespace within the first")
        map_ids(child)
        open(path, "w").close()
        mount(f"/proc/{child}/ns/user", path, None, MS_BIND)
    finally:
        for descriptor in (entered, waiting, end):
            os.close(descriptor)
        os.waitpid(child, 0)


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
    for name in ("", "/jobs", "/nodes", "/resources", "/segments", "/shared", "/root"):
        os.makedirs(CLUSTER + name, mode=0o755, exist_ok=True)
    os.mkdir("/run/shared")  # nodes have it too: a TMPDIR for all places must exist here
    write_file(CLUSTER + "/agent", config["agent"])
    os.chmod(CLUSTER + "/agent", 0o755)  # noqa: S103 - a program
    write_file(CLUSTER + "/confine.py", config["confine"])
    # The program that enters nodes: not even a handle of it (/proc/PID/exe) can be written.
    mount(config["python"], config["python"], None, MS_BIND)
    read_only(config["python"])
    os.symlink(config["python"], CLUSTER + "/python")
    if config["user_namespace"]:
        keep_node_users(USERS)
    write_file(CLUSTER + "/hosts", config["hosts"])
    mount(CLUSTER + "/hosts", "/etc/hosts", None, MS_BIND)
    socket.sethostname("launcher")
    loopback_up()
    os.fchdir(record)
    write_file("init.json", json.dumps(identity) + "\n")


def place_parts(host: str) -> dict[str, str]:
    """Return what every confined place of a host sees beside the files of the machine."""
    return {
        "/run/nearmetal": f"{CLUSTER}/segments/{host}",
        "/run/shared": f"{CLUSTER}/shared/{host}",
        CLUSTER + "/agent": CLUSTER + "/agent",
    }


def node_body(config: Config) -> None:
    """Set up one node from within the cluster's namespaces."""
    name, host = config["name"], config["host"]
    pid = machine_pid()
    begin = start_time(pid)
    node = f"{CLUSTER}/nodes/{name}"
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    record = os.open(node, os.O_PATH | os.O_DIRECTORY)
    users = open_users()
    parts = place_parts(host) | {"/etc/hosts": f"{node}/hosts"}
    own_root(CLUSTER + "/root", parts, config["show"], config["shm_bytes"])
    socket.sethostname(config["hostname"])
    loopback_up()
    be_unreadable()
    confine(users)
    os.fchdir(record)
    write_file("pid", f"{pid} {begin}\n")


def start_cluster(config: Config) -> int:
    """Make the outer namespaces; their process 1 dies with the caller until it is recorded."""
    if config["user_namespace"]:
        own_user_namespace()
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
