# SPDX-License-Identifier: Apache-2.0
"""What nodes show of their RDMA devices, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.cluster.backend import NodeStatus
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.progress import Silent
from nearmetal.host.fabric import FabricFinding, Level, Sends, judge_nodes, judge_pair
from nearmetal.host.parse.ibverbs import RdmaNode, RdmaPort, parse_node
from nearmetal.job.fabric import FabricTest, pairs_of, verify

DATA = Path(__file__).parents[1] / "data" / "hosts" / "ibverbs"
VF = (DATA / "connectx5-vf.txt").read_text(encoding="utf-8")

ROCE = """\
== limits
8192
== tools
ibv_devinfo
== sysfs
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
"""


def findings(nodes: Mapping[str, str], device: str = "") -> list[FabricFinding]:
    return judge_nodes({name: parse_node(text) for name, text in nodes.items()}, device)


def bad(found: list[FabricFinding]) -> list[tuple[str, str]]:
    return [(f.level.value, f.what) for f in found if f.level is not Level.OK]


def test_a_virtual_function_of_the_paper_is_read_whole() -> None:
    node = parse_node(VF)
    (device,) = node.devices
    (port,) = device.ports
    assert (device.name, device.is_virtual, device.is_software) == ("mlx5_0", True, False)
    assert device.firmware == "16.32.1010"
    assert (port.state, port.physical, port.link_layer) == ("PORT_ACTIVE", "LINK_UP", "InfiniBand")
    assert (port.max_mtu, port.active_mtu, port.lid, port.manager_lid) == (4096, 4096, 205, 1)
    assert port.gbit == 100
    assert [(i.name, i.mtu, i.is_up, i.addresses) for i in port.interfaces] == [
        ("ib0", 4092, True, ("192.168.5.11",))
    ]
    assert node.locked is None


def test_a_sound_node_has_no_fault() -> None:
    assert bad(findings({"n1": VF})) == []


@pytest.mark.parametrize(
    ("old", "new", "verdict", "what", "remedy"),
    [
        ("PORT_ACTIVE (4)", "PORT_INIT (2)", "fault", "PORT_INIT, LINK_UP", "virt_enabled 2"),
        ("PORT_ACTIVE (4)", "PORT_ARMED (3)", "fault", "PORT_ARMED, LINK_UP", "wait a moment"),
        (
            "PORT_ACTIVE (4)\n\t\t\tmax",
            "PORT_DOWN (1)\n\t\t\tphys_state:\t\tPOLLING (2)\n\t\t\tmax",
            "fault",
            "PORT_DOWN, POLLING",
            "ip link set PF vf N state enable",
        ),
        (
            "sm_lid:\t\t\t1",
            "sm_lid:\t\t\t0",
            "fault",
            "port LID 205, LID of the subnet manager 0",
            "",
        ),
        (
            "active_mtu:\t\t4096 (5)",
            "active_mtu:\t\t2048 (4)",
            "warning",
            "MTU 2048, the port can 4096",
            "partition",
        ),
        ("0050:56ff:feb3:9ec1", "0000:0000:0000:0000", "fault", "the node GUID is zero", "GUID"),
        (
            '"scope":"global"',
            '"scope":"link"',
            "warning",
            "IPoIB: no interface is up with an address (ib0)",
            "ib_ipoib",
        ),
        (
            "unlimited",
            "8192",
            "warning",
            "8192 KiB at most: MPI registers more",
            "LimitMEMLOCK=infinity",
        ),
        ("ib_send_bw\n", "", "fault", "ib_send_bw: missing", "install perftest"),
        ("hca_id:", "hca:", "fault", "no RDMA device", "lspci"),
    ],
)
def test_each_fault_has_its_remedy(
    old: str, new: str, verdict: str, what: str, remedy: str
) -> None:
    assert old in VF
    found = [f for f in findings({"n1": VF.replace(old, new, 1)}) if f.level is not Level.OK]
    assert [(f.level.value, f.what) for f in found] == [(verdict, what)]
    assert remedy in found[0].remedy


def test_soft_roce_with_small_packets() -> None:
    assert bad(findings({"n1": ROCE})) == [
        ("fault", "ib_send_bw, ib_send_lat: missing"),
        ("warning", "8192 KiB at most: MPI registers more"),
        ("warning", "RoCE packets carry 1024 bytes of an interface MTU of 1500"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "index"),
    [
        ("", "", 1),
        ("0000:0000:0000:0000:0000:ffff:0a53:0001", "fe80:0000:0000:0000:0000:0000:0000:0001", 0),
        ("0000:0000:0000:0000:0000:ffff:0a53:0001", "2001:0db8:0000:0000:0000:0000:0000:0001", 1),
        ("RoCE v2", "IB/RoCE v1", None),
    ],
)
def test_the_gid_of_an_address_is_used(old: str, new: str, index: int | None) -> None:
    assert parse_node(ROCE.replace(old, new)).devices[0].ports[0].roce_gid == index
    assert parse_node(VF).devices[0].ports[0].roce_gid is None


def test_nodes_are_compared() -> None:
    older = VF.replace("16.32.1010", "16.31.2006")
    whats = [f.what for f in findings({"n1": VF, "n2": older, "n3": ROCE}) if f.node == "all"]
    assert whats == [
        "0050:56ff:feb3:9ec1 is that of n1 mlx5_0, n2 mlx5_0",
        "active ports of Ethernet and InfiniBand",
        "versions 16.31.2006, 16.32.1010",
    ]


def test_one_device_is_chosen() -> None:
    both = VF + ROCE.partition("== ibv_devinfo\n")[2]
    assert {f.about for f in findings({"n1": both}, "mlx5_0")} == {
        "locked memory",
        "mlx5_0 (VF) port 1",
    }
    assert bad(findings({"n1": both}, "mlx5_9")) == [("fault", "no RDMA device mlx5_9")]


@pytest.mark.parametrize(
    ("gbit", "level", "share"), [(95.48, Level.OK, "0.95"), (60.0, Level.FAULT, "0.60")]
)
def test_bandwidth_is_judged_by_the_line(gbit: float, level: Level, share: str) -> None:
    port = parse_node(VF).devices[0].ports[0]
    measured = Sends("n1", "n2", 65536, gbit, 1.19)
    bandwidth, latency = judge_pair(measured, port, software=False)
    assert bandwidth.level is level
    assert f"{share} of the line's 100" in bandwidth.what
    assert bool(bandwidth.remedy) == (level is Level.FAULT)
    assert latency.what.startswith("1.19 µs (VMW-IB")


def test_software_has_no_line_rate_and_a_failure_its_words() -> None:
    measured = Sends("n1", "n2", 65536, 0.08, 700.0)
    found = judge_pair(measured, RdmaPort(1, gbit=2.0), software=True)
    assert [f.level for f in found] == [Level.OK] * 2
    assert "software has no line rate" in found[0].what
    (failed,) = judge_pair(Sends("n1", "n2", 1, None, None, "it hung"), RdmaPort(1), software=False)
    assert (failed.level, failed.what) == (Level.FAULT, "it hung")


@pytest.mark.parametrize(
    ("names", "which", "pairs"),
    [
        ("a", "next", []),
        ("ab", "next", [("a", "b")]),
        ("abc", "next", [("a", "b"), ("b", "c"), ("c", "a")]),
        ("abc", "all", [("a", "b"), ("a", "c"), ("b", "c")]),
        ("abc", "none", []),
    ],
)
def test_pairs(names: str, which: str, pairs: list[tuple[str, str]]) -> None:
    assert pairs_of(names, which) == pairs


@given(st.text(max_size=2000))
def test_no_text_is_an_error(text: str) -> None:
    for hostile in (text, "== ibv_devinfo\nhca_id:\tx\n\t\tport:\t1\n" + text, "== ip\n" + text):
        assert isinstance(parse_node(hostile), RdmaNode)


def test_hostile_sizes_are_bounded() -> None:
    many = "".join(f"hca_id:\tmlx5_{n}\n" + "\t\tport:\t1\n" * 99 for n in range(500))
    devices = parse_node("== ibv_devinfo\n" + many).devices
    assert len(devices) == 64
    assert {len(device.ports) for device in devices} == {8}
    assert parse_node("== ip\n" + "[" * 100000).devices == ()


PERFTEST = """\
#!/bin/sh
for word; do last=$word; done
case $last in
10.*) ;;
*) echo waiting; sleep 1; exit 0 ;;
esac
case $0 in
*bw) [ ! -e "$BROKEN" ] || { echo "Couldn't allocate MR" >&2; exit 1; }
echo "                    Send BW Test"
echo " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
echo " 65536      1000           11900.00           11800.00             0.188800" ;;
*) echo "                    Send Latency Test"
echo " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
echo " 2       1000          1.10           3.20         1.18               1.19" ;;
esac
"""


class Machines:
    """A backend whose nodes are this machine, with a PATH of our own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("ib_send_bw", "ib_send_lat"):
            (place / name).write_text(PERFTEST)
            (place / name).chmod(0o755)

    def status(self) -> list[NodeStatus]:
        return [
            NodeStatus(n, "h", n, "10.0.0.1", 1, (0,), "", 1, 1.0, healthy=True, health="")
            for n in ("n1", "n2")
        ]

    def on_node(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> Command:
        if argv[0] == "/bin/sh":
            shown = self.place / node
            shown.write_text(VF.replace("0050:56ff", "0050:56f" + node[1]))
            return Command(("/bin/cat", str(shown)), env={})
        program = str(self.place / argv[0])
        return Command((program, *argv[1:]), env={**(env or {}), "BROKEN": str(self.place / "no")})

    def end_marked(self, marker: str) -> int:
        assert marker.startswith("NEARMETAL_")
        return 0


def test_a_cluster_is_read_and_measured(tmp_path: Path) -> None:
    backend: Any = Machines(tmp_path)
    _, found = verify(backend, LocalRunner(), ("n1", "n2"), FabricTest(), Silent())
    assert bad(found) == []
    rate = next(f.what for f in found if f.about == "bandwidth")
    assert rate.startswith("98.99 Gbit/s with 65536 bytes, 0.99 of the line's 100")
    (tmp_path / "no").touch()
    _, found = verify(backend, LocalRunner(), ("n1", "n2"), FabricTest(), Silent())
    assert bad(found) == [("fault", "ib_send_bw ended with 1: Couldn't allocate MR")]


def test_a_node_that_does_not_answer_is_named(tmp_path: Path) -> None:
    backend: Any = Machines(tmp_path)
    backend.on_node = lambda *_, **__: Command(("/bin/sh", "-c", "echo no route >&2"), env={})
    with pytest.raises(LaunchError, match="node n1 does not answer: no route"):
        verify(backend, LocalRunner(), ("n1", "n2"), FabricTest(), Silent())
