# SPDX-License-Identifier: Apache-2.0
"""The summary line of continuous integration counts what runners reported, and nothing else."""

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
