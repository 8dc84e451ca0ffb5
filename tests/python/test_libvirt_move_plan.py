# SPDX-License-Identifier: Apache-2.0
"""Moves of libvirt's machines as far as no hypervisor is needed: plan, XML, choice of moves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nearmetal.cluster.backends.libvirt.arrival import arrival_xml, without_views
from nearmetal.cluster.backends.libvirt.hypervisor import read_cpu, read_machine_types
from nearmetal.cluster.backends.libvirt.machine import OwnerMark
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.libvirt.values import VirtualNode
from nearmetal.cluster.diff import make_plan
from nearmetal.cluster.move.checks import MovableMachine, MoveTarget
from nearmetal.cluster.move.engine import MoveReport
from nearmetal.cluster.move.phases import MoveAction, Settlement
from nearmetal.cluster.move.record import Move, MoveRecords
from nearmetal.cluster.move.site import MoveOptions, site_of
from nearmetal.cluster.move.verbs import ChosenMoves, all_moved, chosen, off_host, to_host
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Kind, Observed, Resource
from nearmetal.core.errors import BackendError, NearmetalError, SpecError
from tests.python.test_libvirt_machine import machines_of, spec_of
from tests.python.test_move_decisions import MACHINE, TARGET
from tests.python.virtual import SMALL, facts_for

HOSTS = """\
network: {bridge: br0}
hosts:
  - name: h1
    segment: {device: ivshmem, parts: 4}
    directory: /d/h1
    nodes: [N1]
  - name: h2
    uri: qemu+ssh://root@h2/system
    segment: {device: ivshmem, parts: 4}
    nodes: [N2]
  - name: h3
    uri: qemu+ssh://root@h3/system
    segment: {device: ivshmem, parts: 4}
    nodes: [N3]
"""


def hosts(one: str, two: str = "", three: str = "") -> LibvirtSpec:
    return spec_of(HOSTS.replace("N1", one).replace("N2", two).replace("N3", three))


A, B = "{name: a, cpus: none}", "{name: b, cpus: none}"
BOTH = f"{A}, {B}"


def moved(items: Sequence[Resource], **values: object) -> Observed:
    """The cluster after node a has moved from h1 to h2."""

    def after(item: Resource) -> Resource:
        if (item.key.kind, item.key.name) != (Kind.NODE, "a"):
            return item
        there = {"host": "h2", "uri": "qemu+ssh://root@h2/system", "part": 3, "home": "h1"}
        return replace(item, values=item.values.model_copy(update=there | values))

    return Observed(tuple(map(after, items)))


def nodes(spec: LibvirtSpec, observed: Observed) -> dict[str, VirtualNode]:
    found = desired(spec, facts_for(spec), observed)
    return Observed(found.resources).named(VirtualNode)


def test_a_moved_node_is_no_difference() -> None:
    spec = hosts(BOTH)
    wanted = desired(spec, facts_for(spec), Observed())
    observed = moved(wanted.resources)
    plan = make_plan("c", desired(spec, facts_for(spec), observed), observed)
    assert [change.key.name for change in plan.effective] == []
    assert "node a: on host h2, to which it was moved" in plan.notes


def test_the_spec_may_follow_the_move() -> None:
    spec = hosts(BOTH)
    observed = moved(desired(spec, facts_for(spec), Observed()).resources)
    followed = nodes(hosts(B, A), observed)["a"]
    assert (followed.host, followed.part, followed.home) == ("h2", 3, "h1")
    third = nodes(hosts(B, "", A), observed)["a"]
    assert (third.host, third.home) == ("h3", None)


def test_a_moved_node_that_is_gone_is_made_where_the_spec_says() -> None:
    assert nodes(hosts(BOTH), Observed())["a"].host == "h1"


def test_a_move_to_a_host_that_the_spec_does_not_have_any_more() -> None:
    spec = hosts(BOTH)
    items = desired(spec, facts_for(spec), Observed()).resources
    assert nodes(spec, moved(items, host="h9"))["a"].host == "h1"
    assert nodes(spec, moved(items, uri="qemu+ssh://root@other/system"))["a"].host == "h1"


def test_a_cluster_needs_a_node_and_a_host_does_not() -> None:
    assert [host.name for host, _ in hosts("", A).nodes] == ["h2"]
    with pytest.raises(SpecError, match="the cluster has no node"):
        hosts("")


def test_an_address_for_migrations_is_an_address() -> None:
    text = "hosts: [{name: h, migration_address: ADDRESS, nodes: [{name: a}]}]"
    for good in ("10.0.0.1", "h1.example.org", "'[fd00::1]'"):
        spec_of(text.replace("ADDRESS", good))
    for bad in ("tcp://h", "'h 1'", "'-oProxyCommand=x'", "''"):
        with pytest.raises(SpecError):
            spec_of(text.replace("ADDRESS", bad))


def test_the_copy_has_the_files_of_its_host_and_no_views() -> None:
    source, target = machines_of(hosts(BOTH), SMALL)
    wanted = replace(
        target, name=source.name, uuid=source.uuid, emulator="/opt/qemu", pins=(1,), label="+1:+1"
    )
    top = ET.fromstring(arrival_xml(source.xml(), wanted))  # noqa: S314 - our own
    assert top.findtext("devices/emulator") == "/opt/qemu"
    entry, console = top.find("sysinfo/entry"), top.find("devices/serial/source")
    assert entry is not None
    assert entry.get("file") == wanted.seed
    assert console is not None
    assert console.get("path") == wanted.console
    assert [pin.get("cpuset") for pin in top.findall("cputune/vcpupin")] == ["1"]
    assert [label.findtext("label") for label in top.findall("seclabel")] == ["+1:+1"]
    assert OwnerMark.read(ET.tostring(top, encoding="unicode")) == wanted.owner
    words = [
        a.get("value", "") for a in top.iter("{http://libvirt.org/schemas/domain/qemu/1.0}arg")
    ]
    assert [json.loads(word)["driver"] for word in words[1::2]] == ["pcie-root-port"] * 2
    # What the guest sees is that of the machine that runs.
    nics = [n.get("address") for n in top.findall("devices/interface/mac")]
    assert nics == [source.links[0].mac]


def test_other_words_of_qemu_stay() -> None:
    words = ["-fw_cfg", "name=opt/ovmf/X-PciMmio64Mb,string=65536", "-object", '{"id": "nm-own"}']
    assert without_views([*words, "-device", '{"driver": "ivshmem-plain"}']) == words[:2]


def test_a_machine_with_other_disks_is_not_moved() -> None:
    source, target = machines_of(hosts(BOTH), SMALL)
    with pytest.raises(BackendError, match="has other disks"):
        arrival_xml(source.xml(), replace(target, disks=()))


CAPABILITIES = """
<capabilities><host><cpu><model>EPYC</model><feature name='ibpb'/><feature/></cpu></host>
<guest><arch name='i686'><machine>old</machine></arch>
<arch name='x86_64'><machine canonical='pc-q35-7.2'>q35</machine><machine>pc-q35-7.1</machine>
</arch></guest></capabilities>
"""


def test_facts_of_libvirt() -> None:
    found = ET.fromstring(CAPABILITIES)  # noqa: S314 - our own
    assert read_cpu(found) == ("EPYC", frozenset({"ibpb"}))
    assert read_machine_types(found) == {"q35", "pc-q35-7.2", "pc-q35-7.1"}
    assert read_cpu(ET.Element("capabilities")) == ("", frozenset())


@dataclass
class Rack:
    """Three nodes on h1; h2 has room for all, h3 has another network."""

    records: MoveRecords = field(default_factory=lambda: MoveRecords(Path("/nowhere")))
    checked: list[Move] = field(default_factory=list)

    def machines(self) -> Mapping[str, MovableMachine]:
        return {name: replace(MACHINE, name=name) for name in ("a", "b", "c")}

    def places(self) -> Mapping[str, str]:
        return dict.fromkeys("abc", "h1")

    def targets(self) -> Mapping[str, MoveTarget]:
        return {
            "h1": replace(TARGET, name="h1"),
            "h2": replace(TARGET, name="h2"),
            "h3": replace(TARGET, name="h3", networks=frozenset()),
        }

    def check(self, moves: Sequence[Move]) -> None:
        self.checked += moves

    def act(self, action: MoveAction, move: Move) -> str:
        raise AssertionError((action, move))

    def halt(self) -> None:
        raise AssertionError("nothing moves")

    def settle(self, move: Move) -> Settlement:
        raise AssertionError(move)


def test_one_move_is_chosen_and_checked() -> None:
    rack = Rack()
    found = chosen(rack, to_host("b", "h2"))
    assert found.waves == ((Move(node="b", source="h1", target="h2"),),)
    assert found.notes == (
        "node b shares no segment with a, c afterwards",
        "node b has no virtual function while it moves, and then another one",
    )
    assert rack.checked == found.moves
    assert chosen(rack, to_host("b", "h1")).moves == []


def test_a_drain_goes_to_the_hosts_that_are_named() -> None:
    found = chosen(Rack(), off_host("h1", ["h2"], 2))
    assert [[move.node for move in wave] for wave in found.waves] == [["a", "b"], ["c"]]
    assert {move.target for move in found.moves} == {"h2"}


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (to_host("b", "h3"), "cannot move to host h3, and nothing was changed:\n  host h3: it has"),
        (to_host("z", "h2"), "node z does not run"),
        (to_host("b", "h7"), "no host h7 that is up"),
        (off_host("h7", [], 1), "no host h7 that is up"),
        (off_host("h1", ["h1"], 1), "--to names it"),
        (off_host("h1", ["h3"], 1), "machines that fit on no other host"),
    ],
)
def test_a_choice_that_is_not_possible(choose: object, words: str) -> None:
    with pytest.raises(NearmetalError, match=words):
        chosen(Rack(), choose)  # type: ignore[arg-type]


def test_a_node_that_stays_is_an_error_also_after_a_move_that_was_completed() -> None:
    back = ChosenMoves(((Move(node="a", source="h2", target="h1"),),))
    earlier = MoveReport("a", "h1", "h2")
    assert not all_moved(back, [earlier, MoveReport("a", "h2", "h1", reason="too slow")])
    assert all_moved(back, [earlier, MoveReport("a", "h2", "h1")])


def test_other_backends_move_no_nodes() -> None:
    with pytest.raises(BackendError, match="do not move between hosts"):
        site_of(object(), MoveOptions())
