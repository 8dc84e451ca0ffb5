# SPDX-License-Identifier: Apache-2.0
"""Attacks after a whole exchange, in the own name."""

import itertools
import os
import random

from tests.system.faults.hello import NOBODYS
from tests.system.faults.segment_machine import (
    CHUNK,
    GO,
    GONE,
    HELLO,
    RING_SLOTS,
    WORD,
    Machine,
    number,
)
from tests.system.faults.segment_play import (
    READ,
    Turns,
    answered,
    attack,
    calls,
)


@attack
def hostile_slots(m: Machine) -> Turns:
    """Slots of a ring with lengths, kinds and places in the pool that no correct sender writes."""
    wrong = (
        {"length": 65535},
        {"length": 41},
        {"length": 41 + 56 * RING_SLOTS},
        {"kind": 0},
        {"kind": 3},
        {"kind": CHUNK, "index": WORD >> 32, "chunk": 8},
        {"kind": CHUNK, "index": 15, "offset": 4095, "chunk": 2},
        {"kind": CHUNK, "offset": WORD >> 32, "chunk": WORD >> 32},
        {"kind": CHUNK, "chunk": 65536},
        {"op": 0},
        {"op": 63},
    )
    cycle = itertools.cycle(wrong)
    for call in calls(m):
        if call:
            call.publish(call.start, **next(cycle))
        yield call is not None


@attack
def sequence_jumps_of_a_ring(m: Machine) -> Turns:
    """Slots of other laps, of the future and of earlier streams."""
    for call in calls(m):
        if call:
            for position in range(call.start, call.start + RING_SLOTS):
                jump = random.choice((0, RING_SLOTS, -RING_SLOTS, 1, 1 << 31, WORD))
                call.publish(position, sequence=position + 1 + jump, flags=1, tag=NOBODYS)
        yield call is not None


@attack
def random_packets(m: Machine) -> Turns:
    """Sound slots whose packets are random: any operation, any number, any size."""
    for call in calls(m):
        if call:
            for position in range(call.start, call.start + 200):
                length = random.choice((0, 8, 16, 24, 40))
                call.payload(position, os.urandom(40))
                call.publish(
                    position,
                    op=random.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)),
                    flags=random.getrandbits(8),
                    length=length,
                    tag=random.choice((0, 1, number())),
                    data=random.choice((0, 1, number())),
                )
                if position % RING_SLOTS == 0:
                    yield 1
        yield 0


@attack
def messages_that_nobody_expects(m: Machine) -> Turns:
    """Messages in the own name with random tags, as many as are taken."""
    for call in calls(m):
        if call:
            position = call.start
            for _ in range(200):
                taken = call.consumed()
                while position < taken + RING_SLOTS and position - taken < RING_SLOTS:
                    call.publish(position, flags=1, length=40, tag=number() | 1 << 62)
                    position += 1
                    if taken > position:
                        break
                yield 1
        yield 0


@attack
def credits_that_run_ahead_or_back(m: Machine) -> Turns:
    """Counts of what was read that run ahead, go back or overflow."""
    for pair in answered(m, GO):
        if pair:
            call, back = pair
            at = back.lane_at()
            for position in range(call.start + 1, call.start + 9):
                call.publish(position, op=READ, length=24, tag=1)
                m.set(at, random.choice((0, WORD, 1 << 40, number())))
                m.set(at + 8, random.choice((1, WORD, number())))
                yield 1
        yield pair is not None


@attack
def refuses_credits(m: Machine) -> Turns:
    """A reader that never returns a slot, although it asks for more and more."""
    for pair in answered(m, GO):
        if pair:
            call, back = pair
            m.set(back.lane_at(), 0)
            for position in range(call.start + 1, call.start + 300):
                call.publish(position, op=READ, length=24, tag=position)
                if position % 8 == 0:
                    yield 1
        yield pair is not None


@attack
def silent_when_called(m: Machine) -> Turns:
    """Requests that the victim must answer, and no answer to its call."""
    for pair in answered(m, HELLO):
        yield pair is not None


@attack
def frozen_in_the_middle(m: Machine) -> Turns:
    """A machine that stops with half a packet in its ring."""
    for call in calls(m):
        if call:
            call.publish(call.start, flags=1, length=1000)
            call.publish(call.start + 1, kind=3)
        yield call is not None


@attack
def dies_after_the_exchange(m: Machine) -> Turns:
    """Endpoints that die without a word after a whole exchange."""
    for call in calls(m):
        if call:
            for _ in range(30):
                yield 0
            m.set(m.slot_at(call.me.slot), call.me.generation << 8 | GONE)
            m.knock()
        yield call is not None
