# SPDX-License-Identifier: Apache-2.0
"""The family `storage`: full, slow, silent and missing file systems. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.families.base import was_cut, word
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable


def _mounts(node: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield each mount point, as a key and as text."""
    for point in sorted(node.table("storage")):
        yield point, printable(point)[:120]


def _full(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    most = wanted.value("fill_percent")
    for point, shown in _mounts(node):
        # A quick snapshot decides about one node, which owns neither shared space nor jobs' memory.
        if node.quick and _is_elsewhere(node, point):
            continue
        if "ro" in node.text("storage", point, "options").split():
            continue
        for all_, free, what in (("bytes", "free", "space"), ("inodes", "inodes_free", "inodes")):
            total, left = node.number("storage", point, all_), node.number("storage", point, free)
            if total and left is not None and 100 * (total - left) / total >= most:
                yield Spotted(
                    f"{most:g} % or more used",
                    f"less than {most:g} % of its {what}",
                    f"the file system has nearly no {what} left",
                    f"du -xh --max-depth=1 {word(point)} | sort -h | tail",
                    shown,
                    wanted.source("fill_percent"),
                )


def _is_elsewhere(node: Snapshot, point: str) -> bool:
    memory = node.text("storage", point, "type") in ("tmpfs", "ramfs", "devtmpfs")
    return memory or node.flag("storage", point, "remote")


def _broken(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for point, shown in _mounts(node):
        error = node.text("storage", point, "error")
        if error and error != "Permission denied":
            yield Spotted(
                printable(error)[:80],
                "its size",
                "the file system is mounted, and does not work",
                _again(node, point),
                shown,
            )


def _again(node: Snapshot, point: str) -> str:
    """Return the command that mounts a file system again."""
    if point == "/":
        return "dmesg | grep -i error"
    # A disk must not be mounted again while programs use what is left of it.
    lazy = "-l " if node.flag("storage", point, "remote") else ""
    return f"umount {lazy}{word(point)} && mount {word(point)}"


def _silent(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    why = node.unseen.get("storage", "")
    if why and not was_cut(why):
        yield Spotted(
            printable(why)[:200],
            "an answer",
            "a file system does not answer, and each program that touches it hangs",
            "umount -f MOUNT_POINT",
        )


def _slow(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    most = wanted.value("answer_s")
    for point, shown in _mounts(node):
        seconds = node.number("storage", point, "seconds")
        if seconds is not None and seconds > most:
            yield Spotted(
                f"{seconds:.1f} s",
                f"at most {most:g} s",
                "the file system is slow to answer",
                f"time stat -f {word(point)}",
                shown,
                wanted.source("answer_s"),
            )


def _missing(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    mounted = {} if was_cut(node.unseen.get("storage", "")) else node.table("storage")
    for point in wanted.value("mounts") or ():
        if mounted and point not in mounted:
            yield Spotted(
                "not mounted",
                "mounted",
                "the profile names this mount point",
                f"mount {word(point)}",
                point,
                wanted.source("mounts"),
            )


CHECKS = (
    HealthCheck("storage.full", Gravity.FAULT, "file systems have space", "", _full),
    HealthCheck("storage.broken", Gravity.FAULT, "file systems work", OWN, _broken),
    HealthCheck("storage.silent", Gravity.FAULT, "file systems answer", OWN, _silent),
    HealthCheck("storage.slow", Gravity.WARNING, "file systems answer quickly", "", _slow),
    HealthCheck("storage.mounts", Gravity.FAULT, "file systems are mounted", "", _missing),
)
