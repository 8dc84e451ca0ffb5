# SPDX-License-Identifier: Apache-2.0
"""The rights that a plan needs in vCenter, and those that the user lacks.

Only rights that vCenter certainly asks for are listed: another right is reported by its refusal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from nearmetal.cluster.backends.vsphere.stock import Need
from nearmetal.cluster.model import Finding

Right = tuple[str, str]
"""What an object is for, and a privilege on it."""

_MACHINE = "VirtualMachine."


def of_cluster(*, folder: bool, rules: bool) -> set[Right]:
    """Return the rights to make the folder of a cluster, and its rules of DRS."""
    made = {("parent", "Folder.Create")} if folder else set()
    return made | ({("compute", "Host.Inventory.EditCluster")} if rules else set())


def of_switch(kind: str) -> set[Right]:
    """Return the rights to make a switch on its hosts."""
    own = {("switch host", "Host.Config.Network")}
    if kind == "distributed":
        own |= {("network folder", "DVSwitch.Create"), ("network folder", "DVPortgroup.Create")}
    return own


def of_machine(need: Need, *, is_template: bool, changed: set[str]) -> set[Right]:
    """Return the rights to clone the machine of a node, or to change these values of it."""
    machine = need.machine
    own = {"Config.AdvancedConfig"}
    given = {
        "Config.CPUCount": machine.vcpus is not None and _is_new(need, changed, "vcpus"),
        "Config.Memory": machine.memory is not None and _is_new(need, changed, "memory"),
        "Config.AddRemoveDevice": bool(machine.adapters) and _is_new(need, changed, "adapters"),
        "Provisioning.Customize": machine.guest is not None and _is_new(need, changed, "guest"),
        "Config.Rename": "vm" in changed,
        "Interact.PowerOn": need.is_on and _is_new(need, changed, "power"),
        "Interact.PowerOff": machine.power == "off" and "power" in changed,
    }
    own |= {name for name, wanted in given.items() if wanted}
    rights = {("folder", f"{_MACHINE}{name}") for name in own}
    if need.cloned:
        way = "DeployTemplate" if is_template else "Clone"
        rights |= {
            ("folder", f"{_MACHINE}Inventory.CreateFromExisting"),
            ("template", f"{_MACHINE}Provisioning.{way}"),
            ("pool", "Resource.AssignVMToPool"),
            ("datastore", "Datastore.AllocateSpace"),
        }
    if machine.adapters and _is_new(need, changed, "adapters"):
        rights.add(("network", "Network.Assign"))
    return rights


def _is_new(need: Need, changed: set[str], name: str) -> bool:
    return need.cloned or name in changed


def lacking(content: Any, user: str, wanted: Iterable[tuple[Any, str, str]]) -> Iterator[Finding]:
    """Yield the rights that the session's user lacks. `wanted`: objects, what they are, rights."""
    names: dict[Any, str] = {}
    rights: dict[Any, set[str]] = defaultdict(set)
    for ref, name, right in wanted:
        names.setdefault(ref, name)
        rights[ref].add(right)
    if not rights:
        return
    key = content.sessionManager.currentSession.key
    every = sorted(set().union(*rights.values()))
    manager: Any = content.authorizationManager
    for answer in manager.HasPrivilegeOnEntities([*rights], key, every):
        granted = {one.privId for one in answer.privAvailability if one.isGranted}
        left = sorted(rights[answer.entity] - granted)
        if left:
            what = f"user {user} has no right to {', '.join(left)}"
            yield Finding((), what, f"on {names[answer.entity]}", "give the user a role with it")
