# SPDX-License-Identifier: Apache-2.0
"""The work on one machine: made, changed, and removed.

A machine is never made again to change it. A change that needs the machine off marks it *changing*
first, and *made* at its end. After a refusal the machine is switched on as it is. The next `up` compares
the values and completes the machine, or changes it back where the spec was reverted.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere import machine as machines
from nearmetal.cluster.backends.vsphere.guests import Guests
from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.marks import (
    BEGUN,
    CHANGING,
    MADE,
    MARKED,
    UUID,
    Found,
    identity,
    mark_option,
)
from nearmetal.cluster.backends.vsphere.plan import PLACE, VsphereMachine, differences, need_off
from nearmetal.cluster.backends.vsphere.settings import INSTANT
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import Session, TaskLeftError, fetch_of

LOOK_S = 0.5
"""Time between two looks whether a guest has shut down."""


class MachineWork:
    """Works on machines of one cluster, from several threads."""

    def __init__(
        self,
        session: Session,
        places: VsphereInventory,
        spec: VsphereSpec,
        guests: Guests | None = None,
    ) -> None:
        self._session, self._places, self._spec, self._guests = session, places, spec, guests

    def uuid_of(self, node: str) -> str:
        """Return the instanceUuid that the machine of a node gets."""
        center, path = self._places.datacenter, self._spec.folder or ""
        service = str(self._session.content.about.instanceUuid)
        return identity(service, str(center), path, self._spec.name, node)

    def _configure(self, machine: Any, spec: Any, what: str = "configuring") -> None:
        self._session.wait(what, lambda: machine.ReconfigVM_Task(spec))

    def _option(self, node: str, values: VsphereMachine, state: str, machine: str = "") -> Any:
        home = self.uuid_of(node) if values.clone == INSTANT else ""
        return mark_option(self._spec.name, node, values, state, machine, home=home)

    def _mark(self, found: Found, node: str, values: VsphereMachine, state: str) -> None:
        option = self._option(node, values, state, found.uuid)
        self._configure(found.ref, vim.vm.ConfigSpec(extraConfig=[option]), "marking")

    # Creation

    def make(self, name: str, wanted: VsphereMachine) -> None:
        """Clone a machine and complete it."""
        places = self._places
        begun = self._option(name, wanted, BEGUN)

        def clone() -> Any:
            template = places.template(wanted.template)
            if wanted.clone == INSTANT:
                return template.InstantClone_Task(machines.fork_spec(places, wanted, begun))
            spec = machines.clone_spec(places, template, wanted, begun)
            return template.CloneVM_Task(places.folder(), wanted.vm, spec)

        ref = self._session.wait("cloning", clone)
        if wanted.clone == INSTANT:
            self._complete_fork(ref, name, wanted)
        else:
            self._complete(Found(ref, {}), name, wanted)

    def _complete_fork(self, ref: Any, name: str, wanted: VsphereMachine) -> None:
        """Give an instant clone, which is on with the settings of its source, its shares and mark.

        It keeps the instanceUuid that vCenter chose: whether a running machine takes another is
        not documented.
        """
        uuid = self._session.call("looking for its identity", lambda: ref.config.instanceUuid)
        spec = machines.shares_spec(wanted)
        spec.extraConfig = [self._option(name, wanted, MADE, str(uuid))]
        self._configure(ref, spec)
        if wanted.power != "on":
            self.off(ref)
        elif self._is_off(ref):
            self._session.wait("switching on", ref.PowerOnVM_Task)

    def _complete(self, found: Found, name: str, wanted: VsphereMachine) -> None:
        """Give a clone that was never on its identity, all its values, and power."""
        ref, uuid = found.ref, self.uuid_of(name)

        def free() -> str:
            holder = self._session.content.searchIndex.FindByUuid(None, uuid, True, True)
            return uuid if holder in (None, ref) else str(ref.config.instanceUuid)

        uuid = self._session.call("looking for its identity", free)
        self._settle(Found(ref, {UUID: uuid}), name, wanted, customize=True, born=True)

    def _settle(
        self,
        found: Found,
        name: str,
        wanted: VsphereMachine,
        *,
        customize: bool,
        born: bool = False,
    ) -> None:
        """Give a machine that is off all its values, then its mark, then power.

        `customize`: whether its guest still needs its name and addresses. `born`: whether the
        machine still needs its identity.
        """
        places, session, ref = self._places, self._session, found.ref
        guest = wanted.guest if customize else None
        content, kind = session.content, vim.VirtualMachine
        read = partial(fetch_of, content, kind, [ref], machines.BEFORE)
        before = session.call("reading it", read)[ref]
        now, least = machines.hardware_of(before["config.version"]), wanted.hardware
        if now and least and now < least:
            version = f"vmx-{least:02d}"
            session.wait("upgrading the hardware", lambda: ref.UpgradeVM_Task(version))
        state = MADE if guest is None else BEGUN
        options = self._first_boot(name)
        if guest is None or born:
            options.append(self._option(name, wanted, state, found.uuid))
        if guest is not None and before.get("config.tools.pendingCustomization"):
            options.append(vim.option.OptionValue(key=machines.PENDING, value=""))

        def reconfigure() -> Any:
            spec = machines.config_spec(places, before, wanted)
            spec.extraConfig = [*spec.extraConfig, *options]
            if born:
                spec.instanceUuid = found.uuid
            return ref.ReconfigVM_Task(spec)

        session.wait("configuring", reconfigure)
        if guest is not None:
            spec = machines.customization(guest, machines.nr_cards(before, wanted))
            session.wait("customizing the guest", lambda: ref.CustomizeVM_Task(spec))
            self._mark(found, name, wanted, MADE)
        if wanted.power == "on":
            session.wait("switching on", ref.PowerOnVM_Task)

    def _first_boot(self, name: str) -> list[Any]:
        given = {} if self._guests is None else self._guests.first_boot(name)
        return [vim.option.OptionValue(key=key, value=value) for key, value in given.items()]

    # Change

    def change(self, found: Found, name: str, wanted: VsphereMachine, now: VsphereMachine) -> None:
        """Give a machine, which has the values `now`, the values of the spec."""
        ref, session = found.ref, self._session
        if not found.home:
            folder = self._places.folder()
            session.wait("moving it back", lambda: folder.MoveIntoFolder_Task([ref]))
        differ = differences(wanted, now)
        if "vm" in differ:
            session.wait("renaming it", lambda: ref.Rename_Task(wanted.vm))
        forked = wanted.clone == INSTANT and now.power == "on" and not need_off(wanted, now)
        if found.mark.get("state") == BEGUN and forked:
            self._complete_fork(ref, name, wanted)
        elif found.mark.get("state") == BEGUN:
            self.off(ref)
            self._migrate(ref, wanted, differ)
            self._complete(found, name, wanted)
        elif need_off(wanted, now):
            self._change_off(found, name, wanted, now)
        else:
            self._migrate(ref, wanted, differ)
            self._change_running(found, name, wanted, differ)

    def _migrate(self, machine: Any, wanted: VsphereMachine, differ: set[str]) -> None:
        if differ & PLACE:
            place = machines.place_spec(self._places, wanted)
            if not wanted.resource_pool:
                place.pool = None
            self._session.wait("migrating it", lambda: machine.RelocateVM_Task(place))

    def _change_off(
        self, found: Found, name: str, wanted: VsphereMachine, now: VsphereMachine
    ) -> None:
        differ = differences(wanted, now)
        customize = bool(differ & {"guest", "adapters"}) and wanted.guest is not None
        # Without its guest settings in the mark, a resumed change customizes the guest again.
        kept = now.model_copy(update={"guest": None}) if customize else now
        self._mark(found, name, kept, CHANGING)
        try:
            self.off(found.ref)
            self._migrate(found.ref, wanted, differ)
            self._settle(found, name, wanted, customize=customize)
        except TaskLeftError:
            raise
        except BackendError:
            if now.power == "on":
                with contextlib.suppress(BackendError):
                    self._session.wait("switching on", found.ref.PowerOnVM_Task)
            raise

    def _change_running(
        self, found: Found, name: str, wanted: VsphereMachine, differ: set[str]
    ) -> None:
        session, ref = self._session, found.ref
        if differ & {"cpu_shares", "memory_shares"}:
            self._configure(ref, machines.shares_spec(wanted), "changing shares")
        marked = found.named and found.mark.get("state") == MADE
        if differ & {*MARKED} or not marked:
            self._mark(found, name, wanted, MADE)
        if "power" in differ and wanted.power == "on":
            session.wait("switching on", ref.PowerOnVM_Task)
        elif "power" in differ:
            self.off(ref)

    # Power and removal

    def _is_off(self, machine: Any) -> bool:
        state = self._session.call("reading it", lambda: machine.runtime.powerState)
        return bool(state == "poweredOff")

    def off(self, machine: Any) -> None:
        """Shut the guest down; cut the power if there are no tools, or after the time-out."""
        if self._is_off(machine):
            return
        if self._spec.shutdown and self._asked(machine):
            end = time.monotonic() + self._spec.shutdown
            while time.monotonic() < end:
                if self._is_off(machine):
                    return
                self._session.pause(LOOK_S)
        self._cut(machine)

    def _asked(self, machine: Any) -> bool:
        """Ask the guest to shut down; False for a guest without running tools."""

        def ask() -> bool:
            try:
                machine.ShutdownGuest()
            except (vim.fault.ToolsUnavailable, vim.fault.InvalidPowerState):
                return False
            return True

        return self._session.call("shutting the guest down", ask)

    def _cut(self, machine: Any) -> None:
        if not self._is_off(machine):
            self._session.wait("switching off", machine.PowerOffVM_Task)

    def destroy(self, machine: Any) -> None:
        """Remove a machine with its disks."""
        self._cut(machine)
        self._session.wait("removing", machine.Destroy_Task)
