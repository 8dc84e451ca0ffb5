# SPDX-License-Identifier: Apache-2.0
"""Which machine of a host moves where, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from nearmetal.cluster.move.checks import MovableMachine, MoveTarget, must_copy, refusals
from nearmetal.core.errors import BackendError

_MAX_TRIALS = 5_000
"""Places of a group that are tried, in all."""


@dataclass(frozen=True)
class PlannedMove:
    """One machine and its destination, by their names."""

    machine: str
    target: str


@dataclass(frozen=True)
class DrainPlan:
    """`waves`: moves that run at the same time. `notes`: what a user should know before a yes."""

    waves: tuple[tuple[PlannedMove, ...], ...]
    notes: tuple[str, ...] = ()


def _without(target: MoveTarget, machine: MovableMachine) -> MoveTarget:
    """Return the host after MACHINE has come."""
    hugepages, memory, vfs = dict(target.hugepages), target.memory, list(target.vfs)
    if machine.hugepage:
        hugepages[machine.hugepage] -= -(-machine.memory // machine.hugepage)
    else:
        memory -= machine.memory
    if machine.vf is not None:
        vfs.remove(machine.vf)
    return replace(
        target,
        hugepages=hugepages,
        memory=memory,
        vfs=tuple(vfs),
        parts=target.parts - (1 if machine.part else 0),
        disk=target.disk - (machine.disk if must_copy(machine, target) else 0),
    )


def _taken(target: MoveTarget, machines: Sequence[MovableMachine]) -> MoveTarget | None:
    """Return the host after all MACHINES have come; None if one of them cannot."""
    for machine in machines:
        if refusals(machine, target):
            return None
        target = _without(target, machine)
    return target


def _groups(machines: Sequence[MovableMachine]) -> list[list[MovableMachine]]:
    """Neighbours belong together; a machine without a segment is alone. Largest first."""
    found: dict[str, list[MovableMachine]] = {}
    for machine in machines:
        key = f"segment {machine.group}" if machine.group else f"machine {machine.name}"
        found.setdefault(key, []).append(machine)
    return sorted(found.values(), key=lambda group: -sum(machine.memory for machine in group))


def _arrangements(
    groups: Sequence[Sequence[MovableMachine]],
) -> Iterator[list[Sequence[MovableMachine]]]:
    """All groups whole at first, then with one group apart, and so on."""
    for nr_apart in range(len(groups) + 1):
        for apart in combinations(range(len(groups)), nr_apart):
            whole = [group for at, group in enumerate(groups) if at not in apart]
            yield whole + [[machine] for at in apart for machine in groups[at]]


def _place(
    groups: Sequence[Sequence[MovableMachine]],
    targets: tuple[MoveTarget, ...],
    trials: Iterator[int],
) -> list[PlannedMove] | None:
    """Return moves that keep each group whole; None if there are none among the trials."""
    if not groups:
        return []
    for at, target in enumerate(targets):
        if next(trials, None) is None:
            return None
        after = _taken(target, groups[0])
        if after is None:
            continue
        rest = _place(groups[1:], (*targets[:at], after, *targets[at + 1 :]), trials)
        if rest is not None:
            return [PlannedMove(machine.name, target.name) for machine in groups[0]] + rest
    return None


def _reasons(machine: MovableMachine, targets: Sequence[MoveTarget]) -> str:
    return "; ".join(why for target in targets for why in refusals(machine, target))


def _require_room(machines: Sequence[MovableMachine], targets: Sequence[MoveTarget]) -> None:
    """Refuse a machine that fits on no host even if it comes alone."""
    if not targets:
        raise BackendError("no host is left to move to", "name hosts with --to")
    stuck = [
        f"{machine.name}: {_reasons(machine, targets)}"
        for machine in machines
        if all(refusals(machine, target) for target in targets)
    ]
    if stuck:
        raise BackendError("machines that fit on no other host: " + " | ".join(stuck))


def plan_drain(
    machines: Sequence[MovableMachine], targets: Sequence[MoveTarget], *, at_once: int
) -> DrainPlan:
    """Plan the moves of all MACHINES of a host, AT_ONCE at the same time at most.

    Neighbours stay together if any assignment allows it. BackendError with every reason if a
    machine has no place.
    """
    if at_once < 1:
        raise BackendError(f"{at_once} moves at a time: use 1 or more")
    names = [machine.name for machine in machines]
    if len(set(names)) < len(names):
        raise BackendError("two machines have one name")
    if not machines:
        return DrainPlan(())
    _require_room(machines, targets)
    trials = iter(range(_MAX_TRIALS))
    for groups in _arrangements(_groups(machines)):
        moves = _place(groups, tuple(targets), trials)
        if moves is not None:
            break
        if next(trials, None) is None:
            raise BackendError(
                f"no plan was found in {_MAX_TRIALS} trials", "move some of the machines first"
            )
    else:
        raise BackendError("the machines do not fit on the other hosts together")
    waves = tuple(tuple(moves[i : i + at_once]) for i in range(0, len(moves), at_once))
    notes = tuple(
        f"neighbours part, and use the network afterwards: {' '.join(parted)}"
        for parted in _parted(machines, moves)
    )
    return DrainPlan(waves, notes)


def _parted(
    machines: Sequence[MovableMachine], moves: Sequence[PlannedMove]
) -> Iterator[list[str]]:
    """The names of each group whose machines go to several hosts."""
    goal = {move.machine: move.target for move in moves}
    for group in _groups(machines):
        if len({goal[machine.name] for machine in group}) > 1:
            yield sorted(machine.name for machine in group)
