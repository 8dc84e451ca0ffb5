# SPDX-License-Identifier: Apache-2.0
"""Whole devices for virtual machines: who gets them at boot, and what their machines need."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearmetal.core.errors import SpecError
from nearmetal.host.apply import Applier
from nearmetal.host.facts_linux import read_linux
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.model import BiosFacts, DeviceFacts, EsxiFacts, PlatformFacts
from nearmetal.host.places import VFIO
from nearmetal.host.plan import HostPlan, plan_host
from nearmetal.host.rollback import Rollback
from nearmetal.host.stages.devices import window
from nearmetal.host.steps import SetDirectPath, Wait, WriteFile
from tests.python.host_listings import Listing, listings
from tests.python.provision_host import FACTORY, esxi, linux, settings
from tests.python.provision_lab import LabReach
from tests.python.sriov_tree import ROOT_PORT
from tests.python.test_host_apply import QUICK, Rebooting

GPU = "0000:da:00.0"
MIB, GIB = 1 << 20, 1 << 30
A100 = DeviceFacts(GPU, "10de:20b0", "nouveau", bars=(16 * MIB, 64 * GIB, 32 * MIB))
KVM = """\
version: 1
name: gpu
hosts:
  - nodes: kvm1
    platform: linux
    passthrough: [{device: '10de:20b0'}]
"""
ESXI = """\
version: 1
name: gpu
hosts:
  - nodes: esx1
    platform: esxi
    vcenter: {server: vc.example.org, user: admin}
    passthrough: [{device: '10de:20b0'}]
"""
ADAPTER = "    adapters: [{model: ConnectX-5, ats: true, ports: [{vfs: 4}]}]\n"
RULE = (
    f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{GPU}", ATTR{{vendor}}=="0x10de", '
    'ATTR{device}=="0x20b0", ATTR{driver_override}="vfio-pci", '
    'RUN{builtin}+="kmod load vfio-pci", '
    "RUN+=\"/bin/sh -c 'echo $kernel >$sys/bus/pci/drivers_probe'\"\n"
)


def plan(text: str, facts: PlatformFacts) -> HostPlan:
    [(name, group)] = parse_hosts(text).each()
    return plan_host(name, group, facts)


def kvm(*devices: DeviceFacts, **more: Any) -> PlatformFacts:
    return linux(devices=devices, **more)


def under_vcenter(*devices: DeviceFacts) -> PlatformFacts:
    return replace(esxi(), devices=devices, esxi=EsxiFacts())


def refusals(found: HostPlan) -> str:
    return "\n".join(f"{refusal.what} | {refusal.hint}" for refusal in found.refusals)


def remarks(found: HostPlan) -> str:
    return "\n".join(remark.text for remark in found.remarks)


# The window


WINDOWS = {
    "a100-sxm4-40gb": 128,
    "h100": 256,
    "gtx1080": 1,
    "connectx5": 1,
    "bluefield2": 1,
}
"""GiB, as NVIDIA and VMware give them for the first two: a power of two above the memory."""

UNITS = {"K": 1 << 10, "M": MIB, "G": GIB}


@pytest.mark.parametrize("listing", listings("lspci"), ids=str)
def test_the_window_is_the_sum_of_the_regions_up_to_a_power_of_two(listing: Listing) -> None:
    found = re.findall(r"Region \d: Memory .*\[size=(\d+)([KMG])\]", listing.text)
    assert found
    assert window([int(size) * UNITS[unit] for size, unit in found]) == WINDOWS[listing.name]


@pytest.mark.parametrize(
    ("bars", "gib"),
    [
        ([], 0),
        ([1], 1),
        ([GIB], 1),
        ([GIB, 1], 2),
        ([16 * GIB] * 2, 32),
        ([16 * GIB + 48 * MIB] * 2, 64),
    ],
)
def test_windows_at_the_edges(bars: list[int], gib: int) -> None:
    assert window(bars) == gib


# Linux


def test_the_chain_of_a_linux_host_is_one_reboot() -> None:
    bios = "    bmc: {address: 'https://bmc'}\n    bios: {virtualization: true, sriov: true}\n"
    facts = kvm(A100)
    [card] = facts.cards
    config = settings(FACTORY | {"ATS_ENABLED": "0"})
    found = plan(KVM + bios + ADAPTER, replace(facts, cards=(replace(card, config=config),)))
    assert found.refusals == ()
    assert found.reboots == 1
    assert [step.stage.value for step in found.steps] == sorted(
        (step.stage.value for step in found.steps), key=["bios", "firmware", "driver"].index
    )
    texts = [step.text for step in found.steps]
    assert any("ProcVirtualization" in text for text in texts)
    assert any("ATS_ENABLED 0 -> 1" in text for text in texts)
    assert "kernel arguments: intel_iommu=on iommu=pt" in texts
    assert f"vfio-pci at every boot: 10de:20b0 at {GPU}" in texts
    assert "10de:20b0 has regions of 64.05 GiB" in remarks(found)
    assert "a machine with one needs a 64-bit MMIO window of 128 GiB" in remarks(found)
    assert "X-PciMmio64Mb=131072" in remarks(found)
    assert "vfio locks all memory" in remarks(found)


def test_two_devices_have_one_window() -> None:
    found = plan(KVM, kvm(A100, replace(A100, address="0000:db:00.0")))
    assert "128 GiB, with all 2 256 GiB" in remarks(found)


def test_a_device_by_its_address() -> None:
    one = KVM.replace("'10de:20b0'", f"'10de:20b0', address: '{GPU}'")
    found = plan(one, kvm(A100, replace(A100, address="0000:db:00.0")))
    [file] = [step.action for step in found.steps if step.key == "vfio"]
    assert isinstance(file, WriteFile)
    assert file.content is not None
    assert file.content.endswith(f"\n{RULE}")
    assert "0000:db" not in file.content


def test_sound_of_a_gpu_goes_with_it_and_another_adapter_does_not() -> None:
    sound = f"{GPU[:-1]}1"
    found = plan(KVM, kvm(replace(A100, mates=(sound,), companions=((sound, "10de:1aef"),))))
    [file] = [step.action for step in found.steps if step.key == "vfio"]
    assert isinstance(file, WriteFile)
    assert f'KERNEL=="{sound}", ATTR{{vendor}}=="0x10de", ATTR{{device}}=="0x1aef"' in str(file)
    # A storage function of the same slot, say.
    found = plan(KVM, kvm(replace(A100, mates=(sound,))))
    assert f"shares its IOMMU group with {sound} | add them" in refusals(found)
    port = DeviceFacts(sound, "15b3:1017")
    found = plan(KVM, kvm(replace(A100, mates=(sound, "0000:00:1f.3")), port))
    assert f"shares its IOMMU group with {sound}, 0000:00:1f.3 | add them" in refusals(found)


@pytest.mark.parametrize(
    ("device", "more", "says"),
    [
        ({"ids": "10de:1eb8"}, "", "no device 10de:20b0 | adapters and GPUs here: 10de:1eb8 at"),
        ({"used": "ens1 is up"}, "", f"10de:20b0 at {GPU} is in use by the host: ens1 is up"),
        (
            {"unmapped": 64 * GIB},
            "",
            "switch addresses above 4 GiB on in the BIOS (bios.attributes, MmioAbove4Gb: Enabled)",
        ),
        (
            {"address": "0000:3b:00.0"},
            ADAPTER,
            "goes to a machine whole, and ports request VFs of it | remove one of them",
        ),
    ],
)
def test_what_cannot_be_given_away(device: dict[str, Any], more: str, says: str) -> None:
    assert says in refusals(plan(KVM + more, kvm(replace(A100, **device))))


def test_a_bios_without_a_known_attribute_is_named_in_general() -> None:
    facts = kvm(replace(A100, unmapped=1), bios=BiosFacts("Other", {}))
    assert (
        "1 MiB of its regions | switch addresses above 4 GiB on in the BIOS (bios.attributes)"
        in (refusals(plan(KVM, facts)))
    )


def test_a_device_that_kept_its_driver_waits_for_a_reboot() -> None:
    first = plan(KVM, kvm(A100))
    [file] = [step.action for step in first.steps if step.key == "vfio"]
    assert isinstance(file, WriteFile)
    there = {**kvm().files, VFIO: file.content}
    cmdline = ("intel_iommu=on", "iommu=pt")
    facts = kvm(A100, files=there, cmdline=cmdline, iommu_groups=9, loader="grubby")
    [step] = plan(KVM, facts).steps
    assert step.action == Wait()
    assert step.text == (f"vfio-pci is set, and not in force: 10de:20b0 at {GPU} has nouveau")
    dark = plan(KVM, replace(facts, iommu_groups=0))
    assert "the IOMMU is off, so vfio-pci cannot take" in refusals(dark)
    ready = replace(facts, devices=(replace(A100, driver="vfio-pci"),))
    found = plan(KVM, ready)
    assert (found.steps, found.refusals) == ((), ())
    off = plan(KVM, replace(ready, iommu_groups=0))
    assert "the IOMMU is off" in refusals(off)


class Gpu(Rebooting):
    """A host with a GPU that udev's rules give to vfio-pci at boot."""

    def make(self, *, loader: bool = True) -> Gpu:
        super().make(loader=loader)
        device = self.tree.device(GPU)
        first, big = 0xC5000000, 0x52000000000
        rows = [
            (first, first + 16 * MIB - 1, 0x40200),
            (big, big + 64 * GIB - 1, 0x14220C),
            (0, 0, 0),
            (0, 32 * MIB - 1, 0x20140204),
            (0, 0, 0),
            (0x3000, 0x307F, 0x40101),
            (0xC6000000, 0xC607FFFF, 0x46200),
        ]
        text = "\n".join(" ".join(f"0x{n:016x}" for n in row) for row in rows)
        files = {"class": "0x030200", "vendor": "0x10de", "device": "0x20b0", "resource": text}
        for name, content in files.items():
            (device / name).write_text(content + "\n")
        self.bind("nouveau")
        return self

    def bind(self, driver: str) -> None:
        link = self.root / "sys/bus/pci/devices" / GPU / "driver"
        link.unlink(missing_ok=True)
        there = self.root / "sys/bus/pci/drivers" / driver
        there.mkdir(exist_ok=True)
        link.symlink_to(there)

    def _reboot(self) -> None:
        super()._reboot()
        rules = self.root / VFIO[1:]
        ours = rules.exists() and RULE in rules.read_text()
        self.bind("vfio-pci" if ours else "nouveau")


def test_the_facts_of_a_device_are_read(tmp_path: Path) -> None:
    host = Gpu(tmp_path / "kvm1").make()
    bridge = host.root / "sys/bus/pci/devices" / ROOT_PORT
    (bridge / "class").write_text("0x060400\n")
    host.tool("setpci", "echo 005f; echo 001d")
    facts = read_linux("kvm1", host)
    [found] = facts.devices
    assert found == replace(A100, unmapped=32 * MIB, above=("pci0000:00", ROOT_PORT))
    assert facts.acs == {ROOT_PORT: (0x5F, 0x1D)}


def test_what_goes_with_a_device_is_read(tmp_path: Path) -> None:
    host = Gpu(tmp_path / "kvm1").make()
    places = host.root / "sys/bus/pci/devices"
    group = places / GPU / "iommu_group/devices"
    group.mkdir(parents=True, exist_ok=True)
    classes = {
        GPU: "",
        f"{GPU[:-1]}1": "0x040300",
        f"{GPU[:-1]}2": "0x010802",
        "0000:db:00.0": "0x0c0330",
        ROOT_PORT: "0x060400",
    }
    for address, number in classes.items():
        if number:
            (places / address).mkdir(exist_ok=True)
            (places / address / "class").write_text(f"{number}\n")
            (places / address / "vendor").write_text("0x10de\n")
            (places / address / "device").write_text("0x1aef\n")
        if not (group / address).exists():
            (group / address).symlink_to(places / address)
    [found] = read_linux("kvm1", host).devices
    assert found.mates == tuple(address for address in classes if address not in (GPU, ROOT_PORT))
    assert found.companions == ((f"{GPU[:-1]}1", "10de:1aef"),)


def test_a_host_gives_its_gpu_away_and_takes_it_back(tmp_path: Path) -> None:
    host, state = Gpu(tmp_path / "kvm1").make(), tmp_path / "state"
    resource = host.root / "sys/bus/pci/devices" / GPU / "resource"
    lines = resource.read_text().splitlines()
    resource.write_text("\n".join(lines[:3] + lines[4:]) + "\n")
    reach, text = LabReach({"kvm1": host}), KVM + ADAPTER.replace(", ats: true", "")
    Applier(parse_hosts(text), reach, state, QUICK).apply()
    assert host.reboots == 1
    assert (host.root / VFIO[1:]).read_text().endswith(RULE)
    assert host.vfs() == ["4", "0"]
    assert Applier(parse_hosts(text), reach, state, QUICK).apply().empty
    Rollback(parse_hosts(text), reach, state, QUICK).apply()
    assert host.reboots == 2
    assert not (host.root / VFIO[1:]).exists()
    assert read_linux("kvm1", host).devices[0].driver == "nouveau"


# GPUDirect


ROOT, SWITCH = "pci0000:d7", "0000:d7:00.0"
UP, LEFT, RIGHT = "0000:d8:00.0", "0000:d9:00.0", "0000:d9:01.0"
PEER = replace(A100, above=(ROOT, SWITCH, UP, LEFT))
CARD = DeviceFacts("0000:3b:00.0", "15b3:1017", above=(ROOT, SWITCH, UP, RIGHT))
DIRECT = KVM + "    gpudirect: true\n" + ADAPTER


def peers(*devices: DeviceFacts, acs: dict[str, tuple[int, int]] | None = None) -> PlatformFacts:
    facts = kvm(*devices)
    config = settings(FACTORY | {"ATS_ENABLED": "0"})
    [card] = facts.cards
    return replace(facts, cards=(replace(card, config=config),), acs=acs or {})


def test_bridges_between_gpu_and_adapter_let_translated_requests_pass() -> None:
    acs = {SWITCH: (0x5F, 0x1D), LEFT: (0x5F, 0x1D), RIGHT: (0x5F, 0x5D)}
    facts = peers(PEER, CARD, acs=acs)
    found = plan(DIRECT, facts)
    assert found.refusals == ()
    assert found.reboots == 1
    [step] = [step for step in found.steps if step.key == "vfio"]
    assert step.text.endswith(f"; ACS lets GPUDirect pass {LEFT}, {RIGHT}")
    assert isinstance(step.action, WriteFile)
    content = step.action.content or ""
    assert f"setpci -s {LEFT} ECAP_ACS+6.w=40:40" in content
    assert SWITCH not in content
    assert any("ATS_ENABLED 0 -> 1" in step.text for step in found.steps)
    assert "ats=on at both devices" in remarks(found)
    there = replace(
        facts,
        files={**facts.files, VFIO: content},
        devices=(replace(PEER, driver="vfio-pci"), CARD),
    )
    [wait] = [step for step in plan(DIRECT, there).steps if step.key == "vfio"]
    assert wait.action == Wait()
    assert wait.text == (
        f"vfio-pci is set, and not in force: {LEFT} lets no translated requests pass"
    )
    set_ = replace(there, acs=acs | {LEFT: (0x5F, 0x5D)})
    assert not [step for step in plan(DIRECT, set_).steps if step.key == "vfio"]


def test_a_gpu_in_another_root_complex_is_refused() -> None:
    far = replace(CARD, above=("pci0000:3a", "0000:3a:00.0"))
    found = refusals(plan(DIRECT, peers(PEER, far)))
    assert f"{GPU} is below {ROOT}, its adapters are not: {CARD.address} below pci0000:3a" in found
    assert "GPUDirect needs both in slots of one root complex" in found


def test_a_bridge_that_only_redirects_is_refused() -> None:
    found = plan(DIRECT, peers(PEER, CARD, acs={LEFT: (0x1F, 0x1D)}))
    assert f"{LEFT} redirects requests between devices (ACS)" in refusals(found)
    assert plan(DIRECT, peers(PEER, CARD, acs={LEFT: (0x1F, 0x00)})).refusals == ()
    assert plan(DIRECT, peers(PEER, CARD)).refusals == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DIRECT.replace("ats: true, ", ""), "needs an adapter that translates addresses"),
        (DIRECT.replace("    passthrough: [{device: '10de:20b0'}]\n", ""), "needs a GPU"),
    ],
)
def test_gpudirect_without_its_parts_is_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hosts(text)
    assert says in str(caught.value)


def test_the_settings_of_a_machine_of_esxi_are_stated() -> None:
    more = "    gpudirect: true\n    adapters: [{model: ConnectX-5, ats: true}]\n"
    found = plan(ESXI + more, under_vcenter(A100))
    assert "pciPassthru.RelaxACSforP2P: TRUE" in remarks(found)


# ESXi


def test_directpath_waits_for_a_reboot_in_maintenance_mode() -> None:
    found = plan(ESXI, under_vcenter(A100))
    kinds = [step.action.kind for step in found.steps]
    assert kinds == ["EnterMaintenance", "SetDirectPath", "LeaveMaintenance"]
    assert found.reboots == 1
    assert found.steps[1].action == SetDirectPath(GPU, enabled=True, before=False)
    assert found.steps[1].text == f"10de:20b0 at {GPU}: DirectPath I/O on"
    assert "EFI firmware, a reservation of all its memory" in remarks(found)
    staged = plan(ESXI, under_vcenter(replace(A100, enabled=True)))
    assert staged.steps[1].action == Wait()
    assert "DirectPath I/O is set to on, and not in force" in staged.steps[1].text
    there = replace(A100, enabled=True, active=True, used="x")
    ready = plan(ESXI, under_vcenter(there))
    assert (ready.steps, ready.refusals) == ((), ())


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ({"capable": False}, "ESXi cannot give 10de:20b0 at"),
        ({"used": "uplink of vSwitch0"}, "is in use by the host: uplink of vSwitch0"),
        ({"ids": "10de:1eb8"}, "no device 10de:20b0"),
    ],
)
def test_what_esxi_cannot_give_away(device: dict[str, Any], says: str) -> None:
    assert says in refusals(plan(ESXI, under_vcenter(replace(A100, **device))))


def test_devices_that_leave_with_another_are_named() -> None:
    found = plan(ESXI, under_vcenter(replace(A100, parent="0000:d9:00.0")))
    assert "all devices below 0000:d9:00.0 leave ESXi" in remarks(found)
    assert not found.refusals
    port = DeviceFacts(
        "0000:db:00.0", "15b3:1017", used="uplink of vSwitch0", parent="0000:d9:00.0"
    )
    found = plan(ESXI, under_vcenter(replace(A100, parent="0000:d9:00.0"), port))
    assert "devices in use leave ESXi: 15b3:1017 at 0000:db:00.0 (uplink of vSw" in refusals(found)


def test_directpath_without_a_vcenter_is_refused() -> None:
    text = ESXI.replace("    vcenter: {server: vc.example.org, user: admin}\n", "")
    found = plan(text, replace(esxi(), devices=(A100,)))
    assert "passthrough on ESXi goes through a vCenter | add its vcenter" in refusals(found)
