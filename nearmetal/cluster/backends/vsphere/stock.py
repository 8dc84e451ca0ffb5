# SPDX-License-Identifier: Apache-2.0
"""What vCenter has of the things that a plan needs, and what is missing of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nearmetal.cluster.backends.vsphere.settings import (
    INSTANT,
    MIN_HARDWARE,
    MachineSettings,
    VmAdapter,
)
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.model import Finding, merged_findings
from nearmetal.config.size import format_size

HOST_STEPS = "`nearmetal host plan` shows how to make them"

MAX_NAMED = 8
MIB = 1 << 20


def listed(names: Iterable[str]) -> str:
    """Return names for an error: the first ones, and the number of the others."""
    known = sorted(names)
    rest = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
    return ", ".join(known[:MAX_NAMED]) + rest or "nothing"


def _size(nr_bytes: int) -> str:
    """Return a size in whole MiB, rounded down."""
    return format_size(nr_bytes // MIB * MIB) if nr_bytes >= MIB else format_size(nr_bytes)


@dataclass(frozen=True)
class Device:
    """A PCI device of a host. `vfs`: its active virtual functions. `passed`: by DirectPath I/O."""

    model: str
    """As vendor:device."""
    name: str
    vfs: int = 0
    passed: bool = False


@dataclass(frozen=True)
class OtherMachine:
    """A machine of another owner that is on: the devices of its host, and its reservations."""

    name: str
    functions: tuple[str, ...] = ()
    """The PF of each of its virtual functions."""
    devices: tuple[str, ...] = ()
    memory: int = 0
    mhz: int = 0


@dataclass(frozen=True)
class HostStock:
    """One host. `closed`: why it takes no machine. `mhz`: of all cores. `memory`: bytes."""

    closed: str = ""
    threads: int = 0
    core_mhz: int = 0
    mhz: int = 0
    memory: int = 0
    devices: Mapping[str, Device] = field(default_factory=dict)
    """By their PCI addresses."""
    profiles: frozenset[str] = frozenset()
    """Of vGPUs."""
    others: tuple[OtherMachine, ...] = ()


@dataclass(frozen=True)
class SourceStock:
    """A machine that instant clones are forked from. `values`: settings that they have from it."""

    esxi: str
    closed: str = ""
    """Why it cannot be forked."""
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class TemplateStock:
    """One template. `size`: bytes of its disks. `version`: of its virtual hardware, 0: unknown."""

    version: int = 0
    efi: bool = False
    has_snapshot: bool = False
    size: int = 0
    datastore: str = ""
    vcpus: int = 0
    memory: int = 0
    source: SourceStock | None = None


@dataclass(frozen=True)
class DatastoreStock:
    """One datastore. `hosts`: those that reach it."""

    free: int
    hosts: frozenset[str]
    closed: str = ""


@dataclass(frozen=True)
class Stock:
    """The found things by their names; port groups by group and switch, with their hosts."""

    hosts: Mapping[str, HostStock] = field(default_factory=dict)
    templates: Mapping[str, TemplateStock] = field(default_factory=dict)
    datastores: Mapping[str, DatastoreStock] = field(default_factory=dict)
    groups: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Need:
    """A node with its settings, as a plan makes it. `esxi`: "auto" for any host.

    `cloned`, `touched`: whether the plan clones its machine, or changes it at all.
    """

    node: str
    esxi: str
    machine: MachineSettings
    cloned: bool
    touched: bool

    @property
    def adapters(self) -> list[VmAdapter]:
        """Its adapters."""
        return self.machine.adapters or []

    @property
    def is_on(self) -> bool:
        """Whether it holds devices and reservations."""
        return self.machine.power == "on"


def needs_of(spec: VsphereSpec, touched: set[str], cloned: set[str]) -> list[Need]:
    """Return the needs of all nodes of a spec."""
    return [
        Need(n.name, h.esxi, spec.machine_of(n), n.name in cloned, n.name in touched)
        for h, n in spec.nodes
    ]


def shortages(needs: Iterable[Need], stock: Stock) -> list[Finding]:
    """Return everything that the touched nodes need and that is not there or too little.

    A name that is not in `stock` is reported elsewhere.
    """
    every = list(needs)
    found = [f for need in every if need.touched for f in _of_one(need, stock)]
    found += [*_devices(every, stock), *_capacity(every, stock)]
    return merged_findings(found)


def _of_one(need: Need, stock: Stock) -> Iterator[Finding]:
    def missing(what: str, why: str, hint: str) -> Finding:
        return Finding((), what, why, hint, (need.node,))

    machine, host = need.machine, stock.hosts.get(need.esxi)
    template = stock.templates.get(machine.template or "")
    if template is not None:
        yield from _template(need, template, missing)
    where = machine.datastore or (template.datastore if template and need.cloned else "")
    store = stock.datastores.get(where)
    if store is not None and store.closed:
        yield missing(f"datastore {where} {store.closed}", "it takes no files", "use another")
    if host is None:
        return
    if host.closed and need.is_on:
        open_ = [name for name, other in stock.hosts.items() if not other.closed]
        hint = f"use another: {listed(open_)}"
        yield missing(f"host {need.esxi} {host.closed}", "no machine starts there", hint)
    if store is not None and need.esxi not in store.hosts:
        there = [n for n, s in stock.datastores.items() if need.esxi in s.hosts]
        hint = f"its datastores: {listed(there)}"
        yield missing(f"host {need.esxi} does not reach datastore {where}", "", hint)
    for adapter in need.adapters:
        key = (adapter.port_group or "", adapter.switch or "")
        hosts = stock.groups.get(key)
        if hosts is not None and need.esxi not in hosts:
            there = [name for (name, _), on in stock.groups.items() if need.esxi in on]
            hint = f"its port groups: {listed(there)}"
            yield missing(f"host {need.esxi} does not have port group {key[0]}", "", hint)


def _template(
    need: Need, template: TemplateStock, missing: Callable[[str, str, str], Finding]
) -> Iterator[Finding]:
    machine, what = need.machine, f"template {need.machine.template}"
    if machine.secure_boot and not template.efi:
        hint = "use a template with EFI, or leave secure_boot out"
        yield missing(f"{what} boots by BIOS", "secure boot needs EFI", hint)
    if machine.mmio and not template.efi:
        # Dell KB 000199172, VMware's note on the V100 (blogs.vmware.com/apps, October 2018).
        why = "a guest reaches 64-bit MMIO only if it boots by EFI"
        hint = "use a template with EFI, or leave mmio out for a device with small regions"
        yield missing(f"{what} boots by BIOS, and mmio is set", why, hint)
    if not need.cloned:
        return
    if machine.clone == INSTANT and template.source is not None:
        yield from _source(need, template.source, missing)
        return
    if machine.clone == "linked" and not template.has_snapshot:
        hint = "take a snapshot of it, or write clone: full"
        yield missing(f"{what} has no snapshot", "a linked clone needs one", hint)
    least = max((MIN_HARDWARE.get(a.kind, 0) for a in need.adapters), default=0)
    if machine.hardware is None and 0 < template.version < least:
        why = f"an adapter needs {least}"
        yield missing(
            f"{what} has virtual hardware {template.version}", why, f"write hardware: {least}"
        )


def _source(
    need: Need, source: SourceStock, missing: Callable[[str, str, str], Finding]
) -> Iterator[Finding]:
    machine, what = need.machine, f"machine {need.machine.template}"
    if source.closed:
        hint = "name a machine that is on, or write clone: full or linked"
        yield missing(f"{what} {source.closed}", "an instant clone forks a running machine", hint)
        return
    if need.esxi not in ("auto", source.esxi):
        hint = f"write esxi: {source.esxi}, or move the source there"
        where = f"{what} runs on {source.esxi}, not on {need.esxi}"
        yield missing(where, "an instant clone runs on the host of its source", hint)
    for key, value in source.values.items():
        own = getattr(machine, key)
        wanted = tuple(own or ()) if isinstance(value, tuple) else own
        if wanted != value:
            shown = f"{_shown(value)}, not {_shown(wanted)}"
            hint = f"write {key} as the source has it, or change the source"
            yield missing(
                f"{what} has {key} {shown}", "an instant clone has the settings of its source", hint
            )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# Devices of hosts


def _devices(needs: list[Need], stock: Stock) -> Iterator[Finding]:
    wanted: dict[tuple[str, str, str], list[Need]] = defaultdict(list)
    for need in needs:
        for adapter in need.adapters if need.is_on else ():
            text = adapter.pf or adapter.device or adapter.profile
            if adapter.models:
                text = "+".join(sorted(adapter.models))
            wanted[need.esxi, adapter.kind, text or ""].append(need)
    rules = {"sriov": _functions, "passthrough": _passed, "dynamic": _dynamic, "vgpu": _profile}
    for (esxi, kind, text), users in wanted.items():
        hosts = stock.hosts if esxi == "auto" else {esxi: stock.hosts.get(esxi)}
        there = {name: host for name, host in hosts.items() if host is not None}
        if kind in rules and there and any(user.touched for user in users):
            nodes = tuple(dict.fromkeys(user.node for user in users))
            for what, why, hint in rules[kind](there, text, len(users)):
                yield Finding((), what, why, hint, nodes)


_Problems = Iterator[tuple[str, str, str]]


def _free(host: HostStock, address: str) -> int:
    used = sum(other.functions.count(address) for other in host.others)
    return host.devices[address].vfs - used


def _functions(hosts: Mapping[str, HostStock], pf: str, count: int) -> _Problems:
    ((name, host),) = hosts.items()
    others = [
        f"{address} ({device.name}, {max(_free(host, address), 0)} of {device.vfs} free)"
        for address, device in host.devices.items()
        if device.vfs and address != pf
    ]
    hint = f"other devices with virtual functions there: {listed(others)}"
    device = host.devices.get(pf)
    if device is None:
        yield f"host {name} has no device {pf}", "it has other addresses", hint
    elif not device.vfs:
        why = "it has no active virtual functions"
        yield f"{pf} of host {name} ({device.name})", why, f"{HOST_STEPS}; {hint}"
    elif count > _free(host, pf):
        users = {other.name for other in host.others if pf in other.functions}
        used = f", {device.vfs - _free(host, pf)} in use by {listed(users)}" if users else ""
        why = f"it has {device.vfs}{used}"
        yield f"{count} virtual functions of {pf} of host {name}", why, hint


def _passed(hosts: Mapping[str, HostStock], address: str, count: int) -> _Problems:
    del count  # the spec has each device once
    ((name, host),) = hosts.items()
    device = host.devices.get(address)
    passed = [f"{a} ({d.name})" for a, d in host.devices.items() if d.passed]
    hint = f"devices that are passed through there: {listed(passed)}"
    users = {other.name for other in host.others if address in other.devices}
    if device is None:
        yield f"host {name} has no device {address}", "it has other addresses", hint
    elif not device.passed:
        why = "passthrough is not active for it: enable it, and reboot the host"
        yield f"{address} of host {name} ({device.name})", why, hint
    elif users:
        yield f"{address} of host {name}", f"{listed(users)} has it", hint


def _dynamic(hosts: Mapping[str, HostStock], models: str, count: int) -> _Problems:
    passed = [d.model for host in hosts.values() for d in host.devices.values() if d.passed]
    number = sum(model in models.split("+") for model in passed)
    if number < count:
        hint = f"models that are passed through: {listed(set(passed))}"
        where = listed(hosts)
        yield f"{count} devices of model {models} on host {where}", f"there are {number}", hint


def _profile(hosts: Mapping[str, HostStock], profile: str, count: int) -> _Problems:
    del count  # a host says which profiles it has, and not how many
    known = {name for host in hosts.values() for name in host.profiles}
    if profile not in known:
        hint = f"profiles there: {listed(known)}"
        yield f"vGPU profile {profile} on host {listed(hosts)}", "it is not there", hint


# Capacity


def _capacity(needs: list[Need], stock: Stock) -> Iterator[Finding]:
    yield from _space(needs, stock)
    by_host: dict[str, list[Need]] = defaultdict(list)
    for need in needs:
        if need.is_on:
            by_host[need.esxi].append(need)
    for esxi, users in by_host.items():
        host = stock.hosts.get(esxi)
        if host is not None and any(user.touched for user in users):
            yield from _fits(f"host {esxi}", host, users, stock)
    if any(user.touched for user in by_host.get("auto", ())):
        users = [need for need in needs if need.is_on]
        yield from _fits("all hosts", _together(stock.hosts.values()), users, stock)


def _together(hosts: Iterable[HostStock]) -> HostStock:
    """Return the capacity of several hosts. No machine has more processors than one of them."""
    open_ = [host for host in hosts if not host.closed]
    return HostStock(
        threads=max((host.threads for host in open_), default=0),
        core_mhz=min((host.core_mhz for host in open_), default=0),
        mhz=sum(host.mhz for host in open_),
        memory=sum(host.memory for host in open_),
        others=tuple(other for host in open_ for other in host.others),
    )


def _vcpus(need: Need, stock: Stock) -> int:
    template = stock.templates.get(need.machine.template or "", TemplateStock())
    return need.machine.vcpus or template.vcpus


def _memory(need: Need, stock: Stock) -> int:
    template = stock.templates.get(need.machine.template or "", TemplateStock())
    return need.machine.memory or template.memory


def _fits(where: str, host: HostStock, users: list[Need], stock: Stock) -> Iterator[Finding]:
    for user in users:
        vcpus = _vcpus(user, stock)
        if user.touched and vcpus > host.threads > 0:
            why = f"a host has {host.threads} logical processors"
            yield Finding((), f"{vcpus} vcpus on {where}", why, "use fewer", (user.node,))
    full = [user for user in users if user.machine.memory_reservation == "full"]
    wanted, taken = sum(_memory(u, stock) for u in full), sum(o.memory for o in host.others)
    if wanted > host.memory - taken:
        why = f"{_size(host.memory)}, of which others reserve {_size(taken)}"
        yield _too_much(f"{_size(wanted)} of reserved memory", where, why, full)
    full = [user for user in users if user.machine.cpu_reservation == "full"]
    mhz, used = sum(_vcpus(u, stock) for u in full) * host.core_mhz, sum(o.mhz for o in host.others)
    if mhz > host.mhz - used:
        why = f"{host.mhz}, of which others reserve {used}"
        yield _too_much(f"{mhz} MHz of reserved processors", where, why, full)


def _too_much(what: str, where: str, why: str, users: list[Need]) -> Finding:
    hint = "reserve less, or use another host"
    nodes = tuple(user.node for user in users)
    return Finding((), f"{what} on {where}", f"there are {why}", hint, nodes)


def _space(needs: list[Need], stock: Stock) -> Iterator[Finding]:
    """Full clones have at least the bytes that their template has."""
    by_store: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for need in needs:
        template = stock.templates.get(need.machine.template or "")
        if template is not None and need.cloned and need.machine.clone == "full":
            where = need.machine.datastore or template.datastore
            by_store[where].append((need.node, template.size))
    for where, clones in by_store.items():
        store, size = stock.datastores.get(where), sum(size for _, size in clones)
        if store is not None and size > store.free:
            what = f"{_size(size)} on datastore {where}"
            more = [n for n, s in stock.datastores.items() if s.free >= size and not s.closed]
            hint = f"write clone: linked, or use another: {listed(more)}"
            nodes = tuple(node for node, _ in clones)
            yield Finding((), what, f"it has {_size(store.free)} free", hint, nodes)
