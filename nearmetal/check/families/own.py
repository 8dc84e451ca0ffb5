# SPDX-License-Identifier: Apache-2.0
"""The family `nearmetal`: shared memory, rundir, segments, and the settings of a shell. Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator

from nearmetal.check.expect import Expectations
from nearmetal.check.families.base import by_system, contained, size, word
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_SHM = "/dev/shm"  # noqa: S108 - the place that MPIs use
_MOUNT = "mkdir -p -m 1777 /dev/shm && mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs"
_SEGMENT = "docs/design/segment.md"
_PROVIDER = "docs/design/provider.md"
_FOLDERS = ("nearmetal", "folders")
_CACHED = "write-back"
_MOST_OTHERS = 8
_NETWORK = "net"
"""As in evidence.counters, which a quick check has no time to load."""

_ALL_USERS = re.compile(r"[0-7]{0,3}[2367]")
"""Modes that let all users write."""

_OTHERS = re.compile(r"[0-7]{0,2}(?:[0-7][2367][0-7]|[0-7]{2}[2367])")
"""Modes that let others write."""


def _shared(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    folders = node.table(*_FOLDERS)
    if not node.table("nearmetal") or (_SHM not in folders and "nearmetal" in node.unseen):
        return
    mode, mounts = node.text(*_FOLDERS, _SHM, "mode"), node.table("storage")
    closed = bool(mode) and not _ALL_USERS.fullmatch(mode)
    if _SHM not in folders or closed or not node.flag(*_FOLDERS, _SHM, "writable"):
        # Another file system on top would hide the memory of jobs that run.
        all_mounts = bool(mounts) and "storage" not in node.unseen
        mounted = _SHM in folders and (_SHM in mounts or not all_mounts)
        yield Spotted(
            "missing or not writable",
            "writable by users",
            "MPIs and nearmetal keep their shared memory there",
            f"mount -o remount,rw {_SHM} && chmod 1777 {_SHM}" if mounted else f"{_MOUNT} {_SHM}",
        )
        return
    room, least = node.number("nearmetal", "shm_bytes"), wanted.value("shm_bytes")
    if room is not None and least is not None and room < least:
        yield Spotted(
            size(room),
            f"at least {size(least)}",
            "jobs with many ranks have no room for their shared memory",
            f"mount -o remount,size={least:.0f} {_SHM}",
            source=wanted.source("shm_bytes"),
        )


def _rundir(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    folders, shared = node.table(*_FOLDERS), "/run/nearmetal"
    chosen = node.text("nearmetal", "environment", "NEARMETAL_RUNDIR")
    if chosen:
        yield from _chosen(node, chosen)
    # Outside containers, that folder is not for endpoints.
    elif contained(node) and shared in folders and not node.flag(*_FOLDERS, shared, "writable"):
        yield Spotted(
            "not writable",
            "writable by the users of jobs",
            "endpoints cannot meet there, so messages between containers take the network",
            f"chmod 1777 {shared}",
            shared,
        )


def _chosen(node: Snapshot, path: str) -> Iterator[Spotted]:
    """Judge a rundir that the environment names, by the rules of the provider."""
    place = (*_FOLDERS, "/" + path.strip("/"))
    if path.startswith("/") and not node.table(*place):
        return  # the agent could not see it
    mode, remedy = node.text(*place, "mode"), "unset NEARMETAL_RUNDIR"
    if not path.startswith("/"):
        found = "no absolute path"
    elif not node.flag(*place, "writable"):
        found = "not writable" if mode else "missing"
        # A path that is too long for a remedy, or not printable, would be another one there.
        if not mode and word(path) == shlex.quote(path):
            remedy = f"mkdir -p -m 700 {word(path)}"
    elif _OTHERS.fullmatch(mode):
        found = f"writable by others (mode {mode})"
    else:
        return
    yield Spotted(
        found,
        "a directory that only its user can write",
        "endpoints refuse it, and cannot meet there",
        remedy,
        printable(path)[:80],
    )


def _segment(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for address in sorted(node.table("nearmetal", "segments")):
        kind = node.text("nearmetal", "segments", address, "memory_type")
        if kind and kind != _CACHED:
            yield Spotted(
                printable(kind)[:40],
                _CACHED,
                "the guest maps shared memory without its caches: it is slow, and stores become "
                "visible in any order",
                "nearmetal-segment show",
                printable(address)[:16],
            )


def _environment(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    provider = node.text("nearmetal", "environment", "FI_PROVIDER")
    if provider and "nearmetal" not in provider.split(","):
        yield Spotted(
            f"FI_PROVIDER={printable(provider)[:80]}",
            "unset",
            "the environment of logins chooses another provider, so jobs do not use nearmetal",
            "unset FI_PROVIDER",
        )


def _provider(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for place, state in sorted(node.table("nearmetal", "providers").items()):
        if state == "there":
            continue
        # Places of packages are listed only if something is there: this one is of the environment.
        remedy = "unset FI_PROVIDER_PATH"
        if state != "missing":
            again = by_system(node, "apt-get install --reinstall", "dnf reinstall")
            remedy = f"{again} libnearmetal-fi"
        yield Spotted(
            printable(str(state))[:40],
            "the provider",
            "libfabric looks for the provider of nearmetal there, so jobs do not use it",
            remedy,
            printable(place)[:120],
        )


class _Meetings:
    """Nodes of one host use its memory. A pair that does not is laid to whom most others miss.

    Both nodes of a pair must name each other, as the collector's facts do: a node that invents
    meetings blames nobody.
    """

    def __init__(self, _: Expectations) -> None:
        self._told: dict[tuple[str, str], str | None] = {}
        self._alone: set[str] = set()

    def add(self, node: Snapshot) -> None:
        segments = node.table("nearmetal", "segments") or node.table("virtual", "dax")
        if node.flag("virtual", "guest") and not contained(node) and not segments:
            self._alone.add(node.name)
        for peer in node.table("nearmetal", "meetings"):
            place = ("nearmetal", "meetings", peer)
            if node.flag(*place, "host"):
                apart = node.text(*place, "channel") == _NETWORK
                self._told[node.name, peer] = node.text(*place, "reason") if apart else None

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        left = {
            frozenset(pair): why
            for pair, why in self._told.items()
            if why is not None and pair[::-1] in self._told and not {*pair} & self._alone
        }
        while left:
            counts = Counter(name for pair in left for name in pair)
            most = max(counts.values())
            named = sorted(name for name, count in counts.items() if count == most)
            # Of two nodes that miss only each other, either may be the cause.
            blamed = named[:1] if most > 1 else sorted(next(iter(left)))
            ours = {pair: why for pair, why in left.items() if pair & set(blamed)}
            others = sorted({name for pair in ours for name in pair} - set(blamed)) or blamed
            yield (
                blamed,
                Spotted(
                    f"messages to {', '.join(others[:_MOST_OTHERS])} take the network",
                    "the memory of their host",
                    printable(next(iter(ours.values())))[:200] or "no reason is known",
                    "nearmetal locality SPEC",
                ),
            )
            left = {pair: why for pair, why in left.items() if pair not in ours}


CHECKS = (
    HealthCheck(
        "nearmetal.provider", Gravity.WARNING, "libfabric finds the provider", _PROVIDER, _provider
    ),
    HealthCheck(
        "nearmetal.meetings",
        Gravity.WARNING,
        "nodes of a host meet in memory",
        _PROVIDER,
        compare=_Meetings,
    ),
    HealthCheck("nearmetal.shared", Gravity.FAULT, "shared memory works", _PROVIDER, _shared),
    HealthCheck("nearmetal.rundir", Gravity.WARNING, "endpoints can meet", _PROVIDER, _rundir),
    HealthCheck("nearmetal.segment", Gravity.FAULT, "segments are cached", _SEGMENT, _segment),
    HealthCheck(
        "nearmetal.environment", Gravity.WARNING, "no other provider", _PROVIDER, _environment
    ),
)
