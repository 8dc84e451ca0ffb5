# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

from tests.system.mpi4py.events import Tally, module_of
from tests.system.mpi4py.exclusions import Exclusion, applying, judge, load
from tests.system.mpi4py.run_suite import (
    End,
    Job,
    Result,
    judge_alone,
    report,
    run_race,
    run_suite,
    verify_exclusions,
)

A, B = "test_p2p.TestP2P.testSend", "test_rma.TestRMA.testPut"


def told(*lines: str) -> Tally:
    tally = Tally()
    for now, line in enumerate(lines):
        tally.feed(line, float(now))
    return tally


def test_a_launchers_prefix_and_foreign_lines_do_not_matter() -> None:
    tally = told(
        "[0] warning: something",
        f"[1,0]<stdout>: @suite 0 0 start {A}",
        f"[1,0]<stdout>: @suite 0 1 ok {A}",
    )
    assert tally.passed == {A}
    assert not tally.lost_events


def test_one_failing_rank_fails_the_test() -> None:
    tally = told(
        f"@suite 0 0 start {A}",
        f"@suite 1 0 start {A}",
        f"@suite 0 1 ok {A}",
        f"@suite 1 1 error {A}",
    )
    assert tally.failed == {A}
    assert not tally.passed


def test_the_earliest_unfinished_test_is_the_one_that_hangs() -> None:
    tally = told(
        f"@suite 0 0 start {A}",
        f"@suite 1 0 start {A}",
        f"@suite 0 1 error {A}",
        f"@suite 0 2 start {B}",
    )
    assert tally.running == [A, B]
    assert not tally.complete(2)


def test_complete_means_every_rank_said_so() -> None:
    tally = told("@suite 0 0 done 0")
    assert tally.complete(1)
    assert not tally.complete(2)
    tally.feed("@suite 1 0 done 0", 1.0)
    assert tally.complete(2)


def test_a_lost_event_makes_the_outcome_unknown() -> None:
    tally = told(f"@suite 0 0 start {A}", "@suite 0 2 done 1")
    assert tally.lost_events == 1
    assert not judge(tally, {}, []).ok


def test_only_listed_failures_are_forgiven() -> None:
    tally = told(
        f"@suite 0 0 start {A}",
        f"@suite 0 1 fail {A}",
        f"@suite 0 2 start {B}",
        f"@suite 0 3 ok {B}",
    )
    entries = [Exclusion("mpich5", A, (2,), "why"), Exclusion("mpich5", B, (2,), "why")]
    verdict = judge(tally, {}, entries)
    assert verdict.ok
    assert verdict.listed == (A,)
    assert verdict.obsolete == (B,)
    assert not judge(tally, {}, entries[1:]).ok


def test_a_hang_is_a_failure() -> None:
    assert judge(Tally(), {B: "hung"}, []).unexpected == (B,)


@pytest.mark.parametrize(
    ("words", "lines", "ok"),
    [
        ("hung", (), True),
        ("crashed (exit code 139)", (), False),
        ("the launcher lost its daemon", (), False),
        ("hung", (f"@suite 0 0 start {B}", f"@suite 0 1 fail {B}"), False),
    ],
)
def test_of_a_test_that_races_only_a_hang_is_forgiven(
    words: str, lines: tuple[str, ...], ok: bool
) -> None:
    races = [Exclusion("mpich5", "test_rma", (2,), "why", race=True)]
    verdict = judge(told(*lines), {B: words}, races)
    assert verdict.ok is ok
    assert (B in verdict.listed) is ok
    assert judge(told(f"@suite 0 0 start {B}", f"@suite 0 1 ok {B}"), {}, races).obsolete == ()


def test_entries_apply_to_their_mpi_and_number_of_ranks() -> None:
    entries = [Exclusion("mpich5", A, (4,), "why")]
    assert applying(entries, "mpich5", 4) == entries
    assert not applying(entries, "mpich5", 2)
    assert not applying(entries, "openmpi5", 4)


def test_the_module_of_a_failed_set_up_is_found() -> None:
    assert module_of(A) == "test_p2p"
    assert module_of("setUpClass(test_win.TestWin)") == "test_win"


@pytest.mark.parametrize(
    ("key", "value"),
    [("reason", '" "'), ("also_fails_on_stock", "false"), ("unknown", "1"), ("ranks", None)],
)
def test_an_entry_must_say_all(tmp_path: Path, key: str, value: str | None) -> None:
    entry = {
        "mpi": '"m"',
        "test": '"t"',
        "ranks": "[2]",
        "reason": '"r"',
        "also_fails_on_stock": "true",
        key: value,
    }
    lines = [f"{k} = {v}" for k, v in entry.items() if v is not None]
    path = tmp_path / "list.toml"
    path.write_text("[[exclusion]]\n" + "\n".join(lines))
    with pytest.raises(ValueError, match=r"list\.toml"):
        load(path)


def test_the_list_in_the_repository_is_well_formed() -> None:
    assert all(e.mpi in {"openmpi5", "mpich5"} and e.ranks for e in load())


@pytest.mark.parametrize(
    ("lines", "code", "found"),
    [
        ((f"@suite 0 0 start {A}", f"@suite 0 1 fail {A}", "@suite 0 2 done 1"), 1, "fails"),
        ((f"@suite 0 0 start {A}", f"@suite 0 1 fail {A}"), None, "fails"),
        ((f"@suite 0 0 start {A}",), None, "unproven: it stalled"),
        ((f"@suite 0 0 start {A}",), 139, "fails: it ended the job (exit code 139)"),
        ((f"@suite 0 0 start {A}", f"@suite 0 1 ok {A}", "@suite 0 2 done 1"), 0, "passes"),
        (("no such host",), 1, "unproven: it never began (exit code 1)"),
    ],
)
def test_what_a_listed_test_alone_proves(
    lines: tuple[str, ...], code: int | None, found: str
) -> None:
    assert judge_alone(told(*lines), End(code), 1) == found


def test_a_lost_daemon_proves_nothing_of_a_listed_test() -> None:
    tally = told(f"@suite 0 0 start {A}", f"@suite 0 1 fail {A}")
    assert judge_alone(tally, End(1, True), 1) == "unproven: the launcher lost its daemon"


def test_a_failure_stays_when_the_test_is_run_again() -> None:
    tally = told(f"@suite 0 0 start {A}", f"@suite 0 1 fail {A}")
    tally.next_launch()
    tally.feed(f"@suite 0 0 start {A}", 2.0)
    tally.feed(f"@suite 0 1 ok {A}", 3.0)
    assert tally.failed == {A}


LAUNCHER = """
import pathlib, signal, sys, time
lost = "PRTE has lost communication with a remote daemon."
# What the two ranks say, the last words of the launcher, and its exit code; None: it hangs.
kinds = {
    "ends": ("sA oA sB oB sC oC done", "sA oA sB oB sC oC done", "", 0),
    "crashes": ("sA oA sB oB sC", "sA oA sB oB sC", "", 139),
    "hangs": ("sA oA sB oB sC", "sA oA sB oB sC", lost, None),
    "stalls": ("sA oA sB oB sC", "sA oA sB oB sC", "", None),
    # One rank fails for the loss, the other goes no further.
    "loses": ("sA oA sB fB sC", "sA oA sB", lost, 1),
}
launches = pathlib.Path(sys.argv[1])
launches.touch()
nr = len(launches.read_text())
launches.write_text("x" * (nr + 1))
*ranks, words, code = kinds[sys.argv[2].split(",")[nr]]
tests = dict(A="test_p2p.T.testA", B="test_p2p.T.testB", C="test_rma.T.testC")
for rank, said in enumerate(ranks):
    for number, word in enumerate(said.split()):
        what = {"s": "start", "o": "ok", "f": "fail", "d": "done"}[word[0]]
        print("@suite", rank, number, what, tests.get(word[1:], 3), flush=True)
def end(*_):
    print(words, file=sys.stderr)
    sys.exit(code)
signal.signal(signal.SIGINT, end)
if code is None:
    time.sleep(60)
end()
"""


def launched(folder: Path, kinds: str) -> tuple[Result, bool, str]:
    """Run the suite with a launcher whose launches end so, one after the other."""
    argv = [sys.executable, "-c", LAUNCHER, str(folder / "count"), kinds]
    result = run_suite(Job(argv, 2, folder / "log", stall_s=3), ["test_p2p", "test_rma"], [])
    verdict = judge(result.tally, result.stopped, [])
    return result, verdict.ok, report(result, verdict)


def test_a_test_in_which_the_launcher_lost_its_daemon_is_run_again(tmp_path: Path) -> None:
    result, ok, words = launched(tmp_path, "loses,loses,ends")
    assert ok
    assert result.losses == ["test_p2p.T.testB"] * 2
    assert "RUN AGAIN test_p2p.T.testB: the launcher lost its daemon" in words
    assert result.tally.passed == {"test_p2p.T.testA", "test_p2p.T.testB", "test_rma.T.testC"}


def test_a_third_loss_is_a_failure(tmp_path: Path) -> None:
    result, ok, words = launched(tmp_path, "loses,loses,loses,ends")
    assert not ok
    assert result.stopped == {"test_p2p.T.testB": "the launcher lost its daemon"}
    assert "NOT LISTED test_p2p.T.testB: the launcher lost its daemon" in words


def test_hangs_and_crashes_are_told_apart(tmp_path: Path) -> None:
    result, ok, words = launched(tmp_path, "crashes,ends")
    assert not ok
    assert result.stopped == {"test_rma.T.testC": "crashed (exit code 139)"}
    assert "NOT LISTED test_rma.T.testC: crashed (exit code 139)" in words
    (tmp_path / "count").unlink()
    result, ok, words = launched(tmp_path, "hangs,ends")
    assert not ok
    assert result.stopped == {"test_rma.T.testC": "hung"}
    assert "NOT LISTED test_rma.T.testC: hung" in words


def test_a_stall_does_not_prove_an_exclusion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stalls = f"import time; print('@suite 0 0 start {A}', flush=True); time.sleep(60)"
    job = Job([sys.executable, "-c", stalls], 1, tmp_path / "log", stall_s=1)
    assert verify_exclusions(job, [Exclusion("mpich5", A, (1,), "why")]) == [A]
    assert capsys.readouterr().out == f"{A}: unproven: it stalled\n"


def test_a_race_is_proven_by_the_launch_that_stalls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path / "count"), "ends,ends,stalls"]
    job = Job(argv, 2, tmp_path / "log", stall_s=3)
    race = Exclusion("mpich5", "test_rma", (2,), "why", race=True)
    assert verify_exclusions(job, [race]) == []
    assert capsys.readouterr().out == "test_rma: fails: test_rma.T.testC hung in launch 3\n"


def test_a_race_that_is_never_lost_is_unproven(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path / "count"), "ends,crashes"]
    found = run_race(Job(argv, 2, tmp_path / "log", stall_s=3), "test_rma", launches=2)
    assert found == "unproven: 2 launches without a stall"
