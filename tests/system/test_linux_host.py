# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host` on real Linux machines: kernel, udev, GRUB, igb and its VFs, real restarts.

Only the firmware's tools are stand-ins (programs/lab_card.py), and the BMC is an emulator.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.system.linux_host import DEVICE, PF, LinuxHost, Site, kill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.core.journal import Record

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.full, pytest.mark.timeout(3600)]

IMAGE = "ConnectX5 16.32.1010\n"
BODY = f"""\
    bios: {{virtualization: true, sriov: true}}
    adapters:
      - model: ConnectX-5
        firmware: 16.32.1010
        image: {{file: /var/lib/lab/ConnectX5.bin, version: 16.32.1010,
                sha256: {hashlib.sha256(IMAGE.encode()).hexdigest()}}}
        ports: [{{link: ethernet, vfs: 4, mtu: 4200}}]
    kernel: {{iommu: passthrough, hugepages: {{size: 2 MiB, count: 8}}}}
    power: {{governor: performance}}
"""
ARGUMENTS = ["intel_iommu=on", "iommu=pt", "default_hugepagesz=2M", "hugepagesz=2M", "hugepages=8"]
STEPS = [
    "stage ProcVirtualization, SriovGlobalEnable",
    "firmware 16.28.1002 -> 16.32.1010",
    "LINK_TYPE_P1",
    "SRIOV_EN",
    "NUM_OF_VFS",
    "kernel arguments",
    "VFs and MTU at every boot",
    "reboot",
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    place = Site(tmp_path, BODY)
    try:
        yield place
    finally:
        place.end()


def as_the_file_says(host: LinuxHost) -> None:
    """Ask the host itself, and no part of what set it up."""
    vfs = host.vfs()
    assert len(vfs) == 4
    groups = set()
    for vf in vfs:
        place = f"/sys/bus/pci/devices/{vf}"
        assert host.tell(f"basename $(readlink {place}/driver)") == "igbvf"
        assert host.tell(f"ls {place}/iommu_group/devices") == vf
        groups.add(host.tell(f"readlink {place}/iommu_group"))
    assert len(groups) == 4
    mtus = host.tell(f"cat {DEVICE}/net/*/mtu {DEVICE}/virtfn*/net/*/mtu").split()
    assert mtus == ["4200"] * 5
    cmdline = host.tell("cat /proc/cmdline").split()
    assert cmdline[-len(ARGUMENTS) :] == ARGUMENTS
    assert host.tell("cat /proc/sys/vm/nr_hugepages") == "8"
    assert host.bmc.now["ProcVirtualization"] == host.bmc.now["SriovGlobalEnable"] == "Enabled"


def test_from_the_factory_to_vfs_and_back(site: Site) -> None:
    host = site.add("kvm1").reachable()
    factory = host.state()
    assert (factory["vfs"], factory["iommu"]) == ([], "off")

    planned = site.ok("plan", code=3)
    assert "plan: 8 steps, 1 reboot" in planned
    assert (
        "reboot 1: the BIOS reads its settings at boot; new firmware starts with the card; "
        "the firmware reads its settings when it starts; "
        "the kernel reads its command line at boot"
    ) in planned
    assert "governor performance is not offered here: the host has no cpufreq" in planned
    assert site.records() == []
    site.ok("apply", "--yes")
    assert host.starts == 2
    as_the_file_says(host)
    done = [record.step for record in site.records() if record.event == "done"]
    assert [words in step for words, step in zip(STEPS, done, strict=True)] == [True] * len(STEPS)
    assert "plan: 0 steps, 0 reboots" in site.ok("plan")
    assert "0 steps" in site.ok("apply", "--yes") or "nothing to do" in site.ok("apply", "--yes")
    applied = host.state()

    # By somebody else's hand, all of which the running system shows: no reboot mends it.
    host.tell(
        f"echo 0 >{DEVICE}/sriov_numvfs; echo 1500 >$(echo {DEVICE}/net/*/mtu); rm /etc/udev/rules.d/90-nearmetal-sriov.rules;"
        f" /opt/mellanox/bin/mlxconfig -d {PF} -y set NUM_OF_VFS=1"
    )
    told = site.ok("status", code=4)
    assert "4 differences from the file" in told
    assert "MTU 1500 -> 4200" in told
    assert "differs: firmware: ConnectX5 at 0000:01:00: NUM_OF_VFS 1 -> 4" in told
    assert "0 -> 4 VFs" in told
    site.ok("apply", "--yes")
    assert host.starts == 2
    assert host.state() == applied
    site.ok("status")

    assert "left: ConnectX5 at 0000:01:00: firmware stays" in site.ok("rollback", "--yes", code=4)
    assert host.starts == 3
    assert host.state() == factory | {"firmware": applied["firmware"]}


def test_killed_at_every_record_and_taken_up(site: Site) -> None:
    """Each run is killed at the first record that no run has come to before."""
    host = site.add("kvm1").reachable()
    seen: set[tuple[str, str]] = set()
    killed: list[Record] = []

    def fresh(records: list[Record]) -> bool:
        return any((r.step, r.event) not in seen for r in records)

    for _ in range(4 * len(STEPS)):
        done = site.watched("apply", "--yes", moment=fresh, act=kill)
        records = site.records()
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        killed.append(records[-1])
        seen |= {(record.step, record.event) for record in records}
        host.settled()
    assert done.returncode == 0
    as_the_file_says(host)
    begun = {record.step for record in killed if record.event == "begin"}
    assert [any(words in step for step in begun) for words in STEPS] == [True] * len(STEPS)
    assert host.starts == 2
    levels = json.loads(host.tell("cat /var/lib/lab/firmware.json"))
    assert levels == {PF: ["16.32.1010", "16.32.1010", 1]}
    assert "plan: 0 steps, 0 reboots" in site.ok("plan")
    kept = site.kept()["kvm1"]
    assert kept["grub"]["before"] is None if "grub" in kept else kept["kernel"]["before"] is None
    assert kept[f"config {PF[:-2]} NUM_OF_VFS"]["before"] == "0"
    assert kept["bios ProcVirtualization"]["before"] == "Disabled"


def at_kernel(records: list[Record]) -> bool:
    return any("kernel arguments" in record.step for record in records)


def test_lost_connection_and_lost_power_in_the_middle(site: Site) -> None:
    host = site.add("kvm1").reachable()

    def pull(_: int) -> None:
        host.cable(plugged=False)

    cut = site.watched("apply", "--yes", moment=at_kernel, act=pull)
    assert cut.returncode == 1
    assert "kvm1: ssh: " in cut.stderr
    last = site.records()[-1]
    assert (last.event, "kernel arguments" in last.step) == ("failed", True)
    assert host.starts == 1
    host.cable(plugged=True)
    host.settled()
    # What is left to do depends on how far the host came; the file is made anew for the power.
    host.tell("rm -f /etc/default/grub.d/90-nearmetal.cfg")

    def switch_off(_: int) -> None:
        # When the file is there, and GRUB's configuration not yet.
        deadline = time.monotonic() + 60
        while host.run("ls /etc/default/grub.d/*.begun").returncode:
            assert time.monotonic() < deadline
        host.cut_power()

    cut = site.watched("apply", "--yes", moment=at_kernel, act=switch_off)
    assert cut.returncode == 1, cut.stdout
    host.reachable()
    host.tell("ls /etc/default/grub.d/90-nearmetal.cfg.begun")
    assert "intel_iommu=on" not in host.tell("cat /proc/cmdline")
    site.ok("apply", "--yes")
    as_the_file_says(host)
    assert host.run("ls /etc/default/grub.d/*.begun").returncode
    assert "plan: 0 steps, 0 reboots" in site.ok("plan")


def test_a_host_that_does_not_come_back_keeps_the_others_untouched(site: Site) -> None:
    first, second = site.add("kvm1"), site.add("kvm2")
    first.reachable()
    # Another keeps the network of this one, and VFs are then made where that is looked for.
    second.reachable().tell(
        "systemctl disable lab-way-in.service; systemctl enable --now systemd-networkd.service"
    )
    untouched = second.reachable().state()
    first.comes_back = False
    lost = site.run("apply", "--yes", "--reboot-timeout", "20")
    assert lost.returncode == 1
    assert "kvm1: did not come back within 20 s of its reboot; not begun: kvm2" in lost.stderr
    assert f"look at its console, see https://127.0.0.1:{first.bmc.port}" in lost.stderr
    assert second.state() == untouched
    assert second.starts == 1
    first.switch_on()
    first.reachable()
    site.ok("apply", "--yes")
    for host in (first, second):
        as_the_file_says(host)
        assert host.starts == 2
    link = "/etc/systemd/network/60-nearmetal-0000-01-00.0.link"
    assert first.run(f"ls {link}").returncode
    assert "SR-IOVVirtualFunctions=4" in second.tell(f"cat {link}").splitlines()
    assert "sriov_numvfs" not in second.tell("cat /etc/udev/rules.d/90-nearmetal-sriov.rules")


def test_a_whole_adapter_goes_to_vfio_and_back(tmp_path: Path) -> None:
    bios = "    bios: {virtualization: true}\n"
    site = Site(tmp_path, f"{bios}    passthrough: [{{device: '15b3:1017'}}]\n")
    driver = f"basename $(readlink {DEVICE}/driver)"
    try:
        host = site.add("kvm1").reachable()
        assert host.tell(driver) == "igb"
        planned = site.ok("plan", code=3)
        assert f"vfio-pci at every boot: 15b3:1017 at {PF}" in planned
        assert "plan: 3 steps, 1 reboot" in planned
        site.ok("apply", "--yes")
        assert host.starts == 2
        assert host.tell(driver) == "vfio-pci"
        assert "plan: 0 steps, 0 reboots" in site.ok("plan")
        site.ok("rollback", "--yes")
        assert host.starts == 3
        assert host.tell(driver) == "igb"
    finally:
        site.end()
