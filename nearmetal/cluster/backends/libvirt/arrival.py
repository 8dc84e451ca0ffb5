# SPDX-License-Identifier: Apache-2.0
"""The XML of a running machine for its next host. Pure: XML in, XML out.

libvirt compares it with the machine that runs: what the guest sees stays, what the host has is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from nearmetal.cluster.backends.libvirt.machine import (
    NAMESPACE,
    QEMU_NAMESPACE,
    VIEW_DRIVER,
    VirtualMachine,
)
from nearmetal.core.errors import BackendError

_TEXTS = ("devices/emulator", "os/kernel", "os/initrd")
_HOST_ELEMENTS = ("cputune", "seclabel")


def arrival_xml(live: str, wanted: VirtualMachine) -> str:
    """Return the XML with which libvirt starts the copy. `live`: the machine as it runs.

    The devices of the segment are left out: they are unplugged, and plugged in after the arrival.
    """
    top, new = ET.fromstring(live), ET.fromstring(wanted.xml())  # noqa: S314 - libvirt's, and ours
    for path in _TEXTS:
        old, ours = top.find(path), new.find(path)
        if old is not None and ours is not None:
            old.text = ours.text
    _move_files(top, new)
    for name in _HOST_ELEMENTS:
        for element in top.findall(name):
            top.remove(element)
        top.extend(new.findall(name))
    _mark(top, new)
    for line in top.findall(f"{{{QEMU_NAMESPACE}}}commandline"):
        words = [argument.get("value", "") for argument in line]
        line[:] = [
            ET.Element(f"{{{QEMU_NAMESPACE}}}arg", {"value": word}) for word in without_views(words)
        ]
    return ET.tostring(top, encoding="unicode")


def _move_files(top: ET.Element, new: ET.Element) -> None:
    """Name the files of the next host."""
    _copy(top, new, "sysinfo/entry", "file")
    for old, ours in _disks(top, new):
        _copy(old, ours, "source", "file")
    for kind in ("serial", "console"):
        pairs = zip(top.findall(f"devices/{kind}"), new.findall(f"devices/{kind}"), strict=True)
        for old, ours in pairs:
            _copy(old, ours, "source", "path")


def _copy(old: ET.Element, new: ET.Element, path: str, name: str) -> None:
    """Copy an attribute of the element at a path, where both have it."""
    there, ours = old.find(path), new.find(path)
    if there is not None and ours is not None and ours.get(name):
        there.set(name, ours.get(name, ""))


def _disks(top: ET.Element, new: ET.Element) -> Iterator[tuple[ET.Element, ET.Element]]:
    def by_target(document: ET.Element) -> dict[str, ET.Element]:
        disks = document.findall("devices/disk")
        return {d.find("target").get("dev", ""): d for d in disks}  # type: ignore[union-attr]

    theirs, ours = by_target(top), by_target(new)
    if set(theirs) != set(ours):
        raise BackendError(f"the machine has other disks ({', '.join(theirs)}) than it began with")
    return ((disk, ours[name]) for name, disk in theirs.items())


def _mark(top: ET.Element, new: ET.Element) -> None:
    """Put our mark with its new values in the place of the old one."""
    metadata, tag = top.find("metadata"), f"{{{NAMESPACE}}}resource"
    mark = new.find(f"metadata/{tag}")
    if metadata is None or mark is None:
        raise BackendError("the machine has lost its mark", "only nearmetal may edit its metadata")
    for element in metadata.findall(tag):
        metadata.remove(element)
    metadata.append(mark)


def without_views(words: Sequence[str]) -> list[str]:
    """Return QEMU's words without the devices of the segment and their memory; ports stay."""
    kept = []
    for option, value in zip(words[::2], words[1::2], strict=True):
        is_view = option == "-device" and json.loads(value).get("driver") == VIEW_DRIVER
        if option != "-object" and not is_view:
            kept += [option, value]
    return kept
