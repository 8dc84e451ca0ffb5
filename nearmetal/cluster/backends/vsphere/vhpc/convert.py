# SPDX-License-Identifier: Apache-2.0
"""From a cluster file of vhpc-toolkit to a spec of `backend: vsphere`, with a note for every loss."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nearmetal.cluster.backends.vsphere.settings import Inventory, InventoryPath
from nearmetal.cluster.backends.vsphere.spec import Switch
from nearmetal.cluster.backends.vsphere.vhpc.items import VhpcItem, machines, switches
from nearmetal.cluster.backends.vsphere.vhpc.nodes import Location, complain_invalid, node_of
from nearmetal.cluster.backends.vsphere.vhpc.text import Sections, read_sections
from nearmetal.cluster.model import RESERVED_NAMES, PostScript, some
from nearmetal.config.model import Model

MAX_LABEL = 31
MAX_STEP = 9999


class _PlaceKeys(Model):
    """The places of a whole cluster, by the keys of vhpc-toolkit."""

    datacenter: Inventory | None = None
    cluster: Inventory | None = None
    vm_folder: InventoryPath | None = None


@dataclass(frozen=True)
class Target:
    """What a cluster file does not have: the cluster's name, the vCenter, and the way in."""

    name: str
    server: str
    user: str
    identity: Path | None = None
    """The private key for the machines in which scripts run."""
    folder: Path = field(default_factory=Path.cwd)
    """Where relative paths of scripts begin, as for vhpc-toolkit."""


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
    taken = set(RESERVED_NAMES)
    names = [_free_name(item.name, taken) for item in vms]
    if any(item.scripts for item in vms):
        access = _access(sections, vms, target, guests=any("guest" in d for d in described))
        if access is not None:
            data |= {"ssh": access, "post": _post(sections, vms, names, target)}
    data["hosts"] = _hosts(sections, vms, names, described, common)
    return data


def _scripts(vms: list[VhpcItem]) -> list[tuple[str, str, list[VhpcItem]]]:
    """Return each script with its step and its machines, in the order of vhpc-toolkit.

    The steps are sorted as text. A machine runs a script once.
    """
    runs: dict[str, dict[str, list[VhpcItem]]] = {}
    having: set[tuple[str, str]] = set()
    for item in vms:
        for step in sorted(item.scripts):
            for script, line in item.scripts[step]:
                if (item.name, script) in having:
                    text = f"{script} runs once in {item.name}, in its first step"
                    item.sections.note(line, "script", text)
                    continue
                having.add((item.name, script))
                runs.setdefault(step, {}).setdefault(script, []).append(item)
    return [(step, path, runs[step][path]) for step in sorted(runs) for path in runs[step]]


def _post(
    sections: Sections, vms: list[VhpcItem], names: list[str], target: Target
) -> list[dict[str, Any]]:
    """Return the scripts of the nodes."""
    scripts = _scripts(vms)
    steps = list(dict.fromkeys(step for step, _, _ in scripts))
    numbers = _numbers(sections, steps)
    node_of_machine = {item.name: name for item, name in zip(vms, names, strict=True)}
    entries = []
    for step, path, items in scripts:
        entry: dict[str, Any] = {"script": os.path.normpath(target.folder / path)}
        if not path.startswith("/"):
            text = f"{path} is taken from {target.folder}, where the import ran"
            sections.note(_line_of(items[0], path), "script", text)
        complain_invalid(items[0], entry, PostScript, lambda _: "script")
        entry |= {"step": numbers[step]} if len(steps) > 1 else {}
        if len(items) < len(vms):
            entry["nodes"] = [node_of_machine[item.name] for item in items]
        entries.append(entry)
    return entries


def _line_of(item: VhpcItem, path: str) -> int:
    return next(n for several in item.scripts.values() for p, n in several if p == path)


def _numbers(sections: Sections, steps: list[str]) -> dict[str, int]:
    """Return a number for each step, its own where the order allows that."""
    own = [int(step) if step.isascii() and step.isdecimal() else 0 for step in steps]
    if own == sorted({*own}) and all(number <= MAX_STEP for number in own):
        return dict(zip(steps, own, strict=True))
    order = ", ".join(filter(None, steps))
    text = (
        f"vhpc-toolkit sorts the steps as text, so they are numbered again in this order: {order}"
    )
    sections.note(0, "sequence", text)
    return {step: number for number, step in enumerate(steps, 1)}


def _access(
    sections: Sections, vms: list[VhpcItem], target: Target, *, guests: bool
) -> dict[str, str] | None:
    """Return how scripts enter the machines; None, with notes, where the file leaves it open."""
    if target.identity is not None:
        return {"identity": str(target.identity)}
    if not guests:
        text = "the spec enters the machines by ssh with a key that cloud-init of the template gets"
        sections.note(0, "script", text)
        return {}
    for step, path, items in _scripts(vms):
        names = some([item.name for item in items])
        at = f" in step {step}" if step else ""
        text = (
            f"{path} is left out, on {names}{at}: the guests are customized, so cloud-init takes no "
            "key; import with --identity KEY, which root of the template accepts"
        )
        sections.note(_line_of(items[0], path), "script", text)
    return None


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
    sections: Sections,
    vms: list[VhpcItem],
    names: list[str],
    described: list[dict[str, Any]],
    common: dict[str, Any],
) -> list[dict[str, Any]]:
    labels = set(RESERVED_NAMES)
    hosts: dict[str, dict[str, Any]] = {}
    for item, name, machine in zip(vms, names, described, strict=True):
        esxi = item.text("host") or "auto"
        if esxi not in hosts:
            label = _free_name("any" if esxi == "auto" else esxi.partition(".")[0], labels)
            hosts[esxi] = {"name": label, "esxi": esxi, "nodes": []}
        node: dict[str, Any] = {"name": name}
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
