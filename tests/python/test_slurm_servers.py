# SPDX-License-Identifier: Apache-2.0
"""Servers of jobs in a cloud: settings, limits, records, and an end after a death at any step."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.apply import Cluster, up
from nearmetal.cluster.backends.openstack.driver import OpenstackBackend
from nearmetal.cluster.backends.openstack.guests import ServerGuests
from nearmetal.cluster.backends.openstack.world import Catalog
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, SlurmError, SpecError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.slurm import cloud, servers
from nearmetal.slurm.backend import ThisNode, leaks, reclaim_ended
from nearmetal.slurm.container import ContainerRequest, RefusedError, ServerRequest
from nearmetal.slurm.servers import AGAIN_S, FAULT, JobServers, ServerStore
from tests.python.cloud_model import KilledError, ModelCloud
from tests.python.test_slurm import Slurm, no_vfs, record

SETTINGS = """\
version: 1
cloud: lab
clouds: {clouds}
images: {{default: hpc, big: hpc-big}}
flavor: small
networks: [{{name: mpi, subnet: 10.77.0.0/24}}]
max_servers: 4
"""


PORT: dict[str, Any] = {"device_owner": "", "mac_address": "fa:16:3e:11:11:11", "fixed_ips": []}


class SilentGuests(ServerGuests):
    """Guests that nobody waits for: what happens in machines is tested with real ones."""

    def make_nodes(self, look: object) -> None:
        del look
        (self._directory / "known_hosts").write_text("job-7-0 ssh-ed25519 AAAA\n")

    def lacking(self, world: object) -> dict[str, str]:
        del world
        return {}


class TornBackend(OpenstackBackend):
    """A backend whose user may die between the removals of two files, in any order of them."""

    cloud: ModelCloud

    def _forget(self) -> None:
        files = [path for path in self._directory.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (path.name != "mark", path.name)):
            self.cloud.step(path.unlink)
        super()._forget()


@dataclass(frozen=True)
class SteppedStore(ServerStore):
    """Records whose writer may die at each."""

    cloud: ModelCloud = field(default_factory=ModelCloud)

    def keep(self, one: JobServers) -> None:
        self.cloud.step(lambda: ServerStore.keep(self, one))

    def forget(self, one: JobServers) -> None:
        self.cloud.step(lambda: ServerStore.forget(self, one))


@dataclass(frozen=True)
class LateStore(ServerStore):
    """Records of which others go while one is written."""

    other: JobServers | None = None

    def path_of(self, one: JobServers) -> Path:
        if self.other is not None and one != self.other:
            ServerStore(self.root).forget(self.other)
        return super().path_of(one)


class HangingCloud(ModelCloud):
    """A cloud that may not answer, for a library that goes on after any error."""

    hangs = False

    def servers(self, **words: Any) -> list[Any]:
        if self.hangs:
            with contextlib.suppress(Exception):
                time.sleep(60)
            time.sleep(60)
        return super().servers(**words)


@dataclass
class Site:
    """A node of Slurm with records of its own, beside a cloud."""

    folder: Path
    cloud: ModelCloud = field(default_factory=ModelCloud)

    @property
    def root(self) -> Path:
        return self.folder / "store"

    @property
    def store(self) -> ServerStore:
        return ServerStore(self.root, self.opened)

    @property
    def stepped(self) -> ServerStore:
        return SteppedStore(self.root, self.opened, cloud=self.cloud)

    @property
    def node(self) -> ThisNode:
        return ThisNode(self.folder / "state", no_vfs(self.folder), self.store)

    def write(self, text: str = SETTINGS) -> Path:
        path, clouds = self.folder / "openstack.yaml", self.folder / "clouds.yaml"
        clouds.touch(0o600)
        path.touch(0o600)
        path.write_text(text.format(clouds=clouds))
        return path

    def wish(self, job: int, nr: int = 2, image: str = "default", nodes: str = "n1") -> Any:
        asked = ServerRequest(image, nr, nodes, self.write())
        uid = os.getuid()
        return ContainerRequest(job, uid, 1 << 20, 1 << 20, "r", "n1", servers=asked)

    def prepared(self, job: int, nr: int = 2, **words: str) -> JobServers:
        records = self.folder / "state" / f"job-{job}"
        records.mkdir(parents=True, exist_ok=True)
        wish = self.wish(job, nr, **words)
        one, _ = cloud.prepare(wish, records, Expands(), self.store)
        return one

    def opened(
        self, one: JobServers, root: Path, kind: type[OpenstackBackend] = TornBackend
    ) -> Cluster:
        spec = cloud.spec_on_record(one)
        store, runner = Store(root), LocalRunner()
        backend = kind(spec, store, runner)
        backend._session = self.cloud
        backend._catalog = Catalog(self.cloud)
        backend._guests = SilentGuests(spec, self.cloud, store.cluster(one.name), runner)
        if isinstance(backend, TornBackend):
            backend.cloud = self.cloud
        return Cluster(one.name, backend, store)

    def make(self, one: JobServers) -> None:
        up(self.opened(one, self.root), cloud.spec_on_record(one))

    def later(self, one: JobServers) -> JobServers:
        """Return a record as if the time until the last look had passed."""
        aged = replace(one, ended=one.ended - AGAIN_S)
        self.store.keep(aged)
        return aged

    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*"))


class Expands(LocalRunner):
    """Answers as `scontrol show hostnames`, of names with commas between."""

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert command.argv[:3] == ("scontrol", "show", "hostnames")
        return Completed(command, 0, command.argv[3].replace(",", "\n").encode(), b"", timeout_s)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# Settings and requests


def test_the_spec_is_the_sites_and_the_number_is_the_users(site: Site) -> None:
    one = site.prepared(12, 3, image="big")
    spec = cloud.spec_on_record(one)
    assert [(n.name, n.slots) for _, n in spec.nodes] == [(f"job-12-{i}", 1) for i in range(3)]
    assert (spec.image, spec.flavor, spec.groups) == ("hpc-big", "small", {"n1": "affinity"})
    assert spec.name == one.name
    assert one.name.startswith("job-12-")
    assert (site.folder / "state/job-12/machines").read_text() == "job-12-0\njob-12-1\njob-12-2\n"


@pytest.mark.parametrize(
    ("policy", "groups"), [("anti-affinity", {"apart": "anti-affinity"}), ("none", {})]
)
def test_the_policy_of_the_group_is_the_sites(
    policy: str, groups: dict[str, str], site: Site
) -> None:
    path = site.write(f"{SETTINGS}group: {policy}\n")
    spec = cloud.spec_of(cloud.settings_of(path), "job-1-x", site.wish(1, 2), "hpc")
    assert spec.groups == groups


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"image": "huge"}, "--nm-image=huge: no such image for servers; there are: big default"),
        ({"nodes": "n1,n2"}, "give -N1, and --nm-vms-per-node for more servers"),
        ({"nr": 5}, "jobs of node n1 have 4 servers at most, of which 0 are in use"),
    ],
)
def test_what_a_user_cannot_have_is_refused_before_anything_is_on_record(
    words: dict[str, Any], reason: str, site: Site
) -> None:
    with pytest.raises(RefusedError) as caught:
        site.prepared(1, **words)
    assert reason in caught.value.message
    assert not site.root.exists()


def test_the_limit_counts_what_all_jobs_of_the_node_have(site: Site) -> None:
    first = site.prepared(1, 2)
    site.prepared(2, 2)
    with pytest.raises(RefusedError, match="of which 4 are in use, and this job wants 1"):
        site.prepared(3, 1)
    # What stays in a cloud that fails is still there.
    site.make(first)
    site.cloud.down = True
    assert "no answer" in site.store.end(first)
    with pytest.raises(RefusedError, match="of which 4"):
        site.prepared(3, 1)
    site.cloud.down = False
    assert site.store.end(site.store.every()[0]) == ""
    assert site.prepared(3, 1).nr == 1


@pytest.mark.parametrize("name", ["openstack.yaml", "clouds.yaml"])
def test_nobody_but_root_may_read_what_leads_to_the_credentials(name: str, site: Site) -> None:
    path = site.write()
    (site.folder / name).chmod(0o640)
    with pytest.raises(SlurmError, match=f"{name}: others than root may read"):
        cloud.settings_of(path)
    (site.folder / name).unlink()
    with pytest.raises(SlurmError, match=f"{name}: No such file"):
        cloud.settings_of(path)
    (site.folder / name).symlink_to("/etc/hosts")
    with pytest.raises(SlurmError, match=f"{name} is not a regular file"):
        cloud.settings_of(path)


def test_wrong_settings_are_named(site: Site) -> None:
    with pytest.raises(SpecError, match=r"openstack\.yaml:8:1: unknown key 'flavour'"):
        cloud.settings_of(site.write(SETTINGS + "flavour: x\n"))
    for old, new, words in (
        ("default: hpc,", "", "there is no `default`"),
        ("big: hpc-big", "big: /x.raw", "image big is a path"),
    ):
        with pytest.raises(SlurmError, match=words):
            cloud.settings_of(site.write(SETTINGS.replace(old, new)))
    settings = cloud.settings_of(site.write(SETTINGS + "floating: true\n"))
    with pytest.raises(SlurmError, match="floating addresses: need an external network"):
        cloud.spec_of(settings, "job-1-x", site.wish(1), "hpc")


# Records and ends


def test_servers_are_on_record_before_anything_is_made_and_until_all_is_gone(site: Site) -> None:
    one = site.prepared(7)
    assert [*site.store.every()] == [one]
    assert (site.root / "jobs").stat().st_mode & 0o77 == 0
    site.make(one)
    kinds = [name.partition(" ")[0] for name in site.cloud.names()]
    assert kinds == ["network", "port", "port", "server", "server", "server_group", "subnet"]
    assert site.store.end(one) == ""
    assert site.cloud.names() == []
    assert site.files() == ["jobs"]


def test_the_end_of_one_job_takes_no_directory_from_another(site: Site) -> None:
    first = site.prepared(7)
    second = replace(first, job=8, name="job-8-00000000")
    LateStore(site.root, site.opened, other=first).keep(second)
    assert [*site.store.every()] == [second]


def test_servers_that_were_never_begun_need_no_cloud_to_end(site: Site) -> None:
    one = site.prepared(7)
    site.cloud.down = True
    with pytest.raises(BackendError, match="no answer"):
        site.make(one)
    assert site.store.end(one) == ""
    assert [name for name in site.files() if "job-7" in name] == []


def others(site: Site) -> list[str]:
    """Another job and another user have something, which must stay."""
    other = site.prepared(70, 1)
    site.make(other)
    site.cloud._make("port", name="theirs", description="", network_id="x", device_id="", **PORT)
    return site.cloud.names()


@pytest.mark.parametrize("how", ["before", "after", "late"])
def test_a_keeper_that_dies_at_any_step_leaves_nothing(how: str, site: Site) -> None:
    stay = others(site)
    for number in itertools.count(1):
        site.cloud.steps, site.cloud.die_at, site.cloud.how = 0, number, how
        one = site.prepared(7)
        try:
            site.make(one)
        except KilledError:
            pass
        else:
            break
        site.cloud.die_at = 0
        assert site.store.end(one) == ""
        site.cloud.settle()
        # What came late is found by the last look, which only then forgets.
        left = [one for one in site.store.every() if one.job == 7]
        assert [one.doubtful for one in left] == [True]
        assert not left[0].is_leak(known=False)
        left = [site.later(left[0])]
        assert left[0].is_leak(known=True)
        assert site.store.end(left[0]) == ""
        assert site.cloud.names() == stay
        assert [one.job for one in site.store.every()] == [70]
    assert number > 6


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_reclaimer_that_dies_at_any_step_is_followed_by_another(how: str, site: Site) -> None:
    stay = others(site)
    for number in itertools.count(1):
        site.cloud.die_at = 0
        one = site.prepared(7)
        site.make(one)
        site.cloud.steps, site.cloud.die_at, site.cloud.how = 0, number, how
        try:
            assert site.stepped.end(one) == ""
        except KilledError:
            site.cloud.die_at = 0
            for left in site.store.every(7):
                assert site.store.end(left) == ""
        else:
            break
        assert site.cloud.names() == stay
        assert [one.job for one in site.store.every()] == [70]
        assert [name for name in site.files() if "job-7-" in name] == []
    assert number > 8


def test_a_cloud_that_fails_may_hold_a_request_until_it_works_again(site: Site) -> None:
    site.cloud.die_at, site.cloud.how = 6, "late"
    one = site.prepared(7)
    with pytest.raises(KilledError):
        site.make(one)
    site.cloud.down = True
    assert "no answer" in site.store.end(one)
    # It is down for longer than the time until the last look.
    (left,) = site.store.every()
    assert "no answer" in site.store.end(site.later(left))
    site.cloud.down = False
    (left,) = site.store.every()
    assert site.store.end(left) == ""
    site.cloud.settle()
    assert site.cloud.names() != []
    (left,) = site.store.every()
    assert not left.is_leak(known=False)
    assert site.store.end(site.later(left)) == ""
    assert site.cloud.names() == []
    assert [*site.store.every()] == []


def test_an_epilog_does_not_wait_for_a_cloud_that_hangs(tmp_path: Path) -> None:
    hanging = HangingCloud()
    site = Site(tmp_path, hanging)
    one, before = site.prepared(7), signal.getsignal(signal.SIGALRM)
    site.make(one)
    hanging.hangs = True
    began = time.monotonic()
    said = ServerStore(site.root, site.opened, most_s=0.05).end(one)
    assert said == "they are not removed after 0.05 s"
    assert time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGALRM) == before
    hanging.hangs = False
    (left,) = site.store.every()
    assert left.is_leak(known=True)
    assert site.store.end(left) == ""
    assert site.cloud.names() == []


def test_a_cloud_that_fails_keeps_its_servers_on_record_and_drains_no_node(site: Site) -> None:
    one = site.prepared(7)
    site.make(one)
    record(site.folder / "state", 8)
    directory = site.folder / "state" / "job-7"
    (directory / "about").write_text('{"uid": 1000, "node": "n1"}')
    site.cloud.down = True
    assert site.node.reclaim(7)
    assert not directory.exists()
    (left,) = site.store.every()
    assert "no answer" in left.fault
    assert [c.job for c in site.node.found()] == [8, 7]
    # The job may even run again, with other servers.
    slurm = Slurm({"n1": "7 R\n8 R\n"})
    assert leaks(slurm, site.node.settled()) == (left,)
    with pytest.raises(SlurmError, match=r"its servers job-7-[0-9a-f]+ stay in the cloud"):
        reclaim_ended(slurm, site.node, drains=True)
    assert "scontrol" not in {words[0] for words in slurm.asked}
    site.cloud.down = False
    assert reclaim_ended(slurm, site.node, drains=True) == (7,)
    assert site.cloud.names() == []
    assert [*site.store.every()] == []


def test_after_a_reboot_of_the_node_the_servers_of_its_jobs_are_leaks(site: Site) -> None:
    ran, runs = site.prepared(7, 1), site.prepared(8, 1)
    for one in (ran, runs):
        site.make(one)
    shutil.rmtree(site.folder / "state")
    record(site.folder / "state", 8)
    assert [getattr(one, "name", "") for one in site.node.found()] == ["", ran.name]
    assert reclaim_ended(Slurm({"n1": "8 R\n"}), site.node, drains=True) == (7,)
    assert [*site.store.every()] == [runs]


def test_servers_of_a_job_that_starts_again_are_not_those_of_before(site: Site) -> None:
    before = site.prepared(7, 1)
    site.make(before)
    shutil.rmtree(site.folder / "state")
    again = site.prepared(7, 1)
    site.make(again)
    (old,) = [one for one in site.store.every() if one.ended]
    assert (old.name, old.fault) == (before.name, servers.UNASKED)
    # They are there until the watchdog has removed them.
    with pytest.raises(RefusedError, match="of which 2 are in use, and this job wants 3"):
        site.prepared(8, 3)
    shutil.rmtree(site.folder / "state/job-8")
    assert reclaim_ended(Slurm({"n1": "7 R\n"}), site.node, drains=True) == (7,)
    assert [*site.store.every()] == [again]
    assert "server job-7-0" in site.cloud.names()


def test_the_prolog_of_a_job_that_starts_again_asks_no_cloud(site: Site) -> None:
    before = site.prepared(7, 1)
    site.make(before)
    there = site.cloud.names()
    with pytest.raises(SlurmError, match="does not name its nodes"):
        site.node.launch(site.wish(7, nodes=""))
    (old,) = site.store.every()
    assert (old.name, old.fault) == (before.name, servers.UNASKED)
    assert site.cloud.names() == there


def test_a_verdict_on_servers_that_have_changed_since_ends_nothing(site: Site) -> None:
    one = site.prepared(7, 1)
    site.make(one)
    assert not site.node.reclaim(7, only=replace(one, fault="x"))
    record(site.folder / "state", 8)
    assert not site.node.reclaim(7, only=one), "its container stands for it"
    assert "server job-7-0" in site.cloud.names()
    shutil.rmtree(site.folder / "state")
    assert site.node.reclaim(7)
    assert site.cloud.names() == []


def test_the_log_of_slurmd_says_why_a_job_had_no_servers(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = record(site.folder / "state", 7)
    (directory / FAULT).write_text("the quota is used up\n")
    assert site.node.reclaim(7)
    assert "job 7: servers: the quota is used up\n" in capsys.readouterr().err
