# SPDX-License-Identifier: Apache-2.0
"""Arguments that several verbs share: SPEC, --mpi, --blocks, --output."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import LaunchError, NearmetalError, StateError, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cluster.apply import Cluster
    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.job.mpi import Mpi

_MAX_BLOCKS = 1000
_MOST_S = 3600

BLOCKS_HELP = (
    "number of blocks; a block launches each benchmark once in each arm, so six blocks are six "
    "launches; six or more give ratios with a 95 %% interval, fewer give no ratio"
)
ARM_HELP = "an arm is one of the compared configurations"
SLOT_HELP = "number of ranks (default: one per slot; a slot is the place for one rank on a node)"
STUDY_HELP = "directory of a study, which `study import` makes"
TIME_HELP = "TIME is the UTC time, for example 20260101-120000"


def add_spec(parser: VerbParser, *, optional: str = "", more: str = "") -> None:
    """Add the argument SPEC. `optional`: when it can be left out; `more`: what else it can be."""
    words = (
        "cluster spec: path of a YAML file, see nearmetal-spec(5), or name of an existing cluster"
    )
    parser.option("spec SPEC", words + optional + more, nargs="?" if optional else None)


def add_study(parser: VerbParser) -> None:
    """Add the argument STUDY."""
    parser.option("study STUDY", STUDY_HELP)


def add_yes(parser: VerbParser) -> None:
    """Add --yes, for a verb that asks before it removes, interrupts or reboots anything."""
    parser.option("-y --yes", "do not ask, and agree; necessary where no terminal can be asked")


def open_target(text: str) -> tuple[Cluster, ClusterSpec]:
    """Return the cluster and its spec: the file's, or the recorded one for a name."""
    from nearmetal.cluster.saved import KIND
    from nearmetal.cluster.spec import load_spec
    from nearmetal.cluster.store import Store, state_directory
    from nearmetal.config import plan_file

    store = Store(state_directory())
    recorded = None
    if not Path(text).exists() and text in store.names():
        recorded = store.recorded(text)
        if recorded is None:
            raise StateError(
                f"cluster {text}: the record of its spec is not readable",
                "give the spec file instead of the name",
            )
    if recorded is None:
        plan_file.refuse(Path(text), KIND)
    return open_cluster(recorded or load_spec(Path(text)))


def open_cluster(spec: ClusterSpec) -> tuple[Cluster, ClusterSpec]:
    """Return the cluster of a spec, and the spec."""
    from nearmetal.cluster.apply import Cluster
    from nearmetal.cluster.backend import open_backend
    from nearmetal.cluster.store import Store, state_directory

    store = Store(state_directory())
    backend = open_backend(spec, store, LocalRunner())
    return Cluster(spec.name, backend, store), spec


def open_running(text: str) -> tuple[Cluster, ClusterSpec]:
    """As `open_target`, and raises StateError unless the cluster is up as the spec says."""
    from nearmetal.cluster.apply import described, first_step, plan_up

    cluster, spec = open_target(text)
    plan = plan_up(cluster, spec)
    if plan.rewrites:
        lines = "\n".join(f"  {line}" for line in described(plan.rewrites))
        raise StateError(
            f"cluster {cluster.name} is up under another spec:\n{lines}",
            f"use its own spec or its name, or `nearmetal up --replace {text}`",
        )
    if not plan.empty:
        raise StateError(
            f"cluster {cluster.name} is not up ({first_step(plan)})", f"run `nearmetal up {text}`"
        )
    return cluster, spec


def mpi_names() -> str:
    """Return the names of all MPIs, for the help."""
    from nearmetal.job.mpi import Mpi

    return ", ".join(mpi.value for mpi in Mpi)


def choose_mpis(text: str | None) -> list[Mpi]:
    """Return the MPIs in a comma-separated list, or all that are installed."""
    from nearmetal.job.mpi import NO_MPI, Mpi, find_installations

    installed = [m.value for m in find_installations()]
    if text is None and not installed:
        raise LaunchError("no MPI is installed", NO_MPI)
    names = installed if text is None else split_names(text, [m.value for m in Mpi], "MPI")
    for name in names:
        if name not in installed:
            known = ", ".join(installed) or "none"
            raise LaunchError(f"{name} is not installed", f"installed: {known}")
    return [Mpi(name) for name in names]


def split_names(text: str, known: Collection[str], what: str) -> list[str]:
    """Return the names in a comma-separated list, each once; raises UsageError."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {what} {name!r}", f"known: {', '.join(known)}")
    return list(dict.fromkeys(names))


def blocks_number(text: str) -> int:
    """Return the argument of --blocks."""
    if not text.isdigit() or not 1 <= int(text) <= _MAX_BLOCKS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of blocks from 1 to {_MAX_BLOCKS}"
        )
    return int(text)


def run_directory(given: Path | None, cluster: str) -> Path:
    """Return the run directory to make; raises UsageError if it exists."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory = given or Path("results") / f"{stamp}-{cluster}"
    if directory.exists():
        raise UsageError(
            f"{directory} exists", "a run directory is written once: give another name"
        )
    return directory


def write_new(path: Path, text: str) -> None:
    """Write a file; raises NearmetalError if it exists."""
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise NearmetalError(f"{path} exists", "remove it, or give another name") from error


def report_file(text: str) -> Path:
    """Return where a report is written: a file, new or regular.

    A link is followed. Raises ArgumentTypeError, also for a device or a FIFO.
    """
    named = Path(text)
    if text in {"", "-"}:
        raise argparse.ArgumentTypeError(f"{text!r} names no file: give the path of a file")
    try:
        path = named.resolve()
        if named.exists() and not named.is_file():
            raise argparse.ArgumentTypeError(
                f"{printable(text)} is not a regular file: give another path"
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{printable(text)}: {error}") from error
    return path


def seconds(text: str, least: float = 0.1) -> float:
    """Return a time in seconds; raises ArgumentTypeError.

    The default of `least` is the time between two readings: a person cannot read faster.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= _MOST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {least:g} to {_MOST_S}"
        )
    return value
