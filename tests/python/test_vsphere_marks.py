# SPDX-License-Identifier: Apache-2.0
"""Which machine is a node's, and plans of machines that are to be completed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyVmomi import vim

from nearmetal.cluster.apply import describe
from nearmetal.cluster.backends.vsphere.marks import MARK, UUID, Found, claims, identity
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.diff import Action, Plan, make_plan
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.cluster.spec import parse_spec

NAMES = {"n0": "n0", "n1": "first"}


def machine(name: str, uuid: str, node: str = "n0", *, named: str | None = None) -> Found:
    """Return a machine whose mark names a uuid, by default its own."""
    mark = {"cluster": "c", "node": node, "state": "made", "uuid": uuid if named is None else named}
    option = vim.option.OptionValue(key=MARK, value=json.dumps(mark))
    return Found(name, {"name": name, UUID: uuid, "config.extraConfig": [option]})


def test_a_copy_is_a_stranger_whatever_its_name_is() -> None:
    original, copy = machine("renamed", "u1"), machine("n0", "u2", named="u1")
    assert claims([copy, original], NAMES) == ({"n0": original}, [copy])
    assert claims([copy], NAMES) == ({}, [copy])


def test_a_mark_without_a_uuid_goes_by_the_name() -> None:
    begun, other = machine("n0", "u1", named=""), machine("copy", "u2", named="")
    assert claims([other, begun], NAMES) == ({"n0": begun}, [other])
    assert claims([other], NAMES) == ({"n0": other}, [])
    done = machine("odd", "u3")
    assert claims([begun, done], NAMES) == ({"n0": done}, [begun])


def test_of_two_machines_that_name_themselves_the_name_decides() -> None:
    one, two = machine("other", "u1", "n1"), machine("first", "u2", "n1")
    assert claims([one, two], NAMES) == ({"n1": two}, [one])


@pytest.mark.parametrize(
    ("state", "named", "home", "reason"),
    [
        ("made", "u", True, ""),
        ("made", "", True, "its mark does not name it"),
        ("begun", "", True, "its creation was interrupted"),
        ("changing", "u", True, "its change was refused or interrupted"),
        ("?", "u", True, "its mark is not readable"),
        ("made", "u", False, "it is not in the folder of the cluster"),
    ],
)
def test_why_a_machine_is_completed(state: str, named: str, home: bool, reason: str) -> None:
    option = vim.option.OptionValue(key=MARK, value=json.dumps({"state": state, "uuid": named}))
    found = Found("m", {UUID: "u", "config.extraConfig": [option]}, home)
    assert found.unfinished == reason


def test_identities_are_stable_and_differ_by_every_name() -> None:
    assert identity("vc", "n0") == identity("vc", "n0")
    paths = [("vc", "dc", "", "c", "n0"), ("vc", "dc", "c", "", "n0"), ("vc", "dc", "", "c", "n1")]
    assert len({identity(*path) for path in paths}) == len(paths)


SPEC = """\
version: 1
name: c
backend: vsphere
vcenter: {server: vc, user: root}
machine: {template: t}
hosts: [{name: h1, esxi: e1, nodes: [{name: n0, %s}]}]
"""
DEVICE = "memory_reservation: full, adapters: [{kind: sriov, port_group: p, pf: '0000:3b:00.0'}]"


def planned(old: str, new: str, unfinished: str = "", **values: Any) -> Plan:
    """Return the plan from one spec to another, with a machine that has these values."""
    before, spec = parse_spec(SPEC % old), parse_spec(SPEC % new)
    assert isinstance(spec, VsphereSpec)
    there = []
    for item in desired(before, Facts()).resources:
        now = item.values.model_copy(update=values if item.key.kind is Kind.NODE else {})
        there.append(Resource(item.key, now, item.needs))
    reasons = {Key(Kind.NODE, "n0"): unfinished} if unfinished else {}
    observed = Observed(tuple(there), unfinished=reasons)
    return make_plan("c", desired(spec, Facts(), observed), observed)


WAY = "shutdown of the guest, power off after 180 s"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("slots: 1", "slots: 1, vcpus: 2", f"outage for vcpus: {WAY}, then on again"),
        ("slots: 1", "slots: 2", ""),
        ("slots: 1", "vm: other, cpu_shares: high", ""),
        ("power: on", "power: off", WAY),
        ("power: off", "power: off, vcpus: 2", ""),
        ("datastore: a", "datastore: b", ""),
        (f"datastore: a, {DEVICE}", f"datastore: b, {DEVICE}", f"outage for datastore: {WAY}"),
        ("slots: 1", "guest: {domain: x.org}", f"outage for guest: {WAY}"),
        ("guest: {domain: x.org}", "slots: 1", ""),
    ],
)
def test_a_plan_names_each_outage_and_its_cause(old: str, new: str, text: str) -> None:
    (change,) = planned(old, new).effective
    assert change.in_place
    assert change.why.startswith(text)
    assert bool(change.why) == bool(text)


SWITCHED = """\
adapters: [{kind: vmxnet3, port_group: p}]%s}]}]
switches:
  - {name: s, kind: standard, nics: [%s], mtu: 9000, port_groups: [%s]}
#"""


def switched(nics: str, groups: str, power: str = "") -> str:
    return SWITCHED % (f", power: {power}" if power else "", nics, groups)


@pytest.mark.parametrize(
    ("old", "new", "asked"),
    [
        (("vmnic1", "{name: p}"), ("vmnic2", "{name: p}"), True),
        (("vmnic1", "{name: p}"), ("vmnic1", "{name: p, vlan: 3}"), True),
        (("vmnic1", "{name: p}, {name: q}"), ("vmnic1", "{name: p}"), True),
        (("vmnic1", "{name: p}"), ("vmnic1", "{name: p}, {name: q}"), False),
        (("vmnic1", "{name: q}"), ("vmnic2", "{name: q}"), False),
        (("vmnic1", "{name: p}", "off"), ("vmnic2", "{name: p}", "off"), False),
    ],
)
def test_a_switch_of_machines_that_are_on_changes_with_a_yes_only(
    old: tuple[str, ...], new: tuple[str, ...], asked: bool
) -> None:
    plan = planned(switched(*old), switched(*new))
    (change,) = plan.effective
    assert change.key == Key(Kind.NETWORK, "s")
    assert change.in_place
    assert plan.disruptive == ((change,) if asked else ())
    assert describe(change).endswith("the network of n0 stops for a while)") == asked


def test_an_unfinished_machine_is_completed_in_place() -> None:
    (change,) = planned("slots: 1", "slots: 1", "it was interrupted").effective
    assert describe(change) == "~ node n0 (in place; it was interrupted)"
    assert change.in_place
    plan = planned("slots: 1", "vcpus: 2", "it was interrupted")
    assert plan.effective[0].why.startswith("it was interrupted; outage for vcpus")
    assert not plan.rewrites


def test_an_unfinished_machine_of_another_template_is_not_removed_unasked() -> None:
    plan = planned("clone: linked", "clone: full", "it was interrupted")
    assert [(c.action, c.in_place) for c in plan.rewrites] == [(Action.CHANGE, False)]
    assert plan.rewrites == plan.effective
