# SPDX-License-Identifier: Apache-2.0
"""What the kernel answers about VFs, as recorded, and what it is asked.

`igb-7-vfs.hex` is what Linux 6.12 answered in a virtual machine with QEMU's igb. No InfiniBand
adapter was at hand: its answers are made here after the kernel's if_link.h.
"""

import struct
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from nearmetal.host.vf.kernel import link_of, request_of
from nearmetal.host.vf.model import ETHERNET, INFINIBAND, VfSettings

RECORDED = Path(__file__).parent / "golden/sriov"


def decoded(data: bytes) -> list[Any]:
    """What pyroute2 makes of the bytes of an answer."""
    return [message for message in MarshalRtnl().parse(data) if "index" in message]


def attribute(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return struct.pack("<HH", size, kind) + payload + bytes(-size % 4)


def new_link(kind: int, flags: int, attributes: bytes) -> bytes:
    body = struct.pack("<BxHiII", 0, kind, 5, flags, 0) + attributes
    return struct.pack("<IHHII", 16 + len(body), 16, 0, 1, 0) + body


def ib_vf(number: int, node: int, port: int) -> bytes:
    """IFLA_VF_INFO of an InfiniBand VF, in the kernel's order (rtnl_fill_vfinfo)."""
    info = b"".join(
        [
            attribute(1, struct.pack("<I32s", number, bytes(20))),
            attribute(2, struct.pack("<III", number, 0, 0)),
            attribute(6, struct.pack("<III", number, 0, 0)),
            attribute(4, struct.pack("<Ii", number, -1)),
            attribute(5, struct.pack("<II", number, 0)),
            attribute(9, struct.pack("<Ii", number, -1)),
            attribute(10, struct.pack("<IIQ", number, 0, node)),
            attribute(11, struct.pack("<IIQ", number, 0, port)),
            attribute(8, b""),
        ]
    )
    return attribute(1, info)


def test_a_recorded_answer_of_igb() -> None:
    data = bytes.fromhex("".join((RECORDED / "igb-7-vfs.hex").read_text().split()))
    links = {link.name: link for link in map(link_of, decoded(data))}
    igb = links["enp1s0"]
    assert (igb.type, igb.up, igb.carrier, igb.enslaved) == (ETHERNET, True, True, False)
    assert [number for number, _ in igb.vfs] == list(range(7))
    assert igb.vfs[0][1] == VfSettings(
        "9e:f9:d5:ec:35:31",
        vlan=100,
        qos=0,
        trust=True,
        spoof_check=False,
        rate=100,
        min_rate=0,
        link_state=0,
    )
    assert igb.vfs[6][1] == VfSettings(
        "00:00:00:00:00:00",
        vlan=0,
        qos=0,
        trust=False,
        spoof_check=True,
        rate=0,
        min_rate=0,
        link_state=0,
    )


AF_SPEC = attribute(26, attribute(2, bytes(136)))
"""What the kernel always puts behind the VFs; pyroute2 0.9.7 reads GUIDs too long, into it."""


def test_guids_of_infiniband() -> None:
    vf = ib_vf(0, 0x0211223344556677, 0x0211223344556678)
    attributes = attribute(3, b"ib0\0") + attribute(22, vf) + AF_SPEC
    (message,) = decoded(new_link(32, 0x10001, attributes))
    link = link_of(message)
    assert (link.name, link.type, link.carrier) == ("ib0", INFINIBAND, True)
    ((number, settings),) = link.vfs
    assert number == 0
    assert settings.node_guid == "02:11:22:33:44:55:66:77"
    assert settings.port_guid == "02:11:22:33:44:55:66:78"
    assert (settings.trust, settings.spoof_check) == (None, None)


@pytest.mark.parametrize(
    ("setting", "value", "asked"),
    [
        ("mac", "02:00:00:00:00:01", {"vf": 3, "mac": "02:00:00:00:00:01"}),
        ("vlan", (100, 0), {"vf": 3, "vlan": {"vlan": 100, "qos": 0}}),
        ("trust", True, {"vf": 3, "trust": 1}),
        ("spoof_check", False, {"vf": 3, "spoofchk": 0}),
        ("rate", (0, 50), {"vf": 3, "rate": {"min_tx_rate": 0, "max_tx_rate": 50}}),
        ("link_state", 0, {"vf": 3, "link_state": 0}),
        ("node_guid", "g", {"vf": 3, "ib_node_guid": "g"}),
        ("port_guid", "g", {"vf": 3, "ib_port_guid": "g"}),
    ],
)
def test_what_the_kernel_is_asked(setting: str, value: Any, asked: dict[str, Any]) -> None:
    assert request_of(3, setting, value) == asked


def test_senseless_answers_are_no_answers() -> None:
    info = {
        "attrs": [
            ("IFLA_VF_MAC", {"vf": 1, "mac": "zz"}),
            ("IFLA_VF_VLAN", {"vf": 1, "vlan": 70000, "qos": 2}),
            ("IFLA_VF_TRUST", {"vf": 1, "trust": 4294967295}),
            ("IFLA_VF_LINK_STATE", {"vf": 1, "link_state": 9}),
            ("IFLA_VF_LATER", "00"),
        ]
    }
    message = {
        "index": 2,
        "ifi_type": 9,
        "flags": 0,
        "attrs": [("IFLA_VFINFO_LIST", {"attrs": [("IFLA_VF_INFO", info)]})],
    }
    link = link_of(message)
    assert (link.type, link.vfs) == ("", ((1, VfSettings(qos=2)),))
