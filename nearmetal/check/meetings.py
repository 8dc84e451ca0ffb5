# SPDX-License-Identifier: Apache-2.0
"""How the nodes of a cluster meet: the channel of each pair, as `nearmetal locality` shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from nearmetal.core.errors import BackendError, LaunchError
from nearmetal.job.locality import measure_locality

if TYPE_CHECKING:
    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.core.process import Runner

MOST_NODES = 32
"""Each pair meets, so a thousand nodes would take an hour."""

_MOST_REASON = 160

Meetings = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By node, and by other node: `channel`, `reason`, and `host`, whether both have one host."""


def meetings_of(
    backend: Backend, spec: ClusterSpec, runner: Runner, nodes: Collection[str]
) -> tuple[Meetings, str]:
    """Return how these nodes meet; none, and why, if they cannot be asked."""
    if len(nodes) > MOST_NODES:
        return {}, f"{len(nodes)} nodes are more than {MOST_NODES}; ask `nearmetal locality`"
    if backend.apart or len(nodes) < 2:  # noqa: PLR2004 - a pair
        return {}, ""
    try:
        meetings = measure_locality(backend, spec, runner, nodes)
    except (BackendError, LaunchError) as error:
        return {}, error.message
    host = {node.name: place.name for place, node in spec.nodes}
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in nodes}
    for each in meetings:
        if each.node != each.peer:
            found[each.node][each.peer] = {
                "channel": each.channel,
                "reason": each.reason[:_MOST_REASON],
                "host": host[each.node] == host[each.peer],
            }
    return found, ""
