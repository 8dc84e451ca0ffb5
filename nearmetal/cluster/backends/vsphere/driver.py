# SPDX-License-Identifier: Apache-2.0
"""A cluster of virtual machines under a vCenter.

    datacenter / folder of the spec / CLUSTER      the cluster's own folder: its content is the cluster's
    └── machine with a mark                        the mark has its node, and values that vCenter does not keep
    cluster of hosts                               rules of DRS, with names nearmetal.CLUSTER.RULE
    switches and port groups                       with a mark, or in a record beside the spec

vCenter is asked for everything that exists. A machine begins with its clone and is made when its mark
says so: an unfinished machine is removed and made again. Several machines are made at the same time, at
most `parallel`; `finish` waits for them and reports all failures together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

from pyVmomi import vim

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.backends.vsphere import machine as machines
from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.machine import MARKS, mark_of
from nearmetal.cluster.backends.vsphere.plan import VsphereMachine, part_of, vsphere_machines
from nearmetal.cluster.backends.vsphere.rules import rule_changes, rules_by_machine
from nearmetal.cluster.backends.vsphere.spec import DrsRule, VsphereNode, VsphereSpec
from nearmetal.cluster.backends.vsphere.switches import Switches
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, NearmetalError
from nearmetal.core.process import Runner
from nearmetal.host.vcenter.session import Properties, Session, fetch

MADE, BEGUN = "made", "begun"

RUNNING = frozenset({"power", "rules", "slots", "cpu_shares", "memory_shares"})
"""Values that change while the machine runs."""

NO_JOBS = BackendError(
    "this release makes machines on vSphere, and runs nothing in them",
    "log in by ssh; `nearmetal status` has the addresses",
)


class VsphereBackend:
    """Implements Backend; see there for the contracts."""

    shares_files = False

    def __init__(self, spec: VsphereSpec, store: Store) -> None:
        self.spec = spec
        self.name = spec.name
        self._directory = store.cluster(spec.name)
        self._session = Session(spec.vcenter)
        self._inventory: VsphereInventory | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._work: list[tuple[str, Future[None]]] = []
        self._removing = False
        self._whole = False
        """Whether `observe` leaves out no value of a machine."""
        self._seen: dict[str, list[tuple[Any, VsphereMachine]]] = {}

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

    def prepare(self) -> None:
        """Find all objects that the spec names, so that an error comes before the first change."""
        self._session.call("reading the inventory", partial(self._find, self._places()))
        self._switches().check()

    def _find(self, places: VsphereInventory) -> None:
        made = [(host, self.spec.machine_of(node)) for host, node in self.spec.nodes]
        adapters = (adapter for _, machine in made for adapter in machine.adapters or [])
        groups = {
            (adapter.port_group, adapter.switch or "")
            for adapter in adapters
            if adapter.port_group is not None and self.spec.maker_of(adapter) is None
        }
        names: tuple[tuple[Callable[[Any], object], set[Any]], ...] = (
            (places.datastore, {machine.datastore for _, machine in made} - {None}),
            (places.host, {host.esxi for host, _ in made} - {"auto"}),
            (lambda group: places.network(group[0], group[1] or None), groups),
            (places.pool, {machine.resource_pool for _, machine in made} - {None}),
            (places.template, {machine.template or "" for _, machine in made}),
            (places.efi_template, {m.template or "" for _, m in made if m.secure_boot}),
        )
        for find, wanted in names:
            for name in sorted(wanted):
                find(name)

    def facts(self) -> Facts:
        """Return no facts: a plan for vSphere needs only the spec."""
        return Facts()

    def _machines(self, names: Sequence[str]) -> dict[Any, Properties]:
        """Return properties of every machine in the cluster's folder that has its mark."""
        folder = self._folder()
        if folder is None:
            return {}
        content = self._session.content
        found = self._session.call(
            "reading the machines", partial(fetch, content, folder, vim.VirtualMachine, names)
        )
        return {r: v for r, v in found.items() if mark_of(v).get("cluster") == self.name}

    def observe(self) -> Observed:
        """Ask vCenter for the folder, its machines, and the switches."""
        self._seen = {}
        found, notes = self._switches().observe()
        switches = [part_of(self.spec, Kind.NETWORK, *switch) for switch in found.items()]
        if self._folder() is None:
            # A directory without a folder: a removal or the first `up` was interrupted.
            alone = self._directory.exists() and not switches
            unfinished = {Key(Kind.CLUSTER, self.name)} if alone else set()
            return Observed(tuple(switches), frozenset(unfinished), tuple(notes))
        desired = Observed(vsphere_machines(self.spec, Facts(), Observed()).resources)
        wanted = desired.named(VsphereMachine)
        compares = self._whole or any(machine.adapters for machine in wanted.values())
        names = (*machines.PROPERTIES, *([machines.DEVICES] if compares else []))
        read = self._machines(names)
        values = self._session.call("reading the cluster", partial(self._values, read, wanted))
        parts, broken = [desired.resources[0], *switches], set()
        for (ref, properties), now in zip(read.items(), values, strict=True):
            mark = mark_of(properties)
            name = mark.get("node", str(properties["name"]))
            item = part_of(self.spec, Kind.NODE, name, now)
            self._seen.setdefault(name, []).append((ref, now))
            parts.append(item)
            if mark.get("state") != MADE:
                broken.add(item.key)
        return Observed(tuple(parts), frozenset(broken), tuple(notes))

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

    def _begin(self, what: str, work: Callable[[], None]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.spec.parallel, thread_name_prefix="vsphere")
        self._work.append((what, self._pool.submit(work)))

    def _drain(self) -> None:
        """Wait for all work; raises BackendError with all failures."""
        pool, work = self._pool, self._work
        self._pool, self._work, self._removing = None, [], False
        if pool is None:
            return
        try:
            failed = [(what, future.exception()) for what, future in work]
        finally:
            # An interrupt cancels the work that has not begun.
            pool.shutdown(wait=True, cancel_futures=True)
        errors = [(what, error) for what, error in failed if error is not None]
        for _, error in errors:
            if not isinstance(error, NearmetalError):
                raise error
        if errors:
            listed = "\n".join(f"  {what}: {error}" for what, error in errors)
            hints = {e.hint for _, e in errors if isinstance(e, NearmetalError) and e.hint}
            msg = f"{len(errors)} of {len(work)} machines failed:\n{listed}"
            raise BackendError(msg, "; ".join(sorted(hints)) or "run `nearmetal up` again")

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        """Make the folder or a switch, or begin to make a machine."""
        if item.key.kind is not Kind.CLUSTER:
            self._settle(item, spec, self._make)
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
            self._begin(f"node {name}", partial(work, name, item.of(VsphereMachine)))

    def _removed(self) -> None:
        """Wait for removals, which free the names of machines."""
        if self._removing:
            self._drain()

    def _make(self, name: str, wanted: VsphereMachine) -> None:
        places = self._places()
        if wanted.clone == "instant":
            raise BackendError("this release does not make instant clones", "write clone: linked")
        begun = machines.mark_option(self.name, name, wanted, BEGUN)

        def clone() -> Any:
            template = places.template(wanted.template)
            spec = machines.clone_spec(places, template, wanted, begun)
            return template.CloneVM_Task(places.folder(), wanted.vm, spec)

        self._configure(self._session.wait("cloning", clone), name, wanted, customize=True)

    def _configure(
        self, machine: Any, name: str, wanted: VsphereMachine, *, customize: bool
    ) -> None:
        """Give a machine that is off all its values, then its mark, then power.

        `customize`: whether its guest still needs its name and addresses.
        """
        places, session = self._places(), self._session
        guest = wanted.guest if customize else None
        config, host = session.call("reading it", lambda: (machine.config, machine.runtime.host))
        made = machines.mark_option(self.name, name, wanted, MADE)

        def reconfigure() -> Any:
            spec = machines.config_spec(places, config, host, wanted)
            if guest is None:
                spec.extraConfig = [*spec.extraConfig, made]
            return machine.ReconfigVM_Task(spec)

        session.wait("configuring", reconfigure)
        if guest is not None:
            cards = vim.vm.device.VirtualEthernetCard
            devices = session.call("reading it", lambda: machine.config.hardware.device)
            spec = machines.customization(guest, sum(isinstance(one, cards) for one in devices))
            session.wait("customizing the guest", lambda: machine.CustomizeVM_Task(spec))
            self._mark(machine, name, wanted, MADE)
        if wanted.power == "on":
            session.wait("switching on", machine.PowerOnVM_Task)

    def _mark(self, machine: Any, name: str, wanted: VsphereMachine, state: str) -> None:
        option = machines.mark_option(self.name, name, wanted, state)
        spec = vim.vm.ConfigSpec(extraConfig=[option])
        self._session.wait("marking", lambda: machine.ReconfigVM_Task(spec))

    def _alter(self, name: str, wanted: VsphereMachine) -> None:
        if name not in self._seen:
            raise BackendError("it is gone", "run `nearmetal up` again")
        ref, now = self._seen[name][0]
        differ = machines.differences(wanted, now)
        if differ <= RUNNING:
            self._alter_running(ref, name, wanted, differ)
            return
        # With this mark it counts as unfinished if the change is interrupted.
        self._off(ref)
        self._mark(ref, name, wanted, BEGUN)
        self._configure(ref, name, wanted, customize=bool(differ & {"guest", "adapters"}))

    def _alter_running(
        self, machine: Any, name: str, wanted: VsphereMachine, differ: set[str]
    ) -> None:
        session = self._session
        if differ & {"cpu_shares", "memory_shares"}:
            spec = machines.shares_spec(wanted)
            session.wait("changing shares", lambda: machine.ReconfigVM_Task(spec))
        if "slots" in differ:
            self._mark(machine, name, wanted, MADE)
        if "power" in differ and wanted.power == "on":
            session.wait("switching on", machine.PowerOnVM_Task)
        elif "power" in differ:
            self._off(machine)

    def _off(self, machine: Any) -> None:
        if self._session.call("reading it", lambda: machine.runtime.powerState) != "poweredOff":
            self._session.wait("switching off", machine.PowerOffVM_Task)

    def finish(self) -> None:
        """Wait for the machines, set the rules of DRS, and remove the rest of switches."""
        self._drain()
        members = {mark_of(v).get("node", ""): ref for ref, v in self._machines(MARKS).items()}
        self._set_rules("setting rules of DRS", self.spec.rules, members)
        self._switches().trim(keep=True)

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
        if key.kind is Kind.NODE:
            for ref, _ in self._seen.get(key.name, []):
                self._begin(f"node {key.name}", partial(self._destroy, ref))
                self._removing = True
        elif key.kind is Kind.CLUSTER:
            self._delete_all()

    def _destroy(self, machine: Any) -> None:
        self._off(machine)
        self._session.wait("removing", machine.Destroy_Task)

    def _delete_all(self) -> None:
        folder = self._folder()
        if folder is not None:
            self._set_rules("removing rules of DRS", [], {})
            for ref, values in self._machines(MARKS).items():
                self._begin(f"machine {values['name']}", partial(self._destroy, ref))
            self._drain()
        self._switches().trim(keep=False)
        if folder is not None:
            left = self._session.call(
                "looking into the folder", lambda: [child.name for child in folder.childEntity]
            )
            if left:
                msg = f"folder {self.name} has objects of another owner: {', '.join(left)}"
                raise BackendError(msg, "move them elsewhere, then run `nearmetal down` again")
            self._session.wait("removing the folder", folder.Destroy_Task)
        shutil.rmtree(self._directory, ignore_errors=True)

    # State, and jobs

    def status(self) -> list[NodeStatus]:
        """Return every machine of the spec."""
        found = {mark_of(v).get("node", ""): v for v in self._machines(machines.STATE).values()}
        addresses = self.spec.guest_addresses()
        return [
            self._status(host.name, node, found.get(node.name), addresses.get(node.name, ""))
            for host, node in self.spec.nodes
        ]

    def _status(
        self, host: str, node: VsphereNode, found: Properties | None, wanted: str
    ) -> NodeStatus:
        power = self.spec.machine_of(node).power
        if found is None:
            health = "not there"
        elif mark_of(found).get("state") != MADE:
            health = "unfinished"
        else:
            on = found["runtime.powerState"] == "poweredOn"
            health = ("running" if on else "off") if on == (power == "on") else "not as wanted"
        address = str((found or {}).get("guest.ipAddress") or wanted.partition("/")[0])
        return NodeStatus(
            name=node.name,
            host=host,
            hostname=node.name,
            address="" if address == "dhcp" else address,
            slots=node.slots,
            cpus=(),
            shm="",
            pid=0,
            uptime_s=0.0,
            healthy=health in ("running", "off"),
            health=health,
        )

    def _refuse_jobs(self, *_words: Any, **_options: Any) -> NoReturn:
        """Refuse: this release does not run jobs in these machines."""
        raise NO_JOBS

    on_node = on_launcher = remote_shell = job_root = staged = meeting_directory = _refuse_jobs
    supervisor = _refuse_jobs

    def end_marked(self, marker: str) -> int:
        """Return 0: no process of ours runs in these machines."""
        del marker
        return 0


def open_backend(spec: VsphereSpec, store: Store, _runner: Runner) -> VsphereBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    return VsphereBackend(spec, store)
