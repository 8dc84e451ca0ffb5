# SPDX-License-Identifier: Apache-2.0
"""The rungs below GPUDirect: a real agent reads files of sysfs, and each missing rung is named."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearmetal.check.families.gpudirect import CHECKS
from nearmetal.check.model import Gravity
from nearmetal.check.settings import settings_of, with_facts
from nearmetal.check.snapshot import Snapshot, parse_snapshot
from nearmetal.cluster.backends.vsphere.plan import VsphereMachine
from nearmetal.cluster.resource import Key, Kind, Observed, Resource
from nearmetal.core.errors import BackendError, NearmetalError, PasswordError
from tests.python.check_nodes import judged
from tests.python.pci_tree import (
    ACS,
    ATS,
    GIB,
    MIB,
    adapter,
    config,
    device,
    gpu_regions,
    hopper_regions,
    link,
    put,
    switch_port,
)
from tests.python.test_check_agent import agent, facts, run_agent

__all__ = ["agent"]

ROOT, UP = "pci0000:16", "0000:16:02.0"
PORT_A, PORT_B = "0000:18:08.0", "0000:18:10.0"
GPU, NIC = "0000:19:00.0", "0000:1a:00.0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.129.03  Release Build\n"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
)
MEMORY_64 = 64 * GIB
UNSET = 0x2014220C


P2P = ("virtual", "settings", {"p2p": "no"})


@dataclass
class Node:
    """A node with a switch; below it a GPU and an adapter. The defaults miss no rung."""

    gpu_driver: str = "nvidia"
    nic_driver: str = "mlx5_core"
    version: str = OPEN
    kernel: str = "6.1.0-18-amd64"
    modules: tuple[str, ...] = ()
    regions: str = gpu_regions(MEMORY_64)
    acs: tuple[int, int] = (0x5F, 0x11)
    ats: bool | None = True
    group: str = "identity"
    nic_root: str = ROOT
    guest: bool = False
    vendor: str = "Maker"
    settings: dict[str, str] = field(default_factory=dict)

    def make(self, tree: Path) -> None:
        flags = "fpu hypervisor" if self.guest else "fpu"
        put(
            tree,
            {
                "proc/sys/kernel/osrelease": self.kernel + "\n",
                "proc/cpuinfo": f"processor\t: 0\nflags\t: {flags}\n",
                "sys/class/dmi/id/sys_vendor": self.vendor + "\n",
                "proc/driver/nvidia/version": self.version,
                **{f"sys/module/{name}/refcnt": "0\n" for name in self.modules},
            },
        )
        port: dict[str, str | bytes] = {"class": "0x060400\n", "config": switch_port(*self.acs)}
        bridge: dict[str, str | bytes] = {"class": "0x060400\n", "config": switch_port(0, 0)}
        device(tree, [ROOT], UP, bridge)
        device(tree, [ROOT, UP], PORT_A, port)
        device(tree, [ROOT, UP], PORT_B, port)
        gpu: dict[str, str | bytes] = {
            "class": "0x030200\n",
            "vendor": "0x10de\n",
            "device": "0x20b5\n",
        }
        below = [ROOT, UP, PORT_A]
        device(
            tree,
            below,
            GPU,
            gpu | {"resource": self.regions},
            driver=self.gpu_driver,
            group=self.group,
        )
        nic: dict[str, str | bytes] = {
            "class": "0x020700\n",
            "vendor": "0x15b3\n",
            "device": "0x1017\n",
        }
        below = [ROOT, UP, PORT_B] if self.nic_root == ROOT else [self.nic_root, "0000:b2:00.0"]
        files = nic | {"config": adapter(ats=self.ats)}
        folder = device(tree, below, NIC, files, driver=self.nic_driver, group=self.group)
        if self.nic_driver != "vfio-pci":
            put(tree, {f"{folder}/infiniband/mlx5_0/node_guid": "0002:c903:0000:0001\n"})
            link(tree, "sys/class/infiniband/mlx5_0", f"{folder}/infiniband/mlx5_0")
            link(tree, f"{folder}/infiniband/mlx5_0/device", folder)

    def read(self, tree: Path) -> Snapshot:
        self.make(tree)
        content = run_agent(f"--root={tree}")
        if self.settings:
            content = with_facts(content, "virtual", "settings", self.settings)
        return parse_snapshot(content, "n1", "n1")


def rungs(found: Snapshot) -> list[tuple[str, str, str, str]]:
    """Return the name, the part, the value and the remedy of each finding, in the order shown."""
    return [
        (f.check.removeprefix("gpudirect."), f.about, f.value, f.remedy)
        for f in judged([found]).findings
        if f.check.startswith("gpudirect.")
    ]


def test_a_node_that_misses_no_rung_has_no_finding(tmp_path: Path) -> None:
    found = Node().read(tmp_path)
    assert found.text("pci", GPU, "above") == f"{ROOT} {UP} {PORT_A}"
    assert found.count("pci", GPU, "region") == MEMORY_64
    assert found.text("pci", NIC, "ats") == "on"
    assert found.count("bridges", PORT_A, "acs") == 0x5F
    assert found.count("bridges", PORT_A, "acs_on") == 0x11
    assert found.table("gpu") == {"driver": "535.129.03", "open": True}
    assert rungs(found) == []


GRUB = "s/^GRUB_CMDLINE_LINUX="
MISSING: list[tuple[str, Node, list[tuple[str, str, str]]]] = [
    (
        "no driver",
        Node(gpu_driver=""),
        [("driver", "no driver", "modprobe nvidia")],
    ),
    ("nouveau", Node(gpu_driver="nouveau"), [("driver", "nouveau", "modprobe nvidia")]),
    (
        "a closed driver without peermem",
        Node(version=CLOSED),
        [("memory", "neither", "modprobe nvidia-peermem")],
    ),
    ("a closed driver with peermem", Node(version=CLOSED, modules=("nvidia_peermem",)), []),
    (
        "an old kernel",
        Node(kernel="5.10.0-28-amd64"),
        [("memory", "neither", "modprobe nvidia-peermem")],
    ),
    (
        "ConnectX-3",
        Node(nic_driver="mlx4_core"),
        [("memory", "neither", "modprobe nvidia-peermem")],
    ),
    (
        "a small BAR1",
        Node(regions=gpu_regions(256 * MIB)),
        [("region", "256 MiB", f"lspci -vv -s {GPU}")],
    ),
    (
        "a BAR without an address",
        Node(regions=gpu_regions(MEMORY_64, 0, UNSET)),
        [("region", "64 GiB without an address", "Above 4G Decoding")],
    ),
    (
        "a BAR1 that the kernel forgot, so that the driver fails",
        Node(regions=gpu_regions(0), gpu_driver=""),
        [("region", "a region without an address", "Above 4G Decoding")],
    ),
    ("an H100", Node(regions=hopper_regions(128 * GIB)), []),
    (
        "an H100 whose BAR1 the kernel forgot",
        Node(regions=hopper_regions(0)),
        [("region", "a region without an address", "Above 4G Decoding")],
    ),
    ("an adapter of VMware", Node(nic_driver="vmw_pvrdma"), [("memory", "neither", "modprobe")]),
    (
        "another root complex",
        Node(nic_root="pci0000:b1"),
        [("placement", f"no adapter below {ROOT}", "lspci -tv")],
    ),
    (
        "ACS that redirects",
        Node(acs=(0x5F, 0x1D)),
        [
            ("acs", "redirects requests between devices", f"-s {PORT_A} ECAP_ACS+6.w=0:c"),
            ("acs", "redirects requests between devices", f"-s {PORT_B} ECAP_ACS+6.w=0:c"),
        ],
    ),
    ("an IOMMU that translates", Node(group="DMA-FQ"), [("iommu", "DMA-FQ", GRUB)]),
]

GIVEN = Node(gpu_driver="vfio-pci", nic_driver="vfio-pci", group="DMA", acs=(0x5F, 0x5D))
HOSTS: list[tuple[str, dict[str, Any], list[tuple[str, str, str]]]] = [
    ("a host that gives both away", {}, []),
    (
        "ACS stops translated requests",
        {"acs": (0x5F, 0x1D)},
        [("acs", "also translated ones", f"-s {p} ECAP_ACS+6.w=40:40") for p in (PORT_A, PORT_B)],
    ),
    (
        "ACS can do nothing else",
        {"acs": (0x1F, 0x1D)},
        [("acs", "cannot let translated ones pass", "another switch")] * 2,
    ),
    (
        "no ATS",
        {"ats": None},
        [("ats", "no ATS", f"mlxconfig -d {NIC} set ATS_ENABLED=true  # then reboot")],
    ),
    ("no ATS, and the host keeps the adapter", {"ats": None, "nic_driver": "mlx5_core"}, []),
    ("ATS is off", {"ats": False}, [("ats", "off", f"lspci -vv -s {NIC}")]),
    ("no IOMMU", {"group": ""}, [("iommu", "off", GRUB)]),
]

VMWARE = Node(guest=True, vendor="VMware, Inc.", acs=(0x5F, 0x1D), ats=None, group="")
SMALL = gpu_regions(MEMORY_64, 0, UNSET)
GUESTS: list[tuple[str, dict[str, Any], list[tuple[str, str, str]]]] = [
    # Bridges and ATS of a machine are made up by its hypervisor, and not judged.
    ("a machine that sees no setting", {}, []),
    ("devices may reach each other", {"settings": {"p2p": "yes"}}, []),
    ("devices may not", {"settings": {"p2p": "no"}}, [("machine", "allowP2P", "p2p: true")]),
    (
        "a window that is too small",
        {"regions": SMALL},
        # 64 GiB hold the region, and not the others beside it.
        [("region", "64 GiB without", "use64bitMMIO=TRUE, pciPassthru.64bitMMIOSizeGB=128")],
    ),
    (
        "the same, and the kernel forgot the region",
        {"regions": gpu_regions(0), "gpu_driver": ""},
        [("region", "a region without", "mmio: N GiB in SPEC")],
    ),
    (
        "the same in QEMU",
        {"regions": SMALL, "vendor": "QEMU"},
        [("region", "64 GiB without", "opt/ovmf/X-PciMmio64Mb,string=131072")],
    ),
    (
        "in QEMU, and the kernel forgot the region",
        {"regions": gpu_regions(0), "gpu_driver": "", "vendor": "QEMU"},
        [("region", "a region without", "string=N, N: a power of two above the MiB of all")],
    ),
]


def changed(base: Node, changes: dict[str, Any]) -> Node:
    return Node(**(vars(base) | changes))


CASES = [
    *MISSING,
    *((name, changed(GIVEN, changes), due) for name, changes, due in HOSTS),
    *((name, changed(VMWARE, changes), due) for name, changes, due in GUESTS),
]


@pytest.mark.parametrize(("node", "due"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_missing_rung_is_named_with_its_remedy(
    node: Node, due: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    found = rungs(node.read(tmp_path))
    assert [name for name, *_ in found] == [name for name, *_ in due]
    for (_, _, value, remedy), (_, words, command) in zip(found, due, strict=True):
        assert words in value
        assert command in remedy


def test_every_rung_is_missing_somewhere_above() -> None:
    missing = {f"gpudirect.{name}" for _, _, due in CASES for name, *_ in due}
    assert missing == {check.name for check in CHECKS}


def test_the_first_missing_rung_is_shown_first(tmp_path: Path) -> None:
    node = Node(
        version=CLOSED, regions=gpu_regions(256 * MIB), acs=(0x5F, 0x1D), group="DMA", ats=False
    )
    found = [name for name, *_ in rungs(node.read(tmp_path))]
    assert found == ["memory", "region", "acs", "acs", "iommu"]
    order = [check.name.partition(".")[2] for check in CHECKS]
    assert sorted(found, key=order.index) == found


def test_a_node_without_an_adapter_has_nothing_to_prepare(tmp_path: Path) -> None:
    Node(gpu_driver="").make(tmp_path)
    (tmp_path / f"sys/bus/pci/devices/{NIC}").unlink()
    (tmp_path / "sys/class/infiniband/mlx5_0").unlink()
    assert rungs(parse_snapshot(run_agent(f"--root={tmp_path}"), "n1", "n1")) == []


NVME, FUNCTION = "0000:1c:00.0", "0000:1a:00.1"


def test_acs_stays_where_it_keeps_a_machine_apart(tmp_path: Path) -> None:
    """Without it the machine's device would reach the host's memory past the IOMMU."""
    node = Node(acs=(0x5F, 0x1D))
    device(tmp_path, [ROOT], NVME, {"class": "0x010802\n"}, driver="vfio-pci", group="DMA")
    found = rungs(node.read(tmp_path))
    assert [name for name, *_ in found] == ["acs", "acs"]
    assert not [remedy for *_, remedy in found if "setpci" in remedy]


def test_a_virtual_function_that_a_machine_has_needs_ats_and_its_adapter_does_not(
    tmp_path: Path,
) -> None:
    node = changed(GIVEN, {"nic_driver": "mlx5_core", "group": "", "ats": False})
    below = [ROOT, UP, PORT_B]
    files: dict[str, str | bytes] = {"class": "0x020700\n", "vendor": "0x15b3\n"}
    files |= {"device": "0x1018\n", "config": adapter(ats=None)}
    put(tmp_path, {"sys/kernel/iommu_groups/1/type": "DMA\n"})
    device(tmp_path, below, FUNCTION, files, driver="vfio-pci", physical=NIC)
    (found,) = rungs(node.read(tmp_path))
    remedy = f"mlxconfig -d {NIC} set ATS_ENABLED=true  # then reboot the host"
    assert found == ("ats", FUNCTION, "no ATS", remedy)


def test_an_adapter_of_a_machine_says_nothing_of_the_gpu_of_the_host(tmp_path: Path) -> None:
    node = Node()
    files: dict[str, str | bytes] = {"class": "0x020000\n", "config": adapter(ats=True)}
    device(tmp_path, [ROOT, UP, PORT_B], "0000:1b:00.0", files, driver="vfio-pci", group="DMA")
    assert rungs(node.read(tmp_path)) == []


def test_virtual_functions_of_a_gpu_are_no_gpus_of_the_host(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"class": "0x030200\n", "vendor": "0x10de\n"}
    files |= {"device": "0x20b5\n"}
    device(tmp_path, [ROOT, UP, PORT_A], "0000:19:00.4", files, physical=GPU)
    assert rungs(Node().read(tmp_path)) == []


def test_a_sleeping_device_is_not_woken(tmp_path: Path) -> None:
    """The kernel powers a device and its bridge up for each read of the configuration."""
    node = Node(acs=(0x5F, 0x1D), ats=None)
    for address, file, state in (
        (PORT_A, "power/runtime_status", "suspended"),
        (NIC, "power_state", "D3cold"),
    ):
        above = [ROOT, UP] if address == PORT_A else [ROOT, UP, PORT_B]
        put(tmp_path, {"/".join(["sys/devices", *above, address, file]): state + "\n"})
        put(tmp_path, {"/".join(["sys/devices", *above, address, "max_link_speed"]): "8 GT/s\n"})
    found = node.read(tmp_path)
    assert found.table("bridges").keys() == {UP, PORT_B}
    assert found.text("pci", NIC, "ats") == found.text("pci", NIC, "max_link_speed") == ""
    assert found.unseen["peers"].startswith(f"the configurations of {NIC}, {PORT_A}")
    assert [about for _, about, *_ in rungs(found)] == [PORT_B]
    (remark,) = [f for f in judged([found]).findings if f.about == "peers"]
    assert remark.grade is Gravity.NOTE


def test_only_the_capabilities_are_read(agent: Any) -> None:
    """Other places of a configuration belong to its maker: reading one may do something."""
    asked = []

    def read(place: int, size: int) -> bytes:
        asked.append((place, size))
        return adapter(ats=True)[place : place + size]

    assert agent.extended(read, (ACS, ATS)) == {ATS: 0x8000_0000}
    assert asked == [(0x100, 4), (0x150, 4), (0x180, 4), (0x480, 4), (0x484, 4)]


def test_a_user_sees_no_bits_and_the_snapshot_says_so(tmp_path: Path) -> None:
    """The kernel gives a user the first 64 bytes of a configuration."""
    node = Node(acs=(0x5F, 0x1D))
    node.make(tmp_path)
    for bridge in (UP, PORT_A, PORT_B, NIC):
        path = tmp_path / f"sys/bus/pci/devices/{bridge}/config"
        path.write_bytes(path.read_bytes()[:64])
    found = parse_snapshot(run_agent(f"--root={tmp_path}"), "n1", "n1")
    assert "only root" in found.unseen["peers"]
    assert found.table("bridges") == {}
    assert rungs(found) == []
    assert "base.privilege" in [f.check for f in judged([found]).findings]


LOOP = struct.pack("<I", 0x01 | 1 << 16 | 0x100 << 20)
HOSTILE = {
    "empty": b"",
    "no answer": b"\xff" * 4096,
    "a conventional device": config(size=256),
    "the list ends at once": config(),
    "a loop of one": bytes(256) + LOOP + bytes(3836),
    "a loop of two": config((0x01, 0x100, 0), (0x02, 0x200, 0))[:0x200]
    + struct.pack("<I", 0x02 | 1 << 16 | 0x100 << 20)
    + bytes(4096 - 0x204),
    "a place in the first 256 bytes": bytes(256)
    + struct.pack("<I", 0x01 | 1 << 16 | 0x40 << 20)
    + bytes(3836),
    "the last four bytes": config((0x01, 0x100, 0), (ACS, 0xFF8, 0x1D005F))[:4092],
    "cut within ACS": config((0x01, 0x100, 0), (ACS, 0x200, 0x1D005F))[:0x206],
    "ones from there on": config((0x01, 0x100, 0))[:0x104] + b"\xff" * (4096 - 0x104),
    "odd places": bytes(256) + struct.pack("<I", ACS | 1 << 16 | 0xFFF << 20) + bytes(3836),
}


def walked(agent: Any, content: bytes) -> tuple[list[int], dict[int, int]]:
    """Return the places that the agent reads of a configuration, and what it finds."""
    places: list[int] = []

    def read(place: int, size: int) -> bytes:
        places.append(place)
        return content[place : place + size]

    return places, agent.extended(read, (ACS, ATS))


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_lists_of_capabilities_have_an_end(
    agent: Any, content: bytes, tmp_path: Path
) -> None:
    places, found = walked(agent, content)
    assert len(places) <= 1024 + 2
    assert len(places) == len(set(places))
    assert found.keys() <= {ACS, ATS}
    Node().make(tmp_path)
    (tmp_path / f"sys/bus/pci/devices/{PORT_A}/config").write_bytes(content)
    (tmp_path / f"sys/bus/pci/devices/{NIC}/config").write_bytes(content)
    try:
        read = facts(agent, "peers")
    except agent.Unseen:
        return
    assert read["pci"][NIC]["ats"] in ("none", "off", "on")


def test_any_bytes_are_read_to_an_end(agent: Any) -> None:
    """Each place in a chain, with any successor: the walk is bounded, and stays inside."""
    for step in range(0x100, 0x1000, 4):
        space = bytearray(4096)
        for place in range(0x100, 0x1000, 4):
            header = ATS | 1 << 16 | ((place * 7 + step) & 0xFFF) << 20
            struct.pack_into("<I", space, place, header & 0xFFFFFFFF)
        places, _ = walked(agent, bytes(space))
        assert all(0x100 <= place <= 4092 for place in places)


def test_hostile_regions(agent: Any, tmp_path: Path) -> None:
    lines = "0xffffffffffffffff 0x0 0x200\nx y z\n0x0 0xfffffffffffffffff 0x200\n\0\n" * 3
    put(tmp_path, {"sys/bus/pci/devices/a/resource": lines})
    assert dict(agent.regions("sys/bus/pci/devices/a")) == {"region": 0, "unmapped": 0}


def test_the_backend_says_what_a_machine_cannot_see() -> None:
    values = VsphereMachine(
        **dict.fromkeys(("host", "vm", "template", "clone", "latency"), "x"),
        **dict.fromkeys(("cpu_reservation", "memory_reservation"), "none"),
        **dict.fromkeys(("cpu_shares", "memory_shares", "power"), "on"),
        slots=2,
        p2p=False,
        mmio=64 * GIB,
    )
    observed = Observed((Resource(Key(Kind.NODE, "n1"), values), Resource(Key(Kind.CLUSTER, "c"))))
    settings, why = settings_of(SimpleNamespace(details=lambda: observed))
    seen = {"mmio": "64 GiB", "p2p": "no", "latency": "x"}
    seen |= {"cpu_reservation": "none", "memory_reservation": "none"}
    assert (settings, why) == ({"n1": seen}, "")


@pytest.mark.parametrize("error", [BackendError, PasswordError])
def test_what_was_collected_stays_if_the_backend_does_not_answer(
    error: type[NearmetalError],
) -> None:
    def fails() -> Observed:
        raise error("no vCenter")

    backend: Any = SimpleNamespace(details=fails)
    assert settings_of(backend) == ({}, "no vCenter")


def test_settings_are_added_to_a_snapshot_that_has_room() -> None:
    base = {"format": "nearmetal-snapshot", "version": 1, "unseen": {}}
    content = json.dumps(base | {"facts": {}}).encode()
    found = parse_snapshot(with_facts(content, *P2P), "n1", "n1")
    assert found.text("virtual", "settings", "p2p") == "no"
    full = json.dumps(base | {"facts": {"a": {str(n): 1 for n in range(29_995)}}}).encode()
    assert with_facts(full, *P2P) == full
    odd = json.dumps(base | {"facts": {"virtual": 3}}).encode()
    assert with_facts(odd, *P2P) == odd
