# SPDX-License-Identifier: Apache-2.0
"""Section 3 of VMW-IB on four virtual machines with soft-RoCE: one command, a report, a page.

The machines are emulated and share the cores of this one, so no figure is judged here.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.python.test_report import Page
from tests.system import hypervisors
from tests.system.need import lacking
from tests.system.virtual_clusters import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(1800),
]

hypervisors.need()

NAMES = ("n1", "n2", "n3", "n4")
if not (ROOT / "build/mpi/impi/bin/IMB-MPI1").is_file():
    lacking("Intel MPI is not installed")
if not (ROOT / "build/programs/openmpi5/mpi_check").is_file():
    lacking("mpi_check is not compiled")

NODE = "{{name: {}, memory: 1 GiB, soft_roce: true}}"
SPEC = """\
version: 1
name: section-3
backend: libvirt
accel: tcg
network: {{subnet: 10.85.0.0/24, bridge: {bridge}}}
hosts:
  - {{name: h1, uri: "{first}", nodes: [{n1}, {n2}]}}
  - {{name: h2, uri: "{second}", nodes: [{n3}, {n4}]}}
"""


def run(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        env=environment(state),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=1200,
    )


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of the command, after it ran on a cluster of four machines on two hosts."""
    folder = tmp_path_factory.mktemp("section")
    before = hypervisors.machine_things("section-3")
    state, spec = folder / "s", folder / "section-3.yaml"
    with hypervisors.bridged("10.85.0.1/24") as (first, second, bridge):
        each = {name: NODE.format(name) for name in NAMES}
        spec.write_text(SPEC.format(bridge=bridge, first=first.uri, second=second.uri, **each))
        try:
            done = run(state, "nearmetal", "up", str(spec))
            assert done.returncode == 0, done.stderr
            done = run(state, "benchmarks.vmw_ib", str(spec), "--output", str(folder / "out"))
            assert done.returncode in (0, 4), done.stderr
            yield folder / "out"
        finally:
            done = run(state, "nearmetal", "down", "--yes", str(spec))
        assert done.returncode == 0, done.stderr
    assert hypervisors.traces("section-3", before, state) == []


@pytest.fixture
def rows(output: Path) -> dict[str, tuple[str, str]]:
    """The study and the cluster, by the name of the step."""
    lines = [
        line.strip("| ").split(" | ") for line in (output / "report.md").read_text().splitlines()
    ]
    return {cells[1]: (cells[2], cells[3]) for cells in lines if len(cells) == 4}


def test_verbs_are_measured_between_the_machines(rows: dict[str, tuple[str, str]]) -> None:
    pairs = ("n2 to n1", "n3 to n2", "n4 to n3", "n1 to n4")
    for program, study, unit in (
        ("ib_send_bw of 65536 B", "94.87 Gbit/s", "Gbit/s"),
        ("ib_send_lat of 2 B", "1.19 µs", "µs"),
    ):
        for pair in pairs:
            theirs, ours = rows[f"{program}, {pair}"]
            number, _, ending = ours.partition(" ")
            assert (theirs, ending) == (study, unit)
            assert float(number) > 0


def test_the_four_checks_have_no_fault(rows: dict[str, tuple[str, str]]) -> None:
    for profile, theirs in (
        ("health_base", "health_base"),
        ("health_extended", "health_extended_user"),
        ("hpc_platform", "intel_hpc_platform_compat-hpc-cluster-2.0"),
        ("simulation", "select_solutions_sim_mod_user_plus_2021.0"),
    ):
        study, here = rows[f"check {profile}"]
        assert study == f"{theirs}: passed"
        assert here.startswith("0 faults, ")


def test_stream_dgemm_and_ping_pong_have_figures(rows: dict[str, tuple[str, str]]) -> None:
    for step in ("STREAM", "DGEMM"):
        values = rows[step][1].partition(": ")[0].replace(",", "").split()
        assert values[:8:2] == list(NAMES)
        assert all(float(value) > 0 for value in values[1:8:2])
    for step, unit in (("latency", "µs"), ("bandwidth", "GB/s")):
        figure, _, carrier = rows[f"IMB PingPong, {step}"][1].partition("; ")
        assert figure.endswith(f" {unit}")
        # Both are machines of one host.
        assert "endpoints sent segment" in carrier


def test_the_report_says_that_emulated_figures_are_none(output: Path) -> None:
    text = (output / "report.html").read_text()
    page = Page(text)
    assert page.loaded == []
    assert {h for h in page.hrefs if h[1:] not in page.ids} == set()
    for words in ("They are no figures of hardware", "QEMU TCG", "software: rxe_eth0"):
        assert words in text
        assert words in (output / "report.md").read_text()
    maps = (output / "performance.html").read_text()
    assert all(f'<th scope="row">{name}</th>' in maps for name in NAMES)
    assert "QEMU TCG CPU" in maps
