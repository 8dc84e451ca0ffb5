# SPDX-License-Identifier: Apache-2.0
"""VFs on a real kernel: a machine with an emulated SR-IOV adapter (igb) behind an IOMMU.

What nearmetal did is asked of other programs (ip, /sys), never of itself.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.machines import Yard, built_image
from tests.system.sriov_lab import PF, start_host

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(2400)]

NODES = [f"n{i}" for i in range(1, 8)]


@pytest.fixture(scope="module")
def image() -> dict[str, str]:
    return built_image("hypervisor")


@pytest.fixture
def yard(tmp_path: Path, image: dict[str, str]) -> Iterator[Yard]:
    place = Yard(tmp_path, image)
    try:
        yield place
    finally:
        place.end()


def test_seven_vfs_are_taken_configured_and_given_back_as_found(yard: Yard) -> None:
    host = start_host(yard, "on")
    found = host.as_found()
    request = {"vlan": 100, "trust": True, "spoof_check": False, "rate": 200}
    taken = host.vfs("take", NODES, **request)
    assert len({vf["address"] for vf in taken}) == 7
    assert len({vf["group"] for vf in taken}) == 7

    link = host.adapter()
    assert "UP" in link["flags"]
    by_number = {vf["vf"]: vf for vf in link["vfinfo_list"]}
    for vf in taken:
        told = by_number[vf["number"]]
        assert told["address"] == vf["settings"]["mac"]
        assert (told["trust"], told["spoofchk"]) == (True, False)
        assert (told["vlan_list"][0]["vlan"], told["rate"]["max_tx"]) == (100, 200)
        place = f"/sys/bus/pci/devices/{vf['address']}"
        assert host.tell(f"basename $(readlink {place}/driver)") == "vfio-pci"
        assert host.tell(f"ls {place}/iommu_group/devices") == vf["address"]
        host.tell(f"test -c /dev/vfio/{vf['group']}")

    journal = host.tell("wc -l </var/lib/nearmetal/host/journal.jsonl")
    again = host.vfs("take", NODES, **request)
    assert [vf["address"] for vf in again] == [vf["address"] for vf in taken]
    assert host.tell("wc -l </var/lib/nearmetal/host/journal.jsonl") == journal
    refused = host.vfs("take", ["n8"], code=1)
    assert "its 7 VFs are in use" in refused["error"]
    assert "node n1 of cluster demo" in refused["error"]

    shown = host.python("-m nearmetal host vf --json")
    assert [vf["owner"]["node"] for vf in shown["adapters"][0]["vfs"]] == NODES
    host.vfs("give", NODES[:4])
    assert host.tell(f"cat {PF}/sriov_numvfs") == "7"
    host.tell("rmdir /run/demo")  # the cluster is gone without a word
    assert len(host.python("-m nearmetal host vf --json", code=4)["leaks"]) == 3
    assert len(host.python("-m nearmetal host vf --reclaim --json")["returned"]) == 3
    assert host.as_found() == found
    host.tell("test ! -e /var/lib/nearmetal/host")


def test_a_host_without_iommu_says_which_switch_is_missing(yard: Yard) -> None:
    host = start_host(yard, "off")
    found = host.as_found()
    refused = host.vfs("take", ["n1"], code=1)
    assert "the IOMMU is off" in refused["error"]
    assert "DMAR" in refused["hint"]
    assert "intel_iommu=on iommu=pt (now: intel_iommu=off)" in refused["hint"]
    assert host.as_found() == found
