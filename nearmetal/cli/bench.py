# SPDX-License-Identifier: Apache-2.0
"""`nearmetal bench`: measure a cluster, arms interleaved, raw output kept."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.target import add_spec, open_running
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, LaunchError, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.job.mpi import Mpi, find_installations
from nearmetal.study.runner.collect import Collector
from nearmetal.study.runner.suite import ARMS, SUITES, schedule

if TYPE_CHECKING:
    from nearmetal.cli.view import View
    from nearmetal.evidence import Manifest
    from nearmetal.study.runner.suite import BenchArm

_MAX_BLOCKS = 1000


def _names(text: str, known: list[str], what: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            msg = f"unknown {what} {name!r}"
            raise UsageError(msg, f"known: {', '.join(known)}")
    return list(dict.fromkeys(names))


def blocks_number(text: str) -> int:
    """Return the argument of --blocks."""
    if not text.isdigit() or not 1 <= int(text) <= _MAX_BLOCKS:
        msg = f"{text!r} is not a number of blocks from 1 to {_MAX_BLOCKS}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "bench",
        measure,
        "run benchmarks on a cluster and keep their raw output",
        "nearmetal bench examples/two-nodes.yaml --suite quick --mpi openmpi5",
    )
    add_spec(parser)
    suites = "; ".join(f"{s.name}: {s.summary}" for s in SUITES.values())
    parser.add_argument(
        "--suite",
        choices=list(SUITES),
        default="quick",
        help=f"benchmarks to run (default: quick). {suites}",
    )
    parser.add_argument(
        "--mpi",
        metavar="NAME,...",
        help="comma-separated list of MPIs (default: all installed MPIs)",
    )
    arms = "; ".join(f"{a.name}: {a.title}" for a in ARMS.values())
    parser.add_argument(
        "--arms",
        metavar="NAME,...",
        default=",".join(ARMS),
        help=f"comma-separated list of arms to compare; an arm is a way to carry messages (default: all arms). {arms}",
    )
    parser.add_argument(
        "--blocks",
        type=blocks_number,
        help="number of blocks; a block runs each benchmark once per arm (default: the number of the suite)",
    )
    parser.add_argument(
        "-n", "--ranks", type=int, help="number of ranks (default: one per slot of the cluster)"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="directory for the results; the command creates it (default: results/TIME-CLUSTER)",
    )


def choose_mpis(text: str | None) -> list[Mpi]:
    """Return the MPIs asked for, or all that are installed."""
    installed = [m.value for m in find_installations()]
    if text is None:
        if not installed:
            msg = "no MPI is installed"
            raise LaunchError(msg, "run `make setup`, or set NEARMETAL_MPI_PATH")
        return [Mpi(name) for name in installed]
    names = _names(text, [m.value for m in Mpi], "MPI")
    for name in names:
        if name not in installed:
            msg = f"{name} is not installed"
            raise LaunchError(msg, f"installed: {', '.join(installed) or 'none'}")
    return [Mpi(name) for name in names]


def new_directory(given: Path | None, cluster: str) -> Path:
    """Return the run directory to make; raises UsageError when it is there already."""
    if given is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        given = Path("results") / f"{stamp}-{cluster}"
    if given.exists():
        msg = f"{given} is there already"
        raise UsageError(msg, "a run directory is written once: give another name")
    return given


def measure(args: argparse.Namespace, view: View) -> int:
    """Run the suite; exit code 1 when a launch failed."""
    suite = SUITES[args.suite]
    blocks = args.blocks or suite.blocks
    arms: list[BenchArm] = [ARMS[name] for name in _names(args.arms, list(ARMS), "arm")]
    mpis = choose_mpis(args.mpi)
    directory = new_directory(args.output, Path(args.spec).stem)
    cluster, spec = open_running(args.spec)
    with view.steps(f"bench {cluster.name}") as steps:
        collector = Collector(
            cluster.backend,
            spec,
            LocalRunner(),
            directory,
            suite.name,
            blocks,
            args.ranks or spec.slots,
            steps,
        )
        manifest = collector.run(schedule(suite, mpis, arms, blocks))
    return tell(manifest, directory, view)


def tell(manifest: Manifest, directory: Path, view: View) -> int:
    """Print what was run; exit code 1 when a launch failed."""
    failed = [launch for launch in manifest.launches if not launch.good]
    for launch in failed:
        how = "no end in time" if launch.timed_out else f"exit code {launch.exit_code}"
        view.warn(
            f"{launch.mpi} {launch.arm} {launch.program}: {how}",
            f"read {directory / launch.stderr}",
        )
    for skipped in manifest.skipped:
        view.warn(f"not run: {skipped}")
    data = {
        "directory": str(directory),
        "launches": len(manifest.launches),
        "failed": [launch.number for launch in failed],
        "skipped": list(manifest.skipped),
    }
    good = len(manifest.launches) - len(failed)
    view.result(
        data,
        [
            f"{good} of {len(manifest.launches)} launches ended well: {directory}",
            f"now `nearmetal report {directory}`",
        ],
    )
    return ExitCode.ERROR if failed or manifest.skipped else ExitCode.DONE
