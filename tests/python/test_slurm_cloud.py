# SPDX-License-Identifier: Apache-2.0
"""Launcher, reclaimer and watchdog over a cloud: a model of one stands behind their seam."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nearmetal.cli.slurm import show_status
from nearmetal.cli.view import View
from nearmetal.core.errors import BackendError, SlurmError
from nearmetal.slurm.backend import JobBackend, ThisNode, reclaim_ended
from nearmetal.slurm.container import ContainerRequest, Launched
from nearmetal.slurm.records import Instance
from nearmetal.slurm.remains import Holder
from tests.python.test_slurm import Slurm, no_vfs, record


@dataclass(frozen=True, kw_only=True)
class Server(Instance):
    """A server in the answer of the cloud's API: its own name, and the metadata of the job."""

    name: str
    status: str = "ACTIVE"

    def lives(self) -> bool:
        return self.status == "ACTIVE"


@dataclass
class Cloud:
    """A cloud with a quota and an API that can be made to fail: `nearmetal.slurm.JobBackend`."""

    quota: int = 3
    servers: dict[str, Server] = field(default_factory=dict)
    down: bool = False
    stuck: set[str] = field(default_factory=set)
    made: int = 0

    def launch(self, wish: ContainerRequest) -> Launched:
        self._answer()
        self.reclaim(wish.job)
        if len(self.servers) >= self.quota:
            return Launched(0, f"the quota of {self.quota} servers is used up")
        self.made += 1
        name = f"server-{self.made}"
        self.servers[name] = Server(wish.job, wish.uid, wish.node, 5.0, wish.request, name=name)
        return Launched(self.made)

    def reclaim(self, job: int, *, only: Server | None = None) -> bool:
        self._answer()
        mine = [s for s in self.servers.values() if s.job == job and only in (None, s)]
        for server in mine:
            if server.name in self.stuck:
                raise BackendError(f"job {job}: {server.name} is not deleted", "ask the cloud")
            del self.servers[server.name]
        return bool(mine)

    def found(self) -> list[Server]:
        self._answer()
        return sorted(self.servers.values(), key=lambda server: server.job)

    def settled(self) -> list[Server]:
        return self.found()

    def holders(self) -> list[Holder]:
        return []

    def _answer(self) -> None:
        if self.down:
            raise BackendError("the cloud does not answer")


def wish(job: int, node: str = "n1") -> ContainerRequest:
    return ContainerRequest(job, 1000, 1 << 20, 1 << 20, "node=vm", node)


def jobs(backend: JobBackend[Server]) -> list[int]:
    return [one.job for one in backend.found()]


def test_jobs_get_servers_and_a_prolog_run_again_makes_them_anew() -> None:
    cloud = Cloud()
    for job in (1, 2, 1):
        assert cloud.launch(wish(job)).refusal == ""
    assert sorted(cloud.servers) == ["server-2", "server-3"]
    assert cloud.launch(wish(3)).refusal == ""
    assert cloud.launch(wish(4)).refusal == "the quota of 3 servers is used up"
    assert jobs(cloud) == [1, 2, 3]
    assert cloud.reclaim(2)
    assert not cloud.reclaim(2)
    assert cloud.launch(wish(4)).pid


def test_the_watchdog_ends_servers_of_jobs_that_slurm_no_longer_has() -> None:
    cloud = Cloud(quota=9)
    for job, node in ((1, "n1"), (2, "n1"), (3, "n2"), (4, "n2")):
        cloud.launch(wish(job, node))
    slurm = Slurm({"n1": "1 R\n4 R\n", "n2": "3 CG\n"})
    # Job 4 runs again, on another node.
    assert reclaim_ended(slurm, cloud, drains=True) == (2, 4)
    assert jobs(cloud) == [1, 3]
    assert {words[0] for words in slurm.asked} == {"squeue"}


def test_no_answer_of_slurm_or_cloud_ends_nothing() -> None:
    cloud = Cloud()
    cloud.launch(wish(1))
    with pytest.raises(SlurmError, match="squeue does not list"):
        reclaim_ended(Slurm({}, 1), cloud, drains=True)
    assert jobs(cloud) == [1]
    cloud.down = True
    slurm = Slurm({})
    with pytest.raises(BackendError, match="does not answer"):
        reclaim_ended(slurm, cloud, drains=True)
    assert slurm.asked == []


def test_a_server_that_stays_drains_the_node_and_stops_nothing_else() -> None:
    cloud = Cloud()
    for job in (1, 2):
        cloud.launch(wish(job))
    cloud.stuck = {"server-1"}
    slurm = Slurm({})
    with pytest.raises(BackendError, match="job 1: server-1 is not deleted"):
        reclaim_ended(slurm, cloud, drains=True)
    assert jobs(cloud) == [1]
    (update,) = [words for words in slurm.asked if words[0] == "scontrol"]
    assert update[4] == "Reason=nearmetal: job 1: server-1 is not deleted"
    cloud.stuck.clear()
    assert reclaim_ended(slurm, cloud, drains=True) == (1,)


def test_a_server_made_after_the_verdict_stays() -> None:
    cloud = Cloud()
    cloud.launch(wish(1))
    (judged,) = cloud.found()
    cloud.launch(wish(1))
    assert not cloud.reclaim(1, only=judged)
    assert jobs(cloud) == [1]


def test_status_is_the_same_over_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = Cloud()
    state = tmp_path / "state"
    for job in (1, 2):
        cloud.launch(wish(job))
        record(state, job)
    told = []
    slurm = Slurm({"n1": "1 R\n"})
    assert show_status(slurm, cloud, View(as_json=True), no_vfs(tmp_path)) == 4
    told.append(json.loads(capsys.readouterr().out))
    assert show_status(slurm, ThisNode(state), View(as_json=True), no_vfs(tmp_path)) == 4
    told.append(json.loads(capsys.readouterr().out))
    for data in told:
        assert [(c["job"], c["node"], c["leak"]) for c in data["containers"]] == [
            (1, "n1", False),
            (2, "n1", True),
        ]
    assert show_status(slurm, cloud, View(as_json=False), no_vfs(tmp_path)) == 4
    assert re.search(r"^1 .* in use ", capsys.readouterr().out, re.MULTILINE)
