# SPDX-License-Identifier: Apache-2.0
"""The argument list of each MPI's own launcher. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from nearmetal.core.errors import UsageError
from nearmetal.job.mpi.installed import Family, Installation, Mpi


class MapBy(Enum):
    """How ranks go to nodes: fill one node after another, or one rank to each in turn."""

    SLOT = "slot"
    NODE = "node"


@dataclass(frozen=True)
class Placement:
    """The number of ranks of each node, in order; nodes without a rank are left out."""

    ranks: tuple[tuple[str, int], ...]
    map_by: MapBy

    @property
    def total(self) -> int:
        """The number of all ranks."""
        return sum(count for _, count in self.ranks)


def place(slots: Sequence[tuple[str, int]], nr_ranks: int | None, map_by: MapBy) -> Placement:
    """Distribute ranks over (node, slots); raises UsageError if they do not fit."""
    room = sum(count for _, count in slots)
    wanted = room if nr_ranks is None else nr_ranks
    if wanted < 1:
        raise UsageError(f"-n {wanted}: a job needs at least one rank", "pass -n 1 or more")
    if wanted > room:
        raise UsageError(
            f"{wanted} ranks are more than the {room} slots of the cluster",
            f"pass -n {room} or fewer, or raise `slots` in the spec and run `nearmetal up` again",
        )
    given = {name: 0 for name, _ in slots}
    left = wanted
    while left:
        for name, count in slots:
            take = count if map_by is MapBy.SLOT else min(1, count - given[name])
            take = min(left, take)
            given[name] += take
            left -= take
    return Placement(tuple((n, c) for n, c in given.items() if c), map_by)


def launcher_argv(
    installation: Installation,
    placement: Placement,
    agent: str,
    options: Sequence[str],
    program: Sequence[str],
) -> list[str]:
    """Return the whole command of one job. `agent` is the remote shell's path."""
    # Hydra loses the exit code of the rank that failed first, and Open MPI may report that of a
    # rank which only noticed: the agent records all codes with their times.
    # /bin/sh comes first: PRRTE takes the first word equal to the program for the program, and the
    # agent is already among the options.
    recorded = ("/bin/sh", agent, "--rank", *program)
    start = [str(installation.launcher)]
    if installation.mpi.family is Family.OPENMPI:
        # Children that the ranks spawn later find every slot taken, hence OVERSUBSCRIBE.
        hosts = ",".join(f"{name}:{count}" for name, count in placement.ranks)
        map_by = f"{placement.map_by.value}:OVERSUBSCRIBE"
        start += _openmpi(five=installation.mpi is Mpi.OPENMPI5, agent=agent)
        start += ["--host", hosts, "--map-by", map_by, *options]
        return [*start, "-n", str(placement.total), *recorded]
    word = "bootstrap" if installation.mpi is Mpi.IMPI else "launcher"
    start += [f"-{word}", "ssh", f"-{word}-exec", agent]
    return [*start, *options, *_hydra_places(installation, placement, recorded)]


def _openmpi(*, five: bool, agent: str) -> list[str]:
    # The launcher starts every daemon itself: a node has no way to start one on its sibling.
    option, shell = ("--prtemca", "ssh") if five else ("--mca", "rsh")
    found = {"plm": shell, f"plm_{shell}_agent": agent, f"plm_{shell}_no_tree_spawn": "1"}
    words = [word for name, value in found.items() for word in (option, name, value)]
    # The agent binds: by itself Open MPI binds rank 0 of every node to core 0.
    return [*words, "--bind-to", "none"]


def _hydra_places(
    installation: Installation, placement: Placement, program: Sequence[str]
) -> list[str]:
    """Return the nodes of the ranks, and the program."""
    hosts = ",".join(name for name, _ in placement.ranks)
    counts = [count for _, count in placement.ranks]
    rest = ["-n", str(placement.total), *program]
    in_turn = placement.map_by is MapBy.NODE
    if in_turn and counts == sorted(counts, reverse=True) and max(counts) - min(counts) <= 1:
        # Hydra repeats the list until all ranks are placed.
        return ["-hosts", hosts, "-ppn", "1", *rest]
    if not in_turn and len(set(counts)) == 1:
        return ["-hosts", hosts, "-ppn", str(counts[0]), *rest]
    if not in_turn and installation.mpi is not Mpi.IMPI:
        return ["-hosts", ",".join(f"{name}:{count}" for name, count in placement.ranks), *rest]
    # One segment per run of ranks says it in full; Intel's Hydra ignores counts in -hosts.
    words: list[str] = []
    for name, count in _runs(placement):
        words += [":"] if words else []
        words += ["-host", name, "-n", str(count), *program]
    return words


def _runs(placement: Placement) -> list[tuple[str, int]]:
    """Return (node, ranks) in rank order."""
    if placement.map_by is MapBy.SLOT:
        return list(placement.ranks)
    rounds = max(count for _, count in placement.ranks)
    return [(n, 1) for i in range(rounds) for n, count in placement.ranks if count > i]
