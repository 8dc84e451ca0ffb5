# SPDX-License-Identifier: Apache-2.0
"""Steps of the model of a move: a segment is given up, another one is found, and peers hear of it.

Only with `Scenario.homes`; otherwise these steps are never taken, but for `attach`.
"""

from __future__ import annotations

from tests.python.moving_model import (
    NAMES,
    NR,
    PEERS,
    BrokenError,
    Fault,
    Home,
    Scenario,
    State,
    World,
    is_quiet,
    is_up,
    runs,
)
from tests.python.moving_tables import Place, Way

# ---- the segment ----


def can_take_description(state: State, scenario: Scenario, x: int) -> bool:
    machine = state.machines[x]
    ready = machine.place is Place.FROZEN and machine.alive and machine.is_described
    return scenario.homes and ready


def take_description(world: World, x: int) -> None:
    world.machines[x] = world.machines[x]._replace(is_described=False)


def can_decide(state: State, _: Scenario, x: int) -> bool:
    machine = state.machines[x]
    sees_none = machine.holds and not machine.is_described
    return sees_none and not machine.is_deciding and runs(state, x)


def decide(world: World, x: int) -> None:
    world.machines[x] = world.machines[x]._replace(is_deciding=True)


def can_give_up_segment(state: State, _: Scenario, x: int) -> bool:
    return state.machines[x].is_deciding and runs(state, x)


def give_up_segment(world: World, x: int) -> None:
    """Under the lock with which the service thread would take the slot back."""
    machine = world.machines[x]._replace(is_deciding=False)
    if not machine.mapped or world.breaks(Fault.HASTY_GIVE_UP):
        if any(world.stream(*pair).is_open for y in PEERS[x] for pair in ((x, y), (y, x))):
            raise BrokenError(f"{NAMES[x]} gives its segment up amid a session")
        machine = machine._replace(mapped=False, holds=False)
    world.machines[x] = machine


def has_given_up(state: State, scenario: Scenario, x: int) -> bool:
    """The devices of the segment may go."""
    machine = state.machines[x]
    kept = machine.holds and Fault.KEPT_SEGMENT not in scenario.faults
    return not scenario.homes or not (machine.is_described or kept)


def can_attach(state: State, scenario: Scenario, x: int) -> bool:
    machine = state.machines[x]
    stays_out = Fault.NO_RETURN in scenario.faults and not machine.can_give_up
    return (
        not machine.mapped
        and machine.alive
        and machine.place is Place.RUN
        and not (stays_out and scenario.gives_up)
    )


def attach(world: World, x: int) -> None:
    """It comes back to the segment that it has, or finds one, which its peers are to hear."""
    machine = world.machines[x]._replace(mapped=True)
    if not machine.holds:
        machine = machine._replace(holds=True, home=machine.host)
        is_silent = world.breaks(Fault.ONE_HOME) and machine.nr_homes > 0
        if world.breaks(Fault.ONE_HOME):
            machine = machine._replace(nr_homes=machine.nr_homes + 1)
        for y in PEERS[x]:
            if not is_silent and not world.breaks(Fault.UNTOLD_HOME):
                world.change(x, y, is_home_due=True)
    world.machines[x] = machine


# ---- what peers know of it ----


def can_say_home(state: State, scenario: Scenario, x: int, y: int) -> bool:
    stream = state.streams[x * NR + y]
    may_send = stream.way not in {Way.PAUSED, Way.ENDED} or Fault.LATE_HOME in scenario.faults
    return stream.is_home_due and may_send and is_up(state, x, y) and runs(state, x)


def say_home(world: World, x: int, y: int) -> None:
    world.change(x, y, is_home_due=False)
    world.put_on_wire(x, y, Home(world.machines[x].home))


def on_home(world: World, x: int, y: int, home: Home) -> None:
    """X says to Y where it is."""
    world.change(x, y, home=home.host)


def _may_call(state: State, x: int, y: int) -> bool:
    """X looks for Y where Y is, and has said to Y where X is itself."""
    out, back = state.streams[x * NR + y], state.streams[y * NR + x]
    return back.home == state.machines[y].home and not out.is_home_due and not out.is_refused


def see_each_other(state: State, x: int, y: int) -> bool:
    """X may call Y in memory, and Y takes the call: X is where Y believes it to be."""
    return _may_call(state, x, y) and state.streams[x * NR + y].home == state.machines[x].home


def can_call_in_vain(state: State, scenario: Scenario, x: int, y: int) -> bool:
    """Without the fault this changes nothing: X calls again."""
    mine, theirs = state.machines[x], state.machines[y]
    return (
        Fault.FINAL_REFUSAL in scenario.faults
        and state.streams[x * NR + y].way is Way.NETWORK
        and state.streams[x * NR + y].home != mine.home
        and mine.home == theirs.home
        and mine.mapped
        and theirs.mapped
        and runs(state, x)
        and runs(state, y)
        and is_quiet(state, x, y)
        and _may_call(state, x, y)
    )


def call_in_vain(world: World, x: int, y: int) -> None:
    world.change(x, y, is_refused=True)
