# SPDX-License-Identifier: Apache-2.0
"""The command that repeats section 3 of VMW-IB: its report from the output of the verbs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import vmw_ib
from nearmetal.check.performance.run import (
    PERFORMANCE,
    MeasuredTurn,
    PerformanceRun,
    run_text,
)
from nearmetal.core.process import Command, Completed

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
    rows = [line.split(" | ") for line in (folder / "report.md").read_text().splitlines()[4:]]
    return code, {row[1]: f"{row[2]} / {row[3].removesuffix(' |')}" for row in rows}


def test_figures_of_the_study_stand_beside_those_of_the_cluster(tmp_path: Path) -> None:
    verbs = Verbs(verbs=(0, {"sends": [SENDS], "findings": []}), imb=(0, PING_PONG))
    code, rows = reported(tmp_path, verbs, Path("/opt/osu"))
    assert code == 0
    assert rows["ib_send_bw, n2 to n1"] == "94.09 Gbit/s / 96.5 of 100 Gbit/s"
    assert rows["ib_send_lat, n2 to n1"].endswith(" µs / 1.2 µs")
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
    assert rows["check health_base"] == "health_base: passed / 1 faults, 0 warnings, 0 notes"
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
    verbs = Verbs(verbs=(0, {"sends": [SENDS], "findings": []}))

    def run(name: str, words: Sequence[str]) -> Completed:
        if name == "imb":
            raise KeyboardInterrupt
        return verbs(name, words)

    with pytest.raises(KeyboardInterrupt):
        reported(tmp_path, run)
    assert "96.5 of 100 Gbit/s" in (tmp_path / "out/report.md").read_text()
    assert json.loads((tmp_path / "out/raw/verbs.txt").read_text())["sends"] == [SENDS]


@pytest.mark.parametrize("name", ["", "no/where"])
def test_a_directory_that_cannot_be_made_is_refused_before_the_first_step(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        vmw_ib.main(["two.yaml", "--output", str(tmp_path / name)])
    assert "give the name of a new directory" in capsys.readouterr().err
