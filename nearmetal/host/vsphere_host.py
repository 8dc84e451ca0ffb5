# SPDX-License-Identifier: Apache-2.0
"""An ESXi host through its vCenter: reads its facts, and carries out single steps.

A fault of one host is a HostError with its name. A fault of the vCenter (it is not trusted, refuses
the password, does not answer) stays a BackendError, so that it is reported once for all hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from pyVmomi import vim

from nearmetal.core.errors import BackendError, HostError
from nearmetal.host.cards import ESXI_DRIVER
from nearmetal.host.facts_esxi import PROPERTIES, host_facts
from nearmetal.host.model import PlatformFacts
from nearmetal.host.vcenter.session import UNDER_WAY, Properties, Session, fetch, fetch_of
from nearmetal.host.vcenter.spec import Vcenter

_T = TypeVar("_T")

EVACUATE_S = 1800
"""Limit for machines to leave a host."""

CONNECTED = "connected"

ENTER = "HostSystem.enterMaintenanceMode"
"""vCenter's name of the task that enters maintenance mode."""


class Datacenters:
    """A vCenter, and its hosts by name."""

    def __init__(self, vcenter: Vcenter) -> None:
        self.session = Session(vcenter)
        self._lock = threading.Lock()
        self._hosts: dict[str, list[Any]] = {}

    def host(self, name: str) -> VsphereHost:
        """Return a host; raises HostError for a missing or an ambiguous name."""
        with self._lock:
            if not self._hosts:
                self._read()
            found = self._hosts.get(name, [])
        if len(found) != 1:
            times = f"there {len(found)} times" if found else "not there"
            raise HostError(
                f"{name}: under {self.session.vcenter.server} a host of this name is {times}",
                "nodes must be the names that vCenter shows",
            )
        return VsphereHost(name, self.session, found[0])

    def _read(self) -> None:
        content = self.session.content
        hosts = self.session.call(
            "reading the hosts",
            lambda: fetch(content, content.rootFolder, vim.HostSystem, ["name"]),
        )
        for ref, values in hosts.items():
            self._hosts.setdefault(str(values["name"]), []).append(ref)


class VsphereHost:
    """One host."""

    def __init__(self, name: str, session: Session, ref: Any) -> None:
        self.name = name
        self._session = session
        self._ref = ref

    @contextmanager
    def _naming(self, hint: str = "") -> Iterator[None]:
        """Turn a BackendError into a HostError with the name."""
        try:
            yield
        except BackendError as error:
            message = f"{self.name}: {error.message}"
            raise HostError(message, error.hint or hint) from error.__cause__

    def _call(self, what: str, work: Callable[[], _T]) -> _T:
        _ = self._session.content
        with self._naming():
            return self._session.call(what, work)

    def _wait(self, what: str, start: Callable[[], Any], hint: str = "") -> None:
        with self._naming(hint):
            self._session.wait(what, start)

    def _fetch(self, kind: Any, refs: Sequence[Any], names: Sequence[str]) -> list[Properties]:
        return list(fetch_of(self._session.content, kind, refs, names).values())

    def _properties(self, what: str, *names: str) -> Properties:
        return self._call(what, lambda: self._fetch(vim.HostSystem, [self._ref], names)[0])

    def look(self) -> tuple[str, str]:
        """Return the state of its connection to vCenter, and the time of its boot."""
        names = "runtime.connectionState", "runtime.bootTime"
        found = self._properties("looking at the host", *names)
        return str(found.get(names[0])), str(found.get(names[1]) or "")

    def in_maintenance(self) -> bool:
        """Return whether it is in maintenance mode."""
        name = "runtime.inMaintenanceMode"
        return bool(self._properties("looking at the host", name).get(name))

    def is_entering(self) -> bool:
        """Return whether a task of any user puts it into maintenance mode now."""

        def enters() -> bool:
            [host] = self._fetch(vim.HostSystem, [self._ref], ["recentTask"])
            tasks = self._fetch(vim.Task, host.get("recentTask") or [], ["info"])
            infos = [values["info"] for values in tasks if "info" in values]
            return any(info.descriptionId == ENTER and info.state in UNDER_WAY for info in infos)

        return self._call("looking at its tasks", enters)

    def read(self, *, packages: bool) -> PlatformFacts:
        """Return its facts; its packages only on request, because vCenter needs long for them."""
        state, _ = self.look()
        if state != CONNECTED:
            raise HostError(
                f"{self.name}: vCenter says it is {state}",
                "look at its console, or connect it in vCenter",
            )
        found = self._properties("reading the host", *PROPERTIES)
        manager = found["configManager"]
        facts = host_facts(
            self.name,
            found,
            self._call("reading its machines", lambda: self._on(found.get("vm") or [])),
            self._call("reading options", lambda: _options(manager.kernelModuleSystem)),
        )
        if not packages:
            return facts
        try:
            listed = self._call(
                "reading packages", manager.imageConfigManager.FetchSoftwarePackages
            )
        except HostError as error:
            return replace(facts, unread=(f"packages: {error.message}",))
        return replace(facts, packages={str(p.name): str(p.version) for p in listed or []})

    def _on(self, refs: Sequence[Any]) -> list[Properties]:
        """Return its machines that are on."""
        state, kind = "runtime.powerState", vim.VirtualMachine
        states = fetch_of(self._session.content, kind, refs, [state])
        on = [ref for ref, values in states.items() if values.get(state) == "poweredOn"]
        return self._fetch(kind, on, ["name", "config.hardware.device"])

    def _system(self, name: str) -> Any:
        path = f"configManager.{name}"
        return self._properties("reading the host", path)[path]

    def set_options(self, module: str, options: str) -> None:
        """Replace all options of a module."""
        system = self._system("kernelModuleSystem")
        self._call(
            f"setting options of {module}", lambda: system.UpdateModuleOptionString(module, options)
        )

    def set_vfs(self, address: str, count: int) -> None:
        """Set the number of VFs that it makes of a physical function at boot."""
        system = self._system("pciPassthruSystem")
        config = vim.host.SriovConfig(
            id=address, passthruEnabled=False, sriovEnabled=count > 0, numVirtualFunction=count
        )
        self._call(f"setting VFs of {address}", lambda: system.UpdatePassthruConfig([config]))

    def set_directpath(self, address: str, *, enabled: bool) -> None:
        """Switch DirectPath I/O of a device on or off, from the next boot."""
        system = self._system("pciPassthruSystem")
        config = vim.host.PciPassthruConfig(id=address, passthruEnabled=enabled)
        self._call(
            f"setting DirectPath I/O of {address}", lambda: system.UpdatePassthruConfig([config])
        )

    def set_power(self, policy: str) -> None:
        """Set the power policy, by its short name."""
        system = self._system("powerSystem")

        def work() -> None:
            keys = {str(p.shortName): p.key for p in system.capability.availablePolicy}
            if policy not in keys:
                raise HostError(f"{self.name}: has no power policy {policy}")
            system.ConfigurePowerPolicy(keys[policy])

        self._call("setting the power policy", work)

    def enter_maintenance(self, vsan: str) -> None:
        """Enter maintenance mode: machines that are on move away. `vsan`: "" without vSAN."""
        mode = vim.vsan.host.DecommissionMode(objectAction=vsan) if vsan else None
        spec = vim.host.MaintenanceSpec(vsanMode=mode)
        self._wait(
            "entering maintenance mode",
            # Machines that are off may stay: without DRS the call would end at them.
            lambda: self._ref.EnterMaintenanceMode_Task(EVACUATE_S, False, spec),
            "machines stayed on it: move them, or use DRS (fully automated)",
        )

    def leave_maintenance(self) -> None:
        """Leave maintenance mode."""
        self._wait(
            "leaving maintenance mode", lambda: self._ref.ExitMaintenanceMode_Task(EVACUATE_S)
        )

    def reboot(self) -> None:
        """Begin a reboot; it must be in maintenance mode."""
        self._wait("rebooting", lambda: self._ref.RebootHost_Task(False))

    def refresh(self) -> None:
        """Make it look at its PCI devices again."""
        self._call("looking at PCI devices", self._system("pciPassthruSystem").Refresh)


def _options(system: Any) -> str:
    try:
        return str(system.QueryConfiguredModuleOptionString(ESXI_DRIVER) or "")
    except vim.fault.NotFound:
        return ""  # the driver is not installed
