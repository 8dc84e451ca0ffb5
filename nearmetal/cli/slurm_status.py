# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm status`: what jobs have on this node, what of it is a leak, and what Slurm believes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode
from nearmetal.core.process import LocalRunner
from nearmetal.slurm.backend import ThisNode, leaks
from nearmetal.slurm.queue import GRES, gres
from nearmetal.slurm.records import Container
from nearmetal.slurm.vfs import JobVfs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nearmetal.cli.view import View
    from nearmetal.core.process import Runner
    from nearmetal.slurm.backend import AnyInstance, JobBackend
    from nearmetal.slurm.records import Instance
    from nearmetal.slurm.vfs import Count, JobVf

_COLUMNS = ("job", "user", "node", "since", "process", "state", "VFs", "request")


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    add_verb(
        subparsers,
        "status",
        run,
        "show the containers and VFs of jobs on this node, and leaks",
        "nearmetal slurm status",
    )


def run(args: argparse.Namespace, view: View) -> int:
    """Print containers and VFs; exit code 4 when there are leaks, or Slurm promises too much."""
    del args
    return show(LocalRunner(), ThisNode(), view, JobVfs())


def show(runner: Runner, backend: JobBackend[AnyInstance], view: View, vfs: JobVfs) -> int:
    """As `run`, for any node."""
    found, taken = backend.found(), vfs.found()
    left = [c.job for c in leaks(runner, found)]
    rows = [_entry(c, taken, leak=c.job in left) for c in found]
    if rows:
        view.table(_COLUMNS, [_row(row) for row in rows])
    for job in left:
        view.warn(
            f"job {job} has ended and its container is here", "nearmetal slurm reclaim --ended"
        )
    lost = [vf for vf in taken if vf.job not in {c.job for c in found}]
    for vf in lost:
        view.warn(
            f"job {vf.job} has no records any more and VF {vf.address} is still its",
            "nearmetal host vf --reclaim",
        )
    count = vfs.count()
    promised = _promised(runner, found, count)
    sound = _compare(view, count, promised)
    lines = [] if rows else ["no container of a job on this node"]
    if count.offered:
        lines.append(
            f"VFs: {count.offered}, of which jobs can have {count.for_jobs} and have "
            f"{len(taken)}; Slurm counts {promised}"
        )
    view.result(
        {
            "containers": rows,
            "vfs": [vars(vf) for vf in taken],
            "count": {
                "offered": count.offered,
                "for_jobs": count.for_jobs,
                "others": list(count.others),
                "gres": promised,
            },
        },
        lines,
    )
    return ExitCode.DONE if sound and not left and not lost else ExitCode.CHECKS_FAILED


def _promised(runner: Runner, found: Sequence[Instance], count: Count) -> int | None:
    """Return how many VFs of this node Slurm may give away; None: there are none to ask about."""
    if not count.offered:
        return None
    named = next((c.node for c in found if c.node), "") or os.environ.get("SLURMD_NODENAME", "")
    return gres(runner, named or os.uname().nodename.partition(".")[0])


def _compare(view: View, count: Count, promised: int | None) -> bool:
    """Warn where Slurm and the ledger disagree; returns whether jobs get what they are promised."""
    if not promised:
        return True
    if promised > count.for_jobs:
        others = f": {'; '.join(count.others)}" if count.others else ""
        view.warn(
            f"gres.conf promises {promised} VFs of this node, and jobs can have "
            f"{count.for_jobs} of its {count.offered}{others}",
            f"set Count={count.for_jobs} for Name={GRES}, or give those back",
        )
    elif promised < count.for_jobs:
        view.warn(
            f"gres.conf counts {promised} VFs of this node, and jobs could have {count.for_jobs}",
            f"set Count={count.for_jobs} for Name={GRES} if they may have them all",
        )
    return promised <= count.for_jobs


def _entry(found: Instance, taken: tuple[JobVf, ...], *, leak: bool) -> dict[str, object]:
    return {
        "job": found.job,
        "uid": found.uid,
        "node": found.node,
        "since": found.since,
        "pid": found.pid if isinstance(found, Container) else 0,
        "alive": found.lives(),
        "leak": leak,
        "refusal": found.refusal,
        "vfs": [vf.address for vf in taken if vf.job == found.job],
        "request": found.request,
    }


def _state(row: dict[str, object]) -> str:
    if row["leak"]:
        return "leak"
    if row["refusal"]:
        return f"refused: {row['refusal']}"
    return "in use" if row["alive"] else "its process 1 has died"


def _row(row: dict[str, object]) -> list[str]:
    since = time.strftime("%F %T", time.localtime(float(str(row["since"]))))
    addresses = row["vfs"]
    vfs = " ".join(addresses) if isinstance(addresses, list) else ""
    return [
        str(row["job"]),
        str(row["uid"]),
        str(row["node"] or "-"),
        since,
        str(row["pid"]),
        _state(row),
        vfs or "-",
        str(row["request"] or "-"),
    ]
