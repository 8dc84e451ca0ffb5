# SPDX-License-Identifier: Apache-2.0
"""EFI for virtual machines: firmware of the host, boot partitions, MMIO windows, whole devices."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.cluster.backends.libvirt.efi import (
    Firmware,
    boots_by_efi,
    choose_firmware,
    mmio_window,
    shared_regions,
)
from nearmetal.cluster.backends.libvirt.images import BuiltImages, CloudImages
from nearmetal.cluster.backends.libvirt.spec import LibvirtHost, LibvirtSpec
from nearmetal.cluster.backends.libvirt.vfs import NodeVfs
from nearmetal.cluster.diff import Action
from nearmetal.cluster.resource import Kind, Observed, Region
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import BackendError, NearmetalError, SpecError, StateError
from nearmetal.core.process import LocalRunner
from nearmetal.host.parse.regions import regions_of, regions_of_vf
from nearmetal.host.vf import Ledger, VfHost
from tests.python.distant import another
from tests.python.sriov_tree import FakeKernel, Tree
from tests.python.test_libvirt_plan import attributes, planned, said
from tests.python.test_plan import carried_out
from tests.python.virtual import SMALL

GIB = 1 << 30
HEAD = "version: 1\nname: c\nbackend: libvirt\nhosts: [{name: h, nodes: [{name: a, "
GPU = "0000:3b:00.0"

RESOURCE = """\
0x00000000c4000000 0x00000000c4ffffff 0x0000000000040200
0x000038bf40000000 0x000038bf4000ffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000038a000000000 0x000038a7ffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000003000 0x000000000000307f 0x0000000000040101
0x00000000c5000000 0x00000000c507ffff 0x0000000000046200
0x000038bf44000000 0x000038bf44ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000038be00000000 0x000038bebfffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
"""
"""A device of 32 GiB with 16 VFs, as sysfs would list it."""

TREE = {
    "description": "EFI without Secure Boot",
    "interface-types": ["uefi"],
    "mapping": {
        "device": "flash",
        "executable": {"filename": "/o/CODE.fd", "format": "raw"},
        "nvram-template": {"filename": "/o/VARS.fd", "format": "raw"},
    },
    "targets": [{"architecture": "x86_64", "machines": ["pc-i440fx-*", "pc-q35-*"]}],
    "features": ["acpi-s3", "amd-sev", "verbose-dynamic"],
    "tags": [],
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the description with another value at a path like `mapping.device`."""
    made: dict[str, Any] = json.loads(json.dumps(TREE))
    *way, last = path.split(".")
    inner = made
    for word in way:
        inner = inner[word]
    inner[last] = value
    return made


def listed(*files: tuple[str, object]) -> str:
    texts = ((name, data if isinstance(data, str) else json.dumps(data)) for name, data in files)
    return "".join(f"\n=== {name}\n{text}" for name, text in texts)


GOOD = Firmware("/o/CODE.fd", "/o/VARS.fd")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("interface-types", ["bios"]),
        ("mapping.device", "memory"),
        ("mapping.mode", "combined"),
        ("mapping.executable.format", "qcow2"),
        ("mapping.executable.filename", "CODE.fd"),
        ("targets", [{"architecture": "aarch64", "machines": ["virt-*"]}]),
        ("targets", [{"architecture": "x86_64", "machines": ["microvm"]}]),
        ("targets", 7),
        ("mapping", []),
        ("features", ["requires-smm", "secure-boot"]),
        ("features", ["secure-boot", "enrolled-keys"]),
        ("features", ["intel-tdx"]),
    ],
)
def test_firmware_that_our_machines_cannot_have_is_passed_over(path: str, value: object) -> None:
    wrong = changed(path, value)
    assert choose_firmware(listed(("60-a.json", wrong))) is None
    assert choose_firmware(listed(("60-a.json", wrong), ("70-b.json", TREE))) == GOOD


def test_the_smallest_name_wins_and_a_file_of_the_site_replaces_one_of_the_vendor() -> None:
    other = changed("mapping.executable.filename", "/site/CODE.fd")
    vendor = (("60-a.json", TREE), ("50-b.json", other))
    assert choose_firmware(listed(*vendor)) == Firmware("/site/CODE.fd", "/o/VARS.fd")
    assert choose_firmware(listed(*vendor, ("50-b.json", ""))) == GOOD
    assert choose_firmware(listed(("60-a.json", TREE), ("60-a.json", ""))) is None
    assert choose_firmware("") is None


@given(st.text(max_size=400))
def test_hostile_lists_of_firmware_are_no_firmware(text: str) -> None:
    assert choose_firmware(f"\n=== a.json\n{text}") is None


# Partitions


def gpt(kind: bytes, entry: int = 3, first: int = 2) -> bytes:
    table = bytearray(64 * 512)
    table[450] = 0xEE
    table[510:512] = b"\x55\xaa"
    table[512:520] = b"EFI PART"
    struct.pack_into("<QII", table, 512 + 72, first, 128, 128)
    place = first * 512 + entry * 128
    table[place : place + 16] = kind
    return bytes(table)


EFI = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
LINUX = bytes.fromhex("af3dc60f838472478e793d69d8477de4")


def mbr(kind: int) -> bytes:
    table = bytearray(64 * 512)
    table[446 + 16 + 4] = kind
    table[510:512] = b"\x55\xaa"
    return bytes(table)


@pytest.mark.parametrize(
    ("table", "is_efi"),
    [
        (gpt(EFI), True),
        (gpt(EFI, 127), True),
        (gpt(LINUX), False),
        (mbr(0xEF), True),
        (mbr(0x83), False),
        (gpt(EFI)[:600], False),
        (gpt(EFI).replace(b"EFI PART", b"NOT PART"), False),
        (b"", False),
    ],
)
def test_an_efi_partition_is_found(table: bytes, is_efi: bool) -> None:
    assert boots_by_efi(table) is is_efi


@given(st.binary(max_size=200), st.binary(max_size=3000))
def test_damaged_tables_are_read_without_an_error(header: bytes, rest: bytes) -> None:
    boots_by_efi(bytes(512) + b"EFI PART" + header + rest)
    boots_by_efi(rest)


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
@pytest.mark.parametrize("form", ["raw", "qcow2"])
def test_an_image_without_an_efi_partition_is_refused_for_efi(tmp_path: Path, form: str) -> None:
    def image(table: bytes, name: str, *, efi: bool) -> CloudImages:
        raw, made = tmp_path / f"{name}.disk", tmp_path / f"{name}.{form}"
        raw.write_bytes(table + bytes(1 << 20))
        argv = ["qemu-img", "convert", "-q", "-f", "raw", "-O", form, str(raw), str(made)]
        subprocess.run(argv, check=True)
        runner = LocalRunner()
        return CloudImages(str(made), runner, BuiltImages(runner), tmp_path / "memory", efi=efi)

    image(gpt(EFI), "efi", efi=True).ensure()
    image(gpt(LINUX), "linux", efi=False).ensure()
    with pytest.raises(BackendError, match="it has no EFI system partition") as caught:
        image(gpt(LINUX), "other", efi=True).ensure()
    assert caught.value.hint == "use an image that boots by EFI, or firmware: bios"


# Regions and windows


def test_regions_are_those_of_memory() -> None:
    assert [size for size, _ in regions_of(RESOURCE)] == [16 << 20, 64 << 10, 32 * GIB]
    assert not any(unset for _, unset in regions_of(RESOURCE))
    assert regions_of_vf(RESOURCE, 16) == [1 << 20, 192 << 20]
    assert regions_of_vf(RESOURCE, 0) == []
    unset = "0x0000000000000000 0x00000000000fffff 0x0000000020140204\n"
    assert regions_of(unset) == [(1 << 20, True)]
    assert regions_of("0x1 0x2\nnonsense\n") == []


def test_a_window_holds_all_regions_up_to_a_power_of_two() -> None:
    one = Region(GPU, (16 << 20, 32 * GIB))
    size, why = mmio_window("a", None, [one])
    assert size == 64 * GIB
    assert why == (
        "the regions of its devices need 64 GiB (0000:3b:00.0 32784 MiB, up to a power of two)"
    )
    assert mmio_window("a", None, [Region(GPU, (32 * GIB,))]) == (None, "")
    assert mmio_window("a", None, []) == (None, "")
    assert mmio_window("a", 128 * GIB, [one]) == (128 * GIB, "the spec asks for it")
    assert mmio_window("a", GIB, []) == (GIB, "the spec asks for it")
    with pytest.raises(StateError, match="mmio is 32 GiB, and the regions") as caught:
        mmio_window("a", 32 * GIB, [one])
    assert caught.value.hint == "write mmio: 64 GiB, or auto"
    with pytest.raises(StateError, match="need 32 TiB"):
        mmio_window("a", None, [Region(GPU, (17 << 40,))])


def test_a_large_segment_counts_as_a_region() -> None:
    assert shared_regions(8, 4 * GIB).sizes == (64 * GIB, 4 * GIB)
    two = "hosts: [{name: h, segment: {device: ivshmem, part: 16 GiB, parts: 4}, nodes: [N]}]"
    text = HEAD.partition("hosts")[0] + two.replace("N", "{name: a, firmware: efi}")
    plan = planned(text)
    assert attributes(plan, Kind.NODE, "a")["mmio"] == "256 GiB"
    assert said(plan, "node a: 64-bit MMIO window of 256 GiB: ")
    assert said(plan, "its segment 144 GiB")
    assert "mmio" not in attributes(planned(text.replace("efi", "bios")), Kind.NODE, "a")


# The plan


def test_the_plan_has_the_window_with_its_reason() -> None:
    found = replace(SMALL, regions={"a": (Region(GPU, (64 * GIB, 32 << 20)),)})
    plan = planned(HEAD + f"firmware: efi, passthrough: ['{GPU}']}}]}}]", found=found)
    node = attributes(plan, Kind.NODE, "a")
    assert (node["firmware"], node["mmio"], node["passthrough"]) == ("efi", "128 GiB", GPU)
    assert said(plan, "node a: 64-bit MMIO window of 128 GiB: the regions of its devices need")


def test_a_host_without_efi_is_refused_with_the_package() -> None:
    with pytest.raises(StateError, match="has no EFI firmware for it") as caught:
        planned(HEAD + "firmware: efi}]}]", found=replace(SMALL, efi=False))
    assert "apt install ovmf" in caught.value.hint


def test_another_firmware_makes_a_machine_again_and_only_with_replace() -> None:
    before = planned(HEAD + "slots: 1}]}]")
    assert "firmware" not in attributes(before, Kind.NODE, "a")
    there = carried_out(before, Observed())
    after = planned(HEAD + "firmware: efi}]}]", there)
    (change,) = after.rewrites
    assert (change.action, change.differences) == (Action.CHANGE, (("firmware", "", "efi"),))
    assert change.why == "a machine gets its firmware, with new variables, only at its start"
    assert planned(HEAD + "firmware: bios}]}]", there).empty


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("mmio: 64 GiB", "node a boots by BIOS: it is a setting of EFI firmware"),
        ("firmware: efi, mmio: 100 MiB", "is not a whole number of GiB up to 16 TiB"),
        ("firmware: efi, mmio: 32768 GiB", "is not a whole number of GiB up to 16 TiB"),
        ("firmware: efi, mmio: many", "is not a whole number of GiB"),
        ("firmware: uefi", "firmware"),
        ("passthrough: ['3b:00.0']", "is not a PCI address"),
        (f"passthrough: ['{GPU}', '{GPU}']", "node a has it already"),
        (f"passthrough: ['{GPU}']}}, {{name: b, passthrough: ['{GPU}']", "node a has it already"),
    ],
)
def test_what_cannot_be_is_refused_when_the_spec_is_read(node: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(HEAD + node + "}]}]", "c.yaml")
    assert words in str(caught.value)


# Whole devices


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "root").make()
    real = made.device(GPU)
    (real / "resource").write_text(RESOURCE)
    made.bind(real, "vfio-pci")
    (made.root / "state/c").mkdir(parents=True)
    return made


def survey(tree: Tree, node: str = f"passthrough: ['{GPU}']", *, remote: bool = False) -> Any:
    spec = parse_spec(HEAD + node + "}]}]")
    assert isinstance(spec, LibvirtSpec)
    host: LibvirtHost = spec.hosts[0]
    vfs = VfHost(FakeKernel(tree), Ledger(tree.root.parent / "ledger"), privileged=True)
    there = another(vfs) if remote else vfs
    return NodeVfs("c", Path("/state/c"), there).regions(host)


def test_the_regions_of_devices_and_vfs_are_found(tree: Tree) -> None:
    assert survey(tree) == {"a": (Region(GPU, (16 << 20, 64 << 10, 32 * GIB)),)}
    assert survey(tree, "slots: 1") == {}
    tree.pf(total=16, above="0000:00:04.0")
    (tree.root / "sys/bus/pci/devices/0000:01:00.0/resource").write_text(RESOURCE)
    both = survey(tree, f"firmware: efi, vf: {{}}, passthrough: ['{GPU}']")["a"]
    assert [region.name for region in both] == ["a VF of 0000:01:00.0", GPU]
    assert both[0].sizes == (1 << 20, 192 << 20)


def test_a_device_that_no_machine_can_get_is_refused(tree: Tree) -> None:
    def why(node: str = f"passthrough: ['{GPU}']", *, remote: bool = False) -> str:
        with pytest.raises(NearmetalError) as caught:
            survey(tree, node, remote=remote)
        return f"{caught.value.message}; {caught.value.hint}"

    assert why("passthrough: ['0000:01:00.0']").startswith("node a: this machine has no device")
    assert "only on the machine that nearmetal runs on" in why(remote=True)
    real = (tree.root / "sys/bus/pci/devices" / GPU).resolve()
    mate = tree.device("0000:3b:00.1")
    tree.bind(mate, "snd_hda_intel")
    (mate / "iommu_group").unlink()
    group = (real / "iommu_group").resolve()
    (group / "devices" / mate.name).symlink_to(mate)
    assert "shares its IOMMU group with 0000:3b:00.1, which has the driver snd_hda" in why()
    (real / "driver").unlink()
    assert "0000:3b:00.0 has no driver, not vfio-pci; give it to a machine first" in why()
    tree.bind(real, "nvidia")
    assert "0000:3b:00.0 has the driver nvidia, not vfio-pci" in why()
    (real / "physfn").symlink_to(mate)
    assert "is a virtual function; use vf" in why()
