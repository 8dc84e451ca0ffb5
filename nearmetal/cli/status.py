# SPDX-License-Identifier: Apache-2.0
"""`nearmetal status`: the nodes of a cluster as they are now."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from nearmetal.cli.target import add_spec, open_target
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.apply import plan_up
from nearmetal.core.errors import ExitCode

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.cluster.backend import NodeStatus

_COLUMNS = ("node", "host", "hostname", "address", "slots", "cores", "shm", "pid", "up", "health")


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "status",
        show,
        "show the nodes of a cluster: addresses, cores, health",
        "nearmetal status examples/two-nodes.yaml",
    )
    add_spec(parser)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _row(node: NodeStatus) -> list[str]:
    cores = ",".join(map(str, node.cpus))
    up = _duration(node.uptime_s)
    pid = str(node.pid or "-")
    return [
        node.name,
        node.host,
        node.hostname,
        node.address,
        str(node.slots),
        cores,
        node.shm,
        pid,
        up,
        node.health,
    ]


def show(args: argparse.Namespace, view: View) -> int:
    """Print the nodes; exit code 4 when the cluster is up but not sound."""
    cluster, spec = open_target(args.spec)
    nodes = cluster.backend.status()
    plan = plan_up(cluster, spec)
    state = "down" if not nodes else "up" if plan.empty else "degraded"
    data = {"cluster": cluster.name, "state": state, "nodes": [asdict(node) for node in nodes]}
    closing = {
        "down": f"cluster {cluster.name} is down; `nearmetal up {args.spec}` makes it",
        "up": f"cluster {cluster.name} is up as the spec says",
        "degraded": f"cluster {cluster.name} is not as the spec says: `nearmetal plan {args.spec}`",
    }[state]
    if nodes:
        view.table(_COLUMNS, [_row(node) for node in nodes])
    view.result(data, [closing])
    return ExitCode.CHECKS_FAILED if state == "degraded" else ExitCode.DONE
