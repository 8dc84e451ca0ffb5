# SPDX-License-Identifier: Apache-2.0
"""Noisy neighbours: what is measured beside what, the norm of a loss, and both sides named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.check.measure import measure_cluster
from nearmetal.check.model import Gravity
from nearmetal.check.performance.classes import ClassPlace, NodeClasses, classes
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.naming import Culprit, Named, name_parts
from nearmetal.check.performance.neighbours import (
    LONGER,
    NoiseMeasurement,
    meetings,
    neighbourhoods,
    why_not,
)
from nearmetal.check.performance.procedure import perform
from nearmetal.check.performance.run import (
    NOISE,
    QUANTITIES,
    MeasuredTurn,
    Order,
    PerformanceRun,
    parse_run,
    run_text,
)
from nearmetal.check.performance.screen import NO_NEIGHBOURS
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from tests.python.check_performance_clusters import names
from tests.python.test_check_measure import NAMES, Here, spec_of

Loss = Callable[[str, int, Sequence[str]], float]
"""The factor on a node's time, by the number of its neighbours that work, and all that work."""


def cluster_of(hosts: int, each: int) -> tuple[tuple[str, ...], NodeClasses]:
    """Return nodes, some on each host, whose adapter is that of the host."""
    cluster = names(hosts * each)
    places = {
        name: ClassPlace(("guest",), name, f"h{index // each}", f"network of h{index // each}")
        for index, name in enumerate(cluster)
    }
    return cluster, NodeClasses(places)


def run_of(
    cluster: Sequence[str], known: NodeClasses, loss: Loss, quantities: Sequence[str]
) -> PerformanceRun:
    """Measure a cluster without noise. Beside n neighbours, all take n times longer."""

    def ask(order: Order) -> MeasuredTurn:
        pairs = QUANTITIES[order.quantity].of_pairs
        busy = [name for item in order.items for name in item]
        values = {}
        for item in order.items:
            slow = 1.0
            for name in item:
                near = [n for n in busy if known.host(n) == known.host(name)]
                slow *= len(near) * loss(name, len(near) - 1, busy)
            for way in (item, item[::-1]) if pairs else (item,):
                better = QUANTITIES[order.quantity].lower_is_better
                values[way] = 100 * slow if better else 100 / slow
        return MeasuredTurn(order.quantity, values)

    return perform(cluster, quantities, ask, known)


def named(cluster: Sequence[str], known: NodeClasses, loss: Loss, *quantities: str) -> Named:
    return name_parts(run_of(cluster, known, loss, quantities), known)


@pytest.mark.parametrize("quantity", NOISE)
def test_to_lose_as_much_as_others_is_normal(quantity: str) -> None:
    found = named(*cluster_of(4, 3), lambda _name, _near, _busy: 1.0, quantity)
    assert found.parts == ()
    assert found.not_compared() == {}
    (model,) = found.screening.models.values()
    assert set(model.centres) == {(("guest",), 3)}


@pytest.mark.parametrize("quantity", ["neighbours", "neighbours_processor"])
def test_a_node_that_loses_more_is_named_with_its_host(quantity: str) -> None:
    cluster, known = cluster_of(3, 3)

    def loss(name: str, near: int, _busy: Sequence[str]) -> float:
        return 1.5 if name == "n4" and near else 1.0

    found = named(cluster, known, loss, quantity)
    (part,) = found.parts
    assert (part.culprit, part.nodes) == (Culprit.NOISE, ("n4",))
    assert part.beside == ("n3", "n4", "n5")
    assert part.value == pytest.approx(4.5)
    assert part.expected == pytest.approx(3.0)
    judged = judge_run(run_of(cluster, known, loss, [quantity]), known)
    ((check, nodes, spotted),) = judged.findings
    assert (check.name, nodes) == (f"performance.{quantity}", ("n4",))
    assert spotted.value == "4.5 times, 50 % slower"
    assert "to as many: host, beside n3, n5; slow in" in spotted.reason
    assert spotted.grade is None
    assert check.grade is Gravity.WARNING


def test_a_node_that_is_slow_alone_too_has_no_noisy_neighbour() -> None:
    found = named(
        *cluster_of(3, 3), lambda name, _near, _busy: 2.0 if name == "n4" else 1.0, "neighbours"
    )
    assert found.parts == ()


@pytest.mark.parametrize("quantity", ["neighbours_latency", "neighbours_bandwidth"])
@pytest.mark.parametrize("hosts", [4, 5])
def test_an_adapter_whose_nodes_disturb_each_other_is_named(quantity: str, hosts: int) -> None:
    def loss(name: str, near: int, _busy: Sequence[str]) -> float:
        return 2.0 if name in ("n2", "n3") and near else 1.0

    (part,) = named(*cluster_of(hosts, 2), loss, quantity).parts
    assert (part.culprit, part.nodes, part.noise) == (
        Culprit.NOISE,
        ("n2", "n3"),
        "network of h1",
    )


def test_a_noisy_neighbour_makes_no_slow_node_and_its_traffic_is_judged_apart() -> None:
    cluster, known = cluster_of(4, 2)

    def loss(name: str, near: int, _busy: Sequence[str]) -> float:
        return 2.0 if name in ("n2", "n3") and near else 1.0

    found = named(cluster, known, loss, "neighbours", "neighbours_bandwidth")
    assert {part.culprit for part in found.parts} == {Culprit.NOISE}
    assert {part.quantity for part in found.parts} == {"neighbours", "neighbours_bandwidth"}


def test_nodes_with_more_neighbours_are_another_class() -> None:
    """Three hosts of three nodes and one of two: the loss of a node is that of its number."""
    cluster, known = cluster_of(4, 3)
    cluster = cluster[:-1]
    found = named(cluster, known, lambda _name, _near, _busy: 1.0, "neighbours")
    assert found.parts == ()
    assert found.not_compared() == {
        "performance.neighbours of n10 and 1 more": "fewer than 3 nodes of its hardware and Python"
    }


def test_a_node_alone_on_its_host_is_not_compared_and_that_is_said() -> None:
    cluster, known = cluster_of(4, 2)
    found = named(cluster[:-1], known, lambda _name, _near, _busy: 1.0, "neighbours")
    assert found.not_compared() == {"performance.neighbours of n6": NO_NEIGHBOURS}


def test_each_is_alone_on_its_host_once_and_all_are_together_once() -> None:
    asked: list[Order] = []

    def ask(order: Order) -> MeasuredTurn:
        asked.append(order)
        return MeasuredTurn(order.quantity, dict.fromkeys(order.items, 1.0))

    cluster, known = cluster_of(2, 3)
    noise = NoiseMeasurement(ask, cluster, known)
    order = Order("neighbours", tuple((name,) for name in cluster))
    assert noise(order).values == dict.fromkeys(order.items, 1.0)
    first, *turns = asked
    assert {name for (name,) in first.items} == {*cluster}
    assert [[name for (name,) in turn.items] for turn in turns] == [
        ["n0", "n3"],
        ["n1", "n4"],
        ["n2", "n5"],
    ]
    assert {one.quantity for one in asked} == {"memory"}
    assert {one.times for one in asked} == {LONGER}
    asked.clear()
    noise(order)
    assert len(asked[-1].items) == len(cluster)  # by turns: what drifts does not count
    assert noise(Order("memory", order.items)).quantity == "memory"


@given(st.lists(st.integers(2, 4), min_size=4, max_size=7), st.integers(0, 30))
def test_adapters_meet_and_no_node_is_in_two_pairs(sizes: list[int], turn: int) -> None:
    places = [[f"a{place}n{index}" for index in range(size)] for place, size in enumerate(sizes)]
    met = meetings(places, turn)
    assert len(met) == len(places) // 2
    busy = [name for pairs in met for pair in pairs for name in pair]
    assert len(busy) == len(set(busy))
    for pairs in met:
        assert len({(a[:2], b[:2]) for a, b in pairs}) == 1
        assert all(a[:2] != b[:2] for a, b in pairs)


def test_only_adapters_of_which_all_nodes_send_have_values() -> None:
    cluster, known = cluster_of(4, 3)
    cluster = cluster[:-1]
    asked: list[Order] = []

    def ask(order: Order) -> MeasuredTurn:
        asked.append(order)
        ways = [way for item in order.items for way in (item, item[::-1])]
        return MeasuredTurn(order.quantity, dict.fromkeys(ways, 1.0))

    noise = NoiseMeasurement(ask, cluster, known)
    order = Order("neighbours_bandwidth", tuple((name,) for name in cluster))
    found = {name for (name,) in noise(order).values}
    # The adapter with two nodes has met one with three, of which a node had no partner.
    assert len(found) == 8
    assert {"n9", "n10"} <= found
    for one in asked[1:]:
        adapters = [known.adapter(name) for item in one.items for name in item]
        assert len(adapters) == len(set(adapters))


def test_what_is_not_known_is_said() -> None:
    cluster, known = cluster_of(3, 2)
    assert why_not("neighbours", cluster, known) == ""
    assert why_not("neighbours_bandwidth", cluster, known) == (
        "adapters with several nodes: 3, and it takes 4 to name one|nearmetal status SPEC"
    )
    apart = NodeClasses({name: ClassPlace((), name, name) for name in cluster})
    assert why_not("neighbours", cluster, apart).startswith("each node is alone on its host")
    guests = NodeClasses({name: ClassPlace((), name, "") for name in cluster})
    assert why_not("neighbours", cluster, guests).startswith("the hosts of the nodes are not known")
    assert why_not("neighbours_latency", cluster, guests).startswith("the adapters of the nodes")


def test_nodes_without_neighbours_lack_nothing() -> None:
    """A script that asks for noise on each cluster does not fail where there can be none."""
    cluster = names(4)
    for known, grade in (
        (NodeClasses({name: ClassPlace((), name, name) for name in cluster}), Gravity.NOTE),
        (NodeClasses({name: ClassPlace((), name, "") for name in cluster}), None),
    ):
        for quantity in ("neighbours", "neighbours_bandwidth"):
            lacking = {quantity: why_not(quantity, cluster, known)}
            run = PerformanceRun(cluster, lacking=lacking)
            kept = parse_run(run_text(run).encode(), "f")
            ((check, _, found),) = judge_run(kept, known).findings
            assert (check.name, found.grade) == ("performance.missing", grade)


def container(name: str, function: str, card: str, boot: str = "0123456789") -> Snapshot:
    facts = {
        "system": {"boot_id": boot},
        "net": {"eth0": {"address": function}},
        "pci": {function: {"physical": card}},
    }
    return Snapshot(name, facts)


def test_virtual_functions_of_one_adapter_are_neighbours() -> None:
    """As containers see them; the functions of another kernel may have the same addresses."""
    near = [container(f"n{i}", f"0000:3b:00.{i + 1}", "0000:3b:00.0") for i in range(2)]
    other = container("n2", "0000:5e:00.1", "0000:5e:00.0")
    far = container("n3", "0000:3b:00.1", "0000:3b:00.0", "abcdefghij")
    known = classes([*near, other, far], {}).in_run({"n0": "h1", "n2": "h1"}, {})
    assert neighbourhoods(("n0", "n1", "n2", "n3"), known, traffic=True) == [["n0", "n1"]]
    assert neighbourhoods(("n0", "n1", "n2", "n3"), known) == [["n0", "n1", "n2"]]
    assert known.adapter("n0") == "0000:3b:00.0 of kernel 01234567"


def test_agents_measure_neighbours_and_what_cannot_be_is_missing() -> None:
    one = NodeClasses({name: ClassPlace((), "k", "k") for name in NAMES})
    run = measure_cluster(
        Here(),  # type: ignore[arg-type]
        spec_of(NAMES),
        LocalRunner(),
        ("neighbours", "neighbours_processor", "neighbours_bandwidth"),
        one,
        progress=Silent(),
    )
    for quantity in ("neighbours", "neighbours_processor"):
        turns = [turn.values for turn in run.screening if turn.quantity == quantity]
        assert [set(turn) for turn in turns] == [{(name,) for name in NAMES}] * 3
        assert all(0.01 < value < 100 for turn in turns for value in turn.values())
    assert run.setup["neighbours"].endswith("beside all nodes of the host or adapter, over alone")
    assert run.lacking.keys() == {"neighbours_bandwidth"}
    judged = judge_run(run, one.in_run(run.hosts, run.software))
    absent = [(check.name, found.about) for check, _, found in judged.findings]
    assert ("performance.missing", "neighbours_bandwidth") in absent


def test_a_run_of_neighbours_is_kept() -> None:
    cluster, known = cluster_of(3, 2)
    run = run_of(cluster, known, lambda _name, _near, _busy: 1.0, ["neighbours"])
    assert parse_run(run_text(run).encode(), "f") == run
