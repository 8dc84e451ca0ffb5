# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.cluster.apply import Cluster, describe, down, plan_up, up
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.resource import Key, Kind, Observed
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store, state_directory
from nearmetal.core.errors import BackendError, Interrupted, LockedError, StateError
from nearmetal.core.files import MAX_STATE
from nearmetal.core.journal import Event, Journal
from nearmetal.core.lock import locked
from nearmetal.core.progress import Silent
from tests.python.fake_backend import FakeBackend

TEXT = """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1}, {name: n2}]}]
"""
ORDER = ["+c", "+bridge", "+h", "+n1", "+n2"]


@pytest.fixture
def spec() -> ClusterSpec:
    return parse_spec(TEXT)


def cluster_in(path: Path, backend: FakeBackend) -> Cluster:
    return Cluster("c", backend, Store(path / "state"))


def test_up_makes_in_order_and_a_second_time_nothing(tmp_path: Path, spec: ClusterSpec) -> None:
    backend = FakeBackend()
    cluster = cluster_in(tmp_path, backend)
    assert not up(cluster, spec).empty
    assert backend.steps == ORDER
    assert up(cluster, spec).empty
    assert backend.steps == ORDER
    assert cluster.journal.unfinished() is None


def test_up_shows_the_notes_of_its_end(tmp_path: Path, spec: ClusterSpec) -> None:
    class Noting(FakeBackend):
        def observe(self) -> Observed:
            note = "all is there" if len(self.there) == len(ORDER) else "something is missing"
            return replace(super().observe(), notes=(note,))

    assert up(cluster_in(tmp_path, Noting()), spec).notes == ("all is there",)


@pytest.mark.parametrize("step", range(5))
def test_a_failure_at_any_step_is_taken_up(tmp_path: Path, spec: ClusterSpec, step: int) -> None:
    backend = FakeBackend(fail_at=step)
    cluster = cluster_in(tmp_path, backend)
    with pytest.raises(BackendError):
        up(cluster, spec)
    last = cluster.journal.read()[-1]
    assert last.event == Event.FAILED.value
    assert "failed" in last.detail
    backend.fail_at = -1
    up(cluster, spec)
    assert plan_up(cluster, spec).empty


class InterruptedAt(Silent):
    """An interrupt after a step has begun, in our own code."""

    def step(self, text: str) -> None:
        if text == "make node n2":
            raise Interrupted(signal.SIGINT)


def test_a_backend_is_told_of_an_interrupt_anywhere_in_an_up(
    tmp_path: Path, spec: ClusterSpec
) -> None:
    backend = FakeBackend()
    with pytest.raises(Interrupted) as caught:
        up(cluster_in(tmp_path, backend), spec, progress=InterruptedAt())
    assert caught.value.hint == "the backend left"
    assert backend.steps == ORDER[:-1]


def test_another_spec_is_refused_with_the_difference(tmp_path: Path, spec: ClusterSpec) -> None:
    backend = FakeBackend()
    cluster = cluster_in(tmp_path, backend)
    up(cluster, spec)
    other = parse_spec(TEXT.replace("{name: n2}", "{name: n3, slots: 2}"))
    with pytest.raises(StateError) as caught:
        up(cluster, other)
    assert "already up under another spec" in caught.value.message
    assert "- node n2" in caught.value.message
    assert "--replace" in caught.value.hint
    assert backend.steps == ORDER
    up(cluster, other, replace=True)
    assert plan_up(cluster, other).empty
    assert backend.steps == [*ORDER, "-n2", "+n3"]


def test_nodes_may_be_added_without_replace(tmp_path: Path, spec: ClusterSpec) -> None:
    backend = FakeBackend(cpus=(0, 1, 2))
    cluster = cluster_in(tmp_path, backend)
    up(cluster, spec)
    up(cluster, parse_spec(TEXT.replace("{name: n2}", "{name: n2}, {name: n3}")))
    assert backend.steps == [*ORDER, "+n3"]


def test_a_dead_node_is_removed_and_made_again(tmp_path: Path, spec: ClusterSpec) -> None:
    backend = FakeBackend()
    cluster = cluster_in(tmp_path, backend)
    up(cluster, spec)
    backend.broken.add(Key(Kind.NODE, "n1"))
    up(cluster, spec)
    assert backend.steps == [*ORDER, "-n1", "+n1"]


def test_a_backend_that_does_not_do_what_it_says_is_noticed(
    tmp_path: Path, spec: ClusterSpec
) -> None:
    class Forgetful(FakeBackend):
        def create(self, item: object, spec: ClusterSpec) -> None:
            self.steps.append(f"forgot {item} of {spec.name}")

    with pytest.raises(StateError, match=r"not as planned: \+ cluster c"):
        up(cluster_in(tmp_path, Forgetful()), spec)


def test_down_leaves_no_state(tmp_path: Path, spec: ClusterSpec) -> None:
    backend = FakeBackend()
    cluster = cluster_in(tmp_path, backend)
    assert down(cluster).empty
    assert list(tmp_path.iterdir()) == []
    up(cluster, spec)
    assert next(str(c.key) for c in down(cluster).changes) == "node n2"
    assert backend.there == {}


def test_the_lock_names_its_holder_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with (
        locked(path, "c"),
        pytest.raises(LockedError, match=f"process {os.getpid()}"),
        locked(path, "c"),
    ):
        pytest.fail("two holders at once")
    assert not path.exists()
    with locked(path, "c"):
        assert path.exists()


def test_up_is_refused_while_another_works(tmp_path: Path, spec: ClusterSpec) -> None:
    cluster = cluster_in(tmp_path, FakeBackend())
    cluster.store.prepare()
    with locked(cluster.store.lock("c"), "c"), pytest.raises(LockedError):
        up(cluster, spec)


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("up", "make node n1", Event.BEGIN)
    with journal.path.open("a") as stream:
        stream.write('{"time_s": 1.0, "verb": "up", "st')
    last = journal.unfinished()
    assert last is not None
    assert last.step == "make node n1"


def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.read() == []
    journal.path.touch()
    os.truncate(journal.path, MAX_STATE + 1)
    with pytest.raises(StateError, match=rf"{journal.path}: larger than 64 MiB"):
        journal.unfinished()
    journal.path.unlink()
    journal.path.mkdir()
    with pytest.raises(StateError, match=rf"{journal.path}: it is a directory"):
        journal.read()


def test_the_state_directory_is_private_and_ours(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.prepare()
    assert store.root.stat().st_mode & 0o777 == 0o700
    store.root.chmod(0o777)
    with pytest.raises(StateError, match="not yours alone"):
        store.prepare()
    store.root.chmod(0o700)
    store.tidy()
    assert not store.root.exists()


def test_where_state_lies(tmp_path: Path) -> None:
    given = {"NEARMETAL_STATE_DIR": str(tmp_path), "XDG_STATE_HOME": "/x"}
    assert state_directory(given, 0) == state_directory(given, 1000) == tmp_path
    assert state_directory({"XDG_STATE_HOME": "/x"}, 1000) == Path("/x/nearmetal")
    assert state_directory({}, 1000) == Path.home() / ".local" / "state" / "nearmetal"
    assert state_directory({"XDG_STATE_HOME": "/x"}, 0) == Path("/var/lib/nearmetal")


def test_an_unwritable_state_directory_is_an_error_in_words() -> None:
    with pytest.raises(StateError, match="cannot make the state directory") as caught:
        Store(Path("/proc/nearmetal")).prepare()
    assert "NEARMETAL_STATE_DIR" in caught.value.hint


VSPHERE = """\
version: 1
name: c
backend: vsphere
vcenter: {server: vc, user: u}
machine: {template: t}
hosts: [{name: h, nodes: [{name: n1, vcpus: 2}, {name: n2}]}]
"""


def test_what_changes_in_place_is_not_removed_and_needs_no_replace(tmp_path: Path) -> None:
    backend = FakeBackend()
    cluster = cluster_in(tmp_path, backend)
    up(cluster, parse_spec(VSPHERE))
    other = parse_spec(VSPHERE.replace("vcpus: 2", "vcpus: 4"))
    plan = up(cluster, other)
    assert backend.steps == ["+c", "+n1", "+n2", "~n1"]
    outage = "outage for vcpus: shutdown of the guest, power off after 180 s, then on again"
    assert [describe(c) for c in plan.effective] == [
        f"~ node n1: vcpus 2 -> 4 (in place; {outage})"
    ]
    assert plan_up(cluster, other).empty
    assert cluster.store.recorded("c") == other
