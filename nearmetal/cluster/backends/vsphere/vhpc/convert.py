# SPDX-License-Identifier: Apache-2.0
"""From a cluster file of vhpc-toolkit to a spec of `backend: vsphere`, with a note for every loss."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from nearmetal.cluster.backends.vsphere.settings import Inventory, InventoryPath
from nearmetal.cluster.backends.vsphere.spec import Switch
from nearmetal.cluster.backends.vsphere.vhpc.items import VhpcItem, machines, switches
from nearmetal.cluster.backends.vsphere.vhpc.nodes import Location, complain_invalid, node_of
from nearmetal.cluster.backends.vsphere.vhpc.text import Sections, read_sections
from nearmetal.cluster.model import RESERVED_NAMES
from nearmetal.config.model import Model

MAX_LABEL = 31


class _PlaceKeys(Model):
    """The places of a whole cluster, by the keys of vhpc-toolkit."""

    datacenter: Inventory | None = None
    cluster: Inventory | None = None
    vm_folder: InventoryPath | None = None


@dataclass(frozen=True)
class Target:
    """The parts of a spec that a cluster file does not have: the cluster's name, and the vCenter."""

    name: str
    server: str
    user: str


@dataclass(frozen=True)
class Imported:
    """A spec as text, and notes on settings of the file that a spec does not have."""

    text: str
    machines: int
    notes: tuple[str, ...]


def import_vhpc(text: str, file: str, target: Target) -> Imported:
    """Turn a cluster file into a spec; raises SpecError with all its problems."""
    sections = read_sections(text, file)
    vms = machines(sections)
    made = [(item, "standard") for item in switches(sections, "_SVS_")]
    made += [(item, "distributed") for item in switches(sections, "_DVS_")]
    if not vms and not sections.problems:
        why, hint = "a section [_VMS_] with machines is missing", "a cluster needs machines"
        sections.complain(1, "no machine", why, hint)
    data = _cluster(sections, vms, made, target)
    sections.refuse_problems()
    _note_scripts(sections, vms)
    # Values that are the same object would become aliases, which a spec does not have.
    data = json.loads(json.dumps(data))
    body = yaml.safe_dump(data, sort_keys=False, width=100, allow_unicode=True)
    head = [f"# Imported from {file!r}, a cluster file of vhpc-toolkit."]
    head += [f"# note: {note}" for note in sections.notes]
    return Imported("\n".join([*head, body]), len(vms), tuple(sections.notes))


def _cluster(
    sections: Sections, vms: list[VhpcItem], made: list[tuple[VhpcItem, str]], target: Target
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "version": 1,
        "name": target.name,
        "backend": "vsphere",
        "vcenter": {"server": target.server, "user": target.user},
    }
    items = [*vms, *(item for item, _ in made)]
    renamed = {"datacenter": "datacenter", "cluster": "compute", "vm_folder": "folder"}
    for theirs, ours in renamed.items():
        value = _only(items, theirs)
        if value is not None:
            data[ours] = value
        elif ours != "folder" and vms:
            sections.note(0, theirs, "is not given: the vCenter must have exactly one")
    described = [node_of(item) for item in vms]
    common = _common(described)
    if common:
        data["machine"] = common
    if made:
        data["switches"] = [_switch(item, kind) for item, kind in made]
    data["hosts"] = _hosts(sections, vms, described, common)
    return data


def _note_scripts(sections: Sections, vms: list[VhpcItem]) -> None:
    """Note all scripts, in the order of vhpc-toolkit: steps are sorted as text."""
    runs: dict[str, dict[tuple[str, int], list[str]]] = {}
    for item in vms:
        for step, scripts in item.scripts.items():
            for script in scripts:
                runs.setdefault(step, {}).setdefault(script, []).append(item.name)
    steps = sorted(runs)
    for number, step in enumerate(steps, 1):
        first = f", as step {number} of {len(steps)}" if len(steps) > 1 else ""
        for (path, line), names in runs[step].items():
            where = names[0] if len(names) == 1 else f"{len(names)} machines from {names[0]} on"
            advice = f"{path} is not run: run it over ssh after `up`{first}, on {where}"
            sections.note(line, "script", advice)
    numbers = [int(step) for step in steps if step.isdecimal()]
    if numbers != sorted(numbers):
        order = ", ".join(filter(None, steps))
        text = f"vhpc-toolkit sorts the steps as text, and so do these notes: {order}"
        sections.note(0, "sequence", text)


def _only(items: list[VhpcItem], key: str) -> str | None:
    """Return the value that all items with this key share, None where no item has it."""
    having = [item for item in items if key in item.given]
    first = having[0].text(key) if having else None
    other = next((item for item in having if item.text(key) != first), None)
    if other is not None:
        why = f"a cluster has one, and {having[0].name} has {first}"
        other.complain(key, f"{key}: {other.text(key)}", why, "split the file")
    if having:
        complain_invalid(having[0], {key: first}, _PlaceKeys, lambda _: key)
    return first


def _common(described: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings that all machines share; `guest` is compared key by key."""
    common: dict[str, Any] = {}
    for key, value in described[0].items() if described else ():
        if key == "guest" and all("guest" in other for other in described):
            guests = [other["guest"] for other in described]
            guest = {k: v for k, v in value.items() if all(g.get(k) == v for g in guests)}
            common.update({"guest": guest} if guest else {})
        elif key != "slots" and all(other.get(key) == value for other in described):
            common[key] = value
    return common


def _own(machine: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a machine that are not common to all."""
    own = {key: value for key, value in machine.items() if key not in common}
    if "guest" in machine and "guest" in common:
        guest = {k: v for k, v in machine["guest"].items() if k not in common["guest"]}
        own.update({"guest": guest} if guest else {})
    return own


def _free_name(theirs: str, taken: set[str]) -> str:
    """Return a valid name like theirs that is not taken, and take it."""
    label = re.sub(r"[^a-z0-9-]+", "-", theirs.lower()).strip("-") or "n"
    if not label[0].isalpha():
        label = f"n{label}"
    base = label = label[:MAX_LABEL].rstrip("-")
    number = 2
    while label in taken:
        tail = f"-{number}"
        label = base[: MAX_LABEL - len(tail)] + tail
        number += 1
    taken.add(label)
    return label


def _hosts(
    sections: Sections, vms: list[VhpcItem], described: list[dict[str, Any]], common: dict[str, Any]
) -> list[dict[str, Any]]:
    names, labels = set(RESERVED_NAMES), set(RESERVED_NAMES)
    hosts: dict[str, dict[str, Any]] = {}
    for item, machine in zip(vms, described, strict=True):
        esxi = item.text("host") or "auto"
        if esxi not in hosts:
            label = _free_name("any" if esxi == "auto" else esxi.partition(".")[0], labels)
            hosts[esxi] = {"name": label, "esxi": esxi, "nodes": []}
        node: dict[str, Any] = {"name": _free_name(item.name, names)}
        if node["name"] != item.name:
            node["vm"] = item.name
        if item.name != item.name.lower():
            text = "keeps its capital letters; vhpc-toolkit before 1.0 made lower case of them"
            sections.note(item.line, item.name, text)
        hosts[esxi]["nodes"].append({**node, **_own(machine, common)})
    if "auto" in hosts:
        text = (
            "vCenter places machines without a host; "
            "vhpc-toolkit took the template's host, or the first one, where DRS was off"
        )
        sections.note(0, "host", text)
    return list(hosts.values())


def _switch(item: VhpcItem, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": item.name, "kind": kind}
    if item.hosts:
        made["esxi"] = item.hosts
    else:
        item.sections.note(item.line, item.name, "has no host: all hosts of the spec have it")
    if "pnic" in item.given:
        made["nics"] = item.value("pnic")
    if "mtu" in item.given:
        made["mtu"] = item.value("mtu")
    group = item.text("port_group")
    made["port_groups"] = [{"name": group}] if group else []
    if not group:
        text = "has no port_group: machines use only port groups that others make on it"
        item.sections.note(item.line, item.name, text)
    complain_invalid(item, made, Switch, _key_of_switch)
    return made


def _key_of_switch(location: Location) -> str:
    keys = {"esxi": "host", "nics": "pnic", "port_groups": "port_group"}
    return keys.get(str(location[0]), str(location[0]))
