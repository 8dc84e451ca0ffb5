# SPDX-License-Identifier: Apache-2.0
"""Reads what the provider counted, and judges whether it carried the job.

The files come from the job's processes, so they are hostile until checked: only regular files,
of limited size and number, opened without following links.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from nearmetal.job.counters import read_counters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_FILES = 4096
MAX_BYTES = 4 << 20
_MAX_CODE = 255
_BY_SIGNAL = 128  # the shell's exit codes for signals begin above


class Verdict(Enum):
    """Whether the provider carried the job's messages."""

    PROVEN = "proven"
    NO_TRAFFIC = "no traffic"
    ABSENT = "absent"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class Proof:
    """The verdict with its reason, and messages and bytes by channel, as the senders counted."""

    verdict: Verdict
    reason: str
    messages: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


def read_stats(directory: Path) -> list[dict[str, Any]]:
    """Return what every endpoint left in a directory; [] when there is no directory."""
    return [seen.counters.data() for seen in read_counters(directory)]


def read_exit_codes(directory: Path) -> list[tuple[int, int]]:
    """Return (when in ns, code) of every rank that failed and whose agent could record it."""
    found: list[tuple[int, int]] = []
    try:
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        for name in sorted(os.listdir(top))[:MAX_FILES]:  # noqa: PTH208 - by descriptor
            if name.startswith("exit."):
                content = _read(top, name).strip()
                if content.isdigit() and 0 < int(content[:4]) <= _MAX_CODE:
                    with contextlib.suppress(OSError):
                        when = os.stat(name, dir_fd=top, follow_symlinks=False).st_mtime_ns
                        found.append((when, int(content[:4])))
    finally:
        os.close(top)
    return found


def cause(failures: Sequence[tuple[int, int]]) -> int | None:
    """Return the exit code that began it, out of (when, code); None when nobody failed.

    A rank that died of a signal comes before those that exited: they noticed its death, and may
    have been recorded sooner. Signals by which launchers end the rest do not count as such.
    """
    sent = {_BY_SIGNAL + s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    ranked = [(code <= _BY_SIGNAL or code in sent, when, code) for when, code in failures]
    return min(ranked)[2] if ranked else None


def _read(top: int, name: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=top)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return b""
        return stream.read(MAX_BYTES)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def judge(stats: Sequence[dict[str, Any]], nr_ranks: int) -> Proof:
    """Return what the counters prove about a job of `nr_ranks` that ended well."""
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
        reason = "no process of the job opened the nearmetal provider: another one carried it"
        return Proof(Verdict.ABSENT, reason)
    if not messages:
        if nr_ranks == 1:
            return Proof(Verdict.PROVEN, "one rank, which sent nothing")
        reason = "the provider was opened but carried no message"
        return Proof(Verdict.NO_TRAFFIC, reason)
    words = ", ".join(f"{channel} {count} messages" for channel, count in sorted(messages.items()))
    return Proof(Verdict.PROVEN, f"{len(stats)} endpoints sent {words}", messages, sizes)
