# SPDX-License-Identifier: Apache-2.0
"""Every parser and every plan, over listings of real cards, hosts and BIOS trees."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest

from nearmetal.core.process import Command, LocalRunner
from nearmetal.host.facts_linux import MODELS
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.model import CardFacts, ConfigValue, PlatformFacts, PortFacts
from nearmetal.host.parse.esxcli import PCI_ADDRESS, parse_pci, parse_vibs, pci_id
from nearmetal.host.parse.tools import (
    boards_by_card,
    parse_mlxconfig,
    parse_mlxfwmanager,
    parse_mst_status,
    place,
)
from nearmetal.host.plan import HostPlan, plan_host
from nearmetal.host.shell import script_of
from nearmetal.host.stages.firmware import version_key
from nearmetal.host.steps import Burn, SetBios, SetConfig, SetOptions, Stage, Step
from tests.python.host_listings import Listing, listings, tree, trees
from tests.python.provision_host import FakeHost, esxi, linux

CONFIGS = listings("mlxconfig")


# Parsers


@pytest.mark.parametrize(
    "kind", ["mlxconfig", "mlxfwmanager", "mst", "vibs", "pci", "flint", "lspci"]
)
def test_every_listing_names_its_source(kind: str) -> None:
    found = listings(kind)
    assert found
    assert all(listing.head["source"] for listing in found)


@pytest.mark.parametrize("listing", CONFIGS, ids=str)
def test_no_row_of_mlxconfig_is_lost(listing: Listing) -> None:
    found = parse_mlxconfig(listing.text)
    assert found is not None
    assert list(found) == listing.rows
    for name, value in found.items():
        assert " " not in value.next, name
        if f"{name} " in listing.text and "Array" not in value.next:
            row = next(line for line in listing.text.splitlines() if f" {name} " in f"{line} ")
            assert value.next
            assert row.split()[-1].removesuffix(")").endswith(value.next)


@pytest.mark.parametrize("listing", CONFIGS, ids=str)
def test_every_card_has_a_model(listing: Listing) -> None:
    type_ = re.search(r"^Device type: +(\S+)", listing.text, re.MULTILINE)
    assert type_ is not None
    model = MODELS[listing.head["card"]]
    assert model.replace("-", "").lower() == type_[1].lower()


def test_three_columns_whose_values_are_wider_than_a_column() -> None:
    [dell] = [listing for listing in CONFIGS if listing.name == "connectx4lx-dell"]
    found = parse_mlxconfig(dell.text) or {}
    assert found["PCI_ATOMIC_MODE"] == ConfigValue("0", "0")
    assert found["ROCE_CONTROL"] == ConfigValue("0", "2")
    assert found["NUM_OF_VFS"] == ConfigValue("0", "0")


@pytest.mark.parametrize("listing", listings("mlxfwmanager"), ids=str)
def test_every_board_of_mlxfwmanager_is_found(listing: Listing) -> None:
    boards = parse_mlxfwmanager(listing.text)
    assert len(boards) == listing.text.count("Device #")
    for board in boards:
        assert f"PSID:             {board.psid}" in listing.text
        assert re.search(rf"\bFW +{re.escape(board.firmware)} ", listing.text)
        assert board.stored == ""


def test_boards_that_are_named_by_their_file_are_found_by_address() -> None:
    [listing] = [found for found in listings("mlxfwmanager") if found.name == "connectx4-two"]
    mst = "ConnectX4(rev:0)  /dev/mst/mt4115_pciconf0  03:00.0\n"
    mst += "ConnectX4(rev:0)  /dev/mst/mt4115_pciconf1  04:00.0\n"
    boards = boards_by_card(parse_mlxfwmanager(listing.text), parse_mst_status(mst))
    assert {card: board.firmware for card, board in boards.items()} == {
        "0000:03:00": "12.17.2046",
        "0000:04:00": "12.28.2040",
    }
    assert boards_by_card(parse_mlxfwmanager(listing.text), []) == {}


@pytest.mark.parametrize("listing", listings("mst"), ids=str)
def test_every_function_of_mst_is_found(listing: Listing) -> None:
    found = parse_mst_status(listing.text)
    assert len(found) == len(re.findall(r"\b[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]\b", listing.text))
    assert all(place(device.pci).count(":") == 2 for device in found)


@pytest.mark.parametrize("listing", listings("vibs"), ids=str)
def test_every_package_of_esxi_is_found(listing: Listing) -> None:
    found = parse_vibs(listing.text)
    rows = listing.text.strip().splitlines()[2:]
    assert list(found) == [row.split()[0] for row in rows]
    assert list(found.values()) == [row.split()[1] for row in rows]
    if "nmlx5-core" in found:
        assert version_key(found["nmlx5-core"].partition("-")[0]) >= (4, 17)


@pytest.mark.parametrize("listing", listings("pci"), ids=str)
def test_every_device_of_esxi_is_found(listing: Listing) -> None:
    found = parse_pci(listing.text)
    lines = [line.strip().removeprefix("Address: ") for line in listing.text.splitlines()]
    assert list(found) == [*dict.fromkeys(line for line in lines if PCI_ADDRESS.fullmatch(line))]
    for entry in found.values():
        assert re.fullmatch("[0-9a-f]{4}|", pci_id(entry.get("Device ID", "")))
    if listing.name == "esxi-padded":
        assert [pci_id(entry["Device ID"]) for entry in found.values()] == ["75a3", "744c", "dead"]
    if listing.name == "esxi-7-p600":
        ((address, entry),) = found.items()
        assert (address, pci_id(entry["Vendor ID"])) == ("0000:04:00.0", "10de")
        assert (entry["Module Name"], entry["VMkernel Name"]) == ("pciPassthru", "")


@pytest.mark.parametrize("listing", listings("flint"), ids=str)
def test_a_burn_knows_the_version_in_the_flash(listing: Listing) -> None:
    version = re.search(r"FW Version: +(\S+)", listing.text)
    assert version is not None
    burn = Burn("d", "/fw.bin", "0" * 64, version[1], "1.0.0")
    script = script_of(Step(Stage.FIRMWARE, "burn", "burn", burn))
    pattern = re.search(r"grep -x '([^']*)'", script)
    assert pattern is not None
    grep = shutil.which("grep")
    assert grep is not None
    command = Command((grep, "-x", pattern[1]), stdin=listing.text.encode())
    assert LocalRunner().run(command, timeout_s=10).text.split()[2] == version[1]


# Plans of cards

FILE = """\
version: 1
name: real
hosts:
  - nodes: host1
    platform: {PLATFORM}
    adapters:
      - {model: "{MODEL}", {MORE}ports: [{PORTS}]}
"""


def card(listing: Listing, platform: str) -> CardFacts:
    """The card of a listing, with a port for each of its functions, as its driver shows it."""
    config = parse_mlxconfig(listing.text)
    driver = "mlx5_core" if platform == "linux" else "nmlx5_core"
    link = (
        "infiniband" if (config or {}).get("LINK_TYPE_P1", ConfigValue("", "")).next == "1" else ""
    )
    ports = tuple(
        PortFacts(f"0000:3b:00.{n}", driver, f"net{n}", link=link or "ethernet", mtu=1500)
        for n in range(int(listing.head["ports"]))
    )
    return CardFacts(
        "0000:3b:00",
        MODELS[listing.head["card"]],
        ports,
        psid="MT_0000000008",
        firmware="16.32.1010",
        device="mt_pciconf0" if platform == "esxi" else "0000:3b:00.0",
        config=config,
    )


def host(listing: Listing, platform: str) -> PlatformFacts:
    facts = linux() if platform == "linux" else esxi()
    return replace(facts, cards=(card(listing, platform),))


def planned(listing: Listing, platform: str, ports: str, more: str = "") -> str:
    text = FILE.replace("{PLATFORM}", platform).replace("{PORTS}", ports).replace("{MORE}", more)
    return text.replace("{MODEL}", MODELS[listing.head["card"]])


def plan(text: str, facts: PlatformFacts) -> HostPlan:
    [(_, group)] = parse_hosts(text).each()
    return plan_host(facts.name, group, facts)


def settings_in(found: HostPlan) -> dict[str, str]:
    return {
        s.action.setting: s.action.value for s in found.steps if isinstance(s.action, SetConfig)
    }


WHOLE = [listing for listing in CONFIGS if {"SRIOV_EN", "NUM_OF_VFS"} <= set(listing.rows)]
VPI = [listing for listing in WHOLE if "LINK_TYPE_P1" in listing.rows]
WIDE = [listing for listing in CONFIGS if "ADVANCED_PCI_SETTINGS" in listing.rows]


@pytest.mark.parametrize("opens", ["set", "reset"])
@pytest.mark.parametrize("platform", ["linux", "esxi"])
@pytest.mark.parametrize("listing", WHOLE, ids=str)
def test_every_card_gets_its_virtual_functions(listing: Listing, platform: str, opens: str) -> None:
    ports = ", ".join(["{vfs: 4}"] * int(listing.head["ports"]))
    text, facts = planned(listing, platform, ports), host(listing, platform)
    found = plan(text, facts)
    assert found.refusals == ()
    machine = FakeHost(facts, opens)
    machine.carry_out(found)
    assert plan(text, machine.facts).refusals == ()
    assert plan(text, machine.facts).steps == ()
    config = machine.facts.cards[0].config or {}
    count = 4 if platform == "linux" else 4 * int(listing.head["ports"]) + 1
    assert int(config["NUM_OF_VFS"].current) >= count
    assert config["SRIOV_EN"].current == "1"


@pytest.mark.parametrize("opens", ["set", "reset"])
@pytest.mark.parametrize("listing", VPI, ids=str)
def test_every_vpi_card_becomes_an_infiniband_card_of_esxi(listing: Listing, opens: str) -> None:
    text = planned(listing, "esxi", "{link: infiniband, vfs: 7}", "num_of_vfs: 16, ")
    facts = host(listing, "esxi")
    found = plan(text, facts)
    assert found.refusals == ()
    assert found.reboots == 2
    wanted = {"ADVANCED_PCI_SETTINGS": "1", "FORCE_ETH_PCI_SUBCLASS": "1"}
    assert settings_in(found).items() >= wanted.items()
    assert [s.key for s in found.phases[1].steps] == ["config 0000:3b:00 FORCE_ETH_PCI_SUBCLASS"]
    machine = FakeHost(facts, opens)
    machine.carry_out(found)
    assert plan(text, machine.facts).steps == ()
    assert (machine.facts.cards[0].config or {})["FORCE_ETH_PCI_SUBCLASS"].current == "1"


@pytest.mark.parametrize("listing", WIDE, ids=str)
def test_a_setting_that_another_one_opens_is_planned_after_it(listing: Listing) -> None:
    facts = host(listing, "linux")
    text = planned(listing, "linux", "", "settings: {MAX_ACC_OUT_READ: 44}, ")
    found = plan(text, facts)
    assert found.refusals == ()
    if "MAX_ACC_OUT_READ" in listing.rows:
        assert found.steps == ()
        return
    assert [[s.key.split()[-1] for s in phase.steps] for phase in found.phases] == [
        ["ADVANCED_PCI_SETTINGS"],
        ["MAX_ACC_OUT_READ"],
    ]
    machine = FakeHost(facts, "reset")
    machine.carry_out(found)
    assert plan(text, machine.facts).steps == ()


def test_a_setting_stays_unknown_where_its_opener_is_in_force() -> None:
    [listing] = [found for found in CONFIGS if found.name == "connectx7-mcx715105as"]
    facts = host(listing, "linux")
    config = {**(facts.cards[0].config or {}), "ADVANCED_PCI_SETTINGS": ConfigValue("1", "1")}
    facts = replace(facts, cards=(replace(facts.cards[0], config=config),))
    found = plan(planned(listing, "linux", "", "settings: {MAX_ACC_OUT_READ: 44}, "), facts)
    assert [r.what for r in found.refusals] == [
        "the firmware of ConnectX-7 at 0000:3b:00 has no MAX_ACC_OUT_READ"
    ]


def test_a_setting_that_its_opener_excludes_is_refused() -> None:
    [listing] = [found for found in CONFIGS if found.name == "connectx7-mcx715105as"]
    more = "settings: {MAX_ACC_OUT_READ: 44, ADVANCED_PCI_SETTINGS: 0}, "
    found = plan(planned(listing, "linux", "", more), host(listing, "linux"))
    assert "MAX_ACC_OUT_READ needs ADVANCED_PCI_SETTINGS = 1, and the file has 0" in (
        found.refusals[0].what
    )


def test_a_read_only_setting_is_refused_with_its_owner() -> None:
    [listing] = [found for found in CONFIGS if found.name == "bluefield3-b3220"]
    locked = replace(listing, text=listing.text.replace("        NUM_OF_VFS", " RO     NUM_OF_VFS"))
    facts = host(locked, "linux")
    assert (facts.cards[0].config or {})["NUM_OF_VFS"] == ConfigValue("16", "16", fixed=True)
    found = plan(planned(listing, "linux", "{vfs: 32}"), facts)
    assert "NUM_OF_VFS is read-only, and 16" in found.refusals[0].what


def test_a_number_for_each_function_gives_way_to_that_of_the_card() -> None:
    [listing] = [found for found in CONFIGS if found.name == "connectx6dx-mcx623432an"]
    text = listing.text.replace(
        "PF_NUM_OF_VF_VALID                          False(0)",
        "PF_NUM_OF_VF_VALID                          True(1)",
    )
    facts = host(replace(listing, text=text), "linux")
    assert settings_in(plan(planned(listing, "linux", "{vfs: 4}"), facts)) == {
        "SRIOV_EN": "1",
        "NUM_OF_VFS": "4",
        "PF_NUM_OF_VF_VALID": "0",
    }


def test_the_example_of_the_paper_takes_the_values_of_the_paper() -> None:
    """Its ConnectX-5 has two ports; the listing of its board's sister has one."""
    [listing] = [found for found in CONFIGS if found.name == "connectx5-mcx555a"]
    two = replace(
        listing,
        head=listing.head | {"ports": "2"},
        text=listing.text.replace(
            "        LINK_TYPE_P1                                IB(1)\n",
            "        LINK_TYPE_P1                                ETH(2)\n"
            "        LINK_TYPE_P2                                ETH(2)\n",
        ),
    )
    service = esxi().cards[0]
    facts = replace(host(two, "esxi"), cards=(service, card(two, "esxi")))
    ports = "{link: infiniband, vfs: 8}, {link: infiniband, vfs: 7}"
    found = plan(planned(two, "esxi", ports, "num_of_vfs: 16, "), facts)
    assert found.refusals == ()
    assert found.reboots == 2
    assert settings_in(found) == {
        "LINK_TYPE_P1": "1",
        "LINK_TYPE_P2": "1",
        "ADVANCED_PCI_SETTINGS": "1",
        "FORCE_ETH_PCI_SUBCLASS": "1",
        "SRIOV_EN": "1",
        "NUM_OF_VFS": "16",
    }
    [options] = [s.action.options for s in found.steps if isinstance(s.action, SetOptions)]
    assert options == "max_vfs=0,0,8,7"


# Plans of a BIOS

BIOS = """\
version: 1
name: bios
hosts:
  - nodes: host1
    platform: linux
    bmc: {address: "https://bmc-{host}"}
    bios: {WANTED}
"""

NO_SWITCH = {
    ("hpe-dl385-gen10plus-v2", "virtualization"),
    ("lenovo-2022", "sriov"),
    ("supermicro-number-sign", "smt"),
    ("supermicro-number-sign", "numa_per_socket"),
}
"""Settings for which the tree of a machine has no attribute."""


def bios_plan(name: str, wanted: str) -> HostPlan:
    facts = replace(linux(), bios=tree(name)[0], cards=())
    return plan(BIOS.replace("{WANTED}", wanted), facts)


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize("setting", ["virtualization", "iommu", "sriov", "smt"])
@pytest.mark.parametrize("name", trees())
def test_every_machine_has_its_switches(name: str, setting: str, value: str) -> None:
    found = bios_plan(name, f"{{{setting}: {value}}}")
    if (name, setting) in NO_SWITCH:
        assert "has no attribute for" in found.refusals[0].what
        assert f"remove bios.{setting}" in found.refusals[0].hint
        return
    assert found.refusals == ()
    bios, file = tree(name)
    for step in found.steps:
        assert isinstance(step.action, SetBios)
        known = bios.allowed.get(
            step.action.attribute, ("Enabled", "Disabled", "Enable", "Disable")
        )
        assert step.action.value in known
        assert step.action.before == file["attributes"][step.action.attribute]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", trees())
def test_numa_nodes_per_socket_are_refused_where_there_is_no_attribute(
    name: str, nodes: int
) -> None:
    found = bios_plan(name, f"{{numa_per_socket: {nodes}}}")
    assert bool(found.refusals) == ((name, "numa_per_socket") in NO_SWITCH)


@pytest.mark.parametrize(
    ("name", "wanted", "phases"),
    [
        ("dell-r750", "{power: os}", [["SysProfile"]]),
        ("dell-r750", "{numa_per_socket: 2}", [["SubNumaCluster"]]),
        (
            "hpe-dl385-gen10plus-v2",
            "{power: performance}",
            [["WorkloadProfile"], ["PowerRegulator"]],
        ),
        (
            "lenovo-sr670-v2",
            "{power: os}",
            [["OperatingModes_ChooseOperatingMode"], ["Power_PowerPerformanceBias"]],
        ),
        ("supermicro-sys-821ge-tnhr", "{numa_per_socket: 2}", [["SNC_F300"]]),
    ],
)
def test_a_locked_attribute_comes_a_boot_after_the_one_that_unlocks_it(
    name: str, wanted: str, phases: list[list[str]]
) -> None:
    found = bios_plan(name, wanted)
    assert found.refusals == ()
    steps = [[s.key.removeprefix("bios ") for s in phase.steps] for phase in found.phases]
    assert steps == phases
    assert found.reboots == len(phases)
    facts = replace(linux(), bios=tree(name)[0], cards=())
    machine = FakeHost(facts)
    machine.carry_out(found)
    assert plan(BIOS.replace("{WANTED}", wanted), machine.facts).steps == ()


def test_a_profile_of_the_file_that_keeps_the_lock_is_refused() -> None:
    wanted = "{power: performance, attributes: {WorkloadProfile: LowLatency}}"
    found = bios_plan("hpe-dl385-gen10plus-v2", wanted)
    [refusal] = found.refusals
    assert "PowerRegulator is locked while WorkloadProfile is GeneralPower" in refusal.what
    assert "set WorkloadProfile under bios.attributes: " in refusal.hint
    assert "Custom" in refusal.hint


def test_a_profile_that_locks_another_attribute_comes_after_it() -> None:
    wanted = "{sriov: false, attributes: {WorkloadProfile: LowLatency}}"
    found = bios_plan("hpe-dl385-gen10plus-v2", wanted)
    assert [[s.key for s in phase.steps] for phase in found.phases] == [
        ["bios Sriov"],
        ["bios WorkloadProfile"],
    ]
