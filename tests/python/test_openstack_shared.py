# SPDX-License-Identifier: Apache-2.0
"""Which servers get a part of a segment, the wait for it, and what is said without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.guests import ServerGuests
from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC, SharedMemory, shared_memory
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.world import Catalog, World
from nearmetal.cluster.diff import removal
from nearmetal.cluster.ssh_guests import GuestNode, GuestRecords
from nearmetal.core.errors import BackendError
from nearmetal.core.process import Command, Completed
from tests.python.test_openstack_cloud import MADE, backend_of, item, planned
from tests.python.test_openstack_guests import guests_of, jobs_of
from tests.python.test_openstack_spec import NETWORKS, spec_of

HOSTS = """\
hosts:
  - {name: h1, nodes: [{name: n1}, {name: n2, flavor: FLAVOR}]}
  - {name: h2, nodes: [{name: n3}]}
"""


class Flavors(Catalog):
    """A catalog of flavors: `small` gives a segment, and `plain` none."""

    def __init__(self, **specs: Any) -> None:
        self._specs: dict[str, Any] = {"small": {EXTRA_SPEC: "64MiB"}, "plain": {}, **specs}

    def get(self, kind: str, name: str) -> Any | None:
        assert kind == "flavor"
        if name not in self._specs:
            return None
        return item(name, vcpus=1, ram=1, disk=1, extra_specs=self._specs[name])


def of(flavor: str, more: str = "", networks: str = MADE) -> SharedMemory:
    spec = spec_of(f"ssh: {{}}\n{more}", networks, HOSTS.replace("FLAVOR", flavor))
    return shared_memory(spec, lambda name: Flavors(hidden=None).get("flavor", name))


def test_nodes_of_one_host_get_a_part_by_their_flavor() -> None:
    found = of("small")
    assert (found.nodes, found.others) == (("n1", "n2"), ())
    assert [*found.notes([])] == []
    (note,) = found.notes(["n2"])
    assert note.startswith("nodes n2, which share a hypervisor, use the network: ")
    assert "`nearmetal computed status` on their hypervisor shows why" in note


@pytest.mark.parametrize("flavor", ["plain", "hidden", "missing"])
def test_a_flavor_without_the_extra_spec_is_named(flavor: str) -> None:
    found = of(flavor)
    assert (found.nodes, found.others) == (("n1",), ("n2",))
    (note,) = found.notes([])
    assert note.startswith("nodes n2, which")
    assert f"extra spec {EXTRA_SPEC} gives some, and flavor {flavor} shows none" in note
    assert [one.partition(",")[0] for one in found.notes(["n1"])] == ["nodes n2", "nodes n1"]


def test_each_pair_has_the_reason_of_its_own_flavors(tmp_path: Path) -> None:
    hosts = """\
hosts:
  - {name: h1, nodes: [{name: n1}, {name: n2}, {name: n3, flavor: plain}]}
  - {name: h2, nodes: [{name: n4, flavor: plain}, {name: n5, flavor: plain}]}
"""
    backend = backend_of(jobs_of(hosts), World(), tmp_path)
    backend._catalog = Flavors()
    assert "nearmetal-computed has not" in backend.why_apart("n1", "n2")
    for pair in (("n1", "n3"), ("n3", "n2"), ("n4", "n5")):
        assert "flavor plain shows none" in backend.why_apart(*pair)


@pytest.mark.parametrize(("value", "given"), [("true", True), ("False", False), (None, False)])
def test_servers_with_virtual_functions_need_locked_memory(value: str | None, given: bool) -> None:
    spec = spec_of("ssh: {}\n", NETWORKS, HOSTS.replace("FLAVOR", "plain"))
    specs = {EXTRA_SPEC: "64MiB"} | ({"hw:locked_memory": value} if value else {})
    found = shared_memory(spec, lambda name: Flavors(small=specs).get("flavor", name))
    assert (found.nodes, found.others) == ((("n1",), ("n2",)) if given else ((), ("n1", "n2")))
    named = "(network rdma), a flavor also needs the extra specs hw:locked_memory=true" in found.why
    assert named != given
    # Each reason has its own flavors.
    assert "flavor plain shows none" in found.why
    assert ("flavor small does not show hw:locked_memory" in found.why) != given


def test_hosts_of_one_node_say_nothing() -> None:
    spec = spec_of("apart: true\n", MADE, "hosts: [{name: h1, nodes: [{name: n1}]}]\n")
    found = shared_memory(spec, lambda name: Flavors(small={}).get("flavor", name))
    assert (found.nodes, found.others, [*found.notes([])]) == ((), (), [])


class Found:
    """Guests that find a segment after some looks; ssh itself fails for some of these."""

    def __init__(self, looks: dict[str, int], silent: dict[str, int] | None = None) -> None:
        self.looks, self.silent = looks, silent or {}
        self.logins: set[str] = set()

    def run_all(self, commands: list[Command], *, timeout_s: float) -> list[Completed]:
        assert timeout_s > 0
        ends = []
        for command in commands:
            (name,) = (word[13:] for word in command.argv if word.startswith("HostKeyAlias="))
            self.logins.add(command.argv[command.argv.index("-l") + 1])
            self.looks[name] -= 1
            self.silent[name] = self.silent.get(name, 0) - 1
            code = 255 if self.silent[name] >= 0 else int(self.looks[name] >= 0)
            ends.append(Completed(command, code, b"", b"No route to host" if code > 1 else b"", 0))
        return ends


def waiting(tmp_path: Path, found: Any) -> ServerGuests:
    guests = guests_of(tmp_path, jobs_of())
    guests._runner = found
    records = {n: GuestNode(machine="s", address="10.77.0.1", digest="d") for n in ("n1", "n2")}
    GuestRecords(tmp_path).write(records)
    return guests


@pytest.mark.parametrize(("n2", "left"), [(2, []), (1 << 30, ["n2"])])
def test_the_wait_for_segments_ends_with_the_last_or_at_its_time(
    n2: int, left: list[str], tmp_path: Path
) -> None:
    slept: list[float] = []
    found = Found({"n1": 0, "n2": n2})
    guests = waiting(tmp_path, found)
    assert guests.without_segment(["n1", "n2"], now=lambda: sum(slept), sleep=slept.append) == left
    assert sum(slept) == (60 if left else 2)
    assert found.looks["n1"] == -1
    # The user of jobs is another one in servers of Slurm.
    assert found.logins == {"root"}
    assert guests.without_segment([]) == []


def test_a_node_that_cannot_be_asked_is_no_node_without_a_segment(tmp_path: Path) -> None:
    slept: list[float] = []
    guests = waiting(tmp_path, Found({"n1": 0, "n2": 0}, {"n2": 3}))
    assert guests.without_segment(["n1", "n2"], now=lambda: sum(slept), sleep=slept.append) == []
    assert sum(slept) == 3
    guests = waiting(tmp_path, Found({"n1": 1 << 30, "n2": 0}, {"n2": 1 << 30}))
    words = "node n2: cannot be asked by ssh for its segment: No route to host"
    with pytest.raises(BackendError, match=words):
        guests.without_segment(["n1", "n2"], now=lambda: sum(slept), sleep=slept.append)


class Arrived:
    """Guests that are nodes at once, and one of which finds no segment."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def make_nodes(self, look: object) -> None:
        del look

    def without_segment(self, names: tuple[str, ...]) -> list[str]:
        self.asked += names
        return ["n2"]

    def lacking(self, world: World) -> dict[str, str]:
        del world
        return {}


def test_up_says_at_its_end_which_nodes_have_no_segment(tmp_path: Path) -> None:
    spec: OpenstackSpec = jobs_of()
    backend, guests = backend_of(spec, World(), tmp_path), Arrived()
    known: Any = guests
    backend._guests, backend._catalog = known, Flavors()
    # They may share memory, as machines of other backends.
    assert backend.apart == ""
    assert backend.why_apart("n1", "n2").startswith("their flavor gives them a segment")
    before = backend.observe().advice
    backend.finish()
    (note,) = backend.observe().advice
    assert (before, guests.asked) == ((), ["n1", "n2"])
    assert note.startswith("nodes n2, which share a hypervisor, use the network")


def test_a_removal_says_nothing_about_memory(tmp_path: Path) -> None:
    spec = jobs_of("hosts: [{name: h1, nodes: [{name: n1}, {name: n2, flavor: plain}]}]\n")
    backend = backend_of(spec, World(), tmp_path)
    backend._catalog = Flavors()
    assert removal(spec.name, backend.observe()).notes == ()
    (note,) = planned(backend).notes
    assert note.startswith("nodes n2, which share a hypervisor")
