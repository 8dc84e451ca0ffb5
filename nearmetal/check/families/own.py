# SPDX-License-Identifier: Apache-2.0
"""The family `nearmetal`: shared memory, rundir, segments, and the settings of a shell. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nearmetal.check.expect import Expectations
from nearmetal.check.families.base import contained, size, word
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_SHM = "/dev/shm"  # noqa: S108 - the place that MPIs use
_SEGMENT = "docs/design/segment.md"
_PROVIDER = "docs/design/provider.md"
_CACHED = "write-back"


def _shared(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    folders = node.table("nearmetal", "folders")
    if not node.table("nearmetal"):
        return
    if _SHM not in folders or not node.flag("nearmetal", "folders", _SHM, "writable"):
        yield Spotted(
            "missing or not writable",
            "writable by users",
            "MPIs and nearmetal keep their shared memory there",
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
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
    folders = node.table("nearmetal", "folders")
    # Outside containers, that folder is not for endpoints.
    own = "/run/nearmetal" if contained(node) and "/run/nearmetal" in folders else ""
    place = node.text("nearmetal", "environment", "NEARMETAL_RUNDIR") or own
    if place and not node.flag("nearmetal", "folders", place, "writable"):
        yield Spotted(
            "missing or not writable",
            "writable by the users of jobs",
            "endpoints cannot meet there, so messages between containers take the network",
            f"mkdir -p {word(place)} && chmod 1777 {word(place)}",
            printable(place)[:80],
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
        if state != "there":
            yield Spotted(
                printable(str(state))[:40],
                "the provider",
                "libfabric looks for the provider of nearmetal there, so jobs do not use it",
                "apt-get install --reinstall libnearmetal-fi",
                printable(place)[:120],
            )


CHECKS = (
    HealthCheck(
        "nearmetal.provider", Gravity.WARNING, "libfabric finds the provider", _PROVIDER, _provider
    ),
    HealthCheck("nearmetal.shared", Gravity.FAULT, "shared memory works", _PROVIDER, _shared),
    HealthCheck("nearmetal.rundir", Gravity.WARNING, "endpoints can meet", _PROVIDER, _rundir),
    HealthCheck("nearmetal.segment", Gravity.FAULT, "segments are cached", _SEGMENT, _segment),
    HealthCheck(
        "nearmetal.environment", Gravity.WARNING, "no other provider", _PROVIDER, _environment
    ),
)
