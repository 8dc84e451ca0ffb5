# SPDX-License-Identifier: Apache-2.0
"""Damaged records of servers: each is named with its fix, and all other jobs go on."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.apply import Cluster
from nearmetal.cluster.store import Store
from nearmetal.core.errors import SlurmError
from nearmetal.core.files import MAX_STATE
from nearmetal.core.process import Command, Completed
from nearmetal.slurm import cloud
from nearmetal.slurm.backend import OfJob, ThisNode, reclaim_ended
from nearmetal.slurm.records import containers
from nearmetal.slurm.servers import AGAIN_S, JobServers, ServerStore
from tests.python.test_slurm import Slurm, no_vfs, record
from tests.python.test_slurm_servers import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def damage(path: Path, how: str | dict[str, object]) -> None:
    """Make a record what another program, a disk or a person may make of it."""
    if isinstance(how, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | how))
    elif how == "link":
        path.symlink_to(path.rename(path.parent / "elsewhere"))
    elif how == "link to nothing":
        path.unlink()
        path.symlink_to("/nowhere")
    elif how == "readable by others":
        path.chmod(0o640)
    elif how == "huge":
        os.truncate(path, MAX_STATE + 1)
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.write_text(how)


@pytest.mark.parametrize(
    "how",
    [
        *("{", "[]", "{}", '{"job": 7}', "[" * 200_000),
        *("link", "link to nothing", "readable by others", "huge", "pipe"),
        # Another job's number; names that lead out of the state, or to another job's servers.
        *({"job": 70}, {"name": "job-70-00000000"}, {"name": "../../etc"}),
        *({"job": True}, {"uid": "0"}, {"spec": None}, {"nr": 1.5}, {"nr": -3}, {"nr": 10**6}),
        *({"ended": float("nan")}, {"ended": float("inf")}, {"ended": -1}, {"doubtful": True}),
        *({"clouds": "clouds.yaml"}, {"clouds": "/a\0b"}, {"fault": "\x1b[2J"}, {"node": "n\n"}),
    ],
    ids=lambda how: str(how)[:40],
)
def test_a_damaged_record_is_named_and_stops_nothing_else(
    how: str | dict[str, object], site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = site.prepared(7, 1), site.prepared(70, 1)
    site.make(other)
    path = site.store.path_of(one)
    damage(path, how)
    assert [*site.store.every()] == [other]
    assert [(bad.job, bad.path) for bad in site.store.damaged()] == [(7, path)]
    # A job starts; the servers of another job are removed, and Slurm's node stays in service.
    site.prepared(8, 1)
    shutil.rmtree(site.folder / "state")
    slurm = Slurm({"n1": "7 R\n"})
    with pytest.raises(SlurmError, match=f"^{path} is damaged$") as caught:
        reclaim_ended(slurm, site.node, drains=True)
    assert caught.value.hint.startswith("remove the servers job-7-")
    assert [*site.store.every()] == []
    assert "scontrol" not in {words[0] for words in slurm.asked}
    assert site.cloud.names() == []
    # Its own epilog says so, and succeeds.
    record(site.folder / "state", 7)
    assert site.node.reclaim(7)
    assert f"job 7: servers: {path} is damaged: remove" in capsys.readouterr().err
    with pytest.raises(SlurmError, match="is damaged"):
        site.node.reclaim(7)
    assert os.path.lexists(path)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"spec": "{}"}, "the record of their spec is damaged"),
        ({"spec": "[" * 200_000}, "the record of their spec is damaged"),
        ({"mark": "theirs"}, "is damaged"),
        ({"clouds": "/dev/null"}, "/dev/null is not a regular file"),
    ],
)
def test_what_a_sound_record_names_may_be_damaged(
    words: dict[str, object], fault: str, site: Site
) -> None:
    one, other = site.prepared(7, 1), site.prepared(70, 1)
    store = ServerStore(site.root, cloud.opened)
    for each in (one, other):
        site.make(each)
    if "mark" in words:
        # As after a removal in doubt.
        shutil.rmtree(Store(site.root).cluster(one.name))
        words = words | {"doubtful": True, "ended": 1.0}
    damage(site.store.path_of(one), words)
    (damaged,) = site.store.every(7)
    assert fault in store.end(damaged)
    assert "server job-7-0" in site.cloud.names()
    assert site.store.end(other) == ""


def test_servers_of_another_cluster_are_not_those_of_a_record(site: Site) -> None:
    one, other = site.prepared(7, 1), site.prepared(70, 1)
    site.make(other)
    site.store.keep(replace(one, spec=other.spec))
    (wrong,) = site.store.every(7)
    with pytest.raises(SlurmError, match="the record of their spec is damaged"):
        cloud.spec_on_record(wrong)
    assert "server job-70-0" in site.cloud.names()


def test_a_node_that_slurm_does_not_know_stops_nothing_else(site: Site) -> None:
    one, old = site.prepared(7, 1), site.prepared(8, 1)
    site.store.keep(replace(old, node="renamed"))
    shutil.rmtree(site.folder / "state")

    class Renamed(Slurm):
        def run(self, command: Command, *, timeout_s: float) -> Completed:
            done = super().run(command, timeout_s=timeout_s)
            return replace(done, code=int("--nodelist=renamed" in command.argv))

    with pytest.raises(SlurmError, match="squeue does not list the jobs"):
        reclaim_ended(Renamed({}), site.node, drains=True)
    assert [left.job for left in site.store.every()] == [8]
    assert one.name not in "".join(site.files())


def test_an_error_that_nobody_foresaw_stops_nothing_else(site: Site) -> None:
    one, other = site.prepared(7, 1), site.prepared(8, 1)
    for each in (one, other):
        site.make(each)
    shutil.rmtree(site.folder / "state")

    def odd(asked: JobServers, root: Path) -> Cluster:
        if asked.job == 7:
            raise KeyError("addresses\x1b")
        return site.opened(asked, root)

    node = replace(site.node, store=ServerStore(site.root, odd))
    with pytest.raises(SlurmError, match="stay in the cloud: KeyError: 'addresses"):
        reclaim_ended(Slurm({}), node, drains=True)
    (left,) = site.store.every()
    assert (left.job, left.fault) == (7, r"KeyError: 'addresses\x1b'")
    # The record says what it needs, and is no damaged one.
    assert reclaim_ended(Slurm({}), site.node, drains=True) == (7,)
    assert site.cloud.names() == []


def test_an_error_of_one_container_stops_no_other_and_drains_its_node(tmp_path: Path) -> None:
    class Odd(ThisNode):
        def reclaim(self, job: int, *, only: OfJob | None = None) -> bool:
            if job == 7:
                raise ValueError("not a number")
            return super().reclaim(job, only=only)

    for job in (7, 8):
        record(tmp_path, job, about='{"uid": 1000, "node": "n1"}')
    slurm = Slurm({})
    with pytest.raises(SlurmError, match=r"^job 7: ValueError: not a number$"):
        reclaim_ended(slurm, Odd(tmp_path, no_vfs(tmp_path)), drains=True)
    assert [one.job for one in containers(tmp_path)] == [7]
    (drained,) = [words for words in slurm.asked if words[:2] == ("scontrol", "update")]
    assert "Reason=nearmetal: job 7: ValueError: not a number" in drained


def test_all_that_does_not_end_is_named(site: Site) -> None:
    for job in (7, 8):
        site.store.path_of(site.prepared(job, 1)).write_text("")
    with pytest.raises(SlurmError, match=r"job-7-\w+.json is damaged; .*job-8-\w+.json is damaged"):
        reclaim_ended(Slurm({}), site.node, drains=True)


def test_a_clock_that_was_set_back_delays_no_last_look(site: Site) -> None:
    one = replace(site.prepared(7, 1), doubtful=True, mark="0" * 24 + "\n")
    now = time.time()
    for ended, due in ((now, False), (now - AGAIN_S, True), (now + 2 * AGAIN_S, True)):
        assert replace(one, ended=ended).is_leak(known=True) == due


def test_numbers_of_a_container_that_are_none_stop_nothing_else(tmp_path: Path) -> None:
    record(tmp_path, 7, about='{"uid": NaN, "since": Infinity, "node": "n1"}')
    record(tmp_path, 8)
    first, _ = containers(tmp_path)
    assert (first.job, first.uid, first.since) == (7, -1, 0.0)
    assert reclaim_ended(Slurm({}), ThisNode(tmp_path), drains=True) == (7, 8)
