# SPDX-License-Identifier: Apache-2.0
"""The runners of foreign conformance tests: what they read, judge, attest and compare."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path

import pytest

from tests.conformance import fabtests, mpich, osu
from tests.conformance.attest import Expected, Place, Proof, attested, doubts
from tests.conformance.launch import Launcher
from tests.conformance.outcomes import Outcome, Record, compare, finish, load, shortfalls
from tests.python.counter_files import file_bytes, peer_bytes

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


def test_options_reach_both_sides_and_the_provider_comes_last(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path)
    bench = fabtests.Bench(
        tmp_path, "nearmetal", "::1", True, [], [], 1, 20, 0, tmp_path, place, ["-D", "cuda"]
    )
    common = [str(tmp_path / "bin/fi_rdm_bw"), "-v", "-I", "20", "-D", "cuda", "-p", "nearmetal"]
    server, client = fabtests.two_sides(bench, "standard", "fi_rdm_bw -v")
    assert server == [*common, "-E"]
    assert client == [*common, "-E", "::1"]


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


def test_processes_leave_the_build_and_their_counters(tmp_path: Path) -> None:
    library = tmp_path / "libnearmetal-fi.so"
    library.write_bytes(b"a build")
    old = (1, 1)
    os.utime(library, old)
    with Place(tmp_path, tmp_path).trace() as trace:
        assert trace.env["NEARMETAL_STATS_DIR"] == str(trace.there)
        assert trace.read() == Proof()
        log = f" 7:\tcalling init: {library}\n 7:\tcalling init: /lib/libc.so.6\n"
        (trace.here / "ld.7").write_text(log)
        (trace.here / "ld.8").write_bytes(b"\xff" + log.encode())
        far = {"shm": (3, 100, 0, 0), "self": (2, 10, 0, 0)}
        remote = {("cma", "put"): (5, 50)}
        peers = (
            peer_bytes(traffic=far, accesses=remote),
            peer_bytes(relation="self", accesses=remote),
        )
        (trace.here / "n1.7.aa.stats").write_bytes(file_bytes(*peers))
        (trace.here / "n1.8.bb.stats").write_bytes(b"not counters")
        proof = trace.read()
        assert proof.builds == (hashlib.sha256(b"a build").hexdigest(),)
        assert (proof.endpoints, proof.sent) == (1, {"shm": 3, "self": 2})
        assert proof.accessed == {"cma": 5}
    assert list(tmp_path.iterdir()) == [library], "the private directory is still there"


def test_a_build_that_changes_during_a_test_is_no_proof(tmp_path: Path) -> None:
    library = tmp_path / "libnearmetal-fi.so"
    with Place(tmp_path, tmp_path).trace() as trace:
        (trace.here / "ld.7").write_text(f"calling init: {library}\n")
        assert "No such file" in trace.read().doubt
        library.write_bytes(b"a later build")
        assert "was replaced while the test ran" in trace.read().doubt


FULL = Proof(("aa",), 2, {"shm": 3})


@pytest.mark.parametrize(
    ("provider", "proof", "why"),
    [
        ("nearmetal", FULL, ""),
        ("nearmetal", Proof(("aa",), 2, {}, {"cma": 1}), ""),
        ("nearmetal", Proof(), "no process loaded nearmetal"),
        ("nearmetal", Proof(("aa",), 1, {"shm": 3}), "1 endpoints of nearmetal, 2 expected"),
        ("nearmetal", Proof(("aa",), 2), "carried no message"),
        ("nearmetal", Proof(("aa",), 2, {"self": 3}), "carried no message"),
        ("nearmetal", Proof(("aa", "bb"), 2, {"shm": 3}), "loaded 2 builds"),
        ("nearmetal", Proof(("aa",), 2, {"shm": 3}, doubt="replaced"), "replaced"),
        ("tcp", Proof(("aa",)), ""),
        ("tcp", FULL, "nearmetal opened 2 endpoints"),
    ],
)
def test_who_carried_a_test(provider: str, proof: Proof, why: str) -> None:
    found = doubts(proof, Expected(provider, 2, messages=True))
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("result", "proof", "expected"),
    [
        ("pass", FULL, "pass"),
        ("pass", Proof(("aa",)), "unproven"),
        ("pass", Proof(), "unproven"),
        ("notrun", Proof(("aa",)), "notrun"),
        ("notrun", Proof(), "unproven"),
        ("fail", Proof(), "fail"),
        ("timeout", FULL, "timeout"),
    ],
)
def test_an_outcome_holds_its_proof(result: str, proof: Proof, expected: str) -> None:
    outcome = Outcome("unit", "a", result, 0, "[61]")
    held = attested(outcome, proof, Expected("nearmetal", 2, messages=True))
    assert (held.result, held.provider, held.sent) == (expected, "".join(proof.builds), proof.sent)
    assert held.note.endswith("[61]")


def passed(suite: str, test: str, build: str = "aa") -> Outcome:
    return Outcome(suite, test, "pass", 0, provider=build, endpoints=2)


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([passed("unit", "a"), passed("rma", "b")], []),
        ([], ["no test ran; 0 of 0 are not built"]),
        ([Outcome("unit", "a", "missing", 0)], ["no test ran; 1 of 1 are not built"]),
        ([Outcome("unit", "a", "notrun", 0, provider="aa")], ["no test ran"]),
        ([passed("unit", "a")], ["no test of rma ran"]),
        (
            [passed("unit", "a", "aa"), passed("rma", "b", "bb")],
            ["more than one build of nearmetal: 1 by aa, 1 by bb"],
        ),
        ([passed("unit", "a"), passed("rma", "b", "")], ["1 outcomes have no proof"]),
    ],
)
def test_what_keeps_a_run_from_being_a_result(
    outcomes: list[Outcome], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = shortfalls(outcomes, ["unit", "rma"], ours=True)
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))
    assert finish(outcomes, ["unit", "rma"], ours=True) == bool(words)
    said = capsys.readouterr().out
    assert all(f"error: {line}" in said for line in found)


@pytest.mark.parametrize("result", ["fail", "timeout", "missing", "unproven"])
def test_one_bad_outcome_is_a_failure(result: str) -> None:
    outcomes = [passed("unit", "a"), Outcome("unit", "b", result, 0)]
    assert finish(outcomes, ["unit"], ours=True) == 1


def test_records_from_before_proofs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    line = '{"suite": "unit", "test": "a", "result": "pass", "seconds": 1, "note": ""}\n'
    path.write_text(line + line.replace("pass", "passed"))
    assert shortfalls(list(load(path).values()), ["unit"], ours=True) == [
        "1 outcomes have no proof: start a new record"
    ]


TESTLIST = """\
# a comment
sendself 1
sendself 2 arg=-a env=K=V
xfails 2 xfail=ticket1
gpu 2 hasgpu=1
bcast 10 resultTest=TestAllowWarnings
"""


def test_a_testlist_is_read_whole_or_each_program_once(tmp_path: Path) -> None:
    (tmp_path / "coll").mkdir()
    (tmp_path / "coll" / "testlist").write_text(TESTLIST)
    names = [entry.name for entry in mpich.entries(tmp_path, "coll", first=False)]
    assert names == ["sendself 1", "sendself 2 -a K=V", "bcast 10"]
    first = [entry.name for entry in mpich.entries(tmp_path, "coll", first=True)]
    assert first == ["sendself 1", "bcast 10"]


@pytest.mark.parametrize("runner", [mpich, fabtests])
def test_a_tree_that_is_not_one(
    runner: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tree", str(tmp_path), "--record", str(tmp_path / "r.jsonl")]
    words += ["--launch", "true"] if runner is mpich else []
    with pytest.raises(SystemExit) as end:
        runner.main(words)  # type: ignore[attr-defined]
    assert end.value.code == 1
    assert "--tree must be" in capsys.readouterr().err


def test_settings_reach_the_ranks_of_any_launcher(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path)
    plain = Launcher(["mpiexec", "-n", "{n}"], "", "nearmetal", place, 9)
    command, env = plain.command(["a"], 3, {"K": "V"})
    assert (command, env["K"]) == (["mpiexec", "-n", "3", "a"], "V")
    run = Launcher(["run", "-n", "{n}", "--"], "--env", "nearmetal", place, 9)
    command, env = run.command(["a"], 3, {"K": "V"})
    assert command == ["run", "-n", "3", "--env", "K=V", "--", "a"]
    assert "K" not in env


TABLE = "# OSU\n# Size    Latency (us)   Validation\n"


@pytest.mark.parametrize(
    ("code", "output", "result"),
    [
        (0, TABLE + "1   0.50   Pass\n2   0.60   Pass\n", "pass"),
        (0, TABLE + "1   0.50   Pass\n2   0.60   Fail\n", "fail"),
        (0, TABLE, "fail"),
        (1, TABLE + "1   0.50   Pass\n", "fail"),
        (0, "# Size    Latency (us)\n1   0.50\n", "notrun"),
        (1, "Invalid option [-c]\nUsage: ...\n", "notrun"),
        (0, "ERROR: too few processes\n", "fail"),
    ],
)
def test_validation_of_every_size_counts(code: int, output: str, result: str) -> None:
    assert osu.judge(code, output)[0] == result
