# SPDX-License-Identifier: Apache-2.0
"""Bad input on the command line: studies that ask for what cannot be, and runs killed in every phase."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.evidence import read_manifest
from nearmetal.study.store import FACTS, Study
from tests.python.evidence_runs import make_run

ROOT = Path(__file__).parents[2]
LABELS = """\
format: 1
run: lab
arms:
  a: {platform: bare metal, fabric: IB, placement: near, cores_per_node: 48}
  b: {platform: VM, fabric: IB, placement: near, cores_per_node: 44}
sources:
  - path: "{arm}/{_}-{launch}.out"
    nodes: 2
"""


def osu(first: float) -> str:
    rows = "".join(f"{1 << i:<10}{first + i * (first > 0):>18.2f}\n" for i in range(4))
    return f"# OSU MPI Latency Test v5.8\n# Size          Latency (us)\n{rows}"


def study(folder: Path, a: list[str], b: list[str]) -> Path:
    for arm, texts in (("a", a), ("b", b)):
        (folder / "logs" / arm).mkdir(parents=True)
        for launch, text in enumerate(texts, 1):
            (folder / "logs" / arm / f"x-{launch}.out").write_text(text)
    (folder / "logs" / "study-labels.yaml").write_text(LABELS)
    words = ["study", "import", str(folder / "logs"), "--output", str(folder / "s"), "--keep-going"]
    assert main(words) == 0
    return folder / "s"


def judged(made: Path, capsys: pytest.CaptureFixture[str]) -> list[dict]:  # type: ignore[type-arg]
    capsys.readouterr()
    assert main(["study", "judge", str(made), "a", "b", "--json"]) == 0
    return list(json.loads(capsys.readouterr().out)["comparisons"])


def test_an_arm_with_one_launch_gets_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, [osu(1 + n / 100) for n in range(8)], [osu(9)])
    for one in judged(made, capsys):
        assert (one["verdict"], one["launches_needed"]) == ("INCONCLUSIVE", 5)
        assert one["arm"]["interval"] is None
    assert main(["study", "report", str(made), "a", "b"]) == 0
    assert ">INCONCLUSIVE<" in (made / "report.html").read_text()


def test_zeros_have_no_ratio_and_stop_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(
        tmp_path,
        [osu(1 + n / 100) for n in range(8)],
        [f"# launch {n}\n" + osu(0) for n in range(8)],
    )
    for one in judged(made, capsys):
        assert (one["verdict"], one["ratio"]) == ("INCONCLUSIVE", None)
        assert one["reason"] == "a value is zero: there is no ratio; read its raw line"
    assert main(["study", "report", str(made), "a", "b"]) == 0


def test_units_mixed_in_one_file_are_refused(tmp_path: Path) -> None:
    title = "                    RDMA_Write BW Test\n"
    rows = " 65536      5000             100.00              100.00                0.1\n"
    names = " #bytes     #iterations    BW peak[{0}]    BW average[{0}]   MsgRate[Mpps]\n"
    text = (
        title
        + names.format("MB/sec")
        + rows
        + names.format("Gb/sec")
        + rows.replace("65536", "131072")
    )
    made = study(tmp_path, [osu(1)], [text])
    (refused,) = [s for s in Study(made).sources() if s.status == "refused"]
    assert "another header" in refused.reason


def test_concatenated_outputs_are_no_launches_of_one_cell(tmp_path: Path) -> None:
    made = study(tmp_path, [osu(1)], [osu(2) + osu(4)])
    cells = list(Study(made).cells(arm="b", size=1))
    # They may be runs of two pairs of nodes: neither two launches, nor one launch of their mean.
    assert [cell.values for cell in cells] == [(2.0,), (4.0,)]
    assert [c.point.variant for c in cells] == ["table 1 of 2", "table 2 of 2"]


def test_a_manifest_that_names_missing_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs" / "first")
    launch = next(one for one in read_manifest(tmp_path / "runs" / "first").launches if one.good)
    (tmp_path / "runs" / "first" / launch.file).unlink()
    words = ["study", "import", str(tmp_path / "runs"), "--output", str(tmp_path / "s"), "--json"]
    assert main(words) == 1
    refused = json.loads(capsys.readouterr().out)["refused"]
    assert list(refused) == [f"first/{launch.file}"]
    assert "No such file" in refused[f"first/{launch.file}"]


PROGRAM = """\
#!/bin/sh
# One launch: says that it began, may be slow, prints as osu_latency does.
echo begun >>"$1"
[ -e "$1.slow" ] && sleep 30
echo '# OSU MPI Latency Test v7.4'
echo '# Size          Latency (us)'
n=$(wc -l <"$1")
for s in 1 2 4 8; do echo "$s 1.$((n % 7))$s"; done
"""
STUDY = """\
format: 1
name: plain
arms:
  a: {{start: [/usr/bin/env], platform: p, fabric: f, placement: x}}
  b: {{start: [/usr/bin/env, B=1], platform: p, fabric: g, placement: x}}
workloads:
  w: {{program: {program}, args: [{begun}], log_format: osu}}
launches: {{least: 6, most: 6}}
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    program = tmp_path / "bench"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    text = STUDY.format(program=program, begun=tmp_path / "begun")
    (tmp_path / "study.yaml").write_text(text)
    return tmp_path


def start(plain: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "nearmetal", *words],
        cwd=ROOT,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "NEARMETAL_STATE_DIR": str(plain / "state")},
    )


def wait_until(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def killed(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(plain: Path) -> None:
    """Run to the end, import and report: 12 launches, each made once and good."""
    assert main(["study", "run", str(plain / "study.yaml"), "--output", str(plain / "run")]) == 0
    launches = read_manifest(plain / "run").launches
    assert sorted((one.block, one.arm) for one in launches) == [
        (n, a) for n in range(6) for a in "ab"
    ]
    assert all(one.good for one in launches)
    assert main(["study", "import", str(plain / "run"), "--output", str(plain / "s")]) == 0
    assert main(["study", "report", str(plain / "s"), "a", "b", "--margin", "20"]) == 0
    assert all(len(cell.values) == 6 for cell in Study(plain / "s").cells())


def test_a_run_killed_before_its_first_launch(plain: Path) -> None:
    process = start(
        plain, "study", "run", str(plain / "study.yaml"), "--output", str(plain / "run")
    )
    deadline = time.monotonic() + 120
    while not (plain / "run" / "raw").exists():
        assert time.monotonic() < deadline
    killed(process)
    finish(plain)


def test_a_run_killed_within_a_launch(plain: Path) -> None:
    process = start(
        plain, "study", "run", str(plain / "study.yaml"), "--output", str(plain / "run")
    )
    wait_until(plain / "begun", 3)
    (plain / "begun.slow").touch()
    wait_until(plain / "begun", len((plain / "begun").read_text().splitlines()) + 1)
    killed(process)
    before = read_manifest(plain / "run").launches
    (plain / "begun.slow").unlink()
    finish(plain)
    assert read_manifest(plain / "run").launches[: len(before)] == before


def test_a_run_killed_while_it_recorded_a_launch(plain: Path) -> None:
    process = start(
        plain, "study", "run", str(plain / "study.yaml"), "--output", str(plain / "run")
    )
    wait_until(plain / "begun", 4)
    killed(process)
    manifest = plain / "run" / "manifest.json"
    number = len(read_manifest(plain / "run").launches) + 1
    # What a kill at that instant leaves: half a manifest beside the old one, half a raw file.
    manifest.with_name("manifest.json.new").write_text(manifest.read_text()[:100])
    for arm in "ab":
        (plain / "run" / "raw" / f"{number:04}-{arm}-w.out").write_text("# OSU MPI Lat")
    finish(plain)


def test_an_import_and_a_report_killed(plain: Path) -> None:
    finish(plain)
    facts, page = (plain / "s" / FACTS).read_bytes(), plain / "s" / "report.html"
    shown = page.read_bytes()
    for words in (
        ["import", str(plain / "run"), "--output", str(plain / "s")],
        ["report", str(plain / "s"), "a", "b", "--margin", "20"],
    ):
        for delay in (0.2, 0.6):
            process = start(plain, "study", *words)
            time.sleep(delay)
            killed(process)
            assert page.read_bytes() == shown
            assert (plain / "s" / FACTS).read_bytes() == facts
    finish(plain)
    assert page.read_bytes() == shown


def test_a_launcher_and_a_cluster_exclude_each_other(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plain / "study.yaml"
    path.write_text(path.read_text().replace("start: [/usr/bin/env],", "start: [x], cluster: y,"))
    assert main(["study", "run", str(path), "--output", str(plain / "run")]) == 1
    assert "neither or both of cluster and start" in capsys.readouterr().err


def test_a_workload_without_a_free_case_needs_input(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plain / "study.yaml"
    text = path.read_text()
    start_of = text.index("  w: ")
    path.write_text(text[:start_of] + "  w: {use: wrf}\n" + text[text.index("launches:") :])
    assert main(["study", "run", str(path), "--output", str(plain / "run")]) == 2
    assert "wrf needs input: DIR" in capsys.readouterr().err
