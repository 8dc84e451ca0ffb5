# SPDX-License-Identifier: Apache-2.0
"""The runner of UCX's gtest suite: cases that pass, that do not apply, and that end a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance import ucx
from tests.conformance.outcomes import load

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LISTED = """\
[     INFO ] Using random seed of 1
one/test_a.  # TypeParam =
  good/0  # GetParam() = one/memory
  bad/0   # GetParam() = one/memory
  ends/0  # GetParam() = one/memory
  lasts/0  # GetParam() = one/memory
  other/0  # GetParam() = one/memory
two/test_b.
  good/1
"""

GTEST = """\
#!/bin/bash
if [[ $1 == --gtest_list_tests ]]; then cat "${0%/*}/listed"; exit; fi
IFS=: read -ra names <<<"${1#*=}"
for name in "${names[@]}"; do
    echo "[ RUN      ] $name <one/memory>"
    case $name in
    *bad*)
        printf 'uct/test.cc:7: Failure\\nExpected: 1\\n'
        echo "[  FAILED  ] $name, where GetParam() = one/memory (30 ms)"
        ;;
    *ends*) exit 3 ;;
    *lasts*) exec sleep 60 ;;
    *other*) printf '[     SKIP ] (loopback)\\n[       OK ] %s (4 ms)\\n' "$name" ;;
    *) echo "8 100 63x{8..100} [       OK ] $name (1500 ms)" ;;
    esac
done
"""


def tree(place: Path) -> Path:
    directory = place / "test" / "gtest"
    directory.mkdir(parents=True)
    (directory / "listed").write_text(LISTED)
    (directory / "gtest").write_text(GTEST)
    (directory / "gtest").chmod(0o755)
    return place


def test_cases_are_read_from_the_list() -> None:
    found = list(ucx.cases(LISTED))
    assert found[0] == ("one", "test_a.good/0")
    assert found[-1] == ("two", "test_b.good/1")
    assert len(found) == 6


def test_what_follows_a_case_that_ends_its_process_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "found.jsonl"
    options = ["--tree", str(tree(tmp_path)), "--record", str(record), "--timeout", "2"]
    code = ucx.main([*options, "--provider", "posix", "--suites", "one,two"])
    assert code == 1
    assert "6 tests: 2 pass, 2 fail, 1 timeout, 1 notrun" in capsys.readouterr().out
    found = {o.test: o for o in load(record).values()}
    assert found["test_a.good/0"].seconds == 1.5
    assert found["test_a.bad/0"].result == "fail"
    assert "uct/test.cc:7: Failure | Expected: 1" in found["test_a.bad/0"].note
    assert found["test_a.ends/0"].result == "fail"
    assert "exit code 3" in found["test_a.ends/0"].note
    assert found["test_a.lasts/0"].result == "timeout"
    assert (found["test_a.other/0"].result, found["test_a.other/0"].note) == (
        "notrun",
        "(loopback)",
    )
    assert found["test_b.good/1"].result == "pass"
    assert (tmp_path / "found.log" / "one.test_a.bad_0").read_text().startswith("uct/test.cc:7")


def test_a_run_without_the_library_is_unproven(tmp_path: Path) -> None:
    record = tmp_path / "found.jsonl"
    assert ucx.main(["--tree", str(tree(tmp_path)), "--record", str(record), "--suites", "two"])
    assert [o.result for o in load(record).values()] == ["unproven"]


def test_a_process_that_ends_before_its_first_case_fails_that_case(tmp_path: Path) -> None:
    program, record = tree(tmp_path) / "test/gtest/gtest", tmp_path / "found.jsonl"
    program.write_text(GTEST.replace("IFS=:", "echo no library; exit 3; IFS=:"))
    options = ["--tree", str(tmp_path), "--record", str(record), "--provider", "posix"]
    assert ucx.main([*options, "--suites", "two"]) == 1
    (found,) = load(record).values()
    assert (found.test, found.result) == ("test_b.good/1", "fail")
    assert "exit code 3; no library" in found.note
