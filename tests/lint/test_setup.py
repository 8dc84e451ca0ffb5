# SPDX-License-Identifier: Apache-2.0
"""The set-up scripts: what they say about missing packages, how their steps survive a kill."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lint.tree import ROOT

SETUP = ROOT / "tools/setup"


def bash(folder: Path, script: str) -> tuple[int, str]:
    """Run a script with the set-up functions over a tree of its own."""
    (folder / "build").mkdir(exist_ok=True)
    prologue = f"""
set -euo pipefail
root={folder} here={folder}
. {SETUP}/lib.sh
. {SETUP}/debian.sh
mkdir -p "$logs" "$stamps" "$scratch"
step_total=9
"""
    done = subprocess.run(
        ["bash", "-c", prologue + script],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def test_help_is_the_whole_header() -> None:
    done = subprocess.run(
        [SETUP / "setup.sh", "--help"], check=True, capture_output=True, text=True, timeout=60
    )
    header = (SETUP / "setup.sh").read_text().partition("\n\n")[0].splitlines()[3:]
    assert done.stdout.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in header]
    assert done.stdout.endswith("\nOptions may stand together.\n")


def test_missing_packages_are_named_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "apt-packages.txt").write_text(
        "# a comment\ndpkg=1\nno-such-thing=2.0-1  # why\n\nnor-this=3\n"
    )
    status, output = bash(tmp_path, "is_root() { false; }; debian_step")
    assert status == 1
    assert "2 Debian packages are missing" in output
    assert "  no-such-thing=2.0-1\n  nor-this=3\n" in output
    assert "apt-get install --no-install-recommends no-such-thing nor-this" in output


def test_nothing_missing_goes_on_without_root(tmp_path: Path) -> None:
    (tmp_path / "apt-packages.txt").write_text("dpkg=1\n")
    assert bash(tmp_path, "is_root() { false; }; debian_step") == (
        0,
        "[1/9] Debian packages ... ready\n",
    )


def test_a_version_of_backports_is_replaced_by_one_of_backports(tmp_path: Path) -> None:
    versions = r"""apt-cache() {
        case $1 in
        madison) printf ' %s | %s | somewhere\n' q 2~bpo12+2 q 1-1 ;;
        policy) echo '  Candidate: 1-1' ;;
        esac
    }
    """
    status, output = bash(tmp_path, versions + "choose_versions q=2~bpo12+1 q=1-0 3>/dev/null")
    assert (status, output) == (0, "q=2~bpo12+2\nq=1-1\n")


FETCH = """
apt-get() { [[ $2 == "$there" ]] && echo bytes >"${2%%=*}_1.deb"; }
apt-cache() { echo '  Candidate: 2-1'; }
cd "$scratch"
fetch_package machine_apt q=1-1 "$sum" 3>&1
"""
SUM = "95cc8e8ec552664096b998c62dfd5dfd0a41c96154de6814d918d1ca34bfc225"


@pytest.mark.parametrize(
    ("there", "digest", "code", "words"),
    [
        ("q=1-1", SUM, 0, "q_1.deb: OK"),
        ("q=1-1", SUM.replace("9", "0"), 1, "q_1.deb: FAILED"),
        ("q", SUM, 0, "q=1-1 is gone from the mirror, taking 2-1"),
    ],
)
def test_a_package_has_the_listed_bytes_or_is_named_as_another(
    there: str, digest: str, code: int, words: str, tmp_path: Path
) -> None:
    status, output = bash(tmp_path, f"there={there} sum={digest}\n{FETCH}")
    assert status == code
    assert words in output


@pytest.mark.parametrize(
    "name", ["apt", "vm", "vsphere", "openstack", "study", "slurm", "apps", "containers", "build"]
)
def test_every_listed_package_has_a_version(name: str) -> None:
    lines = (SETUP / f"{name}-packages.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert [name for name in names if name.count("=") != 1] == []


def test_every_requirement_has_a_hash() -> None:
    for path in (*SETUP.glob("requirements*.txt"), *(SETUP / "mpi").glob("*.txt")):
        text = path.read_text().replace("\\\n", " ")
        pinned = [line for line in text.splitlines() if "==" in line]
        assert pinned, path
        assert all("--hash=sha256:" in line for line in pinned), path


@pytest.mark.parametrize("variant", ["normal", "asan", "tsan", "faults", "fuzz"])
def test_a_warning_is_an_error_everywhere(tmp_path: Path, variant: str) -> None:
    """What passes on a developer's machine must not fail in CI alone."""
    copy, tools = tmp_path / "tools/setup/c_build.sh", tmp_path / "build/venv/bin"
    copy.parent.mkdir(parents=True)
    tools.mkdir(parents=True)
    shutil.copy(SETUP / "c_build.sh", copy)
    for name in ("meson", "ninja"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\n')
        (tools / name).chmod(0o755)
    # No CI in the environment.
    subprocess.run(["bash", copy, variant], check=False, env={"PATH": os.environ["PATH"]})
    assert "meson setup -Dwerror=true" in (tmp_path / "calls").read_text()


STEP = """
work() { echo run >>{folder}/runs; mkdir -p "$scratch/x"; {body}; replace_dir "$scratch/x" {folder}/x; }
step work Work {folder}/x "$(hash_of input)" work
"""


def step(folder: Path, body: str, key: str = "input") -> tuple[int, str]:
    script = STEP.replace("{folder}", str(folder)).replace("{body}", body)
    return bash(folder, script.replace("hash_of input", f"hash_of {key}"))


def runs(folder: Path) -> int:
    return (folder / "runs").read_text().count("run")


def test_finished_step_is_not_run_again(tmp_path: Path) -> None:
    assert step(tmp_path, "true")[0] == 0
    assert step(tmp_path, "true") == (0, "[1/9] Work ... ready\n")
    assert runs(tmp_path) == 1


def test_step_runs_again_when_an_input_changes(tmp_path: Path) -> None:
    step(tmp_path, "true")
    step(tmp_path, "true", key="other")
    assert runs(tmp_path) == 2


def test_step_runs_again_when_its_result_is_gone(tmp_path: Path) -> None:
    step(tmp_path, "true")
    (tmp_path / "x").rmdir()
    step(tmp_path, "true")
    assert runs(tmp_path) == 2


def test_failed_step_names_the_command_and_stops(tmp_path: Path) -> None:
    status, output = step(tmp_path, "echo detail; ls /no/such/file; echo never")
    assert status == 1
    assert "failed command: ls /no/such/file" in output
    assert "| detail" in output
    assert "never" not in output
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_killed_step_is_run_again(tmp_path: Path, signal: str) -> None:
    status, _ = step(tmp_path, f"kill -{signal} $BASHPID")
    assert status == 1
    assert not (tmp_path / "x").exists()
    assert step(tmp_path, "true")[0] == 0
    assert runs(tmp_path) == 2


def test_step_that_outlives_its_set_up_counts(tmp_path: Path) -> None:
    # $$ is the set-up, the step is its child.
    step(tmp_path, "kill -KILL $$; sleep 0.2")
    for _ in range(100):
        if (tmp_path / "build/.stamps/work").exists():
            break
        subprocess.run(["sleep", "0.1"], check=True)
    assert step(tmp_path, "true") == (0, "[1/9] Work ... ready\n")
    assert runs(tmp_path) == 1
