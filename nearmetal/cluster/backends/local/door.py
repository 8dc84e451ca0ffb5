# SPDX-License-Identifier: Apache-2.0
# Works by descriptors and system calls, as job.py does.
"""The way from the launcher of a job into its nodes.

Ranks and daemons in nodes talk to the MPI's launcher, and can have it start programs in its own
place (`MPI_Comm_spawn` with `host=localhost`). So the launcher is confined as they are, and may not
enter a node. Its remote shell sends NODE, a command, its environment and its three streams through
a socket (`confine.ask`). The supervisor starts the command in the job's place in that node,
confined, and sends back how it ended. It ends the command if the remote shell ends.

The kernel bounds the descriptors of a user in unread messages, and any process of the user can use
that up. A remote shell that cannot send its descriptors names one, and the supervisor fetches them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from nearmetal.cluster.backends.local import confine, init

MAX_REQUEST = 8 << 20
NR_GIVEN = 4
"""Descriptors of a request: three streams, and a file with the words."""

SYS_PIDFD_GETFD = 438

LAUNCHER = ".launcher"
"""The name of the launcher's place."""

ASK_S = 10.0
GRACE_S = 2.0

SHELL = 'cd "${NEARMETAL_WORKDIR:-/tmp}" 2>/dev/null || cd /tmp; exec /bin/sh -c "$1"'

CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""

STANDARD = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
"""Signals that the supervisor ignores and a program does not."""


class Place(NamedTuple):
    """The job's place in a node: its process 1, when that started, and the cores of the node."""

    pid: int
    begin: int
    cpus: frozenset[int]


def listen(path: str) -> socket.socket:
    """Return a socket that listens at `path`, for this user only."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(path)
    os.chmod(path, 0o600)  # noqa: PTH101 - as all of this package
    door.listen(128)
    return door


def answer(door: socket.socket, places: Mapping[str, Place], umask: int) -> None:
    """Let a process of its own serve the next request."""
    client, _ = door.accept()
    with client:
        if os.fork():
            return
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            init.die_with_parent(signal.SIGKILL)
            os.umask(umask)
            serve(only(client), places)
    os._exit(0)


def only(client: socket.socket) -> socket.socket:
    """Close all other descriptors: the job lives as long as some of them."""
    os.dup2(client.detach(), 3)
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(4, 1 << 16)
    return socket.socket(fileno=3)


def serve(client: socket.socket, places: Mapping[str, Place]) -> None:
    """Run the command of a client, and report its end."""
    client.settimeout(ASK_S)
    words, given, _, _ = socket.recv_fds(client, confine.STATUS.size, NR_GIVEN)
    if not given and len(words) == confine.STATUS.size:
        given = fetch(client, (0, 1, 2, confine.STATUS.unpack(words)[0]), places[LAUNCHER])
    if len(given) != NR_GIVEN:
        return
    request = os.pread(given[-1], MAX_REQUEST, 0).split(b"\0")
    child = os.fork()
    if child == 0:
        client.close()
        start(request, given, places)
    for descriptor in given:
        os.close(descriptor)
    process = os.pidfd_open(child)
    poll = select.poll()
    poll.register(client, select.POLLIN)
    poll.register(process, select.POLLIN)
    if process not in dict(poll.poll()):
        end(child, process)
    client.send(confine.STATUS.pack(os.waitpid(child, 0)[1]))


def fetch(client: socket.socket, numbers: Sequence[int], place: Place) -> list[int]:
    """Return descriptors of the process that called, by their numbers there. Raises OSError."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid: int = CREDENTIALS.unpack(credentials)[0]
    process = os.pidfd_open(pid)
    # The caller may have ended, and another process may have its number.
    if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink(f"/proc/{place.pid}/ns/mnt"):  # noqa: PTH115
        raise OSError(0, "the caller is not in the place of the launcher")
    found = [
        confine.check(
            confine.libc.syscall(SYS_PIDFD_GETFD, process, number, 0), "fetch a descriptor"
        )
        for number in numbers
    ]
    os.close(process)
    return found


def start(request: list[bytes], given: list[int], places: Mapping[str, Place]) -> NoReturn:
    """Become the command."""
    os.setsid()
    for stream in (0, 1, 2):
        os.dup2(given[stream], stream)
    for signum in STANDARD:
        signal.signal(signum, signal.SIG_DFL)
    try:
        node, command, *environment = request
        place = places[node.decode(errors="replace")]
        os.sched_setaffinity(0, place.cpus)
        argv = ["/bin/sh", "-c", SHELL, "sh", os.fsdecode(command)]
        confine.run(place.pid, place.begin, argv, confine.variables(environment))
    except KeyError:
        confine.report(OSError(0, "the job has no place in a node of this name"))
    except (OSError, ValueError) as error:
        confine.report(error)
    os._exit(255)


def end(child: int, process: int) -> None:
    """End a command whose client has ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signum)
        if poll.poll(GRACE_S * 1000):
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
