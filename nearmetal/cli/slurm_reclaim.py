# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm reclaim`: end what is left of jobs on this node.

The plugin's epilog calls it for its job, the watchdog's timer for all that have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.slurm.backend import ThisNode, reclaim_ended

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.slurm.backend import AnyInstance, JobBackend


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "reclaim",
        run,
        "end the containers of jobs on this node and return their VFs; needs root",
        "nearmetal slurm reclaim --ended",
    )
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "--job",
        type=int,
        metavar="N",
        help="job ID; end the container of this job, even if the job runs",
    )
    whose.add_argument(
        "--ended", action="store_true", help="end all leaks: containers of jobs that have ended"
    )
    parser.add_argument(
        "--drain",
        action="store_true",
        help="with --ended: drain this node in Slurm if a container does not end",
    )


def run(args: argparse.Namespace, view: View) -> int:
    """Reclaim it; nothing to do is no error."""
    node = ThisNode()
    try:
        return reclaim(args, view, node)
    finally:
        if args.ended:
            node.guard(LocalRunner())


def reclaim(args: argparse.Namespace, view: View, backend: JobBackend[AnyInstance]) -> int:
    """As `run`, on any node."""
    if args.ended:
        jobs = reclaim_ended(LocalRunner(), backend, drains=args.drain)
        lines = [f"job {job}: reclaimed" for job in jobs] or ["no job has left anything here"]
        view.result({"reclaimed": list(jobs)}, lines)
        return ExitCode.DONE
    if args.drain:
        raise UsageError("--drain goes with --ended", "an epilog that fails drains its node anyway")
    found = backend.reclaim(args.job)
    line = f"job {args.job}: {'reclaimed' if found else 'nothing is here'}"
    view.result({"reclaimed": [args.job] if found else []}, [line])
    return ExitCode.DONE
