# SPDX-License-Identifier: Apache-2.0
"""The command that repeats section 3 of VMW-IB: its report from the output of the verbs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import vmw_ib
from benchmarks.vmw_ib_page import EMULATED, STUDY, place_notes
from nearmetal.check.performance.run import (
    PERFORMANCE,
    MeasuredTurn,
    PerformanceRun,
    run_text,
)
from nearmetal.core.process import Command, Completed
from tests.python.check_nodes import node
from tests.python.test_report import Page

SENDS = {
    "server": "n1",
    "client": "n2",
    "device": "mlx5_0",
    "size": 1048576,
    "gbit": 96.5,
    "latency_us": 1.2,
    "why": "",
    "line_gbit": 100.0,
}
FAULT = {"severity": "fault"}
LOGS = Path(__file__).parents[1] / "data/logs/imb"
PING_PONG = (LOGS / "stackhpc_alaska_ib_pingpong.txt").read_text()


class Verbs:
    """What the verbs answer: an exit code and an output, by the name of the step."""

    def __init__(self, **answers: tuple[int, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, name: str, words: Sequence[str]) -> Completed:
        self.asked.append(" ".join(words))
        code, data = self.answers.get(name.replace("-", "_"), (0, {"findings": []}))
        text = data if isinstance(data, str) else json.dumps(data)
        out, err = (text.encode(), b"") if code in (0, 4) else (b"", text.encode())
        return Completed(Command(("nearmetal", *words)), code, out, err, 0.1)


def reported(
    tmp_path: Path, run: vmw_ib.Run, osus: Path | None = None
) -> tuple[int, dict[str, str]]:
    """Return the exit code, and what the report says of each step."""
    folder = tmp_path / "out"
    code = vmw_ib.validate("two.yaml", folder, run, imb=Path("IMB-MPI1"), mpi="mpich5", osus=osus)
    lines = (folder / "report.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines[lines.index("|---|---|---|---|") + 1 :]]
    return code, {row[1]: f"{row[2]} / {row[3].removesuffix(' |')}" for row in rows}


def test_figures_of_the_study_stand_beside_those_of_the_cluster(tmp_path: Path) -> None:
    verbs = Verbs(verbs=(0, {"sends": [SENDS], "nodes": {}, "findings": []}), imb=(0, PING_PONG))
    code, rows = reported(tmp_path, verbs, Path("/opt/osu"))
    assert code == 0
    assert rows["ib_send_bw of 1048576 B, n2 to n1"] == (
        "94.09 Gbit/s / 96.5 Gbit/s, 97.1% of the 99.37 Gbit/s that 100 leave"
    )
    assert rows["ib_send_lat of 2 B, n2 to n1"].endswith(" µs / 1.2 µs")
    assert rows["check health_extended"] == (
        "health_extended_user: passed / 0 faults, 0 warnings, 0 notes"
    )
    assert rows["IMB PingPong, latency"] == "1.050 µs / 1.03 µs"
    assert rows["IMB PingPong, bandwidth"] == "12.407, 12.439, 12.454 GB/s / 11.893 GB/s"
    assert rows["HPCG 4-node"].startswith("169.95 GFLOP/s / not run")
    assert rows["HPCG 1-node"].startswith("43.13, 43.22, ")
    assert rows["osu_alltoall"].endswith("/ see raw/osu_alltoall.txt")
    assert (tmp_path / "out/raw/imb.txt").read_text() == PING_PONG
    assert "run two.yaml --mpi mpich5 -- /opt/osu/osu_mbw_mr" in verbs.asked


def test_stream_and_dgemm_come_from_the_values_of_the_performance_check(tmp_path: Path) -> None:
    verbs = Verbs(verbs=(1, "error: no device"), imb=(0, PING_PONG))

    def run(name: str, words: Sequence[str]) -> Completed:
        if name == "check-performance":
            assert "stream,dgemm" in words[words.index("--measure") + 1]
            kept = Path(words[words.index("--output") + 1])
            kept.mkdir()
            turns = [MeasuredTurn("stream", {("n1",): v, ("n2",): 2 * v}) for v in (1.0, 3.0, 2.0)]
            found = PerformanceRun(
                ("n1", "n2"),
                setup={"stream": "small arrays"},
                screening=tuple(turns),
                lacking={"dgemm": "the MPI job ended|look"},
            )
            (kept / PERFORMANCE).write_text(run_text(found))
        return verbs(name, words)

    _, rows = reported(tmp_path, run)
    assert rows["STREAM"].endswith("177.556 GB/s / n1 2, n2 4 GB/s: small arrays")
    assert rows["DGEMM"].endswith("GFLOP/s / not run: the MPI job ended")


def test_what_cannot_run_says_why_and_faults_fail(tmp_path: Path) -> None:
    verbs = Verbs(
        verbs=(1, "error: nodes have no RDMA device"),
        check_health_base=(4, {"findings": [FAULT]}),
        check_performance=(1, "error: a cluster of 2 nodes has no majority\n  hint: add nodes"),
        imb=(0, "no table"),
    )
    code, rows = reported(tmp_path, verbs)
    assert code == 4
    assert rows["ib_send_bw, ib_send_lat"] == "- / not run: error: nodes have no RDMA device"
    assert rows["check health_base"] == "health_base: passed / 1 fault, 0 warnings, 0 notes"
    assert rows["check performance"].endswith(
        "not run: error: a cluster of 2 nodes has no majority"
    )
    assert "not read: " in rows["IMB PingPong, latency"]
    assert rows["osu_mbw_mr"].endswith("not run: --osu DIR names its programs")


@pytest.mark.parametrize(
    ("code", "text", "why"),
    [
        (-9, "killed", "not run: killed"),
        (130, "interrupted", "not run: interrupted"),
        (0, "no JSON", "not run: no JSON"),
        (0, [1], "not run: [1]"),
    ],
)
def test_a_verb_that_ends_oddly_ends_no_other_step(
    tmp_path: Path, code: int, text: Any, why: str
) -> None:
    verbs = Verbs(verbs=(code, text), check_simulation=(code, text), imb=(0, PING_PONG))
    exit_code, rows = reported(tmp_path, verbs)
    assert exit_code == 4
    assert rows["ib_send_bw, ib_send_lat"] == f"- / {why}"
    assert rows["check simulation"].endswith(why)
    assert rows["IMB PingPong, latency"] == "1.050 µs / 1.03 µs"


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    verbs = Verbs(verbs=(0, {"sends": [SENDS], "nodes": {}, "findings": []}))

    def run(name: str, words: Sequence[str]) -> Completed:
        if name == "imb":
            raise KeyboardInterrupt
        return verbs(name, words)

    with pytest.raises(KeyboardInterrupt):
        reported(tmp_path, run)
    assert "| 96.5 Gbit/s, 97.1% of" in (tmp_path / "out/report.md").read_text()
    assert json.loads((tmp_path / "out/raw/verbs.txt").read_text())["sends"] == [SENDS]


@pytest.mark.parametrize("name", ["", "no/where"])
def test_a_directory_that_cannot_be_made_is_refused_before_the_first_step(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        vmw_ib.main(["two.yaml", "--output", str(tmp_path / name)])
    assert "give the name of a new directory" in capsys.readouterr().err


def test_the_page_links_each_step_to_its_output_and_escapes_it(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    verbs = Verbs(
        verbs=(0, {"sends": [SENDS], "nodes": {}, "findings": []}),
        check_health_base=(4, {"findings": [FAULT]}),
        check_simulation=(1, f"error: {evil}\x1b[31m"),
        imb=(0, PING_PONG),
    )
    reported(tmp_path, verbs)
    text = (tmp_path / "out/report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.loaded == []
    assert {h for h in page.hrefs if h[1:] not in page.ids} == set()
    assert {"#raw-verbs", "#raw-imb", "#raw-check-health_base"} <= set(page.hrefs)
    assert evil not in text
    assert "\x1b" not in text
    assert "not as it should be" in text
    digest = hashlib.sha256((tmp_path / "out/raw/imb.txt").read_bytes()).hexdigest()
    assert f"sha256 {digest[:16]}" in text
    assert "nearmetal run two.yaml --mpi impi" in text
    assert "94.09 Gbit/s" in text


def test_the_carrier_of_the_messages_stands_beside_their_figures(tmp_path: Path) -> None:
    """Two machines of one host need no fabric, and that is no figure of one."""
    verbs = Verbs(verbs=(1, "error: no device"), imb=(0, PING_PONG))

    def run(name: str, words: Sequence[str]) -> Completed:
        done = verbs(name, words)
        said = b"note: carried by nearmetal: 2 endpoints sent segment 65334 messages\n"
        return replace(done, stderr=said) if name == "imb" else done

    _, rows = reported(tmp_path, run)
    assert rows["IMB PingPong, latency"].endswith(
        "1.03 µs; 2 endpoints sent segment 65334 messages"
    )


def test_emulated_figures_are_said_to_be_none() -> None:
    device = {"name": "rxe_eth0", "is_software": True}
    verified = {"nodes": {"n1": {"devices": [device]}, "n2": {"devices": [device]}}}
    real = [node(n, ("system>boot_id", f"k{n}")) for n in (1, 2)]
    assert list(place_notes({}, real)) == [STUDY, "This cluster: 2 nodes, Model P."]
    soft = list(place_notes(verified, real))
    assert soft[2:] == [
        "The RDMA devices are software: rxe_eth0. They have no line rate.",
        EMULATED,
    ]
    tcg = [node(1, ("processor>model", "QEMU TCG CPU version 2.5+"))]
    assert list(place_notes({}, tcg))[2:] == ["The processors are emulated (QEMU TCG).", EMULATED]
    assert list(place_notes({}, [node(1), node(2)]))[2:] == [
        "All nodes share one kernel.",
        EMULATED,
    ]


@pytest.mark.parametrize(
    ("layer", "mtu", "line", "gbit", "payload"),
    [
        ("InfiniBand", 2048, 100.0, 95.0, 100 * 2048 / 2074),
        ("Ethernet", 1024, 100.0, 90.0, 100 * 1024 / 1106),
        # The line of a port is its data rate: 40 Gbit/s are those of FDR10, without encoding.
        ("InfiniBand", 4096, 40.0, 38.0, 40 * 4096 / 4122),
    ],
)
def test_the_share_is_that_of_the_payload(  # noqa: PLR0917 - a row of the table
    layer: str, mtu: int, line: float, gbit: float, payload: float, tmp_path: Path
) -> None:
    ports = [{"state": "PORT_ACTIVE", "link_layer": layer, "active_mtu": mtu}]
    nodes = {"n2": {"devices": [{"name": "mlx5_0", "is_software": False, "ports": ports}]}}
    sends = SENDS | {"line_gbit": line, "gbit": gbit}
    verbs = Verbs(verbs=(0, {"sends": [sends], "nodes": nodes, "findings": []}))
    _, rows = reported(tmp_path, verbs)
    expected = f", {gbit / payload:.1%} of the {payload:.4g} Gbit/s that {line:g} leave"
    assert rows["ib_send_bw of 1048576 B, n2 to n1"].endswith(expected)
