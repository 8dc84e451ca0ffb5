# SPDX-License-Identifier: Apache-2.0
"""The family `virtual`: the guest's side, the host's side, and whether both agree. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.families.base import cpus_of, iommu_remedy, word
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_MELLANOX = "15b3:"
_CLOCKS = "/sys/devices/system/clocksource/clocksource0"
_RESERVED = "VMW-IB, Table 1: memory reserved for the VM"
_PINNED = "VMW-IB, Table 1: 44 vCPUs reserved, high latency sensitivity"


def _clock(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    clock, accepted = node.text("virtual", "clock"), wanted.value("clocks")
    if clock and clock not in accepted:
        there = node.text("virtual", "clocks").split()
        better = next((word(name) for name in accepted if name in there), "")
        yield Spotted(
            printable(clock)[:40],
            " or ".join(accepted),
            "each reading of the clock leaves the processor, and in a machine the guest as well",
            f"echo {better} >{_CLOCKS}/current_clocksource"
            if better
            else f"cat {_CLOCKS}/available_clocksource",
            source=wanted.source("clocks"),
        )


def _steal(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    stolen, most = node.number("virtual", "steal_percent"), wanted.value("steal_percent")
    if stolen is not None and stolen > most:
        yield Spotted(
            f"more than {most:g} % since boot",
            f"at most {most:g} %",
            "the host ran something else on the processors of this machine",
            "virsh vcpupin MACHINE",
            source=wanted.source("steal_percent"),
        )


def _balloon(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    if node.flag("virtual", "guest") and node.flag("virtual", "balloon"):
        yield Spotted(
            "a balloon device",
            "none",
            "the host may take memory from this machine while jobs run",
            "virsh edit MACHINE  # <memballoon model='none'/>",
        )


def _placement(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    if len(node.table("memory", "nodes")) < 2:  # noqa: PLR2004 - one NUMA node: no choice
        return
    for device in sorted(node.table("fabric")):
        numa = node.number("fabric", device, "numa")
        if numa == -1 and not node.flag("fabric", device, "software"):
            yield Spotted(
                "not known",
                "a NUMA node",
                "programs cannot choose the processors near the adapter",
                "virsh edit MACHINE  # a pxb-pcie root with <node>",
                printable(device)[:64],
            )


def _functions(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    least = wanted.value("vfs")
    for address in sorted(node.table("pci")):
        possible = node.number("pci", address, "vfs_possible")
        made = node.count("pci", address, "vfs")
        if least is None or possible is None or made >= least:
            continue
        file = f"/sys/bus/pci/devices/{word(address)}/sriov_numvfs"
        if possible < least:
            why = "the firmware offers too few"
            remedy = f"devlink dev param show pci/{word(address)}"
            if node.text("pci", address, "ids").startswith(_MELLANOX):
                remedy = f"mlxconfig -d {word(address)} set SRIOV_EN=1 NUM_OF_VFS={least:.0f}"
        elif made:
            why = "the driver has made too few; stop machines that use them before the remedy"
            # The kernel refuses to change a number that is not 0.
            remedy = f"echo 0 >{file} && echo {least:.0f} >{file}"
        else:
            why, remedy = "the driver has made none", f"echo {least:.0f} >{file}"
        yield Spotted(
            f"{made} of {possible:.0f} that the firmware allows",
            f"at least {least:.0f}",
            why,
            remedy,
            printable(address)[:16],
            wanted.source("vfs"),
        )


def _iommu(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    functions = sorted(a for a in node.table("pci") if node.text("pci", a, "physical"))
    if functions and node.number("virtual", "iommu_groups") == 0:
        yield Spotted(
            "off",
            "on",
            "without an IOMMU no machine can have a virtual function",
            iommu_remedy(node),
        )
    for address in functions:
        if node.count("pci", address, "group_size") > 1:
            yield Spotted(
                "shared with other devices",
                "a group of its own",
                "devices of one IOMMU group go to one machine together",
                "nearmetal host vf",
                printable(address)[:16],
            )


def _machines(node: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each machine of a host."""
    for uuid in sorted(node.table("virtual", "guests")):
        name = node.text("virtual", "guests", uuid, "name") or uuid
        yield uuid, printable(name)[:64]


def _pins(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    owners: dict[int, set[str]] = defaultdict(set)
    for uuid, name in _machines(node):
        pins = {v: cpus_of(c) for v, c in node.table("virtual", "guests", uuid, "pins").items()}
        loose = [v for v, cpus in pins.items() if len(cpus) > 1]
        if loose:
            yield Spotted(
                "not pinned",
                "one CPU for each vCPU",
                "the host may move virtual processors, and run two on one CPU",
                "virsh vcpupin MACHINE VCPU CPU",
                name,
            )
        for cpus in pins.values():
            if len(cpus) == 1:
                owners[next(iter(cpus))].add(name)
    shared = sorted(cpu for cpu, names in owners.items() if len(names) > 1)
    if shared:
        names = sorted(set().union(*(owners[cpu] for cpu in shared)))
        yield Spotted(
            f"CPUs {', '.join(map(str, shared[:16]))}",
            "one machine for each CPU",
            f"several machines are pinned to the same CPUs: {', '.join(names[:8])}",
            "virsh vcpupin MACHINE VCPU CPU",
            grade=Gravity.FAULT,
        )


def _distance(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    """Judge the devices that a host gave to its machines by the NUMA nodes of their vCPUs."""
    near = {
        n: cpus_of(node.text("memory", "nodes", n, "cpus")) for n in node.table("memory", "nodes")
    }
    for uuid, name in _machines(node):
        pins = node.table("virtual", "guests", uuid, "pins").values()
        used = set().union(*(cpus_of(cpus) for cpus in pins)) if pins else set()
        for address in sorted(node.table("virtual", "guests", uuid, "devices")):
            numa = node.number("virtual", "guests", uuid, "devices", address)
            cpus = near.get(f"{numa:.0f}", set()) if numa is not None else set()
            if used and cpus and not used & cpus:
                yield Spotted(
                    f"{printable(address)[:16]} on NUMA node {numa:.0f}",
                    "the NUMA node of its virtual processors",
                    "no virtual processor of the machine is near its device, so each access "
                    "crosses the sockets",
                    "virsh vcpupin MACHINE VCPU CPU  # of "
                    f"/sys/devices/system/node/node{numa:.0f}/cpulist",
                    name,
                )


_SETTINGS = {
    "memory_reservation": ("full", "ESXi may take pages of the machine, or swap them", _RESERVED),
    "cpu_reservation": ("full", "ESXi may run others on the processors of the machine", _PINNED),
    "latency": ("high", "ESXi moves virtual processors and lets them sleep", _PINNED),
}
"""By setting of a machine of vSphere: the value for MPI, what another one does, the source."""


def _reserved(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for key, (wanted, why, source) in _SETTINGS.items():
        found = node.text("virtual", "settings", key)
        if found and found != wanted:
            # vCenter accepts high latency sensitivity only with both reservations.
            yield Spotted(
                printable(found)[:40],
                wanted,
                why,
                f"nearmetal up SPEC  # with {key}: {wanted}",
                key,
                source,
            )


@dataclass(frozen=True, slots=True)
class _Guest:
    """What a guest says about itself."""

    name: str
    threads: int
    memory_kib: int


@dataclass(frozen=True, slots=True)
class _Hosted:
    """What a host says about one of its machines."""

    name: str
    machine: str
    vcpus: int
    held_kib: int


class _Sides:
    """Host and guest agree, by the UUID of the machine."""

    def __init__(self, _: Expectations) -> None:
        self._guests: dict[str, _Guest] = {}
        self._hosts: dict[str, _Hosted] = {}

    def add(self, node: Snapshot) -> None:
        uuid = node.text("virtual", "uuid")
        if uuid and node.flag("virtual", "guest"):
            self._guests[uuid] = _Guest(
                node.name, node.count("processor", "threads"), node.count("memory", "MemTotal")
            )
        for key, name in _machines(node):
            place = ("virtual", "guests", key)
            held = max(node.count(*place, "locked_kib"), node.count(*place, "huge_kib"))
            vcpus = len(node.table(*place, "pins"))
            self._hosts[key] = _Hosted(node.name, name, vcpus, held)

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        for uuid in sorted(self._guests.keys() & self._hosts.keys()):
            guest, host = self._guests[uuid], self._hosts[uuid]
            if host.vcpus and guest.threads != host.vcpus:
                yield (
                    [guest.name],
                    Spotted(
                        f"{guest.threads} processors",
                        f"the {host.vcpus} of its host {host.name}",
                        "the guest uses another number of processors than the host gives it",
                        "for f in /sys/devices/system/cpu/cpu*/online; do echo 1 >$f; done",
                        grade=Gravity.FAULT,
                    ),
                )
            if guest.memory_kib and host.held_kib < guest.memory_kib * 0.95:
                yield (
                    [guest.name],
                    Spotted(
                        "not reserved",
                        f"locked or huge pages on its host {host.name}",
                        "the host may take pages of this machine, or move them to disk",
                        "virsh edit MACHINE  # <memoryBacking><hugepages/><locked/>",
                        source=_RESERVED,
                    ),
                )


CHECKS = (
    HealthCheck("virtual.clock", Gravity.WARNING, "the clock source is fast", "", _clock),
    HealthCheck("virtual.steal", Gravity.WARNING, "the host gives its processors", "", _steal),
    HealthCheck("virtual.balloon", Gravity.NOTE, "no balloon takes memory", OWN, _balloon),
    HealthCheck("virtual.placement", Gravity.WARNING, "adapters have a NUMA node", OWN, _placement),
    HealthCheck("virtual.functions", Gravity.FAULT, "virtual functions are there", "", _functions),
    HealthCheck("virtual.iommu", Gravity.WARNING, "functions are isolated", OWN, _iommu),
    HealthCheck("virtual.pins", Gravity.WARNING, "virtual processors are pinned", _PINNED, _pins),
    HealthCheck(
        "virtual.distance", Gravity.WARNING, "devices are near their machines", OWN, _distance
    ),
    HealthCheck(
        "virtual.reserved",
        Gravity.WARNING,
        "vSphere reserves what machines use",
        "VMW-IB, Table 1",
        _reserved,
    ),
    HealthCheck("virtual.sides", Gravity.WARNING, "host and guest agree", OWN, compare=_Sides),
)
