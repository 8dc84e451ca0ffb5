# SPDX-License-Identifier: Apache-2.0
"""`nearmetal tune` on this machine: the provider takes what it writes, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def tune(*arguments: str, file: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"NEARMETAL_TUNE_FILE": str(file)}
    argv = [sys.executable, "-m", "nearmetal", "tune", *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_what_is_measured_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "tuning"
    done = tune("--rounds", "1", "--json", file=file)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["file"] == str(file)
    assert told["tuning"]["usable"]
    rates = {(r["class"], r["load"], r["protocol"]): r["mbps"] for r in told["tuning"]["rates"]}
    assert {key[0] for key in rates} == {"64K", "256K", "1M", "more"}
    # Rates are of one placement; when the cores moved in the only round, one of the two is missing.
    assert {key[1] for key in rates} <= {"lone", "stream"}
    assert {"pool", "past"} <= {key[2] for key in rates}
    text = file.read_text()
    assert text.startswith("nearmetal-tuning 1\n")
    assert text.endswith("\nend\n")
    shown = tune("--show", file=file)
    assert shown.returncode == 0
    assert f"{file}: measured " in shown.stdout
    # Of another machine, cut off, gone.
    file.write_text(text.replace("\ncpu ", "\ncpu not ", 1))
    refused = tune("--show", file=file)
    assert refused.returncode == 4
    assert "another machine" in refused.stdout
    file.write_text(text[:-4])
    assert "cut off" in tune("--show", file=file).stdout
    file.unlink()
    assert tune("--show", file=file).returncode == 4


def test_usage_errors(tmp_path: Path) -> None:
    assert tune("--rounds", "0", file=tmp_path / "t").returncode == 2
