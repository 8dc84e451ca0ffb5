# SPDX-License-Identifier: Apache-2.0
"""A cluster with the provider in it: who meets whom, and what carried a job."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.spec import load_spec
from nearmetal.job.mpi import Mpi
from tests.system.local import ROOT, UID, Site, site, user_can_read_checkout
from tests.system.mpi_jobs import INSTALLED, compile_for
from tests.system.need import lacking, need_build, need_mpi
from tests.system.test_local_run import SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

need_build()

SPEC = """\
version: 1
name: near
backend: local
show: ['{directory}']
hosts:
  - name: h1
    nodes: [{{name: n1}}, {{name: n2, hostname: twin}}]
  - name: h2
    nodes: [{{name: n3}}, {{name: n4, hostname: twin}}]
"""


@pytest.fixture(scope="module", params=["root", "user"])
def up(request: pytest.FixtureRequest) -> Iterator[tuple[Site, str]]:
    if os.geteuid() != 0 and request.param == "root":
        pytest.skip("the tests do not run as root")
    uid = UID if request.param == "user" and os.geteuid() == 0 else 0
    if uid and not user_can_read_checkout():
        pytest.skip("an ordinary user cannot read this checkout")
    with site(uid) as place:
        compile_for(INSTALLED, SOURCE, place.directory)
        spec = place.write("spec.yaml", SPEC.format(directory=place.directory))
        place.ok("up", spec)
        yield place, spec
        place.look(spec)
        place.ok("down", "--yes", spec)
        place.assert_no_trace()


def test_near_are_those_who_share_a_host_whatever_their_names(up: tuple[Site, str]) -> None:
    place, spec = up
    pairs = place.json("locality", spec)["pairs"]
    assert len(pairs) == 16
    near = {frozenset(pair) for pair in (("n1", "n2"), ("n3", "n4"))}
    for pair in pairs:
        if pair["node"] == pair["peer"]:
            expected = ("self", "self")
        elif frozenset((pair["node"], pair["peer"])) in near:
            expected = ("host", "shm")
        else:
            expected = ("network", "net")
        assert (pair["relation"], pair["channel"]) == expected, pair
        assert len(pair["reason"].split()) > 1
        assert (pair["integrity"] == "enforced") == (pair["channel"] == "shm")


def test_the_matrix_is_shown_to_a_person(up: tuple[Site, str]) -> None:
    place, spec = up
    lines = [line.split() for line in place.ok("locality", spec).splitlines()]
    assert lines[:5] == [
        ["n1", "n2", "n3", "n4"],
        ["n1", "self", "shm", "net", "net"],
        ["n2", "shm", "self", "net", "net"],
        ["n3", "net", "net", "self", "shm"],
        ["n4", "net", "net", "shm", "self"],
    ]


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", list(Mpi), ids=lambda mpi: mpi.value)
@pytest.mark.parametrize("channels", ["self,shm,net", "net"])
def test_a_job_is_carried_by_the_channels_that_are_there(
    up: tuple[Site, str], mpi: Mpi, channels: str
) -> None:
    need_mpi(mpi)
    # Two nodes have one name, on which Open MPI 5's own collectives hang.
    settings = ("--env", "OMPI_MCA_coll=basic,libnbc,self,inter,sync")
    place, spec = up
    program = str(place.directory / mpi.value)
    words = ("--mpi", mpi.value, "--channels", channels, "--timeout", "60", *settings)
    done = place.run("run", "--json", spec, *words, "--", program, timeout=90)
    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout)["proof"]
    assert proof["verdict"] == "proven"
    assert set(proof["messages"]) - {"self"} == {"shm", "net"} & set(channels.split(","))
    assert "carried by nearmetal" in done.stderr


PLACES = """\
IFS=:
for place in $FI_PROVIDER_PATH; do
    place=${place#+}
    [ -d "$place" ] || place=${place%/*}
    touch "$place/x-fi.so" 2>/dev/null && echo "writable $place"
    ls "$place" | grep -e '-fi[.]so$'
done
find -L /run/nearmetal -name '*-fi.so'
"""


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", list(Mpi), ids=lambda mpi: mpi.value)
def test_no_node_can_replace_the_provider_of_a_job(up: tuple[Site, str], mpi: Mpi) -> None:
    """All nodes of a host have the same rights to the rundir, and so to each job's part of it."""
    need_mpi(mpi)
    place, spec = up
    words = ("run", spec, "--mpi", mpi.value, "-n", "1", "--", "/bin/sh", "-c", PLACES)
    found = place.ok(*words).splitlines()
    assert "libnearmetal-fi.so" in found
    assert not [line for line in found if "/" in line], found


def test_a_program_without_mpi_is_told_loudly(up: tuple[Site, str]) -> None:
    if not INSTALLED:
        lacking("no MPI is installed")
    place, spec = up
    done = place.run("run", spec, "--mpi", next(iter(INSTALLED)).value, "--", "true")
    assert done.returncode == 0
    assert "WARNING: nearmetal did not carry this job" in done.stderr


def test_the_examples_run_from_up_to_down(up: tuple[Site, str]) -> None:
    place, _ = up
    paths = sorted((ROOT / "nearmetal/share/examples").glob("*.yaml"))
    local = [path for path in paths if load_spec(path).backend == "local"]
    assert local
    for path in local:
        place.ok("up", str(path))
        assert place.json("status", str(path))["state"] == "up"
        place.ok("down", "--yes", str(path))
