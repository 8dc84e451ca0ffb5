# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm status`: containers of jobs on this node, and which of them are leaks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.errors import ExitCode
from nearmetal.run import LocalRunner
from nearmetal.slurm import STATE, containers, leaks

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from nearmetal.cli.view import View
    from nearmetal.run import Runner

_COLUMNS = ("job", "user", "node", "since", "process", "state", "request")


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    add_verb(
        subparsers, "status", run, "show containers of jobs on this node, and leaks",
        "nearmetal slurm status",
    )  # fmt: skip


def run(args: argparse.Namespace, view: View) -> int:
    """Print containers; exit code 4 when there are leaks."""
    del args
    return show(LocalRunner(), STATE, view)


def show(runner: Runner, state: Path, view: View) -> int:
    """As `run`, for any node."""
    found = containers(state)
    left = [c.job for c in leaks(runner, found)]
    rows = [
        {
            "job": c.job,
            "uid": c.uid,
            "node": c.node,
            "since": c.since,
            "pid": c.pid,
            "alive": c.lives(),
            "leak": c.job in left,
            "request": c.request,
        }
        for c in found
    ]
    if rows:
        view.table(_COLUMNS, [_row(row) for row in rows])
    for job in left:
        view.warn(f"job {job} has ended and its container is here",
                  "nearmetal slurm reclaim --ended")  # fmt: skip
    lines = [] if rows else ["no container of a job on this node"]
    view.result({"containers": rows}, lines)
    return ExitCode.CHECKS_FAILED if left else ExitCode.DONE


def _row(row: dict[str, object]) -> list[str]:
    since = time.strftime("%F %T", time.localtime(float(str(row["since"]))))
    state = "leak" if row["leak"] else "in use" if row["alive"] else "its process 1 has died"
    return [str(row["job"]), str(row["uid"]), str(row["node"] or "-"), since, str(row["pid"]),
            state, str(row["request"] or "-")]  # fmt: skip
