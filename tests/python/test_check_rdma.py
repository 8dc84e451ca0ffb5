# SPDX-License-Identifier: Apache-2.0
"""Pairs over RDMA devices for `check performance`, with programs that print as perftest does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.naming import Culprit, name_parts
from nearmetal.check.performance.procedure import perform
from nearmetal.check.performance.run import BY_RDMA, Order, PerformanceRun
from nearmetal.check.rdma import RdmaMeasurement
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from tests.python.check_performance_clusters import named, names
from tests.python.test_fabric_pairs import NAMES, VF, Machines

WRITES = """\
#!/bin/sh
for word; do last=$word; done
echo "$(basename "$0") $*" >>"$PLACE/asked"
[ -e "$PLACE/slow" ] && { setsid sleep 300 & sleep 300; }
case $last in 10.*) ;; *) exit 0 ;; esac
[ -e "$PLACE/mute" ] && { echo "Couldn't connect" >&2; exit 1; }
[ -e "$PLACE/hostile" ] && { printf ' #bytes #iterations t_min[usec]\\033[2J\\n'; exit 0; }
case $0 in
*bw) echo "                    RDMA_Write BW Test"
echo " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
echo " 65536      1000           11900.00           11800.00             0.188800" ;;
*) echo "                    RDMA_Write Latency Test"
echo " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
echo " 2       1000          1.10           93.20        1.18               2.19" ;;
esac
echo "---------------------------------------------------------------------------------------"
"""
"""Prints as perftest 4.5 of Debian 12 does. One message of a latency was late."""

TOOLS = VF.replace("ib_send_lat\n", "ib_send_lat\nib_write_bw\nib_write_lat\n")


class RdmaMachines(Machines):
    """Nodes with an InfiniBand device each, and programs for RDMA writes."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        for name in ("ib_write_bw", "ib_write_lat"):
            (place / name).write_text(WRITES)
            (place / name).chmod(0o755)
        for name in NAMES:
            self.answers(name, f"echo '{TOOLS.replace('0050:56ff', '0050:56f' + name[1])}'")


def measurement(backend: Machines, limit_s: float = 20.0) -> RdmaMeasurement:
    stand_in: Any = backend
    places = {name: f"10.0.0.{name[1]}" for name in NAMES}
    return RdmaMeasurement(
        stand_in, LocalRunner(), NAMES, lambda: places, Silent(), limit_s=limit_s
    )


def run_of(rdma: RdmaMeasurement, quantities: Sequence[str] = BY_RDMA) -> PerformanceRun:
    return perform(NAMES, quantities, rdma.ask, NodeClasses())


def test_pairs_write_in_both_directions_with_the_device_and_the_port(tmp_path: Path) -> None:
    backend = RdmaMachines(tmp_path)
    rdma = measurement(backend)
    ways = {("n1", "n2"), ("n2", "n1")}
    latency = rdma.ask(Order("rdma_latency", (("n1", "n2"),))).values
    assert latency == dict.fromkeys(ways, 1.18)  # the median: one message was late
    bandwidth = rdma.ask(Order("rdma_bandwidth", (("n1", "n2"),), 2)).values
    assert bandwidth == dict.fromkeys(ways, pytest.approx(11800 * 2**20 / 1e6))
    assert rdma.failures == {}
    assert set(rdma.setup) == set(BY_RDMA)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked.count("ib_write_lat -F -d mlx5_0 -i 1 -s 2 -n 1000 10.0.0.2") == 1
    assert asked.count("ib_write_lat -F -d mlx5_0 -i 1 -s 2 -n 1000 10.0.0.1") == 1
    assert asked.count("ib_write_bw -F -d mlx5_0 -i 1 -s 65536 -n 2000") == 2
    assert backend.rest() == []


def test_a_pair_that_fails_keeps_the_words_of_both_sides_and_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mute").touch()
    backend = RdmaMachines(tmp_path)
    rdma = measurement(backend)
    order = Order("rdma_latency", (("n1", "n2"),))
    for _ in range(3):
        assert rdma.ask(order).values == {}
    why = rdma.failures["n1", "n2"]
    assert why.startswith("latency of RDMA writes: ib_write_lat failed: client 1, Couldn't connect")
    assert len((tmp_path / "asked").read_text().splitlines()) == 2 * 2 * 2
    assert backend.rest() == []


def test_a_pair_that_hangs_ends_and_is_swept(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    backend = RdmaMachines(tmp_path)
    rdma = measurement(backend, limit_s=0.5)
    assert rdma.ask(Order("rdma_bandwidth", (("n1", "n2"), ("n3", "n4")))).values == {}
    assert "ib_write_bw did not end in 0.5 s" in rdma.failures["n3", "n4"]
    assert backend.rest() == []


def test_words_that_are_no_table_are_no_value(tmp_path: Path) -> None:
    (tmp_path / "hostile").touch()
    rdma = measurement(RdmaMachines(tmp_path))
    assert rdma.ask(Order("rdma_latency", (("n1", "n2"),))).values == {}
    assert "\033" not in rdma.failures["n1", "n2"]


def test_a_node_without_a_device_is_named_and_the_others_are_measured(tmp_path: Path) -> None:
    backend = RdmaMachines(tmp_path)
    backend.answers("n4", f"echo '{VF}'")
    rdma = measurement(backend)
    run = run_of(rdma, ("rdma_bandwidth",))
    met = {item for turn in run.screening for item in turn.values}
    assert {name for item in met for name in item} == {"n1", "n2", "n3"}
    assert rdma.failures == {
        ("n4",): "RDMA: no active RDMA device, or no ib_write_lat and ib_write_bw"
    }
    assert rdma.lacking == {}


def test_two_fabrics_are_no_fault_of_their_nodes(tmp_path: Path) -> None:
    backend = RdmaMachines(tmp_path)
    for name in ("n3", "n4"):
        other = TOOLS.replace("0050:56ff", "0050:56f" + name[1]).replace("InfiniBand", "Ethernet")
        backend.answers(name, f"echo '{other}'")
    rdma = measurement(backend)
    run = run_of(rdma, ("rdma_bandwidth",))
    met = {frozenset(item) for turn in run.screening for item in turn.values}
    assert met == {frozenset(("n1", "n2")), frozenset(("n3", "n4"))}
    assert rdma.failures == {}
    assert rdma.setup["rdma_bandwidth"].endswith("; pairs without two active ports of one kind: 4")
    assert rdma.lacking == {}
    for name in ("n2", "n4"):
        backend.answers(name, "echo")
    rdma = measurement(backend)
    assert run_of(rdma, ("rdma_bandwidth",)).screening[0].values == {}
    assert rdma.lacking["rdma_bandwidth"].startswith("no pair has two active ports of one kind")


def test_without_devices_the_quantity_is_missing_and_no_node_is_to_blame(tmp_path: Path) -> None:
    rdma = measurement(Machines(tmp_path))
    run = run_of(rdma, ("rdma_latency",))
    assert rdma.failures == {}
    (why,) = rdma.lacking.values()
    assert why.startswith("fewer than two nodes can be measured: no active RDMA device, or no")
    assert judge_run(run, NodeClasses()).findings == ()


def test_another_switch_explains_all_latencies_and_no_bandwidth() -> None:
    latencies = ("latency", "mpi_latency", "rdma_latency")
    cluster = names(8)
    found = named(cluster, lambda _, i: 1.3 if "n1" in i else 1.0, quantities=latencies)
    assert found.parts == ()
    assert set(found.not_compared()) == {f"performance.{name} of n1" for name in latencies}
    slow = (*latencies, "rdma_bandwidth")
    found = named(cluster, lambda _, i: 1.3 if "n1" in i else 1.0, quantities=slow)
    assert {(p.quantity, p.culprit, p.nodes) for p in found.parts} == {
        (name, Culprit.LINK, ("n1",)) for name in slow
    }


def test_the_pairs_of_a_run_are_judged(tmp_path: Path) -> None:
    run = run_of(measurement(RdmaMachines(tmp_path)))
    assert len(run.screening) == 2 * 3 * 3
    assert name_parts(run, NodeClasses()).parts == ()
    assert judge_run(run, NodeClasses()).checks == (
        "performance.answer",
        "performance.rdma_latency",
        "performance.rdma_bandwidth",
    )
