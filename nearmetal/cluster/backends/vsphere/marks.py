# SPDX-License-Identifier: Apache-2.0
"""Marks: which machine in vCenter is the machine of a node.

A mark lies in the extra configuration of a machine, so a copy of the machine has it too. It therefore
names the machine by its instanceUuid, which vCenter never gives twice. A machine with a mark that names
another machine is a stranger: it is reported, and neither changed nor removed.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.plan import VsphereMachine
from nearmetal.host.vcenter.session import Properties

MARK = "nearmetal.mark"
"""Key of the mark: its cluster, its node, its machine, and how far the machine is made."""

BEGUN, CHANGING, MADE = "begun", "changing", "made"
"""States of a mark. *changing*: a change that needs the machine off was begun."""

REASONS = {
    BEGUN: "its creation was interrupted",
    CHANGING: "its change was refused or interrupted",
}
"""By state: why a machine is to be completed."""

MARKED = ("host", "slots", "template", "clone", "guest")
"""Values that vCenter does not keep; the mark has them as text."""

UUID = "config.instanceUuid"
BIOS_UUID = "config.uuid"
EXTRA = "config.extraConfig"
MARKS = ("name", EXTRA, UUID, BIOS_UUID)
"""Properties with the mark, and with both identities."""

_NAMESPACE = uuid.UUID("5e6b2f0c-6f0f-4e0a-9d57-0c1f8a3b7c21")


def identity(*path: str) -> str:
    """Return the instanceUuid that the machine of a node gets, from the names above it and its own.

    So a machine that left its folder is found without a record.
    """
    return str(uuid.uuid5(_NAMESPACE, "\n".join(path)))


def mark_of(found: Properties) -> dict[str, str]:
    """Return a machine's mark; {} for no mark, or an unreadable one."""
    options = found.get("config.extraConfig") or []
    text = next((str(option.value) for option in options if option.key == MARK), "{}")
    try:
        mark = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(mark, dict):
        return {}
    return {str(key): str(value) for key, value in mark.items()}


def home_of(found: Properties) -> str:
    """Return the identity of the node that a machine may belong to."""
    return mark_of(found).get("home") or str(found.get(UUID) or "")


def mark_option(
    cluster: str,
    node: str,
    values: VsphereMachine,
    state: str,
    machine: str = "",
    *,
    home: str = "",
) -> Any:
    """Return a mark.

    `machine`: its instanceUuid, which a clone in its making does not have yet. `home`: the identity
    of the node, for an instant clone, whose instanceUuid is another; else "".
    """
    texts = dict(values.attributes)
    mark = {"cluster": cluster, "node": node, "state": state, "uuid": machine}
    mark |= {"home": home} if home else {}
    mark |= {name: texts.get(name, "") for name in MARKED}
    return vim.option.OptionValue(key=MARK, value=json.dumps(mark, sort_keys=True))


@dataclass(frozen=True)
class Found:
    """The machine of a node. `home`: whether it is in the folder of the cluster."""

    ref: Any
    properties: Properties
    home: bool = True

    @cached_property
    def mark(self) -> dict[str, str]:
        """Its mark."""
        return mark_of(self.properties)

    @property
    def uuid(self) -> str:
        """Its instanceUuid."""
        return str(self.properties.get(UUID) or "")

    @property
    def incarnation(self) -> str:
        """Its BIOS UUID, which every clone gets anew.

        The instanceUuid is made from names, so a machine that is made again has the same one.
        """
        return str(self.properties.get(BIOS_UUID) or "")

    @property
    def named(self) -> bool:
        """Whether its mark names it."""
        return bool(self.uuid) and self.mark.get("uuid") == self.uuid

    @property
    def unfinished(self) -> str:
        """Why it is to be completed in place; "" for a complete machine."""
        if not self.home:
            return "it is not in the folder of the cluster"
        state = self.mark.get("state")
        if state == MADE:
            return "" if self.named else "its mark does not name it"
        return REASONS.get(state or "", "its mark is not readable")


def claims(
    machines: Iterable[Found], names: Mapping[str, str]
) -> tuple[dict[str, Found], list[Found]]:
    """Return the machine of each node, and the strangers among machines with marks of one cluster.

    `names`: of the machines, by nodes. A mark without a uuid is one of a clone in its making, or of
    an earlier release: there the name decides.
    """
    claimants: dict[str, list[Found]] = defaultdict(list)
    for machine in machines:
        claimants[machine.mark.get("node", "")].append(machine)
    own: dict[str, Found] = {}
    strangers: list[Found] = []
    for node, several in claimants.items():
        likely = [m for m in several if m.named] or [m for m in several if not m.mark.get("uuid")]
        # The first claimant with the right name, else the first.
        likely.sort(key=lambda m: m.properties.get("name") != names.get(node))
        if likely:
            own[node] = likely[0]
        strangers += [m for m in several if m not in likely[:1]]
    return own, strangers
