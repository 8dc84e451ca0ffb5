# SPDX-License-Identifier: Apache-2.0
"""From a cluster file of vhpc-toolkit to a spec of `backend: vsphere`, with a note for every loss."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from nearmetal.cluster.backends.vsphere.vhpc.machine import Notes, machine_of
from nearmetal.cluster.backends.vsphere.vhpc.resolve import Item, machines, scripts, switches
from nearmetal.cluster.backends.vsphere.vhpc.text import Sections, read_sections
from nearmetal.core.errors import SpecError

MAX_LABEL = 31


@dataclass(frozen=True)
class Target:
    """What a cluster file does not say: the cluster's name, and the vCenter."""

    name: str
    server: str
    user: str


@dataclass(frozen=True)
class Imported:
    """A spec as text, and what of the file has no equal in it."""

    text: str
    machines: int
    notes: tuple[str, ...]


class _Dumper(yaml.SafeDumper):
    """Writes every value out: a spec has no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never make one."""
        del data
        return True


@dataclass
class _Names:
    """Names of ours for names of theirs, each once."""

    taken: set[str] = field(default_factory=lambda: {"launcher", "localhost"})

    def of(self, theirs: str) -> str:
        """Return a free name like theirs."""
        label = re.sub(r"[^a-z0-9-]+", "-", theirs.lower()).strip("-") or "n"
        if not label[0].isalpha():
            label = f"n{label}"
        base = label = label[:MAX_LABEL].rstrip("-")
        number = 2
        while label in self.taken:
            tail = f"-{number}"
            label = base[: MAX_LABEL - len(tail)] + tail
            number += 1
        self.taken.add(label)
        return label


def import_vhpc(text: str, file: str, target: Target) -> Imported:
    """Turn a cluster file into a spec; raises SpecError with everything wrong in it."""
    sections = read_sections(text, file)
    vms = machines(sections)
    made = [(item, "standard") for item in switches(sections, "_SVS_")]
    made += [(item, "distributed") for item in switches(sections, "_DVS_")]
    if not vms and not sections.problems:
        sections.complain(
            1,
            "no machine",
            "a section [_VMS_] with machines is missing",
            "switches alone are no cluster",
        )
    notes = Notes(file)
    data = _cluster(sections, vms, made, target, notes)
    if sections.problems:
        raise SpecError(sections.problems)
    for path, line in scripts(sections).items():
        notes.add(
            line, "script", f"{path} is not run: copy it to the nodes and use `nearmetal exec`"
        )
    body = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    head = [f"# Imported from {file!r}, a cluster file of vhpc-toolkit."]
    head += [f"# note: {note}" for note in notes.texts]
    return Imported("\n".join([*head, body]), len(vms), tuple(notes.texts))


def _cluster(
    sections: Sections,
    vms: list[Item],
    made: list[tuple[Item, str]],
    target: Target,
    notes: Notes,
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "version": 1,
        "name": target.name,
        "backend": "vsphere",
        "vcenter": {"server": target.server, "user": target.user},
    }
    for theirs, ours in (
        ("datacenter", "datacenter"),
        ("cluster", "compute"),
        ("vm_folder", "folder"),
    ):
        value = _only(sections, [*vms, *(item for item, _ in made)], theirs)
        if value is not None:
            data[ours] = value
        elif theirs != "vm_folder" and vms:
            notes.add(0, theirs, "not given: it must be the only one there is")
    described = [machine_of(item, sections, notes) for item in vms]
    common = _common(described)
    if common:
        data["machine"] = common
    if made:
        data["switches"] = [_switch(item, kind, sections, notes) for item, kind in made]
    data["hosts"] = _hosts(vms, described, common, notes)
    return data


def _only(sections: Sections, items: list[Item], key: str) -> str | None:
    """Return the one value that all items have of a key, None where none has it."""
    first: Item | None = None
    for item in items:
        if key not in item.given:
            continue
        if first is None:
            first = item
        elif item.text(key) != first.text(key):
            sections.complain(
                item.line_of(key),
                f"{key}: {item.text(key)}",
                f"a cluster has one, and {first.name} has {first.text(key)}",
                "split the file",
            )
            break
    return None if first is None else first.text(key)


def _common(described: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all machines say alike; `guest` is taken key by key."""
    if not described:
        return {}
    first, rest = described[0], described[1:]
    common: dict[str, Any] = {}
    for key, value in first.items():
        if key == "slots":
            continue
        if key == "guest" and all("guest" in other for other in rest):
            guest = {k: v for k, v in value.items() if all(o["guest"].get(k) == v for o in rest)}
            common.update({"guest": guest} if guest else {})
        elif all(other.get(key) == value for other in rest):
            common[key] = value
    return common


def _own(machine: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Return what a machine says beside what all say."""
    own: dict[str, Any] = {}
    for key, value in machine.items():
        if key == "guest" and "guest" in common:
            guest = {k: v for k, v in value.items() if k not in common["guest"]}
            own.update({"guest": guest} if guest else {})
        elif key not in common:
            own[key] = value
    return own


def _hosts(
    vms: list[Item], described: list[dict[str, Any]], common: dict[str, Any], notes: Notes
) -> list[dict[str, Any]]:
    names, labels = _Names(), _Names()
    hosts: dict[str, dict[str, Any]] = {}
    for item, machine in zip(vms, described, strict=True):
        esxi = item.text("host") or "auto"
        if esxi not in hosts:
            label = labels.of("any" if esxi == "auto" else esxi.partition(".")[0])
            hosts[esxi] = {"name": label, "esxi": esxi, "nodes": []}
        node: dict[str, Any] = {"name": names.of(item.name)}
        if node["name"] != item.name:
            node["vm"] = item.name
        if item.name != item.name.lower():
            notes.add(
                item.line, item.name, "vhpc-toolkit made it in lower case; it is as written now"
            )
        hosts[esxi]["nodes"].append({**node, **_own(machine, common)})
    if "auto" in hosts:
        notes.add(
            0,
            "host",
            "machines without one: the cluster places them, where vhpc-toolkit took its first host",
        )
    return list(hosts.values())


def _switch(item: Item, kind: str, sections: Sections, notes: Notes) -> dict[str, Any]:
    made: dict[str, Any] = {"name": item.name, "kind": kind}
    if item.hosts:
        made["esxi"] = item.hosts
    else:
        notes.add(item.line, item.name, "no host is named: all hosts of the spec have it")
    pnic = item.given.get("pnic")
    if pnic is not None:
        made["nics"] = pnic.value
    group = item.text("port_group")
    if group is None:
        sections.complain(
            item.line, f"switch {item.name}", "has no port_group", "write port_group: NAME"
        )
    made["port_groups"] = [{"name": group}]
    return made
