# SPDX-License-Identifier: Apache-2.0
"""Attacks by slots, windows and the header of a part."""

import itertools
import os
import random
import struct
import time
from functools import partial

from tests.system.faults.segment_machine import (
    FREE,
    FROZEN,
    GENERATION_AT,
    GONE,
    HEARTBEAT,
    INIT,
    LANE_SIZE,
    LANES_OFF,
    NR_LANES,
    QUIESCE,
    RUN,
    SLOT,
    SLOTS_OFF,
    STATE_AT,
    WINDOW_SIZE,
    WORD,
    Endpoint,
    Machine,
    number,
)
from tests.system.faults.segment_play import (
    Turns,
    attack,
    calls,
    calls_with,
)


@attack
def generation_jumps(m: Machine) -> Turns:
    """The generations of slots and part change during exchanges."""
    maker = calls(m)
    while True:
        call = next(maker)
        at = m.slot_at(random.randrange(m.nr_slots))
        if random.random() < 0.05:
            m.set(at, number() << 8 & WORD | RUN)
            m.set(GENERATION_AT, number())
            m.set(GENERATION_AT, m.generation)
            yield 1
        yield call is not None


@attack
def heartbeats_that_stop(m: Machine) -> Turns:
    """Endpoints whose heartbeat stops after the exchange."""
    for call in calls(m):
        if call:
            m.silent.add(call.me.slot)
        yield call is not None


@attack
def heartbeats_that_jump(m: Machine) -> Turns:
    """Heartbeats that jump ahead, go back and overflow."""
    maker = calls(m)
    while True:
        next(maker)
        for slot in m.windows:
            m.set(m.slot_at(slot) + HEARTBEAT, random.choice((0, WORD, random.getrandbits(64))))
        yield 1


@attack
def states_that_do_not_exist(m: Machine) -> Turns:
    """States of slots and part that do not exist, or of a machine that is to leave and stays."""
    maker = calls(m)
    while True:
        next(maker)
        for slot in range(m.nr_slots):
            state = random.choice((FREE, INIT, RUN, RUN, QUIESCE, FROZEN, GONE, 6, 255))
            at = m.slot_at(slot)
            m.set(at, m.get(at) & ~0xFF | state)
        state = random.choice((FREE, INIT, RUN, QUIESCE, FROZEN, GONE, 77, WORD >> 32))
        struct.pack_into("<I", m.own, STATE_AT, state)
        m.knock()
        yield m.nr_slots


@attack
def slots_freed_and_claimed_again(m: Machine) -> Turns:
    """Every slot is claimed and freed all the time, with one generation or with many."""
    generation = 1
    while True:
        for slot in range(m.nr_slots):
            m.claim(slot, os.urandom(6), generation + random.randrange(2))
        yield m.nr_slots
        for slot in range(m.nr_slots):
            m.set(m.slot_at(slot), generation << 8 | random.choice((FREE, GONE)))
        m.knock()
        generation += 1
        yield m.nr_slots


def _point_to(m: Machine, place: tuple[int, int], me: Endpoint) -> None:
    SLOT.pack_into(m.own, m.slot_at(me.slot), me.generation << 8 | RUN, *place, me.id)


@attack
def windows_outside_the_part(m: Machine) -> Turns:
    """Slots whose windows lie outside their part, in its table, or at no boundary."""
    places = (
        (0, WINDOW_SIZE),
        (m.part_size, WINDOW_SIZE),
        (m.part_size - 65536, WINDOW_SIZE),
        (WORD & ~0xFFFF, 65536),
        (m.space_off, WORD),
        (m.space_off, 0),
        (m.space_off + 64, WINDOW_SIZE),
        (m.space_off, 100),
        (WORD - 65535 - m.part_size, WINDOW_SIZE),
    )
    for place in itertools.cycle(places):
        change = partial(_point_to, m, place)
        for _ in calls_with(m, change):
            yield 1


def _write_header(m: Machine, changes: dict[str, int], me: Endpoint) -> None:
    m.window(me.window_off, me.id, **changes)


@attack
def headers_of_windows_that_lie(m: Machine) -> Turns:
    """Windows whose headers name sizes and places that do not fit."""
    wrong = (
        {"magic": 0},
        {"version": 9},
        {"features": 1},
        {"size": WORD},
        {"size": WINDOW_SIZE + 65536},
        {"nr_lanes": 0},
        {"nr_lanes": 4097},
        {"nr_lanes": 4096},
        {"ring_slots": 17},
        {"ring_slots": 4096},
        {"chunk_size": 1},
        {"nr_chunks": (1 << 32) - 1},
        {"lanes_off": 0},
        {"lanes_off": (1 << 32) - 64},
        {"rings_off": 193},
        {"pool_off": WORD - 63},
        {"regions_off": 64},
        {"nr_regions": 65536},
    )
    for changes in itertools.cycle(wrong):
        yield from calls_with(m, partial(_write_header, m, changes))


@attack
def windows_that_change_in_use(m: Machine) -> Turns:
    """Windows whose header, lanes and state change after the exchange."""
    for call in calls(m):
        if call:
            off = m.windows[call.me.slot]
            for _ in range(20):
                m.own[off : off + 192] = os.urandom(192)
                at = off + LANES_OFF
                m.own[at : at + NR_LANES * LANE_SIZE] = os.urandom(NR_LANES * LANE_SIZE)
                yield 1
        yield call is not None


@attack
def header_of_the_part_changes(m: Machine) -> Turns:
    """Magic number, version, geometry and number of the part change in use."""
    wrong = (
        {"magic": 0},
        {"version": 2},
        {"features": 2},
        {"index": 0},
        {"nr_slots": 0},
        {"nr_slots": 1024, "nr_cells": 256},
        {"nr_slots": 1024, "nr_cells": 1},
        {"slots_off": 0},
        {"cells_off": (1 << 32) - 64},
        {"space_off": 1 << 31},
        {"vcpu_numa": 1 << 30},
        {"vcpu_numa": -(1 << 31)},
    )
    maker, cycle = calls(m), itertools.cycle(wrong)
    while True:
        next(maker)
        m.header(**next(cycle), generation=number())
        m.knock()
        yield 1
        m.header()


@attack
def random_part(m: Machine) -> Turns:
    """The whole part is random, every ten milliseconds."""
    noise = os.urandom(m.part_size + 65536)
    for _ in itertools.count():
        off = random.randrange(65536)
        m.own[0 : m.part_size] = noise[off : off + m.part_size]
        yield 1
        time.sleep(0.01)


@attack
def nearly_right_part(m: Machine) -> Turns:
    """A sound table, and everything else random."""
    maker = calls(m)
    noise = os.urandom(1 << 20)
    while True:
        next(maker)
        off = m.space_off + random.randrange((m.part_size - m.space_off) >> 16 << 16)
        size = min(65536, m.part_size - off)
        m.own[off : off + size] = noise[:size]
        at = SLOTS_OFF + random.randrange(2048) // 8 * 8
        m.set(at, random.getrandbits(64))
        yield 1


@attack
def part_of_zeros(m: Machine) -> Turns:
    """The whole part becomes zero, and sound again."""
    maker = calls(m)
    while True:
        for _ in range(100):
            next(maker)
            yield 0
        m.own[0 : m.part_size] = bytes(m.part_size)
        yield 1
        m.make()
        maker = calls(m)


@attack
def copy_of_the_part_of_a_victim(m: Machine) -> Turns:
    """The own part is a copy of a victim's part, with the own number or with the victim's."""
    while True:
        for part in (0, 1):
            start = m.start_of(part)
            m.own[0 : m.part_size] = m.all[start : start + m.part_size]
            struct.pack_into("<I", m.own, 24, random.choice((part, m.part)))
            m.knock()
            yield 1
            for _ in range(20):
                m.knock()
                yield 0
