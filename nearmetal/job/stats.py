# SPDX-License-Identifier: Apache-2.0
"""What endpoints and agents left in a statistics directory, and whether it proves the provider.

The files come from the job's processes, so they are hostile until checked: only regular files of
limited size and number, opened for reading without following links, and never removed here.
Running endpoints are read as well, without disturbing them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from nearmetal.core.ssh import NO_CONNECTION
from nearmetal.evidence.counters import (
    MAX_BYTES,
    SUFFIX,
    EndpointCounters,
    TornError,
    parse_counters,
)

MAX_FILES = 4096
_TRIES = 5
_WAIT_S = 0.002
_FLOCK = struct.Struct("hhqqi")
"""struct flock: type, whence, start, length, pid."""

_MAX_CODE = 255
_BY_SIGNAL = 128  # the shell's exit codes for signals begin above
_UNKNOWN = sys.maxsize
_KILLED = _BY_SIGNAL + signal.SIGKILL


@dataclass(frozen=True)
class Failure:
    """The end of a rank, or of the MPI's own process in a node, with an exit code.

    `when` in ns. `node`: the node whose process of the MPI ended; "" for a rank.
    """

    when: int
    code: int
    node: str = ""

    @property
    def lost(self) -> str:
        """What ended without a report to the launcher, which may take the job for a success."""
        if self.node and self.code == NO_CONNECTION:
            return f"the launcher has lost node {self.node}"
        if self.node:
            return f"the MPI's own process on node {self.node} ended with exit code {self.code}"
        if self.when == _UNKNOWN:
            return "a rank was killed together with the shell that watched it"
        return ""


@dataclass(frozen=True)
class Seen:
    """The counters in one file, and whether the process that writes it is alive."""

    file: str
    alive: bool
    counters: EndpointCounters


class JobVerdict(Enum):
    """Whether the provider carried the job's messages."""

    PROVEN = "proven"
    NO_TRAFFIC = "no traffic"
    ABSENT = "absent"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class Proof:
    """The verdict with its reason, and messages and bytes by channel, as the senders counted."""

    verdict: JobVerdict
    reason: str
    messages: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


def _files(directory: Path, begin: str = "", end: str = "") -> Iterator[tuple[str, int]]:
    """Yield name and descriptor of the regular files with such names; none without a directory."""
    try:
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        owners = {os.geteuid(), 0, os.fstat(top).st_uid}
        names = sorted(os.listdir(top))  # noqa: PTH208 - by descriptor
        chosen = [name for name in names if name.startswith(begin) and name.endswith(end)]
        for name in chosen[:MAX_FILES]:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with contextlib.suppress(OSError):
                descriptor = os.open(name, flags, dir_fd=top)
                try:
                    status = os.fstat(descriptor)
                    if stat.S_ISREG(status.st_mode) and status.st_uid in owners:
                        yield name, descriptor
                finally:
                    os.close(descriptor)
    finally:
        os.close(top)


def _is_locked(descriptor: int) -> bool:
    """Whether the owner holds its lock: it does while it is alive, in any namespace."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def counters_in(directory: Path) -> Iterator[Seen]:
    """Yield every sound statistics file of a directory; none if there is no directory."""
    for name, descriptor in _files(directory, end=SUFFIX):
        for _ in range(_TRIES):
            try:
                alive = _is_locked(descriptor)
                counters = parse_counters(os.pread(descriptor, MAX_BYTES, 0))
            except TornError:
                time.sleep(_WAIT_S)
            except (ValueError, OSError):
                break
            else:
                yield Seen(name, alive, counters)
                break


def read_counters(directory: Path) -> list[Seen]:
    """Return every sound statistics file of a directory; [] if there is no directory."""
    return list(counters_in(directory))


def read_stats(directory: Path) -> list[dict[str, Any]]:
    """Return the counters of every endpoint as JSON has them; [] if there is no directory."""
    return [seen.counters.data() for seen in read_counters(directory)]


def read_failures(directory: Path) -> list[Failure]:
    """Return every failure that an agent recorded in this directory.

    A rank without a code was killed together with its agent, at a time that is not known.
    """
    found = []
    for begin in ("exit.", "lost."):
        for name, descriptor in _files(directory, begin=begin):
            with contextlib.suppress(OSError):
                code = os.pread(descriptor, 64, 0).strip()
                when = os.fstat(descriptor).st_mtime_ns
                node = name.removeprefix(begin) if begin == "lost." else ""
                if not code and not node:
                    found.append(Failure(_UNKNOWN, _KILLED))
                elif code.isdigit() and 0 < int(code[:4]) <= _MAX_CODE:
                    found.append(Failure(when, int(code[:4]), node))
    return found


def cause(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that began it; None if there is none.

    A rank that died of a signal comes before ranks that exited: they noticed its death, and may
    have been recorded sooner. Signals by which launchers end the other ranks do not count as such,
    and neither does the end of a process of the MPI after a rank has failed.
    """
    sent = {_BY_SIGNAL + s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    ranks = [failure for failure in failures if not failure.node]
    own = [rank for rank in ranks if rank.code not in sent]
    known = [rank for rank in own if rank.when != _UNKNOWN]
    # A daemon gets SIGPIPE if its launcher ends first.
    gone = {*sent, _BY_SIGNAL + signal.SIGPIPE}
    daemons = [failure for failure in failures if failure.node and failure.code not in gone]
    lost = min(daemons, key=lambda daemon: daemon.when, default=None)
    if lost is not None and all(lost.when < rank.when for rank in known):
        return lost
    found = ranks if known else own or ranks
    signalled = [rank for rank in known if rank.code > _BY_SIGNAL]
    return min(signalled or found, key=lambda rank: rank.when, default=None)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def judge(stats: Sequence[dict[str, Any]], nr_ranks: int) -> Proof:
    """Return the proof in the counters of a job of `nr_ranks` that succeeded."""
    messages: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for endpoint in stats:
        peers = endpoint.get("peers")
        for peer in peers if isinstance(peers, list) else []:
            channels = peer.get("channels") if isinstance(peer, dict) else None
            for channel, traffic in channels.items() if isinstance(channels, dict) else ():
                sent = _count(traffic.get("sent_messages"))
                if sent:
                    messages[channel] = messages.get(channel, 0) + sent
                    sizes[channel] = sizes.get(channel, 0) + _count(traffic.get("sent_bytes"))
    if not stats:
        reason = "no process of the job opened an endpoint of nearmetal: others carried it"
        return Proof(JobVerdict.ABSENT, reason)
    if not messages:
        if nr_ranks == 1:
            return Proof(JobVerdict.PROVEN, "one rank, which sent nothing")
        reason = "nearmetal was opened but carried no message"
        return Proof(JobVerdict.NO_TRAFFIC, reason)
    words = ", ".join(f"{channel} {count} messages" for channel, count in sorted(messages.items()))
    return Proof(JobVerdict.PROVEN, f"{len(stats)} endpoints sent {words}", messages, sizes)
