# SPDX-License-Identifier: Apache-2.0
"""Exchanges of a hostile machine, in the role of the caller or of the owner, up to any step."""

import struct
import time
from dataclasses import dataclass, field

from tests.system.faults.segment_machine import (
    ACK,
    AGREED,
    BYE,
    CALLER,
    GO,
    GREETING,
    HANGUP,
    HEAD,
    HELLO,
    INLINE,
    LANE_SIZE,
    LANES_OFF,
    LETTER_MAGIC,
    MET,
    READER_FOR,
    READER_PROOF,
    READER_STEP,
    RING_SLOTS,
    RINGS_OFF,
    SESSION_MAGIC,
    SHOWN,
    START,
    STEP,
    WELCOME,
    WHO,
    WINDOW_VERSION,
    WORD,
    WRITER_FOR,
    WRITER_PROOF,
    WRITER_STEP,
    Endpoint,
    Machine,
    number,
)


def greeting(kind: int, who: bytes, to: bytes, /, **wrong: int | bytes) -> bytes:
    """HELLO or WELCOME; WRONG replaces some members."""
    right: dict[str, int | bytes] = {
        "magic": SESSION_MAGIC,
        "version": WINDOW_VERSION,
        "kind": kind,
        "who_id": who[:6],
        "who_place": who[6:],
        "to_id": to[:6],
        "to_place": to[6:],
        "lane": 0,
        "features": 0,
        "reserved": 0,
        "challenge": number(),
        "device": 0,
        "inode": 0,
        "cma": bytes(56),
        "label": b"a stranger, pid 1",
    }
    return GREETING.pack(*(right | wrong).values())


def step(kind: int, value: int = 0, words: bytes = b"") -> bytes:
    return STEP.pack(SESSION_MAGIC, WINDOW_VERSION, kind, value, words)


def letter(nr: int, flags: int, sequence: int = 0, taken: int = 0, message: bytes = b"") -> bytes:
    return HEAD.pack(LETTER_MAGIC, flags, len(message), nr, sequence, taken) + message


@dataclass
class Call:
    """One exchange as its caller, up to any step. `advance` does what is due and never waits."""

    machine: Machine
    me: Endpoint
    who: bytes
    to: Endpoint
    victim: bytes
    lane: int = 0
    last: int = GO
    hello: bytes = b""
    nr: int = field(default_factory=number)
    said: int = 0
    heard: int = 0
    state: int = 0
    its_lane: int = 0
    start: int = 0
    begun: float = field(default_factory=time.monotonic)

    def say(self, message: bytes, flags: int = 0) -> None:
        self.said += 1
        data = letter(self.nr, CALLER | flags, self.said, self.heard, message)
        self.machine.put(self.me.slot, self.to, data)

    def lane_at(self) -> int:
        return self.machine.windows[self.me.slot] + LANES_OFF + self.lane * LANE_SIZE

    def show(self, challenge: int) -> None:
        at, own = self.lane_at(), self.machine.own
        own[at + WRITER_FOR : at + WRITER_FOR + WHO] = self.victim
        self.start = 1 << 20
        struct.pack_into("<I", own, at + START, self.start)
        self.machine.set(at + WRITER_PROOF, challenge)
        struct.pack_into("<H", own, at + WRITER_STEP, SHOWN)

    def advance(self) -> bool:
        """Take one step, if it is due. False: the other side refused, or nothing came for long."""
        if self.state == 0:
            self.say(self.hello or greeting(HELLO, self.who, self.victim, lane=self.lane))
            self.state = HELLO
        for got in self.machine.letters_to(self.me, self.to):
            if got.number != self.nr or got.flags & CALLER or got.sequence != self.heard + 1:
                continue
            self.heard = got.sequence
            if got.kind == BYE or got.flags & HANGUP:
                self.state = BYE
            elif got.kind == WELCOME and self.last > HELLO:
                values = GREETING.unpack(got.message)
                self.its_lane = values[7]
                self.show(values[10])
                self.say(step(MET))
                self.state = MET
            elif got.kind == ACK and self.last >= GO:
                at = self.lane_at() + WRITER_STEP
                struct.pack_into("<H", self.machine.own, at, AGREED)
                self.say(step(GO))
                self.state = GO
            self.acknowledge()
        return self.state != BYE and time.monotonic() - self.begun < 3

    def acknowledge(self) -> None:
        data = letter(self.nr, CALLER, 0, self.heard)
        self.machine.put(self.me.slot, self.to, data)

    def publish(self, position: int, **wrong: int) -> None:
        """Write one slot of the ring; WRONG replaces some members."""
        right = {"sequence": position + 1, "kind": INLINE, "op": 1, "flags": 0, "length": 0}
        right |= {"tag": 0, "data": 0, "index": 0, "offset": 0, "chunk": 0}
        v = right | wrong
        at = self.machine.windows[self.me.slot] + RINGS_OFF + self.lane * RING_SLOTS * 64
        at += position % RING_SLOTS * 64
        words = "<QQIII"
        rest = v["tag"] & WORD, v["data"] & WORD, v["index"], v["offset"], v["chunk"]
        struct.pack_into(words, self.machine.own, at + 8, *rest)
        control = v["sequence"] & 0xFFFFFFFF | (v["kind"] & 3) << 32 | (v["op"] & 63) << 34
        self.machine.set(at, control | (v["flags"] & 0xFF) << 40 | (v["length"] & 0xFFFF) << 48)

    def payload(self, position: int, data: bytes) -> None:
        """Put up to 40 bytes into a slot before it is published."""
        at = self.machine.windows[self.me.slot] + RINGS_OFF + self.lane * RING_SLOTS * 64
        at += position % RING_SLOTS * 64 + 24
        self.machine.own[at : at + len(data)] = data

    def consumed(self) -> int:
        """Return how far the other side has read."""
        lane = self.machine.lane_of(self.to, self.its_lane)
        return int.from_bytes(lane[:8], "little")


@dataclass
class Answer:
    """The owner's side of an exchange that a victim begins, up to any step."""

    machine: Machine
    me: Endpoint
    who: bytes
    to: Endpoint
    victim: bytes
    last: int = ACK
    lane: int = 1
    nr: int = 0
    heard: int = 0
    said: int = 0
    state: int = 0

    def say(self, message: bytes) -> None:
        self.said += 1
        data = letter(self.nr, 0, self.said, self.heard, message)
        self.machine.put(self.me.slot, self.to, data)

    def lane_at(self) -> int:
        return self.machine.windows[self.me.slot] + LANES_OFF + self.lane * LANE_SIZE

    def advance(self) -> None:
        """Answer what came since the last call."""
        for got in self.machine.letters_to(self.me, self.to):
            if not got.flags & CALLER:
                continue
            if got.kind == HELLO and got.number != self.nr and got.sequence == 1:
                self.nr, self.heard, self.said, self.state = got.number, 0, 0, HELLO
            if got.number != self.nr or got.sequence != self.heard + 1:
                continue
            self.heard = got.sequence
            at, own = self.lane_at(), self.machine.own
            if got.kind == HELLO and self.last > HELLO:
                own[at + READER_FOR : at + READER_FOR + WHO] = self.victim
                self.machine.set(at + READER_PROOF, GREETING.unpack(got.message)[10])
                struct.pack_into("<H", own, at + READER_STEP, SHOWN)
                self.say(greeting(WELCOME, self.who, self.victim, lane=self.lane))
            elif got.kind == MET and self.last >= ACK:
                struct.pack_into("<H", own, at + READER_STEP, AGREED)
                self.say(step(ACK))
            self.state = got.kind
            self.machine.put(self.me.slot, self.to, letter(self.nr, 0, 0, self.heard))
