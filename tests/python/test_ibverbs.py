# SPDX-License-Identifier: Apache-2.0
"""What nodes show of their RDMA devices, how it is judged, and how it is measured."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.host.fabric import (
    End,
    FabricFinding,
    FabricSite,
    Level,
    Sends,
    ends_of,
    judge_nodes,
    judge_pair,
    line_rate,
)
from nearmetal.host.parse.ibverbs import SCRIPT, RdmaNode, parse_node
from nearmetal.job.fabric import pairs_of

DATA = Path(__file__).parents[1] / "data" / "hosts" / "ibverbs"
VF = (DATA / "connectx5-vf.txt").read_text(encoding="utf-8")

ROCE = """\
== limits
8192
== tools
ibv_devinfo
ip
== sysfs
rxe_eth0 device
rxe_eth0 software
rxe_eth0 gid 1 0 fe80:0000:0000:0000:5054:00ff:fe00:0001 RoCE v2
rxe_eth0 netdev 1 eth0
rxe_eth0 gid 1 1 0000:0000:0000:0000:0000:ffff:0a53:0001 RoCE v2
rxe_eth0 netdev 1 eth0
== ip
[{"ifname":"eth0","flags":["UP","LOWER_UP"],"mtu":1500,"addr_info":[]}]
== ibv_devinfo
hca_id:\trxe_eth0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t0.0.0
\tnode_guid:\t\t\t5054:00ff:fe00:0001
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tlink_layer:\t\tEthernet
\t\t\tactive_width:\t\t1X (1)
\t\t\tactive_speed:\t\t2.5 Gbps (1)
\t\t\tphys_state:\t\tLINK_UP (5)
== code
0
"""
IPV4 = "0000:0000:0000:0000:0000:ffff:0a53:0001"


def findings(
    nodes: Mapping[str, str], device: str = "", site: FabricSite | None = None
) -> list[Any]:
    return judge_nodes({name: parse_node(text) for name, text in nodes.items()}, site, device)


def bad(found: Sequence[FabricFinding]) -> list[tuple[str, str]]:
    return [(f.level.value, f.what) for f in found if f.level is not Level.OK]


def end(text: str, name: str = "n1", port: int = 0) -> End:
    device = parse_node(text).devices[0]
    return End(name, device, device.ports[port])


def test_a_virtual_function_of_the_paper_is_read_whole() -> None:
    node = parse_node(VF)
    (device,) = node.devices
    (port,) = device.ports
    assert (device.name, device.is_virtual, device.is_software) == ("mlx5_0", True, False)
    assert (device.firmware, device.board) == ("16.32.1010", "MT_0000000008")
    assert (port.state, port.physical, port.link_layer) == ("PORT_ACTIVE", "LINK_UP", "InfiniBand")
    assert (port.max_mtu, port.active_mtu, port.lid, port.manager_lid) == (4096, 4096, 205, 1)
    assert (port.width, port.gbit, port.partitions) == (4, 100, (0xFFFF,))
    assert [(i.name, i.mtu, i.is_up, i.addresses) for i in port.interfaces] == [
        ("ib0", 4092, True, ("192.168.5.11",))
    ]
    assert (node.locked, node.words, node.unusable) == (float("inf"), "", ())


@pytest.mark.parametrize(
    ("layer", "width", "speed", "gbit"),
    [
        ("InfiniBand", "4X (2)", "2.5 Gbps (1)", 8),
        ("InfiniBand", "4X (2)", "10.0 Gbps (4)", 32),
        ("InfiniBand", "4X (2)", "10.0 Gbps (8)", 40),
        ("InfiniBand", "4X (2)", "14.0 Gbps (16)", 54.5454545),
        ("InfiniBand", "4X (2)", "50.0 Gbps (64)", 200),
        ("InfiniBand", "1X (1)", "25.0 Gbps (32)", 25),
        ("Ethernet", "4X (2)", "10.0 Gbps (4)", 40),
        ("Ethernet", "1X (1)", "10.0 Gbps (4)", 10),
        ("Ethernet", "1X (1)", "25.0 Gbps (32)", 25),
        ("Ethernet", "1X (1)", "invalid speed (0)", 0),
    ],
)
def test_data_rates(layer: str, width: str, speed: str, gbit: float) -> None:
    text = VF.replace("InfiniBand\n", f"{layer}\n").replace("4X (2)", width)
    port = parse_node(text.replace("25.0 Gbps (32)", speed)).devices[0].ports[0]
    assert port.gbit == pytest.approx(gbit)


def test_a_sound_node_has_no_fault() -> None:
    assert bad(findings({"n1": VF})) == []


@pytest.mark.parametrize(
    ("old", "new", "level", "what", "remedy"),
    [
        ("sm_lid:\t\t\t1", "sm_lid:\t\t\t65535", "fault", "PORT_INIT, LINK_UP", "start one"),
        ("", "", "fault", "PORT_INIT, LINK_UP", "`virt_enabled 2`"),
        ("PORT_INIT (2)", "PORT_DOWN (1)", "fault", "PORT_DOWN, LINK_UP", "policy Follow or Up"),
        ("LINK_UP (5)", "POLLING (2)", "fault", "PORT_INIT, POLLING", "cable of the PF"),
        (
            "LINK_UP (5)",
            "PORT_CONFIGURATION TRAINNING (4)",
            "fault",
            "PORT_INIT, PORT_CONFIGURATION TRAINNING",
            "cable",
        ),
        (
            "InfiniBand\n\t\t\tactive_w",
            "Ethernet\n\t\t\tactive_w",
            "fault",
            "PORT_INIT, LINK_UP",
            "`ip link set PF vf N state auto`",
        ),
    ],
)
def test_a_port_that_is_not_active(old: str, new: str, level: str, what: str, remedy: str) -> None:
    text = VF.replace("PORT_ACTIVE (4)", "PORT_INIT (2)")
    assert old in text
    found = [f for f in findings({"n1": text.replace(old, new, 1)}) if f.level is not Level.OK]
    assert [(f.level.value, f.what) for f in found] == [(level, what)]
    assert remedy in found[0].remedy


def test_the_remedy_is_that_of_the_platform() -> None:
    text = VF.replace("PORT_ACTIVE (4)", "PORT_DOWN (1)").replace("LINK_UP (5)", "DISABLED (3)")
    (found,) = [
        f for f in findings({"n1": text}, site=FabricSite("vsphere")) if f.level is Level.FAULT
    ]
    assert "ESXi" in found.remedy
    assert "ip link" not in found.remedy


@pytest.mark.parametrize(
    ("old", "new", "level", "what", "remedy"),
    [
        (
            "port_lid:\t\t205",
            "port_lid:\t\t65535",
            "fault",
            "subnet manager: LID 1, port LID 65535",
            "virt_enabled 2",
        ),
        (
            "sm_lid:\t\t\t1",
            "sm_lid:\t\t\t0",
            "fault",
            "subnet manager: LID 0, port LID 205",
            "virt_enabled 2",
        ),
        ("4X (2)", "1X (1)", "warning", "1 of 4 lanes", "cable"),
        ("active_mtu:\t\t4096 (5)", "active_mtu:\t\t2048 (4)", "warning", "MTU 2048", "switch"),
        ('"mtu":4092', '"mtu":2044', "warning", "IPoIB: ib0 has 192.168.5.11, MTU 2044", "mtu=5"),
        ("1 0xffff", "1 0x7fff", "warning", "partitions 0x7fff, none full", "full member"),
        ("0050:56ff:feb3:9ec1", "0000:0000:0000:0000", "fault", "the node GUID", "nearmetal up"),
        ('"scope":"global"', '"scope":"link"', "warning", "IPoIB: no interface", "ib_ipoib"),
        ("unlimited", "8192", "warning", "at most 8192 KiB", "LimitMEMLOCK=infinity"),
        ("unlimited", "?", "warning", "the limit is not known", "LimitMEMLOCK=infinity"),
        ("ib_send_bw\n", "", "fault", "ib_send_bw: missing", "install perftest in"),
        ("\nip\n", "\n", "fault", "ip: missing", "install iproute2 (RHEL: iproute) in"),
        ("mlx5_0 device\n", "mlx5_0 device\nmlx5_1 device\n", "fault", "the kernel has", "rights"),
    ],
)
def test_each_fault_has_its_remedy(old: str, new: str, level: str, what: str, remedy: str) -> None:
    assert old in VF
    found = [f for f in findings({"n1": VF.replace(old, new, 1)}) if f.level is not Level.OK]
    assert [f.level.value for f in found] == [level]
    assert found[0].what.startswith(what)
    assert remedy in found[0].remedy


def test_each_step_of_the_paper_has_its_figure() -> None:
    ofed = VF.replace("== ip\n", "== driver\nMLNX_OFED_LINUX-5.4-3.0.3.0:\n== ip\n")
    assert [(f.what, f.published) for f in findings({"n1": ofed}) if f.published] == [
        (
            "MLNX_OFED_LINUX-5.4-3.0.3.0",
            "MLNX_OFED_LINUX-5.4-3.0.3.0, ConnectX-5 firmware 16.32.1010",
        ),
        (
            "PORT_ACTIVE, InfiniBand, MTU 4096, 4X, 100 Gbit/s",
            "PORT_ACTIVE, InfiniBand, MTU 4096",
        ),
        ("subnet manager: LID 1, port LID 205", "port LID 205"),
        ("IPoIB: ib0 has 192.168.5.11, MTU 4092", "ib0 with MTU 4092"),
    ]
    assert not [f for f in findings({"n1": ROCE}) if f.published]


def test_verbs_that_fail_are_not_a_missing_device() -> None:
    head, _, tail = VF.partition("== ibv_devinfo\n")
    text = (
        head + "== ibv_devinfo\nlibibverbs: Warning: no driver\nNo IB devices found\n== code\n1\n"
    )
    assert tail
    assert bad(findings({"n1": text})) == [
        ("fault", "the kernel has it, verbs do not show it: No IB devices found")
    ]
    assert bad(findings({"n1": text.replace("mlx5_0 ", "x ").replace("x device", "")})) == [
        ("fault", "no RDMA device")
    ]


def test_a_port_that_nobody_uses_is_no_fault() -> None:
    spare = "\t\tport:\t2\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n\t\t\tphys_state:\t\tPOLLING (2)\n"
    text = VF.replace("\n== code", spare + "\n== code")
    found = findings({"n1": text})
    assert bad(found) == []
    assert [f.what for f in found if "port 2" in f.about] == ["not used: PORT_DOWN, POLLING"]
    assert bad(findings({"n1": text}, "mlx5_0")) == [("fault", "PORT_DOWN, POLLING")]


def test_soft_roce_with_small_packets() -> None:
    whats = [what for _, what in bad(findings({"n1": ROCE}))]
    assert whats[0] == "ib_send_bw, ib_send_lat: missing"
    assert whats[2:] == ["RoCE packets carry 1024 bytes of an interface MTU of 1500"]


def test_nodes_are_compared() -> None:
    older = VF.replace("16.32.1010", "16.31.2006").replace("4X (2)", "1X (1)")
    whats = [f.what for f in findings({"n1": VF, "n2": older}) if f.node == "all"]
    assert whats == [
        "0050:56ff:feb3:9ec1 is that of n1 mlx5_0, n2 mlx5_0",
        "active InfiniBand ports of 25, 100 Gbit/s",
        "MT_0000000008: versions 16.31.2006, 16.32.1010",
    ]
    assert not [
        f for f in findings({"n1": VF, "n2": VF}, site=FabricSite("local")) if f.node == "all"
    ]
    other = older.replace("MT_0000000008", "MT_0000000223").replace("feb3", "feb4")
    assert [f.about for f in findings({"n1": VF, "n2": other}) if f.node == "all"] == ["line rate"]


def test_one_device_is_chosen() -> None:
    both = VF.replace("\n== code", "\n" + ROCE.partition("== ibv_devinfo\n")[2])
    assert {f.about for f in findings({"n1": both}, "mlx5_0")} == {
        "driver",
        "locked memory",
        "mlx5_0 (VF) port 1",
    }
    assert bad(findings({"n1": both}, "mlx5_9")) == [("fault", "no RDMA device mlx5_9")]


def test_the_ends_of_a_pair_are_chosen_together() -> None:
    both = VF.replace("\n== code", "\n" + ROCE.partition("== ibv_devinfo\n")[2])
    both = both.replace("mlx5_0 device", "mlx5_0 device\nrxe_eth0 software")
    nodes = {"n1": parse_node(both), "n2": parse_node(ROCE), "n3": parse_node(VF)}
    software = ends_of(("n1", "n2"), nodes)
    assert software is not None
    assert [e.device.name for e in software] == ["rxe_eth0", "rxe_eth0"]
    hardware = ends_of(("n1", "n3"), nodes)
    assert hardware is not None
    assert [e.device.name for e in hardware] == ["mlx5_0", "mlx5_0"]
    assert ends_of(("n2", "n3"), nodes) is None


@pytest.mark.parametrize(
    ("partner", "gids"),
    [
        ("", (1, 1)),
        ("0000:0000:0000:0000:0000:ffff:c0a8:0001", (0, 0)),
        ("2001:0db8:0000:0000:0000:0000:0000:0001", (0, 0)),
    ],
)
def test_the_gids_of_a_pair_are_in_one_network(partner: str, gids: tuple[int, int]) -> None:
    nodes = {"n1": parse_node(ROCE), "n2": parse_node(ROCE.replace(IPV4, partner or IPV4))}
    ends = ends_of(("n1", "n2"), nodes)
    assert ends is not None
    assert tuple(e.gid for e in ends) == gids


@pytest.mark.parametrize(
    ("gbit", "level", "share"),
    [(94.87, Level.OK, "0.949"), (89.96, Level.FAULT, "0.900"), (60.0, Level.FAULT, "0.600")],
)
def test_bandwidth_is_judged_by_the_line(gbit: float, level: Level, share: str) -> None:
    ends = (end(VF), end(VF, "n2"))
    sends = Sends("n1", "n2", "mlx5_0", 65536, gbit, 1.19)
    bandwidth, latency = judge_pair(sends, ends)
    assert bandwidth.level is level
    assert f"{share} of 100" in bandwidth.what
    assert bool(bandwidth.remedy) == (level is Level.FAULT)
    assert (bandwidth.published, latency.published) == ("94.87 Gbit/s", "1.19 µs")
    assert latency.what == "1.19 µs, no verdict"


def test_the_slower_end_and_the_limit_of_a_vf_count() -> None:
    slow = end(VF.replace("25.0 Gbps (32)", "10.0 Gbps (8)"), "n2")
    assert line_rate((end(VF), slow), FabricSite()) == 40
    assert line_rate((end(VF), end(VF, "n2")), FabricSite("libvirt", {"n1": 1, "n2": 1000})) == 1
    assert line_rate((end(VF), end(ROCE, "n2")), FabricSite()) == 0


def test_software_has_no_line_rate_and_a_failure_its_words() -> None:
    ends = (end(ROCE), end(ROCE, "n2"))
    found = judge_pair(Sends("n1", "n2", "rxe", 65536, 0.08, 700.0), ends)
    assert [f.level for f in found] == [Level.OK] * 2
    assert "no line rate is known" in found[0].what
    (failed,) = judge_pair(Sends("n1", "n2", "rxe", 1, why="it hung"), ends)
    assert (failed.level, failed.what) == (Level.FAULT, "it hung")
    half = judge_pair(Sends("n1", "n2", "rxe", 1, 0.08, why="it hung"), ends)
    assert [f.about for f in half] == ["bandwidth", "sends"]


@pytest.mark.parametrize(
    ("names", "which", "pairs"),
    [
        ("a", "next", []),
        ("ab", "next", [("a", "b"), ("b", "a")]),
        ("abc", "next", [("a", "b"), ("b", "c"), ("c", "a")]),
        ("abc", "all", [("a", "b"), ("a", "c"), ("b", "c")]),
        ("abc", "none", []),
    ],
)
def test_pairs(names: str, which: str, pairs: list[tuple[str, str]]) -> None:
    assert pairs_of(names, which) == pairs


_HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["4294967296 (5)", "0x (1)", "\x1b[31mX (4)", "9" * 300, "inf (1)", "-1 (2)"]),
)


@given(st.lists(st.tuples(st.sampled_from(VF.splitlines()), _HOSTILE), max_size=12))
def test_no_text_is_an_error(pieces: list[tuple[str, str]]) -> None:
    text = VF
    for line, value in pieces:
        head, colon, _ = line.rpartition(":")
        text = text.replace(line, f"{head}{colon}\t{value}" if colon else value, 1)
    node = parse_node(text)
    assert isinstance(node, RdmaNode)
    assert len(judge_nodes({"n1": node}, None, "")) < 64
    for device in node.devices:
        assert "\x1b" not in device.guid + "".join(p.state for p in device.ports)


def test_hostile_sizes_are_bounded() -> None:
    many = "".join(f"hca_id:\tmlx5_{n}\n" + "\t\tport:\t1\n" * 99 for n in range(500))
    devices = parse_node("== ibv_devinfo\n" + many).devices
    assert len(devices) == 64
    assert {len(device.ports) for device in devices} == {8}
    assert parse_node("== ip\n" + "[" * 100000).devices == ()


def _fill(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_script_reads_sysfs_in_every_shell(shell: str, tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    _fill(
        tmp_path,
        {
            f"{port}/pkeys/0": "0xffff",
            f"{port}/pkeys/1": "0x0000",
            f"{port}/gid_attrs/types/3": "RoCE v2",
            f"{port}/gid_attrs/ndevs/3": "eth1",
            f"{port}/gids/3": IPV4,
            "sys/class/infiniband/mlx5_0/device/net/eth1/dev_port": "0",
            "sys/class/infiniband/rxe0/parent": "eth0",
        },
    )
    done = subprocess.run(
        [shell, "-c", SCRIPT], env={"ROOT": str(tmp_path)}, capture_output=True, check=True
    )
    shown = done.stdout.decode().partition("== sysfs\n")[2].partition("== driver\n")[0]
    assert shown.splitlines() == [
        "mlx5_0 device",
        "mlx5_0 pkey 1 0xffff",
        f"mlx5_0 gid 1 3 {IPV4} RoCE v2",
        "mlx5_0 netdev 1 eth1",
        "mlx5_0 netdev 1 eth1",
        "rxe0 device",
        "rxe0 software",
    ]
    assert b"== code\n" in done.stdout
