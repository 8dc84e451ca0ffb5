# SPDX-License-Identifier: Apache-2.0
"""What `migrate` and `drain` do: choose the moves, look at them, carry them out under the lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearmetal.cluster.move.checks import refusals
from nearmetal.cluster.move.drain import DrainPlan, PlannedMove, plan_drain
from nearmetal.cluster.move.engine import Mover, MoveReport
from nearmetal.cluster.move.phases import ACTIONS, MoveAction
from nearmetal.cluster.move.record import Move
from nearmetal.cluster.move.site import MoveSite
from nearmetal.core.errors import BackendError, StateError, UsageError

NR_ACTIONS = list(ACTIONS.values()).index(MoveAction.RELEASE) + 1
"""Actions of a move that nothing disturbs."""

Choose = Callable[[MoveSite], DrainPlan]


@dataclass(frozen=True)
class ChosenMoves:
    """Moves that can be carried out. `waves`: those that run at the same time."""

    waves: tuple[tuple[Move, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def moves(self) -> list[Move]:
        """All of them, in their order."""
        return [move for wave in self.waves for move in wave]


def to_host(node: str, host: str) -> Choose:
    """Return the choice of one node and one host."""

    def choose(site: MoveSite) -> DrainPlan:
        places = site.places()
        _require_node(node, places)
        targets = site.targets()
        _require_hosts([host], list(targets))
        if places[node] == host:
            return DrainPlan(())
        machines = site.machines()
        reasons = refusals(machines[node], targets[host])
        if reasons:
            lines = "".join(f"\n  {reason}" for reason in reasons)
            raise BackendError(
                f"node {node} cannot move to host {host}, and nothing was changed:{lines}",
                f"other hosts: {', '.join(sorted(set(targets) - {host, places[node]})) or 'none'}",
            )
        group = machines[node].group
        left = sorted(n for n, m in machines.items() if group and m.group == group and n != node)
        notes = [f"node {node} shares no segment with {', '.join(left)} afterwards"] if left else []
        if machines[node].vf is not None:
            notes.append(
                f"node {node} has no virtual function while it moves, and then another one"
            )
        return DrainPlan(((PlannedMove(node, host),),), tuple(notes))

    return choose


def off_host(host: str, goals: Sequence[str], at_once: int) -> Choose:
    """Return the choice that empties a host. `goals`: the hosts that take its nodes; () for any."""

    def choose(site: MoveSite) -> DrainPlan:
        places, targets = site.places(), site.targets()
        _require_hosts([host, *goals], list(targets))
        if host in goals:
            raise UsageError(f"host {host} is to be emptied, and --to names it")
        machines = site.machines()
        going = [machines[node] for node, at in places.items() if at == host]
        others = [target for name, target in targets.items() if name != host]
        others = [target for target in others if not goals or target.name in goals]
        return plan_drain(going, others, at_once=at_once)

    return choose


def _require_node(node: str, known: Mapping[str, str]) -> None:
    if node not in known:
        raise StateError(
            f"node {node} does not run on a host of the spec that is up",
            f"nodes that do: {', '.join(sorted(known)) or 'none'}",
        )


def _require_hosts(hosts: Sequence[str], known: Sequence[str]) -> None:
    for host in hosts:
        if host not in known:
            raise StateError(
                f"the cluster has no host {host} that is up", f"hosts: {', '.join(sorted(known))}"
            )


def chosen(site: MoveSite, choose: Choose) -> ChosenMoves:
    """Return the moves, all of which can be carried out; changes nothing."""
    plan, places = choose(site), site.places()
    waves = tuple(
        tuple(Move(node=one.machine, source=places[one.machine], target=one.target) for one in wave)
        for wave in plan.waves
    )
    found = ChosenMoves(waves, plan.notes)
    site.check(found.moves)
    return found


def carry_out(mover: Mover, found: ChosenMoves) -> list[MoveReport]:
    """Move the machines."""
    mover.progress.begin(NR_ACTIONS * len(found.moves))
    return mover.waves(found.waves)


def all_moved(found: ChosenMoves, reports: Sequence[MoveReport]) -> bool:
    """Whether all these moves were made. `reports`: also of earlier moves of the same nodes."""
    made = {(report.node, report.source, report.target) for report in reports if report.moved}
    return {(move.node, move.source, move.target) for move in found.moves} <= made
