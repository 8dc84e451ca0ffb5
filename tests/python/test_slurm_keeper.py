# SPDX-License-Identifier: Apache-2.0
"""The keeper of a job's servers: what tasks get of it, and how both ends open the cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.driver import OpenstackBackend
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, NearmetalError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.core.ssh import Login
from nearmetal.image.seed import SeedUser
from nearmetal.slurm import cloud, keeper
from nearmetal.slurm.keeper import Consoles
from nearmetal.slurm.servers import FAULT
from tests.python.test_slurm import Slurm
from tests.python.test_slurm_servers import Site

HOME = SeedUser(name="ann", uid=os.getuid(), gid=os.getgid(), home="/u/ann")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def kept(folder: Path, work: Any) -> str:
    """Run the keeper; returns what the console of the first server shows."""
    records, place, before = folder / "records", folder / "place", Path.cwd()
    for directory in (records, place):
        directory.mkdir()
    descriptor = os.open(records, os.O_PATH)
    try:
        keeper.keep(work, Consoles(["job-7-0", "job-7-1"], place), descriptor)
    finally:
        os.chdir(before)
        os.close(descriptor)
    return (place / "job-7-0.console").read_text()


def test_consoles_say_what_became_of_servers(tmp_path: Path) -> None:
    text = kept(tmp_path, lambda say: say("make network mpi"))
    assert text == "make network mpi\nnearmetal: ready job-7-0 \n"
    assert [*(tmp_path / "records").iterdir()] == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BackendError("no\n  room " + "x" * 400, "ask\x1b"), "no room xxx"),
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
    ],
)
def test_consoles_and_a_record_say_why_there_are_no_servers(
    error: Exception, words: str, tmp_path: Path
) -> None:
    def fails(_: object) -> None:
        raise error

    text = kept(tmp_path, fails)
    assert f"nearmetal: failed job-7-0: {words}" in text.splitlines()[-1]
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 160
    assert (tmp_path / "records" / FAULT).read_text().startswith(words)


def test_slurm_shows_why_a_job_has_no_servers() -> None:
    slurm = Slurm({})
    keeper.explain(slurm, 7, "the quota; of\\n 'the' project=" + "x" * 600)
    ((*words, text),) = slurm.asked
    assert words == ["scontrol", "update", "JobId=7"]
    assert text.startswith("AdminComment=nearmetal: the quota; of\\n 'the' project=xxx")
    assert len(text) == len("AdminComment=nearmetal: ") + 500
    keeper.explain(slurm, 7, "")
    assert len(slurm.asked) == 1
    # The reason is elsewhere as well, and a Slurm that does not answer is no fault of the job.
    slurm.broken = {"scontrol"}
    keeper.explain(slurm, 7, "no room")


@dataclass(frozen=True)
class NotedNodes(Nodes):
    """Nodes that run nothing."""

    commands: list[Command] = field(default_factory=list)

    def run_all(
        self, commands: Mapping[str, Command], what: str, *, timeout_s: float = 1
    ) -> list[Completed]:
        del what, timeout_s
        self.commands.extend(commands.values())
        return []


class GatedBackend(OpenstackBackend):
    """A backend whose second node is reached by the first."""

    def nodes(self) -> NotedNodes:
        gate = Login("10.0.0.5", "root", options={"HostKeyAlias": "job-7-0"})
        where = {"job-7-0": ("10.0.0.5", None), "job-7-1": ("10.77.0.4", gate)}
        return NotedNodes(self._directory, where, LocalRunner())


def test_tasks_get_a_key_that_opens_their_user_and_not_root(site: Site) -> None:
    one, place = site.prepared(7), site.folder / "place"
    said: list[str] = []
    place.mkdir()
    directory = Store(site.root).cluster(one.name)
    cluster = site.opened(one, site.root, GatedBackend)
    keeper.bring(cluster, cloud.spec_on_record(one), HOME, said.append, place)
    assert "make network mpi" in said
    key, keys = (place / "key").read_text(), directory / "keys"
    assert key == (keys / "node").read_text() != (keys / "client").read_text()
    assert (place / "key").stat().st_mode & 0o777 == 0o600
    config = (place / "ssh_config").read_text()
    assert "Host job-7-1\n  HostName 10.77.0.4\n" in config
    assert "  ProxyJump job-7-0\n" in config
    assert "  User ann\n" in config
    assert (place / "known_hosts").read_text() == "job-7-0 ssh-ed25519 AAAA\n"


def test_settings_that_lead_nowhere_are_an_error_of_the_job(site: Site) -> None:
    one = site.prepared(7)
    Path(one.clouds).chmod(0o644)
    assert "others than root" in keeper.why_not(lambda: cloud.opened(one, site.root))
    with pytest.raises(NearmetalError):
        cloud.spec_on_record(replace(one, spec="{}"))


def test_both_ends_of_a_job_open_the_same_cluster(site: Site) -> None:
    one = site.prepared(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OS_CLIENT_CONFIG_FILE", "/elsewhere")
        for user, timeout in ((HOME, 600), (None, cloud.END_S)):
            patch.chdir(site.folder)
            cluster = cloud.opened(one, site.root, user)
            assert Path.cwd() == Path("/")
            assert isinstance(cluster.backend, OpenstackBackend)
            assert (cluster.name, cluster.backend.spec.timeout) == (one.name, timeout)
            assert os.environ["OS_CLIENT_CONFIG_FILE"] == one.clouds


def test_a_directory_of_a_user_adds_nothing_to_the_credentials(site: Site) -> None:
    one, theirs = site.prepared(7), site.folder / "theirs"
    access = "clouds: {{lab: {{auth: {{auth_url: {}}}}}}}\n"
    Path(one.clouds).write_text(access.format("https://ours.example"))
    theirs.mkdir()
    (theirs / "secure.yaml").write_text(access.format("https://theirs.example"))
    script = (
        "import sys; from pathlib import Path; from nearmetal.slurm import cloud, servers\n"
        "root = Path(sys.argv[1]); (one,) = servers.ServerStore(root).every()\n"
        "cloud.opened(one, root)\n"
        "from openstack.config import OpenStackConfig\n"
        "print(OpenStackConfig().get_one('lab').config['auth']['auth_url'])\n"
    )
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", script, str(site.root)]
    done = subprocess.run(argv, cwd=theirs, env=path, capture_output=True, text=True, check=False)
    assert done.stdout == "https://ours.example\n", done.stderr
