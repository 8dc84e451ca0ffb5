# SPDX-License-Identifier: Apache-2.0
"""A machine of a segment in Python: its part, its mailboxes, windows and exchanges.

src/vmseg/layout.h, src/shm/layout.h, src/connect/letter.h and message.h say what the bytes mean.
The machine has the rights that a hypervisor gives: it writes its own part and reads all others.
The script runs in a node and needs only Python's own library.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

HOST = struct.Struct("<Q II 16s QQQ I")
PART = struct.Struct("<Q II Q IIIIII ii")
SLOT = struct.Struct("<QQQ 6s")
CELL = struct.Struct("<Q QQ III")
HEAD = struct.Struct("<I HH Q II")
GREETING = struct.Struct("<IHH 6s8s 6s8s III QQQ 56s 96s")
STEP = struct.Struct("<IHH i 180s")
WINDOW = struct.Struct("<Q II Q IIII II Q II 6s58x I60x")

PART_MAGIC = 0x31747261706D6D6E
WINDOW_MAGIC = 0x31776C6174656D6E
SESSION_MAGIC = 0x746D6D6E
LETTER_MAGIC = 0x746C6D6E
WINDOW_VERSION = 4
PART_FEATURES = 1
SLOT_SIZE, CELL_SIZE, CELL_BYTES, LANE_SIZE = 128, 320, 64, 128
SLOTS_OFF, GRANULE = 4096 + 16384, 65536
STATE_AT, KNOCK_AT, GENERATION_AT = 64, 128, 16
HEARTBEAT, POSTED = 64, 72
FREE, INIT, RUN, QUIESCE, FROZEN, GONE = range(6)
HELLO, WELCOME, MET, ACK, GO, BYE = range(1, 7)
CALLER, HANGUP, RESET, PROBE = 1, 2, 4, 8
SHOWN, AGREED = 1, 2
WRITER_PROOF, READER_PROOF, WRITER_STEP, READER_STEP, START = 64, 72, 92, 94, 96
WRITER_FOR, READER_FOR, WHO = 100, 114, 14
INLINE, CHUNK = 1, 2
NR_LANES, RING_SLOTS, CHUNK_SIZE, NR_CHUNKS = 8, 16, 4096, 16
LANES_OFF, REGIONS_OFF, RINGS_OFF, POOL_OFF = 192, 1216, 4096, 65536
WINDOW_SIZE = POOL_OFF + NR_CHUNKS * CHUNK_SIZE
WORD = (1 << 64) - 1
BEAT_S = 0.1


def number() -> int:
    """A random word that is not 0."""
    return int.from_bytes(os.urandom(8), "little") | 1


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of another machine, as its slot shows it."""

    part: int
    slot: int
    part_generation: int
    generation: int
    id: bytes
    window_off: int
    window_size: int


@dataclass(frozen=True)
class Letter:
    """A checked letter from one mailbox."""

    flags: int
    number: int
    sequence: int
    taken: int
    message: bytes

    @property
    def kind(self) -> int:
        """The kind of its message; 0: it has none."""
        return int.from_bytes(self.message[6:8], "little") if len(self.message) >= 8 else 0


@dataclass
class Machine:
    """A machine with a sound part, until an attack changes it."""

    path: str
    part: int
    nr_slots: int = 16
    nr_cells: int = 32
    known: dict[bytes, bytes] = field(default_factory=dict)
    """The identities of all endpoints of others, by their first six bytes."""

    def __post_init__(self) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        self.all = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        os.close(fd)
        _, _, _, self.token, _, self.part_off, self.part_size, self.nr_parts = HOST.unpack_from(
            self.all
        )
        fd = os.open(self.path, os.O_RDWR)
        self.own = mmap.mmap(fd, self.part_size, offset=self.start_of(self.part))
        os.close(fd)
        self.words = memoryview(self.own).cast("Q")
        self.sequences: dict[int, int] = {}
        self.beat_at = 0.0
        self.silent: set[int] = set()
        self.read: dict[tuple[int, int], dict[tuple[int, int, int], list[Letter]]] = {}
        mark = siphash(self.token, struct.pack("<I", self.part)) & 0xFFFFFF
        self.mark = mark.to_bytes(3, "little")
        self.make()

    def start_of(self, part: int) -> int:
        return int(self.part_off + part * self.part_size)

    # What a sound machine writes.

    def make(self, nr_slots: int = 16, nr_cells: int = 32) -> None:
        """Make the part anew, as after a boot."""
        self.nr_slots, self.nr_cells = nr_slots, nr_cells
        self.cells_off = -(-(SLOTS_OFF + nr_slots * SLOT_SIZE) // 4096) * 4096
        end = self.cells_off + nr_slots * nr_cells * CELL_SIZE
        self.space_off = -(-end // GRANULE) * GRANULE
        self.set(GENERATION_AT, 0)
        self.own[256 : self.space_off] = bytes(self.space_off - 256)
        self.sequences.clear()
        self.windows: dict[int, int] = {}
        self.generation = number()
        self.header()

    def header(self, **wrong: int) -> None:
        """Write the part's header; WRONG replaces some of its words."""
        right = {
            "magic": PART_MAGIC,
            "version": 1,
            "features": PART_FEATURES,
            "generation": self.generation,
            "index": self.part,
            "nr_slots": self.nr_slots,
            "nr_cells": self.nr_cells,
            "slots_off": SLOTS_OFF,
            "cells_off": self.cells_off,
            "space_off": self.space_off,
            "numa": -1,
            "vcpu_numa": -1,
        }
        PART.pack_into(self.own, 0, *(right | wrong).values())
        struct.pack_into("<I", self.own, STATE_AT, RUN)

    def set(self, offset: int, word: int) -> None:
        """Store one word at once."""
        self.words[offset // 8] = word & WORD

    def get(self, offset: int) -> int:
        return self.words[offset // 8]

    def add(self, offset: int, more: int = 1) -> None:
        self.set(offset, self.get(offset) + more)

    def slot_at(self, slot: int) -> int:
        return SLOTS_OFF + slot * SLOT_SIZE

    def claim(
        self, slot: int, ident: bytes, generation: int = 0, state: int = RUN, window: int = -1
    ) -> Endpoint:
        """Show an endpoint with a window of its own."""
        generation = generation or number() >> 9
        off = self.space_off + slot % 64 * WINDOW_SIZE if window < 0 else window
        at = self.slot_at(slot)
        self.set(at, generation << 8 | INIT)
        SLOT.pack_into(self.own, at, generation << 8 | INIT, off, WINDOW_SIZE, ident)
        self.own[at + HEARTBEAT : at + HEARTBEAT + 24] = bytes(24)
        self.sequences[slot] = 0
        self.windows[slot] = off
        self.window(off, ident)
        self.set(at, generation << 8 | state)
        return Endpoint(self.part, slot, self.generation, generation, ident, off, WINDOW_SIZE)

    def window(self, off: int, ident: bytes, **wrong: int) -> None:
        """Write a window; WRONG replaces some words of its header."""
        right = {
            "magic": WINDOW_MAGIC,
            "version": WINDOW_VERSION,
            "features": 0,
            "size": WINDOW_SIZE,
            "nr_lanes": NR_LANES,
            "ring_slots": RING_SLOTS,
            "chunk_size": CHUNK_SIZE,
            "nr_chunks": NR_CHUNKS,
            "lanes_off": LANES_OFF,
            "rings_off": RINGS_OFF,
            "pool_off": POOL_OFF,
            "regions_off": REGIONS_OFF,
            "nr_regions": 0,
        }
        self.own[off : off + POOL_OFF] = bytes(POOL_OFF)
        WINDOW.pack_into(self.own, off, *(right | wrong).values(), ident, 1)

    def beat(self) -> None:
        """Let the heartbeats of all endpoints go on."""
        if time.monotonic() < self.beat_at:
            return
        self.beat_at = time.monotonic() + BEAT_S
        for slot in self.windows.keys() - self.silent:
            self.add(self.slot_at(slot) + HEARTBEAT)

    def knock(self) -> None:
        self.add(KNOCK_AT)

    def put(
        self,
        slot: int,
        to: Endpoint,
        data: bytes,
        *,
        cell: int = -1,
        sequence: int = -1,
        length: int = -1,
    ) -> None:
        """Put bytes into the mailbox of a slot, and knock."""
        if sequence < 0:
            sequence = self.sequences[slot] = self.sequences.get(slot, 0) + 1
        cell = sequence % self.nr_cells if cell < 0 else cell
        at = self.cells_off + (slot * self.nr_cells + cell) * CELL_SIZE
        self.set(at, 0)
        words = to.part_generation, to.generation, to.part, to.slot
        CELL.pack_into(self.own, at, 0, *words, len(data) if length < 0 else length)
        self.own[at + CELL_BYTES : at + CELL_BYTES + len(data)] = data
        self.set(at, sequence)
        self.set(self.slot_at(slot) + POSTED, max(sequence, self.sequences.get(slot, 0)))
        self.knock()

    # What a machine reads of others.

    def others(self) -> Iterator[Endpoint]:
        """Yield the endpoints of other machines."""
        for part in range(self.nr_parts):
            start = self.start_of(part)
            header = PART.unpack_from(self.all, start)
            if part == self.part or header[0] != PART_MAGIC or header[6] > 64:
                continue
            # An attack may have written these words; beyond the parts the file has holes.
            if header[7] + header[5] * SLOT_SIZE > self.part_size:
                continue
            for slot in range(header[5]):
                at = start + header[7] + slot * SLOT_SIZE
                control, off, size, ident = SLOT.unpack_from(self.all, at)
                if control & 0xFF == RUN and off + size <= self.part_size:
                    yield Endpoint(part, slot, header[3], control >> 8, ident, off, size)

    def victims(self) -> list[Endpoint]:
        """Return the endpoints of the job: those that are not of a hostile machine."""
        return [one for one in self.others() if one.part < 2]

    def letters(self, one: Endpoint) -> Iterator[tuple[bytes, bytes]]:
        """Yield all that lies in a mailbox: the cell's head, and its bytes."""
        start = self.start_of(one.part)
        header = PART.unpack_from(self.all, start)
        if header[8] + (one.slot + 1) * header[6] * CELL_SIZE > self.part_size:
            return
        for cell in range(header[6]):
            at = start + header[8] + (one.slot * header[6] + cell) * CELL_SIZE
            head = self.all[at : at + CELL_BYTES]
            sequence, length = head[:8], struct.unpack_from("<I", head, 32)[0]
            # An attack may have written the length, and the file ends with holes.
            data = self.all[at + CELL_BYTES : at + CELL_BYTES + min(length, 257)]
            # Its owner may have written the next letter into the cell meanwhile.
            is_whole = self.all[at : at + 8] == sequence != bytes(8)
            if is_whole and HEAD.size <= length <= 256:
                yield head, data

    def letters_to(self, me: Endpoint, one: Endpoint) -> list[Letter]:
        """Return the letters of ONE to an own endpoint, oldest first."""
        key = one.part, one.slot
        if key not in self.read:
            self.read[key] = self.read_letters(one)
        return self.read[key].get((me.part_generation, me.slot, me.generation), [])

    def read_letters(self, one: Endpoint) -> dict[tuple[int, int, int], list[Letter]]:
        found: dict[tuple[int, int, int], list[Letter]] = {}
        for head, data in self.letters(one):
            _, part_generation, generation, part, slot, _ = CELL.unpack_from(head)
            if part == self.part:
                _, flags, _, nr, sequence, taken = HEAD.unpack_from(data)
                letters = found.setdefault((part_generation, slot, generation), [])
                letters.append(Letter(flags, nr, sequence, taken, data[HEAD.size :]))
        for letters in found.values():
            letters.sort(key=lambda letter: letter.sequence)
        return found

    def turn(self) -> None:
        """Begin a turn: the heartbeats go on, and mailboxes are read again."""
        self.read.clear()
        self.beat()

    def lanes_taken(self) -> int:
        """Count the lanes of all victims that serve an endpoint of this machine."""
        taken = 0
        for one in self.victims():
            start = self.start_of(one.part) + one.window_off
            head = WINDOW.unpack_from(self.all, start)
            if one.window_off + head[8] + 64 * LANE_SIZE > self.part_size:
                continue
            for lane in range(min(head[4], 64)):
                at = start + head[8] + lane * LANE_SIZE
                step_ = struct.unpack_from("<H", self.all, at + READER_STEP)[0]
                mark = self.all[at + READER_FOR + 11 : at + READER_FOR + WHO]
                taken += step_ in {SHOWN, AGREED} and mark == self.mark
        return taken

    def learn(self) -> dict[bytes, bytes]:
        """Find the identities of others in greetings and in lanes. An address says no more."""
        ids = {one.id: one for one in self.victims()}
        for one in ids.values():
            for _, data in self.letters(one):
                if len(data) == HEAD.size + GREETING.size:
                    names = GREETING.unpack_from(data, HEAD.size)[3:7]
                    self.known |= {names[i]: names[i] + names[i + 1] for i in (0, 2)}
            self.learn_from_lanes(one)
        return {ident: who for ident, who in self.known.items() if ident in ids}

    def learn_from_lanes(self, one: Endpoint) -> None:
        start = self.start_of(one.part) + one.window_off
        head = WINDOW.unpack_from(self.all, start)
        for lane in range(min(head[4], 64)):
            at = start + head[8] + lane * LANE_SIZE
            for offset in (WRITER_FOR, READER_FOR):
                who = self.all[at + offset : at + offset + WHO]
                self.known.setdefault(who[:6], who)

    def lane_of(self, one: Endpoint, lane: int) -> bytes:
        start = self.start_of(one.part) + one.window_off
        at = start + WINDOW.unpack_from(self.all, start)[8] + lane * LANE_SIZE
        return self.all[at : at + LANE_SIZE]

    def place(self) -> bytes:
        """Return a place in the own part, for identities of the own machine."""
        return os.urandom(5) + self.mark


def rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & WORD


def siphash(key: bytes, data: bytes) -> int:
    """SipHash-2-4 of less than eight bytes."""
    low, high = (int.from_bytes(half, "little") for half in (key[:8], key[8:]))
    a, b = low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D
    c, d = low ^ 0x6C7967656E657261, high ^ 0x7465646279746573
    word = int.from_bytes(data, "little") | len(data) << 56

    def mixed(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
        a, c = (a + b) & WORD, (c + d) & WORD
        b, d, a = rotated(b, 13) ^ a, rotated(d, 16) ^ c, rotated(a, 32)
        c, a = (c + b) & WORD, (a + d) & WORD
        b, d, c = rotated(b, 17) ^ c, rotated(d, 21) ^ a, rotated(c, 32)
        return a, b, c, d

    d ^= word
    for _ in range(2):
        a, b, c, d = mixed(a, b, c, d)
    a ^= word
    c ^= 0xFF
    for _ in range(4):
        a, b, c, d = mixed(a, b, c, d)
    return a ^ b ^ c ^ d
