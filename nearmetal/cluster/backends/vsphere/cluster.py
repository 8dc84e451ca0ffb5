# SPDX-License-Identifier: Apache-2.0
"""A cluster of virtual machines under a vCenter.

    datacenter / folder of the spec / CLUSTER      the cluster's own folder: whoever is in it is its
    └── machine, marked                            the mark says of which node, and made from what
    cluster of hosts                               rules of DRS, called nearmetal.CLUSTER.RULE
    switches and port groups                       marked, or recorded beside the spec

What exists is asked of vCenter. A machine is begun with its clone and made when its mark says so: one
that was begun and never made is removed and made anew. Machines are worked on side by side, at most
`parallel` at a time; `finish` waits for them and tells everything that failed at once.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.backends.vsphere import configure
from nearmetal.cluster.backends.vsphere.inventory import Inventory
from nearmetal.cluster.backends.vsphere.observe import (
    DEVICES,
    MARKS,
    PROPERTIES,
    STATE,
    attributes,
    mark_of,
)
from nearmetal.cluster.backends.vsphere.plan import standing, vsphere_machines
from nearmetal.cluster.backends.vsphere.rules import named_rules, rule_changes, rules_by_machine
from nearmetal.cluster.backends.vsphere.switches import Switches
from nearmetal.cluster.spec import Facts, Key, Kind, Observed, Resource, resource
from nearmetal.core.errors import BackendError, NearmetalError
from nearmetal.host.vcenter.session import Properties, Session, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from nearmetal.cluster.backends.vsphere.spec import VmAdapter, VsphereNode, VsphereSpec
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Command

MADE, BEGUN = "made", "begun"

RUNNING = frozenset({"power", "rules", "slots", "cpu_shares", "memory_shares"})
"""What changes without switching a machine off."""

SHUTDOWN_S = 120.0

NO_JOBS = BackendError(
    "this release makes machines on vSphere, and runs nothing in them",
    "log in by ssh; `nearmetal status` has the addresses",
)


class VsphereBackend:
    """Implements Backend; see there for the contracts."""

    shares_files = False

    def __init__(self, spec: VsphereSpec, store: Store) -> None:
        """Remember what it is about; nothing is touched yet."""
        self.spec = spec
        self.name = spec.name
        self._directory = store.cluster(spec.name)
        self._session = Session(spec.vcenter)
        self._inventory: Inventory | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._work: list[tuple[str, Future[None]]] = []
        self._removing = False
        self._nodes = {node.name: node for _, node in spec.nodes}
        self._seen: dict[str, list[tuple[Any, dict[str, str]]]] = {}

    def _switches(self) -> Switches:
        return Switches(self._session, self._places(), self.spec, self._directory)

    # What there is

    def _places(self) -> Inventory:
        if self._inventory is None:
            content = self._session.content
            self._inventory = self._session.call(
                "reading the inventory", partial(Inventory, content, self.spec)
            )
        return self._inventory

    def prepare(self) -> None:
        """Look at what the spec names, so that a mistake is told before anything is made."""
        places = self._places()
        self._session.call("reading the inventory", partial(self._look, places))
        self._switches().check()

    def _look(self, places: Inventory) -> None:
        templates: set[str] = set()
        names: set[tuple[str, str]] = set()
        for host, node in self.spec.nodes:
            machine = self.spec.machine_of(node)
            templates.add(machine.template or "")
            names.update(("esxi", n) for n in [host.esxi] if n != "auto")
            names.update(("datastore", n) for n in [machine.datastore] if n)
            names.update(("pool", n) for n in [machine.resource_pool] if n)
            for adapter in machine.adapters or []:
                made = self.spec.maker_of(adapter) is not None
                if adapter.port_group is not None and not made:
                    names.add((f"network\0{adapter.switch or ''}", adapter.port_group))
        for kind, name in sorted(names):
            if kind.startswith("network"):
                places.network(name, kind.partition("\0")[2] or None)
            else:
                {"esxi": places.host, "datastore": places.datastore, "pool": places.pool}[kind](
                    name
                )
        for name in sorted(templates):
            places.template(name)

    def facts(self) -> Facts:
        """Return nothing: a plan for vSphere needs no more than the spec."""
        return Facts()

    def _machines(self, names: Sequence[str]) -> dict[Any, Properties]:
        """Return properties of every machine in the cluster's folder that has its mark."""
        places = self._places()
        folder = self._session.call("looking for the folder", places.folder)
        if folder is None:
            return {}
        content = self._session.content
        found = self._session.call(
            "reading the machines", partial(fetch, content, folder, vim.VirtualMachine, names)
        )
        return {
            ref: values
            for ref, values in found.items()
            if mark_of(values).get("cluster") == self.name
        }

    def observe(self) -> Observed:
        """Ask vCenter for the folder and every machine in it."""
        places = self._places()
        self._seen = {}
        switches, notes = self._switches().observe()
        if self._session.call("looking for the folder", places.folder) is None:
            # Records of nothing: a removal was cut short at its end, or the making at its beginning.
            alone = self._directory.exists() and not switches
            cluster = Key(Kind.CLUSTER, self.name)
            unfinished = {cluster} if alone else set()
            return Observed(tuple(switches), frozenset(unfinished), tuple(notes))
        desired = vsphere_machines(self.spec, Facts(), Observed()).resources
        found = [desired[0], *(standing(self.spec, switch) for switch in switches)]
        broken = set()
        wanted = {r.key.name: dict(r.attributes) for r in desired if r.key.kind is Kind.NODE}
        compares = any(wish["adapters"] for wish in wanted.values())
        machines = self._machines((*PROPERTIES, DEVICES) if compares else PROPERTIES)
        read = self._session.call(
            "reading the cluster", partial(self._attributes, machines, wanted)
        )
        for (ref, values), now in zip(machines.items(), read, strict=True):
            mark = mark_of(values)
            item = resource(Kind.NODE, mark.get("node", str(values["name"])), now)
            self._seen.setdefault(item.key.name, []).append((ref, now))
            found.append(standing(self.spec, item))
            if mark.get("state") != MADE:
                broken.add(item.key)
        return Observed(tuple(found), frozenset(broken), tuple(notes))

    def _attributes(
        self, machines: Mapping[Any, Properties], wanted: Mapping[str, Mapping[str, str]]
    ) -> list[dict[str, str]]:
        places = self._places()
        hosts = {host: (host.name, places.mhz(host)) for host in places.compute.host}
        pools: dict[Any, str] = {}
        groups = places.group_names()
        rules = rules_by_machine(named_rules(places.compute, self.name))
        read = []
        for ref, values in machines.items():
            name = mark_of(values).get("node", "")
            pool = values.get("resourcePool")
            if pool not in pools:
                pools[pool] = pool.name if pool is not None else ""
            wish = wanted.get(name, {})
            path = wish.get("resource_pool", "")
            near = path if path.rpartition("/")[2] == pools[pool] else pools[pool]
            esxi, mhz = hosts.get(values.get("runtime.host"), ("", 1))
            read.append(
                attributes(
                    values,
                    wish,
                    self._adapters(name) or [] if name in self._nodes else [],
                    mhz=mhz,
                    esxi=esxi,
                    pool=near,
                    rules=rules.get(ref, ""),
                    groups=groups,
                )
            )
        return read

    def _adapters(self, name: str) -> list[VmAdapter] | None:
        return self.spec.machine_of(self._nodes[name]).adapters

    # What is made

    def _begin(self, what: str, work: Callable[[], None]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.spec.parallel, thread_name_prefix="vsphere")
        self._work.append((what, self._pool.submit(work)))

    def _drain(self) -> None:
        """Wait for everything that was begun; raises BackendError with all that failed."""
        pool, work = self._pool, self._work
        self._pool, self._work, self._removing = None, [], False
        if pool is None:
            return
        try:
            failed = [(what, future.exception()) for what, future in work]
        finally:
            # An interrupt leaves what has not begun undone.
            pool.shutdown(wait=True, cancel_futures=True)
        errors = [(what, error) for what, error in failed if error is not None]
        for _, error in errors:
            if not isinstance(error, NearmetalError):
                raise error
        if errors:
            told = "\n".join(f"  {what}: {error}" for what, error in errors)
            hints = {e.hint for _, e in errors if isinstance(e, NearmetalError) and e.hint}
            msg = f"{len(errors)} of {len(work)} machines failed:\n{told}"
            raise BackendError(msg, "; ".join(sorted(hints)) or "run `nearmetal up` again")

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        """Make the folder or a switch, or begin to make a machine."""
        del spec
        self._removed()
        if item.key.kind is Kind.NETWORK:
            self._switches().settle(item.key.name)
            return
        if item.key.kind is Kind.CLUSTER:
            places = self._places()
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._session.call("making the folder", lambda: places.parent.CreateFolder(self.name))
            return
        name, wanted = item.key.name, dict(item.attributes)
        self._begin(f"node {name}", partial(self._make, name, wanted))

    def change(self, item: Resource, spec: ClusterSpec) -> None:
        """Change a switch, or begin to change a machine that is there."""
        del spec
        self._removed()
        if item.key.kind is Kind.NETWORK:
            self._switches().settle(item.key.name)
            return
        name, wanted = item.key.name, dict(item.attributes)
        self._begin(f"node {name}", partial(self._alter, name, wanted))

    def _removed(self) -> None:
        """Wait for what is being removed: its names are needed."""
        if self._removing:
            self._drain()

    def _make(self, name: str, wanted: dict[str, str]) -> None:
        places, session = self._places(), self._session
        if wanted["clone"] == "instant":
            raise BackendError("instant clones are not made by this release", "write clone: linked")
        begun = configure.mark_option(self.name, name, wanted, BEGUN)

        def clone() -> Any:
            template = places.template(wanted["template"])
            spec = configure.clone_spec(places, template, wanted, begun)
            return template.CloneVM_Task(places.folder(), wanted["vm"], spec)

        machine = session.wait("cloning", clone)
        self._configure(machine, name, wanted)

    def _configure(
        self, machine: Any, name: str, wanted: dict[str, str], *, told: bool = False
    ) -> None:
        """Give a machine that is off everything it should have, then its mark, then power.

        `told`: the guest has been told its name and addresses before, and nothing changed there.
        """
        places, session = self._places(), self._session
        adapters = self._adapters(name)
        telling = bool(wanted["guest"]) and not told
        config, host = session.call("reading it", lambda: (machine.config, machine.runtime.host))

        def reconfigure() -> Any:
            spec = configure.config_spec(places, config, host, wanted, adapters)
            if not telling:
                made = configure.mark_option(self.name, name, wanted, MADE)
                spec.extraConfig = [*spec.extraConfig, made]
            return machine.ReconfigVM_Task(spec)

        def customize() -> Any:
            cards = vim.vm.device.VirtualEthernetCard
            devices = machine.config.hardware.device
            nr_cards = sum(isinstance(device, cards) for device in devices)
            return machine.CustomizeVM_Task(configure.customization(wanted["guest"], nr_cards))

        session.wait("configuring", reconfigure)
        if telling:
            session.wait("customizing the guest", customize)
            self._mark(machine, name, wanted, MADE)
        if wanted["power"] == "on":
            session.wait("switching on", machine.PowerOnVM_Task)

    def _mark(self, machine: Any, name: str, wanted: dict[str, str], state: str) -> None:
        option = configure.mark_option(self.name, name, wanted, state)
        spec = vim.vm.ConfigSpec(extraConfig=[option])
        self._session.wait("marking", lambda: machine.ReconfigVM_Task(spec))

    def _alter(self, name: str, wanted: dict[str, str]) -> None:
        if name not in self._seen:
            raise BackendError("it is gone", "run `nearmetal up` again")
        ref, now = self._seen[name][0]
        differ = {key for key in wanted if now.get(key, "") != wanted[key]}
        if differ <= RUNNING:
            self._alter_running(ref, name, wanted, differ)
            return
        # Without its mark it counts as begun: a change that is cut short is not taken for done.
        self._off(ref)
        self._mark(ref, name, wanted, BEGUN)
        self._configure(ref, name, wanted, told=not differ & {"guest", "adapters"})

    def _alter_running(
        self, machine: Any, name: str, wanted: dict[str, str], differ: set[str]
    ) -> None:
        session = self._session
        if differ & {"cpu_shares", "memory_shares"}:
            spec = configure.shares_spec(wanted)
            session.wait("changing shares", lambda: machine.ReconfigVM_Task(spec))
        if "slots" in differ:
            self._mark(machine, name, wanted, MADE)
        if "power" in differ and wanted["power"] == "on":
            session.wait("switching on", machine.PowerOnVM_Task)
        elif "power" in differ:
            self._off(machine)

    def _off(self, machine: Any) -> None:
        if self._session.call("reading it", lambda: machine.runtime.powerState) != "poweredOff":
            self._session.wait("switching off", machine.PowerOffVM_Task)

    def finish(self) -> None:
        """Wait for the machines, set the rules of DRS, and remove what is left over of switches."""
        self._drain()
        places = self._places()
        members = {mark_of(v).get("node", ""): ref for ref, v in self._machines(MARKS).items()}

        def reconfigure() -> list[Any]:
            return rule_changes(places.compute, self.name, self.spec.rules, members)

        changes = self._session.call("reading the rules", reconfigure)
        if changes:
            spec = vim.cluster.ConfigSpecEx(rulesSpec=changes)
            self._session.wait(
                "setting rules of DRS",
                lambda: places.compute.ReconfigureComputeResource_Task(spec, modify=True),
            )
        self._switches().trim(keep=True)

    # What is removed

    def delete(self, key: Key) -> None:
        """Begin to remove a machine; or remove the cluster with all that is its own.

        A switch goes in `finish`: machines may hang on it until they are changed.
        """
        if key.kind is Kind.NODE:
            for ref, _ in self._seen.get(key.name, []):
                self._begin(f"node {key.name}", partial(self._destroy, ref))
                self._removing = True
            return
        if key.kind is Kind.CLUSTER:
            self._delete_all()

    def _destroy(self, machine: Any) -> None:
        self._off(machine)
        self._session.wait("removing", machine.Destroy_Task)

    def _delete_all(self) -> None:
        places = self._places()
        folder = self._session.call("looking for the folder", places.folder)
        if folder is not None:
            self._delete_machines()
        self._switches().trim(keep=False)
        if folder is not None:
            left = self._session.call(
                "looking into the folder", lambda: [child.name for child in folder.childEntity]
            )
            if left:
                msg = f"folder {self.name} holds what is not the cluster's: {', '.join(left)}"
                raise BackendError(msg, "move it elsewhere, then run `nearmetal down` again")
            self._session.wait("removing the folder", folder.Destroy_Task)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _delete_machines(self) -> None:
        places = self._places()
        changes = self._session.call(
            "reading the rules", lambda: rule_changes(places.compute, self.name, [], {})
        )
        if changes:
            spec = vim.cluster.ConfigSpecEx(rulesSpec=changes)
            self._session.wait(
                "removing rules of DRS",
                lambda: places.compute.ReconfigureComputeResource_Task(spec, modify=True),
            )
        for ref, values in self._machines(MARKS).items():
            self._begin(f"machine {values['name']}", partial(self._destroy, ref))
        self._drain()

    # What runs

    def status(self) -> list[NodeStatus]:
        """Return every machine that is, or should be, there."""
        machines = {mark_of(v).get("node", ""): v for v in self._machines(STATE).values()}
        told = self.spec.guest_addresses()
        return [
            self._status(host.name, node, machines.get(node.name), told.get(node.name, ""))
            for host, node in self.spec.nodes
        ]

    def _status(
        self, host: str, node: VsphereNode, found: Properties | None, told: str
    ) -> NodeStatus:
        wanted = self.spec.machine_of(node).power
        if found is None:
            health = "not there"
        elif mark_of(found).get("state") != MADE:
            health = "unfinished"
        else:
            on = found["runtime.powerState"] == "poweredOn"
            health = ("running" if on else "off") if on == (wanted == "on") else "not as wanted"
        address = str((found or {}).get("guest.ipAddress") or told.partition("/")[0])
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

    def on_node(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        root: bool = False,
    ) -> Command:
        """Refuse: nothing is run in these machines yet."""
        del node, argv, env, workdir, root
        raise NO_JOBS

    def on_launcher(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
    ) -> Command:
        """Refuse: nothing is run in these machines yet."""
        del argv, env, workdir
        raise NO_JOBS

    def remote_shell(self) -> str:
        """Refuse: nothing is run in these machines yet."""
        raise NO_JOBS

    def job_root(self) -> Path:
        """Refuse: nothing is run in these machines yet."""
        raise NO_JOBS

    def staged(self, node: str) -> Path | None:
        """Refuse: nothing is run in these machines yet."""
        del node
        raise NO_JOBS

    def meeting_directory(self, host: str) -> Path:
        """Refuse: machines of a host do not meet in its memory here."""
        del host
        raise NO_JOBS

    def end_marked(self, marker: str) -> int:
        """Return 0: nothing of ours runs in these machines."""
        del marker
        return 0
