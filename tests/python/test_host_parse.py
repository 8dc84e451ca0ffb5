# SPDX-License-Identifier: Apache-2.0
"""Outputs of tools become facts; what is no such output becomes nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.host.model import ConfigValue
from nearmetal.host.parse.esxcli import parse_module_parameters, parse_pci, parse_table, parse_vibs
from nearmetal.host.parse.registry import parse_registry
from nearmetal.host.parse.tools import (
    Board,
    MstDevice,
    parse_devlink,
    parse_mlxconfig,
    parse_mlxfwmanager,
    parse_mst_status,
    parse_tuned,
    plain_value,
)

MLXCONFIG = """
Device #1:
----------

Device type:    ConnectX5
Name:           MCX556A-ECA_Ax
Description:    ConnectX-5 VPI adapter card; EDR IB (100Gb/s) and 100GbE; dual-port QSFP28
Device:         0000:3b:00.0

Configurations:                                      Default              Current              Next Boot
*       NUM_OF_VFS                                  0                    0                    16
*       SRIOV_EN                                    False(0)             False(0)             True(1)
        LINK_TYPE_P1                                IB(1)                ETH(2)               ETH(2)
        PCI_WR_ORDERING                             per_mkey(0)          per_mkey(0)          per_mkey(0)
        HOST_CHAINING_DESCRIPTORS                   Array[0..7]
        UEFI_HII_EN                                 True(1)              True(1)              True(1)
The '*' shows parameters with next value different from default/current value.
"""

MLXFWMANAGER = """
Querying Mellanox devices firmware ...

Device #1:
----------

  Device Type:      ConnectX5
  Part Number:      MCX556A-ECA_Ax
  Description:      ConnectX-5 VPI adapter card; EDR IB (100Gb/s) and 100GbE
  PSID:             MT_0000000008
  PCI Device Name:  3b:00.0
  Base GUID:        506b4b0300c2f2b2
  Versions:         Current        Available
     FW             16.32.1010     N/A
     PXE            3.6.0502       N/A
     UEFI           14.25.0017     N/A

  Status:           No matching image found

Device #2:
----------

  Device Type:      ConnectX4LX
  PSID:             MT_2420110034
  PCI Device Name:  1a:00.0
  Versions:         Current        Available
     FW             14.31.1014     N/A
  Status:           No matching image found
"""

MST = """
PCI devices:
------------
DEVICE_TYPE             MST                           PCI       RDMA            NET                       NUMA
ConnectX4LX(rev:0)      mt4117_pciconf0               1a:00.0
ConnectX4LX(rev:0)      mt4117_pciconf0.1             1a:00.1
ConnectX5(rev:0)        mt4119_pciconf1               3b:00.0
ConnectX5(rev:0)        mt4119_pciconf1.1             0000:3b:00.1
"""

PARAMETERS = """
Name                 Type          Value    Description
-------------------  ------------  -------  -----------------------------------------
DRSS                 int                    Number of hardware queues for Default Queue
max_vfs              array of int  0,0,8,7  Number of PCI VFs to initialize, per port
pfctx                int           8        Priority based Flow Control policy on TX
"""

VIBS = """
Name         Version                        Vendor  Acceptance Level  Install Date
-----------  -----------------------------  ------  ----------------  ------------
nmlx5-core   4.21.71.101-1OEM.702.0.0.1     MEL     VMwareCertified   2022-03-01
mft          4.18.1.14-0                    MEL     PartnerSupported  2022-03-02
"""

PCI = """
0000:3b:00.0
   Address: 0000:3b:00.0
   VMkernel Name: vmnic2
   Vendor Name: Mellanox Technologies
   Device Name: MT27800 Family [ConnectX-5]
   Vendor ID: 0x15b3
   Device ID: 0x1017
   Module Name: nmlx5_core
   Unknown key without value
0000:3b:00.1
   Vendor ID: 0x15b3
   Module Name: None
"""


def test_mlxconfig_tells_what_runs_and_what_comes() -> None:
    found = parse_mlxconfig(MLXCONFIG)
    assert found == {
        "NUM_OF_VFS": ConfigValue("0", "16"),
        "SRIOV_EN": ConfigValue("0", "1"),
        "LINK_TYPE_P1": ConfigValue("2", "2"),
        "PCI_WR_ORDERING": ConfigValue("0", "0"),
        "UEFI_HII_EN": ConfigValue("1", "1"),
    }


def test_mlxconfig_without_e_tells_only_what_comes() -> None:
    text = "Configurations:                  Next Boot\n        SRIOV_EN      True(1)\n"
    assert parse_mlxconfig(text) == {"SRIOV_EN": ConfigValue("1", "1")}


def test_mlxconfig_marks_what_is_read_only_and_what_is_unknown() -> None:
    """Forms of mstflint's source: the mark RO, the value N/A, and columns of 33 places."""
    columns = "".join(name.ljust(34) for name in ("Default", "Current", "Next Boot"))
    rows = (
        ("* RO", "NUM_OF_VFS", ("8", "16", "16")),
        ("  RO", "LINK_TYPE_P1", ("ETH(2)", "ETH(2)", "ETH(2)")),
        ("*   ", "MAX_ACC_OUT_READ", ("N/A", "N/A", "44")),
        ("    ", "EXP_ROM_UEFI_x86_ENABLE", ("True(1)", "True(1)", "True(1)")),
    )
    text = "Configurations:".ljust(56) + columns + "\n"
    for mark, name, values in rows:
        text += f"{mark}    {name:48}" + "".join(value.ljust(34) for value in values) + "\n"
    text += "    Failed to query the default values of the following TLVs:\n"
    assert parse_mlxconfig(text) == {
        "NUM_OF_VFS": ConfigValue("16", "16", fixed=True),
        "LINK_TYPE_P1": ConfigValue("2", "2", fixed=True),
        "MAX_ACC_OUT_READ": ConfigValue("N/A", "44"),
        "EXP_ROM_UEFI_x86_ENABLE": ConfigValue("1", "1"),
    }


@pytest.mark.parametrize("text", ["", "-E- No such device\n", "Configurations:\n  A  1\n"])
def test_no_settings_are_none(text: str) -> None:
    assert parse_mlxconfig(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True(1)", "1"),
        ("IB(1)", "1"),
        ("16", "16"),
        ("0xff", "0xff"),
        ("odd(x)", "odd(x)"),
    ],
)
def test_values_are_numbers_where_they_have_one(text: str, value: str) -> None:
    assert plain_value(text) == value


def test_mlxfwmanager_tells_board_and_level() -> None:
    assert parse_mlxfwmanager(MLXFWMANAGER) == [
        Board("3b:00.0", "ConnectX5", "MT_0000000008", "16.32.1010"),
        Board("1a:00.0", "ConnectX4LX", "MT_2420110034", "14.31.1014"),
    ]
    assert parse_mlxfwmanager(MLXFWMANAGER.replace("PSID", "PSJD")) == []


def test_mlxfwmanager_names_the_image_in_the_flash_first_and_one_that_runs_where_that_is_another() -> (
    None
):
    waits = MLXFWMANAGER.replace(
        "     FW             16.32.1010     N/A\n",
        "     FW             16.32.1010     16.32.1010\n     FW (Running)   16.28.1002     N/A\n",
    )
    assert parse_mlxfwmanager(waits) == [
        Board("3b:00.0", "ConnectX5", "MT_0000000008", "16.28.1002", "16.32.1010"),
        Board("1a:00.0", "ConnectX4LX", "MT_2420110034", "14.31.1014"),
    ]


def test_mst_status_tells_names_by_function() -> None:
    assert parse_mst_status(MST) == [
        MstDevice("ConnectX4LX", "mt4117_pciconf0", "1a:00.0"),
        MstDevice("ConnectX4LX", "mt4117_pciconf0.1", "1a:00.1"),
        MstDevice("ConnectX5", "mt4119_pciconf1", "3b:00.0"),
        MstDevice("ConnectX5", "mt4119_pciconf1.1", "0000:3b:00.1"),
    ]


def test_options_that_are_set_are_those_with_a_value() -> None:
    assert parse_module_parameters(PARAMETERS) == "max_vfs=0,0,8,7 pfctx=8"
    assert not parse_module_parameters("Unknown module nmlx5_core\n")


def test_an_option_that_a_shell_would_read_otherwise_is_left_out() -> None:
    evil = PARAMETERS.replace("8        Priority", "$(x)     Priority")
    assert parse_module_parameters(evil) == "max_vfs=0,0,8,7"


def test_vibs_by_name() -> None:
    assert parse_vibs(VIBS) == {"nmlx5-core": "4.21.71.101-1OEM.702.0.0.1", "mft": "4.18.1.14-0"}


def test_pci_devices_by_address() -> None:
    found = parse_pci(PCI)
    assert list(found) == ["0000:3b:00.0", "0000:3b:00.1"]
    assert found["0000:3b:00.0"]["Module Name"] == "nmlx5_core"
    assert found["0000:3b:00.1"] == {"Vendor ID": "0x15b3", "Module Name": "None"}


def test_devlink_tells_board_and_level() -> None:
    entry = {
        "driver": "mlx5_core",
        "serial_number": "MT1912X00000",
        "versions": {
            "fixed": {"fw.psid": "MT_0000000008"},
            "running": {"fw.version": "16.32.1010", "fw": "16.32.1010"},
        },
    }
    text = json.dumps({"info": {"pci/0000:3b:00.0": entry, "netdevsim/netdevsim1": entry}})
    assert parse_devlink(text) == {
        "0000:3b:00.0": Board("0000:3b:00.0", "", "MT_0000000008", "16.32.1010")
    }
    for stored in ("16.32.1010", "16.35.2000"):
        text = text.replace('"running"', f'"stored": {{"fw.version": "{stored}"}}, "running"')
        [found] = parse_devlink(text).values()
        assert found.stored == ("" if stored == found.firmware else stored)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"info": []}',
        '{"info": {"pci/0000:3b:00.0": 7}}',
        "[" * 100000,
    ],
)
def test_what_is_no_devlink_is_nothing(text: str) -> None:
    assert parse_devlink(text) == {}


def test_odd_values_of_devlink_are_left_out() -> None:
    entry = {"driver": 7, "versions": {"fixed": {"fw.psid": "a; rm"}, "running": {"fw": [1]}}}
    text = json.dumps({"info": {"pci/0000:3b:00.0": entry}})
    assert parse_devlink(text) == {"0000:3b:00.0": Board("0000:3b:00.0", "", "", "")}


@pytest.mark.parametrize(
    ("text", "profiles"),
    [
        ("Current active profile: virtual-host\n", "virtual-host"),
        ("Current active profile: balanced my-own.2\n", "balanced my-own.2"),
        ("Current active profile: balanced late\nCurrent post-loaded profile: late\n", "balanced"),
        ("Current active profile: late\nCurrent post-loaded profile: late\n", ""),
        ("No current active profile.\n", ""),
        (
            "Cannot talk to TuneD daemon via DBus. Is TuneD daemon running?\nNo current active profile.\n",
            None,
        ),
        ("It seems that tuned daemon is not running, preset profile is not activated.\n", None),
        ("Preset profile: balanced\n", None),
        ("sh: tuned-adm: not found\n", None),
        ("Current active profile: $(reboot)\n", None),
        ("", None),
    ],
)
def test_tuned_tells_its_profiles_several_and_none(text: str, profiles: str | None) -> None:
    assert parse_tuned(text) == profiles


SAMPLES = (MLXCONFIG, MLXFWMANAGER, MST, PARAMETERS, VIBS, PCI)


@given(st.sampled_from(SAMPLES), st.data())
def test_no_damage_makes_a_parser_fall_over(sample: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(sample)))
    junk = data.draw(st.text(max_size=20))
    text = sample[:place] + junk + sample[place + data.draw(st.integers(0, 40)) :]
    parse_mlxfwmanager(text)
    parse_mst_status(text)
    parse_table(text)
    parse_vibs(text)
    parse_pci(text)
    parse_devlink(text)
    for value in (parse_mlxconfig(text) or {}).values():
        assert len(value.next) <= 256
    assert "\n" not in parse_module_parameters(text)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ("RegistryEntries", "Attributes", "Dependencies", "Dependency", "MapFrom", "Value")
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JUNK)
def test_no_registry_makes_its_parser_fall_over(document: object) -> None:
    allowed, locks = parse_registry(document, {"A": "B"})
    assert set(allowed) | set(locks) <= {"A"}


def test_a_registry_with_numbers_for_names_is_read_by_the_shown_ones() -> None:
    """Supermicro's registry sets the number, and its BIOS the shown name."""
    values = [{"ValueName": "0", "ValueDisplayName": "Disabled"}, {"ValueName": "1"}]
    entry = {"AttributeName": "SR", "Type": "Enumeration", "Value": values}
    document = {"RegistryEntries": {"Attributes": [entry]}}
    assert parse_registry(document, {"SR": "Disabled"})[0] == {"SR": ("Disabled",)}
    assert parse_registry(document, {"SR": "1"})[0] == {"SR": ("0", "1")}
    assert parse_registry(document, {"XY": "1"})[0] == {}
