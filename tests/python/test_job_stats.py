# SPDX-License-Identifier: Apache-2.0
"""What a job left in its statistics directory: counters, the verdict, the first failure."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nearmetal.job.stats import Failure, JobVerdict, cause, judge, read_failures, read_stats
from tests.python.counter_files import file_bytes

UNKNOWN = sys.maxsize


def test_files_of_a_job_are_read_with_care(tmp_path: Path) -> None:
    secret = tmp_path / "secret.stats"
    secret.write_bytes(file_bytes())
    stats = tmp_path / "stats"
    stats.mkdir()
    (stats / "0.stats").write_bytes(file_bytes())
    (stats / "1.stats").write_text("[1]")
    (stats / "2.stats").write_text("[" * 100000)
    (stats / "3.stats").symlink_to(secret)
    (stats / "exit.1").write_text("3\n")
    (stats / "exit.2").write_text("-3")
    (stats / "exit.3").write_text("999")
    (stats / "exit.4").symlink_to(secret)
    os.mkfifo(stats / "4.stats")
    os.mkfifo(stats / "exit.5")
    assert [endpoint["peers"] for endpoint in read_stats(stats)] == [[]]
    (stats / "exit.6").write_text("\n")
    (stats / "lost.n1").write_text("137\n")
    (stats / "lost.n2").write_text("\n")
    found = {(failure.node, failure.code) for failure in read_failures(stats)}
    assert found == {("", 3), ("", 137), ("n1", 137)}
    (tmp_path / "link").symlink_to(stats)
    assert read_stats(tmp_path / "link") == []
    assert read_stats(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("stats", "ranks", "verdict"),
    [
        ([], 2, JobVerdict.ABSENT),
        ([{"peers": []}], 2, JobVerdict.NO_TRAFFIC),
        ([{"peers": []}], 1, JobVerdict.PROVEN),
        ([{"peers": [{"channels": {"shm": {"sent_messages": 1}}}]}], 2, JobVerdict.PROVEN),
        ([{"peers": [{"channels": {"shm": {"sent_messages": 0}}}]}], 2, JobVerdict.NO_TRAFFIC),
        ([{"peers": [{"channels": 7}, "x", None]}], 2, JobVerdict.NO_TRAFFIC),
        ([{"peers": "lies"}], 2, JobVerdict.NO_TRAFFIC),
        ([{}], 2, JobVerdict.NO_TRAFFIC),
    ],
)
def test_the_verdict_follows_the_counters(
    stats: list[dict[str, object]], ranks: int, verdict: JobVerdict
) -> None:
    proof = judge(stats, ranks)
    assert proof.verdict is verdict
    assert proof.reason


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ([], None),
        ([(2, 5), (1, 3)], 3),
        ([(1, 14), (2, 137), (3, 139)], 137),
        ([(1, 143), (2, 3), (3, 130)], 143),
        ([(1, 3), (2, 143)], 3),
        # Killed together with its agent, at an unknown time.
        ([(1, 143), (UNKNOWN, 137)], 137),
        ([(1, 3), (UNKNOWN, 137)], 3),
    ],
)
def test_the_cause_is_the_first_death(failures: list[tuple[int, int]], code: int | None) -> None:
    found = cause([Failure(*failure) for failure in failures])
    assert (found and found.code) == code


@pytest.mark.parametrize(
    ("ranks", "node"),
    [
        ([], "n1"),
        ([(4, 137)], ""),
        ([(6, 137), (7, 3)], "n1"),
        ([(4, 143)], "n1"),
        ([(UNKNOWN, 137)], "n1"),
        ([(5, 3)], ""),
    ],
)
def test_a_lost_process_of_the_mpi_is_a_cause_before_any_rank(
    ranks: list[tuple[int, int]], node: str
) -> None:
    failures = [Failure(*rank) for rank in ranks]
    lost = [Failure(6, 139, "n2"), Failure(5, 137, "n1"), Failure(1, 141, "n3")]
    found = cause([*failures, *lost])
    assert found is not None
    assert found.node == node
