# SPDX-License-Identifier: Apache-2.0
"""The table of attacks through a segment, and what many of them share."""

import itertools
import os
import random
import struct
import time
from collections.abc import Callable, Iterator

from tests.system.faults.segment_calls import (
    Answer,
    Call,
    greeting,
    letter,
)
from tests.system.faults.segment_machine import (
    BYE,
    CALLER,
    GO,
    HELLO,
    NR_LANES,
    SLOT,
    Endpoint,
    Machine,
    number,
)

Turns = Iterator[int]
Attack = Callable[[Machine], Turns]
ATTACKS: dict[str, Attack] = {}
BUSY_S = 0.002
CROWD = 96
READ = 8


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


def busy() -> Iterator[None]:
    """Go on without a pause for a moment."""
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        yield


def newcomer(m: Machine, slot: int = 0) -> tuple[Endpoint, bytes]:
    """Claim a slot with a new identity of the own machine."""
    ident = os.urandom(6)
    return m.claim(slot, ident), ident + m.place()


def calls(m: Machine, last: int = GO) -> Iterator[Call | None]:
    """Make one exchange after the other, each with a new endpoint. None: nothing came of it yet."""
    for slot in itertools.cycle(range(m.nr_slots)):
        known = m.learn()
        targets = [one for one in m.victims() if one.id in known]
        if not targets:
            yield None
            continue
        to = random.choice(targets)
        me, who = newcomer(m, slot)
        call = Call(m, me, who, to, known[to.id], last=last)
        while call.advance() and call.state < last:
            yield None
        if call.state >= last and call.state != BYE:
            yield call


def crowd(m: Machine, last: int) -> Iterator[list[Call]]:
    """Make exchanges up to the step LAST, many at once and each in a new name. Yields the new."""
    for slot in range(m.nr_slots):
        newcomer(m, slot)
    free = [(slot, lane) for lane in range(NR_LANES) for slot in range(m.nr_slots)]
    running: list[Call] = []
    random.shuffle(free)
    while True:
        known = m.learn()
        targets = [one for one in m.victims() if one.id in known]
        while targets and len(running) < CROWD:
            place = free.pop(0)
            free.append(place)
            to, me = random.choice(targets), end_of(m, place[0])
            who = me.id + m.place()
            running.append(Call(m, me, who, to, known[to.id], lane=place[1], last=last))
        alive = [call for call in running if call.advance()]
        done = [call for call in alive if call.state >= last]
        running = [call for call in alive if call.state < last]
        yield done


def end_of(m: Machine, slot: int) -> Endpoint:
    """The endpoint that an own slot shows."""
    control, off, size, ident = SLOT.unpack_from(m.own, m.slot_at(slot))
    return Endpoint(m.part, slot, m.generation, control >> 8, ident, off, size)


def answered(m: Machine, last: int) -> Iterator[tuple[Call, Answer] | None]:
    """Make victims call back: they have to answer a request for memory."""
    for call in calls(m):
        if not call:
            yield None
            continue
        back = Answer(m, call.me, call.who, call.to, call.victim, last=last)
        call.payload(call.start, struct.pack("<QQQ", 4096, 8, number()))
        call.publish(call.start, op=READ, length=24, tag=1)
        for _ in range(100):
            back.advance()
            if back.state >= last:
                break
            yield None
        if back.nr:
            yield call, back


def calls_with(m: Machine, change: Callable[[Endpoint], object]) -> Turns:
    """Greet each victim from an endpoint that CHANGE has made wrong."""
    known = m.learn()
    for slot, one in enumerate(m.victims()):
        if one.id in known:
            me, who = newcomer(m, slot)
            change(me)
            hello = greeting(HELLO, who, known[one.id])
            m.put(me.slot, one, letter(number(), CALLER, 1, 0, hello))
            yield 1
    yield 0
