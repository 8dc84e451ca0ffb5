# SPDX-License-Identifier: Apache-2.0
"""`nearmetal demo`: the whole chain on two nodes of this machine, and nothing left of it but a report."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.bench import blocks_number, choose_mpis, new_directory
from nearmetal.cli.report import verdict_data, write_report
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.apply import Cluster, down, up
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.store import Store, state_directory
from nearmetal.core.errors import ExitCode, LaunchError
from nearmetal.core.lock import locked
from nearmetal.core.process import LocalRunner
from nearmetal.core.resources import share
from nearmetal.evidence import load_run
from nearmetal.job.run import JobRequest, Output, run_job
from nearmetal.report import Evidence, headlines, numbers
from nearmetal.report.sections import interval_text
from nearmetal.study.runner.collect import Collector, find_pairs, program_path
from nearmetal.study.runner.suite import ARMS, SUITES, Program, Where, schedule
from nearmetal.study.stats import MIN_LAUNCHES

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.progress import Progress
    from nearmetal.evidence import Manifest, Pair
    from nearmetal.job.mpi import Mpi
    from nearmetal.report import Headline

NAME = "demo"
SPEC = share("examples", "two-nodes.yaml")
_HELLO = Program("hello", "mpi_hello", Where.PROGRAMS, ())
_HELLO_S = 60.0
_STEPS = 5


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "demo",
        show,
        "create two nodes on this machine, run benchmarks between them, write a report",
        "nearmetal demo --output /tmp/demo",
    )
    parser.add_argument(
        "--mpi",
        metavar="NAME",
        help="MPI to use (default: openmpi5 if installed, else the first installed MPI)",
    )
    parser.add_argument(
        "--blocks",
        type=blocks_number,
        default=MIN_LAUNCHES,
        help=f"number of blocks; a block runs each benchmark once per arm (default: {MIN_LAUNCHES}, "
        "the minimum for the 95 %% interval of a ratio)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="directory for the results; the command creates it (default: results/TIME-demo)",
    )


class _Inner:
    """Passes the steps of a part on to the bar of the whole."""

    def __init__(self, steps: Progress) -> None:
        self._steps = steps

    def begin(self, total: int) -> None:
        """The whole has said how many there are."""

    def step(self, text: str) -> None:
        self._steps.step(text)


@dataclass(frozen=True)
class _Plan:
    """What the demo does."""

    cluster: Cluster
    spec: ClusterSpec
    mpi: Mpi
    blocks: int
    directory: Path


@dataclass(frozen=True)
class _Done:
    """What the demo found."""

    pairs: tuple[Pair, ...]
    hello: str
    manifest: Manifest


def show(args: argparse.Namespace, view: View) -> int:
    """Run the chain; the cluster is removed whatever happens."""
    mpi = choose_mpis(args.mpi)[0]
    directory = new_directory(args.output, NAME)
    spec = load_spec(SPEC).model_copy(update={"name": NAME})
    store = Store(state_directory())
    cluster = Cluster(NAME, open_backend(spec, store, LocalRunner()), store)
    plan = _Plan(cluster, spec, mpi, args.blocks, directory)
    try:
        store.prepare()
        with locked(store.lock(f"{NAME}-verb"), f"cluster {NAME} (a demo)"):
            done = _run(plan, view)
    finally:
        store.tidy()
    run = load_run(directory)
    page = directory / "report.html"
    write_report(run, page)
    found = headlines(Evidence(run), mpi.value)
    _tell(done, found, page, view)
    return ExitCode.DONE if all(launch.good for launch in run.manifest.launches) else ExitCode.ERROR


def _run(plan: _Plan, view: View) -> _Done:
    cluster, spec = plan.cluster, plan.spec
    if cluster.name in cluster.store.names():
        view.note("a demo that was killed left its cluster: it is removed first")
        down(cluster)
    suite = SUITES["quick"]
    launches = schedule(suite, [plan.mpi], list(ARMS.values()), plan.blocks)
    try:
        with view.steps("demo") as steps:
            steps.begin(_STEPS + len(launches))
            steps.step("up: two isolated nodes on one host")
            up(cluster, spec)
            steps.step("locality: who is near whom")
            pairs = find_pairs(cluster.backend, spec, LocalRunner())
            steps.step("run: hello")
            hello = _hello(cluster, spec, plan.mpi)
            collector = Collector(
                cluster.backend,
                spec,
                LocalRunner(),
                plan.directory,
                suite.name,
                plan.blocks,
                spec.slots,
                _Inner(steps),
                pairs,
            )
            manifest = collector.run(launches)
            steps.step("down")
    finally:
        down(cluster)
    return _Done(pairs, hello, manifest)


def _hello(cluster: Cluster, spec: ClusterSpec, mpi: Mpi) -> str:
    """Run the first program; returns what carried it. Raises LaunchError with its last words."""
    request = JobRequest(program=str(program_path(_HELLO, mpi)), mpi=mpi.value, timeout_s=_HELLO_S)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        result = run_job(cluster.backend, spec, request, LocalRunner(), Output(None, out, err))
        if result.exit_code != 0:
            err.seek(0)
            tail = err.read().decode("utf-8", "replace").strip().splitlines()[-12:]
            raise LaunchError(f"hello ended with exit code {result.exit_code}", "\n".join(tail))
    return f"hello from {sum(n for _, n in result.ranks)} ranks: {result.proof.reason}"


def _tell(done: _Done, found: list[Headline], page: Path, view: View) -> None:
    for launch in done.manifest.launches:
        if not launch.good:
            view.warn(
                f"{launch.mpi} {launch.arm} {launch.program} ended with exit code "
                f"{launch.exit_code}",
                f"read {page.parent / launch.stderr}",
            )
    met = [p for p in done.pairs if p.node != p.peer]
    lines = [f"{p.node} to {p.peer}: {p.channel}, {p.relation}: {p.reason}" for p in met]
    if not view.as_json:
        view.result({}, [*lines, done.hello, ""])
    columns = ("", "nearmetal", "TCP", "ratio", "goal", "network only", "limit of the cores")
    view.table(columns, [_row(v) for v in found])
    data: dict[str, Any] = {
        "report": str(page),
        "locality": [p.model_dump() for p in done.pairs],
        "hello": done.hello,
        "verdicts": verdict_data(found),
    }
    view.result(data, ["", f"report: {page.absolute()}"])


def _row(v: Headline) -> list[str]:
    show_value = v.quantity.show
    points = [show_value(p.value) if p else "-" for p in (v.ours, v.baseline, v.network, v.limit)]
    word = "lower" if v.quantity.less_is_better else "higher"
    ratio = "-"
    if v.ratio is not None:
        ratio = f"{numbers.times(v.ratio.value)} {word} ({interval_text(v.ratio)})"
    goal = f"{numbers.tick(numbers.times(v.goal))} {v.verdict}"
    return [v.title, points[0], points[1], ratio, goal, points[2], points[3]]
