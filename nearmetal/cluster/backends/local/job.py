# SPDX-License-Identifier: Apache-2.0
# Works by descriptors and system calls, as init.py does.
# ruff: noqa: PTH103, PTH115, PTH120, PTH123, PTH208, PTH211
"""The supervisor of one job: private places in its nodes, and the end of all its processes.

Started as a script in the cluster's namespaces (`python -I -S job.py CONFIG`, JSON). It belongs to
no session of `nearmetal run` and reads a pipe that only `run` writes. The job ends if that pipe
ends, a node ends, or the time is over. Then nothing of it runs, and its directories are removed.

    supervisor                      mount namespace with the TMPDIR of the job
    ├── process 1 of the launcher   confined as a node, in the network of the cluster
    └── per node: process 1         mount and PID namespace of the job within the node

The launcher reaches nodes by door.py. Each place has its own /dev/shm and /tmp, and all of them
have the same new file system at /run/job, the TMPDIR of the ranks. They have no name elsewhere: the
kernel frees them with the last process.
Every process 1 reads a pipe that only the supervisor writes: a killed supervisor ends the ranks.

Prints one JSON line when the places exist: {"pid": N} or {"error": "..."}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn, TextIO

sys.path.append(__file__.rpartition("/nearmetal/")[0])  # -I leaves it out

from nearmetal.cluster.backends.local import confine, door, init, mounts

TMP = "/run/job"
"""The TMPDIR of the ranks, in all places of the job."""

PRIVATE = ("/dev/shm", "/tmp")  # noqa: S108 - mount points

DOOR = ".door"
"""A record of the job that is not of a node."""
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
KINDS = ("uts", "ipc", "net", "pid", "mnt")
"""The namespaces of a node. All of them belong to the cluster's user namespace, which is ours."""

PF_EXITING = 4
"""Among the flags of a process in /proc/PID/stat (include/linux/sched.h)."""

END_S = 15.0
PAUSE_S = 0.01


def namespace(pid: int | str, kind: str) -> str:
    """Return the identity of a namespace of a process. Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def enter(pid: int) -> None:
    """Enter all namespaces of a process that are not ours; children get its PID namespace."""
    foreign = [kind for kind in KINDS if namespace(pid, kind) != namespace("self", kind)]
    held = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in foreign]
    for descriptor in held:
        confine.check(confine.libc.setns(descriptor, 0), "enter the node")
        os.close(descriptor)


def copy_tree(path: str) -> int:
    """Return a descriptor of a new mount of the same files, which other namespaces may attach."""
    flags = ctypes.c_uint(OPEN_TREE_CLONE | os.O_CLOEXEC)
    tree = confine.libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)
    return confine.check(tree, f"copy the mount {path}")


def attach_tree(tree: int, path: str) -> None:
    """Attach such a mount here."""
    flags = ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH)
    result = confine.libc.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(path), flags)
    confine.check(result, f"mount {path}")


def make_private(nr_bytes: int) -> None:
    """Mount new file systems, and show again what `show:` of the spec put into the old ones."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        points = [line.split()[4] for line in stream]
    held = mounts.hold([p for p in points if p.startswith(tuple(f"{own}/" for own in PRIVATE))])
    options = f"mode=1777,size={nr_bytes}"
    for place in PRIVATE:
        mounts.mount("tmpfs", place, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, options)
    mounts.reveal(held)


def own_mounts(config: init.Config) -> None:
    """Leave the cluster's mounts for our own, with the TMPDIR of the job."""
    init.unshare(confine.CLONE_NEWNS)
    os.makedirs(TMP, exist_ok=True)
    options = f"mode=1777,size={config['tmp_bytes']}"
    mounts.mount("tmpfs", TMP, "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, options)


def launcher_place(config: init.Config) -> None:
    """Set up the launcher's place, as its process 1: like a node, with the cluster's network."""
    python = os.readlink(f"{init.CLUSTER}/python")
    more = {
        "/etc/hosts": f"{init.CLUSTER}/hosts",
        f"{init.CLUSTER}/confine.py": f"{init.CLUSTER}/confine.py",
        confine.DOOR: record(DOOR),
        TMP: TMP,
    }
    parts = init.place_parts(config["hosts"][0]) | more
    mounts.own_root(f"{init.CLUSTER}/root", parts, config["show"], config["tmp_bytes"])
    os.symlink(python, f"{init.CLUSTER}/python")


def node_place(shm_bytes: int, tree: int) -> None:
    """Set up the job's place in a node, as its process 1."""
    make_private(shm_bytes)
    os.makedirs(TMP, exist_ok=True)
    attach_tree(tree, TMP)
    if os.getpid() == 1:
        with contextlib.suppress(OSError):
            # A kernel may forbid it where parts of /proc are hidden: the node's own works as well.
            mounts.own_proc("/proc")


def reap(_signum: int = 0, _frame: object = None) -> None:
    """Collect every process that has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def stay(lifeline: int) -> NoReturn:
    """Work as process 1 of the job in a node, until the supervisor ends."""
    os.setsid()
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.dup2(lifeline, 3)
    os.closerange(4, 4096)
    while os.read(3, 1):
        pass
    if os.getpid() != 1:
        # Our end ends no other process, and its environment may be empty.
        end([], {namespace("self", "mnt")})
    os._exit(0)


def become_first(users: int | None, lifeline: int, tell: socket.socket) -> NoReturn:
    """Work as process 1 of a place that is set up."""
    signal.signal(signal.SIGCHLD, reap)
    confine.be_unreadable()
    confine.confine(users)
    tell.send(b"ok")
    stay(lifeline)


def enter_node(pid: int, tree: int, shm_bytes: int, lifeline: int, tell: socket.socket) -> None:
    """Fork process 1 of the job within a node, and return in its parents only."""
    own_pids = namespace(pid, "pid") != namespace("self", "pid")
    users = confine.open_users()
    enter(pid)
    # Only a process of the node's PID namespace may make one within it.
    if os.fork():
        return
    init.unshare(confine.CLONE_NEWNS | (confine.CLONE_NEWPID if own_pids else 0))
    if os.fork():
        return
    node_place(shm_bytes, tree)
    become_first(users, lifeline, tell)


def make_launcher(config: init.Config, lifeline: int, tell: socket.socket) -> None:
    """Fork process 1 of the launcher's place, and return in its parent only."""
    users = confine.open_users()
    init.unshare(confine.CLONE_NEWNS | confine.CLONE_NEWIPC | confine.CLONE_NEWPID)
    if os.fork():
        return
    launcher_place(config)
    become_first(users, lifeline, tell)


def start_place(
    name: str, lifeline: tuple[int, int], make: Callable[[int, socket.socket], None]
) -> tuple[int, door.Place]:
    """Let `make` fork process 1 of a place of the job; return its pidfd, and the place."""
    ready, tell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ready.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    between = os.fork()
    if between == 0:
        try:
            os.close(lifeline[1])
            ready.close()
            make(lifeline[0], tell)
        except BaseException as error:  # noqa: BLE001 - the supervisor reports it
            with contextlib.suppress(OSError):
                tell.send(str(error).encode() or b"?")
        os._exit(0)
    tell.close()
    with ready:
        # The kernel translates the sender's pid into one of our namespace.
        words, more, _, _ = ready.recvmsg(4096, socket.CMSG_SPACE(door.CREDENTIALS.size))
    os.waitpid(between, 0)
    if words != b"ok" or not more:
        reason = words.decode("utf-8", "replace") or "process 1 of the job ended early"
        raise OSError(0, f"{name}: {reason}")
    first: int = door.CREDENTIALS.unpack(more[0][2])[0]
    place = door.Place(first, confine.start_time(first), frozenset(os.sched_getaffinity(0)))
    init.write_file(record(name), f"{first} {place.begin}\n")
    return os.pidfd_open(first), place


def start_node(name: str, shm_bytes: int, lifeline: tuple[int, int]) -> tuple[int, int, door.Place]:
    """Make the job's place in a node; return pidfds of the node and of the job's process 1."""
    with open(f"{init.CLUSTER}/nodes/{name}/pid", encoding="ascii") as stream:
        pid, begin = map(int, stream.read().split())
    node = os.pidfd_open(pid)
    if confine.start_time(pid) != begin:
        raise OSError(0, f"node {name} is not up")
    with open(f"{init.CLUSTER}/nodes/{name}/cpus", encoding="ascii") as stream:
        cpus = frozenset(map(int, stream.read().split(",")))
    tree = copy_tree(TMP)
    first, place = start_place(
        name, lifeline, lambda end, tell: enter_node(pid, tree, shm_bytes, end, tell)
    )
    os.close(tree)
    return node, first, place._replace(cpus=cpus)


def record(name: str) -> str:
    """Return the file with the pid of the job's process 1 in a place."""
    return f"{init.CLUSTER}/jobs/{CONFIG['job']}/{name}"


def members(places: set[str], marker: bytes) -> list[int]:
    """Return the processes in the job's mount namespaces, and those that carry its marker."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if namespace(entry, "mnt") in places:
                found.append(int(entry))
                continue
            with open(f"/proc/{entry}/environ", "rb") as stream:
                if marker in stream.read(1 << 20).split(b"\0"):
                    found.append(int(entry))
    return found


def end(inits: list[int], places: set[str]) -> None:
    """Kill every process of the job; the end of a process 1 is that of its PID namespace."""
    for process in inits:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    marker = b"NEARMETAL_JOB=" + CONFIG["job"].encode()
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        found = members(places, marker)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def is_ending(process: int) -> bool:
    """Whether the process of a pidfd has begun to end.

    A killed process 1 first ends all processes of its PID namespace. A launcher elsewhere notices
    that, and may end the job before the pidfd is ready.
    """
    try:
        with open(f"/proc/self/fdinfo/{process}", encoding="ascii") as stream:
            pid = stream.read().rpartition("\nPid:")[2].split()[0]
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return bool(int(stream.read().rpartition(")")[2].split()[6]) & PF_EXITING)
    except (OSError, IndexError):
        return True


def wait(
    watched: dict[int, str], deadline_s: float | None, calls: Mapping[int, Callable[[], None]]
) -> str:
    """Return why the job must end, "" if `run` asks for it.

    `watched`: pidfds with the reason. `calls`: descriptors with what answers them.
    """
    poll = select.poll()
    for descriptor in (0, *calls, *watched):
        poll.register(descriptor, select.POLLIN)
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    words = b""
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = [descriptor for descriptor, _ in poll.poll(left)]
        if not ready and left == 0:
            return f"it still runs after {deadline_s:.0f} s"
        for descriptor in ready:
            if descriptor in watched:
                return watched[descriptor]
            if descriptor in calls:
                calls[descriptor]()
        if 0 in ready:
            chunk = os.read(0, 4096)
            words = (words + chunk)[-64:]
            if not chunk and words.endswith(b"done\n"):
                return next((watched[process] for process in watched if is_ending(process)), "")
            if not chunk:
                return "`nearmetal run` has ended"


def directories(config: init.Config) -> list[str]:
    """Return every directory of the job that has a name outside it."""
    bases = [f"{init.CLUSTER}/segments/{host}/{config['job']}" for host in config["hosts"]]
    return [os.path.dirname(record("x")), *(b + end for b in bases for end in config["suffixes"])]


def make_places(
    config: init.Config, watched: dict[int, str], inits: list[int]
) -> dict[str, door.Place]:
    """Make all places of the job; note their processes 1 as soon as they exist."""
    lifeline = os.pipe()
    own_mounts(config)
    first, launcher = start_place(door.LAUNCHER, lifeline, partial(make_launcher, config))
    inits.append(first)
    watched[first] = "process 1 of the launcher has ended"
    made = {door.LAUNCHER: launcher}
    for name, shm_bytes in config["nodes"].items():
        node, first, made[name] = start_node(name, shm_bytes, lifeline)
        inits.append(first)
        reason = f"process 1 of node {name}, or of the job in it, has ended"
        watched |= {node: reason, first: reason}
    return made


def supervise(config: init.Config) -> None:
    """Make the places, wait for a reason to end the job, end it."""
    watched: dict[int, str] = {}
    inits: list[int] = []
    spaces: set[str] = set()
    try:
        os.makedirs(os.path.dirname(record("x")), mode=0o755)
        with door.listen(record(DOOR)) as entrance:
            places = make_places(config, watched, inits)
            spaces |= {namespace(place.pid, "mnt") for place in places.values()}
            spaces.add(namespace("self", "mnt"))
            signal.signal(signal.SIGCHLD, reap)
            say(sys.stdout, json.dumps({"pid": os.getpid()}))
            calls = {entrance.fileno(): partial(door.answer, entrance, places, config["umask"])}
            reason = wait(watched, config["deadline_s"], calls)
        if reason:
            say(sys.stderr, f"nearmetal: job {config['job']} is ended: {reason}")
        end(inits, spaces)
        while os.read(0, 4096):
            pass
    finally:
        end(inits, spaces)
        for path in directories(config):
            shutil.rmtree(path, ignore_errors=True)


def say(stream: TextIO, line: str) -> None:
    """Print a line; the reader may have been killed."""
    with contextlib.suppress(OSError):
        print(line, file=stream, flush=True)


CONFIG: init.Config = {}


def main() -> int:
    """Supervise one job."""
    CONFIG.update(json.loads(sys.argv[1]))
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    CONFIG["umask"] = os.umask(0o022)
    try:
        supervise(CONFIG)
    except OSError as error:
        say(sys.stdout, json.dumps({"error": error.strerror or str(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
