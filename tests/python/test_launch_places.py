# SPDX-License-Identifier: Apache-2.0
"""A job's directories in machines that share no file with this one; a machine is a directory here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import LaunchError
from nearmetal.launch.places import NodePlaces, end_stale
from nearmetal.launch.stale import new_name
from nearmetal.run import Command, LocalRunner
from nearmetal.spec import parse_spec
from tests.python.counter_files import file_bytes, peer_bytes
from tests.python.fake_backend import FakeBackend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NODES = ("n1", "n2", "n3")
SPEC = """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1}, {name: n2}, {name: n3}]}]
"""


@dataclass
class Machines(FakeBackend):
    """Commands for a node run here, in the node's own directory of jobs."""

    top: Path = Path("/nowhere")

    shares_files = False

    def on_node(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
    ) -> Command:
        own = [word.replace(str(self.job_root()), str(self.top / node)) for word in argv]
        return Command(tuple(own), env, workdir)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    for node in NODES:
        (tmp_path / node).mkdir()
    return Machines(top=tmp_path)


def places(machines: Machines, job: str = "job-x") -> NodePlaces:
    return NodePlaces(machines, NODES, job, LocalRunner())


def entries(machines: Machines) -> dict[str, list[str]]:
    return {node: sorted(p.name for p in (machines.top / node).iterdir()) for node in NODES}


def test_every_node_gets_directories_links_and_what_it_lacks(
    machines: Machines, tmp_path: Path
) -> None:
    program, mpi = tmp_path / "program", tmp_path / "mpi"
    program.write_text("a program")
    (mpi / "lib").mkdir(parents=True)
    (mpi / "lib/libmpi.so").write_text("new")
    # The second has the MPI from an earlier job.
    (machines.top / "n2/mpi-1/lib").mkdir(parents=True)
    (machines.top / "n2/mpi-1/lib/libmpi.so").write_text("old")
    made = places(machines)
    made.make([Path("/usr/lib/prov.so")], [(program, "job-x.files"), (mpi, "mpi-1")])
    for node in NODES:
        here = machines.top / node
        assert (here / "job-x").stat().st_mode & 0o777 == 0o700
        assert (here / "job-x.providers/prov.so").readlink() == Path("/usr/lib/prov.so")
        assert (here / "job-x.files/program").read_text() == "a program"
        assert (here / "mpi-1/lib/libmpi.so").read_text() == ("old" if node == "n2" else "new")
    made.remove()
    assert entries(machines) == {node: ["mpi-1"] for node in NODES}


def test_what_endpoints_of_all_nodes_left_is_read(machines: Machines) -> None:
    made = places(machines)
    made.make()
    for node in NODES:
        stats = file_bytes(peer_bytes(), host=node.encode())
        (machines.top / node / "job-x.stats/0.stats").write_bytes(stats)
    assert [one["host"] for one in made.stats()] == list(NODES)
    (machines.top / "n3/job-x.stats/exit.1").write_text("7\n")
    assert made.first_failure() is None, "what was read once is not read again"
    made.remove()
    assert entries(machines) == {node: [] for node in NODES}


def test_the_node_that_fails_is_named(machines: Machines) -> None:
    (machines.top / "n2/job-x").mkdir()
    made = places(machines)
    with pytest.raises(LaunchError, match=r"node n2: cannot make the job's directories: .*exists"):
        made.make()
    made.remove()
    assert entries(machines) == {node: [] for node in NODES}


def test_jobs_whose_owner_has_gone_are_removed_everywhere(machines: Machines) -> None:
    gone, alive = "job-1-1-abcdef", new_name("job")
    for node, name in (("n1", alive), ("n2", gone), ("n3", f"{gone}.stats")):
        (machines.top / node / name).mkdir()
    assert end_stale(machines, parse_spec(SPEC), LocalRunner()) == (gone,)
    assert machines.steps == ["sweep NEARMETAL_JOB"]
    assert entries(machines) == {"n1": [alive], "n2": [], "n3": []}
