# SPDX-License-Identifier: Apache-2.0
"""The MPI job of `check performance`, with a job that answers what no job answers."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nearmetal.check.model import Gravity
from nearmetal.check.mpi_job import MpiMeasurement
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.run import MeasuredTurn, Order, parse_run, run_text
from nearmetal.cluster.backend import Backend
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from nearmetal.job.run import JobRequest, Output
from tests.python.check_performance_clusters import measure as measured
from tests.python.test_check_measure import spec_of

NAMES = ("n1", "n2", "n3")
HELLO = "mpi_check 1 {ranks} 64 0\n"
ALL = tuple((name,) for name in NAMES)


def values_of(words: list[str], ranks: int) -> str:
    """Return the answer of a healthy job to the words of an order."""
    pairs = len(words) - 4
    return " ".join([words[0], *(["2.5"] * (2 * pairs if pairs else ranks))]) + "\n"


Answers = Callable[[list[str], int], str]


@dataclass
class Job:
    """A backend, and the job on it."""

    answers: Answers = values_of
    hello: str = HELLO
    up: tuple[str, ...] = NAMES
    deaf: threading.Event | None = None
    """The job does not end by itself, but when it is killed."""
    orders: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    shares_files = False

    def status(self) -> list[Any]:
        return [
            SimpleNamespace(name=n, healthy=n in self.up, cpus=(i,), own_cpus=0)
            for i, n in enumerate(NAMES)
        ]

    def end_marked(self, marker: str) -> int:
        self.killed.append(marker)
        if self.deaf is not None:
            self.deaf.set()
        return 1

    def run(
        self, _backend: Any, _spec: Any, request: JobRequest, _runner: Any, output: Output
    ) -> Any:
        ranks = len(request.nodes)
        assert output.stdin is not None
        assert output.stdout is not None
        with contextlib.suppress(OSError):
            output.stdout.write(self.hello.format(ranks=ranks).encode())
        lost = ""
        for line in iter(output.stdin.readline, b"end\n"):
            self.orders.append(line.decode())
            answer = self.answers(line.decode().split(), ranks) if line else ""
            if not answer:
                lost = "a rank was killed"
                break
            output.stdout.write(answer.encode())
        if self.deaf is not None:
            self.deaf.wait(20)
        return SimpleNamespace(lost=lost, exit_code=0)


@pytest.fixture
def started() -> Iterator[Callable[[Job], MpiMeasurement]]:
    before = threading.active_count()

    def start(job: Job) -> MpiMeasurement:
        return MpiMeasurement(
            cast(Backend, job),
            spec_of(NAMES),
            LocalRunner(),
            Silent(),
            5.0,
            run=job.run,
            program=lambda *_: Path("/bin/true"),
        )

    yield start
    assert threading.active_count() <= before + 1  # the reader of words may take a moment


Start = Callable[[Job], MpiMeasurement]


def test_a_round_without_a_pair_that_is_up_asks_nothing(started: Start) -> None:
    job = Job(up=("n1", "n2"))
    with started(job) as run:
        met = [
            run.ask(Order("mpi_latency", (pair,))).values
            for pair in (("n1", "n3"), ("n1", "n2"), ("n2", "n3"))
        ]
    assert met == [{}, {("n1", "n2"): 2.5, ("n2", "n1"): 2.5}, {}]
    assert run.lacking == {}
    assert len(job.orders) == 1


def test_the_job_is_read_over_any_descriptor(started: Start) -> None:
    """A cluster of 300 nodes has more than a thousand open files before its job starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this machine allows too few open files")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1100:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        with started(Job()) as run:
            assert run.ask(Order("stream", ALL)).values == dict.fromkeys(ALL, 2.5)
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "hello",
    [
        "mpi_check 1 {ranks} " + "9" * 5000 + " 0\n",
        "mpi_check 1 {ranks} 64 -1\n",
        "mpi_check 2 {ranks} 64 0\n",
        "\x1b[2J\n",
        "x" * (1 << 20),
    ],
)
def test_a_job_with_another_first_line_is_ended(started: Start, hello: str) -> None:
    job = Job(hello=hello)
    with started(job) as run:
        assert run.ask(Order("stream", ALL)).values == {}
    assert run.lacking.keys() == {"stream"}


@pytest.mark.parametrize(
    "answer", ["1 2.5 2.5\n", "1 2.5 2.5 nan\n", "1 2.5 2.5 0\n", "2 1 1 1\n", "1 x 1 1\n", "\n"]
)
def test_an_answer_that_is_not_possible_ends_the_job(started: Start, answer: str) -> None:
    job = Job(answers=lambda _words, _ranks: answer)
    with started(job) as run:
        assert run.ask(Order("stream", ALL)).values == {}
        assert run.ask(Order("dgemm", ALL)).values == {}
    assert set(run.lacking) == {"stream", "dgemm"}
    assert run.lacking["dgemm"].startswith("the MPI job gives an answer that is not possible|")
    assert len(job.orders) == 1


def test_values_of_many_ranks_are_no_line_without_an_end(started: Start) -> None:
    long = values_of(["1", "", "", ""], 1).split()[0] + " " + "1234567.125 " * 9000 + "\n"
    spec = spec_of(NAMES)
    for _, node in spec.nodes:
        cast(Any, node).slots = 3000
    job = Job(hello="mpi_check 1 9000 64 0\n", answers=lambda _w, _r: long)
    run = started(job)
    run.spec = spec
    with run:
        assert run.ask(Order("stream", ALL)).values == dict.fromkeys(ALL, 3000 * 1234567.125)


def test_a_job_that_does_not_end_is_killed(started: Start) -> None:
    job = Job(deaf=threading.Event())
    run = started(job)
    run.end_s = 0.3
    with run:
        assert run.ask(Order("stream", ALL)).values == dict.fromkeys(ALL, 2.5)
    assert job.killed == [f"NM_CHECK_RUN={run._name}"]


def test_words_of_nodes_are_bounded_in_what_is_missing(started: Start) -> None:
    def fail(*_: object) -> Any:
        raise LaunchError("node n2: \x1b[2J|" + "x" * 999, "look\nthere")

    run = started(Job())
    run.run = fail
    with run:
        run.ask(Order("stream", ALL))
    why, _, remedy = run.lacking["stream"].partition("|")
    assert why.startswith("node n2: \\x1b[2J/xxx")
    assert len(why) <= 200
    assert remedy == "look\\nthere"


@pytest.mark.parametrize(
    ("said", "last"),
    [
        ("a note\nrank 1 exited on signal 14 (Alarm clock).\n-----\n", "rank 1 exited"),
        ("FAILED rank 2: no memory\n-----\nMPI_ABORT was invoked\n", "FAILED rank 2: no memory"),
    ],
)
def test_last_words_are_words(started: Start, said: str, last: str) -> None:
    def fail(*given: Any) -> Any:
        given[-1].stderr.write(said.encode())
        return SimpleNamespace(lost="", exit_code=142)

    run = started(Job())
    run.run = fail
    with run:
        run.ask(Order("stream", ALL))
    assert run.lacking["stream"].startswith(f"the MPI job ended with code 142: {last}")


def test_a_program_that_is_not_compiled_is_named_with_the_way_to_get_it(started: Start) -> None:
    def fail(*_: object) -> Any:
        raise LaunchError("/usr/lib/python3/build/c/benchmarks/x is not a program", "")

    run = started(Job())
    run.program = fail
    with run:
        run.ask(Order("stream", ALL))
    assert run.lacking["stream"].startswith("mpi_check is not compiled for Open MPI 5|")
    assert "-Dopenmpi=PREFIX" in run.lacking["stream"]


def test_a_remedy_is_the_same_after_the_file_of_the_run() -> None:
    remedy = "apt-get install it  # " + "x" * 150
    run = replace(
        measured(NAMES, lambda _q, _i: 1.0, None, ("dgemm",)),
        lacking={"mpi_latency": "w" * 200 + "|" + remedy},
    )
    kept = parse_run(run_text(run).encode(), "f")
    ((_, _, found),) = judge_run(kept, NodeClasses()).findings
    assert (found.value, found.remedy) == ("w" * 200, remedy)
    assert len(json.dumps(kept.lacking)) < 500


def test_a_quantity_that_was_measured_in_part_is_no_note() -> None:
    run = measured(NAMES, lambda _q, _i: 1.0, None, ("dgemm",))
    turns = (*run.screening[:1], *(MeasuredTurn("dgemm", {}) for _ in run.screening[1:]))
    part = replace(run, screening=turns, lacking={"dgemm": "the MPI job ended|look"})
    ((_, _, found),) = judge_run(part, NodeClasses()).findings
    assert found.grade is not Gravity.NOTE
    assert "stock program" not in found.reason
