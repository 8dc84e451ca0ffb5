# SPDX-License-Identifier: Apache-2.0
"""What the domain of a server says about it: Nova's metadata and the free ports. Pure.

A project chooses the name of its server, the properties of its image and all that happens in the
guest. None of them decides anything here: only Nova's IDs and the extra specs of the flavor do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree as ET

from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.config.size import parse_size
from nearmetal.core.errors import BackendError
from nearmetal.core.text import printable

NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"
MIN_PART, MAX_PART = 2 << 20, 64 << 30
MAX_DOCUMENT = 4 << 20
"""Bytes of the XML of a domain; that of a large server has some ten thousand."""

ID_FORM = r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}"
PROJECT_FORM = r"[A-Za-z0-9_-]{1,64}"
_PORT = re.compile(r"pci\.[0-9]{1,3}")
_SHOWN = 60
_PASSED = ("hostdev", "interface[@type='hostdev']", "interface[@type='vdpa']")
"""Elements of devices of the host, whose drivers pin the memory that QEMU maps."""


@dataclass(frozen=True)
class ServerDomain:
    """A server of Nova. `part_size`: what its flavor gives it, 0 for nothing; `fault`: why not.

    `without_specs`: its domain has no extra specs, so Nova must be asked, see `sized`.
    """

    server: str
    name: str
    project: str
    part_size: int = 0
    fault: str = ""
    ports: tuple[str, ...] = ()
    """Root ports that have no device in the XML, the last first."""
    without_specs: bool = False


def is_id(text: object) -> bool:
    """Whether it is an ID of Nova."""
    return isinstance(text, str) and re.fullmatch(ID_FORM, text) is not None


def is_project(text: object) -> bool:
    """Whether it is the ID of a project; Keystone's drivers make other ones than UUIDs."""
    return isinstance(text, str) and re.fullmatch(PROJECT_FORM, text) is not None


def read_server(document: str) -> ServerDomain | None:
    """Return the server of a domain's XML; None if Nova did not make it, or gave it no segment.

    Raises BackendError for a domain of another form than Nova's.
    """
    if len(document) > MAX_DOCUMENT:
        raise BackendError(f"the XML of a domain has more than {MAX_DOCUMENT >> 20} MiB")
    try:
        top = ET.fromstring(document)  # noqa: S314 - libvirt's own, without a DTD
    except ET.ParseError as error:
        raise BackendError(f"the XML of a domain is damaged: {error}") from error
    # Only in their places: the text of a name cannot make an element, and no search finds others.
    instances = top.findall(f"./metadata/{{{NOVA}}}instance")
    if not instances:
        return None
    server, name = top.findtext("uuid") or "", _shown(top.findtext("name") or "")
    projects = [item for one in instances for item in one.findall(_path("owner", "project"))]
    groups = [item for one in instances for item in one.findall(_path("flavor", "extraSpecs"))]
    specs = [item for one in groups for item in one.findall(_path("extraSpec"))]
    sizes = [item.text or "" for item in specs if item.get("name") == EXTRA_SPEC]
    if groups and not sizes:
        return None
    if len(instances) > 1 or len(projects) != 1 or len(sizes) > 1:
        raise BackendError(f"domain {name}: its metadata of Nova has no single owner or flavor")
    project = projects[0].get("uuid") or ""
    if not is_id(server) or not is_project(project):
        raise BackendError(f"domain {name}: the ID of its server or project is not valid")
    size, fault = _size(sizes[0]) if sizes else (0, "")
    if any(top.find(f"./devices/{path}") is not None for path in _PASSED) and not _locks(top):
        fault = (
            "it has devices of the host (VFIO or vDPA), so its flavor also needs the extra specs "
            "hw:locked_memory=true and hw:mem_page_size"
        )
    ports = tuple(_free_ports(top))
    return ServerDomain(server, name, project, size, fault, ports, without_specs=not sizes)


def sized(domain: ServerDomain, text: str) -> ServerDomain:
    """Return a server with what its flavor gives it: Nova before 2025.2 does not write it."""
    size, fault = _size(text)
    return replace(domain, part_size=size, fault=domain.fault or fault, without_specs=False)


def _path(*names: str) -> str:
    return "./" + "/".join(f"{{{NOVA}}}{name}" for name in names)


def _locks(top: ET.Element) -> bool:
    """Whether libvirt lets QEMU lock memory without a limit.

    VFIO and vDPA pin all memory that QEMU maps, also a segment, and fail if the limit is too low.
    libvirt computes a limit from the memory of the machine, except for a domain that is locked. A
    hard limit of the domain goes before both.
    """
    locked = top.find("./memoryBacking/locked") is not None
    return locked and top.find("./memtune/hard_limit") is None


def _shown(text: str) -> str:
    return printable(text[:_SHOWN])


def _size(text: str) -> tuple[int, str]:
    where = f"extra spec {EXTRA_SPEC} of its flavor"
    try:
        size = parse_size(text)
    except ValueError as error:
        why, _, hint = str(error).partition("|")
        return 0, f"{where}: {_shown(text)!r} {why}; {hint}"
    if size & (size - 1) or not MIN_PART <= size <= MAX_PART:
        return 0, f"{where}: {_shown(text)!r} is not a power of two from 2 MiB to 64 GiB"
    return size, ""


def _free_ports(top: ET.Element) -> Iterator[str]:
    used = {item.get("bus", "") for item in top.findall("./devices/*/address[@type='pci']")}
    taken = {int(bus, 16) for bus in used if re.fullmatch(r"0x[0-9a-f]{1,4}", bus)}
    ports = {}
    for item in top.findall("./devices/controller[@type='pci'][@model='pcie-root-port']"):
        index, alias = item.get("index", ""), item.find("alias")
        target = item.find("target")
        name = "" if alias is None else alias.get("name", "")
        plugs = target is None or target.get("hotplug") != "off"
        if plugs and re.fullmatch("[0-9]{1,3}", index) and _PORT.fullmatch(name):
            ports[int(index)] = name
    # libvirt gives the first one to the next device, so ours get the last ones.
    yield from (ports[index] for index in sorted(ports, reverse=True) if index not in taken)


def empty_ports(answer: Any, ports: tuple[str, ...]) -> tuple[str, ...]:
    """Return those ports that have no device in the answer of QEMU to query-pci."""
    empty = set()
    for bus in answer if isinstance(answer, list) else ():
        for device in bus.get("devices", ()):
            bridge = device.get("pci_bridge")
            if bridge is not None and not bridge.get("devices"):
                empty.add(device.get("qdev_id"))
    return tuple(port for port in ports if port in empty)
