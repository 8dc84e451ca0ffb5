# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.cli.cluster import as_lines
from nearmetal.cluster.apply import described
from nearmetal.cluster.backends.local.plan import ContainerNode
from nearmetal.cluster.diff import Action, Change, Plan, make_plan, removal
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import (
    Desired,
    Facts,
    Key,
    Kind,
    Observed,
    Resource,
    TextValues,
)
from nearmetal.cluster.saved import plan_data
from nearmetal.cluster.spec import load_spec, parse_spec
from nearmetal.core.errors import StateError
from tests.python.virtual import HYPERVISOR, SMALL, facts_for

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = sorted((ROOT / "nearmetal/share/examples").glob("*.yaml"))
RECORDED = [path for path in EXAMPLES if not path.stem.startswith(("openstack", "vsphere"))]
"""Those of backends with records; clouds themselves keep the values of their resources."""
TWO_CORES = Facts((0, 1))


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs; UPDATE_GOLDEN=1 writes it anew"


def plan_text(plan: Plan) -> str:
    return "\n".join([*as_lines(plan), *(f"note: {note}" for note in plan.notes), ""])


def spec_of(hosts: list[list[int]], subnet: str = "10.77.0.0/24") -> str:
    lines = ["version: 1", "name: c", "backend: local", f"network: {{subnet: {subnet}}}", "hosts:"]
    number = 0
    for i, nodes in enumerate(hosts):
        lines += [f"  - name: h{i}", "    nodes:"]
        for slots in nodes:
            lines.append(f"      - {{name: n{number}, slots: {slots}}}")
            number += 1
    return "\n".join(lines)


def planned(text: str, observed: Observed, facts: Facts = TWO_CORES) -> Plan:
    spec = parse_spec(text)
    return make_plan(spec.name, desired(spec, facts), observed)


def carried_out(plan: Plan, observed: Observed) -> Observed:
    """What is there after a plan, by its own words."""
    there = observed.by_key()
    for change in plan.changes:
        if change.action is Action.DELETE:
            there.pop(change.key, None)
        else:
            there[change.key] = change.item
    return Observed(tuple(there.values()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_plans_as_recorded(path: Path) -> None:
    spec = load_spec(path)
    found = HYPERVISOR if spec.name == "vms-tuned" else SMALL
    plan = make_plan(spec.name, desired(spec, facts_for(spec, found)), Observed())
    check_golden(f"{path.stem}.plan", plan_text(plan))


def test_another_spec_plans_as_recorded() -> None:
    first = planned(spec_of([[1, 1]]), Observed())
    second = planned(spec_of([[2], [1]]), carried_out(first, Observed()))
    check_golden("another-spec.plan", plan_text(second))
    data = json.dumps(plan_data(second), indent=1)
    check_golden("another-spec.json", data + "\n")


def test_another_subnet_takes_every_node_along() -> None:
    first = planned(spec_of([[1, 1]]), Observed())
    plan = planned(spec_of([[1, 1]], "10.9.0.0/24"), carried_out(first, Observed()))
    actions = {str(change.key): change.action for change in plan.changes}
    assert actions == {
        "cluster c": Action.NONE,
        "network bridge": Action.CHANGE,
        "host h0": Action.CHANGE,
        "node n0": Action.CHANGE,
        "node n1": Action.CHANGE,
    }


def test_a_host_made_anew_takes_only_its_own_nodes_along() -> None:
    text = spec_of([[1], [1]])
    there = carried_out(planned(text, Observed()), Observed())
    other = text.replace("name: h0", "name: h0\n    segments: 1 MiB")
    changes = {str(c.key): c.action for c in planned(other, there).effective}
    assert changes == {"host h0": Action.CHANGE, "node n0": Action.CHANGE}


def test_a_broken_node_is_made_anew_and_is_no_other_spec() -> None:
    text = spec_of([[1, 1]])
    there = carried_out(planned(text, Observed()), Observed())
    dead = Key(Kind.NODE, "n1")
    plan = planned(text, Observed(there.resources, frozenset({dead})))
    assert [(c.key, c.action) for c in plan.effective] == [(dead, Action.CHANGE)]
    assert plan.rewrites == ()


def test_unknown_broken_things_are_removed() -> None:
    ghost = Key(Kind.NODE, "ghost")
    plan = planned(spec_of([[1]]), Observed((), frozenset({ghost})))
    assert [c.key for c in plan.changes if c.action is Action.DELETE] == [ghost]


def test_a_dead_node_goes_before_its_host() -> None:
    there = carried_out(planned(spec_of([[1], [1]]), Observed()), Observed())
    text = spec_of([[1]])
    kept = {item.key for item in desired(parse_spec(text), TWO_CORES).resources}
    extra = [item for item in there.resources if item.key not in kept]
    dead = frozenset(item.key for item in extra if item.key.kind is Kind.NODE)
    assert dead
    sound = tuple(item for item in there.resources if item.key not in dead)
    for broken in (dead, frozenset(item.key for item in extra)):
        left = tuple(item for item in sound if item.key not in broken)
        going = [c.key.kind for c in planned(text, Observed(left, broken)).going]
        assert going.index(Kind.NODE) < going.index(Kind.HOST)


def test_slots_past_the_cores_are_told() -> None:
    plan = planned(spec_of([[1, 1, 1]]), Observed())
    cpus = [dict(c.after)["cpus"] for c in plan.changes if c.key.kind is Kind.NODE]
    assert cpus == ["0", "1", "0"]
    assert "3 slots on 2 cores" in plan.notes[0]
    assert "core 0: n0, n2" in plan.notes[0]


def test_a_repeated_host_name_is_told() -> None:
    text = spec_of([[1, 1]]).replace("slots: 1", "hostname: same")
    assert "host name same is used by several nodes" in planned(text, Observed()).notes[0]


def test_given_cores_must_exist() -> None:
    text = spec_of([[1]]).replace("slots: 1", "cpus: [7]")
    with pytest.raises(StateError, match="node n0: this machine has no core 7") as caught:
        planned(text, Observed())
    assert "0, 1" in caught.value.hint
    assert planned(text, Observed(), Facts((6, 7))).notes == ()


SHAPES = st.lists(
    st.lists(st.integers(min_value=1, max_value=3), min_size=1, max_size=3), min_size=1, max_size=3
)
MACHINES = st.sets(st.integers(min_value=0, max_value=7), min_size=1).map(
    lambda cpus: Facts(tuple(sorted(cpus)))
)


@given(SHAPES, SHAPES, MACHINES, st.booleans())
def test_after_a_plan_the_plan_is_empty(
    before: list[list[int]],
    after: list[list[int]],
    facts: Facts,
    moved: bool,
) -> None:
    subnet = "10.8.0.0/24" if moved else "10.77.0.0/24"
    there = carried_out(planned(spec_of(before), Observed(), facts), Observed())
    plan = planned(spec_of(after, subnet), there, facts)
    there = carried_out(plan, there)
    assert planned(spec_of(after, subnet), there, facts).empty
    assert {r.key for r in there.resources} == {c.key for c in plan.changes if c.after}


@given(SHAPES, MACHINES)
def test_deletion_goes_against_the_order_of_making(shape: list[list[int]], facts: Facts) -> None:
    there = carried_out(planned(spec_of(shape), Observed(), facts), Observed())
    seen: set[Key] = set()
    for change in removal("c", there).changes:
        assert not seen & set(change.item.needs)
        seen.add(change.key)


@given(SHAPES, MACHINES)
def test_every_node_gets_cores_and_slots_alone_decide_the_next(
    shape: list[list[int]], facts: Facts
) -> None:
    plan = planned(spec_of(shape), Observed(), facts)
    wrapped = sum(map(sum, shape)) > len(facts.cpus)
    used = []
    for change in plan.changes:
        if change.key.kind is Kind.NODE:
            cpus = dict(change.after)["cpus"].split(",")
            used += cpus
            assert len(cpus) == min(int(dict(change.after)["slots"]), len(facts.cpus))
    assert wrapped or len(used) == len(set(used))
    assert bool(plan.notes) == wrapped


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_values_of_a_plan_come_back_from_their_texts(path: Path) -> None:
    spec = load_spec(path)
    for item in desired(spec, facts_for(spec, HYPERVISOR)).resources:
        read = type(item.values).read(dict(item.attributes))
        assert read.attributes == item.attributes
        assert read == item.values


@pytest.mark.parametrize("change", [{"colour": "red"}, {"slots": "many"}, {"cpus": "0,x"}])
def test_a_resource_of_another_release_differs_and_is_not_used(change: dict[str, str]) -> None:
    text = spec_of([[1]])
    *others, node = planned(text, Observed()).changes
    assert isinstance(node.item.values, ContainerNode)
    other = Resource(node.key, ContainerNode.read(dict(node.after) | change), node.item.needs)
    plan = planned(text, Observed((*(c.item for c in others), other)))
    assert [(c.action, c.key, c in plan.rewrites) for c in plan.effective] == [
        (Action.CHANGE, node.key, True)
    ]
    with pytest.raises(StateError, match="node n0 was made by another release") as caught:
        other.of(ContainerNode)
    assert "with that release" in caught.value.hint


def test_only_the_resources_that_need_a_recreated_one_are_recreated() -> None:
    cluster, *names = (Key(Kind.CLUSTER, "c"), *(Key(Kind.NETWORK, n) for n in "ab"))
    old = [Resource(cluster), *(Resource(n, TextValues(texts=()), (cluster,)) for n in names)]
    new = [Resource(cluster), *(Resource(n, TextValues(texts=()), (cluster,)) for n in names)]
    new[1] = Resource(names[0], TextValues(texts=(("mtu", "9000"),)), (cluster,))
    nodes = [Resource(Key(Kind.NODE, n.name), needs=(n,)) for n in names]
    # Listed in any order, each resource comes after those that it needs.
    plan = make_plan("c", Desired((*nodes, *new)), Observed((*old, *nodes)))
    assert [str(c.key) for c in plan.changes] == [
        "cluster c",
        "network a",
        "network b",
        "node a",
        "node b",
    ]
    assert [(str(c.key), c.reason) for c in plan.going] == [
        ("node a", "network a is recreated"),
        ("network a", ""),
    ]


def test_many_changes_of_one_form_are_shown_as_one() -> None:
    def change(number: int, action: Action, key: Kind = Kind.NODE) -> Change:
        values = TextValues(
            texts=(("cpus", "2"), ("host", f"h{number % 4}"), ("name", f"n{number}"))
        )
        old = TextValues(texts=(("cpus", "1"), ("host", "h9"), ("name", f"n{number}")))
        before = None if action is Action.CREATE else Resource(Key(key, f"n{number}"), old)
        return Change(action, before, Resource(Key(key, f"n{number}"), values))

    made = [change(i, Action.CREATE) for i in range(1000)]
    moved = [change(i, Action.CHANGE) for i in range(1000, 1006)]
    few = [change(i, Action.CREATE, Kind.HOST) for i in range(2000, 2004)]
    plan = Plan("c", (*made, *few[:1], *moved, *few[1:]))
    lines = as_lines(plan)
    assert lines[:6] == [
        "cluster c:",
        "  + node n0, n1, n2 and 997 more",
        "      cpus: 2",
        "      host: h0, h1, h2 and 1 more",
        "      name: n0, n1, n2 and 997 more",
        "  + host n2000",
    ]
    assert (
        "  ~ node n1000, n1001, n1002 and 3 more: cpus 1 -> 2, host h9 -> h0 and 3 other ways"
        in lines
    )
    assert [line for line in lines if line.startswith("  + host")] == [
        f"  + host n{i}" for i in range(2000, 2004)
    ]
    assert lines[-1] == "plan: 1004 to make, 6 to change, 0 to remove"
    assert len(lines) < 30
    # Nothing is left out for programs.
    assert len(plan_data(plan)["changes"]) == len(plan.changes)
    assert described(made[:2]) == ["+ node n0", "+ node n1"]
