# SPDX-License-Identifier: Apache-2.0
"""VFs of a cluster's nodes: surveyed for the plan, taken, told to the guest, given back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cluster.backends.libvirt.spec import LibvirtHost, LibvirtSpec
from nearmetal.cluster.backends.libvirt.vfs import NodeVfs, seed_interface
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import BackendError, HostError
from nearmetal.host.vf import Ledger, VfHost
from nearmetal.host.vf.model import INFINIBAND, VfSettings
from nearmetal.host.vf.request import VfRequest, derive_guids
from tests.python.distant import another
from tests.python.sriov_tree import FakeKernel, Tree, tree_of_two_vfs

TEXT = """
version: 1
name: c
backend: libvirt
hosts: [{name: h, nodes: [{name: a, vf: {vlan: 7}}, {name: b, vf: {pf: PF}}, {name: d}]}]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return tree_of_two_vfs(tmp_path / "root")


def host_of(tree: Tree) -> VfHost:
    return VfHost(FakeKernel(tree), Ledger(tree.root.parent / "ledger"), privileged=True)


def vfs(tree: Tree) -> NodeVfs:
    return NodeVfs("c", Path("/state/c"), host_of(tree))


def spec_host(adapter: str) -> LibvirtHost:
    spec = parse_spec(TEXT.replace("PF", adapter))
    assert isinstance(spec, LibvirtSpec)
    return spec.hosts[0]


def test_the_plan_says_where_vfs_come_from(tree: Tree) -> None:
    near = "adapter ens1 (0000:01:00.0): its distance makes no difference here"
    assert vfs(tree).survey(spec_host("ens1"), 1) == (
        f"node a: a VF: {near}; it has no VFs yet: 2 of 2 are created",
        f"node b: a VF: {near}",
    )
    assert vfs(tree).survey(spec_host("ens1"), 2)[0] == (
        "node a: a VF of the adapter that is nearest to its cores"
    )


def test_what_cannot_be_is_said_before_anything_is_made(tree: Tree) -> None:
    with pytest.raises(HostError, match="node b of cluster c: this machine has no adapter 'ens9'"):
        vfs(tree).survey(spec_host("ens9"), 1)
    far = NodeVfs("c", "/state/c", another(host_of(tree)))
    with pytest.raises(HostError, match="host h: node b of cluster c: this machine has no adapter"):
        far.survey(spec_host("ens9"), 1)
    assert far.survey(spec_host("ens1"), 1) == vfs(tree).survey(spec_host("ens1"), 1)


def test_what_the_subnet_manager_must_know_is_in_the_plan(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root").make()
    tree.pf(name="ib0", kind=INFINIBAND, driver="mlx5_core", rdma="mlx5_0")
    spec = parse_spec(TEXT.replace("{vlan: 7}", "{pkey: '0x8012'}").replace(", vf: {pf: PF}", ""))
    assert isinstance(spec, LibvirtSpec)
    port = derive_guids("c", "a")[1].replace(":", "")
    notes = vfs(tree).survey(spec.hosts[0], 1)
    assert notes[1].startswith(f"node a: subnet manager: add port GUID 0x{port} to partition 0x80")


def test_a_node_takes_its_vf_and_gives_it_back(tree: Tree) -> None:
    before = tree.dump()
    granted = vfs(tree).take("a", VfRequest(vlan=7), frozenset())
    told = seed_interface(granted)
    assert told is not None
    assert told.vf is not None
    assert (told.mac, told.vf.pf, told.vf.index, told.vf.vlan) == (
        granted.settings.mac,
        "ens1",
        0,
        7,
    )
    vfs(tree).take("b", VfRequest(), frozenset())
    with pytest.raises(BackendError, match=r"node d: adapter ens1 .* are in use"):
        vfs(tree).take("d", VfRequest(), frozenset())
    for node in "abd":
        vfs(tree).give_back(node)
    assert tree.dump() == before


def test_a_directory_that_the_ledger_cannot_name_is_refused(tree: Tree) -> None:
    with pytest.raises(BackendError, match="cannot name the directory /my files"):
        NodeVfs("c", "/my files", another(host_of(tree))).give_back("a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pf": "e\\x07"}, "pf: String should match"),
        ({"number": -1}, "index: Input should be"),
        ({"numa": 1 << 40}, "host_numa: Input should be"),
        ({"settings": VfSettings(mac="02:00:00:00:00:01", vlan=9999)}, "vlan: Input should be"),
    ],
)
def test_facts_that_no_guest_can_be_told_are_an_error_of_the_host(
    tree: Tree, change: dict[str, Any], words: str
) -> None:
    """Anything else would end a move in the middle: this is a failed action, with a way back."""
    granted = vfs(tree).take("a", VfRequest(), frozenset())
    with pytest.raises(BackendError, match=rf"VF 0000:01:10\.0 .* described to a guest: {words}"):
        seed_interface(replace(granted, **change))
