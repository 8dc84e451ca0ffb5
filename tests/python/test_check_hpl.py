# SPDX-License-Identifier: Apache-2.0
"""HPL for `check performance`: what is read from hpcc, the size, and a result that is wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nearmetal.check.hpl import (
    FIRST_SIZE,
    HplMeasurement,
    HplResult,
    WrongResultError,
    grid,
    read_result,
    size_for,
)
from nearmetal.check.measure import measure_cluster
from nearmetal.check.model import Gravity
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.run import Order, PerformanceRun, parse_run, run_text
from nearmetal.core.errors import BackendError, LaunchError, LogError
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from nearmetal.job.run import JobRequest, Output
from tests.python.test_check_measure import Here, spec_of

NAMES = ("n1", "n2", "n3")
OUTPUT = (Path(__file__).parents[1] / "data/check/hpcc-hpl.txt").read_text(encoding="ascii")
"""The first line of /proc/meminfo that is kept, and the HPL section of Debian 12's hpcc 1.5.0."""

PASSED = "0.0068873 ...... PASSED"
WRONG = OUTPUT.replace(PASSED, "68.873 ...... FAILED")


class HplJobs:
    """A backend, and the jobs on it. `said`: the outputs of nodes that say another thing."""

    shares_files = True

    def __init__(self, said: dict[str, str]) -> None:
        self.said = said
        self.asked: list[JobRequest] = []

    def run(self, _b: Any, _s: Any, request: JobRequest, _r: Any, output: Output) -> Any:
        self.asked.append(request)
        assert output.stdout is not None
        assert output.stderr is not None
        alone = len(request.nodes) == 1
        text = self.said.get(request.nodes[0], OUTPUT) if alone else OUTPUT
        output.stdout.write(text.encode())
        output.stderr.write(b"a note\nno more words\n")
        return SimpleNamespace(exit_code=0 if text else 7, timed_out=False)


def hpl_on(jobs: HplJobs, pool: type[ThreadPoolExecutor] = ThreadPoolExecutor) -> HplMeasurement:
    stand_in = cast(Any, jobs)
    spec = spec_of(NAMES)
    return HplMeasurement(
        stand_in, spec, LocalRunner(), Silent(), run=jobs.run, program="/bin/true", pool=pool
    )


ALL = Order("hpl", tuple((name,) for name in NAMES))


def test_a_result_is_read_with_its_check() -> None:
    assert read_result(OUTPUT, "n1") == HplResult(0.6509, 21474836)
    with pytest.raises(WrongResultError, match=r"68\.873 \.\.\.\.\.\. FAILED"):
        read_result(WRONG, "n1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        OUTPUT.partition("End of HPL")[0],
        OUTPUT.replace("6.509e-01", "inf"),
        OUTPUT.replace("6.509e-01", "0.0"),
        OUTPUT.replace("MemAvailable", "MemFree"),
        OUTPUT.replace("Gflops\n----", "Gigaflops\n----"),
        "\n".join(line for line in OUTPUT.splitlines() if "PASSED" not in line),
        OUTPUT.replace("End of Tests.", ""),
    ],
)
def test_an_output_without_one_result_that_was_checked_is_refused(text: str) -> None:
    with pytest.raises(LogError):
        read_result(text, "n1")


def test_the_size_follows_from_the_slowest_node_and_from_memory() -> None:
    fast, slow = HplResult(50.0, 64 << 20), HplResult(0.2, 64 << 20)
    assert size_for({"a": fast}, 1) == 2000
    assert size_for({"a": fast, "b": slow}, 1) == 800
    assert size_for({"a": HplResult(50.0, 1 << 20)}, 1) == 1400
    assert size_for({"a": HplResult(50.0, 1 << 20)}, 4) == 700
    assert size_for({"a": HplResult(50.0, 1)}, 4) == 100
    assert [grid(ranks) for ranks in (1, 2, 6, 7, 36)] == [(1, 1), (1, 2), (2, 3), (1, 7), (6, 6)]


def test_each_node_has_a_job_and_all_together_another_one() -> None:
    jobs = HplJobs({})
    with hpl_on(jobs) as hpl:
        assert hpl.ask(ALL).values == {(name,): 0.6509 for name in NAMES}
        hpl.measure_cluster()
    assert (hpl.failures, hpl.lacking, hpl.wrong) == ({}, {}, {})
    nodes = [request.nodes for request in jobs.asked]
    assert sorted(nodes[:3]) == sorted(nodes[3:6]) == [(name,) for name in NAMES]
    assert nodes[6:] == [NAMES]
    sizes = [request.args[3].split("|")[5] for request in jobs.asked]
    assert sizes == [f"{FIRST_SIZE}  size"] * 3 + ["1200  size"] * 3 + ["2000  size"]
    assert "N = 1200" in hpl.setup["hpl"]
    assert "3 ranks on all nodes, N = 2000: 0.6509 GFLOP/s" in hpl.setup["hpl"]


def test_a_wrong_result_is_a_fault_of_its_own_and_no_slow_node() -> None:
    with hpl_on(HplJobs({"n2": WRONG})) as hpl:
        turn = hpl.ask(ALL)
    assert set(turn.values) == {("n1",), ("n3",)}
    run = PerformanceRun(NAMES, screening=(turn,), failures=hpl.failures, wrong=hpl.wrong)
    kept = parse_run(run_text(run).encode(), "f")
    assert kept == run
    judged = judge_run(kept, NodeClasses())
    (found,) = [f for f in judged.findings if f[0].name == "performance.arithmetic"]
    assert (found[0].grade, found[1]) == (Gravity.FAULT, ("n2",))
    assert found[2].value.endswith("68.873 ...... FAILED")
    assert not [f for f in judged.findings if f[0].name == "performance.hpl"]


def test_a_node_whose_job_fails_has_its_last_words_and_is_tried_twice() -> None:
    jobs = HplJobs({"n3": ""})
    with hpl_on(jobs) as hpl:
        for _ in range(3):
            assert set(hpl.ask(ALL).values) == {("n1",), ("n2",)}
    assert hpl.failures == {("n3",): "HPL: hpcc ended with code 7: no more words"}
    assert [request.nodes for request in jobs.asked].count(("n3",)) == 2


def test_without_a_program_or_common_files_hpl_is_missing() -> None:
    with hpl_on(HplJobs({})) as hpl:
        hpl.program = "no-such-program"
        assert hpl.ask(ALL).values == {}
    assert hpl.lacking["hpl"].startswith("no program no-such-program")
    jobs = HplJobs({})
    jobs.shares_files = False
    with hpl_on(jobs) as hpl:
        assert hpl.ask(ALL).values == {}
    assert "no common files" in hpl.lacking["hpl"]
    assert jobs.asked == []
    with hpl_on(HplJobs(dict.fromkeys(NAMES, ""))) as hpl:
        assert hpl.ask(ALL).values == {}
        hpl.measure_cluster()
    assert hpl.lacking["hpl"].startswith("no node has a result of HPL: hpcc ended with code 7")
    assert hpl.failures == {}


@pytest.mark.parametrize("begins", [False, True])
def test_an_interrupt_ends_the_jobs_and_does_not_wait_for_them(begins: bool) -> None:
    """`begins`: it arrives before the call that begins the last job returns."""
    ended, all_run = threading.Event(), threading.Barrier(len(NAMES))
    in_time: list[bool] = []

    class Late(ThreadPoolExecutor):
        begun = 0

        def submit(self, *words: Any) -> Any:  # type: ignore[override]
            job = super().submit(*words)
            self.begun += 1
            if self.begun == len(NAMES):
                time.sleep(60)
            return job

    class Hanging(HplJobs):
        def run(self, *_: Any) -> Any:
            if all_run.wait(60.0) == 0:
                os.kill(os.getpid(), signal.SIGINT)
            in_time.append(ended.wait(30.0))
            raise LaunchError("killed")

        def end_marked(self, marker: str) -> int:
            assert marker.startswith("NM_CHECK_HPL=hpl")
            ended.set()
            raise BackendError("the cluster went down")

    pool = Late if begins else ThreadPoolExecutor
    # A job in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), hpl_on(Hanging({}), pool) as hpl:
            hpl.ask(ALL)
    finally:
        signal.signal(signal.SIGINT, before)
    assert in_time == [True] * len(NAMES)
    assert set(hpl.failures.values()) <= {"HPL: killed"}


def test_what_no_job_can_do_is_no_fault_of_nodes_and_has_its_remedy() -> None:
    class Unbuilt(HplJobs):
        def run(self, *_: Any) -> Any:
            raise LaunchError("the provider is not built | here", "run `make build`")

    with hpl_on(Unbuilt({})) as hpl:
        assert hpl.ask(ALL).values == {}
    assert hpl.failures == {}
    assert hpl.lacking == {
        "hpl": "no node has a result of HPL: the provider is not built / here|run `make build`"
    }


def test_a_wrong_result_of_all_nodes_together_blames_no_single_node() -> None:
    class Together(HplJobs):
        def run(self, b: Any, s: Any, request: JobRequest, r: Any, output: Output) -> Any:
            if len(request.nodes) > 1:
                assert output.stdout is not None
                output.stdout.write(WRONG.encode())
                return SimpleNamespace(exit_code=0, timed_out=False)
            return super().run(b, s, request, r, output)

    with hpl_on(Together({})) as hpl:
        turn = hpl.ask(ALL)
        hpl.measure_cluster()
    run = PerformanceRun(NAMES, screening=(turn,), failures=hpl.failures, wrong=hpl.wrong)
    kept = parse_run(run_text(run).encode(), "f")
    found = [f for f in judge_run(kept, NodeClasses()).findings if f[1]]
    assert {(f[0].name, f[2].about) for f in found} == {("performance.arithmetic", "together")}
    assert {f[1] for f in found} == {NAMES}
    assert "each of them alone computes right results" in found[0][2].reason
    assert found[0][2].value.endswith("68.873 ...... FAILED")


def test_a_run_says_that_hpl_is_missing_in_machines() -> None:
    class Machines(Here):
        shares_files = False

    run = measure_cluster(
        Machines(),  # type: ignore[arg-type]
        spec_of(NAMES),
        LocalRunner(),
        ("hpl",),
        NodeClasses(),
        progress=Silent(),
    )
    (found,) = judge_run(run, NodeClasses()).findings
    assert (found[0].name, found[2].about) == ("performance.missing", "hpl")
    assert found[2].value.startswith("nodes that are machines have no common files")
