# SPDX-License-Identifier: Apache-2.0
"""{spec, facts -> plan and reasons} for virtual clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.cluster.apply import describe
from nearmetal.cluster.diff import Action, Plan, make_plan
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Kind, Observed
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import SpecError, StateError
from tests.python.test_plan import carried_out
from tests.python.virtual import HYPERVISOR, SMALL, facts_for

HEAD = "version: 1\nname: c\nbackend: libvirt\n"
TWO = HEAD + "hosts: [{name: h, nodes: [{name: a}, {name: b}]}]\n"


def planned(text: str, observed: Observed | None = None, found: Any = SMALL) -> Plan:
    spec, there = parse_spec(text, "c.yaml"), observed or Observed()
    return make_plan(spec.name, desired(spec, facts_for(spec, found), there), there)


def attributes(plan: Plan, kind: Kind, name: str) -> dict[str, str]:
    return next(dict(c.after) for c in plan.changes if (c.key.kind, c.key.name) == (kind, name))


def said(plan: Plan, words: str) -> bool:
    return any(words in note for note in plan.notes)


@pytest.mark.parametrize(
    ("change", "found", "device", "reason"),
    [
        ({}, SMALL, "ivshmem", "which the hypervisor enforces; TCG ignores caching"),
        ({}, HYPERVISOR, "ivshmem", "its memory is cached as the host's"),
        ({"cpu_vendor": "AMD"}, HYPERVISOR, "virtio-pmem", "uncached; DAX is write-back"),
        (
            {"devices": frozenset({"virtio-pmem-pci", "nvdimm"})},
            SMALL,
            "virtio-pmem",
            "has no ivshmem-plain; one mapping that all may write",
        ),
        ({"devices": frozenset({"nvdimm"})}, SMALL, "nvdimm", "has no ivshmem-plain"),
        ({"devices": frozenset()}, SMALL, "none", "nodes meet over the network"),
        (
            {"devices": frozenset({"ivshmem-plain"}), "cpu_vendor": "AMD"},
            HYPERVISOR,
            "ivshmem",
            "enforces",
        ),
    ],
)
def test_the_device_is_chosen_with_its_reason(
    change: dict[str, Any], found: Any, device: str, reason: str
) -> None:
    plan = planned(TWO, found=replace(found, **change))
    assert attributes(plan, Kind.NODE, "a")["device"] == device
    assert said(plan, f"segment {device}: ")
    assert said(plan, reason)


@pytest.mark.parametrize(
    ("text", "devices", "why"),
    [
        (
            TWO.replace("{name: h,", "{name: h, uri: 'qemu+ssh://root@h2/system',"),
            SMALL.devices,
            "it is another machine",
        ),
        (
            TWO.replace("hosts", "image: /images/debian.qcow2\nhosts"),
            SMALL.devices,
            "a cloud image may lack 9p",
        ),
        (TWO, frozenset({"ivshmem-plain"}), "its QEMU has no virtio-9p-pci"),
        (
            TWO.replace("{name: h,", "{name: h, directory: /data/vms,"),
            SMALL.devices,
            "with a `directory` QEMU may not enter the state directory",
        ),
    ],
)
def test_programs_are_copied_where_nodes_see_no_directory_of_this_machine(
    text: str, devices: frozenset[str], why: str
) -> None:
    plan = planned(text, found=replace(SMALL, devices=devices))
    assert attributes(plan, Kind.NODE, "a")["files"] == "ssh"
    assert said(plan, f"host h: programs by ssh: {why}")
    assert attributes(planned(TWO), Kind.NODE, "a")["files"] == "9p"
    assert said(planned(TWO), "host h: programs by 9p: nodes see a directory of this machine")


def test_a_device_that_is_not_there_is_refused() -> None:
    text = TWO.replace("name: h,", "name: h, segment: {device: nvdimm},")
    with pytest.raises(StateError, match="has no nvdimm") as caught:
        planned(text, found=replace(SMALL, devices=frozenset({"ivshmem-plain"})))
    assert "ivshmem" in caught.value.hint


def test_kvm_only_where_it_is_proven() -> None:
    assert attributes(planned(TWO), Kind.NODE, "a")["accel"] == "tcg"
    assert said(planned(TWO), "TCG: the probe boot under KVM printed nothing")
    assert attributes(planned(TWO, found=HYPERVISOR), Kind.NODE, "a")["accel"] == "kvm"
    with pytest.raises(StateError, match="accel kvm is asked for, but the probe boot"):
        planned(TWO.replace("hosts", "accel: kvm\nhosts"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"libvirt": "8.2.1"}, "libvirt 8.2.1 is too old"),
        ({"qemu": "7.2.5"}, "QEMU 7.2.5 is too old"),
    ],
)
def test_old_versions_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(StateError, match=words) as caught:
        planned(TWO, found=replace(SMALL, **change))
    assert "or newer" in caught.value.hint


def test_nodes_with_a_virtual_function_say_so_and_those_without_too() -> None:
    text = TWO.replace("{name: a}", "{name: a, vf: {pf: mlx5_0, vlan: 7}}")
    plan = planned(text, found=replace(SMALL, vfs=("node a: a VF: near",)))
    assert attributes(plan, Kind.NODE, "a")["vf"] == '{"pf":"mlx5_0","vlan":7}'
    assert "vf" not in attributes(plan, Kind.NODE, "b")
    assert "node a: a VF: near" in plan.notes
    assert "no virtual function for b: virtio-net alone" in plan.notes


def test_cores_are_dealt_by_hypervisor() -> None:
    text = HEAD + (
        "network: {bridge: br}\nhosts:\n"
        "  - {name: h1, nodes: [{name: a}, {name: b, emulator_cpus: auto}]}\n"
        "  - {name: h2, uri: 'qemu+ssh://root@h2/system', nodes: [{name: d}]}\n"
    )
    plan = planned(text)
    assert [attributes(plan, Kind.NODE, n)["cpus"] for n in "abd"] == ["0", "1", "0"]
    assert attributes(plan, Kind.NODE, "b")["emulator_cpus"] == "0,1"
    assert not said(plan, "take turns")
    assert said(planned(TWO.replace("{name: b}", "{name: b, slots: 2}")), "3 slots on 2 cores")
    wide = planned(TWO.replace("{name: b}", "{name: b, emulator_cpus: auto}"), found=HYPERVISOR)
    assert attributes(wide, Kind.NODE, "b")["emulator_cpus"] == "2,3,4,5,6,7"
    with pytest.raises(StateError, match="has no core 9"):
        planned(TWO.replace("{name: b}", "{name: b, cpus: [9]}"))


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("{name: b}", "{name: b, memory: 2 GiB}", {"node b"}),
        ("name: h,", "name: h, segment: {part: 32 MiB},", {"host h", "node a", "node b"}),
        ("hosts", "network: {mtu: 9000}\nhosts", {"network h", "host h", "node a", "node b"}),
        (
            "{name: b}",
            "{name: b}, {name: c}, {name: d}",
            {"host h", "node a", "node b", "node c", "node d"},
        ),
    ],
)
def test_only_what_differs_changes(old: str, new: str, changed: set[str]) -> None:
    there = carried_out(planned(TWO), Observed())
    plan = planned(TWO.replace(old, new), there)
    assert {str(c.key) for c in plan.effective} == changed


def test_a_node_more_leaves_the_others_alone_where_the_segment_has_room() -> None:
    text = TWO.replace("name: h,", "name: h, segment: {parts: 4},")
    there = carried_out(planned(text), Observed())
    plan = planned(text.replace("{name: b}", "{name: b}, {name: d}"), there)
    assert [(c.action, str(c.key)) for c in plan.effective] == [(Action.CREATE, "node d")]


def hosts_of(*hosts: str, parts: str = "auto") -> str:
    """A spec with hosts of these nodes, as "ab": h0 with a and b."""
    lines = [HEAD + "network: {bridge: br}\nhosts:"]
    for i, names in enumerate(hosts):
        nodes = ", ".join(f"{{name: {name}}}" for name in names)
        uri = f"qemu+ssh://root@h{i}/system"
        lines.append(
            f"  - {{name: h{i}, uri: '{uri}', segment: {{parts: {parts}}}, nodes: [{nodes}]}}"
        )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        # In front of the others, behind them, and on the first of two hosts.
        (("ab", "cd"), ("xab", "cd"), {"+ node x"}),
        (("ab", "cd"), ("abx", "cd"), {"+ node x"}),
        (("ab", "cd"), ("ab", "xcd"), {"+ node x"}),
        (("abc", "d"), ("ac", "d"), {"- node b"}),
        (("abc", "d"), ("bc", "d"), {"- node a"}),
        (("abc", "d"), ("xbc", "d"), {"- node a", "+ node x"}),
        (("abc", "d"), ("cba", "d"), set()),
        (("ab", "c"), ("b", "c"), {"- node a"}),
    ],
)
def test_a_node_that_comes_or_goes_moves_no_other(
    before: tuple[str, ...], after: tuple[str, ...], changes: set[str]
) -> None:
    there = carried_out(planned(hosts_of(*before, parts="4"), found=HYPERVISOR), Observed())
    plan = planned(hosts_of(*after, parts="4"), there, HYPERVISOR)
    assert {f"{c.action.value} {c.key}" for c in plan.effective} == changes


def test_a_segment_keeps_room_that_it_has() -> None:
    there = carried_out(planned(hosts_of("abc")), Observed())
    fewer = planned(hosts_of("a"), there)
    assert {str(c.key) for c in fewer.effective} == {"node b", "node c"}
    more = planned(hosts_of("axyz"), carried_out(fewer, there))
    assert {str(c.key) for c in more.effective} == {"node x", "node y", "node z"}
    assert sorted(attributes(more, Kind.NODE, name)["part"] for name in "axyz") == list("0123")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("ab", "abc", "its segment has 2 parts, and a mapped file cannot grow"),
        ("a", "ab", "its nodes have no device for a segment and get one only at their start"),
    ],
)
def test_what_must_be_made_anew_says_why(before: str, after: str, why: str) -> None:
    there = carried_out(planned(hosts_of(before)), Observed())
    plan = planned(hosts_of(after), there)
    host = next(c for c in plan.changes if c.key.kind is Kind.HOST)
    assert host.why.startswith(why)
    assert host.why in describe(host)
    assert f"parts: {4 if after == 'ab' else 8}" in host.why
    assert host in plan.rewrites
    others = {str(c.key) for c in plan.effective} - {"host h0"}
    assert others == {f"node {name}" for name in after}


@pytest.mark.parametrize(
    ("slots", "part"),
    [(1, "64 MiB"), (8, "64 MiB"), (9, "128 MiB"), (20, "256 MiB"), (300, "1 GiB")],
)
def test_parts_are_sized_from_the_most_slots_of_a_node(slots: int, part: str) -> None:
    plan = planned(TWO.replace("name: b", f"name: b, slots: {slots}"))
    assert attributes(plan, Kind.HOST, "h")["part_size"] == part
    assert said(plan, "get smaller windows") == (slots == 300)


def test_a_running_segment_keeps_its_size_and_a_note_says_what_that_costs() -> None:
    there = carried_out(planned(TWO), Observed())
    plan = planned(TWO.replace("name: b", "name: b, slots: 20"), there)
    assert [c.action for c in plan.changes if c.key.kind is Kind.HOST] == [Action.NONE]
    assert said(plan, "parts of 64 MiB: the 20 endpoints of node b get smaller windows")
    assert said(plan, "160 MiB hold whole ones")


def test_cores_of_others_are_taken_last_and_sharing_them_is_said() -> None:
    others = {"guest-of-anna": frozenset({0, 1, 2}), "other": frozenset({0, 99})}
    found = replace(HYPERVISOR, pins=others)
    plan = planned(TWO.replace("{name: b}", "{name: b, emulator_cpus: auto}"), found=found)
    assert [attributes(plan, Kind.NODE, n)["cpus"] for n in "ab"] == ["3", "4"]
    assert attributes(plan, Kind.NODE, "b")["emulator_cpus"] == "5,6,7"
    assert not said(plan, "machines of others")
    wide = planned(TWO.replace("{name: b}", "{name: b, slots: 6}"), found=found)
    assert said(wide, "machines of others are pinned to cores of nodes: guest-of-anna (1, 2)")
    assert [attributes(wide, Kind.NODE, n)["cpus"] for n in "ab"] == ["3", "1,2,4,5,6,7"]


def test_a_running_node_keeps_its_cores_if_others_come() -> None:
    there = carried_out(planned(TWO, found=HYPERVISOR), Observed())
    plan = planned(TWO, there, replace(HYPERVISOR, pins={"x": frozenset({0})}))
    assert plan.empty
    assert said(plan, "machines of others are pinned to cores of nodes: x (0)")


def test_parts_of_another_size_say_so() -> None:
    there = carried_out(planned(TWO), Observed())
    plan = planned(TWO.replace("name: h,", "name: h, segment: {part: 32 MiB},"), there)
    assert "keep their size" in describe(next(c for c in plan.changes if c.key.kind is Kind.HOST))


NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True).map("".join)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=4))
def test_whatever_comes_and_goes_who_stays_is_left_alone(steps: list[tuple[str, str]]) -> None:
    there = Observed()
    for first, second in steps:
        text = hosts_of(first, second.translate(OTHERS), parts="8")
        plan = planned(text, there, HYPERVISOR)
        assert plan.count(Action.CHANGE) == 0
        there = carried_out(plan, there)
        assert planned(text, there, HYPERVISOR).empty
        nodes = [dict(r.attributes) for r in there.resources if r.key.kind is Kind.NODE]
        assert len({node["address"] for node in nodes}) == len(nodes)
        assert len({(node["host"], node["part"]) for node in nodes}) == len(nodes)
        assert all(int(node["part"]) < 8 for node in nodes)


OTHERS = str.maketrans("abcdefgh", "stuvwxyz")
"""The second host's nodes have names of their own."""


def test_another_reason_changes_nothing() -> None:
    there = carried_out(planned(TWO), Observed())
    assert planned(TWO, there, replace(SMALL, kvm_reason="something else")).empty


def test_a_cloud_image_gives_each_node_a_disk() -> None:
    plan = planned(TWO.replace("hosts", "image: /i/debian.qcow2\nhosts"))
    assert [str(c.key) for c in plan.changes][-4:] == ["disk a", "disk b", "node a", "node b"]


@given(st.integers(min_value=1, max_value=5), st.integers(min_value=1, max_value=5))
def test_after_a_plan_the_plan_is_empty(before: int, after: int) -> None:
    def text(count: int) -> str:
        nodes = ", ".join(f"{{name: n{i}}}" for i in range(count))
        return HEAD + f"hosts: [{{name: h, nodes: [{nodes}]}}]"

    there = carried_out(planned(text(before)), Observed())
    there = carried_out(planned(text(after), there), there)
    assert planned(text(after), there).empty


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("hosts", "show: [/tmp/x]\nhosts"), "unknown key 'show': only `backend: local` has it"),
        (("{name: a}", "{name: a, shm: 1 GiB}"), "shm': only `backend: local` has it"),
        (("{name: a}", "{name: a, memori: 1 GiB}"), "did you mean 'memory'?"),
        (("{name: a}", "{name: a, memory: 100 MiB}"), "from 256 MiB on"),
        (("{name: a}", "{name: a, cpus: all}"), "write auto, or for example [0, 1]"),
        (("name: h,", "name: h, uri: 'xen:///',"), "is not a URI of libvirt's QEMU driver"),
        (("name: h,", "name: h, uri: 'qemu+ssh://u:p@h/system',"), "contains a password"),
        (("name: h,", "name: h, uri: 'qemu+ssh:///system',"), "ssh without a host"),
        (("name: h,", "name: h, segment: {part: 3 MiB},"), "is not a power of two"),
        (("name: h,", "name: h, segment: {parts: 1},"), "the host has 2 nodes"),
        (("name: h,", "name: h, segment: {device: shm},"), "is not supported"),
        (
            ("name: h,", "name: h, directory: here,"),
            "is not a directory; use auto, or an absolute path",
        ),
        (("hosts", "image: x.qcow2\nhosts"), "is not an image; use default, or the absolute path"),
        (("hosts", "network: {bridge: 0123456789abcdefg}\nhosts"), "bridge"),
        (
            (
                "nodes: [{name: a}, {name: b}]}",
                "nodes: [{name: a}]}, {name: i, uri: 'qemu+ssh://root@i/system', nodes: [{name: b}]}",
            ),
            "network.bridge is missing: the hosts have 2 hypervisors",
        ),
    ],
)
def test_bad_specs_are_named(change: tuple[str, str], expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(TWO.replace(*change, 1), "c.yaml")
    assert any(expected in str(problem) for problem in caught.value.problems), caught.value.message


def test_a_local_spec_has_no_hypervisor() -> None:
    with pytest.raises(SpecError, match="only `backend: libvirt` has it"):
        parse_spec(TWO.replace("libvirt", "local").replace("{name: a}", "{name: a, memory: 1 GiB}"))
