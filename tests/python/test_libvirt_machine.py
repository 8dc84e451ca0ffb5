# SPDX-License-Identifier: Apache-2.0
"""Domain and network XML of planned clusters, as recorded, and what must hold of any."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nearmetal.cluster.backends.libvirt.build import (
    Boot,
    Layout,
    Site,
    bridge_name,
    machine,
    made_network,
)
from nearmetal.cluster.backends.libvirt.efi import Firmware
from nearmetal.cluster.backends.libvirt.machine import (
    NAMESPACE,
    GuestKernel,
    OwnerMark,
    VirtualMachine,
)
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import VirtualHost, VirtualNode
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import HostFacts, Kind, Resource
from nearmetal.cluster.spec import load_spec, parse_spec
from tests.python.test_plan import check_golden
from tests.python.virtual import HYPERVISOR, SMALL, facts_for

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "nearmetal/share/examples").glob("vms-*.yaml"))
IDENTITY = "5d4c3b2a-0000-4000-8000-000000000001"
KERNEL = Boot(
    GuestKernel("/i/vmlinuz", "/i/initrd", "console=ttyS0 panic=-1"), "/i/root.squashfs", "nm"
)
OWN_DISK = Boot()


def site_of(found: HostFacts, items: list[Resource], host: str) -> Site:
    item = next(i for i in items if i.key.kind is Kind.HOST and i.key.name == host)
    layout, found_host = None, item.of(VirtualHost)
    if found_host.parts is not None and found_host.part_size is not None:
        parts, offset = found_host.parts, 2 << 20
        needed = offset + parts * found_host.part_size
        ivshmem = found_host.device == "ivshmem"
        file_size = 1 << (needed - 1).bit_length() if ivshmem else needed
        layout = Layout("0" * 32, parts, found_host.part_size, offset, file_size)
    return Site(
        found_host.directory,
        found.emulator,
        "+64055:+994",
        found.numa,
        "/dev/shm/segment",
        layout,
        share="/var/lib/nearmetal/clusters/c/files/shared",
        firmware=Firmware("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    )


def machines_of(spec: LibvirtSpec, found: HostFacts, boot: Boot = KERNEL) -> list[VirtualMachine]:
    items = list(desired(spec, facts_for(spec, found)).resources)
    return [
        machine(spec, IDENTITY, item, site_of(found, items, item.of(VirtualNode).host), boot)
        for item in items
        if item.key.kind is Kind.NODE
    ]


def spec_of(text: str) -> LibvirtSpec:
    spec = parse_spec(f"version: 1\nname: c\nbackend: libvirt\n{text}")
    assert isinstance(spec, LibvirtSpec)
    return spec


TWO = "hosts: [{name: h, segment: {device: DEVICE}, nodes: [{name: a}, {name: b}]}]"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_the_recorded_domains(path: Path) -> None:
    spec = load_spec(path)
    assert isinstance(spec, LibvirtSpec)
    found = HYPERVISOR if spec.name == "vms-tuned" else SMALL
    for made in machines_of(spec, found):
        check_golden(f"{made.name}.xml", made.xml())


@pytest.mark.parametrize("device", ["virtio-pmem", "nvdimm"])
def test_a_segment_without_ivshmem_has_the_recorded_domain(device: str) -> None:
    made = machines_of(spec_of(TWO.replace("DEVICE", device)), SMALL)[1]
    check_golden(f"segment-{device}.xml", made.xml())


def test_a_cloud_image_has_the_recorded_domain() -> None:
    spec = spec_of("image: /images/debian.qcow2\n" + TWO.replace("DEVICE", "none"))
    check_golden("cloud-image.xml", machines_of(spec, SMALL, OWN_DISK)[0].xml())


def test_a_made_network_is_as_recorded() -> None:
    spec = spec_of(TWO.replace("DEVICE", "auto"))
    items = desired(spec, facts_for(spec)).resources
    item = next(i for i in items if i.key.kind is Kind.NETWORK)
    check_golden("made-network.xml", made_network(spec, IDENTITY, item))
    assert len(bridge_name("a" * 31, IDENTITY)) <= 15


def test_memory_is_spread_over_the_numa_nodes_of_the_cores() -> None:
    spec = spec_of(
        "hosts: [{name: h, nodes: [{name: a, slots: 3, cpus: [2, 3, 4], memory: 1025 MiB}]}]"
    )
    made = machines_of(spec, HYPERVISOR)[0]
    assert [(c.host_cell, c.cpus) for c in made.cells] == [(0, (0, 1)), (1, (2,))]
    assert sum(cell.memory for cell in made.cells) == made.memory == 1025 << 20
    assert (
        machines_of(spec_of("hosts: [{name: h, nodes: [{name: a, cpus: none}]}]"), HYPERVISOR)[
            0
        ].cells
        == ()
    )


def test_windows_of_neighbours_neither_overlap_nor_leave_the_file() -> None:
    spec = spec_of(TWO.replace("DEVICE", "ivshmem, parts: 5, part: 2 MiB"))
    segments = [made.segment for made in machines_of(spec, SMALL)]
    ends = [(s.own_offset, s.own_offset + s.own_size, s.size) for s in segments if s]
    assert len(ends) == 2
    assert ends[0][1] <= ends[1][0]
    assert all(end <= size for _, end, size in ends)


def test_main_memory_comes_before_the_segment_and_is_named() -> None:
    made = machines_of(spec_of(TWO.replace("DEVICE", "ivshmem")), SMALL)[0]
    top = ET.fromstring(made.xml())  # noqa: S314 - our own
    source = top.find("memoryBacking/source")
    assert source is not None
    assert source.get("type") == "memfd"
    words = [
        a.get("value", "") for a in top.iter("{http://libvirt.org/schemas/domain/qemu/1.0}arg")
    ]
    own_port, whole_port, own, _, whole, _ = map(json.loads, words[1::2])
    assert (own["id"], whole["id"]) == ("nm-own", "nm-all")
    assert {own_port["driver"], whole_port["driver"]} == {"pcie-root-port"}
    assert own_port["pref64-reserve"] == own["size"]
    assert whole_port["pref64-reserve"] == whole["size"]
    assert "readonly" not in own
    assert whole["readonly"] is True
    assert whole["rom"] == "on"


def test_the_owner_survives_the_way_through_libvirt() -> None:
    made = machines_of(spec_of(TWO.replace("DEVICE", "auto")), SMALL)[0]
    owner = OwnerMark.read(made.xml())
    assert owner == made.owner
    assert NAMESPACE not in made.owner.text()
    assert OwnerMark.read("<domain><metadata/></domain>") is None
    assert NAMESPACE in made.xml()


def test_hostile_words_stay_words() -> None:
    made = machines_of(spec_of(TWO.replace("DEVICE", "ivshmem")), SMALL)[0]
    evil = replace(made, console='/x"/><evil/>', kernel=GuestKernel("/k", "", "a<b>&c"))
    top = ET.fromstring(evil.xml())  # noqa: S314 - our own
    assert top.find(".//evil") is None
    cmdline = top.find("os/cmdline")
    assert cmdline is not None
    assert cmdline.text == "a<b>&c"


def test_a_virtual_function_is_passed_on_and_never_bound_by_libvirt() -> None:
    (first, _) = machines_of(spec_of(TWO.replace("DEVICE", "none")), SMALL)
    top = ET.fromstring(replace(first, devices=("0000:01:10.2",)).xml())  # noqa: S314 - our own
    (device,) = top.iter("hostdev")
    assert (device.get("type"), device.get("managed")) == ("pci", "no")
    address = device.find("source/address")
    assert address is not None
    assert address.attrib == {
        "domain": "0x0000",
        "bus": "0x01",
        "slot": "0x10",
        "function": "0x2",
    }
    assert "hostdev" not in first.xml()


def test_a_device_of_the_host_behind_an_iommu_of_the_guest_hears_of_its_mappings() -> None:
    (first, _) = machines_of(spec_of(TWO.replace("DEVICE", "none")), SMALL)
    for devices, told in ((("0000:01:10.2",), "on"), ((), None)):
        top = ET.fromstring(replace(first, viommu=True, devices=devices).xml())  # noqa: S314 - ours
        driver = top.find("devices/iommu/driver")
        assert driver is not None
        assert (driver.get("intremap"), driver.get("caching_mode")) == ("on", told)
