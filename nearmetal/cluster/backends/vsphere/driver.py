# SPDX-License-Identifier: Apache-2.0
"""A cluster of virtual machines under a vCenter.

    datacenter / folder of the spec / CLUSTER      the cluster's own folder: its content is the cluster's
    └── machine with a mark                        the mark has its node, and values that vCenter does not keep
    cluster of hosts                               rules of DRS, with names nearmetal.CLUSTER.RULE
    switches and port groups                       with a mark, or in a record beside the spec

vCenter is asked for everything that exists. A machine begins with its clone and is made when its mark
says so: an unfinished machine is completed in place. Several machines are worked on at the same time, at
most `parallel`; `finish` waits for them and reports all failures together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.backends.vsphere import machine as machines
from nearmetal.cluster.backends.vsphere.guests import ADDRESSES, Guests
from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.lookup import Lookup
from nearmetal.cluster.backends.vsphere.marks import (
    EXTRA,
    MADE,
    MARKS,
    UUID,
    Found,
    claims,
    home_of,
    mark_of,
)
from nearmetal.cluster.backends.vsphere.plan import (
    VsphereMachine,
    need_off,
    part_of,
    vsphere_machines,
)
from nearmetal.cluster.backends.vsphere.rights import lacking
from nearmetal.cluster.backends.vsphere.rules import rule_changes, rules_by_machine
from nearmetal.cluster.backends.vsphere.settings import INSTANT
from nearmetal.cluster.backends.vsphere.spec import DrsRule, VsphereNode, VsphereSpec
from nearmetal.cluster.backends.vsphere.stock import needs_of, shortages
from nearmetal.cluster.backends.vsphere.switches import Switches
from nearmetal.cluster.backends.vsphere.tasks import wait_for_tasks
from nearmetal.cluster.backends.vsphere.work import MachineWork
from nearmetal.cluster.backends.vsphere.workers import Workers
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import ClusterSpec, Finding, refuse
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.cluster.ssh_nodes import Nodes, SshBackend
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, Interrupted
from nearmetal.core.process import LocalRunner, Runner
from nearmetal.host.vcenter.session import Properties, Session, fetch, fetch_of

CPUS = "config.hardware.numCPU"
APART = "ESXi has no memory that machines share: no ivshmem, and VMCI cannot be mapped"
"""Why machines of one host use the network."""


def _taken(node: str, name: str) -> Finding:
    hint = "write another vm: NAME at the node, or move the machine elsewhere"
    why = "it is not of this cluster"
    return Finding((), f"machine {name} is in the folder of the cluster", why, hint, (node,))


class VsphereBackend(SshBackend):
    """Implements Backend; see there for the contracts."""

    spec: VsphereSpec
    apart = APART

    def __init__(self, spec: VsphereSpec, store: Store, runner: Runner | None = None) -> None:
        self.spec = spec
        self.name = spec.name
        self._directory = store.cluster(spec.name)
        self._session = Session(spec.vcenter)
        self._inventory: VsphereInventory | None = None
        self._workers = Workers(self._session, spec.parallel)
        self._guests: Guests | None = None
        if spec.ssh is not None:
            self._guests = Guests(spec, spec.ssh, self._directory, runner or LocalRunner())
        self._removing = False
        self._notes: list[str] = []
        self._whole = False
        """Whether `observe` leaves out no value of a machine."""
        self._seen: dict[str, tuple[Found, VsphereMachine]] = {}
        self._foreign: set[str] = set()
        """Names of machines of other owners in the folder."""

    @cached_property
    def _desired(self) -> Observed:
        """The resources of the spec, as if they were there."""
        return Observed(vsphere_machines(self.spec, Facts(), Observed()).resources)

    @cached_property
    def _addresses(self) -> dict[str, str]:
        """The addresses of the spec, worked out once for all nodes."""
        return self.spec.guest_addresses()

    def _switches(self) -> Switches:
        return Switches(self._session, self._places(), self.spec, self._directory)

    # As it is

    def _places(self) -> VsphereInventory:
        if self._inventory is None:
            content = self._session.content
            self._inventory = self._session.call(
                "reading the inventory", partial(VsphereInventory, content, self.spec)
            )
        return self._inventory

    def _folder(self) -> Any:
        return self._session.call("looking for the folder", self._places().folder)

    def _machine_work(self) -> MachineWork:
        return MachineWork(self._session, self._places(), self.spec, self._guests)

    def prepare(self) -> None:
        """Wait for tasks of an earlier run."""
        self._adopt()

    def _adopt(self) -> None:
        """Wait for tasks that a killed run left."""
        if not self._directory.exists():
            return
        places, folder = self._places(), self._folder()
        templates = {self.spec.machine_of(node).template or "" for _, node in self.spec.nodes}

        def known() -> set[Any]:
            own = folder.childEntity if folder is not None else []
            return {places.compute, folder, *own, *places.templates(templates)}

        entities = self._session.call("reading the inventory", known)
        self._notes = wait_for_tasks(self._session, entities)

    def facts(self) -> Facts:
        """Return no facts: a plan for vSphere needs only the spec.

        Without the cluster of hosts or the folder there is no plan: this raises BackendError with
        all names that are missing.
        """
        places, every = self._places(), {node.name for _, node in self.spec.nodes}

        def missing() -> list[Finding]:
            found = Lookup(places, []).names()
            return Lookup(places, needs_of(self.spec, every, every)).names() if found else []

        self._refuse(self._session.call("reading the inventory", missing))
        return Facts()

    def check(self, plan: Plan) -> None:
        """Look up names, devices, capacity and rights that a plan needs."""
        if not plan.effective:
            return
        found = self._session.call("looking up what is needed", partial(self._missing, plan))
        if any(change.key.kind is Kind.NETWORK for change in plan.coming):
            problems = self._switches().problems()
            found += [Finding((), what, "", hint) for what, hint in problems]
        self._refuse(found)

    def _missing(self, plan: Plan) -> list[Finding]:
        places = self._places()
        nodes = {c.key.name: c for c in plan.coming if c.key.kind is Kind.NODE}
        cloned = {name for name, change in nodes.items() if not change.in_place}
        needs = needs_of(self.spec, {*nodes}, cloned)
        lookup = Lookup(places, needs)
        found = lookup.names()
        own = {name: machine.ref for name, (machine, _) in self._seen.items()}
        found += shortages(needs, lookup.stock({*own.values()}))
        names = {n: nodes[n].item.of(VsphereMachine).vm for n in cloned}
        found += [_taken(node, vm) for node, vm in names.items() if vm in self._foreign]
        rights = lookup.rights(plan, places.folder(), own)
        return [*found, *lacking(self._session.content, self.spec.vcenter.user, rights)]

    def _refuse(self, found: Sequence[Finding]) -> None:
        hint = "correct the spec, or add it in vCenter; then repeat the command"
        refuse(self.name, found, hint)

    @property
    def _tools(self) -> tuple[str, ...]:
        """Properties that only jobs need."""
        return ADDRESSES if self._guests else ()

    def _own(self, names: Sequence[str]) -> tuple[dict[str, Found], list[Found]]:
        """Return the machine of each node with these properties, and strangers in the folder."""
        folder, content = self._folder(), self._session.content
        at_home: list[Found] = []
        if folder is not None:
            found = self._session.call(
                "reading the machines", partial(fetch, content, folder, vim.VirtualMachine, names)
            )
            at_home = [Found(*item) for item in found.items()]
        marked = [m for m in at_home if m.mark.get("cluster") == self.name]
        own, strangers = claims(marked, {n.name: n.vm or n.name for _, n in self.spec.nodes})
        refs = {machine.ref for machine in own.values()}
        self._foreign = {str(m.properties["name"]) for m in at_home if m.ref not in refs}
        missing = {node.name for _, node in self.spec.nodes} - own.keys()
        if missing and (at_home or self._directory.exists()):
            own |= self._strayed(missing, names)
        return own, strangers

    def _strayed(self, missing: set[str], names: Sequence[str]) -> dict[str, Found]:
        """Return the machines of these nodes that have left the folder."""
        content, work = self._session.content, self._machine_work()
        wanted = {work.uuid_of(node): node for node in missing}
        planned = self._desired.named(VsphereMachine)
        # Marks are large, and only those of instant clones say more than the identity.
        forked = any(planned[node].clone == INSTANT for node in missing)
        read_of = [UUID, EXTRA] if forked else [UUID]

        def read() -> dict[Any, Properties]:
            every = fetch(content, content.rootFolder, vim.VirtualMachine, read_of)
            refs = [ref for ref, values in every.items() if home_of(values) in wanted]
            return fetch_of(content, vim.VirtualMachine, refs, names)

        found = self._session.call("looking for machines elsewhere", read)
        strays = (Found(ref, values, home=False) for ref, values in found.items())
        return {
            wanted[home_of(stray.properties)]: stray
            for stray in strays
            if stray.named and stray.mark.get("cluster") == self.name
        }

    def observe(self) -> Observed:
        """Ask vCenter for the folder, its machines, and the switches."""
        self._seen = {}
        found, notes = self._switches().observe()
        switches = [part_of(self.spec, Kind.NETWORK, *switch) for switch in found.items()]
        settings = [self.spec.machine, *(node for _, node in self.spec.nodes)]
        compares = self._whole or any(one.adapters for one in settings)
        names = (*machines.PROPERTIES, *([machines.DEVICES] if compares else []), *self._tools)
        own, strangers = self._own(names)
        lacking = self._guests.lacking(own) if self._guests else {}
        notes = [*notes, *self._notes, *map(self._stranger, strangers)]
        if self._folder() is None and not own:
            # A directory without a folder: a removal or the first `up` was interrupted.
            alone = self._directory.exists() and not switches
            broken = {Key(Kind.CLUSTER, self.name)} if alone else set()
            return Observed(tuple(switches), frozenset(broken), tuple(notes))
        read = {found.ref: found.properties for found in own.values()}
        wanted = self._desired.named(VsphereMachine)
        values = self._session.call("reading the cluster", partial(self._values, read, wanted))
        parts = [*([self._desired.resources[0]] if self._folder() is not None else []), *switches]
        unfinished = {}
        for (name, machine), now in zip(own.items(), values, strict=True):
            item = part_of(self.spec, Kind.NODE, name, now)
            self._seen[name] = machine, now
            parts.append(item)
            if reason := machine.unfinished or lacking.get(name, ""):
                unfinished[item.key] = reason
        return Observed(tuple(parts), notes=tuple(notes), unfinished=unfinished)

    def _stranger(self, machine: Found) -> str:
        node = machine.mark.get("node", "")
        return (
            f"machine {machine.properties['name']} in folder {self.name} has a copy of the mark of "
            f"node {node}, and is not its machine: it stays as it is"
        )

    def _values(
        self, read: dict[Any, Properties], wanted: dict[str, VsphereMachine]
    ) -> list[VsphereMachine]:
        places = self._places()
        hosts = {host: (host.name, places.mhz(host)) for host in places.compute.host}
        pools: dict[Any, str] = {}
        groups, rules = places.group_names(), rules_by_machine(places.compute, self.name)
        made = []
        for ref, properties in read.items():
            pool = properties.get("resourcePool")
            if pool not in pools:
                pools[pool] = pool.name if pool is not None else ""
            esxi, mhz = hosts.get(properties.get("runtime.host"), ("", 1))
            made.append(
                machines.values_of(
                    properties,
                    wanted.get(mark_of(properties).get("node", "")),
                    mhz=mhz,
                    esxi=esxi,
                    pool=pools[pool],
                    rules=rules.get(ref, ()),
                    groups=groups,
                    whole=self._whole,
                )
            )
        return made

    def details(self) -> Observed:
        """Observe, with the values that the spec leaves open."""
        self._whole = True
        try:
            return self.observe()
        finally:
            self._whole = False

    # Creation and change

    def _drain(self) -> None:
        """Wait for all work; raises BackendError with all failures."""
        self._removing = False
        self._workers.drain()

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        """Make the folder or a switch, or begin to make a machine."""
        if item.key.kind is not Kind.CLUSTER:
            self._settle(item, spec, self._machine_work().make)
            return
        self._removed()
        places = self._places()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._session.call("making the folder", lambda: places.parent.CreateFolder(self.name))

    def change(self, item: Resource, spec: ClusterSpec) -> None:
        """Change a switch, or begin to change a machine."""
        self._settle(item, spec, self._alter)

    def _settle(
        self, item: Resource, spec: ClusterSpec, work: Callable[[str, VsphereMachine], None]
    ) -> None:
        del spec
        self._removed()
        name = item.key.name
        if item.key.kind is Kind.NETWORK:
            self._switches().settle(name)
        else:
            self._workers.begin(f"node {name}", partial(work, name, item.of(VsphereMachine)))

    def _removed(self) -> None:
        """Wait for removals, which free the names of machines."""
        if self._removing:
            self._drain()

    def _alter(self, name: str, wanted: VsphereMachine) -> None:
        if name not in self._seen:
            raise BackendError("it is gone", "run `nearmetal up` again")
        found, now = self._seen[name]
        if self._guests and (need_off(wanted, now) or wanted.power != now.power):
            self._guests.close(name)
        self._machine_work().change(found, name, wanted, now)

    def leave(self, error: Interrupted) -> None:
        """Begin no other machine; `error` says which tasks continue in vCenter."""
        self._workers.leave(error)

    def finish(self) -> None:
        """Wait for the machines, set the rules of DRS, and remove the rest of switches."""
        self._drain()
        members = {node: machine.ref for node, machine in self._own(MARKS)[0].items()}
        self._set_rules("setting rules of DRS", self.spec.rules, members)
        self._switches().trim(keep=True)
        if self._guests is not None:
            self._guests.make_nodes(lambda: self._own((*MARKS, *ADDRESSES))[0])

    def _set_rules(self, what: str, rules: Sequence[DrsRule], members: dict[str, Any]) -> None:
        compute = self._places().compute
        changes = self._session.call(
            "reading the rules", lambda: rule_changes(compute, self.name, rules, members)
        )
        if changes:
            spec = vim.cluster.ConfigSpecEx(rulesSpec=changes)
            self._session.wait(
                what, lambda: compute.ReconfigureComputeResource_Task(spec, modify=True)
            )

    # Removal

    def delete(self, key: Key) -> None:
        """Begin to remove a machine; or remove the cluster with all its objects.

        `finish` removes a switch: machines may use it until they are changed.
        """
        if key.kind is Kind.NODE and key.name in self._seen:
            ref = self._seen[key.name][0].ref
            if self._guests is not None:
                self._guests.forget(key.name)
            self._workers.begin(f"node {key.name}", partial(self._machine_work().destroy, ref))
            self._removing = True
        elif key.kind is Kind.CLUSTER:
            self._delete_all()

    def _delete_all(self) -> None:
        self._adopt()
        if self._guests is not None:
            self._guests.close()
        folder = self._folder()
        own, _ = self._own(MARKS)
        if folder is not None:
            self._set_rules("removing rules of DRS", [], {})
            for machine in own.values():
                if machine.home:
                    what = f"machine {machine.properties['name']}"
                    work = partial(self._machine_work().destroy, machine.ref)
                    self._workers.begin(what, work)
            self._drain()
        self._switches().trim(keep=False)
        if folder is not None:
            left = self._session.call(
                "looking into the folder", lambda: [child.name for child in folder.childEntity]
            )
            if left:
                msg = f"folder {self.name} has objects of another owner: {', '.join(left)}"
                raise BackendError(msg, "move them elsewhere, then run `nearmetal down` again")
            # A machine that comes into the folder meanwhile keeps its files.
            self._session.wait("removing the folder", folder.UnregisterAndDestroy_Task)
        shutil.rmtree(self._directory, ignore_errors=True)
        strays = sorted(str(m.properties["name"]) for m in own.values() if not m.home)
        if strays:
            msg = f"these machines had left folder {self.name} and stay: {', '.join(strays)}"
            raise BackendError(msg, "the rest is removed; remove them in vCenter")

    # State, and jobs

    def status(self) -> list[NodeStatus]:
        """Return every machine of the spec."""
        own, _ = self._own((*machines.STATE, CPUS, *self._tools))
        lacking = self._guests.lacking(own) if self._guests else {}
        return [
            self._status(host.name, node, own.get(node.name), lacking.get(node.name, ""))
            for host, node in self.spec.nodes
        ]

    def _status(
        self, host: str, node: VsphereNode, machine: Found | None, lacking: str
    ) -> NodeStatus:
        power, found = self.spec.machine_of(node).power, machine.properties if machine else {}
        on = found.get("runtime.powerState") == "poweredOn"
        if machine is None:
            health = "not there"
        elif mark_of(found).get("state") != MADE:
            health = "unfinished"
        elif on != (power == "on"):
            health = "not as wanted"
        else:
            health = lacking or ("running" if on else "off")
        return NodeStatus(
            name=node.name,
            host=host,
            hostname=node.name,
            address=self._address(node.name, found),
            slots=node.slots,
            cpus=(),
            shm="",
            pid=0,
            uptime_s=0.0,
            healthy=health in ("running", "off"),
            health=health,
            own_cpus=int(found.get(CPUS) or 0),
        )

    def _address(self, node: str, found: Properties) -> str:
        wanted = self._addresses.get(node, "").partition("/")[0]
        reached = self._guests.address(node, found) if self._guests else None
        address = reached.ip if reached else str(found.get("guest.ipAddress") or wanted)
        return "" if address == "dhcp" else address

    def incarnations(self) -> Mapping[str, str]:
        """Return the BIOS UUID of each machine."""
        return {node: machine.incarnation for node, machine in self._own(MARKS)[0].items()}

    def nodes(self) -> Nodes:
        """Return the nodes; raises BackendError if the spec does not say how to enter them."""
        if self._guests is None:
            raise BackendError(
                f"cluster {self.name}: its spec does not say how jobs reach the machines",
                "add `ssh: {}` and run `nearmetal up`; nearmetal-spec(5), `ssh`, has the needs of "
                "the template",
            )
        return self._guests.nodes()


def open_backend(spec: VsphereSpec, store: Store, runner: Runner) -> VsphereBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    return VsphereBackend(spec, store, runner)
