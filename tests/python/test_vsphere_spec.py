# SPDX-License-Identifier: Apache-2.0
"""Specs of vSphere: what they say, what is refused, and vSphere's own rules with their fixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.diff import Action, make_plan
from nearmetal.cluster.registration import desired, from_canonical
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource, TextValues
from nearmetal.cluster.spec import load_spec, parse_spec
from nearmetal.core.errors import SpecError

EXAMPLE = Path(__file__).parents[2] / "nearmetal/share/examples" / "vsphere-sriov.yaml"

HEAD = """\
version: 1
name: c
backend: vsphere
vcenter: {server: vc.example.org, user: root}
"""
HOST = """\
hosts:
  - name: h1
    esxi: esx1
    nodes:
"""


def text_of(*nodes: str, machine: str = "template: t", more: str = "") -> str:
    lines = "".join(f"      - {{{node}}}\n" for node in nodes)
    return f"{HEAD}machine: {{{machine}}}\n{more}{HOST}{lines}"


def spec_of(*nodes: str, machine: str = "template: t", more: str = "") -> VsphereSpec:
    spec = parse_spec(text_of(*nodes, machine=machine, more=more))
    assert isinstance(spec, VsphereSpec)
    return spec


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "c.yaml")
    return [str(problem) for problem in caught.value.problems]


def only_problem(*nodes: str, machine: str = "template: t", more: str = "") -> str:
    (problem,) = problems(text_of(*nodes, machine=machine, more=more))
    return problem


def planned(spec: VsphereSpec) -> dict[str, dict[str, str]]:
    return {r.key.name: dict(r.attributes) for r in desired(spec, Facts()).resources}


SRIOV = "adapters: [{kind: sriov, port_group: pg, pf: '0000:3b:00.0'}]"
PCI = "{kind: passthrough, device: '0000:3b:00.0'}"
FULL = "memory_reservation: full"


def test_a_node_says_it_first_then_the_cluster_then_the_default() -> None:
    spec = spec_of(
        "name: n1, vcpus: 8, guest: {hostname: other}",
        "name: n2",
        machine="template: t, vcpus: 4, guest: {address: 10.0.0.5-10.0.0.6/24, domain: x.org}",
    )
    first, second = (spec.machine_of(node) for _, node in spec.nodes)
    assert (first.vcpus, second.vcpus) == (8, 4)
    assert (first.clone, first.power, first.latency) == ("full", "on", "normal")
    assert first.guest is not None
    assert (first.guest.hostname, first.guest.domain) == ("other", "x.org")
    assert spec.guest_addresses() == {"n1": "10.0.0.5/24", "n2": "10.0.0.6/24"}


def test_the_canonical_text_gives_the_same_spec_and_the_same_machines() -> None:
    spec = load_spec(EXAMPLE)
    again = from_canonical(spec.canonical())
    assert again == spec
    assert desired(again, Facts()) == desired(spec, Facts())


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("hunter2", "would hold a secret"),
        ("{}", "needs one place"),
        ("{env: A, file: /x}", "needs one place"),
        ("{env: $A}", "is not a variable"),
    ],
)
def test_a_password_is_a_place_and_is_never_shown(value: str, what: str) -> None:
    text = text_of("name: n1").replace("user: root", f"user: root, password: {value}")
    (problem,) = problems(text)
    assert problem.startswith("c.yaml:4:")
    assert what in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("thumbprint: 'AB:CD'", "is not a SHA-256 thumbprint"),
        ("server: 'https://vc'", "is not a host name"),
        (f"ca_file: /ca.pem, thumbprint: '{':'.join(['AB'] * 32)}'", "has both ca_file and"),
        ("port: 0", "use at least 1"),
    ],
)
def test_how_vcenter_is_trusted_is_checked(key: str, what: str) -> None:
    server = "" if key.startswith("server") else "server: vc, "
    text = text_of("name: n1").replace("server: vc.example.org, ", f"{server}{key}, ")
    assert what in problems(text)[0]


@pytest.mark.parametrize(
    ("adapter", "what"),
    [
        ("{kind: vmxnet3}", "has no port_group"),
        ("{kind: sriov, port_group: pg}", "has no pf"),
        ("{kind: sriov, port_group: pg, pf: vmnic2}", "is not a PCI address"),
        ("{kind: passthrough, device: '0000:3b:00.0', pf: '0000:3b:00.0'}", "has pf, which kind"),
        ("{kind: dynamic, models: ['15b3']}", "is not a vendor and a device"),
        ("{kind: vgpu, profile: 'a b'}", "is not a vGPU profile"),
        ("{kind: e1000, port_group: pg}", "is not supported; use 'vmxnet3'"),
        ("{kind: vmxnet3, port_group: a/b}", "has a character that vCenter escapes"),
    ],
)
def test_an_adapter_says_what_its_kind_takes(adapter: str, what: str) -> None:
    found = problems(text_of(f"name: n1, {FULL}, adapters: [{adapter}]"))
    assert any(what in problem for problem in found), found


def test_an_unknown_key_of_an_adapter_has_a_place_and_a_hint() -> None:
    text = text_of("name: n1, adapters: [{kind: vmxnet3, port_grop: pg}]")
    assert "c.yaml:10:" in problems(text)[0]
    assert "did you mean 'port_group'?" in problems(text)[0]


@pytest.mark.parametrize(
    ("node", "what", "fix"),
    [
        (SRIOV, "a sriov adapter without reserved memory", "memory_reservation: full"),
        (
            "adapters: [{kind: vgpu, profile: p}]",
            "a vgpu adapter without reserved",
            "memory_reservation: full",
        ),
        (f"latency: high, {FULL}", "latency high with cpu_reservation", "cpu_reservation: full"),
        (
            "latency: high, cpu_reservation: full",
            "latency high with memory_reservation",
            "memory_reservation: full",
        ),
        (
            "adapters: [{kind: pvrdma, port_group: pg}], hardware: 11",
            "hardware 11 with a pvrdma",
            "hardware: 13",
        ),
        (
            f"{FULL}, hardware: 15, adapters: [{{kind: dynamic, models: ['15b3:1019']}}]",
            "hardware 15 with a dynamic",
            "hardware: 17",
        ),
        (f"{FULL}, clone: instant, {SRIOV}", "an instant clone with a sriov", "full or linked"),
        ("clone: instant, vcpus: 2", "vcpus of an instant clone", "set it in the source"),
        ("clone: instant, guest: {}", "guest of an instant clone", "remove guest"),
        ("vcpus: 6, cores_per_socket: 4", "6 processors in sockets of 4", "a divisor"),
        (
            f"{FULL}, adapters: [{{kind: vgpu, profile: a}}, {{kind: vgpu, profile: b}}]",
            "vGPU profiles that differ",
            "use one profile",
        ),
        (
            "guest: {address: 10.0.0.5/24, gateway: 10.0.1.1}",
            "gateway 10.0.1.1 of 10.0.0.5/24",
            "a gateway of that subnet",
        ),
        (
            "guest: {address: dhcp}, adapters: []",
            "an address without a network card",
            "kind vmxnet3",
        ),
    ],
)
def test_a_rule_of_vsphere_is_told_with_its_fix(node: str, what: str, fix: str) -> None:
    problem = only_problem(f"name: n1, {node}")
    assert f"node n1: {what}" in problem
    assert fix in problem


def test_what_vmotion_cannot_move_needs_a_named_host() -> None:
    for node in (f"{FULL}, {SRIOV}", "numa: [0]", "affinity: [1, 2]"):
        text = text_of(f"name: n1, {node}").replace("    esxi: esx1\n", "")
        (problem,) = problems(text)
        assert "on any host" in problem
        assert "write esxi: NAME" in problem


def test_a_machine_without_a_template_is_refused() -> None:
    assert "node n1: no template" in only_problem("name: n1", machine="vcpus: 1")


def test_what_is_wrong_with_all_is_said_once_where_the_cluster_says_it() -> None:
    nodes = [f"name: n{i}" for i in range(5)]
    problem = only_problem(*nodes, machine=f"template: t, {SRIOV}, memory_reservation: none")
    assert problem.startswith("c.yaml:5:")
    assert "nodes n0, n1, n2 and 2 more: a sriov adapter without" in problem


def test_a_device_goes_to_one_machine() -> None:
    whole = f"{FULL}, adapters: [{PCI}]"
    twice = only_problem(f"name: n1, {whole}", f"name: n2, {whole}")
    assert "node n2: 0000:3b:00.0 of esx1 is passed through twice: node n1 has it" in twice
    spec_of(f"name: n1, {whole}", f"name: n2, power: off, {whole}")
    both = only_problem(f"name: n1, {whole}", f"name: n2, {FULL}, {SRIOV}")
    assert "node n1: 0000:3b:00.0 of esx1 is passed through whole and as SR-IOV" in both


def test_names_and_addresses_are_given_once() -> None:
    assert "node n2: machine 'n1' twice" in only_problem("name: n1", "name: n2, vm: n1")
    address = "guest: {address: 10.0.0.5/24}"
    found = only_problem(f"name: n1, {address}", f"name: n2, {address}")
    assert "node n2: address 10.0.0.5/24 twice: node n1 has it" in found
    short = only_problem(
        "name: n1", "name: n2", machine="template: t, guest: {address: 10.0.0.5/24}"
    )
    assert "address 10.0.0.5/24 twice" in short
    ranged = only_problem(
        *(f"name: n{i}" for i in range(3)),
        machine="template: t, guest: {address: 10.0.0.5-10.0.0.6/24}",
    )
    assert "node n2: no address left in 10.0.0.5-10.0.0.6/24" in ranged


SWITCH = "switches: [{name: s, kind: standard, port_groups: [{name: pg}]%s}]\n"


def test_switches_must_fit_their_machines() -> None:
    vrdma = "name: n1, adapters: [{kind: pvrdma, port_group: pg}]"
    assert "PVRDMA needs a distributed switch" in only_problem(vrdma, more=SWITCH % "")
    card = "name: n1, adapters: [{kind: vmxnet3, port_group: pg}]"
    far = only_problem(card, more=SWITCH % ", esxi: [esx9]")
    assert "switch s does not reach that host" in far
    spec_of(card, more=SWITCH % ", esxi: [esx9, esx1]")
    twice = SWITCH % "" + "  "
    assert "port group pg twice" in only_problem(
        card, more=twice.replace("[{name: pg}]", "[{name: pg}, {name: pg}]").rstrip(" ")
    )


def test_an_uplink_serves_one_switch_and_is_named_once() -> None:
    two = "{name: %s, kind: standard, nics: [%s], port_groups: [{name: %s}]%s}"
    far = two % ("b", "vmnic4", "pb", ", esxi: [esx2]")
    near = two % ("a", "vmnic4, vmnic5", "pa", "")
    spec_of("name: n1", more=f"switches: [{near}, {far}]\n")
    shared = only_problem("name: n1", more=f"switches: [{near}, {far.replace('esx2', 'esx1')}]\n")
    assert "switch b: vmnic4 of esx1: switch a has it" in shared
    double = near.replace("vmnic5", "vmnic4")
    assert "vmnic4 twice" in only_problem("name: n1", more=f"switches: [{double}]\n")


def test_a_standard_switch_is_not_named_by_adapters() -> None:
    card = "name: n1, adapters: [{kind: vmxnet3, port_group: pg, switch: s}]"
    assert "leave switch out" in only_problem(card, more=SWITCH % "")
    spec_of(card, more=(SWITCH % "").replace("standard", "distributed"))
    spec_of(card.replace("switch: s", "switch: t"), more=SWITCH % "")


@pytest.mark.parametrize("more", [", mtu: 1279", ", mtu: 9191", ", nics: [eth0]"])
def test_a_switch_has_an_mtu_and_uplinks_that_vsphere_has(more: str) -> None:
    assert "switches" in only_problem("name: n1", more=SWITCH % more)


@pytest.mark.parametrize(("vlan", "sound"), [(-1, False), (0, True), (4095, True), (4096, False)])
def test_a_vlan_is_one_of_4096(vlan: int, sound: bool) -> None:
    more = (SWITCH % "").replace("name: pg", f"name: pg, vlan: {vlan}")
    if sound:
        spec_of("name: n1", more=more)
    else:
        assert "vlan" in only_problem("name: n1", more=more)


def test_rules_of_drs_name_nodes_and_do_not_contradict_the_placement() -> None:
    rule = "rules: [{{name: r, kind: {}, nodes: [n1, {}]}}]\n"
    nodes = ("name: n1", "name: n2")
    spec_of(*nodes, more=rule.format("together", "n2"))
    assert "rule r: apart" in only_problem(*nodes, more=rule.format("apart", "n2"))
    assert "rule r: node n7" in only_problem(*nodes, more=rule.format("together", "n7"))


def test_a_plan_says_every_attribute_and_leaves_open_what_the_template_decides() -> None:
    found = planned(spec_of("name: n1, vcpus: 4", machine="template: t, memory: 8 GiB"))["n1"]
    assert (found["vcpus"], found["memory"], found["template"]) == ("4", "8 GiB", "t")
    assert not {"datastore", "cores_per_socket"} & found.keys()


def carried_out(spec: VsphereSpec) -> Observed:
    return Observed(desired(spec, Facts()).resources)


def test_what_can_change_in_place_takes_nothing_along_and_needs_no_replace() -> None:
    old = spec_of("name: n1, vcpus: 4", "name: n2", more=SWITCH % ", mtu: 1500")
    new = spec_of("name: n1, vcpus: 8", "name: n2", more=SWITCH % ", mtu: 9000")
    plan = make_plan("c", desired(new, Facts()), carried_out(old))
    assert [(str(c.key), c.in_place) for c in plan.effective] == [
        ("network s", True),
        ("node n1", True),
    ]
    assert plan.rewrites == ()


def test_another_template_makes_one_machine_anew_and_needs_replace() -> None:
    old = spec_of("name: n1", "name: n2")
    new = spec_of("name: n1, template: other", "name: n2")
    plan = make_plan("c", desired(new, Facts()), carried_out(old))
    assert [(c.key, c.in_place) for c in plan.effective] == [(Key(Kind.NODE, "n1"), False)]
    assert plan.rewrites == plan.effective


def test_a_switch_that_vanished_is_made_and_its_machines_stay() -> None:
    spec = spec_of("name: n1", more=SWITCH % "")
    there = carried_out(spec).resources
    left = Observed(tuple(r for r in there if r.key.kind is not Kind.NETWORK))
    plan = make_plan("c", desired(spec, Facts()), left)
    assert [(c.action, str(c.key)) for c in plan.effective] == [(Action.CREATE, "network s")]


def test_a_broken_machine_is_made_anew() -> None:
    spec = spec_of("name: n1")
    there = carried_out(spec)
    plan = make_plan(
        "c", desired(spec, Facts()), Observed(there.resources, frozenset({Key(Kind.NODE, "n1")}))
    )
    assert [(c.in_place, c.reason) for c in plan.effective] == [(False, "unfinished or dead")]


def test_a_machine_of_another_cluster_is_removed() -> None:
    spec = spec_of("name: n1")
    extra: Resource = Resource(Key(Kind.NODE, "n9"), TextValues(texts=(("host", "h1"),)))
    there = Observed((*carried_out(spec).resources, extra))
    plan = make_plan("c", desired(spec, Facts()), there)
    assert [(c.action, c.key.name) for c in plan.effective] == [(Action.DELETE, "n9")]


def test_a_thousand_machines_are_read_checked_and_planned() -> None:
    nodes = "".join(f"      - {{name: n{i}}}\n" for i in range(1000))
    text = f"{HEAD}machine: {{template: t, guest: {{address: 10.0.0.1-10.0.3.232/16}}}}\n{HOST}"
    spec = parse_spec(text + nodes)
    plan = make_plan("c", desired(spec, Facts()), Observed())
    assert len(plan.effective) == 1001


def made_or_explained(text: str) -> bool:
    """Whether a text gives a spec of one node, or problems that each have a place in it."""
    try:
        return len(parse_spec(text).nodes) == 1
    except SpecError as error:
        return all(problem.line >= 1 and problem.what for problem in error.problems)


KEYS = st.sampled_from(["kind", "port_group", "pf", "device", "models", "profile", "x"])
VALUES = st.none() | st.integers() | st.text(max_size=6) | st.lists(st.text(max_size=3), max_size=2)


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=3), st.text(max_size=8))
def test_any_adapter_gives_a_spec_or_problems_with_a_place(
    adapters: list[dict[str, object]], address: str
) -> None:
    node = json.dumps({"name": "n1", "adapters": adapters, "guest": {"address": address}})
    text = f"{HEAD}machine: {{template: t}}\n{HOST}      - {node}\n"
    assert made_or_explained(text)


def test_ssh_into_an_instant_clone_needs_both_keys() -> None:
    machine = "template: t, clone: instant"
    for more in ("ssh: {}\n", "ssh: {identity: /k}\n"):
        problem = only_problem("name: n1", machine=machine, more=more)
        assert "node n1: ssh into an instant clone: it does not boot" in problem
    key = f"ssh-ed25519 {'A' * 68}"
    spec_of("name: n1", machine=machine, more=f"ssh: {{identity: /k, host_key: {key}}}\n")


def test_scripts_need_a_way_in() -> None:
    problem = only_problem("name: n1", more="post: [{script: /s}]\n")
    assert "scripts: no way into the machines is given" in problem
    spec_of("name: n1", more="post: [{script: /s}]\nssh: {}\n")
