# SPDX-License-Identifier: Apache-2.0
"""A hostile machine attacks a real MPI job of two other machines through their segment.

Nodes of one host play the machines: they share nothing but a file, of which each writes its own
part. The attacks are in faults/segment_attacks.py. Under each of them the job's numbers are right,
it ends in time, and its messages stay in the segment.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

import tests.system.faults.segment_attacks  # noqa: F401
from nearmetal.job.mpi import Mpi
from tests.system.attacks import RUNDIR, Endured, endure, under_attack
from tests.system.faults.segment_play import ATTACKS
from tests.system.local import ROOT, site
from tests.system.mpi_jobs import INSTALLED, Cluster, compile_for
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(120)]

SOURCE = ROOT / "tests" / "system" / "programs" / "mpi_rounds.c"
TOOL = ROOT / "build/c/src/tools/nearmetal-segment"
SEGMENT = f"{RUNDIR}/machines.segment"
CONFIG = "/run/segment.conf"
STOP = f"{RUNDIR}/stop"
TIMED_OUT = 124
ADVERSARY = (
    *("env", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", sys.executable),
    *("-m", "tests.system.faults.segment_attacks", SEGMENT, STOP),
)
NR_PARTS = 4
"""Two of the job, two of the hostile machine's."""

CHANNELS = (
    *("--channels", "self,segment,net"),
    *("--env", f"NEARMETAL_SEGMENT={CONFIG}", "--env", "NEARMETAL_SEGMENT_ENDPOINTS=2"),
)
NAMES = [name for name in ATTACKS if not name.startswith("writes-")]
VANDALS = [name for name in ATTACKS if name.startswith("writes-")]
PAIRS = [f"{one}+{other}" for one, other in zip(NAMES, NAMES[len(NAMES) // 2 :], strict=False)]
MORE_KIB = 48 << 10
"""What a rank may need more at its end, with its own first messages and its neighbours' windows."""

SPEC = """\
version: 1
name: machines
backend: local
show: ['{directory}', '{root}']
hosts: [{{name: h, nodes: [{{name: n1, slots: 2}}, {{name: n2, slots: 2}}, {{name: n3}}]}}]
"""

if not TOOL.exists():
    lacking("nearmetal-segment is not built")


def share(cluster: Cluster) -> None:
    """Make a segment, and give each node of the job its part."""

    def run(node: str, *argv: str) -> str:
        return cluster.site.ok("exec", cluster.spec, node, "--", *argv)

    run("n1", "rm", "-f", SEGMENT)
    run("n1", str(TOOL), "create", SEGMENT, "--parts", str(NR_PARTS), "--part-size", "8M")
    token = json.loads(run("n1", str(TOOL), "show", "--json", SEGMENT))["token"]
    for part, node in enumerate(("n1", "n2")):
        text = (
            f"version = 1\\ndevice = dax\\nall = {SEGMENT}\\npart = {part}\\n"
            f"token = {token}\\nlock = /run/segment.lock\\n"
        )
        run(node, "sh", "-c", f"umask 077; printf '{text}' > {CONFIG}")


@pytest.fixture(scope="module")
def up() -> Iterator[Cluster]:
    with site() as place:
        compile_for(INSTALLED, SOURCE, place.directory)
        spec = SPEC.format(directory=place.directory, root=ROOT)
        cluster = Cluster(place, place.write("spec.yaml", spec))
        place.ok("up", cluster.spec)
        share(cluster)
        yield cluster
        place.ok("exec", cluster.spec, "n1", "--", "rm", SEGMENT)
        place.look(cluster.spec)
        place.ok("down", "--yes", cluster.spec)
        place.assert_no_trace()


def starter(up: Cluster, mpi: Mpi, limit: str = ":") -> Path:
    """Write a script that starts mpi_rounds after a command of the shell."""
    path = up.site.directory / f"start-{mpi.value}"
    path.write_text(f"#!/bin/sh\n{limit}\nexec {up.site.directory / mpi.value} meet\n")
    path.chmod(0o755)
    return path


def attack(up: Cluster, mpi: Mpi, *names: str, program: Path | None = None) -> Endured:
    """Run a job under some attacks, and demand that it does not notice."""
    argv = (*ADVERSARY, *names)
    program = program or starter(up, mpi)
    endured = endure(up, mpi, *argv, node="n3", options=CHANNELS, program=program)
    assert all(endured.adversary["attacks"].values()), endured.adversary
    sent = endured.job.sent
    assert sent["segment"] > 1000, (sent, reasons(endured))
    assert "net" not in sent, (sent, reasons(endured))
    more = re.search(r"more memory: (\d+) KiB", endured.job.output)
    assert more is not None, endured.job.end_of_output()
    assert int(more[1]) < MORE_KIB, endured.job.end_of_output()
    return endured


def reasons(endured: Endured) -> list[str]:
    """How the ranks reached each other, in words."""
    return [
        f"{peer['label']}: {peer['channel']}: {peer['reason']}"
        for endpoint in endured.job.answer["stats"]
        for peer in endpoint["peers"]
        if peer["channel"] not in {"self", "none"}
    ]


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=PAIRS.__getitem__)
def test_two_attacks_at_once(up: Cluster, number: int) -> None:
    mpis = list(INSTALLED)
    attack(up, mpis[number % len(mpis)], *PAIRS[number].split("+"))


def test_attacks_leave_descriptors_to_the_job(up: Cluster) -> None:
    mpi = Mpi.OPENMPI5
    limited = starter(up, mpi, "ulimit -n 192")
    attack(up, mpi, "half-exchanges", "every-lane", program=limited)


@pytest.mark.parametrize("name", VANDALS)
def test_where_everybody_may_write_a_job_ends_without_a_wrong_number(
    up: Cluster, name: str
) -> None:
    """Only convention protects the parts here: the job may fail, but in words and in time."""
    mpi = Mpi.OPENMPI5
    checked = (*CHANNELS, "--env", "NEARMETAL_CHECKSUM=on")
    try:
        with under_attack(up, "n3", *ADVERSARY, name) as report:
            job = up.run(mpi.value, 4, starter(up, mpi), timeout=60, options=checked)
    finally:
        share(up)
    assert report["done"] > 0, report
    assert job.code != TIMED_OUT, job.end_of_output()
    assert (job.code == 0) == ("every number was right" in job.output), job.end_of_output()
    assert not re.search(r"round \d+: -?\d+ is not -?\d+", job.output), job.end_of_output()
    for crash in ("Segmentation fault", "Bus error", "signal 11", "signal 6", "signal 7"):
        assert crash not in job.output, job.end_of_output()


@pytest.mark.full
@pytest.mark.parametrize("mpi", list(INSTALLED), ids=lambda mpi: mpi.value)
@pytest.mark.parametrize("name", NAMES)
def test_each_attack_under_each_mpi(up: Cluster, name: str, mpi: Mpi) -> None:
    attack(up, mpi, name)
