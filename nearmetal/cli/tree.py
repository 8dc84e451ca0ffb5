# SPDX-License-Identifier: Apache-2.0
"""A cluster as a tree: its switches, and its hosts with their nodes and all that each has."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.resource import Key, Kind, Resource

_WIDTH = 100
_LONG = ("adapters", "guest")
"""Attributes with lines of their own."""


def tree_lines(nodes: Sequence[NodeStatus], resources: Iterable[Resource]) -> Iterator[str]:
    """Yield the lines of a tree; a node that is only in the spec has no values."""
    found = {item.key: dict(item.attributes) for item in resources}
    for key, values in found.items():
        if key.kind not in (Kind.NODE, Kind.HOST):
            yield f"{key.kind.value} {key.name}"
            yield from _values(values, "  ")
    for host in dict.fromkeys(node.host for node in nodes):
        yield f"host {host}"
        yield from _values(found.get(Key(Kind.HOST, host), {}), "  ")
        for node in nodes:
            if node.host == host:
                yield "  " + ", ".join(
                    filter(None, (f"node {node.name}", node.health, node.address))
                )
                yield from _values(found.get(Key(Kind.NODE, node.name), {}), "    ")


def _values(values: dict[str, str], indent: str) -> Iterator[str]:
    short = [f"{k} {v}" for k, v in values.items() if v and k not in (*_LONG, "host")]
    more = f"{indent}  "
    yield from textwrap.wrap(
        ", ".join(short), _WIDTH, initial_indent=indent, subsequent_indent=more
    )
    for name in _LONG:
        for value in filter(None, values.get(name, "").split("; ")):
            yield f"{indent}{name.removesuffix('s')} {value}"
