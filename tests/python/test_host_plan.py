# SPDX-License-Identifier: Apache-2.0
"""Facts of a host in, steps out: no step too many, no reboot too many, no sum that does not fit."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.host.hosts_file import HostsFile, parse_hosts
from nearmetal.host.model import BiosFacts, BiosValue, CardFacts, ConfigValue, PlatformFacts
from nearmetal.host.places import GRUB, RULES
from nearmetal.host.plan import HostPlan, gather, plan_host, plan_hosts, waves
from nearmetal.host.show import plan_lines
from nearmetal.host.steps import SetBios, SetConfig, SetOptions, Stage, Step, Wait
from tests.python.provision_host import DELL, FACTORY, FakeHost, esxi, linux, ports, settings

GOLDEN = Path(__file__).parent / "golden" / "provision"

PAPER = """\
version: 1
name: paper
hosts:
  - nodes: esx1
    platform: esxi
    bmc: {address: "https://bmc-{host}"}
    bios: {virtualization: true, sriov: true, power: os}
    adapters:
      - model: ConnectX-5
        num_of_vfs: 16
        ports: [{link: infiniband, vfs: 8}, {link: infiniband, vfs: 7}]
"""

PACKAGES = """\
    packages:
      - {name: mft, version: 4.18.1, file: /vmfs/volumes/depot/mft.vib}
      - {name: nmst, version: 4.18.1, file: /vmfs/volumes/depot/nmst.vib}
"""

KVM = """\
version: 1
name: kvm
hosts:
  - nodes: kvm1
    platform: linux
    bmc: {address: "https://bmc-{host}"}
    bios: {virtualization: true, sriov: true}
    adapters:
      - psid: MT_0000000008
        firmware: 16.32.1010
        ports: [{link: infiniband, vfs: 4}, {vfs: 2}]
    kernel: {iommu: passthrough, hugepages: {size: 1 GiB, count: 4}, isolate: 2-7}
"""


def plan(text: str, facts: PlatformFacts) -> HostPlan:
    [(name, group)] = parse_hosts(text).each()
    return plan_host(name, group, facts)


def options(found: HostPlan) -> str:
    return next(s.action.options for s in found.steps if isinstance(s.action, SetOptions))


def config(found: HostPlan) -> dict[str, str]:
    return {
        s.action.setting: s.action.value for s in found.steps if isinstance(s.action, SetConfig)
    }


def refusals(found: HostPlan) -> str:
    return "\n".join(f"{refusal.what} | {refusal.hint}" for refusal in found.refusals)


def test_the_worked_example_of_the_paper() -> None:
    found = plan(PAPER, esxi())
    assert options(found) == "max_vfs=0,0,8,7"
    assert config(found) == {
        "LINK_TYPE_P1": "1",
        "LINK_TYPE_P2": "1",
        "ADVANCED_PCI_SETTINGS": "1",
        "FORCE_ETH_PCI_SUBCLASS": "1",
        "SRIOV_EN": "1",
        "NUM_OF_VFS": "16",
    }
    assert found.refusals == ()
    assert {s.action.device for s in found.steps if isinstance(s.action, SetConfig)} == {
        "mt4119_pciconf1"
    }


def test_the_number_of_the_example_is_computed_where_none_is_given() -> None:
    assert config(plan(PAPER.replace("        num_of_vfs: 16\n", ""), esxi()))["NUM_OF_VFS"] == "16"


def test_one_vf_more_is_refused_with_the_arithmetic() -> None:
    found = plan(PAPER.replace("vfs: 7", "vfs: 8"), esxi())
    assert refusals(found) == (
        "ConnectX5 at 0000:3b:00: 8 + 8 VFs + 1 for the physical function = 17, more than "
        "num_of_vfs: 16 | request fewer VFs, or num_of_vfs: 17"
    )


def test_no_more_than_the_firmware_offers() -> None:
    text = PAPER.replace("        num_of_vfs: 16\n", "").replace("vfs: 8", "vfs: 120")
    assert "120 + 7 VFs + 1 for the physical function = 128, and its firmware offers 127" in (
        refusals(plan(text, esxi()))
    )


def test_the_example_takes_two_reboots_where_the_tools_are_there_and_three_where_not() -> None:
    assert plan(PAPER, esxi()).reboots == 2
    found = plan(PAPER + PACKAGES, esxi(tools=False))
    assert found.reboots == 3
    assert found.refusals == ()
    first, second, third = found.phases
    assert {s.key for s in first.forcing} >= {"package mft", "package nmst", "bios SysProfile"}
    assert {type(s.action) for s in second.steps} == {SetConfig, SetOptions}
    assert [s.key for s in third.steps] == ["config 0000:3b:00 FORCE_ETH_PCI_SUBCLASS"]


def test_without_tools_and_packages_esxi_is_refused() -> None:
    assert "cannot be read | install mstflint (Linux) or MFT" in refusals(
        plan(PAPER, esxi(tools=False))
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "max_vfs=0,0,8,7"),
        ("DRSS=4", "DRSS=4 max_vfs=0,0,8,7"),
        ("max_vfs=2,2,8,8 ecn=1", "max_vfs=2,2,8,7 ecn=1"),
        ("max_vfs=8,7", "max_vfs=0,0,8,7"),
        ("max_vfs=8,7,0,0", "max_vfs=8,7,8,7"),
    ],
)
def test_other_options_of_the_module_and_other_ports_keep_theirs(before: str, after: str) -> None:
    assert options(plan(PAPER, esxi(options=before))) == after


def test_a_list_for_other_ports_is_remarked() -> None:
    found = plan(PAPER, esxi(options="max_vfs=8,7"))
    assert any("max_vfs=8,7 does not fit 4 ports" in remark.text for remark in found.remarks)


def test_max_vfs_is_in_bus_order_whatever_the_order_of_the_facts() -> None:
    facts = esxi()
    assert options(plan(PAPER, replace(facts, cards=facts.cards[::-1]))) == "max_vfs=0,0,8,7"


@pytest.mark.parametrize(
    ("name", "text", "facts"),
    [
        ("paper", PAPER, esxi()),
        ("paper-bare", PAPER + PACKAGES, esxi(tools=False)),
        ("linux", KVM, linux()),
    ],
)
def test_plans_are_as_recorded(name: str, text: str, facts: PlatformFacts) -> None:
    found = plan_hosts(parse_hosts(text), {facts.name: facts})
    assert "\n".join(plan_lines(found)) + "\n" == (GOLDEN / f"{name}.plan").read_text()


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (PAPER, esxi()),
        (PAPER, esxi(options="max_vfs=8,7 DRSS=4")),
        (PAPER + PACKAGES, esxi(tools=False)),
        (KVM, linux()),
        (KVM, linux(cmdline=("quiet", "intel_iommu=off"))),
        (
            KVM.replace(
                "firmware: 16.32.1010",
                "firmware: 16.35.2000\n        image: {file: /depot/fw.bin,"
                f" version: 16.35.2000, sha256: {'0' * 64}}}",
            ),
            linux(),
        ),
    ],
)
def test_after_apply_the_plan_is_empty(text: str, facts: PlatformFacts) -> None:
    host = FakeHost(facts)
    found = plan(text, facts)
    assert found.refusals == ()
    assert found.reboots >= 1
    host.carry_out(found)
    assert host.reboots == found.reboots
    assert plan(text, host.facts).steps == ()


@pytest.mark.parametrize("text", [PAPER + PACKAGES, KVM])
def test_it_may_be_cut_short_after_any_step_and_is_taken_up(text: str) -> None:
    start = linux() if "kvm1" in text else esxi(tools=False)
    total = len(plan(text, start).steps)
    for cut in range(1, total):
        host = FakeHost(start)
        for step in [s for phase in plan(text, start).phases[:1] for s in phase.steps][:cut]:
            host.take(step)
        for _ in range(3):
            host.carry_out(plan(text, host.facts))
        assert plan(text, host.facts).steps == ()
        assert host.reboots <= 3


def test_on_linux_the_limit_is_per_physical_function() -> None:
    assert config(plan(KVM, linux()))["NUM_OF_VFS"] == "4"


def test_a_card_without_settings_gives_what_its_driver_offers() -> None:
    card = CardFacts("0000:01:00", "82576", ports("0000:01:00", "igb", total_vfs=7))
    text = """\
version: 1
name: igb
hosts:
  - {nodes: kvm1, platform: linux, adapters: [{model: "82576", ports: [{vfs: 7}, {vfs: 8}]}]}
"""
    assert refusals(plan(text, linux(cards=(card,)))) == (
        "8 VFs are requested of 0000:01:00.1, its driver offers 7 | request at most 7"
    )
    found = plan(text.replace("vfs: 8", "vfs: 7"), linux(cards=(card,)))
    assert [s.key for s in found.steps] == ["rules", "vfs 0000:01:00.0", "vfs 0000:01:00.1"]
    assert found.reboots == 0


def test_vfs_in_use_are_not_pulled_away() -> None:
    facts = linux()
    card = replace(facts.cards[0], ports=ports("0000:3b:00", "mlx5_core", vfs=3, used_vfs=1))
    assert "virtual machines have 1 of them" in refusals(plan(KVM, replace(facts, cards=(card,))))


def test_a_card_without_sriov_is_refused() -> None:
    bare = {n: v for n, v in settings(FACTORY).items() if n not in ("SRIOV_EN", "NUM_OF_VFS")}
    facts = linux()
    assert "has no SR-IOV" in refusals(
        plan(KVM, replace(facts, cards=(replace(facts.cards[0], config=bare),)))
    )


def test_a_card_that_is_no_vpi_card_keeps_its_link_type() -> None:
    bare = {n: v for n, v in settings(FACTORY).items() if not n.startswith("LINK")}
    facts = linux()
    found = plan(KVM, replace(facts, cards=(replace(facts.cards[0], config=bare),)))
    assert "port 1 of ConnectX5 at 0000:3b:00 cannot be infiniband" in refusals(found)


def test_old_firmware_is_refused_without_an_image() -> None:
    text = KVM.replace("firmware: 16.32.1010", "firmware: 16.35.2000")
    assert "has firmware 16.32.1010, older than 16.35.2000, and no image" in refusals(
        plan(text, linux())
    )


def test_two_like_cards_need_an_address() -> None:
    facts = linux()
    twin = replace(facts.cards[0], address="0000:86:00", ports=ports("0000:86:00", "mlx5_core"))
    both = replace(facts, cards=(facts.cards[0], twin))
    assert "2 adapters are MT_0000000008 | add an address" in refusals(plan(KVM, both))
    text = KVM.replace("psid: MT_0000000008", 'psid: MT_0000000008\n        address: "86:00"')
    found = plan(text, both)
    assert found.refusals == ()
    assert {
        s.action.value
        for s in found.steps
        if isinstance(s.action, SetConfig) and s.key.startswith("config 0000:3b")
    } == set()


def test_what_is_staged_needs_only_the_reboot() -> None:
    host = FakeHost(linux())
    first = plan(KVM, host.facts)
    for step in first.phases[0].steps:
        host.take(step)
    second = plan(KVM, host.facts)
    assert {type(s.action) for s in second.steps} == {Wait}
    assert second.reboots == 1


BIOS = """\
version: 1
name: bios
hosts:
  - nodes: kvm1
    platform: linux
    bmc: {address: "https://bmc-{host}"}
    bios: {WANTED}
"""


def bios_steps(
    wanted: str, vendor: str, attributes: dict[str, BiosValue], **more: tuple[str, ...]
) -> tuple[dict[str, BiosValue], str]:
    facts = linux(bios=BiosFacts(vendor, attributes, allowed=more), cards=())
    found = plan(BIOS.replace("{WANTED}", wanted), facts)
    steps = {
        s.action.attribute: s.action.value for s in found.steps if isinstance(s.action, SetBios)
    }
    return steps, refusals(found)


@pytest.mark.parametrize(
    ("vendor", "attributes", "expected"),
    [
        ("Dell Inc.", DELL, {"ProcVirtualization": "Enabled", "SriovGlobalEnable": "Enabled"}),
        (
            "HPE",
            {"ProcVirtualization": "Disabled", "IntelProcVtd": "Disabled", "Sriov": "Disabled"},
            {"ProcVirtualization": "Enabled", "IntelProcVtd": "Enabled", "Sriov": "Enabled"},
        ),
        (
            "Lenovo",
            {
                "Processors_SVMMode": "Disable",
                "DevicesandIOPorts_SRIOV": "Disable",
                "DevicesandIOPorts_IntelVTforDirectedIOVTd": "Enable",
            },
            {"Processors_SVMMode": "Enable", "DevicesandIOPorts_SRIOV": "Enable"},
        ),
        (
            "Supermicro",
            {
                "IntelVirtualizationTechnology_0021": "Disable",
                "SR_IOVSupport_002B": "Disabled",
                "IntelVTforDirectedI_O_VT_d_0101": "Disable",
            },
            {
                "IntelVirtualizationTechnology_0021": "Enable",
                "SR_IOVSupport_002B": "Enabled",
                "IntelVTforDirectedI_O_VT_d_0101": "Enable",
            },
        ),
    ],
)
def test_vendors_have_their_own_names(
    vendor: str, attributes: dict[str, BiosValue], expected: dict[str, BiosValue]
) -> None:
    wanted = "{virtualization: true, iommu: true, sriov: true}"
    assert bios_steps(wanted, vendor, attributes) == (expected, "")


def test_an_unknown_attribute_is_named_with_what_comes_close() -> None:
    steps, why = bios_steps("{attributes: {SriovGlobalEnabled: Enabled}}", "Dell Inc.", DELL)
    assert steps == {}
    assert "no attribute 'SriovGlobalEnabled' | it has SriovGlobalEnable" in why


def test_a_setting_that_the_machine_lacks_is_refused() -> None:
    lacking = {name: value for name, value in DELL.items() if name != "SriovGlobalEnable"}
    assert (
        "no attribute for sriov: true (SriovGlobalEnable)"
        in (bios_steps("{sriov: true}", "Dell Inc.", lacking)[1])
    )


def test_one_switch_for_two_wishes_that_differ_is_refused() -> None:
    wanted = "{virtualization: true, iommu: false}"
    assert "has one switch for both" in bios_steps(wanted, "Dell Inc.", DELL)[1]


def test_the_registry_of_the_machine_decides_about_values() -> None:
    wanted = "{numa_per_socket: 2}"
    assert bios_steps(wanted, "Dell Inc.", DELL)[0] == {"SubNumaCluster": "Enabled"}
    steps, _ = bios_steps(wanted, "Dell Inc.", DELL, SubNumaCluster=("Disabled", "2-way", "4-way"))
    assert steps == {"SubNumaCluster": "2-way"}
    assert (
        "no known value of SubNumaCluster"
        in (bios_steps("{numa_per_socket: 4}", "Dell Inc.", DELL, SubNumaCluster=("Disabled",))[1])
    )


def test_a_vendor_without_a_table_takes_its_own_names() -> None:
    assert "no table of BIOS names for 'Frobnix'" in bios_steps("{smt: true}", "Frobnix", DELL)[1]
    steps, why = bios_steps("{attributes: {BootMode: Bios}}", "Frobnix", DELL)
    assert (steps, why) == ({"BootMode": "Bios"}, "")


def test_a_staged_value_that_is_not_wanted_is_taken_back() -> None:
    bios = BiosFacts(
        "Dell Inc.",
        {**DELL, "SriovGlobalEnable": "Enabled"},
        pending={"SriovGlobalEnable": "Disabled"},
    )
    found = plan(BIOS.replace("{WANTED}", "{sriov: true}"), linux(bios=bios, cards=()))
    assert [s.text for s in found.steps] == ["SriovGlobalEnable: Disabled -> Enabled"]
    assert found.reboots == 0


def test_kernel_arguments_of_amd_and_the_last_word() -> None:
    text = KVM[: KVM.index("    bmc")] + "    kernel: {iommu: passthrough}\n"
    assert "intel_iommu" not in plan(text, linux(cpu="amd")).steps[0].text
    done = linux(cmdline=("intel_iommu=off", "intel_iommu=on", "iommu=pt"))
    assert plan(text, done).steps == ()
    undone = linux(cmdline=("intel_iommu=on", "iommu=pt", "intel_iommu=off"))
    assert [s.key for s in plan(text, undone).steps] == ["kernel"]
    assert "neither update-grub nor grubby" in refusals(plan(text, linux(loader="")))
    assert plan(text, linux(loader="grubby")).reboots == 1


def test_the_canary_goes_alone_and_then_as_many_as_the_limits_allow() -> None:
    step = Step(Stage.BIOS, "k", "t", Wait(), "why")
    hosts = [HostPlan(f"n{i}", "linux", f"rack{i % 2}", gather([step])) for i in range(7)]
    assert waves(hosts, "n3", 3, 2) == (("n3",), ("n0", "n1", "n2"), ("n4", "n5", "n6"))
    assert waves(hosts, None, 3, 1)[1:] == (("n1", "n2"), ("n3", "n4"), ("n5", "n6"))
    assert waves([], None, 3, 1) == ()


def test_waves_keep_their_limits_whatever_the_hosts() -> None:
    draw = random.Random(7)
    for _ in range(200):
        domains = [draw.choice(["", "a", "b", "c"]) for _ in range(draw.randint(1, 30))]
        hosts = [HostPlan(f"n{i}", "linux", domain) for i, domain in enumerate(domains)]
        by_name = {host.name: host.domain for host in hosts}
        at_once, per_domain = draw.randint(1, 5), draw.randint(1, 3)
        found = waves(hosts, None, at_once, per_domain)
        assert sorted(n for wave in found for n in wave) == sorted(by_name)
        assert len(found[0]) == 1
        for wave in found:
            assert len(wave) <= at_once
            assert all([by_name[n] for n in wave].count(d) <= per_domain for d in ("a", "b", "c"))


def test_mixed_firmware_is_told() -> None:
    file: HostsFile = parse_hosts(KVM.replace("nodes: kvm1", 'nodes: "kvm[1-2]"'))
    other = linux(name="kvm2")
    other = replace(other, cards=(replace(other.cards[0], firmware="16.33.1048"),))
    found = plan_hosts(file, {"kvm1": linux(), "kvm2": other})
    assert found.remarks == (
        "boards MT_0000000008 have different firmware: 16.32.1010 on kvm1, 16.33.1048 on kvm2",
    )


def test_a_longer_chain_is_a_further_phase_and_a_parallel_one_is_not() -> None:
    steps = [
        Step(Stage.DRIVER, "c", "c", Wait(), "why", ("b",)),
        Step(Stage.BIOS, "a", "a", Wait(), "why"),
        Step(Stage.FIRMWARE, "b", "b", Wait(), "why", ("a", "missing")),
        Step(Stage.DRIVER, "d", "d", Wait(), "", ("a",)),
        Step(Stage.DRIVER, "e", "e", Wait(), "", ("e-before",)),
    ]
    assert [[s.key for s in phase.steps] for phase in gather(steps)] == [
        ["a", "e"],
        ["b", "d"],
        ["c"],
    ]


def test_a_setting_that_runs_already_is_no_step() -> None:
    facts = linux()
    now = {
        n: ConfigValue(v, v)
        for n, v in (FACTORY | {"SRIOV_EN": "1", "NUM_OF_VFS": "9", "LINK_TYPE_P1": "1"}).items()
    }
    found = plan(KVM, replace(facts, cards=(replace(facts.cards[0], config=now),)))
    assert config(found) == {}
    assert facts.files == {RULES: None, GRUB: None}
