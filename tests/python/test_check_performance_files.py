# SPDX-License-Identifier: Apache-2.0
"""Performance runs as files, classes and lines from snapshots, and the words of findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.check import outputs
from nearmetal.check.analyse import analyse
from nearmetal.check.collect import Gathered
from nearmetal.check.collection import Collection, open_collection
from nearmetal.check.model import Gravity
from nearmetal.check.performance.classes import (
    BETWEEN_HOSTS,
    BETWEEN_SWITCHES,
    ONE_HOST,
    ONE_KERNEL,
    ONE_SWITCH,
    NodeClasses,
    classes,
)
from nearmetal.check.performance.findings import (
    judge_run,
    slow_parts,
    unanswered,
)
from nearmetal.check.performance.run import (
    PERFORMANCE,
    Item,
    MeasuredTurn,
    PerformanceRun,
    parse_run,
    run_text,
)
from nearmetal.check.profile import parse_profile
from nearmetal.core.errors import LogError
from tests.python.check_nodes import PORT, TODAY, node
from tests.python.check_performance_clusters import measure, named, names

TURN = {"quantity": "latency", "values": [[0, 1, 2.5]]}
RUN: dict[str, Any] = {
    "format": "nearmetal-performance",
    "version": 1,
    "taken": 1.5,
    "nodes": ["a", "b"],
    "setup": {"size": "8"},
    "screening": [TURN],
    "retests": [],
    "failures": [],
}


def test_a_run_survives_its_file() -> None:
    run = measure(names(5), lambda _, item: 1.3 if "n0" in item else 1.0)
    assert run.retests
    assert parse_run(run_text(run).encode(), "run") == run
    assert parse_run(json.dumps(RUN).encode(), "run") == PerformanceRun(
        ("a", "b"), 1.5, {"size": "8"}, (MeasuredTurn("latency", {("a", "b"): 2.5}),), ()
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "not a run of version 1"),
        ({"format": "nearmetal-snapshot"}, "not a run of version 1"),
        ({"nodes": []}, "not 1 to 512 nodes"),
        ({"nodes": [f"n{i}" for i in range(513)]}, "not 1 to 512 nodes"),
        ({"nodes": ["a", "b\x1b"]}, "is not the name of a node"),
        ({"nodes": ["a", "a"]}, "a node appears twice"),
        ({"setup": {str(i): "" for i in range(40)}}, "too many words"),
        ({"retests": {}}, "not a list of at most 20000 turns"),
        ({"screening": [{}]}, "no known quantity"),
        ({"screening": [{**TURN, "quantity": "luck"}]}, "no known quantity"),
        ({"screening": [{**TURN, "values": [[0, 1]]}]}, "a row has not 3 numbers"),
        ({"screening": [{**TURN, "values": [[0, 2, 1.0]]}]}, "not in the list"),
        ({"screening": [{**TURN, "values": [[0, True, 1.0]]}]}, "not in the list"),
        ({"screening": [{**TURN, "values": [[0, -1, 1.0]]}]}, "not in the list"),
        ({"screening": [{**TURN, "values": [[1, 1, 1.0]]}]}, "is no pair"),
        ({"screening": [{**TURN, "values": [[0, 1, 1.0], [0, 1, 1.0]]}]}, "appears twice"),
        ({"screening": [{**TURN, "values": [[0, 1, 0]]}]}, "is not possible"),
        ({"screening": [{**TURN, "values": [[0, 1, -1.0]]}]}, "is not possible"),
        ({"screening": [{**TURN, "values": [[0, 1, 1e300]]}]}, "out of range"),
        ({"screening": [{**TURN, "values": [[0, 1, "9"]]}]}, "is not possible"),
    ],
)
def test_a_hostile_run_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(LogError, match="run: ") as error:
        parse_run(json.dumps(RUN | change).encode(), "run")
    assert why in str(error.value)
    assert "measure again" in error.value.hint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(RUN)), JSON)
def test_any_part_may_be_anything(key: str, value: Any) -> None:
    refusals = []
    try:
        run = parse_run(json.dumps(RUN | {key: value}).encode(), "run")
    except LogError as error:
        refusals = [error.message]
    else:
        assert parse_run(run_text(run).encode(), "run") == run
    assert all(message.startswith("run:") for message in refusals)


def test_hops_of_snapshots() -> None:
    def boot(number: int, kernel: str, *changes: tuple[str, Any]) -> Any:
        return node(number, ("system>boot_id", kernel), *changes)

    uuid = ("virtual>uuid", "u-3")
    found = classes(
        [
            boot(1, "k1"),
            boot(2, "k1"),
            boot(3, "k3", ("virtual>guest", True), uuid),
            boot(4, "k4", ("virtual>guest", True), ("virtual>uuid", "u-4")),
            boot(5, "k5", ("virtual>guests", {"u-3": {}, "u-4": {}})),
        ],
        {"compute-01": "s1", "compute-03": "s1", "compute-05": "s2"},
    )
    assert found.hop("compute-01", "compute-02") == ONE_KERNEL
    assert found.hop("compute-03", "compute-04") == ONE_HOST
    assert found.hop("compute-03", "compute-05") == ONE_HOST
    assert found.hop("compute-01", "compute-03") == ONE_SWITCH
    assert found.hop("compute-01", "compute-05") == BETWEEN_SWITCHES
    assert found.hop("compute-02", "compute-05") == BETWEEN_HOSTS
    assert found.host("compute-04") == "k5"
    assert found.host("compute-99") == ""
    assert found.of_pair("compute-01", "compute-03") == found.of_pair("compute-03", "compute-01")


def test_a_fault_makes_no_class_of_its_own() -> None:
    slow = node(
        2,
        ("memory>MemTotal", 32 << 20),
        ("fabric>mlx5_0>ports>1", PORT | {"rate": "25 Gb/sec (1X EDR)"}),
    )
    found = classes([node(1), slow, node(3, ("processor>model", "Model Q"))], {})
    assert found.of_node("compute-01") == found.of_node("compute-02")
    assert found.of_node("compute-01") != found.of_node("compute-03")


def test_the_words_of_a_finding() -> None:
    found = named(names(6), lambda _, item: 1.5 if "n1" in item else 1.0)
    seen = {check.name: (nodes, spotted) for check, nodes, spotted in slow_parts(found)}
    nodes, memory = seen["performance.memory"]
    assert nodes == ("n1",)
    assert "50 % slower" in memory.value
    assert memory.expected.startswith("99.9 GB/s, and at most 7 % slower")
    assert memory.about == ""
    assert memory.grade is None
    _, latency = seen["performance.latency"]
    assert latency.grade is Gravity.NOTE
    assert "the node itself is slow" in latency.reason


@pytest.mark.parametrize(
    ("slow", "about"),
    [
        ({("n1", "n2")}, "n1 to n2"),
        ({("n1", "n2"), ("n2", "n1")}, "n1 and n2"),
        ({("n1", f"n{i}") for i in range(6)}, "link of the node, sends"),
        ({(f"n{i}", "n1") for i in range(6)}, "link of the node, receives"),
    ],
)
def test_the_named_part_of_traffic(slow: set[tuple[str, str]], about: str) -> None:
    known = NodeClasses(switches=dict.fromkeys(names(6), "s"))
    found = named(names(6), lambda q, i: 1.5 if q == "latency" and i in slow else 1.0, known)
    ((check, _, spotted),) = slow_parts(found)
    assert check.name == "performance.latency"
    assert spotted.about == about


@pytest.mark.parametrize("taken", [True, "1", None, [1]])
def test_a_time_that_is_none_is_zero(taken: Any) -> None:
    assert parse_run(json.dumps(RUN | {"taken": taken}).encode(), "run").taken == 0.0


def test_failures_survive_the_file_of_a_run() -> None:
    run = PerformanceRun(("a", "b"), failures={("a",): "no answer", ("a", "b"): "refused"})
    assert parse_run(run_text(run).encode(), "run") == run


@pytest.mark.parametrize(
    ("failures", "why"),
    [
        (None, "no list of failures"),
        ([["why"]], "not one or two nodes"),
        ([[0, 1, 0, "why"]], "not one or two nodes"),
        ([[0, 7]], "not one or two nodes"),
        ([[2, "why"]], "not in the list"),
        ([[True, "why"]], "not in the list"),
        ([[1, 1, "why"]], "is no pair"),
    ],
)
def test_hostile_failures_are_refused(failures: Any, why: str) -> None:
    with pytest.raises(LogError, match=why):
        parse_run(json.dumps(RUN | {"failures": failures}).encode(), "run")


def test_the_processors_that_a_limit_leaves_make_no_class() -> None:
    found = classes([node(1), node(2, ("processor>usable", 2))], {})
    assert found.of_node("compute-01") == found.of_node("compute-02")


def _unanswered(*failing: Item, nodes: int = 5) -> dict[str, tuple[str, ...]]:
    run = PerformanceRun(names(nodes), failures=dict.fromkeys(failing, "refused"))
    return {seen.about or "gone": where for _, where, seen in unanswered(run)}


def test_who_is_named_for_pairs_that_cannot_talk() -> None:
    assert _unanswered() == {}
    assert _unanswered(("n1",)) == {"gone": ("n1",)}
    assert _unanswered(("n1", "n2"), ("n2", "n1")) == {"n1 and n2": ("n1", "n2")}
    wall = [("n1", f"n{i}") for i in (0, 2, 3, 4)]
    assert _unanswered(*wall) == {"with 4 of 4 nodes": ("n1",)}
    assert _unanswered(("n1",), *wall) == {"gone": ("n1",)}
    assert _unanswered(*wall, ("n3", "n4")) == {
        "with 4 of 4 nodes": ("n1",),
        "n3 and n4": ("n3", "n4"),
    }


def test_a_judged_run_is_part_of_an_analysis() -> None:
    run = measure(names(6), lambda q, i: 1.5 if q == "memory" and "n1" in i else 1.0)
    run = replace(run, failures={("n5",): "no answer in 9 s"})
    judgement = judge_run(run, NodeClasses())
    profile = parse_profile(
        "name: site\nsuppress:\n"
        "  - {check: performance.answer, nodes: n5, until: 2030-01-01, reason: repair}\n",
        "p",
    )
    found = analyse((), profile, silent={}, today=TODAY, performance=judgement)
    assert found.checks == (
        "performance.answer",
        "performance.memory",
        "performance.processor",
        "performance.latency",
        "performance.bandwidth",
    )
    assert [(f.check, f.nodes) for f in found.findings] == [("performance.memory", ("n1",))]
    assert [m.finding.check for m in found.muted] == ["performance.answer"]
    report = outputs.junit(found, Gravity.WARNING)
    assert 'testcase classname="performance" name="performance.memory"' in report
    assert "warning: n1: the node is slower than its class" in report


def test_a_collection_may_have_a_run(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    Gathered().write(empty)
    collection = open_collection(empty)
    assert isinstance(collection, Collection)
    assert not collection.has_run
    run = measure(names(4), lambda _, __: 1.0)
    silent = dict.fromkeys(run.names, "no answer")
    Gathered(silent=silent).write(tmp_path / "full", {PERFORMANCE: run_text(run)})
    full = open_collection(tmp_path / "full")
    assert isinstance(full, Collection)
    assert full.performance() == run
    assert full.has_run
    del silent["n2"]
    Gathered(silent=silent).write(tmp_path / "other", {PERFORMANCE: run_text(run)})
    other = open_collection(tmp_path / "other")
    assert isinstance(other, Collection)
    with pytest.raises(LogError, match=r"it measured node n2, which is not in collection.json"):
        other.performance()
    (empty / PERFORMANCE).symlink_to(tmp_path / "full" / PERFORMANCE)
    with pytest.raises(LogError):
        collection.performance()
