# SPDX-License-Identifier: Apache-2.0
"""An endpoint of the attacker's own: its window, its handshakes by hand, and its hostile bytes."""

import contextlib
import fcntl
import mmap
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.system.faults.hello import (
    ACK,
    GO,
    HEADER,
    HELLO,
    MET,
    PLACE,
    SEALS,
    VERSION,
    WELCOME,
    WINDOW,
    WINDOW_MAGIC,
    Greeting,
    Identity,
    Line,
)
from tests.system.faults.shm_scene import Scene, seqpacket

LANE = 128
CONSUMED, FREED, WRITER_PROOF, READER_PROOF, REACHING, BELL = 0, 8, 64, 72, 80, 88
WRITER_STEP, READER_STEP, START, WRITER_FOR, READER_FOR = 92, 94, 96, 100, 114
IDLE, SHOWN, AGREED, ENDED = 0, 1, 2, 0x8000
STATE, LIFE, LANES_OFF, SLOT = 128, 132, 192, 64
INLINE, CHUNK, BODY = 1, 2, 3
EAGER, RTS, CTS, DATA, CONFIRM, WRITE = 1, 2, 3, 4, 5, 6
TAGGED, WITH_DATA, WANTS_ACK = 1, 2, 4


def up(number: int, step: int) -> int:
    """Round up."""
    return -(-number // step) * step


class Den:
    """A sound window with a socket name, which the attacker then uses as it likes."""

    def __init__(
        self, scene: Scene, nr_lanes: int = 4, slots: int = 256, chunk: int = 4096, nr: int = 4
    ) -> None:
        self.scene, self.slots, self.nr_lanes = scene, slots, nr_lanes
        self.chunk, self.nr_chunks = chunk, nr
        regions = LANES_OFF + nr_lanes * LANE
        self.rings = up(regions, 4096)
        self.pool = up(self.rings + nr_lanes * slots * SLOT, 65536)
        self.size = self.pool + nr * chunk
        self.fd = os.memfd_create("den", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.size)
        self.map = mmap.mmap(self.fd, self.size)
        # An owner touches its pages; a ring at its first use.
        for start, end in ((0, self.rings), (self.pool, self.size)):
            for at in range(start, end, 4096):
                self.map[at] = 0
        place = ((os.fstat(self.fd).st_ino ^ scene.number) & PLACE).to_bytes(5, "little")
        self.who = Identity(os.urandom(6), place + os.urandom(3))
        header = (WINDOW_MAGIC, VERSION, 0, self.size, nr_lanes, slots, chunk, nr, LANES_OFF)
        head = WINDOW.pack(*header, self.rings, self.pool, regions, 0, self.who.ident, 1)
        self.map[: len(head)] = head
        self.put("<I", LIFE, os.getpid())
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        self.sent: dict[int, int] = {}

    def put(self, form: str, at: int, *values: object) -> None:
        """Write words of the window."""
        struct.pack_into(form, self.map, at, *values)

    def lane(self, lane: int, offset: int) -> int:
        """Return where a word of a lane is."""
        return LANES_OFF + lane * LANE + offset

    def touch_ring(self, lane: int) -> None:
        """Make the pages of a ring the attacker's own."""
        start = self.rings + lane * self.slots * SLOT
        for at in range(start, start + self.slots * SLOT, 4096):
            self.map[at] = self.map[at]

    def greeting(self, kind: int, to: Identity | None = None, lane: int = 0) -> bytes:
        """Return a sound greeting."""
        greeting = Greeting(self.who, kind=kind, lane=lane, challenge=random.getrandbits(63) | 1)
        return (replace(greeting, to=to) if to else greeting).pack()

    def show(self, lane: int, to: Identity, challenge: int, *, writer: bool) -> None:
        """Show the proof of a handshake."""
        who, proof, step = (
            (WRITER_FOR, WRITER_PROOF, WRITER_STEP)
            if writer
            else (READER_FOR, READER_PROOF, READER_STEP)
        )
        if writer:
            self.touch_ring(lane)
            self.put("<I", self.lane(lane, START), 0)
            self.sent[lane] = 0
        self.put("<14s", self.lane(lane, who), to.ident + to.place)
        self.put("<Q", self.lane(lane, proof), challenge)
        self.put("<H", self.lane(lane, step), SHOWN)

    def hello(self, line: Line, to: Identity, lane: int = 0) -> Greeting | None:
        """Say hello; return the answer. None: it was refused."""
        self.touch_ring(lane)
        self.put("<H", self.lane(lane, WRITER_STEP), IDLE)
        line.send(self.greeting(HELLO, to, lane), self.fd)
        data, fd = line.receive()
        if fd >= 0:
            os.close(fd)
        if not data or HEADER.unpack_from(data)[2] != WELCOME:
            self.scene.did("refused")
            return None
        return Greeting.parse(data)

    def meet(self, line: Line, to: Identity, lane: int = 0) -> bool:
        """Become a source of a rank by a sound handshake."""
        welcome = self.hello(line, to, lane)
        if welcome is None:
            return False
        self.show(lane, to, welcome.challenge, writer=True)
        line.send_kind(MET)
        data, _ = line.receive()
        if not data or HEADER.unpack_from(data)[2] != ACK:
            self.scene.did("refused")
            return False
        self.put("<H", self.lane(lane, WRITER_STEP), AGREED)
        line.send_kind(GO)
        self.scene.did("met")
        return True

    def slot(self, lane: int, position: int) -> int:
        """Return where a slot is."""
        return self.rings + (lane * self.slots + position % self.slots) * SLOT

    def write(
        self,
        lane: int,
        op: int,
        payload: bytes = b"",
        *,
        kind: int = INLINE,
        flags: int = 0,
        length: int = -1,
        tag: int = 0,
        data: int = 0,
    ) -> None:
        """Publish a slot, whatever it says."""
        position = self.sent[lane]
        at = self.slot(lane, position)
        length = len(payload) if length < 0 else length
        self.put("<QQ40s", at + 8, tag, data, payload)
        control = (position + 1) & 0xFFFFFFFF | kind << 32 | op << 34 | flags << 40
        self.put("<Q", at, control | (length & 0xFFFF) << 48)
        self.sent[lane] = position + 1
        self.scene.did("packets")

    def write_chunk(self, lane: int, op: int, length: int, index: int = 0, **more: int) -> None:
        """Publish a slot with its payload in the pool."""
        self.write(lane, op, struct.pack("<III", index, 0, length), kind=CHUNK, length=0, **more)

    def listen(self, handler: object = None) -> None:
        """Have a socket under the own name, in all rundirs of ranks that are known."""
        for rundir in {home.parent for home in self.scene.homes.values()}:
            listener = seqpacket()
            path = rundir / self.who.ident.hex()
            with contextlib.suppress(OSError):
                listener.bind(str(path))
                listener.listen(64)
                self.scene.mine.add(path.lstat().st_ino)
                threading.Thread(target=self._serve, args=(listener, handler), daemon=True).start()

    def _serve(self, listener: socket.socket, handler: object) -> None:
        held = []
        while True:
            caller, _ = listener.accept()
            self.scene.did("called back")
            held.append(caller)
            if callable(handler):
                threading.Thread(target=handler, args=(caller,), daemon=True).start()

    def answer(self, caller: socket.socket, lane: int) -> int:
        """Be a sound reader of a rank that calls; returns its lane, or -1."""
        with contextlib.suppress(OSError):
            line = Line(caller)
            data, fd = line.receive()
            hello = Greeting.parse(data)
            self.show(lane, hello.who, hello.challenge, writer=False)
            line.send(self.greeting(WELCOME, lane=lane), self.fd)
            line.receive()
            self.put("<H", self.lane(lane, READER_STEP), AGREED)
            line.send_kind(ACK)
            line.receive()
            os.close(fd)
            self.scene.did("answered")
            return hello.lane
        return -1

    def close(self) -> None:
        """Give the memory back."""
        self.map.close()
        os.close(self.fd)


@contextlib.contextmanager
def den(scene: Scene, **layout: int) -> Iterator[Den]:
    """Have a window for a while."""
    one = Den(scene, **layout)
    try:
        yield one
    finally:
        one.close()


def ranks(scene: Scene) -> list[Identity]:
    """Learn the addresses, then let everybody go on."""
    found = scene.scout()
    scene.release()
    return found


def meet_all(scene: Scene, found: list[Identity], **layout: int) -> tuple[Den, dict[int, Identity]]:
    """Become a source of all ranks with one identity, one lane for each."""
    one = Den(scene, nr_lanes=max(8, len(found)), **layout)
    met = {}
    for lane, who in enumerate(found):
        with contextlib.suppress(OSError):
            sock = scene.call(who)
            if one.meet(Line(sock), who, lane):
                met[lane] = who
                scene.held.append(sock)
    return one, met


def hidden(path: Path) -> bool:
    """Tell whether a name is one that an endpoint is about to show."""
    return path.name.startswith(".")
