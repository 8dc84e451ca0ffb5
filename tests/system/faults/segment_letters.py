# SPDX-License-Identifier: Apache-2.0
"""Attacks on mailboxes and exchanges."""

import itertools
import os
import random
import struct

from tests.system.faults.segment_calls import (
    Call,
    greeting,
    letter,
    step,
)
from tests.system.faults.segment_machine import (
    ACK,
    BYE,
    CALLER,
    CELL_BYTES,
    CELL_SIZE,
    GO,
    GONE,
    GREETING,
    HANGUP,
    HEAD,
    HELLO,
    KNOCK_AT,
    LETTER_MAGIC,
    MET,
    NR_LANES,
    POSTED,
    PROBE,
    RESET,
    RUN,
    SLOT,
    WELCOME,
    WINDOW_SIZE,
    WORD,
    WRITER_STEP,
    Endpoint,
    Machine,
    number,
)
from tests.system.faults.segment_play import (
    Turns,
    attack,
    busy,
    calls,
    crowd,
    newcomer,
)


@attack
def random_letters(m: Machine) -> Turns:
    """Letters of random bytes to every endpoint."""
    newcomer(m)
    while True:
        victims = m.victims()
        for one in victims:
            m.put(0, one, os.urandom(random.randrange(257)))
        yield len(victims)


@attack
def letters_of_wrong_length(m: Machine) -> Turns:
    """Cells and letters whose lengths lie."""
    newcomer(m)
    for length in itertools.cycle((0, 1, 23, 24, 257, 1 << 16, (1 << 32) - 1)):
        victims = m.victims()
        for one in victims:
            m.put(0, one, letter(number(), CALLER, 1, 0, bytes(200)), length=length)
            head = HEAD.pack(LETTER_MAGIC, CALLER, length & 0xFFFF, number(), 1, 0)
            m.put(0, one, head + bytes(100))
        yield 2 * len(victims)


@attack
def wrong_sequences(m: Machine) -> Turns:
    """Sequences of cells that repeat, jump ahead, go back or exceed what was posted."""
    newcomer(m)
    while True:
        victims = m.victims()
        for one in victims:
            sequence = random.choice((1, 2, WORD, WORD - 1, random.getrandbits(64), 1 << 63))
            m.put(0, one, letter(number(), CALLER, 1, 0, bytes(24)), cell=3, sequence=sequence)
            m.set(m.slot_at(0) + POSTED, random.choice((0, 1, sequence, sequence - 1, WORD)))
            m.knock()
        yield len(victims)


@attack
def letters_that_change_while_read(m: Machine) -> Turns:
    """A cell whose length, addressee and bytes change all the time."""
    newcomer(m)
    at = m.cells_off + CELL_SIZE
    while True:
        victims = m.victims() or [Endpoint(0, 0, 1, 1, b"", 0, 0)]
        done = 0
        for _ in busy():
            one = random.choice(victims)
            hello = greeting(HELLO, os.urandom(14), m.known.get(one.id, bytes(14)))
            m.put(0, one, letter(number(), CALLER, 1, 0, hello), cell=1)
            for _ in range(20):
                m.set(at + 32, random.choice((0, 24, 248, 256, 257, WORD)))
                m.set(at + 24, random.getrandbits(64))
                m.set(at + CELL_BYTES, random.getrandbits(64))
                m.set(at + CELL_BYTES + 16, random.getrandbits(64))
            done += 1
        yield done


@attack
def copies_of_the_letters_of_others(m: Machine) -> Turns:
    """Every letter that others exchange, again in the own mailbox, to the same addressee."""
    newcomer(m)
    while True:
        done = 0
        for one in m.victims():
            for head, data in m.letters(one):
                _, part_generation, generation, part, slot = struct.unpack_from("<QQQII", head)
                to = Endpoint(part, slot, part_generation, generation, b"", 0, 0)
                m.put(0, to, data)
                done += 1
        yield done


@attack
def letters_at_full_speed(m: Machine) -> Turns:
    """First letters of new connections to every endpoint, as fast as possible."""
    for slot in range(m.nr_slots):
        newcomer(m, slot)
    slots = itertools.cycle(range(m.nr_slots))
    while True:
        victims, done = m.victims(), 0
        for _ in busy():
            for one in victims:
                m.put(next(slots), one, letter(number(), CALLER, 1, 0, bytes(24)))
                done += 1
        yield done


@attack
def largest_mailbox(m: Machine) -> Turns:
    """As many slots and cells as fit, all of them full of letters, again and again."""
    m.make(nr_slots=m.part_size // (CELL_SIZE * 256) - 2, nr_cells=256)
    for slot in range(m.nr_slots):
        SLOT.pack_into(m.own, m.slot_at(slot), 1 << 8 | RUN, m.space_off, GREETING.size, bytes(6))
    sequence, cells = 0, m.nr_slots * m.nr_cells
    body = letter(1, CALLER, 1, 0, bytes(24)).ljust(256, b"\0")
    while True:
        victims = m.victims()
        for one in victims:
            # One copy of a whole mailbox for each slot: as fast as a machine can do it.
            numbers = range(sequence + 1, sequence + 1 + m.nr_cells)
            words = one.part_generation, one.generation, one.part, one.slot, HEAD.size + 24
            box = b"".join(struct.pack("<QQQIII28x", n, *words) + body for n in numbers)
            for slot in range(m.nr_slots):
                at = m.cells_off + slot * len(box)
                m.own[at : at + len(box)] = box
                m.set(m.slot_at(slot) + POSTED, sequence + m.nr_cells)
            m.knock()
            sequence += m.nr_cells
            yield cells
        yield 0


@attack
def unknown_kinds(m: Machine) -> Turns:
    """Letters with unknown flags, kinds and versions."""
    me, who = newcomer(m)
    while True:
        known, done = m.learn(), 0
        for one in m.victims():
            hello = greeting(random.choice((0, 7, WELCOME, 65535)), who, known.get(one.id, who))
            m.put(me.slot, one, letter(number(), random.getrandbits(16), 1, 0, hello))
            m.put(me.slot, one, letter(number(), CALLER, 1, 0, step(random.choice((0, 7, ACK)))))
            done += 2
        yield done


@attack
def hangups_in_the_name_of_others(m: Machine) -> Turns:
    """HANGUP, RESET and PROBE with the connection numbers of others."""
    newcomer(m)
    numbers: dict[int, None] = {}
    while True:
        victims = m.victims()
        for one in victims:
            for _, data in m.letters(one):
                numbers[HEAD.unpack_from(data)[3]] = None
        done = 0
        for one in victims:
            for nr in [*list(numbers)[-8:], number()]:
                for flags in (RESET, PROBE, RESET | CALLER, PROBE | CALLER):
                    m.put(0, one, letter(nr, flags, 0, 1))
                m.put(0, one, letter(nr, HANGUP, random.randrange(1, 5), 1))
                m.put(0, one, letter(nr, HANGUP | CALLER, random.randrange(1, 5), 1))
                done += 6
        yield done


@attack
def knocks_without_letters(m: Machine) -> Turns:
    """A knock that changes all the time."""
    newcomer(m)
    while True:
        before = m.get(KNOCK_AT)
        for _ in busy():
            m.knock()
        yield m.get(KNOCK_AT) - before


@attack
def wrong_greetings(m: Machine) -> Turns:
    """A greeting with one wrong member after the other."""
    wrong: tuple[dict[str, int | bytes], ...] = (
        {"magic": 1},
        {"version": 5},
        {"version": 0},
        {"kind": WELCOME},
        {"features": 1},
        {"features": 4},
        {"lane": NR_LANES},
        {"lane": (1 << 32) - 1},
        {"challenge": 0},
        {"to_id": bytes(6)},
        {"to_place": bytes(8)},
        {"who_id": bytes(6)},
        {"who_place": bytes(8)},
        {"label": b"\x1b[31m%s%n" * 12},
        {"device": 1, "inode": 1, "cma": b"\xff" * 56},
    )
    for number_, changes in zip(itertools.count(), itertools.cycle(wrong), strict=False):
        known = m.learn()
        for one in m.victims():
            if one.id in known:
                me, who = newcomer(m, number_ % m.nr_slots)
                hello = greeting(HELLO, who, known[one.id], **changes)
                m.put(me.slot, one, letter(number(), CALLER, 1, 0, hello))
                yield 1
        yield 0


@attack
def identity_of_a_victim(m: Machine) -> Turns:
    """Slots, windows and greetings that show the identity of another endpoint."""
    while True:
        known = m.learn()
        victims = m.victims()
        for slot, one in enumerate(victims):
            m.claim(slot, one.id)
            for other in victims:
                if one.id in known and other.id in known and other is not one:
                    hello = greeting(HELLO, known[one.id], known[other.id])
                    m.put(slot, other, letter(number(), CALLER, 1, 0, hello))
                    yield 1
        yield len(victims)


@attack
def place_of_another_machine(m: Machine) -> Turns:
    """A new identity in the part of another machine, or in a segment with another token."""
    while True:
        known = m.learn()
        for one in m.victims():
            if one.id not in known:
                continue
            ident = os.urandom(6)
            me = m.claim(one.slot, ident)
            for place in (known[one.id][6:], os.urandom(8)):
                hello = greeting(HELLO, ident + place, known[one.id])
                m.put(me.slot, one, letter(number(), CALLER, 1, 0, hello))
                yield 1
        yield 0


@attack
def repeated_challenges(m: Machine) -> Turns:
    """The greetings, lanes and windows of others as the own ones."""
    while True:
        done = 0
        for slot, one in enumerate(m.victims()[: m.nr_slots]):
            m.claim(slot, one.id)
            start = m.start_of(one.part) + one.window_off
            off = m.windows[slot]
            m.own[off : off + WINDOW_SIZE] = m.all[start : start + WINDOW_SIZE]
            for _, data in m.letters(one):
                for to in m.victims():
                    m.put(slot, to, data)
            done += 1
        yield done


@attack
def two_exchanges_of_one_identity(m: Machine) -> Turns:
    """Two and more exchanges at once in one name, from one slot and from several."""
    while True:
        known = m.learn()
        for one in m.victims():
            if one.id not in known:
                continue
            me, who = newcomer(m)
            also = m.claim(1, who[:6])
            pairs = [
                Call(m, end, who, one, known[one.id], lane=lane)
                for lane, end in enumerate((me, me, also, also))
            ]
            began = False
            for _ in range(200):
                going_on = sum(call.advance() and call.state < GO for call in pairs)
                begins = not began and any(call.state >= GO for call in pairs)
                began |= begins
                yield int(begins)
                if not going_on:
                    break
            yield int(not began)
        yield 0


@attack
def half_exchanges(m: Machine) -> Turns:
    """Exchanges that stop after the greeting, in ever new names: each takes a lane."""
    most = 0
    for _ in crowd(m, HELLO):
        taken = m.lanes_taken()
        yield max(taken - most, 0)
        most = max(taken, most)


@attack
def every_lane(m: Machine) -> Turns:
    """Whole exchanges with new identities, until no lane and no descriptor is left."""
    most = 0
    for _ in crowd(m, GO):
        taken = m.lanes_taken()
        yield max(taken - most, 0)
        most = max(taken, most)


@attack
def endless_identities(m: Machine) -> Turns:
    """One whole exchange after the other, each in a new name, each hung up at once."""
    for done in crowd(m, GO):
        for call in done:
            at = call.lane_at() + WRITER_STEP
            struct.pack_into("<H", m.own, at, 0x8000)
            call.say(step(BYE), HANGUP)
        yield len(done)


@attack
def steps_out_of_turn(m: Machine) -> Turns:
    """MET, ACK, GO, WELCOME and BYE at the wrong time, and more than once."""
    for call in calls(m, last=MET):
        if call:
            for kind in random.choices((MET, ACK, GO, BYE), k=4):
                call.say(step(kind, random.randrange(-200, 200), b"%s" * 90))
            call.say(greeting(WELCOME, call.who, call.victim))
        yield call is not None


@attack
def never_takes_a_letter(m: Machine) -> Turns:
    """Greetings from every slot, and no acknowledgement of any answer."""
    while True:
        known, done = m.learn(), 0
        for one in m.victims():
            if one.id in known:
                for slot in range(m.nr_slots):
                    me, who = newcomer(m, slot)
                    hello = greeting(HELLO, who, known[one.id])
                    m.put(me.slot, one, letter(number(), CALLER, 1, 0, hello))
                    done += 1
        yield done
        for _ in range(50):
            yield 0


@attack
def dies_at_each_step(m: Machine) -> Turns:
    """An endpoint that is gone after its greeting, after MET, after GO."""
    makers = [calls(m, last) for last in (HELLO, MET, GO)]
    for maker in itertools.cycle(makers):
        for _ in range(40):
            call = next(maker)
            if call:
                m.set(m.slot_at(call.me.slot), call.me.generation << 8 | GONE)
                m.knock()
                yield 1
                break
            yield 0
