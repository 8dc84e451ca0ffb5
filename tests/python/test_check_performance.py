# SPDX-License-Identifier: Apache-2.0
"""Performance checks: what is suspected, how often it is measured again, and what is named."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import exp, inf, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.check_performance import FAULTS, SWITCHES, matrix, noises, outcome
from nearmetal.check.performance.classes import BETWEEN_HOSTS, ClassPlace, NodeClasses
from nearmetal.check.performance.hops import groups
from nearmetal.check.performance.naming import UNSETTLED, Culprit, SlowPart, name_parts
from nearmetal.check.performance.robust import (
    FALSE_ALARM,
    FLOOR,
    chance,
    retests_needed,
    spread,
    suspicious_z,
)
from nearmetal.check.performance.run import Item
from nearmetal.check.performance.screen import Side, screen
from nearmetal.check.performance.tournament import completed, packed, tournament
from tests.python.check_performance_clusters import ALL, measure, named, names, places


@given(st.integers(2, 40))
def test_each_pair_meets_once(count: int) -> None:
    rounds = tournament(names(count))
    assert len(rounds) == count - 1 + count % 2
    met = Counter(frozenset(pair) for round_ in rounds for pair in round_)
    assert len(met) == count * (count - 1) // 2
    assert set(met.values()) == {1}
    for round_ in rounds:
        busy = [name for pair in round_ for name in pair]
        assert len(busy) == len(set(busy)) == count - count % 2


def test_fixed_pairs_meet_and_the_others_turn() -> None:
    cluster = names(7)
    groups_ = packed([("n0", "n1"), ("n1", "n2"), ("n3", "n4")], 2)
    assert groups_ == [[("n0", "n1"), ("n3", "n4")], [("n1", "n2")]]
    assert packed([("n0", "n1"), ("n3", "n4")], 1) == [[("n0", "n1")], [("n3", "n4")]]
    rounds = [completed(cluster, groups_[1], turn) for turn in range(5)]
    assert all(("n1", "n2") in round_ for round_ in rounds)
    assert len({frozenset(pair) for round_ in rounds for pair in round_}) == 1 + 5 * 4 // 2
    assert completed(("a", "b"), [("a", "b")], 3) == (("a", "b"),)


def test_z_of_ties_and_of_small_classes() -> None:
    assert spread([1.0, 1.0, 1.0, 1.5]).z(1.5) == inf
    assert spread([1.0, 1.0, 1.0, 1.5]).z(1.0) == 0
    assert spread([0.0, 0.0, 0.2, 0.2]).middle == 0.0
    assert spread([0.0, 0.1, 0.2]).z(0.2) == pytest.approx(0.1 / 0.14826)
    assert suspicious_z(1) == suspicious_z(20) < suspicious_z(10_000)


@given(st.integers(1, 5000))
def test_all_suspicions_together_keep_the_bound(suspicions: int) -> None:
    count, slow = retests_needed(suspicions)
    assert suspicions * chance(count, slow) <= FALSE_ALARM
    assert 0 < slow <= count


def test_the_chance_is_that_of_fair_coins() -> None:
    assert chance(4, 4) == 1 / 16
    assert chance(4, 3) == 5 / 16
    assert chance(3, 0) == 1


def test_switches_of_a_real_cluster_are_found() -> None:
    real = {(str(a), str(b)): log(v) for (a, b), v in matrix()["latency"].items()}
    found = groups([str(n) for n in range(16)], real)
    assert found is not None
    letters = {(found[str(n)], SWITCHES[n]) for n in range(16)}
    assert len(letters) == 2


def test_a_slow_node_is_no_group_and_noise_is_none() -> None:
    cluster = names(8)
    pairs = [(a, b) for a in cluster for b in cluster if a != b]
    assert groups(cluster, {p: 0.3 * ("n0" in p) for p in pairs}) == dict.fromkeys(cluster, 0)
    assert groups(cluster, {p: 0.3 * ({*p} == {"n0", "n1"}) for p in pairs}) == dict.fromkeys(
        cluster, 0
    )
    source = random.Random(1)
    values = {frozenset(p): 0.3 * (source.random() < 0.5) for p in pairs}
    assert groups(cluster, {p: values[frozenset(p)] for p in pairs}) is None


def _only(parts: tuple[SlowPart, ...]) -> dict[str, tuple[Culprit, tuple[str, ...]]]:
    return {part.quantity: (part.culprit, part.nodes) for part in parts}


@pytest.mark.parametrize("count", [4, 5, 6, 9])
def test_a_slow_node_is_named_and_its_traffic_follows(count: int) -> None:
    found = named(names(count), lambda _, item: 1.5 if "n1" in item else 1.0)
    assert _only(found.parts) == {
        "memory": (Culprit.NODE, ("n1",)),
        "processor": (Culprit.NODE, ("n1",)),
        "latency": (Culprit.FOLLOWS, ("n1",)),
        "bandwidth": (Culprit.FOLLOWS, ("n1",)),
    }
    assert all(part.slow == pytest.approx(log(1.5), abs=0.01) for part in found.parts)


@pytest.mark.parametrize("count", [4, 7])
def test_a_slow_link_is_that_of_its_node(count: int) -> None:
    traffic = ("latency", "bandwidth")
    found = named(names(count), lambda q, item: 1.5 if q in traffic and "n1" in item else 1.0)
    assert _only(found.parts) == dict.fromkeys(traffic, (Culprit.LINK, ("n1",)))


def test_one_direction_of_a_link_is_named() -> None:
    found = named(names(6), lambda q, i: 1.4 if q == "bandwidth" and i[0] == "n2" else 1.0)
    (part,) = found.parts
    assert (part.culprit, part.nodes, part.sides) == (Culprit.LINK, ("n2",), (Side.SENDS,))


@pytest.mark.parametrize("both", [True, False])
def test_a_slow_pair_is_named_with_its_direction(both: bool) -> None:
    slow = {("n4", "n1")} | ({("n1", "n4")} if both else set())
    found = named(names(6), lambda q, i: 1.4 if q == "bandwidth" and i in slow else 1.0)
    (part,) = found.parts
    assert part.culprit is Culprit.PAIR
    assert part.nodes == (("n1", "n4") if both else ("n4", "n1"))
    assert part.one_way is not both


HOSTS = {letter: tuple(f"n{2 * i + k}" for k in (0, 1)) for i, letter in enumerate("abcdef")}


def _host(item: Item) -> set[str]:
    return {host for host, nodes in HOSTS.items() for name in item if name in nodes}


def test_the_link_of_a_host_is_named() -> None:
    def factor(quantity: str, item: Item) -> float:
        slow = quantity == "bandwidth" and "b" in _host(item) and len(_host(item)) > 1
        return 1.4 if slow else 1.0

    (part,) = named(names(12), factor, places(HOSTS)).parts
    assert (part.culprit, part.nodes) == (Culprit.HOST_LINK, ("n2", "n3"))


def test_the_link_between_two_hosts_is_named() -> None:
    def factor(quantity: str, item: Item) -> float:
        return 1.4 if quantity == "latency" and _host(item) == {"a", "b"} else 1.0

    (part,) = named(names(12), factor, places(HOSTS)).parts
    assert (part.culprit, part.nodes) == (Culprit.BETWEEN, ("n0", "n1", "n2", "n3"))


def test_a_higher_latency_alone_may_be_another_switch() -> None:
    def factor(quantity: str, item: Item) -> float:
        return 1.3 if quantity == "latency" and "n1" in item else 1.0

    found = named(names(8), factor)
    assert not found.parts
    assert "another switch" in found.not_compared()["performance.latency of n1"]
    known = NodeClasses(switches=dict.fromkeys(names(8), "s"))
    assert _only(named(names(8), factor, known).parts) == {"latency": (Culprit.LINK, ("n1",))}


def test_hosts_that_are_known_do_not_say_which_switch_a_node_has() -> None:
    def factor(quantity: str, item: Item) -> float:
        return 1.3 if quantity == "latency" and "n1" in item else 1.0

    # As of snapshots: each node is a host of its own.
    apart = places({name: (name,) for name in names(8)})
    found = named(names(8), factor, apart)
    assert not found.parts
    assert "another switch" in found.not_compared()["performance.latency of n1"]
    # In one kernel there is no switch.
    together = NodeClasses({name: ClassPlace((), "k", "k") for name in names(8)})
    assert _only(named(names(8), factor, together).parts) == {"latency": (Culprit.LINK, ("n1",))}


def test_reasons_with_equal_counts_are_all_told() -> None:
    found = named(names(6), lambda _, __: 1.0)
    found.screening.models["memory"].left_out.update({"n1": "one", "n2": "two", "n3": "one"})
    assert found.not_compared() == {
        "performance.memory of n1 and 1 more": "one",
        "performance.memory of n2": "two",
    }


def test_a_suspicion_without_enough_retests_is_told() -> None:
    cluster = names(6)
    run = measure(cluster, lambda q, i: 1.5 if q == "memory" and "n1" in i else 1.0)
    found = name_parts(replace(run, retests=run.retests[:3]), NodeClasses())
    assert not found.parts
    assert found.not_compared() == {"performance.memory of n1": UNSETTLED}
    assert named(cluster, lambda _, __: 1.0).not_compared() == {}


def test_two_reasons_of_a_node_are_both_told() -> None:
    run = measure(names(6), lambda q, i: 1.5 if q == "memory" and "n1" in i else 1.0)
    found = name_parts(replace(run, retests=()), NodeClasses())
    found.screening.models["memory"].left_out.update({"n1": "alone", "n2": "alone"})
    assert found.not_compared() == {
        "performance.memory of n1": f"alone; {UNSETTLED}",
        "performance.memory of n2": "alone",
    }


def test_suspects_of_a_small_cluster_are_compared_with_others() -> None:
    slow = {frozenset(("n1", "n4")), frozenset(("n2", "n3"))}

    def factor(quantity: str, item: Item) -> float:
        return 1.5 if quantity == "latency" and frozenset(item) in slow else 1.0

    found = named(names(5), factor, NodeClasses(switches=dict.fromkeys(names(5), "s")))
    assert not found.not_compared()
    assert {(part.culprit, frozenset(part.nodes)) for part in found.parts} == {
        (Culprit.PAIR, pair) for pair in slow
    }


def test_no_suspicion_needs_no_retest() -> None:
    assert retests_needed(0) == (0, 0)


@given(st.floats(1.0, exp(FLOOR) - 0.003), st.integers(4, 8))
@settings(max_examples=20)
def test_a_slowness_below_the_floor_is_never_a_finding(slow: float, count: int) -> None:
    assert not named(names(count), lambda _, item: slow if "n0" in item else 1.0).parts


def test_a_suspicion_that_the_retests_do_not_show_is_dropped() -> None:
    asked = Counter[str]()

    def factor(quantity: str, item: Item) -> float:
        asked[quantity] += item == ("n2",)
        return 1.3 if quantity == "memory" and item == ("n2",) and asked["memory"] <= 3 else 1.0

    found = named(names(6), factor)
    assert [one.suspicion.item for one in found.confirmations] == [("n2",)]
    assert found.confirmations[0].proven is False
    assert not found.parts


def test_retests_stop_when_all_is_decided() -> None:
    run = measure(names(6), lambda q, i: 1.3 if q == "memory" and i == ("n2",) else 1.0)
    (suspicion,) = screen(run, NodeClasses()).suspicions
    assert suspicion.item == ("n2",)
    assert len(run.retests) == retests_needed(1)[1]


def test_small_classes_are_left_out_with_the_reason() -> None:
    found = named(names(2), lambda _, __: 1.0)
    assert set(found.not_compared()) == {
        "performance.memory of n0 and 1 more",
        "performance.processor of n0 and 1 more",
        "performance.latency of n0 to n1 and 1 more",
        "performance.bandwidth of n0 to n1 and 1 more",
    }
    three = named(names(3), lambda _, item: 2.0 if "n0" in item else 1.0)
    assert set(_only(three.parts)) == {"memory", "processor"}
    assert (
        "fewer than 4 nodes" in three.not_compared()["performance.latency of n0 to n1 and 5 more"]
    )


def test_nodes_of_other_hardware_are_another_class() -> None:
    classes = places({name: (name,) for name in names(8)})
    old = {n: p._replace(hardware=("old",)) for n, p in classes.places.items() if n in names(4)}
    mixed = NodeClasses({**classes.places, **old})
    assert mixed.hop("n0", "n7") == BETWEEN_HOSTS
    found = named(names(8), lambda q, i: 2.0 if q in ALL[:2] and i[0] in old else 1.0, mixed)
    assert not found.parts
    found = named(names(8), lambda q, i: 1.2 if q == "processor" and i[0] == "n7" else 1.0, mixed)
    assert _only(found.parts) == {"processor": (Culprit.NODE, ("n7",))}


def test_the_noise_is_real() -> None:
    for arm in ("bare-metal", "usernetes"):
        for cells in noises(arm).values():
            assert len(cells) >= 7
            assert all(len(cell) == 20 for cell in cells)


def test_healthy_clusters_with_real_noise_have_no_finding() -> None:
    for arm in ("bare-metal", "usernetes"):
        found = outcome(FAULTS["healthy"], 16, arm, 12, "unit")
        assert found.named >= 11 / 12


def test_neighbours_with_real_noise_are_named_and_healthy_ones_are_not() -> None:
    for arm in ("bare-metal", "usernetes"):
        assert outcome(FAULTS["neighbours, healthy"], 16, arm, 12, "unit").named >= 11 / 12
        found = outcome(FAULTS["neighbours take 10 % of a host"], 16, arm, 6, "unit")
        assert found == found._replace(named=1.0, others=0.0)


def test_a_node_that_is_ten_percent_slow_is_named() -> None:
    for arm in ("bare-metal", "usernetes"):
        found = outcome(FAULTS["node 10 % slow, in all"], 12, arm, 6, "unit")
        assert found.named == 1.0
