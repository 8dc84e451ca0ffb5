# SPDX-License-Identifier: Apache-2.0
"""`check performance` by an MPI job on real nodes: values of all nodes and pairs, and what lacks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.check.hpl import HplMeasurement
from nearmetal.check.mpi_job import MpiMeasurement
from nearmetal.check.performance.run import Order
from nearmetal.cli.arguments import open_target
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from tests.documents import check_document
from tests.system.local import ROOT, Site, site
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes are entered as root"),
]

CORES = sorted(os.sched_getaffinity(0))
NODES = ("n1", "n2", "n3", "n4")
PAIR = NODES[:2]
SPEC = "version: 1\nname: speed\nbackend: local\nhosts:\n  - name: h1\n    nodes:\n" + "".join(
    f"      - {{name: {name}, shm: 16 MiB, cpus: {CORES}}}\n" for name in NODES
)
PROGRAM = ROOT / "build/programs/openmpi5/mpi_check"


@pytest.fixture(scope="module")
def ward() -> Iterator[tuple[Site, str]]:
    with site() as place:
        spec = place.write("spec.yaml", SPEC)
        place.ok("up", spec)
        place.look(spec)
        yield place, spec
        place.ok("down", "--yes", spec)
        place.assert_no_trace()


def measure(ward: tuple[Site, str], *options: str) -> dict[str, Any]:
    place, spec = ward
    done = place.run("check", "performance", spec, "--json", *options, timeout=400)
    assert done.returncode in (0, 4), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    check_document("check performance", found)
    return found


def missing(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the severity and the reason of each quantity that lacks."""
    of_all = [f for f in found["findings"] if f["check"] == "performance.missing"]
    assert all(f["nodes"] == list(NODES) for f in of_all)
    return {f["about"]: (f["severity"], f["value"]) for f in of_all}


def test_nodes_are_measured_and_pairs_that_share_cores_are_not(
    ward: tuple[Site, str], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    found = measure(ward, "--measure", "stream,dgemm,mpi_latency", "--output", str(kept))
    run = json.loads((kept / "performance.json").read_text())
    for quantity in ("stream", "dgemm"):
        turns = [turn["values"] for turn in run["screening"] if turn["quantity"] == quantity]
        assert [[node for node, _ in turn] for turn in turns] == [[0, 1, 2, 3]] * 3
        assert all(0.001 < value < 1e5 for turn in turns for _, value in turn)
    assert "arrays of" in run["setup"]["stream"]
    lacks = missing(found)
    assert lacks.pop("mpi_latency") == (
        "warning",
        "nodes share cores, so messages of MPI would wait for the scheduler",
    )
    # Without OpenBLAS in the nodes, the values are those of our own loop, which a note says.
    assert lacks.keys() <= {"dgemm"}
    for severity, why in lacks.values():
        assert severity == "note"
        assert "libopenblas.so.0 is missing for 4 of 4 ranks" in why


def test_a_job_that_dies_is_no_slow_node(ward: tuple[Site, str]) -> None:
    ended, killed = threading.Event(), threading.Event()

    def kill() -> None:
        while not ended.wait(0.1) and not killed.is_set():
            for entry in Path("/proc").glob("[0-9]*/comm"):
                with contextlib.suppress(OSError):
                    name = entry.read_text().strip()
                    mine = str(ward[0].directory) in (entry.parent / "environ").read_text()
                    if name == PROGRAM.name and mine:
                        os.kill(int(entry.parent.name), signal.SIGKILL)
                        killed.set()
                        break

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = measure(ward, "--measure", "stream,dgemm")
    finally:
        ended.set()
        killer.join()
    assert killed.is_set()
    assert {f["check"] for f in found["findings"]} == {"performance.missing"}
    severity, why = missing(found)["dgemm"]
    assert severity == "warning"
    assert "the MPI job ended" in why


def orders(ward: tuple[Site, str], *lines: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the job by hand."""
    place, spec = ward
    words = ("run", spec, "--mpi", "openmpi5", "--", str(PROGRAM))
    return subprocess.run(
        place.command(*words),
        env=place.environment(),
        cwd=ROOT,
        input="".join(f"{line}\n" for line in (*lines, "end")),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_pairs_are_measured_in_both_directions(ward: tuple[Site, str]) -> None:
    rounds = ("0:1 2:3", "3:0 1:2")
    lines = [f"{n} {q} 0.02 60 {rounds[n % 2]}" for n in range(4) for q in ("latency", "bandwidth")]
    done = orders(ward, *lines)
    assert done.returncode == 0, done.stderr
    hello, *answers = [
        line
        for line in done.stdout.splitlines()
        if line[:1].isdigit() or line.startswith(PROGRAM.name)
    ]
    assert hello.startswith("mpi_check 1 4 ")
    assert [answer.split()[0] for answer in answers] == [line.split()[0] for line in lines]
    for answer in answers:
        values = [float(word) for word in answer.split()[1:]]
        assert len(values) == 4
        assert all(0.01 < value < 1e7 for value in values)


@pytest.mark.parametrize(
    "line",
    ["1 latency", "1 luck 0.1 9", "1 triad -1 9", "1 latency 0.1 9 0:4", "1 latency 0.1 9 2:2"],
)
def test_an_order_that_is_wrong_ends_the_job_with_words(ward: tuple[Site, str], line: str) -> None:
    done = orders(ward, line)
    assert done.returncode != 0
    assert "FAILED rank 0: an order" in done.stderr + done.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
def test_hpl_of_each_node_is_measured_and_checked(
    ward: tuple[Site, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verb repeats this for suspects, for many minutes: its measurement is asked for once."""
    if shutil.which("hpcc") is None:
        lacking("hpcc is not installed")
    place, path = ward
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)
    cluster, spec = open_target(path)
    with HplMeasurement(cluster.backend, spec, LocalRunner(), Silent()) as hpl:
        values = hpl.ask(Order("hpl", tuple((name,) for name in NODES))).values
        hpl.measure_cluster()
    assert (hpl.failures, hpl.lacking, hpl.wrong) == ({}, {}, {})
    assert [name for (name,) in values] == [*NODES]
    assert all(0.001 < value < 1e4 for value in values.values())
    shown = r"N = \d+, openmpi\d; 4 ranks on all nodes, N = \d+: \S+ GFLOP/s"
    assert re.search(shown, hpl.setup["hpl"])


def test_pairs_of_nodes_with_own_cores_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node has a core of its own. To compare pairs takes four nodes, and so four cores."""
    if len(CORES) < len(PAIR):
        lacking("two cores are needed")
    text = "version: 1\nname: cores\nbackend: local\nhosts:\n  - name: h1\n    nodes:\n"
    for name, core in zip(PAIR, CORES, strict=False):
        text += f"      - {{name: {name}, shm: 16 MiB, cpus: [{core}]}}\n"
    with site() as place:
        path = place.write("cores.yaml", text)
        place.ok("up", path)
        place.look(path)
        for name, value in place.environment().items():
            monkeypatch.setenv(name, value)
        cluster, spec = open_target(path)
        with MpiMeasurement(cluster.backend, spec, LocalRunner(), Silent()) as job:
            for quantity, most in (("mpi_latency", 1e6), ("mpi_bandwidth", 1e7)):
                values = job.ask(Order(quantity, (PAIR,))).values
                assert set(values) == {PAIR, PAIR[::-1]}
                assert all(0.01 < value < most for value in values.values()), values
        assert job.lacking.keys() <= {"dgemm"}  # without OpenBLAS
        place.ok("down", "--yes", path)
        place.assert_no_trace()
