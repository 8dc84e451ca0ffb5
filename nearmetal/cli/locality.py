# SPDX-License-Identifier: Apache-2.0
"""`nearmetal locality`: the channel of each pair of nodes, and the reason."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from nearmetal.cli.target import add_spec, open_running
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode
from nearmetal.core.process import LocalRunner
from nearmetal.job.locality import measure_locality

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.job.locality import Meeting


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "locality",
        show,
        "show which channel each pair of nodes uses, and the reason",
        "nearmetal locality examples/near-far.yaml",
    )
    add_spec(parser)


def _copies(meeting: Meeting) -> str:
    if meeting.direct_copies:
        return "yes"
    return f"no: {meeting.copy_reason}" if meeting.copy_reason else "-"


def show(args: argparse.Namespace, view: View) -> int:
    """Print the matrix of channels, then every pair with its reason."""
    cluster, spec = open_running(args.spec)
    meetings = measure_locality(cluster.backend, spec, LocalRunner())
    names = [node.name for _, node in spec.nodes]
    channel = {(m.node, m.peer): m.channel for m in meetings}
    view.table(("", *names), [[a, *(channel[a, b] for b in names)] for a in names])
    view.result({"cluster": cluster.name, "pairs": [asdict(m) for m in meetings]}, [""])
    view.table(
        ("from", "to", "relation", "channel", "integrity", "direct copies", "reason"),
        [
            [m.node, m.peer, m.relation, m.channel, m.integrity, _copies(m), m.reason]
            for m in meetings
        ],
    )
    return ExitCode.DONE
