# SPDX-License-Identifier: Apache-2.0
"""Continuous integration runs all parts; its last line counts what runners reported, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint.tree import ROOT

PYTEST = (
    "<testsuites><testsuite><testcase name='a'/><testcase name='b'><failure/></testcase>"
    "<testcase name='c'><skipped/></testcase></testsuite></testsuites>"
)
MESON = "<testsuites><testsuite><testcase name='d'/><testcase name='e'/></testsuite></testsuites>"


def summary(folder: Path, *broken: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/summary.py", *broken],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()[-1]


@pytest.fixture
def green(tmp_path: Path) -> Path:
    results = tmp_path / "build/c-asan/meson-logs/testlog.junit.xml"
    results.parent.mkdir(parents=True)
    results.write_text(MESON)
    return tmp_path


def test_all_runners_are_counted(green: Path) -> None:
    results = green / "build/log/junit/lint.xml"
    results.parent.mkdir(parents=True)
    results.write_text(PYTEST)
    assert summary(green, "test") == (1, "3 passed, 1 failed, 1 skipped")


def test_green(green: Path) -> None:
    assert summary(green) == (0, "2 passed, 0 failed, 0 skipped")


def test_failed_case_fails_even_if_no_target_did(green: Path) -> None:
    (green / "build/c/meson-logs").mkdir(parents=True)
    (green / "build/c/meson-logs/testlog.junit.xml").write_text(PYTEST)
    assert summary(green) == (1, "3 passed, 1 failed, 1 skipped")


def test_target_that_broke_before_its_tests_counts_as_failed(green: Path) -> None:
    assert summary(green, "test", "test-system") == (1, "2 passed, 2 failed, 0 skipped")


def test_nothing_passed_is_a_failure(tmp_path: Path) -> None:
    assert summary(tmp_path) == (1, "0 passed, 0 failed, 0 skipped")


def prerequisites(target: str) -> set[str]:
    found = re.search(rf"^{target}: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return set(found[1].split())


def run_with(folder: Path, broken: str) -> tuple[int, list[str], list[str]]:
    """Run .ci/run where one target of `make` fails; returns status, calls of make, last lines."""
    (folder / ".ci").mkdir()
    for name in ("run", "summary.py"):
        shutil.copy(ROOT / ".ci" / name, folder / ".ci")
    make = folder / "bin/make"
    make.parent.mkdir()
    make.write_text(
        f'#!/bin/sh\necho "$@" >>{folder}/calls\ncase " $* " in *" {broken} "*) exit 2; esac\n'
    )
    make.chmod(0o755)
    results = folder / "build/log/junit/old.xml"
    results.parent.mkdir(parents=True)
    results.write_text(PYTEST)
    env = {"PATH": f"{make.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [folder / ".ci/run"], env=env, check=False, capture_output=True, text=True, timeout=60
    )
    assert not results.exists(), "results of an earlier run are counted"
    calls = (folder / "calls").read_text().splitlines()
    return done.returncode, calls, done.stdout.splitlines()


def test_every_part_of_make_test_is_run(tmp_path: Path) -> None:
    _, calls, _ = run_with(tmp_path, "none")
    targets = [line.split()[1] for line in calls]
    # A minute of every fuzzer stands for its seconds.
    wanted = prerequisites("test") - {"setup", "test-fuzz-briefly"} | {"test-fuzz"}
    assert wanted <= set(targets)
    assert {"test-system-light", "test-system-heavy"} <= set(targets)
    assert len(targets) == len(set(targets))


@pytest.mark.parametrize("broken", ["setup-system", "lint", "test-fuzz", "test-system-heavy"])
def test_every_part_is_run_when_one_fails(tmp_path: Path, broken: str) -> None:
    status, calls, lines = run_with(tmp_path, broken)
    assert {"test-c", "test-fuzz", "test-system-heavy"} <= {line.split()[1] for line in calls}
    assert status == 1
    assert f"make {broken} failed" in lines


def recipe(target: str) -> list[str]:
    # Under another make it would say which directory it enters and leaves.
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", target],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.splitlines()[-1].split()


def test_the_two_halves_of_the_system_tests_are_the_whole() -> None:
    light = {word for word in recipe("test-system-light") if word.startswith("tests/")}
    heavy = recipe("test-system-heavy")
    left_out = {word.removeprefix("--ignore=") for word in heavy if word.startswith("--ignore=")}
    assert light
    assert light == left_out
    assert all((ROOT / name).is_file() for name in light)
    assert "tests/system" in heavy
    whole = recipe("test-system")
    assert "tests/system" in whole
    assert not [word for word in whole if word.startswith("--ignore")]


def test_what_runs_beside_the_fuzzers_starts_no_virtual_machine() -> None:
    for name in recipe("test-system-light"):
        if name.startswith("tests/"):
            text = (ROOT / name).read_text()
            # Marked as a whole, before anything else: nothing of it runs there.
            if "pytest.mark.full," in text.partition("\ndef ")[0]:
                continue
            for word in ("import hypervisors", "system.hypervisors", "Yard", "built_image"):
                assert word not in text, f"{name} uses {word}"
