# SPDX-License-Identifier: Apache-2.0
"""UCX between two virtual machines over their segment: UCX alone, MPIs and OpenSHMEM."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.job.mpi import Mpi
from tests.system import hypervisors
from tests.system.mpi_jobs import PROGRAMS
from tests.system.need import lacking, need_build, need_mpi, need_ucx
from tests.system.virtual_clusters import ROOT, Place, places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.mpi,
    pytest.mark.root,
    pytest.mark.timeout(1500),
]

hypervisors.need()
need_build()
need_mpi(Mpi.OPENMPI5, Mpi.MPICH5)
need_ucx()

UCX = ROOT / "build/ucx/libucx"
NODES = (
    "segment: {part: 32 MiB}, nodes: ["
    "{name: n1, memory: 768 MiB, cpus: none}, {name: n2, memory: 768 MiB, cpus: none}]"
)
TRAFFIC = ("mpi_traffic", "-n", "300", "-b", "20M", "-s", "7", "-w", "300")
STAGED = "/run/nearmetal-cluster/jobs/files"
CARRIED = re.compile(r"segment carried (\d+) messages out and (\d+) in")
PERFTESTS = {
    "tag-small": ("-t", "tag_lat", "-s", "8"),
    "tag-large": ("-t", "tag_bw", "-s", "1048576"),
    "am": ("-t", "ucp_am_lat", "-s", "2048"),
    "put": ("-t", "ucp_put_lat", "-s", "4096"),
}


class Pair:
    """Two machines of one host, and the command line on them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.spec = place.write(place.spec(NODES))

    def ok(self, *words: str) -> str:
        code, output = self.place.run(*words)
        assert code == 0, f"{words}: {code}\n{output}"
        return output

    @property
    def shared(self) -> Path:
        """The directory that both machines see as STAGED."""
        return self.place.state / "clusters/f/files/shared"

    def job(self, *words: str, mpi: str | None = None) -> tuple[str, dict[str, Any]]:
        """Run a job over UCX; returns its output and the result of `run`."""
        chosen = () if mpi is None else ("--mpi", mpi)
        options = ("--fabric", "ucx", *chosen, "-n", "2", "--map-by", "node", "--json")
        with self.place.start("run", self.spec, *options, "--", *words) as process:
            told, output = process.communicate(timeout=600)
        assert process.returncode == 0, told + output
        return output, json.loads(told)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with places(tmp_path_factory.mktemp("ucx")) as place:
        made = Pair(place)
        made.ok("up", made.spec)
        yield made


def assert_carried(answer: dict[str, Any], least: int) -> None:
    """The counters show that only this transport was used, and between both machines."""
    assert {endpoint["interface"] for endpoint in answer["stats"]} == {"ucx"}
    assert {endpoint["host"] for endpoint in answer["stats"]} == {"n1", "n2"}
    assert answer["proof"]["verdict"] == "proven"
    assert answer["proof"]["messages"]["segment"] >= least


def test_open_mpi_of_the_image(pair: Pair) -> None:
    program, *args = TRAFFIC
    output, answer = pair.job(str(PROGRAMS / "openmpi5" / program), *args)
    assert "traffic OK" in output
    assert_carried(answer, 300)


@pytest.mark.full
def test_mpich_of_this_machine(pair: Pair) -> None:
    output, answer = pair.job(str(PROGRAMS / "mpich5/mpi_hello"), mpi="mpich5")
    assert "every token came back" in output
    assert_carried(answer, 4)
    output, answer = pair.job(str(PROGRAMS / "mpich5/mpi_window"), mpi="mpich5")
    assert "# done window" in output
    assert_carried(answer, 1000)


def test_openshmem_of_the_image(pair: Pair) -> None:
    if not shutil.which("oshcc"):
        lacking("Debian's OpenSHMEM is missing")
    program = pair.place.state.parent / "openshmem"
    source = ROOT / "tests/system/programs/openshmem.c"
    subprocess.run(["oshcc", "-O2", "-Wall", "-Werror", source, "-o", program], check=True)
    output, answer = pair.job(str(program))
    assert "OpenSHMEM OK: 2 PEs" in output
    assert_carried(answer, 300)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "tag-small" else pytest.mark.full) for n in PERFTESTS],
)
def test_ucx_alone(pair: Pair, name: str) -> None:
    """By hand: the files of the jobs before, and the variables that docs/howto-ucx.md shows."""
    own = pair.shared / "perftest"
    if not own.exists():
        own.mkdir(mode=0o755)
        for path in (UCX / "bin/ucx_perftest", *UCX.parent.glob("*.libs/libgomp*")):
            shutil.copy(path, own)
    if not list(pair.shared.glob("ucx-transport-*")):
        pair.job(str(PROGRAMS / "openmpi5/mpi_hello"))  # brings UCX and the transport
    (libraries,) = pair.shared.glob("ucx-[0-9a-f]*")
    (plugin,) = pair.shared.glob("ucx-transport-*")
    words = [
        "env",
        f"LD_LIBRARY_PATH={STAGED}/{libraries.name}:{STAGED}/perftest",
        f"UCX_PLUGIN_PATH={STAGED}/{plugin.name}",
        "UCX_TLS=nearmetal",
        "NEARMETAL_LOG=info",
        *("timeout", "60", f"{STAGED}/perftest/ucx_perftest"),
    ]
    listening = "until ss -ltn | grep -q :13337; do sleep 0.1; done"
    with pair.place.start("exec", pair.spec, "n1", "--", *words) as server:
        pair.ok("exec", pair.spec, "n1", "--", "timeout", "60", "sh", "-c", listening)
        client = [*words, *PERFTESTS[name], "-n", "200", "n1"]
        output = pair.ok("exec", pair.spec, "n2", "--", *client)
        told = server.communicate(timeout=60)
    assert server.returncode == 0, told
    assert "ERROR" not in output
    counts = [int(m[1]) + int(m[2]) for m in CARRIED.finditer(output)]
    assert counts, output
    assert max(counts) >= 200
