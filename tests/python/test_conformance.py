# SPDX-License-Identifier: Apache-2.0
"""The runners of foreign conformance tests: what they read, judge and compare."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from tests.conformance import fabtests
from tests.conformance.outcomes import Outcome, Record, compare, load

SCRIPT = """\
unit_tests=(
\t"fi_eq_test"
\t"fi_av_test -g GOOD_ADDR -e dgram"
)

standard_tests=(
\t"fi_msg_bw -v"
\t"fi_rma_bw -e msg -o write"
\t"fi_rma_bw -e rdm -o write"
\t"fi_rdm_pingpong"
)
"""


def test_only_tests_of_rdm_endpoints_are_read() -> None:
    assert fabtests.read_tests(SCRIPT, "unit") == ["fi_eq_test"]
    assert fabtests.read_tests(SCRIPT, "standard") == [
        "fi_rma_bw -e rdm -o write",
        "fi_rdm_pingpong",
    ]
    with pytest.raises(ValueError, match="no list threaded_tests"):
        fabtests.read_tests(SCRIPT, "threaded")


def test_blocks_of_ubertest_are_split_at_their_braces() -> None:
    assert fabtests.read_blocks("{ a: [1] },\n{ b: {c} },") == ["{ a: [1] }", "{ b: {c} }"]


@pytest.mark.parametrize(
    ("codes", "ended", "result"),
    [
        ((0, 0), True, "pass"),
        ((0, 1), True, "fail"),
        ((errno.ENODATA, errno.ENODATA), True, "notrun"),
        ((errno.ENODATA, errno.ENOTCONN), True, "notrun"),
        ((None, errno.ENODATA), False, "fail"),
        ((None, None), False, "timeout"),
        ((None, 0), False, "timeout"),
    ],
)
def test_what_exit_codes_mean(codes: tuple[int | None, ...], ended: bool, result: str) -> None:
    assert fabtests.judge(codes, ended) == result


@pytest.mark.parametrize(
    ("client", "codes", "result"),
    [
        ("Success: 72\nENODATA: 72\nENOSYS : 0\nERROR  : 0\n", (61, 61), "pass"),
        ("Success: 0\nENODATA: 3\n", (61, 61), "notrun"),
        ("Success: 8\nENOSYS : 1\n", (38, 38), "fail"),
        ("Success: 8\nENODATA: 0\n", (0, -6), "fail"),
        ("", (0, 0), "fail"),
    ],
)
def test_what_ubertest_counted(client: str, codes: tuple[int, ...], result: str) -> None:
    assert fabtests.judge_uber(client, codes)[0] == result


def test_both_sides_run_and_a_stuck_server_is_ended(tmp_path: Path) -> None:
    logs = [tmp_path / "server", tmp_path / "client"]
    stuck = [sys.executable, "-c", "import time; time.sleep(60)"]
    gives_up = [sys.executable, "-c", "raise SystemExit(3)"]
    codes, ended = fabtests.run([stuck, gives_up], 30, logs, delay_s=0)
    assert (codes, ended) == ([None, 3], False)


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record = Record(path)
    record.add(Outcome("unit", "a", "pass", 0.1))
    record.add(Outcome("unit", "b", "fail", 0.1, "[22]"))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"suite": "unit", "te')
    assert set(Record(path).outcomes) == {("unit", "a"), ("unit", "b")}
    assert set(Record(path, ["fail"]).outcomes) == {("unit", "a")}


def test_an_unknown_result_is_refused() -> None:
    with pytest.raises(ValueError, match="result 'passed'"):
        Outcome("unit", "a", "passed", 0)


def test_differences_from_the_reference_are_named(tmp_path: Path) -> None:
    for name, result in (("tcp", "pass"), ("nearmetal", "fail")):
        record = Record(tmp_path / f"{name}.jsonl")
        record.add(Outcome("unit", "fi_eq_test", result, 1))
        record.add(Outcome("unit", "fi_cq_test", "pass", 1))
    table = compare({name: load(tmp_path / f"{name}.jsonl") for name in ("tcp", "nearmetal")})
    assert "| unit | 2 pass | 1 pass, 1 fail |" in table
    assert "* unit: `fi_eq_test`: pass, fail" in table
    assert "fi_cq_test" not in table
