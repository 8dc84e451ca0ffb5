# SPDX-License-Identifier: Apache-2.0
"""The verbs that write the report of a run: report, and demo, which also makes the run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import (
    ARM_HELP,
    BLOCKS_HELP,
    TIME_HELP,
    add_yes,
    blocks_number,
    choose_mpis,
    mpi_names,
    run_directory,
)
from nearmetal.core.errors import ExitCode, LaunchError, StateError, UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.cluster.apply import Cluster
    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.core.progress import Progress
    from nearmetal.evidence import NodePair, RunFacts
    from nearmetal.job.mpi import Mpi
    from nearmetal.report.analysis import Headline
    from nearmetal.study.runner.suite import PlannedLaunch

NAME = "demo"
"""Name of the cluster of the demo."""

SUITE = "quick"
MEASURE_STEPS = 3
"""Steps of `measured`, without those of its launches."""

_HELLO_S = 60.0


def report_options(parser: VerbParser) -> None:
    """Add the arguments of `report`."""
    parser.option("directory DIR", "directory with the results of `bench`")
    parser.option(
        "--output FILE",
        "path for the HTML page; the other files go to the same directory (default: DIR/report.html)",
    )


def on_report(args: argparse.Namespace, view: View) -> int:
    """Read the run directory and write the report."""
    from nearmetal.evidence import load_run
    from nearmetal.report.analysis import Evidence, headlines

    run = load_run(args.directory)
    page = args.output or args.directory / "report.html"
    paths = write_report(run, page)
    data = {
        "report": str(page),
        "files": [str(p) for p in paths],
        "verdicts": verdict_data(headlines(Evidence(run))),
    }
    view.result(data, [f"report: {page}", *(f"beside it: {p}" for p in paths[1:])])
    return ExitCode.DONE


def write_report(run: RunFacts, page: Path) -> list[Path]:
    """Write the page, Markdown, CSV and the locality picture side by side; returns their paths."""
    from nearmetal.report.matrix import locality_picture
    from nearmetal.report.run_page import render_csv, render_html, render_markdown

    content = {
        page: render_html(run),
        page.with_suffix(".md"): render_markdown(run),
        page.with_suffix(".csv"): render_csv(run),
        page.with_name(f"{page.stem}-locality.svg"): locality_picture(run.manifest),
    }
    for path, text in content.items():
        path.write_text(text, encoding="utf-8")
    return list(content)


def verdict_data(found: list[Headline]) -> list[dict[str, Any]]:
    """Return the headlines for --json; times in microseconds, rates in 10^6, bandwidth in MB/s."""
    return [
        {
            "title": v.title,
            "quantity": v.quantity.value,
            "size": v.size,
            "nearmetal": v.ours.value if v.ours else None,
            "tcp": v.baseline.value if v.baseline else None,
            "network_only": v.network.value if v.network else None,
            "limit": v.limit.value if v.limit else None,
            "ratio": v.ratio and v.ratio._asdict(),
            "launches": v.launches,
            "verdict": v.verdict,
            "goal": v.goal,
            "reached": v.reached,
        }
        for v in found
    ]


def demo_options(parser: VerbParser) -> None:
    """Add the arguments of `demo`."""
    from nearmetal.study.stats import MIN_LAUNCHES

    parser.option(
        "--mpi NAME",
        f"MPI to use: {mpi_names()} (default: the first of these that is installed)",
    )
    parser.option(
        "--blocks N",
        f"{BLOCKS_HELP} (default: {MIN_LAUNCHES}); {ARM_HELP}, here nearmetal, nearmetal over the "
        "network only, and the MPI's own TCP",
        type=blocks_number,
        default=MIN_LAUNCHES,
    )
    parser.option(
        "--output DIR",
        f"new directory for the results (default: results/TIME-demo; {TIME_HELP})",
    )
    cloud = parser.add_argument_group("two servers on OpenStack")
    parser.option("--cloud NAME", "name of a cloud in clouds.yaml: measure there", to=cloud)
    for words, text in CLOUD_OPTIONS:
        parser.option(words, text, to=cloud)
    add_yes(parser)


CLOUD_OPTIONS = (
    ("--image NAME", "image of the cloud, or absolute path of one (default: the built image)"),
    (
        "--flavor NAME",
        "flavor (default: the smallest with 2 processors, 2 GiB and room for the image)",
    ),
    (
        "--network NAME",
        "existing network whose addresses this machine reaches (default: one is made)",
    ),
    (
        "--outside NAME",
        "external network of the floating address (default: the default one, or the first)",
    ),
    ("--apart", "the servers are on two hypervisors (default: on one)"),
    ("--keep", "do not remove the servers, also after a failure"),
    ("--remove", "only remove what an interrupted or kept demo has left"),
)
"""Options that belong to --cloud."""


def refuse_alone(args: argparse.Namespace) -> None:
    """Raise UsageError for an option that needs --cloud."""
    for words, _ in CLOUD_OPTIONS:
        option = words.split()[0]
        if getattr(args, option.removeprefix("--")) not in (None, False):
            raise UsageError(f"{option} needs --cloud", "see `nearmetal demo --help`")


def on_demo(args: argparse.Namespace, view: View) -> int:
    """Make two nodes, measure between them, remove them whatever happens, write the report."""
    from nearmetal.cluster.apply import Cluster
    from nearmetal.cluster.backend import open_backend
    from nearmetal.cluster.spec import load_spec
    from nearmetal.cluster.store import Store, state_directory
    from nearmetal.core.lock import locked
    from nearmetal.core.resources import share

    if args.cloud is not None:
        from nearmetal.cli.demo_cloud import on_cloud

        return on_cloud(args, view)
    refuse_alone(args)
    mpi = choose_mpis(args.mpi)[0]
    directory = run_directory(args.output, NAME)
    spec = load_spec(share("examples", "two-nodes.yaml")).model_copy(update={"name": NAME})
    store = Store(state_directory())
    cluster = Cluster(NAME, open_backend(spec, store, LocalRunner()), store)
    try:
        store.prepare()
        with locked(store.lock(f"{NAME}-verb"), f"cluster {NAME} (a demo)"):
            pairs, hello = _measure(cluster, spec, mpi, args.blocks, directory=directory, view=view)
    finally:
        store.tidy()
    return show_run(directory, mpi, pairs, hello, view)


def show_run(
    directory: Path, mpi: Mpi, pairs: Sequence[NodePair], hello: str, view: View
) -> ExitCode:
    """Write the report of a run, and show its figures; returns the exit code of the demo."""
    from nearmetal.evidence import load_run
    from nearmetal.report.analysis import Evidence, headlines

    run = load_run(directory)
    page = directory / "report.html"
    write_report(run, page)
    _show(run, pairs, hello, headlines(Evidence(run), mpi.value), page=page, view=view)
    return ExitCode.DONE if all(launch.good for launch in run.manifest.launches) else ExitCode.ERROR


def _measure(
    cluster: Cluster, spec: ClusterSpec, mpi: Mpi, blocks: int, *, directory: Path, view: View
) -> tuple[tuple[NodePair, ...], str]:
    """Run everything that needs the cluster; returns the locality, and the words of hello."""
    from nearmetal.cluster.apply import down, up

    if cluster.name in cluster.store.names():
        before = cluster.store.recorded(NAME)
        if before is None or before.canonical() != spec.canonical():
            raise StateError(
                f"there is a cluster {NAME!r} that no finished step of a demo made",
                f"look at it with `nearmetal status {NAME}`; `nearmetal down {NAME}` removes it",
            )
        view.note("an interrupted demo left its cluster: it is removed first")
        down(cluster)
    launches = demo_launches(mpi, blocks)
    try:
        with view.steps("demo") as steps:
            steps.begin(2 + MEASURE_STEPS + len(launches))
            steps.step("up: two isolated nodes on one host")
            up(cluster, spec)
            found = measured(
                cluster, spec, mpi, launches, blocks=blocks, directory=directory, steps=steps
            )
            steps.step("down")
    finally:
        down(cluster)
    return found


def demo_launches(mpi: Mpi, blocks: int) -> list[PlannedLaunch]:
    """Return the launches of a demo."""
    from nearmetal.study.runner.suite import ARMS, SUITES, schedule

    return schedule(SUITES[SUITE], [mpi], list(ARMS.values()), blocks)


def measured(
    cluster: Cluster,
    spec: ClusterSpec,
    mpi: Mpi,
    launches: list[PlannedLaunch],
    *,
    blocks: int,
    directory: Path,
    steps: Progress,
) -> tuple[tuple[NodePair, ...], str]:
    """Measure in a cluster that is up; returns the locality, and the words of hello."""
    from nearmetal.core.progress import Part
    from nearmetal.study.runner.collect import Collector, find_pairs

    steps.step("locality: which nodes share memory")
    pairs = find_pairs(cluster.backend, spec, LocalRunner())
    steps.step("run: hello")
    hello = _hello(cluster, spec, mpi)
    collector = Collector(
        cluster.backend,
        spec,
        LocalRunner(),
        directory,
        SUITE,
        blocks,
        spec.slots,
        Part(steps),
        pairs,
    )
    collector.run(launches)
    return pairs, hello


def _hello(cluster: Cluster, spec: ClusterSpec, mpi: Mpi) -> str:
    """Run the first program; returns its channel. Raises LaunchError with its last words."""
    from nearmetal.job.run import JobRequest, Output, run_job
    from nearmetal.study.runner.collect import program_path
    from nearmetal.study.runner.suite import Program, Where

    program = program_path(Program("hello", "mpi_hello", Where.PROGRAMS, ()), mpi)
    request = JobRequest(program=str(program), mpi=mpi.value, timeout_s=_HELLO_S)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        result = run_job(cluster.backend, spec, request, LocalRunner(), Output(None, out, err))
        if result.exit_code != 0:
            err.seek(0)
            tail = err.read().decode("utf-8", "replace").strip().splitlines()[-12:]
            raise LaunchError(f"hello ended with exit code {result.exit_code}", "\n".join(tail))
    return f"hello from {sum(n for _, n in result.ranks)} ranks: {result.proof.reason}"


def _show(
    run: RunFacts,
    pairs: Sequence[NodePair],
    hello: str,
    found: list[Headline],
    *,
    page: Path,
    view: View,
) -> None:
    for launch in run.manifest.launches:
        if not launch.good:
            view.warn(
                f"{launch.mpi} {launch.arm} {launch.program} ended with exit code "
                f"{launch.exit_code}",
                f"read {page.parent / launch.stderr}",
            )
    met = [p for p in pairs if p.node != p.peer]
    lines = [f"{p.node} to {p.peer}: {p.channel}, {p.relation}: {p.reason}" for p in met]
    if not view.as_json:
        view.result({}, [*lines, hello, ""])
    columns = ("", "nearmetal", "TCP", "ratio", "goal", "network only", "limit of the cores")
    view.table(columns, [_row(v) for v in found])
    data: dict[str, Any] = {
        "report": str(page),
        "pairs": [p.model_dump() for p in pairs],
        "hello": hello,
        "verdicts": verdict_data(found),
    }
    # In the table, a reason would be wider than a terminal.
    reasons = [f"{v.title}: {v.verdict}" for v in found if ": " in v.verdict]
    view.result(data, ["", *reasons, f"report: {page.absolute()}"])


def _row(v: Headline) -> list[str]:
    from nearmetal.report import numbers
    from nearmetal.report.sections import interval_text

    show_value = v.quantity.show
    points = [show_value(p.value) if p else "-" for p in (v.ours, v.baseline, v.network, v.limit)]
    word = "lower" if v.quantity.less_is_better else "higher"
    ratio = "-"
    if v.ratio is not None:
        ratio = f"{numbers.times(v.ratio.value)} {word} ({interval_text(v.ratio)})"
    goal = f"{numbers.tick(numbers.times(v.goal))} {v.verdict.partition(': ')[0]}"
    return [v.title, points[0], points[1], ratio, goal, points[2], points[3]]
