# SPDX-License-Identifier: Apache-2.0
"""A rank is killed in the middle of a message: the job ends, whichever MPI it runs under.

That every survivor names the dead one is shown without a launcher in test_faults_death.py: a
launcher that sees the death first ends the other ranks before they can say anything.
"""

import re
from collections.abc import Iterator

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, Site, site
from tests.system.mpi_jobs import INSTALLED, compile_for

pytestmark = [pytest.mark.system, pytest.mark.mpi]

SOURCE = ROOT / "tests" / "system" / "programs" / "death_midway.c"
KILLED = 137
LOST = re.compile(r"\(n2, pid \d+\) is lost: ")


@pytest.fixture(scope="module")
def up() -> Iterator[tuple[Site, str]]:
    with site() as place:
        compile_for(INSTALLED, SOURCE, place.directory)
        spec = place.write(
            "spec.yaml",
            f"""\
version: 1
name: faults
backend: local
show: ['{place.directory}']
hosts: [{{name: h, nodes: [{{name: n1}}, {{name: n2}}]}}]
""",
        )
        place.ok("up", spec)
        yield place, spec
        place.look(spec)
        place.ok("down", "--yes", spec)
        place.assert_no_trace()


@pytest.mark.parametrize("mpi", list(INSTALLED), ids=lambda mpi: mpi.value)
@pytest.mark.parametrize(("channels", "role"), [("self,shm", "send"), ("self,net", "recv")])
def test_a_rank_killed_in_the_middle_of_a_message_ends_the_job(
    up: tuple[Site, str], mpi: Mpi, channels: str, role: str
) -> None:
    place, spec = up
    program = str(place.directory / mpi.value)
    options = ("--mpi", mpi.value, "-n", "2", "--channels", channels, "--timeout", "60")
    done = place.run("run", spec, *options, "--", program, role, timeout=90)
    # A survivor that notices first aborts, and the launcher may then end the agent unrecorded.
    told = done.returncode == KILLED or (done.returncode != 0 and LOST.search(done.stderr))
    assert told, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert "too late" not in done.stdout
    assert "came to an end" not in done.stdout
    assert not left_in(place, spec)


def left_in(place: Site, spec: str) -> list[str]:
    """Sockets and ranks that are still in the nodes."""
    script = "find /run/nearmetal -type s; cat /proc/[0-9]*/comm"
    found = [place.ok("exec", spec, node, "--", "sh", "-c", script) for node in ("n1", "n2")]
    return [
        line
        for line in "\n".join(found).split()
        if "/run/" in line or line in {mpi.value for mpi in INSTALLED}
    ]
