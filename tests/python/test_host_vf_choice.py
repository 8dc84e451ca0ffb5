# SPDX-License-Identifier: Apache-2.0
"""Which VF a node gets, or why none: facts in, a choice or a refusal with its fix out."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from nearmetal.core.errors import HostError
from nearmetal.host.vf.choose import choose, used_by
from nearmetal.host.vf.facts import acs_of_port
from nearmetal.host.vf.model import (
    ETHERNET,
    INFINIBAND,
    AcsPort,
    Iommu,
    Link,
    Machine,
    PfFacts,
    VfFacts,
    VfSettings,
    full_address,
)
from nearmetal.host.vf.request import VfRequest, derive_guids, derive_mac
from tests.python.sriov_tree import bridge_config

ON = Iommu(9, ("DMAR",), ("intel_iommu=on",), "intel")


def vf(number: int, **changes: object) -> VfFacts:
    facts = VfFacts(f"0000:01:10.{number}", number, "", "", 20 + number, (), 0, (), VfSettings())
    return replace(facts, **changes)  # type: ignore[arg-type]


def link(name: str, **changes: object) -> Link:
    facts = Link(2, name, ETHERNET, up=True, carrier=True, enslaved=False)
    return replace(facts, **changes)  # type: ignore[arg-type]


def pf(name: str = "ens1", bus: int = 1, **changes: object) -> PfFacts:
    facts = PfFacts(
        f"0000:{bus:02x}:00.0",
        "8086:10c9",
        "igb",
        0,
        7,
        (),
        True,
        (link(name),),
        (),
        (),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def machine(*pfs: PfFacts, iommu: Iommu = ON, others: tuple[tuple[str, str], ...] = ()) -> Machine:
    return Machine(pfs, iommu, True, "boot", others)


NEAR = pf("ens1", 1, numa=0)
FAR = pf("ens2", 2, numa=1)


def test_the_adapter_near_the_processors_is_taken() -> None:
    choice = choose(VfRequest(), machine(FAR, NEAR), {}, frozenset({0}))
    assert choice.pf == NEAR
    assert choice.create == 7
    assert choice.reasons == (
        "adapter ens1 (0000:01:00.0): on NUMA node 0, as the processors are",
        "best of 2 adapters",
        "it has no VFs yet: 7 of 7 are created",
    )


def test_a_far_adapter_is_better_than_none_and_says_so() -> None:
    choice = choose(VfRequest(pf="ens2"), machine(NEAR, FAR), {}, frozenset({0}))
    assert choice.pf == FAR
    assert "NUMA node 1, while the processors are on 0" in choice.reasons[0]


def test_vfs_that_exist_come_before_those_to_be_created() -> None:
    with_vfs = replace(FAR, vfs=(vf(0), vf(1)))
    choice = choose(VfRequest(), machine(NEAR, with_vfs), {})
    assert choice.vf == with_vfs.vfs[0]
    assert choice.create == 0


def test_the_adapter_with_most_left_comes_first_among_equals() -> None:
    one, two = replace(NEAR, vfs=(vf(0),)), pf("ens3", 3, vfs=(vf(2), vf(3)))
    assert choose(VfRequest(), machine(one, two), {}).pf == two


def test_distance_is_worth_more_than_anything_else() -> None:
    full = replace(FAR, vfs=tuple(vf(n) for n in range(7)))
    assert choose(VfRequest(), machine(full, NEAR), {}, frozenset({0})).pf == NEAR


@pytest.mark.parametrize("name", ["ens1", "0000:01:00.0", "01:00.0", "mlx5_0"])
def test_an_adapter_answers_to_all_its_names(name: str) -> None:
    assert choose(VfRequest(pf=name), machine(FAR, replace(NEAR, rdma=("mlx5_0",))), {}).create


@pytest.mark.parametrize(
    ("changes", "claims", "use"),
    [
        ({}, {"0000:01:10.0": "node n1 of cluster a"}, "node n1 of cluster a"),
        ({"driver": "vfio-pci"}, {}, "bound to vfio-pci by another program"),
        ({"driver": "uio_pci_generic"}, {}, "bound to uio_pci_generic by another program"),
        ({"driver_override": "vfio-pci"}, {}, "set aside for vfio-pci by another program"),
        ({"driver": "igbvf", "links": (link("v0"),)}, {}, "its network device v0 is up on this"),
        ({"driver": "igbvf", "links": (link("v0", up=False, enslaved=True),)}, {}, "bridge"),
        ({"driver": "igbvf"}, {}, "in another namespace"),
        ({"driver": "igbvf", "links": (link("v0", up=False),)}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_who_uses_a_vf(changes: dict[str, object], claims: dict[str, str], use: str) -> None:
    found = used_by(vf(0, **changes), claims)
    assert (use in found) if use else found == ""


SHARED = vf(0, group_others=("0000:02:00.0",))
BLAMED = pf(vfs=(SHARED,), ports=(AcsPort("0000:00:03.0", acs=False),))


@pytest.mark.parametrize(
    ("request_", "found", "what", "hint"),
    [
        (VfRequest(pf="ens9"), machine(NEAR), "no adapter 'ens9'", "it has: ens1"),
        (VfRequest(), machine(), "no adapter with SR-IOV", "BIOS"),
        (
            VfRequest(pf="eth0"),
            machine(NEAR, others=(("eth0", "0000:05:00.0"),)),
            "eth0 (PCI 0000:05:00.0) has no SR-IOV",
            "SR-IOV Global Enable",
        ),
        (
            VfRequest(pf="0000:01:10.0"),
            machine(replace(NEAR, vfs=(vf(0),))),
            "is itself a VF",
            "ens1",
        ),
        (VfRequest(create=8), machine(NEAR), "8 VFs are requested, and it offers 7", "NUM_OF_VFS"),
        (
            VfRequest(),
            machine(pf(links=(link("ens1", carrier=False),))),
            "its link is down",
            "cable",
        ),
        (VfRequest(), machine(pf(links=())), "no network device", "namespace"),
        (VfRequest(), machine(pf(driver="", links=())), "no driver", "modprobe"),
        (VfRequest(pkey="0x8012"), machine(NEAR), "partition keys are InfiniBand's", "vlan"),
        (
            VfRequest(vlan=5, rate=10),
            machine(pf(links=(link("ib0", type=INFINIBAND),))),
            "vlan, rate: Ethernet's",
            "pkey",
        ),
        (
            VfRequest(pkey="0x8013"),
            machine(pf(links=(link("ib0", type=INFINIBAND),), vf_pkeys=True, pkeys=(0xFFFF,))),
            "not in partition 0x8013 itself",
            "subnet manager",
        ),
        (
            VfRequest(),
            machine(replace(NEAR, vfs=(vf(0, driver="vfio-pci"),))),
            "its 1 VFs are in use (0000:01:10.0: bound to vfio-pci by another program)",
            "it offers 7",
        ),
        (
            VfRequest(),
            machine(BLAMED),
            "VF 0000:01:10.0 shares IOMMU group 20 with 0000:02:00.0; no ACS at 0000:00:03.0",
            "slot",
        ),
        (
            VfRequest(),
            machine(NEAR, iommu=Iommu(0, ("DMAR",), ("intel_iommu=off",), "intel")),
            "the IOMMU is off",
            "boot the kernel with intel_iommu=on iommu=pt (now: intel_iommu=off)",
        ),
        (
            VfRequest(),
            machine(NEAR, iommu=Iommu(0, (), (), "intel")),
            "the IOMMU is off",
            "Intel VT-d",
        ),
        (VfRequest(), machine(NEAR, iommu=Iommu(0, (), (), "amd")), "the IOMMU is off", "AMD-Vi"),
    ],
)
def test_a_refusal_says_what_and_how_to_mend_it(
    request_: VfRequest, found: Machine, what: str, hint: str
) -> None:
    with pytest.raises(HostError) as caught:
        choose(request_, found, {})
    assert what in caught.value.message
    assert hint in caught.value.hint


def test_when_no_adapter_can_every_reason_is_given() -> None:
    with pytest.raises(HostError) as caught:
        choose(VfRequest(), machine(BLAMED, pf("ens2", 2, links=())), {})
    assert len(caught.value.message.splitlines()) == 3
    assert "ens1" in caught.value.message
    assert "no network device" in caught.value.message


def test_addresses_are_stable_local_and_different() -> None:
    macs = {derive_mac("c", f"n{i}") for i in range(500)}
    assert len(macs) == 500
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)
    assert derive_mac("c", "n1") == derive_mac("c", "n1")
    assert derive_mac("a", "bc") != derive_mac("ab", "c")
    node, port = derive_guids("c", "n1")
    assert node != port
    assert int(node[:2], 16) & 3 == 2
    assert len(port.split(":")) == 8


def test_acs_is_read_from_configuration_space() -> None:
    assert acs_of_port("p", bridge_config(acs=True)) == AcsPort("p", acs=True)
    assert acs_of_port("p", bridge_config(acs=False)) == AcsPort("p", acs=False)
    assert acs_of_port("p", bridge_config(acs=None)) == AcsPort("p", acs=False)
    assert acs_of_port("p", bridge_config(acs=True, size=64)) == AcsPort("p", acs=None)
    assert acs_of_port("p", bridge_config(acs=True, size=256)) == AcsPort("p", acs=None)
    assert acs_of_port("p", bridge_config(acs=None, express_type=5)) is None


def test_looping_capability_lists_end() -> None:
    config = bytearray(bridge_config(acs=None))
    config[0x40:0x42] = b"\x01\x40"
    assert acs_of_port("p", bytes(config)) is None
    config = bytearray(bridge_config(acs=None))
    config[0x140:0x144] = (0x0002 | 1 << 16 | 0x140 << 20).to_bytes(4, "little")
    assert acs_of_port("p", bytes(config)) == AcsPort("p", acs=False)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("01:00.0", "0000:01:00.0"),
        ("0000:AF:00.1", "0000:af:00.1"),
        ("1:0.0", None),
        ("x", None),
        ("0000:01:20.0", None),
    ],
)
def test_pci_addresses(text: str, full: str | None) -> None:
    assert full_address(text) == full


@pytest.mark.parametrize(
    "wrong",
    [
        {"pf": "a b"},
        {"pf": []},
        {"pf": "../x"},
        {"create": 0},
        {"vlan": 4095},
        {"vlan": 0},
        {"rate": 0},
        {"pkey": "0x8000"},
        {"pkey": "12"},
        {"guid": "random"},
        {"trust": 1},
        {"guid": {"node": "00:00:00:00:00:00:00:00", "port": "02:00:00:00:00:00:00:01"}},
        {"unknown": 1},
    ],
)
def test_senseless_requests_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        VfRequest.model_validate(wrong)
