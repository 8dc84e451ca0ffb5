# SPDX-License-Identifier: Apache-2.0
"""The steps of the model of a move: when each may be taken, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.python.moving_home import (
    attach,
    call_in_vain,
    can_attach,
    can_call_in_vain,
    can_decide,
    can_give_up_segment,
    can_say_home,
    can_take_description,
    decide,
    give_up_segment,
    has_given_up,
    on_home,
    say_home,
    see_each_other,
    take_description,
)
from tests.python.moving_model import (
    NAMES,
    NR,
    PEERS,
    RING,
    BrokenError,
    Fault,
    Home,
    Move,
    Moved,
    Packet,
    Pause,
    Scenario,
    State,
    World,
    is_quiet,
    is_up,
    link_of,
    runs,
)
from tests.python.moving_tables import Event, Order, Place, Way

Make = Callable[[], State]


# ---- packets ----


def can_send(state: State, scenario: Scenario, x: int, y: int) -> bool:
    stream = state.streams[x * NR + y]
    if not runs(state, x) or not (
        stream.answers or stream.programmed < len(scenario.programs.get((x, y), ()))
    ):
        return False
    if stream.way is Way.MEMORY:
        return len(stream.ring) < RING
    impatient = stream.way is Way.COUNTING and Fault.IMPATIENT in scenario.faults
    if stream.asked and Fault.DEAF_PAUSE in scenario.faults and stream.way is Way.PAUSED:
        return is_up(state, x, y)
    return (stream.way in {Way.NETWORK, Way.JOINING} or impatient) and is_up(state, x, y)


def send(world: World, x: int, y: int) -> None:
    stream = world.stream(x, y)
    if stream.answers:
        packet = Packet(stream.sent, stream.answers[0])
        world.change(x, y, answers=stream.answers[1:], sent=stream.sent + 1)
    else:
        packet = Packet(stream.sent, world.scenario.programs[x, y][stream.programmed])
        world.change(x, y, programmed=stream.programmed + 1, sent=stream.sent + 1)
    if stream.way is not Way.MEMORY:
        world.put_on_wire(x, y, packet)
        return
    machine = world.machines[x]
    if not machine.mapped or machine.place in {Place.FROZEN, Place.PAUSING, Place.AWAY}:
        raise BrokenError(f"{NAMES[x]} writes into its window after FROZEN was acknowledged")
    world.change(x, y, ring=(*stream.ring, packet))
    if world.breaks(Fault.STALE_GENERATION):
        world.change(x, y, past=(*stream.past, packet))


def can_take_near(state: State, _: Scenario, x: int, y: int) -> bool:
    stream = state.streams[x * NR + y]
    reads = stream.from_memory and stream.is_open and bool(stream.ring)
    return reads and runs(state, y) and state.machines[y].mapped


def take_near(world: World, x: int, y: int) -> None:
    stream = world.stream(x, y)
    world.change(x, y, ring=stream.ring[1:])
    world.deliver(x, y, stream.ring[0])


def can_take_far(state: State, _: Scenario, x: int, y: int) -> bool:
    return bool(state.streams[x * NR + y].wire) and runs(state, y) and is_up(state, x, y)


def take_far(world: World, x: int, y: int) -> None:
    stream = world.stream(x, y)
    item = stream.wire[0]
    world.change(x, y, wire=stream.wire[1:])
    if isinstance(item, Packet):
        world.deliver(x, y, item)
        if world.breaks(Fault.DOUBLE_REPLAY):
            world.change(x, y, last=item)
    elif isinstance(item, Move):
        on_move(world, x, y, item)
    elif isinstance(item, Moved):
        on_moved(world, x, y, item)
    elif isinstance(item, Home):
        on_home(world, x, y, item)
    else:
        on_pause(world, x, y, item)


def on_move(world: World, x: int, y: int, move: Move) -> None:
    """X says to Y where its packets go from now on."""
    stream = world.stream(x, y)
    # A session whose end was reported already: X has heard that, or will.
    if not stream.is_open or move.session != stream.session:
        return
    if move.to_memory:
        world.change(x, y, from_memory=True)
        return
    if world.breaks(Fault.UNCOUNTED):
        world.change(x, y, ring=())
    else:
        world.take_rest(x, y)
    world.report(x, y)


def on_moved(world: World, x: int, y: int, moved: Moved) -> None:
    """X says to Y that it reads the window of Y no more. What it left is replayed."""
    stream = world.stream(y, x)
    stale = moved.session != stream.session or stream.way in {Way.NETWORK, Way.PAUSED}
    if stale or (world.breaks(Fault.OLD_OWNER) and stream.way is Way.MEMORY):
        return
    world.on_way(y, x, Event.COUNTED)
    if stream.is_gone and stream.ring:
        fail(world, x, y)
        return
    if not world.breaks(Fault.NO_REPLAY):
        world.put_on_wire(y, x, *stream.ring)
    if world.breaks(Fault.LOST_ANSWERS):
        world.change(y, x, answers=())
    world.change(y, x, ring=(), is_gone=False)


def on_pause(world: World, x: int, y: int, pause: Pause) -> None:
    """X is about to end its network, or answers that to Y."""
    if pause.is_answer:
        world.change(y, x, answered=True)
        return
    if world.stream(y, x).way is not Way.PAUSED:
        world.on_way(y, x, Event.PAUSE)
    world.put_on_wire(y, x, Pause(is_answer=True))
    if world.breaks(Fault.DEAF_PAUSE):
        world.change(y, x, asked=True)


def fail(world: World, x: int, y: int) -> None:
    """Bytes are lost: the pair ends with an error on both sides, or the protocol is wrong."""
    if not world.scenario.may_fail:
        raise BrokenError(f"packets between {NAMES[x]} and {NAMES[y]} are lost")
    world.end(x, y, "error")


# ---- from and to memory ----


def can_meet(state: State, scenario: Scenario, x: int, y: int) -> bool:
    stream, mine, theirs = state.streams[x * NR + y], state.machines[x], state.machines[y]
    return (
        stream.way is Way.NETWORK
        and not stream.is_open
        and mine.host == theirs.host
        and mine.mapped
        and theirs.mapped
        and mine.alive
        and theirs.alive
        and is_quiet(state, x, y)
        and (not scenario.homes or see_each_other(state, x, y))
    )


def meet(world: World, x: int, y: int) -> None:
    world.on_way(x, y, Event.MET)
    stream = world.stream(x, y)
    world.change(x, y, session=stream.session + 1, is_open=True, ring=(), is_gone=False)
    if world.breaks(Fault.STALE_GENERATION):
        world.change(x, y, ring=stream.past)
    if world.breaks(Fault.UNDRAINED_NETWORK):
        world.change(x, y, from_memory=True)


def can_join(state: State, _: Scenario, x: int, y: int) -> bool:
    return state.streams[x * NR + y].way is Way.JOINING and is_up(state, x, y) and runs(state, x)


def join(world: World, x: int, y: int) -> None:
    world.put_on_wire(x, y, Move(world.stream(x, y).session, to_memory=True))
    world.on_way(x, y, Event.SAID)


def can_leave(state: State, _: Scenario, x: int, y: int) -> bool:
    return (
        state.streams[x * NR + y].way in {Way.MEMORY, Way.JOINING}
        and runs(state, x)
        and any(state.machines[z].place is Place.QUIESCE for z in (x, y))
    )


def leave(world: World, x: int, y: int) -> None:
    was_joining = world.stream(x, y).way is Way.JOINING
    world.on_way(x, y, Event.QUIESCED)
    # The words of the lane say so to the reader.
    if was_joining:
        world.change(x, y, is_open=False)


def can_say(state: State, _: Scenario, x: int, y: int) -> bool:
    return state.streams[x * NR + y].way is Way.LEAVING and is_up(state, x, y) and runs(state, x)


def say(world: World, x: int, y: int) -> None:
    world.put_on_wire(x, y, Move(world.stream(x, y).session, to_memory=False))
    world.on_way(x, y, Event.SAID)


def can_end_lease(state: State, _: Scenario, x: int, y: int) -> bool:
    """X stops to believe in the machine of Y."""
    out, back = state.streams[x * NR + y], state.streams[y * NR + x]
    stopped = state.machines[y].place is Place.STOPPED
    broken = not out.is_open and out.way in {Way.MEMORY, Way.JOINING}
    reads = stopped and back.is_open and back.from_memory
    writes = (stopped and out.way in {Way.MEMORY, Way.JOINING}) or broken
    return (reads or writes) and runs(state, x) and state.machines[x].mapped


def end_lease(world: World, x: int, y: int) -> None:
    back = world.stream(y, x)
    if world.stream(x, y).way in {Way.MEMORY, Way.JOINING}:
        world.on_way(x, y, Event.LOST)
    if world.machines[y].place is Place.STOPPED and back.is_open and back.from_memory:
        # The window of the other machine is a part of this host's file: it can be read.
        if not world.breaks(Fault.HASTY_LEASE):
            world.take_rest(y, x)
        world.report(y, x)


def has_settled(state: State, scenario: Scenario, x: int) -> bool:
    if Fault.EARLY_LEAVE in scenario.faults:
        return True
    if Fault.FORGOTTEN_JOINER in scenario.faults:
        outs = (state.streams[x * NR + y] for y in PEERS[x])
        ins = (state.streams[y * NR + x] for y in PEERS[x])
        return all(s.way in {Way.NETWORK, Way.PAUSED, Way.ENDED} for s in outs) and not any(
            s.from_memory for s in ins
        )
    return all(
        state.streams[x * NR + y].way in {Way.NETWORK, Way.PAUSED, Way.ENDED}
        and not state.streams[y * NR + x].is_open
        for y in PEERS[x]
    )


def can_unmap(state: State, scenario: Scenario, x: int) -> bool:
    machine = state.machines[x]
    return (
        machine.mapped
        and machine.place is Place.QUIESCE
        and machine.alive
        and has_settled(state, scenario, x)
    )


def unmap(world: World, x: int) -> None:
    world.machines[x] = world.machines[x]._replace(mapped=False)


# ---- the network ----


def can_ask_pause(state: State, _: Scenario, x: int, y: int) -> bool:
    stream = state.streams[x * NR + y]
    return (
        state.machines[x].place is Place.PAUSING
        and state.machines[x].alive
        and is_up(state, x, y)
        and not stream.asked
        and stream.way in {Way.NETWORK, Way.PAUSED}
    )


def ask_pause(world: World, x: int, y: int) -> None:
    if world.stream(x, y).way is Way.NETWORK:
        world.on_way(x, y, Event.PAUSE)
    world.put_on_wire(x, y, Pause(is_answer=False))
    world.change(x, y, asked=True)


def cut(world: World, x: int) -> None:
    for y in PEERS[x]:
        if world.links[link_of(x, y)] != "up":
            continue
        world.links[link_of(x, y)] = "cut"
        for a, b in ((x, y), (y, x)):
            stream = world.stream(a, b)
            numbered = tuple(item for item in stream.wire if not isinstance(item, Pause))
            keeps = world.scenario.keeps
            world.change(
                a,
                b,
                wire=(),
                kept=numbered if keeps else (),
                is_lost=bool(numbered) and not keeps,
                asked=False,
                answered=False,
            )


def can_open(state: State, scenario: Scenario, x: int, y: int) -> bool:
    both_new = scenario.new_addresses and all(state.machines[z].is_stranger for z in (x, y))
    return (
        x < y
        and state.links[link_of(x, y)] == "cut"
        and runs(state, x)
        and runs(state, y)
        and not both_new
    )


def open_again(world: World, x: int, y: int) -> None:
    if world.stream(x, y).is_lost or world.stream(y, x).is_lost:
        fail(world, x, y)
        return
    world.links[link_of(x, y)] = "up"
    for a, b in ((x, y), (y, x)):
        stream = world.stream(a, b)
        again = (stream.last,) if stream.last and stream.kept else ()
        world.change(a, b, wire=(*again, *stream.kept, *stream.owed), kept=(), owed=())
        if stream.way is Way.PAUSED:
            world.on_way(a, b, Event.RESUMED)


# ---- the controller, the guest unit, and fate ----


def can_begin(state: State, _: Scenario, x: int) -> bool:
    machine = state.machines[x]
    return machine.place is Place.RUN and machine.mapped and bool(machine.moves) and machine.alive


def begin(world: World, x: int) -> None:
    world.order(x, Order.ASK)


def can_acknowledge(state: State, scenario: Scenario, x: int) -> bool:
    machine = state.machines[x]
    left = not machine.mapped or Fault.EARLY_ACKNOWLEDGE in scenario.faults
    return machine.place is Place.QUIESCE and left and machine.alive


def acknowledge(world: World, x: int) -> None:
    world.order(x, Order.ACKNOWLEDGE)
    if any(world.stream(x, y).ring for y in PEERS[x]) and not world.breaks(Fault.EARLY_ACKNOWLEDGE):
        raise BrokenError(f"FROZEN, and a packet in the window of {NAMES[x]} was not taken")


def can_begin_pause(state: State, scenario: Scenario, x: int) -> bool:
    machine = state.machines[x]
    return machine.place is Place.FROZEN and machine.alive and has_given_up(state, scenario, x)


def begin_pause(world: World, x: int) -> None:
    world.order(x, Order.PAUSE)


def can_cut(state: State, scenario: Scenario, x: int) -> bool:
    return (
        state.machines[x].place is Place.PAUSING
        and state.machines[x].alive
        and all(
            not is_up(state, x, y)
            or state.streams[x * NR + y].answered
            or (Fault.UNANSWERED_PAUSE in scenario.faults and state.streams[x * NR + y].asked)
            for y in PEERS[x]
        )
    )


def cut_in_order(world: World, x: int) -> None:
    if world.scenario.homes and world.machines[x].holds:
        raise BrokenError(f"{NAMES[x]} has a segment mapped whose device goes")
    cut(world, x)
    world.order(x, Order.CUT)


def arrive(world: World, x: int, host: int) -> None:
    machine = world.machines[x]
    was_stopped = machine.place is Place.STOPPED
    is_home = host == machine.host
    world.order(x, Order.ARRIVE, host=host, moves=machine.moves[1:], is_stranger=not is_home)
    world.machines[x] = world.machines[x]._replace(is_described=True)
    if was_stopped and not is_home:
        lose_memory(world, x)


def lose_memory(world: World, x: int) -> None:
    """The machine runs again on another host, and its segment is another one."""
    world.machines[x] = world.machines[x]._replace(mapped=False, holds=not world.scenario.homes)
    for y in PEERS[x]:
        out, back = world.stream(x, y), world.stream(y, x)
        if out.way in {Way.MEMORY, Way.JOINING}:
            world.on_way(x, y, Event.LOST)
        if out.is_open or out.ring:
            world.change(x, y, is_gone=True)
        if back.is_open:
            world.report(y, x)


def can_give_up(state: State, _: Scenario, x: int) -> bool:
    machine = state.machines[x]
    return machine.can_give_up and machine.place in {Place.QUIESCE, Place.FROZEN} and machine.alive


def give_up(world: World, x: int) -> None:
    moves = world.machines[x].moves[1:]
    world.order(x, Order.GIVE_UP, can_give_up=False, moves=moves, is_described=True)


def can_stop(state: State, _: Scenario, x: int) -> bool:
    machine = state.machines[x]
    return (
        state.stops > 0
        and machine.alive
        and bool(machine.moves)
        and machine.place in {Place.RUN, Place.QUIESCE}
    )


def stop(world: World, x: int) -> None:
    world.stops -= 1
    world.order(x, Order.STOP)
    cut(world, x)


def can_die(state: State, scenario: Scenario, x: int) -> bool:
    return state.deaths > 0 and state.machines[x].alive and bool(scenario.moves[x])


def die(world: World, x: int) -> None:
    world.deaths -= 1
    world.machines[x] = world.machines[x]._replace(alive=False, moves=())


def can_mourn(state: State, _: Scenario, x: int, y: int) -> bool:
    dead = not state.machines[y].alive and state.machines[x].alive
    return dead and runs(state, x) and state.links[link_of(x, y)] not in {"ended", "error"}


def mourn(world: World, x: int, y: int) -> None:
    """X learns, by the lease or by the lifeline, that Y is dead."""
    world.end(x, y, "ended")


def can_post(state: State, _: Scenario, x: int) -> bool:
    return x == 1 and bool(state.inbox.unposted) and runs(state, x)


def post(world: World, _: int) -> None:
    inbox = world.inbox
    named, rest = inbox.unposted[0], inbox.unposted[1:]
    for at, (source, _number) in enumerate(inbox.unexpected):
        if named in {None, source}:
            unexpected = inbox.unexpected[:at] + inbox.unexpected[at + 1 :]
            world.inbox = inbox._replace(unposted=rest, unexpected=unexpected)
            return
    world.inbox = inbox._replace(unposted=rest, posted=(*inbox.posted, named))


ON_PAIR: tuple[
    tuple[str, Callable[[State, Scenario, int, int], bool], Callable[[World, int, int], None]], ...
] = (
    ("{x} sends a packet to {y}", can_send, send),
    ("{y} takes a packet of {x} from memory", can_take_near, take_near),
    ("{y} takes from the network what {x} sent", can_take_far, take_far),
    ("{x} makes a session in memory to {y}", can_meet, meet),
    ("{x} calls {y} in memory, which does not know its home", can_call_in_vain, call_in_vain),
    ("{x} says to {y} that it goes on in memory", can_join, join),
    ("{x} sees QUIESCE and writes no more for {y}", can_leave, leave),
    ("{x} says to {y} that it left the memory", can_say, say),
    ("{x} ends the lease of {y}", can_end_lease, end_lease),
    ("{x} says its home to {y}", can_say_home, say_home),
    ("{x} asks {y} to pause the network", can_ask_pause, ask_pause),
    ("{x} and {y} open the network again", can_open, open_again),
    ("{x} learns that {y} is dead", can_mourn, mourn),
)
ON_ONE: tuple[
    tuple[str, Callable[[State, Scenario, int], bool], Callable[[World, int], None]], ...
] = (
    ("{x} leaves its mapping", can_unmap, unmap),
    ("{x} attaches to the segment of its host", can_attach, attach),
    ("{x} sees that its segment has no description", can_decide, decide),
    ("{x} gives its segment up", can_give_up_segment, give_up_segment),
    ("the guest unit of {x} sets QUIESCE", can_begin, begin),
    ("the guest unit of {x} sets FROZEN", can_acknowledge, acknowledge),
    ("the guest unit of {x} takes the description away", can_take_description, take_description),
    ("the guest unit of {x} asks to pause the network", can_begin_pause, begin_pause),
    ("the network of {x} is cut in order", can_cut, cut_in_order),
    ("the move of {x} is given up", can_give_up, give_up),
    ("the machine of {x} is stopped without a question", can_stop, stop),
    ("the machine of {x} dies", can_die, die),
    ("{x} posts its next receive", can_post, post),
)


def steps(state: State, scenario: Scenario) -> Iterator[tuple[str, Make]]:
    """Every step that may be taken in a state, in words, and what makes it."""

    def made(effect: Callable[..., None], *places: int) -> Make:
        def make() -> State:
            world = World(state, scenario)
            effect(world, *places)
            return world.state()

        return make

    for x in range(NR):
        for y in PEERS[x]:
            for words, guard, effect in ON_PAIR:
                if guard(state, scenario, x, y):
                    yield words.format(x=NAMES[x], y=NAMES[y]), made(effect, x, y)
        for words, own_guard, own_effect in ON_ONE:
            if own_guard(state, scenario, x):
                yield words.format(x=NAMES[x]), made(own_effect, x)
        for host, where in _goals(state, scenario, x):
            yield f"the machine of {NAMES[x]} runs again, {where}", made(arrive, x, host)


def _goals(state: State, scenario: Scenario, x: int) -> list[tuple[int, str]]:
    machine = state.machines[x]
    if machine.place not in {Place.AWAY, Place.STOPPED} or not machine.alive:
        return []
    goals = [(machine.moves[0], "at its destination")]
    if scenario.gives_up or machine.place is Place.STOPPED:
        goals.append((machine.host, "at its source"))
    return goals


def _wait(state: State, scenario: Scenario, x: int, y: int) -> str:
    """What X waits for in vain between itself and Y; "" if it waits for nothing."""
    stream, link = state.streams[x * NR + y], state.links[link_of(x, y)]
    if not state.machines[y].alive or link == "error":
        ended = stream.way is Way.ENDED
        return "" if ended else f"{NAMES[x]} waits for {NAMES[y]} forever"
    if stream.answers or stream.programmed < len(scenario.programs.get((x, y), ())):
        return f"{NAMES[x]} never sends what it has for {NAMES[y]}"
    if stream.taken != stream.sent:
        return f"a packet from {NAMES[x]} never arrives at {NAMES[y]}"
    near = state.machines[x].host == state.machines[y].host
    best = Way.MEMORY if near else Way.NETWORK
    return "" if stream.way is best else f"{NAMES[x]} never finds its best way to {NAMES[y]}"


def unfinished(state: State, scenario: Scenario) -> str:
    """Why a state in which no step is left is not the end that it should be; "" if it is."""
    living = [x for x in range(NR) if state.machines[x].alive]
    for x in living:
        machine = state.machines[x]
        if machine.place is not Place.RUN or machine.moves or not machine.mapped:
            return f"the move of {NAMES[x]} does not end"
    for x in living:
        for y in PEERS[x]:
            if problem := _wait(state, scenario, x, y):
                return problem
    if len(living) < NR or "error" in state.links:
        return ""
    inbox = state.inbox
    if inbox.unposted or inbox.posted or inbox.unexpected:
        return "a receive of B never ends"
    wanted = sum(kinds.count("atomic") for kinds in scenario.programs.values())
    if not inbox.added == inbox.results == wanted:
        return f"{wanted} atomics, {inbox.added} done, {inbox.results} known"
    return ""
