# SPDX-License-Identifier: Apache-2.0
"""VFs of Slurm jobs on a model of a kernel: nobody shares one, none is lost, and Slurm's count is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nearmetal.cli.slurm import show_status
from nearmetal.cli.view import View
from nearmetal.core.errors import HostError, NoVfError, SlurmError
from nearmetal.host.vf import Ledger, Owner, VfHost
from nearmetal.host.vf.ledger import DIRECTORY
from nearmetal.host.vf.request import VfRequest
from nearmetal.slurm.backend import ThisNode, reclaim_ended
from nearmetal.slurm.container import (
    MAX_REFUSAL,
    ContainerRequest,
    MachineRequest,
    Machines,
    launch,
)
from nearmetal.slurm.network import has_tunnel
from nearmetal.slurm.queue import parse_gres
from nearmetal.slurm.reclaim import reclaim
from nearmetal.slurm.records import of_job
from nearmetal.slurm.vfs import LEDGER, JobVfs, variables
from tests.python.sriov_tree import FakeKernel, Killed, Tree
from tests.python.test_slurm import Slurm, record

STATE = "run/nearmetal/slurm"


class Gres(Slurm):
    """A Slurm whose sinfo is asked for the gres of a node."""

    def __init__(self, jobs: dict[str, str], gres: str) -> None:
        super().__init__(jobs, state=gres)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "root").make()
    made.pf(total=3)
    return made


@pytest.fixture
def state(tree: Tree) -> Path:
    made = tree.root / STATE
    made.mkdir(parents=True)
    return made


def vfs(tree: Tree, kernel: FakeKernel | None = None) -> JobVfs:
    ledger = Ledger(tree.root.parent / "ledger")
    return JobVfs(lambda: VfHost(kernel or FakeKernel(tree), ledger, privileged=True), ledger.path)


def shown(tree: Tree, place: Path) -> Path:
    """Return a place for records that the model's kernel has under the same name."""
    link = tree.root / str(place).lstrip("/")
    link.parent.mkdir(parents=True)
    link.symlink_to(place)
    return place


def take(tree: Tree, job: int, count: int, kernel: FakeKernel | None = None) -> list[str]:
    """Take VFs; where records are is told as the model's kernel knows it."""
    place = Path("/") / STATE
    found = vfs(tree, kernel).take(job, count, "host", node="n1", state=place)
    return [vf.address for vf in found]


def test_the_ledger_is_where_the_host_has_it() -> None:
    assert Ledger(DIRECTORY).path == LEDGER


def test_jobs_have_vfs_of_their_own_and_give_them_back(tree: Tree, state: Path) -> None:
    before = tree.dump()
    record(state, 1)
    record(state, 2)
    one, two = take(tree, 1, 2), take(tree, 2, 1)
    assert len({*one, *two}) == 3
    assert take(tree, 1, 2) == one
    assert [(vf.job, vf.address) for vf in vfs(tree).found()] == [
        *((1, address) for address in sorted(one)),
        (2, two[0]),
    ]
    vfs(tree).give_back(1)
    assert [vf.job for vf in vfs(tree).found()] == [2]
    assert reclaim(2, state, vfs=vfs(tree))
    assert vfs(tree).found() == ()
    assert not (state / "job-2").exists()
    (state / "job-1/about").unlink()
    (state / "job-1").rmdir()
    (state / "lock").unlink()
    after = tree.dump()
    assert {k: v for k, v in after.items() if not k.startswith(STATE)} == before


def test_who_comes_too_late_is_told_and_keeps_nothing(tree: Tree, state: Path) -> None:
    record(state, 1)
    record(state, 2)
    take(tree, 1, 2)
    with pytest.raises(
        NoVfError, match="2 VFs are wanted on this node and 1 could be had: adapter"
    ):
        take(tree, 2, 2)
    assert {vf.job for vf in vfs(tree).found()} == {1}
    vfs(tree).give_back(1)
    with pytest.raises(NoVfError, match="4 VFs are wanted on this node and 3 could"):
        take(tree, 2, 4)
    assert vfs(tree).found() == ()


def test_dying_anywhere_leaves_vfs_to_the_job_or_to_nobody(tmp_path: Path) -> None:
    died = 0
    for kill_at in range(1, 99):
        tree = Tree(tmp_path / str(kill_at) / "root").make()
        tree.pf(total=2)
        before = tree.dump()
        state = tree.root / STATE
        record(state, 1)
        try:
            take(tree, 1, 2, FakeKernel(tree, kill_at))
        except Killed:
            died += 1
        else:
            break
        # Half of the time the reclaimer dies, too, and comes again.
        if kill_at % 2:
            try:
                reclaim(1, state, vfs=vfs(tree, FakeKernel(tree, 2)))
            except Killed:
                assert of_job(1, state) is not None, "records go last"
        reclaim(1, state, vfs=vfs(tree))
        assert vfs(tree).found() == ()
        (state / "lock").unlink()
        after = tree.dump()
        assert {k: v for k, v in after.items() if not k.startswith(STATE)} == before, kill_at
    assert died > 10


def test_what_lost_its_records_is_taken_by_the_next(tree: Tree, state: Path) -> None:
    (record(state, 1) / "about").unlink()
    take(tree, 1, 3)
    (state / "job-1").rmdir()
    record(state, 2)
    assert len(take(tree, 2, 3)) == 3
    assert {vf.job for vf in vfs(tree).found()} == {2}


def test_a_vf_that_stays_keeps_the_records_and_drains_the_node(tree: Tree, state: Path) -> None:
    record(state, 1)
    owner = Owner(kind="job", name="1", node="n1.0", state=f"/{STATE}/job-1")
    VfHost(FakeKernel(tree), Ledger(tree.root.parent / "ledger"), privileged=True).allocate(
        VfRequest(), owner
    )
    (tree.root / "dev/vfio").mkdir(parents=True)
    (tree.root / "proc/99/fd").mkdir(parents=True)
    (tree.root / "proc/99/fd/5").symlink_to("/dev/vfio/1")
    slurm = Slurm({})
    with pytest.raises(HostError, match="still used by process 99"):
        reclaim_ended(slurm, ThisNode(state, vfs(tree)), drains=True)
    assert (state / "job-1").is_dir()
    (update,) = [words for words in slurm.asked if words[0] == "scontrol"]
    assert "still used by process 99" in update[4]
    (tree.root / "proc/99/fd/5").unlink()
    assert reclaim_ended(slurm, ThisNode(state, vfs(tree)), drains=True) == (1,)


def test_tasks_are_told_what_they_have(tree: Tree, state: Path) -> None:
    record(state, 1)
    found = vfs(tree).take(1, 2, "host", node="n1", state=Path("/") / STATE)
    assert variables(found) == {
        "NM_JOB_VFS": "0000:01:10.0,0000:01:10.2",
        "NM_JOB_VF_INTERFACES": "v0110f0,v0110f2",
        "NM_JOB_VF_RDMA": "",
    }
    assert len({vf.settings.mac for vf in found}) == 2
    assert variables(()) == {}


def test_a_job_that_cannot_have_its_vfs_is_refused_on_record(tree: Tree, tmp_path: Path) -> None:
    place = shown(tree, tmp_path / "state")
    wish = ContainerRequest(7, 1000, 1 << 20, 1 << 20, "r", vfs=4)
    made = launch(wish, place, vfs(tree))
    assert made.pid == 0
    assert made.refusal.startswith("4 VFs are wanted on this node and 3 could be had")
    assert len(made.refusal) < MAX_REFUSAL
    found = of_job(7, place)
    assert found is not None
    assert (found.refusal, found.pid) == (made.refusal, 0)
    assert vfs(tree).found() == ()
    assert reclaim(7, place, vfs=vfs(tree))
    with pytest.raises(SlurmError, match="-1 VFs"):
        launch(ContainerRequest(7, 1000, 1 << 20, 1 << 20, "r", vfs=-1), place, vfs(tree))


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a container, which needs root")
def test_a_container_that_fails_gives_its_vfs_back(tree: Tree, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from nearmetal.slurm.container import ContainerRequest, launch\n"
        "from tests.python.sriov_tree import Tree\n"
        "from tests.python.test_slurm_vfs import vfs\n"
        "place, tree = Path(sys.argv[1]), Tree(Path(sys.argv[2]))\n"
        "launch(ContainerRequest(7, 1000, 1 << 20, 1 << 20, 'r', vfs=2), place, vfs(tree))\n"
    )
    place = shown(tree, tmp_path / "state")
    bounded = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "setpriv",
        "--bounding-set",
        "-sys_admin",
        "--inh-caps",
        "-sys_admin",
        "--",
    ]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*bounded, sys.executable, "-c", script, str(place), str(tree.root)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "make namespaces: Operation not permitted" in done.stderr
    assert vfs(tree).found() == ()
    assert not (place / "job-7").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a container, which needs root")
def test_a_launch_that_fails_after_its_tunnel_leaves_it_to_the_reclaimer(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from nearmetal.slurm.container import ContainerRequest, launch\n"
        "from nearmetal.slurm.vfs import JobVfs\n"
        "class Tunnelled(JobVfs):\n"
        "    def take(self, *args, state, **names):\n"
        "        (state / 'job-7' / 'tunnel').write_text('7 10.0.0.2\\n')\n"
        "        return ()\n"
        "    def give_back(self, job): pass\n"
        "launch(ContainerRequest(7, 1000, 1 << 20, 1 << 20, 'r', vfs=1), Path(sys.argv[1]), Tunnelled())\n"
    )
    bounded = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "--"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*bounded, sys.executable, "-c", script, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "make namespaces: Operation not permitted" in done.stderr
    assert has_tunnel(tmp_path / "job-7")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("vf:7\n", 7),
        ("(null)\n", 0),
        ("", 0),
        ("gpu:tesla:2(S:0,1),vf:7(S:0-1)\n", 7),
        ("vf:a:3,vf:b:4", 7),
        ("nvf:3,vfs:4,vf:x", 0),
    ],
)
def test_gres_of_a_node(text: str, count: int) -> None:
    assert parse_gres(text, "vf") == count


def status(
    tree: Tree, state: Path, gres: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, object], str]:
    code = show_status(Gres({"n1": "1 R\n"}, gres), ThisNode(state), View(as_json=True), vfs(tree))
    data = json.loads(capsys.readouterr().out)
    show_status(Gres({"n1": "1 R\n"}, gres), ThisNode(state), View(as_json=False), vfs(tree))
    return code, data, capsys.readouterr().err


def test_status_shows_vfs_and_where_slurm_counts_wrongly(
    tree: Tree, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(state, 1)
    addresses = take(tree, 1, 2)
    code, data, told = status(tree, state, "vf:3", capsys)
    assert (code, told) == (0, "")
    assert data["containers"][0]["vfs"] == addresses  # type: ignore[index]
    assert data["count"] == {"offered": 3, "for_jobs": 3, "others": [], "gres": 3}
    # Somebody else takes one that Slurm thinks it may give away.
    (tree.root / "clusters/demo").mkdir(parents=True)
    VfHost(FakeKernel(tree), Ledger(tree.root.parent / "ledger"), privileged=True).allocate(
        VfRequest(), Owner(kind="cluster", name="demo", node="n1", state="/clusters/demo")
    )
    code, data, told = status(tree, state, "vf:3", capsys)
    assert code == 4
    assert "gres.conf promises 3 VFs of this node, and jobs can have 2 of its 3" in told
    assert "node n1 of cluster demo" in told
    # Less than there are is allowed, and said.
    code, _, told = status(tree, state, "vf:1", capsys)
    assert code == 0
    assert "gres.conf counts 1 VFs of this node, and jobs could have 2" in told


def test_status_finds_vfs_whose_job_left_no_records(
    tree: Tree, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record(state, 1) / "about").unlink()
    take(tree, 1, 1)
    (state / "job-1").rmdir()
    code, _, told = status(tree, state, "vf:3", capsys)
    assert code == 4
    assert "job 1 has no records any more, and VF 0000:01:10.0 still belongs to it" in told


def test_virtual_machines_get_none(tmp_path: Path) -> None:
    wanted = MachineRequest(
        image="default", nr=1, vcpus=1, memory_bytes=1 << 29, segment_bytes=1 << 20
    )
    wish = ContainerRequest(
        job=7,
        uid=1,
        segment_bytes=1 << 20,
        scratch_bytes=1 << 20,
        request="node=vm",
        vfs=1,
        machines=Machines(wanted, "n1", tmp_path / "key"),
    )
    with pytest.raises(SlurmError, match="job 7: VFs for virtual machines"):
        launch(wish, tmp_path)
    assert not (tmp_path / "job-7").exists()
