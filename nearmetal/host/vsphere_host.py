# SPDX-License-Identifier: Apache-2.0
"""An ESXi host through its vCenter: reads it, and carries out single steps on it.

What concerns one host is a HostError with its name. What concerns the vCenter (it is not
trusted, refuses the password, does not answer) stays what it is, so that it is said once.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyVmomi import vim, vmodl

from nearmetal.core.errors import BackendError, HostError
from nearmetal.host.cards import ESXI_DRIVER
from nearmetal.host.facts_vsphere import PROPERTIES, host_facts
from nearmetal.host.vcenter.properties import fetch
from nearmetal.host.vcenter.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.host.model import HostFacts
    from nearmetal.host.vcenter.spec import Vcenter

_T = TypeVar("_T")

EVACUATE_S = 1800
"""How long machines may take to leave a host."""

CONNECTED = "connected"

ENTER = "HostSystem.enterMaintenanceMode"
UNDER_WAY = ("queued", "running")
"""How vCenter names the task that takes a host out of service, and the states of one that goes on."""


class Datacenters:
    """A vCenter, and its hosts by name."""

    def __init__(self, vcenter: Vcenter) -> None:
        """Nothing is asked yet."""
        self.session = Session(vcenter)
        self._lock = threading.Lock()
        self._hosts: dict[str, list[Any]] | None = None

    def host(self, name: str) -> VsphereHost:
        """Return a host; raises HostError for one that is not there, or there twice."""
        found = self._known().get(name, [])
        if len(found) != 1:
            where = self.session.vcenter.server
            times = f"there {len(found)} times" if found else "not there"
            raise HostError(
                f"{name}: under {where} a host of that name is {times}",
                "nodes must be the names that vCenter shows",
            )
        return VsphereHost(name, self.session, found[0])

    def _known(self) -> dict[str, list[Any]]:
        with self._lock:
            if self._hosts is None:
                _ = self.session.content
                known: dict[str, list[Any]] = {}
                for ref, values in self.session.call("reading the hosts", self._names).items():
                    known.setdefault(str(values["name"]), []).append(ref)
                self._hosts = known
            return self._hosts

    def _names(self) -> dict[Any, dict[str, Any]]:
        content = self.session.content
        return fetch(content, content.rootFolder, vim.HostSystem, ["name"])


def properties(
    content: Any, kind: Any, refs: Sequence[Any], names: Sequence[str]
) -> dict[Any, dict[str, Any]]:
    """Return properties by object, in one call."""
    if not refs:
        return {}
    collector = vmodl.query.PropertyCollector
    spec = collector.FilterSpec(
        objectSet=[collector.ObjectSpec(obj=ref) for ref in refs],
        propSet=[collector.PropertySpec(type=kind, pathSet=list(names), all=False)],
    )
    found = content.propertyCollector.RetrieveContents([spec])
    for missing in (missing for item in found for missing in item.missingSet or []):
        if isinstance(missing.fault, vim.fault.NotAuthenticated):
            raise missing.fault  # the session has expired: it is opened again
    return {item.obj: {prop.name: prop.val for prop in item.propSet} for item in found}


class VsphereHost:
    """One host."""

    def __init__(self, name: str, session: Session, ref: Any) -> None:
        """Remember whom to ask."""
        self.name = name
        self._session = session
        self._ref = ref

    def _told(self, what: str, work: Callable[[], _T]) -> _T:
        _ = self._session.content
        try:
            return self._session.call(what, work)
        except BackendError as error:
            raise HostError(f"{self.name}: {error.message}", error.hint) from error.__cause__

    def _done(self, what: str, start: Callable[[], Any], hint: str = "") -> None:
        try:
            self._session.wait(what, start)
        except BackendError as error:
            raise HostError(
                f"{self.name}: {error.message}", error.hint or hint
            ) from error.__cause__

    def _one(self, names: Sequence[str]) -> dict[str, Any]:
        content = self._session.content
        return properties(content, vim.HostSystem, [self._ref], names)[self._ref]

    def look(self) -> tuple[str, str]:
        """Return how vCenter is connected to it, and during which boot."""
        names = ["runtime.connectionState", "runtime.bootTime"]
        found = self._told("looking at the host", lambda: self._one(names))
        return str(found.get(names[0])), str(found.get(names[1]) or "")

    def in_maintenance(self) -> bool:
        """Return whether it is out of service."""
        name = "runtime.inMaintenanceMode"
        return bool(self._told("looking at the host", lambda: self._one([name])).get(name))

    def is_entering(self) -> bool:
        """Return whether a task takes it out of service just now, of whomever."""
        return self._told("looking at its tasks", self._enters)

    def _enters(self) -> bool:
        tasks = self._one(["recentTask"]).get("recentTask") or []
        told = properties(self._session.content, vim.Task, tasks, ["info"])
        infos = [values["info"] for values in told.values() if "info" in values]
        return any(info.descriptionId == ENTER and info.state in UNDER_WAY for info in infos)

    def read(self, *, packages: bool) -> HostFacts:
        """Return its facts; of its packages only where they are asked for: that takes long."""
        state, _ = self.look()
        if state != CONNECTED:
            raise HostError(
                f"{self.name}: vCenter says it is {state}",
                "look at its console, or connect it in vCenter",
            )
        found = self._told("reading the host", lambda: self._one(PROPERTIES))
        manager = found["configManager"]
        facts = host_facts(
            self.name,
            found,
            self._told("reading its machines", lambda: self._on(found)),
            self._told("reading options", lambda: _options(manager.kernelModuleSystem)),
            {},
        )
        if not packages:
            return facts
        try:
            listed = self._told(
                "reading packages", manager.imageConfigManager.FetchSoftwarePackages
            )
        except HostError as error:
            return replace(facts, unread=(f"packages: {error.message}",))
        return replace(facts, packages={str(p.name): str(p.version) for p in listed or []})

    def _on(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        content, refs = self._session.content, list(found.get("vm") or [])
        states = properties(content, vim.VirtualMachine, refs, ["runtime.powerState"])
        on = [r for r, values in states.items() if values.get("runtime.powerState") == "poweredOn"]
        names = ["name", "config.hardware.device"]
        return list(properties(content, vim.VirtualMachine, on, names).values())

    def _system(self, name: str) -> Any:
        found = self._told("reading the host", lambda: self._one([f"configManager.{name}"]))
        return found[f"configManager.{name}"]

    def set_options(self, module: str, options: str) -> None:
        """Set all options of a module; what is not said is gone."""
        system = self._system("kernelModuleSystem")
        self._told(
            f"setting options of {module}", lambda: system.UpdateModuleOptionString(module, options)
        )

    def set_vfs(self, address: str, count: int) -> None:
        """Set how many VFs it makes of a physical function when it boots."""
        system = self._system("pciPassthruSystem")
        config = vim.host.SriovConfig(
            id=address, passthruEnabled=False, sriovEnabled=count > 0, numVirtualFunction=count
        )
        self._told(f"setting VFs of {address}", lambda: system.UpdatePassthruConfig([config]))

    def set_power(self, policy: str) -> None:
        """Set the power policy, by its short name."""
        system = self._system("powerSystem")

        def work() -> None:
            keys = {str(p.shortName): p.key for p in system.capability.availablePolicy}
            if policy not in keys:
                raise HostError(f"{self.name}: there is no power policy {policy}")
            system.ConfigurePowerPolicy(keys[policy])

        self._told("setting the power policy", work)

    def enter_maintenance(self, vsan: str) -> None:
        """Take it out of service: machines that are on move away. `vsan`: "" where there is none."""
        mode = vim.vsan.host.DecommissionMode(objectAction=vsan) if vsan else None
        spec = vim.host.MaintenanceSpec(vsanMode=mode)
        self._done(
            "entering maintenance mode",
            # Machines that are off may stay: without DRS the call would end at them.
            lambda: self._ref.EnterMaintenanceMode_Task(EVACUATE_S, False, spec),
            "machines stayed on it: move them, or let DRS (fully automated) do it",
        )

    def leave_maintenance(self) -> None:
        """Put it back into service."""
        self._done(
            "leaving maintenance mode", lambda: self._ref.ExitMaintenanceMode_Task(EVACUATE_S)
        )

    def reboot(self) -> None:
        """Begin a reboot; it must be in maintenance mode."""
        self._done("rebooting", lambda: self._ref.RebootHost_Task(False))

    def refresh(self) -> None:
        """Have it look at its PCI devices anew."""
        system = self._system("pciPassthruSystem")
        self._told("looking at PCI devices", system.Refresh)


def _options(system: Any) -> str:
    try:
        return str(system.QueryConfiguredModuleOptionString(ESXI_DRIVER) or "")
    except vim.fault.NotFound:
        return ""  # the driver is not installed
