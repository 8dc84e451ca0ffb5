# SPDX-License-Identifier: Apache-2.0
"""The line-rate verdict: encodings and headers against published figures, and what limits a pair."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from nearmetal.check.model import Gravity
from nearmetal.check.performance.classes import classes
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.line import capacities, capacity_of
from nearmetal.check.performance.line_verdict import JUDGED, line_findings, measured_lines
from nearmetal.check.performance.run import Item, MeasuredTurn, PerformanceRun
from nearmetal.check.snapshot import Snapshot
from nearmetal.evidence.line_rate import LANES, line_rate, pcie_rate
from nearmetal.evidence.published import find
from tests.python.check_nodes import PORT, node
from tests.python.pci_tree import config, device, link, put
from tests.python.test_check_agent import agent, facts

__all__ = ["agent"]

ADDRESS = ("fabric>mlx5_0>address", "0000:17:00.0")
SLOT = "pci>0000:17:00.0>"
EIGHT = (f"{SLOT}current_link_width", "8")


@pytest.mark.parametrize(
    ("generation", "four_lanes"),
    [
        # As infiniband.jp publishes them (2022). EDR and later have their names from these rates.
        ("SDR", 8),
        ("DDR", 16),
        ("QDR", 32),
        ("FDR10", 40),
        ("FDR", 54.55),
        ("EDR", 100),
        ("HDR", 200),
        ("NDR", 400),
        ("XDR", 800),
    ],
)
def test_the_encoding_of_infiniband(generation: str, four_lanes: float) -> None:
    assert 4 * LANES[generation] == pytest.approx(four_lanes, abs=0.01)


def test_two_generations_of_one_rate_differ_in_their_encoding() -> None:
    assert line_rate("InfiniBand", 40.0, 0).data == pytest.approx(32)
    assert line_rate("InfiniBand", 40.0, 0, lanes=(4, "QDR")).data == pytest.approx(32)
    assert line_rate("InfiniBand", 40.0, 0, lanes=(4, "FDR10")).data == pytest.approx(40)
    assert line_rate("InfiniBand", 14.0, 0, lanes=(1, "FDR")).data == pytest.approx(
        13.636, abs=0.01
    )
    assert line_rate("InfiniBand", 100.0, 0, lanes=(2, "HDR")).data == pytest.approx(100)
    assert line_rate("InfiniBand", 100.0, 0, lanes=(2, "NEW")).data == 100


@pytest.mark.parametrize(
    ("transfers", "lanes", "gbit"),
    [(2.5, 8, 16), (5, 8, 32), (8, 8, 63.015), (16, 16, 252.06), (64, 16, 944)],
)
def test_the_encoding_of_pcie(transfers: float, lanes: int, gbit: float) -> None:
    assert pcie_rate(transfers, lanes) == pytest.approx(gbit, abs=0.01)
    assert pcie_rate(transfers, 0) is None
    assert pcie_rate(7, lanes) is None


@pytest.mark.parametrize(
    ("payload", "share"),
    # Six words of 4 bytes around the payload: Intel AN 855 has 92 % for 256 bytes with five words.
    [(128, 128 / 152), (256, 256 / 280), (512, 512 / 536), (0, 1), (100, 1), (-128, 1)],
)
def test_the_headers_of_pcie(payload: int, share: float) -> None:
    assert pcie_rate(8.0, 8, payload) == pytest.approx(63.0154 * share, abs=0.01)


def test_flits_have_one_frame_for_all_packets() -> None:
    assert pcie_rate(64.0, 16, 256) == pytest.approx(944 * 256 / 272)


def test_the_bandwidths_of_the_study_fit_its_line() -> None:
    """ConnectX-5 of 100 Gbit/s in a slot of 8 GT/s with 16 lanes: the port limits, not the slot."""
    capacity = capacity_of(node(1, ADDRESS, (f"{SLOT}max_payload", 256)))
    assert capacity is not None
    assert capacity.limit == "InfiniBand of 100 Gbit/s with an MTU of 4096"
    shares = [
        number.value / capacity.gbit
        for number in find("vmw-ib", test="ib_send_bw", metric="bandwidth")
        if str(number.scale) in ("1048576 B", "2097152 B", "4194304 B")
    ]
    assert len(shares) == 3
    assert all(0.94 < share < 0.97 for share in shares)
    slot = pcie_rate(8.0, 16, 256)
    assert slot is not None
    assert slot > capacity.gbit


def test_the_slot_or_the_port_limits() -> None:
    (port,) = capacities(node(1, ADDRESS))
    assert port.limit == "InfiniBand of 100 Gbit/s with an MTU of 4096"
    assert port.gbit == pytest.approx(100 * 4096 / 4122)
    (slot,) = capacities(node(1, ADDRESS, EIGHT))
    assert slot.limit == "PCIe slot of 8.0 GT/s with 8 lanes"
    assert slot.gbit == pytest.approx(63.015, abs=0.01)
    (packed,) = capacities(node(1, ADDRESS, EIGHT, (f"{SLOT}max_payload", 128)))
    assert packed.limit == "PCIe slot of 8.0 GT/s with 8 lanes and a MaxPayload of 128"
    assert packed.gbit == pytest.approx(63.0154 * 128 / 152, abs=0.01)
    (odd,) = capacities(node(1, ADDRESS, EIGHT, (f"{SLOT}max_payload", "-5")))
    assert odd == slot
    (guest,) = capacities(node(1, ADDRESS, EIGHT, ("virtual>guest", True)))
    assert guest.limit == port.limit
    assert not list(capacities(node(1, ("fabric>mlx5_0>software", True))))
    assert not list(capacities(node(1, ("fabric>mlx5_0>ports>1", PORT | {"state": "DOWN"}))))


@pytest.mark.parametrize(("mtu", "payload"), [(4092, 4096), (2044, 2048), (65520, 4096)])
def test_the_mtu_of_infiniband(mtu: int, payload: int) -> None:
    """65520 is the connected mode of IPoIB, which does not show the MTU of the link."""
    (port,) = capacities(node(1, ("net>ib0>mtu", mtu)))
    assert port.gbit == pytest.approx(100 * payload / (payload + 26))


@pytest.mark.parametrize(("mtu", "payload"), [(1500, 1024), (4200, 4096), (9000, 4096)])
def test_the_mtu_of_roce(mtu: int, payload: int) -> None:
    ethernet = PORT | {"link_layer": "Ethernet", "rate": "25 Gb/sec (1X EDR)"}
    (port,) = capacities(node(1, ("fabric>mlx5_0>ports>1", ethernet), ("net>ib0>mtu", mtu)))
    assert port.gbit == pytest.approx(25 * payload / (payload + 82))


@pytest.mark.parametrize("rate", ["0 Gb/sec", "0.0 Gb/sec (4X SDR)", "100 Gb/sec (0X QDR)"])
def test_a_port_without_a_rate_has_no_line(rate: str) -> None:
    found = nodes(1, 2, change={2: (("fabric>mlx5_0>ports>1>rate", rate),)})
    run, known = run_of("mpi_bandwidth", found, {}), classes(found, {})
    assert capacity_of(found[1]) is None
    assert measured_lines(run, found, known) == []


def nodes(*numbers: int, change: Mapping[int, Any] | None = None) -> list[Snapshot]:
    """Return nodes of hosts of their own; `change` has a fact of some."""
    return [
        node(n, ADDRESS, ("system>boot_id", f"k{n}"), *(change or {}).get(n, ())) for n in numbers
    ]


def run_of(quantity: str, found: list[Snapshot], speed: Mapping[str, float]) -> PerformanceRun:
    """Return a run in which a sender has the speed of its name, else 12,000 MB/s."""
    names = tuple(n.name for n in found)
    values: dict[Item, float] = {
        item: speed.get(item[0], 12_000.0) for item in permutations(names, 2)
    }
    return PerformanceRun(names, screening=(MeasuredTurn(quantity, values),))


def test_a_line_that_is_not_full_is_a_finding() -> None:
    found = nodes(1, 2, 3)
    run = run_of("mpi_bandwidth", found, {"compute-02": 6000.0})
    known = classes(found, {})
    lines = measured_lines(run, found, known)
    judged = judge_run(run, known, lines)
    ((check, weak, seen),) = [f for f in judged.findings if f[0].name == "performance.line_rate"]
    assert weak == ("compute-02",)
    assert check.name in judged.checks
    assert check.name not in judged.not_run
    assert seen.value == "40 to 50 % of 99.4 Gbit/s"
    assert "does not fill the weakest part of the line: InfiniBand of 100 Gbit/s" in seen.reason


def test_the_weaker_end_counts_and_the_slot_is_named() -> None:
    found = nodes(1, 2, change={2: (EIGHT, (f"{SLOT}max_payload", 256))})
    lines = measured_lines(
        run_of("mpi_bandwidth", found, dict.fromkeys(("compute-01", "compute-02"), 5000.0)),
        found,
        classes(found, {}),
    )
    assert {line.found.capacity.node for line in lines} == {"compute-02"}
    assert [line.found.share for line in lines] == pytest.approx([40 / 57.614] * 2, abs=0.001)
    ((_, names, seen),) = line_findings(lines)
    assert names == ("compute-01", "compute-02")
    assert "PCIe slot of 8.0 GT/s with 8 lanes and a MaxPayload of 256" in seen.reason


def test_more_than_the_line_carries_is_a_note() -> None:
    found = nodes(1, 2)
    run = run_of("mpi_bandwidth", found, {"compute-01": 13_000.0})
    ((_, names, seen),) = line_findings(measured_lines(run, found, classes(found, {})))
    assert names == ("compute-01",)
    assert seen.grade is Gravity.NOTE
    assert seen.value == "more than 99.4 Gbit/s"


def test_what_has_no_line_is_not_judged() -> None:
    slow = {"compute-01": 100.0, "compute-02": 100.0}
    one_host = [node(n, ADDRESS) for n in (1, 2)]
    unknown = [*nodes(1), *nodes(2, change={2: (("fabric", {}),)})]
    for found, quantity in (
        (nodes(1, 2), "bandwidth"),
        (one_host, JUDGED[0]),
        (unknown, JUDGED[0]),
    ):
        run, known = run_of(quantity, found, slow), classes(found, {})
        assert measured_lines(run, found, known) == []
        judged = judge_run(run, known)
        assert "performance.line_rate" not in judged.checks
        assert ("performance.line_rate" in judged.not_run) == (quantity in JUDGED)


def with_payload(code: int, *chain: tuple[int, int], first: int = 0x40, size: int = 4096) -> bytes:
    """Return a configuration with a list of capabilities, each a number and its successor's place.

    They stand at 0x40, 0x50, ...; `code`: MaxPayload in the control word of PCIe.
    """
    space = bytearray(config(size=size, ids="15b3:1017"))
    space[0x34] = first
    for index, (number, following) in enumerate(chain):
        place = 0x40 + 0x10 * index
        struct.pack_into("<BB", space, place, number, following)
        if number == 0x10:
            struct.pack_into("<H", space, place + 8, code << 5 | 0x1F)
    return bytes(space)


@pytest.mark.parametrize(
    ("content", "payload"),
    [
        (with_payload(0, (0x10, 0)), 128),
        (with_payload(1, (0x01, 0x50), (0x11, 0x60), (0x10, 0)), 256),
        (with_payload(5, (0x10, 0)), 4096),
        (with_payload(6, (0x10, 0)), 0),
        (with_payload(1, (0x01, 0)), 0),
        (with_payload(1, (0x01, 0x40)), 0),
        (with_payload(1, (0x01, 0x50), (0x05, 0x40)), 0),
        (with_payload(1, (0x01, 0x10)), 0),
        (with_payload(1, (0x10, 0), first=0), 0),
        (with_payload(1, (0x01, 0xFF)), 0),
        (with_payload(1, (0x10, 0))[:0x48], 0),
        (with_payload(1)[:0x40] + b"\xff" * 192, 0),
        (b"", 0),
    ],
)
def test_the_agent_reads_only_headers_and_the_control_word(
    agent: Any, content: bytes, payload: int
) -> None:
    asked: list[tuple[int, int]] = []

    def read(place: int, size: int) -> bytes:
        asked.append((place, size))
        return content[place : place + size]

    assert agent.largest_payload(read) == payload
    assert len(asked) == len(set(asked)) <= 51
    assert asked[0] == (0x34, 1)
    assert all(place >= 0x40 and size == 2 for place, size in asked[1:])


def adapter(tree: Path, content: bytes, **files: str) -> str:
    """Write an RDMA adapter; return its address."""
    address, root = "0000:17:00.0", "pci0000:16"
    nic: dict[str, str | bytes] = {"class": "0x020700\n", "vendor": "0x15b3\n", **files}
    if content:
        nic["config"] = content
    folder = device(tree, [root], address, nic, driver="mlx5_core")
    put(tree, {f"{folder}/infiniband/mlx5_0/node_guid": "0002:c903:0000:0001\n"})
    link(tree, "sys/class/infiniband/mlx5_0", f"{folder}/infiniband/mlx5_0")
    link(tree, f"{folder}/infiniband/mlx5_0/device", folder)
    return address


@pytest.mark.parametrize("size", [256, 4096])
def test_the_payload_of_an_adapter_is_a_fact(agent: Any, tmp_path: Path, size: int) -> None:
    address = adapter(tmp_path, with_payload(2, (0x10, 0), size=size))
    assert facts(agent, "devices")["pci"][address]["max_payload"] == 512


def test_a_user_does_not_see_the_payload_and_the_agent_says_so(agent: Any, tmp_path: Path) -> None:
    adapter(tmp_path, with_payload(2, (0x10, 0))[:64])
    with pytest.raises(agent.Unseen, match="MaxPayload of RDMA adapters: only root"):
        facts(agent, "devices")


def test_a_sleeping_adapter_is_not_read(agent: Any, tmp_path: Path) -> None:
    address = adapter(tmp_path, with_payload(2, (0x10, 0)), power_state="D3cold\n")
    assert "max_payload" not in facts(agent, "devices")["pci"][address]
