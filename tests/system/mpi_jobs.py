# SPDX-License-Identifier: Apache-2.0
"""What the tests of real MPI jobs share: where the programs are, and what carried a job."""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.job.mpi import Mpi, find_installations
from tests.system.local import ROOT, Site, site

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROGRAMS = ROOT / "build" / "programs"
PREFIXES = ROOT / "build" / "mpi"
INSTALLED = find_installations()
MPIS = ("openmpi4", "openmpi5", "mpich5", "impi")

NEAR = """\
version: 1
name: near
backend: local
hosts:
  - name: h1
    nodes: [{name: n1, slots: 4}, {name: n2, slots: 4}]
"""

NEAR_FAR = """\
version: 1
name: near-far
backend: local
hosts:
  - name: h1
    nodes: [{name: n1}, {name: n2}]
  - name: h2
    nodes: [{name: n3}, {name: n4}]
"""


@dataclass(frozen=True)
class Job:
    """How a job ended, and what the provider's own counters say of it."""

    code: int
    output: str
    answer: dict[str, Any]

    @property
    def sent(self) -> dict[str, int]:
        """Messages sent, by channel."""
        counts: dict[str, int] = {}
        for endpoint in self.answer["stats"]:
            for peer in endpoint["peers"]:
                for name, traffic in peer["channels"].items():
                    if traffic["sent_messages"]:
                        counts[name] = counts.get(name, 0) + int(traffic["sent_messages"])
        return counts

    def end_of_output(self, nr_lines: int = 25) -> str:
        return "\n".join(self.output.splitlines()[-nr_lines:])


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up."""

    site: Site
    spec: str

    def run(
        self,
        mpi: str,
        ranks: int,
        *program: str | Path,
        timeout: int,
        by: str = "slot",
        options: tuple[str, ...] = (),
    ) -> Job:
        """Run a job to its end, whatever that is."""
        done = self.site.run(
            "run",
            "--json",
            self.spec,
            "--mpi",
            mpi,
            "-n",
            str(ranks),
            "--map-by",
            by,
            "--timeout",
            str(timeout),
            *options,
            "--",
            *map(str, program),
            timeout=timeout + 30,
        )
        answer = json.loads(done.stdout) if done.stdout.startswith("{") else {"stats": []}
        return Job(done.returncode, done.stdout + done.stderr, answer)

    def ok(
        self,
        mpi: str,
        ranks: int,
        *program: str | Path,
        timeout: int,
        by: str = "slot",
        options: tuple[str, ...] = (),
    ) -> Job:
        """Run a job that must end well, carried by the provider."""
        job = self.run(mpi, ranks, *program, timeout=timeout, by=by, options=options)
        assert job.code == 0, f"{mpi} {program}: exit code {job.code}\n{job.end_of_output()}"
        assert job.sent, f"{mpi} {program}: nearmetal carried nothing\n{job.end_of_output()}"
        return job


def compiler(mpi: Mpi) -> Path:
    """The compiler wrapper; Intel's runtime wheel has none, MPICH's has the same ABI."""
    found = INSTALLED[Mpi.MPICH5 if mpi is Mpi.IMPI else mpi]
    return found.prefix / "bin" / ("mpicc.openmpi" if mpi is Mpi.OPENMPI4 else "mpicc")


def compile_for(mpis: Iterable[Mpi], source: Path, directory: Path) -> None:
    """Compile a program for MPIs, each into a file of the MPI's name."""
    for mpi in mpis:
        argv: list[str | Path] = [compiler(mpi), "-O1", "-o", directory / mpi.value, source]
        subprocess.run(argv, check=True, timeout=60)


@contextlib.contextmanager
def two_nodes_up(place: Site, slots: int, *shown: Path) -> Iterator[str]:
    """Yield the spec of two nodes of one host that see SHOWN; no trace of them after."""
    path = place.write(
        "spec.yaml",
        f"""\
version: 1
name: two
backend: local
show: {[str(path) for path in shown]}
hosts: [{{name: h, nodes: [{{name: n1, slots: {slots}}}, {{name: n2, slots: {slots}}}]}}]
""",
    )
    place.ok("up", path)
    yield path
    place.look(path)
    place.ok("down", "--yes", path)
    place.assert_no_trace()


@contextlib.contextmanager
def two_nodes(mpis: Iterable[Mpi], source: Path, slots: int, *shown: Path) -> Iterator[Cluster]:
    """Two nodes of one host that see SHOWN and the program, compiled for each MPI."""
    with site() as place:
        compile_for(mpis, source, place.directory)
        with two_nodes_up(place, slots, place.directory, *shown) as path:
            yield Cluster(place, path)


def program(mpi: str, name: str) -> Path:
    """Return the path of one of our MPI programs, compiled for one MPI."""
    return PROGRAMS / mpi / name
