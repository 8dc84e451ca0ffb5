# SPDX-License-Identifier: Apache-2.0
"""Scripts in the nodes: which of them have to run. Pure; post_work.py runs them.

A script runs once in each machine. It is known by its content and the machine by its identity, so a
changed script runs again, and every script runs in a machine that was made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from nearmetal.cluster.model import ClusterSpec, Finding, PostScript, some
from nearmetal.config.model import Model


class ScriptState(Model):
    """How far a script came in a machine. `token`: the mark of its processes there."""

    state: Literal["begun", "failed", "done"]
    token: str = Field(pattern=r"^[0-9a-f]{32}$")
    why: str = ""


class NodeScripts(Model):
    """The scripts that were begun in the machine of a node, by the digests of their contents."""

    machine: str
    scripts: dict[str, ScriptState] = Field(default_factory=dict)


@dataclass(frozen=True)
class ScriptRun:
    """A script that has to run in these nodes. `again`: why, by the nodes where it did not end well."""

    entry: PostScript
    digest: str
    nodes: tuple[str, ...]
    again: Mapping[str, str]

    @property
    def text(self) -> str:
        """One line for the user."""
        line = f"> script {self.entry.script} on {some(self.nodes)} (step {self.entry.step}"
        reasons: dict[str, list[str]] = {}
        for node, why in self.again.items():
            reasons.setdefault(why, []).append(node)
        return "".join([line, *(f"; on {some(n)} {why}" for why, n in reasons.items()), ")"])


def post_findings(spec: ClusterSpec) -> Iterator[Finding]:
    """Yield the rules that the scripts of a spec break."""
    names = [node.name for _, node in spec.nodes]
    having: dict[tuple[str, str], int] = {}
    for i, entry in enumerate(spec.post):
        strange = next((name for name in entry.nodes or () if name not in names), None)
        if strange is not None:
            why = "the spec has no node of this name"
            yield Finding(("post", i, "nodes"), f"node {strange}", why, "use nodes of this spec")
        twice = [n for n in entry.nodes or names if having.setdefault((entry.script, n), i) != i]
        if twice or len({*(entry.nodes or ())}) != len(entry.nodes or ()):
            what = f"script {entry.script} twice in one node"
            why = "a script runs once in a machine"
            yield Finding(("post", i), what, why, "remove one", tuple(twice))


def in_steps(spec: ClusterSpec) -> list[PostScript]:
    """Return the scripts in their order."""
    return sorted(spec.post, key=lambda entry: entry.step)


def pending(
    spec: ClusterSpec,
    digests: Mapping[str, str],
    machines: Mapping[str, str],
    known: Mapping[str, NodeScripts],
) -> tuple[ScriptRun, ...]:
    """Return the scripts that have to run, in their order.

    `digests`: of the contents, by path. `machines`: the identity of each node's machine that stays
    as it is. Nodes that are off are left out.
    """
    names = [node.name for _, node in spec.nodes if spec.is_on(node.name)] if spec.post else []
    runs, planned = [], set[tuple[str, str]]()
    for entry in in_steps(spec):
        digest, nodes = digests[entry.script], list[str]()
        again: dict[str, str] = {}
        for node in (name for name in names if entry.nodes is None or name in entry.nodes):
            before = known.get(node)
            same = before is not None and node in machines and before.machine == machines[node]
            state = before.scripts.get(digest) if before is not None and same else None
            if (state and state.state == "done") or (node, digest) in planned:
                continue
            planned.add((node, digest))
            nodes.append(node)
            if state is not None:
                again[node] = state.why if state.state == "failed" else "it was interrupted"
        if nodes:
            runs.append(ScriptRun(entry, digest, tuple(nodes), again))
    return tuple(runs)
