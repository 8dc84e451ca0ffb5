# SPDX-License-Identifier: Apache-2.0
"""Giving and taking back VFs on a model of a kernel: as found, whatever dies in between."""

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cli.host import show_vfs
from nearmetal.cli.view import View
from nearmetal.core.errors import HostError, NoVfError
from nearmetal.host.vf import Ledger, Owner, VfHost, Wish
from nearmetal.host.vf.kernel import Kernel
from nearmetal.host.vf.model import INFINIBAND, Use
from nearmetal.host.vf.request import Guids, VfRequest, derive_guids, derive_mac
from tests.python.sriov_tree import FakeKernel, Killed, Tree

ANY = VfRequest()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "root").make()
    made.pf()
    cluster(made, "demo")
    return made


def cluster(tree: Tree, name: str) -> str:
    (tree.root / "clusters" / name).mkdir(parents=True, exist_ok=True)
    return f"/clusters/{name}"


def owner(node: str, name: str = "demo") -> Owner:
    return Owner(kind="cluster", name=name, node=node, state=f"/clusters/{name}")


def host(tree: Tree, kernel: Kernel | None = None, *, privileged: bool = True) -> VfHost:
    ledger = Ledger(tree.root.parent / "ledger")
    return VfHost(kernel or FakeKernel(tree), ledger, privileged=privileged)


def test_a_vf_is_created_configured_and_bound(tree: Tree) -> None:
    request = VfRequest(vlan=100, trust=True, spoof_check=False, rate=500, create=4)
    granted = host(tree).allocate(request, owner("n1"))
    assert (granted.address, granted.pf, granted.group) == ("0000:01:10.0", "ens1", 1)
    pf, vf = host(tree).machine().vf(granted.address) or pytest.fail("the VF is not there")
    assert len(pf.vfs) == 4
    assert pf.links[0].up
    assert pf.autoprobe
    assert vf.driver == vf.driver_override == "vfio-pci"
    assert vf.settings == granted.settings.__class__(
        mac=derive_mac("demo", "n1"),
        vlan=100,
        qos=0,
        trust=True,
        spoof_check=False,
        rate=500,
        min_rate=0,
        link_state=0,
    )
    assert "it has no VFs yet: 4 of 7 are created" in granted.reasons
    assert [other.driver for other in pf.vfs[1:]] == ["", "", ""]


def test_asking_again_changes_nothing(tree: Tree) -> None:
    request = VfRequest(vlan=100)
    first = host(tree).allocate(request, owner("n1"))
    kernel = FakeKernel(tree)
    again = host(tree, kernel).allocate(request, owner("n1"))
    assert kernel.changes == []
    assert again.address == first.address
    assert again.reasons == ("the owner already has it",)


def test_a_changed_request_changes_the_vf_in_place(tree: Tree) -> None:
    first = host(tree).allocate(VfRequest(vlan=100), owner("n1"))
    kernel = FakeKernel(tree)
    again = host(tree, kernel).allocate(VfRequest(vlan=200), owner("n1"))
    assert again.address == first.address
    assert kernel.changes == ["link 2 vf 0 vlan = (200, 0)"]


def test_a_request_for_another_adapter_moves_the_vf(tree: Tree) -> None:
    tree.pf("0000:02:00.0", "ens2")
    host(tree).allocate(VfRequest(pf="ens1"), owner("n1"))
    assert host(tree).allocate(VfRequest(pf="ens2"), owner("n1")).pf == "ens2"
    assert host(tree).machine().pfs[0].vfs == ()


def test_releasing_gives_everything_back_as_found(tree: Tree) -> None:
    before = tree.dump()
    for node in ("n1", "n2"):
        host(tree).allocate(VfRequest(vlan=7, rate=10), owner(node))
    assert host(tree).release(owner("n1")) == ()
    assert len(host(tree).machine().pfs[0].vfs) == 7
    host(tree).release(owner("n2"))
    assert tree.dump() == before
    assert not (tree.root.parent / "ledger").exists()
    kernel = FakeKernel(tree)
    assert host(tree, kernel).release(owner("n2")) == ()
    assert kernel.changes == []


def test_vfs_that_were_there_stay_and_get_their_driver_and_address_back(tree: Tree) -> None:
    tree.create("0000:01:00.0", 3)
    before = tree.dump()
    granted = host(tree).allocate(VfRequest(vlan=7), owner("n1"))
    machine = host(tree).machine()
    assert [vf.driver for vf in machine.pfs[0].vfs] == ["vfio-pci", "igbvf", "igbvf"]
    assert "created" not in " ".join(granted.reasons)
    host(tree).release(owner("n1"))
    assert tree.dump() == before


def test_a_vf_that_somebody_uses_is_passed_over(tree: Tree) -> None:
    tree.create("0000:01:00.0", 2)
    kernel = FakeKernel(tree)
    index = next(link.index for link in kernel.links() if link.name.endswith("10f0"))
    kernel.set_up(index, up=True)
    assert host(tree).allocate(ANY, owner("n1")).address == "0000:01:10.2"
    with pytest.raises(HostError, match="is up on this machine"):
        host(tree).allocate(ANY, owner("n2"))


def test_an_adapter_keeps_vfs_that_others_began_to_use(tree: Tree) -> None:
    before = tree.dump()
    host(tree).allocate(ANY, owner("n1"))
    FakeKernel(tree).write("sys/bus/pci/devices/0000:01:10.2/driver_override", "vfio-pci")
    kept = host(tree).release(owner("n1"))
    assert kept == (
        ("adapter ens1 keeps its VFs: 0000:01:10.2: set aside for vfio-pci by another program"),
    )
    assert len(host(tree).machine().pfs[0].vfs) == 7
    FakeKernel(tree).write("sys/bus/pci/devices/0000:01:10.2/driver_override", "")
    host(tree).release(owner("n1"))
    assert tree.dump() == before


def test_a_vf_for_this_machine_has_its_own_driver_and_is_up(tree: Tree) -> None:
    before = tree.dump()
    granted = host(tree).allocate(VfRequest(vlan=7), owner("n1"), use="host")
    assert granted.interfaces == ("v0110f0",)
    _, vf = host(tree).machine().vf(granted.address) or pytest.fail("the VF is not there")
    assert (vf.driver, vf.driver_override, vf.links[0].up) == ("igbvf", "", True)
    assert (vf.settings.mac, vf.settings.vlan) == (derive_mac("demo", "n1"), 7)
    kernel = FakeKernel(tree)
    assert host(tree, kernel).allocate(VfRequest(vlan=7), owner("n1"), use="host") == replace(
        granted, reasons=("the owner already has it",)
    )
    assert kernel.changes == []
    # Nobody else gets it, and for another use its owner gets it afresh.
    other = host(tree).allocate(ANY, owner("n2"), use="host")
    assert other.address != granted.address
    assert host(tree).allocate(ANY, owner("n1")).interfaces == ()
    for node in ("n1", "n2"):
        host(tree).release(owner(node))
    assert tree.dump() == before


def test_a_vf_for_this_machine_needs_no_iommu(tmp_path: Path) -> None:
    bare = Tree(tmp_path / "bare").make(iommu=False)
    bare.pf()
    cluster(bare, "demo")
    with pytest.raises(NoVfError, match="the IOMMU is off"):
        host(bare).allocate(ANY, owner("n1"))
    granted = host(bare).allocate(ANY, owner("n1"), use="host")
    assert (granted.group, granted.interfaces) == (-1, ("v0110f0",))


def test_a_driver_that_does_not_come_is_said(tree: Tree) -> None:
    tree.create("0000:01:00.0", 1)
    FakeKernel(tree)._unbind(FakeKernel(tree)._device("0000:01:10.0"))
    (tree.root / "sys/bus/pci/devices/0000:01:10.0/modalias").write_text("pci:nobody\n")
    (tree.root / "sys/bus/pci/drivers/igbvf").rmdir()
    with pytest.raises(HostError, match="no driver of this machine takes it") as caught:
        host(tree).allocate(ANY, owner("n1"), use="host")
    assert not isinstance(caught.value, NoVfError)


def walk(tree: Tree, kill_at: int, use: Use) -> bool:
    """Allocate and release, dying before change `kill_at`; whether it died."""
    kernel = FakeKernel(tree, kill_at)
    try:
        host(tree, kernel).allocate(VfRequest(vlan=3, rate=9), owner("n1"), use=use)
        host(tree, kernel).release(owner("n1"))
    except Killed:
        return True
    return False


@pytest.mark.parametrize(("there", "resume"), [(0, True), (0, False), (2, False)])
@pytest.mark.parametrize(("use", "driver"), [("machine", "vfio-pci"), ("host", "igbvf")])
def test_dying_before_any_change_leaves_nothing_that_is_not_taken_up(
    tmp_path: Path, use: Use, driver: str, *, there: int, resume: bool
) -> None:
    died = 0
    for kill_at in range(1, 60):
        tree = Tree(tmp_path / str(kill_at) / "root").make()
        tree.pf(total=2)
        cluster(tree, "demo")
        if there:
            tree.create("0000:01:00.0", there)
        before = tree.dump()
        if not walk(tree, kill_at, use):
            break
        died += 1
        if resume:  # the same owner goes on
            granted = host(tree).allocate(VfRequest(vlan=3, rate=9), owner("n1"), use=use)
            found = host(tree).machine().vf(granted.address)
            assert found is not None
            assert (found[1].driver, found[1].settings.vlan) == (driver, 3)
            host(tree).release(owner("n1"))
        else:  # the owner never comes back
            (tree.root / "clusters/demo").rmdir()
            host(tree).reclaim()
            cluster(tree, "demo")
        assert tree.dump() == before, kill_at
        assert not (tree.root.parent / "ledger").exists()
    assert died > 10


def test_leftovers_of_owners_that_are_gone_are_reclaimed_by_the_next(tree: Tree) -> None:
    request = VfRequest(create=1)
    host(tree).allocate(request, owner("n1"))
    with pytest.raises(HostError, match="node n1 of cluster demo"):
        host(tree).allocate(request, owner("n1", "other"))
    (tree.root / "clusters/demo").rmdir()
    cluster(tree, "other")
    it = host(tree)
    assert it.leaks(it.machine(), it.ledger.read()) == {
        "0000:01:10.0": "node n1 of cluster demo has no state any more"
    }
    assert it.survey([Wish(owner("n1", "other"), request)])[0].vf is not None
    assert it.allocate(request, owner("n1", "other")).address == "0000:01:10.0"


def test_a_process_owns_as_long_as_it_is_the_same(tree: Tree) -> None:
    tree.put("proc/77/stat", "77 (a) b) S " + " ".join(["0"] * 18) + " 4321 0")
    tree.put("proc/78/stat", "78 (sh) S " + " ".join(["0"] * 18) + " 9 0")
    for pid, start, alive in ((77, 4321, True), (78, 4321, False), (79, 4321, False)):
        mine = Owner(kind="process", name="job-1", pid=pid, start=start)
        it = host(tree)
        it.allocate(ANY, mine)
        assert (it.leaks(it.machine(), it.ledger.read()) == {}) is alive
        it.release(mine)


def test_a_boot_gives_everything_back(tree: Tree) -> None:
    host(tree).allocate(ANY, owner("n1"))
    FakeKernel(tree).write("sys/bus/pci/devices/0000:01:10.0/driver_override", "")
    FakeKernel(tree)._unbind(FakeKernel(tree)._device("0000:01:10.0"))
    tree.put("proc/sys/kernel/random/boot_id", "another")
    kernel = FakeKernel(tree)
    host(tree, kernel).reclaim()
    assert kernel.changes == []
    assert not (tree.root.parent / "ledger").exists()


def test_a_vf_under_a_running_machine_is_not_pulled_away(tree: Tree) -> None:
    host(tree).allocate(ANY, owner("n1"))
    (tree.root / "dev/vfio").mkdir(parents=True)
    (tree.root / "proc/99/fd").mkdir(parents=True)
    (tree.root / "proc/99/fd/5").symlink_to("/dev/vfio/1")
    with pytest.raises(HostError, match="still used by process 99"):
        host(tree).release(owner("n1"))
    (tree.root / "clusters/demo").rmdir()
    host(tree).reclaim()
    assert "0000:01:10.0" in host(tree).ledger.read().claims


def test_a_failure_without_a_vf_leaves_the_adapter_as_it_was(tree: Tree) -> None:
    before = tree.dump()
    state = tree.load()
    state["iommu"] = False  # the VFs get no group
    tree.save(state)
    with pytest.raises(HostError, match="is not as it was set"):
        host(tree).allocate(ANY, owner("n1"))
    host(tree).release(owner("n1"))
    state["iommu"] = True
    tree.save(tree.load() | {"iommu": True})
    assert tree.dump() == before


def test_a_survey_counts_what_all_nodes_together_take(tree: Tree) -> None:
    tree.pf("0000:02:00.0", "ens2", total=1, numa=1)
    before = tree.dump()
    near = [Wish(owner(f"n{i}"), VfRequest(create=2), frozenset({0})) for i in range(2)]
    far = Wish(owner("n3"), VfRequest(), frozenset({1}))
    choices = host(tree).survey([*near, far])
    assert [(c.pf.name, c.create) for c in choices] == [("ens1", 2), ("ens1", 0), ("ens2", 1)]
    one = [Wish(owner(f"n{i}"), VfRequest(pf="ens2")) for i in range(2)]
    with pytest.raises(HostError, match=r"node n1 of cluster demo: adapter ens2 .* in use"):
        host(tree).survey(one)
    assert tree.dump() == before
    host(tree).allocate(VfRequest(pf="ens2"), owner("n0"))
    assert host(tree).survey(one[:1])[0].vf is not None


def test_without_root_nothing_is_tried(tree: Tree) -> None:
    before = tree.dump()
    with pytest.raises(HostError) as caught:
        host(tree, privileged=False).allocate(ANY, owner("n1"))
    assert "run as root" in caught.value.hint
    assert tree.dump() == before
    assert host(tree, privileged=False).release(owner("n1")) == ()


def test_a_link_that_stays_down_is_an_error_and_undone(tree: Tree) -> None:
    state = tree.load()
    state["links"]["ens1"]["cable"] = False
    tree.save(state)
    before = tree.dump()
    with pytest.raises(HostError, match="wait for the link of ens1: no link after"):
        host(tree).allocate(ANY, owner("n1"))
    assert tree.dump() == before


def infiniband(tmp_path: Path, driver: str, *, iov: bool) -> Tree:
    tree = Tree(tmp_path / "root").make()
    tree.pf(name="ib0", kind=INFINIBAND, driver=driver, rdma="mlx_0")
    if iov:
        (tree.root / "sys/class/infiniband/mlx_0/iov").mkdir()
    cluster(tree, "demo")
    return tree


def test_infiniband_gets_guids_and_leaves_partitions_to_the_subnet_manager(
    tmp_path: Path,
) -> None:
    tree = infiniband(tmp_path, "mlx5_core", iov=False)
    granted = host(tree).allocate(VfRequest(pf="mlx_0", pkey="0x8012"), owner("n1"))
    found = host(tree).machine().vf(granted.address)
    assert found is not None
    settings = found[1].settings
    assert (settings.node_guid, settings.port_guid) == derive_guids("demo", "n1")
    assert settings.link_state == 0
    port = derive_guids("demo", "n1")[1].replace(":", "")
    assert granted.notes == (
        (
            f"subnet manager: add port GUID 0x{port} to partition 0x8012; "
            "driver mlx5_core leaves partition keys of VFs to it"
        ),
    )
    host(tree).release(owner("n1"))
    assert host(tree).machine().pfs[0].vfs == ()


def test_infiniband_sets_partition_keys_where_the_driver_lets_it(tmp_path: Path) -> None:
    tree = infiniband(tmp_path, "mlx4_core", iov=True)
    before = tree.dump()
    guids = Guids(node="02:00:00:00:00:00:00:01", port="02:00:00:00:00:00:00:02")
    granted = host(tree).allocate(VfRequest(pkey="0x8012", guid=guids), owner("n1"))
    found = host(tree).machine().vf(granted.address)
    assert found is not None
    assert found[1].settings.pkey_index == 1
    assert found[1].settings.port_guid == guids.port
    assert granted.notes == ()
    kernel = FakeKernel(tree)
    host(tree, kernel).allocate(VfRequest(pkey="0x8012", guid=guids), owner("n1"))
    assert kernel.changes == []
    host(tree).release(owner("n1"))
    assert tree.dump() == before


def take(root: Path, number: int, begin: Any, results: Any) -> None:
    begin.wait()
    mine = Owner(kind="process", name=f"job-{number}", pid=os.getpid(), start=1)
    try:
        results.put(
            VfHost(FakeKernel(Tree(root)), Ledger(root.parent / "ledger"), privileged=True)
            .allocate(VfRequest(create=3), mine)
            .address
        )
    except HostError as error:
        results.put(error.message)


def test_of_many_that_race_for_the_last_vfs_each_gets_its_own_or_none(tree: Tree) -> None:
    context = multiprocessing.get_context("fork")
    begin, results = context.Event(), context.Queue()
    racers = [context.Process(target=take, args=(tree.root, n, begin, results)) for n in range(8)]
    for racer in racers:
        racer.start()
        tree.put(f"proc/{racer.pid}/stat", f"{racer.pid} (p) S " + "0 " * 18 + "1 0")
    begin.set()
    got = [results.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join()
    won = [text for text in got if text.startswith("0000:")]
    assert sorted(won) == ["0000:01:10.0", "0000:01:10.2", "0000:01:10.4"]
    assert all("its 3 VFs are in use" in text for text in got if text not in won)
    assert len(host(tree).ledger.read().claims) == 3


def test_the_verb_shows_adapters_vfs_owners_and_leaks(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    host(tree).allocate(VfRequest(create=2, vlan=5), owner("n1"))
    assert show_vfs(host(tree), View(as_json=False), reclaim=False) == 0
    text = capsys.readouterr().out
    assert "ens1" in text
    assert "2/7" in text
    assert "node n1 of cluster demo" in text
    assert "free" in text
    (tree.root / "clusters/demo").rmdir()
    assert show_vfs(host(tree), View(as_json=True), reclaim=False) == 4
    output = capsys.readouterr()
    data = json.loads(output.out)
    assert data["leaks"] == {"0000:01:10.0": "node n1 of cluster demo has no state any more"}
    assert data["adapters"][0]["vfs"][0]["owner"]["node"] == "n1"
    assert "nearmetal host vf --reclaim" in output.err
    assert show_vfs(host(tree), View(as_json=True), reclaim=True) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["returned"] == ["0000:01:10.0: node n1 of cluster demo has no state any more"]
    assert data["adapters"][0]["vfs"] == []


def test_the_verb_without_adapters_and_without_iommu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = Tree(tmp_path / "root").make(iommu=False, cmdline="quiet intel_iommu=off")
    assert show_vfs(host(tree), View(as_json=False), reclaim=False) == 0
    assert "no adapter of this machine has SR-IOV" in capsys.readouterr().out
    tree.pf()
    assert show_vfs(host(tree), View(as_json=False), reclaim=False) == 0
    assert "intel_iommu=on iommu=pt (now: intel_iommu=off)" in capsys.readouterr().err
