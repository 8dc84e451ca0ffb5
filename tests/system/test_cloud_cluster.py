# SPDX-License-Identifier: Apache-2.0
"""A cluster of a cloud image of one's own: `up`, a job over its segment, and `down`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system import hypervisors
from tests.system.cloud_images import cloud_image
from tests.system.virtual_clusters import Place, places

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "build" / "programs" / "mpich5"

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(3600),
]

hypervisors.need()

NODES = "segment: {part: 16 MiB}, nodes: [{name: n1, memory: 1 GiB}, {name: n2, memory: 1 GiB}]"


class Site:
    """The cluster, once it is up."""

    def __init__(self, place: Place, image: Path) -> None:
        self.place = place
        self.image = image
        self.spec = place.write(place.spec(NODES, more=f"image: {image}\n"))

    def ok(self, *args: str) -> str:
        code, words = self.place.run(*args, timeout=3000)
        assert code == 0, f"{args}: {code}\n{words}"
        return words


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    image = cloud_image() / "disk.qcow2"
    before = hashlib.sha256(image.read_bytes()).hexdigest()
    with places(tmp_path_factory.mktemp("cloud")) as place:
        site = Site(place, image)
        site.ok("up", site.spec)
        yield site
        site.ok("down", "--yes", site.spec)
    assert hashlib.sha256(image.read_bytes()).hexdigest() == before


def test_a_second_up_does_nothing(site: Site) -> None:
    running = sorted(site.place.host.machines())
    code, words = site.place.run("plan", site.spec)
    assert code == 0, words
    site.ok("up", site.spec)
    assert sorted(site.place.host.machines()) == running


def test_the_nodes_are_those_of_the_image_and_know_each_other(site: Site) -> None:
    told = site.ok(
        "exec",
        site.spec,
        "n1",
        "--",
        "sh",
        "-c",
        "cat /proc/1/comm; findmnt -no SOURCE /; ssh n2 hostname; cat /run/nearmetal/segment.conf",
    )
    assert told.splitlines()[:3] == ["systemd", "/dev/vda1", "n2"]
    assert "integrity = enforced" in told


def test_the_pair_meets_in_the_segment(site: Site) -> None:
    pairs = json.loads(site.ok("locality", "--json", site.spec))["pairs"]
    others = {(p["node"], p["peer"]): p["channel"] for p in pairs if p["node"] != p["peer"]}
    assert set(others.values()) == {"segment"}, pairs


def test_a_job_runs_with_an_mpi_that_is_carried_there(site: Site) -> None:
    program = str(PROGRAMS / "mpi_traffic")
    out = site.ok(
        "run",
        site.spec,
        "--mpi",
        "mpich5",
        "-n",
        "2",
        "--",
        program,
        "-n",
        "100",
        "-s",
        "7",
        "-b",
        "20M",
        "-w",
        "600",
    )
    assert "carried by nearmetal: 2 endpoints" in out
