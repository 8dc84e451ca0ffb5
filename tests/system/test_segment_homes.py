# SPDX-License-Identifier: Apache-2.0
"""A node changes to and fro between two segments while a job runs, as a machine that moves does.

Nodes n1 and n3 have a segment each. Node n2 has a part in one of them, so one of the two is near,
and the other one far. Nothing is copied: its processes run all the time.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, site
from tests.system.mpi_jobs import Cluster, compile_for
from tests.system.test_segment_leave import within
from tests.system.test_segment_nodes import CHANNELS, CONFIG, TOOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import Popen

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(580)]

MPI = Mpi.OPENMPI5
SOURCE = ROOT / "benchmarks" / "mpi" / "mpi_moved.c"
NR_MOVES = 20
SEGMENTS = {"n1": "/run/nearmetal/a.segment", "n3": "/run/nearmetal/b.segment"}
"""By the node that stays there, in its part 0."""

SPEC = """\
version: 1
name: homes
backend: local
show: ['{folder}']
hosts:
  - name: h1
    nodes: [{{name: n1}}, {{name: n2}}, {{name: n3}}]
"""


CHANGE = f"""
set -e
tool={TOOL} conf={CONFIG} tries=0
again() {{
	tries=$((tries + 1))
	[ $tries -lt 600 ]
	sleep 0.1
}}
$tool quiesce $conf
until $tool freeze $conf 2>/dev/null; do again; done
mv $conf $conf.left
while grep -qF ' /run/nearmetal/' /proc/[0-9]*/maps 2>/dev/null; do again; done
cp $conf.$1 $conf.new
mv $conf.new $conf
$tool run $conf
"""
"""As the guest unit of a machine: leave a segment, give it up, and take part in that of $1."""


def describe(cluster: Cluster, node: str, neighbour: str, part: int, path: str) -> None:
    """Write the description of a part of the segment of NEIGHBOUR."""
    segment, place = SEGMENTS[neighbour], cluster.site
    shown = place.ok("exec", cluster.spec, neighbour, "--", str(TOOL), "show", "--json", segment)
    text = (
        f"version = 1\\ndevice = dax\\nall = {segment}\\npart = {part}\\n"
        f"token = {json.loads(shown)['token']}\\nlock = /run/segment.lock\\n"
    )
    place.ok("exec", cluster.spec, node, "--", "sh", "-c", f"umask 077; printf '{text}' > {path}")


@pytest.fixture(scope="module")
def homes() -> Iterator[Cluster]:
    with site() as place:
        compile_for([MPI], SOURCE, place.directory)
        path = place.write("spec.yaml", SPEC.format(folder=place.directory))
        place.ok("up", path)
        cluster = Cluster(place, path)
        for node, segment in SEGMENTS.items():
            create = [str(TOOL), "create", segment, "--parts", "2", "--part-size", "8M"]
            place.ok("exec", path, node, "--", *create)
            describe(cluster, node, node, 0, CONFIG)
            describe(cluster, "n2", node, 1, f"{CONFIG}.{node}")
        place.ok("exec", path, "n2", "--", "cp", f"{CONFIG}.n1", CONFIG)
        yield cluster
        place.ok("exec", path, "n1", "--", "rm", *SEGMENTS.values())
        place.look(path)
        place.ok("down", "--yes", path)
        place.assert_no_trace()


def by_pair(endpoints: list[dict[str, Any]], key: str) -> dict[tuple[str, str], Any]:
    """Return an item of each endpoint's peers, by the nodes of both."""
    found = {}
    for endpoint in endpoints:
        for peer in endpoint["peers"]:
            if not peer["label"]:
                continue  # the endpoint has not met it yet
            ours, theirs = (re.search("n[123]", t) for t in (endpoint["host"], peer["label"]))
            assert ours, endpoint["host"]
            assert theirs, peer["label"]
            assert (ours[0], theirs[0]) not in found, "two endpoints of a node"
            found[ours[0], theirs[0]] = peer[key]
    return found


def channels(cluster: Cluster) -> dict[tuple[str, str], Any]:
    """Return the channel of each pair of nodes in both directions."""
    top = json.loads(cluster.site.ok("top", cluster.spec, "--once", "--json", "--interval", "0.2"))
    return by_pair(top["endpoints"], "channel")


def are_near(cluster: Cluster, neighbour: str) -> bool:
    pairs = [(a, b) for a in ("n1", "n2", "n3") for b in ("n1", "n2", "n3") if a != b]
    near = {("n2", neighbour), (neighbour, "n2")}
    found = channels(cluster)
    return {pair: found.get(pair) for pair in pairs} == {
        pair: "segment" if pair in near else "net" for pair in pairs
    }


def to_and_fro(cluster: Cluster, job: Popen[str]) -> None:
    """Change NR_MOVES times; each channel follows before the next change."""
    for number in range(NR_MOVES):
        neighbour = ("n3", "n1")[number % 2]
        cluster.site.ok("exec", cluster.spec, "n2", "--", "sh", "-c", CHANGE, "sh", neighbour)
        within(job, lambda there=neighbour: are_near(cluster, there))  # type: ignore[misc]


def check_switches(answer: dict[str, Any]) -> None:
    """Each rank has changed the channel to n2, and n2 to each, with every change."""
    switches = by_pair(answer["stats"], "moves")
    assert len(switches) == 6, switches
    for pair, nr in switches.items():
        assert nr == (NR_MOVES if "n2" in pair else 0), switches


@pytest.mark.parametrize(
    "thread", ["off", pytest.param("on", marks=pytest.mark.full)], ids=["PE", "MT"]
)
def test_a_job_survives_every_change(
    homes: Cluster, thread: str, record_property: Callable[[str, object], None]
) -> None:
    """The program checks each byte, the number and the order of all messages itself."""
    place = homes.site
    end = place.directory / f"end-{thread}"
    words = ["run", "--json", homes.spec, "--mpi", MPI.value, "-n", "3", "--map-by", "node"]
    words += ["--timeout", "500", *CHANNELS, "--env", f"NEARMETAL_MOVE_THREAD={thread}", "--"]
    words += [str(place.directory / MPI.value), "-e", str(end), "490", "7"]
    began = time.monotonic()
    with place.start(*words) as job:
        try:
            within(job, lambda: are_near(homes, "n1"))
            to_and_fro(homes, job)
            end.touch()
            out, err = job.communicate(timeout=60)
        except BaseException:
            job.kill()
            raise
    assert job.returncode == 0, out + err
    assert "none wrong" in out + err, out + err
    record_property("seconds", round(time.monotonic() - began, 1))
    check_switches(json.loads(out))
