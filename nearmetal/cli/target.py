# SPDX-License-Identifier: Apache-2.0
"""What the argument SPEC means: a file, or the name of a cluster that is up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cluster.apply import Cluster, describe, plan_up
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.store import Store, state_directory
from nearmetal.core.errors import NearmetalError, StateError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse

    from nearmetal.cluster.diff import Plan
    from nearmetal.cluster.spec import ClusterSpec


def add_spec(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the argument SPEC."""
    words = "path of a cluster spec (YAML), or name of a cluster that is up"
    parser.add_argument("spec", metavar="SPEC", nargs=None if required else "?", help=words)


def open_target(text: str) -> tuple[Cluster, ClusterSpec]:
    """Return the cluster and its spec: the file's, or the recorded one for a name."""
    store = Store(state_directory())
    recorded = None
    if not Path(text).exists() and text in store.names():
        recorded = store.recorded(text)
        if recorded is None:
            msg = f"cluster {text} has no readable record of its spec"
            raise StateError(msg, "give the spec file instead of the name")
    spec = recorded or load_spec(Path(text))
    backend = open_backend(spec, store, LocalRunner())
    return Cluster(spec.name, backend, store), spec


def open_running(text: str) -> tuple[Cluster, ClusterSpec]:
    """As `open_target`, and raises StateError unless it is up as the spec says."""
    cluster, spec = open_target(text)
    plan = plan_up(cluster, spec)
    if not plan.empty:
        raise _not_up(cluster, plan, text)
    return cluster, spec


def _not_up(cluster: Cluster, plan: Plan, text: str) -> NearmetalError:
    if plan.rewrites:
        lines = "\n".join("  " + describe(change) for change in plan.rewrites)
        msg = f"cluster {cluster.name} is up under another spec:\n{lines}"
        hint = f"use its own spec or its name, or `nearmetal up --replace {text}`"
        return StateError(msg, hint)
    first = describe(plan.effective[0])
    return StateError(f"cluster {cluster.name} is not up ({first})", f"run `nearmetal up {text}`")
