# SPDX-License-Identifier: Apache-2.0
"""Attacks by a proper peer: after a sound handshake, hostile bytes in its own window."""

import contextlib
import ctypes
import mmap
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.system.faults.hello import BYE, FAREWELL, MAGIC, NOBODYS, VERSION, Identity, Line
from tests.system.faults.shm_den import (
    BELL,
    CHUNK,
    CONFIRM,
    CONSUMED,
    CTS,
    DATA,
    EAGER,
    FREED,
    INLINE,
    LANE,
    LANES_OFF,
    LIFE,
    REACHING,
    RTS,
    STATE,
    TAGGED,
    WANTS_ACK,
    WITH_DATA,
    WRITE,
    WRITER_STEP,
    Den,
    meet_all,
    ranks,
)
from tests.system.faults.shm_scene import Scene
from tests.system.faults.shm_table import QUICK_MS, attack

FUTEX, WAKE = 202, 1


@attack(
    "ring-nonsense", "Writes random bytes over its rings and its pool.", wildcards=True, proof="met"
)
def ring_nonsense(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns():
        one, met = meet_all(scene, found)
        for lane in met:
            start = one.slot(lane, 0)
            one.map[start : start + one.slots * 64] = os.urandom(one.slots * 64)
        time.sleep(0.05)


@attack(
    "ring-lengths",
    "Names lengths, chunks and places that do not exist.",
    wildcards=True,
    proof="packets",
)
def ring_lengths(scene: Scene) -> None:
    found = ranks(scene)
    for turn, _ in enumerate(scene.turns()):
        one, met = meet_all(scene, found)
        for lane in met:
            form = turn % 6
            if form == 0:
                one.write(lane, EAGER, length=65535, flags=TAGGED)
            elif form == 1:
                one.write_chunk(lane, EAGER, 0xFFFFFFFF, 0)
            elif form == 2:
                one.write_chunk(lane, EAGER, 4096, 0xFFFFFFFF)
            elif form == 3:
                place = struct.pack("<III", 0, 0xFFFFFF00, 4096)
                one.write(lane, EAGER, place, kind=CHUNK, length=0)
            elif form == 4:
                one.write(lane, EAGER, kind=random.choice((0, 3)))
            else:
                # No message: to MPICH, one that is not tagged is an order (docs/design/faults.md).
                op = random.choice((0, *range(CTS, 64)))
                one.write(lane, op, os.urandom(40), flags=random.randrange(256))
        time.sleep(0.02)


@attack("ring-jumps", "Publishes slots far ahead, behind and twice.", proof="packets")
def ring_jumps(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns():
        one, met = meet_all(scene, found)
        for lane in met:
            one.write(lane, EAGER, b"first", flags=TAGGED, tag=NOBODYS)
            one.sent[lane] += random.choice((-1, 1, 255, 256, 1 << 31))
            one.write(lane, EAGER, b"second", flags=TAGGED, tag=NOBODYS)
        time.sleep(0.02)


@attack("ring-forged-answers", "Answers requests that ranks made to each other.", proof="packets")
def ring_forged_answers(scene: Scene) -> None:
    found = ranks(scene)
    for turn, _ in enumerate(scene.turns()):
        one, met = meet_all(scene, found)
        op = (CTS, DATA, CONFIRM, 10, 11, 12, 13)[turn % 7]
        for lane in met:
            ident = random.choice((0, 1, 2, 1 << 32, (1 << 32) + turn % 64, turn))
            payload = struct.pack("<QQ", 0, 5600) if op == CTS else os.urandom(8)
            one.write(lane, op, payload if op != CONFIRM else b"", tag=ident, data=turn % 3)
        time.sleep(0.01)


@attack("ring-accesses", "Reads and writes memory by keys that it guesses.", proof="packets")
def ring_accesses(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns():
        one, met = meet_all(scene, found)
        for lane in met:
            for op in (WRITE, 8, 7, 9):
                address = random.choice((0, 4096, random.getrandbits(47)))
                remote = struct.pack("<QQQ", address, 8, random.choice((0, 1, 2, 3, 512)))
                one.write(lane, op, remote + b"attacked", tag=random.getrandbits(64))
        time.sleep(0.02)


@attack(
    "ring-unexpected",
    "Sends messages that nobody receives, under many names, to fill the memory of ranks.",
    alone=True,
    proof="packets",
)
def ring_unexpected(scene: Scene) -> None:
    found = ranks(scene)
    threads = [threading.Thread(target=fill, args=(scene, found)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fill(scene: Scene, found: list[Identity]) -> None:
    """Fill the largest rings with the largest chunks: 256 MiB for each rank under each name."""
    while not scene.over():
        one, met = meet_all(scene, found, chunk=65536, slots=4096)
        for lane in met:
            for _ in range(one.slots):
                tag = NOBODYS ^ random.getrandbits(16)
                one.write_chunk(lane, EAGER, 65536, flags=TAGGED, tag=tag)


@attack(
    "ring-replays", "Repeats, under its own name, what ranks sent to each other.", proof="replayed"
)
def ring_replays(scene: Scene) -> None:
    found = ranks(scene)
    views = [mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) for fd in scene.windows.values()]
    one, met = meet_all(scene, found)
    for _ in scene.turns(0.001):
        view = random.choice(views)
        _, _, _, _, nr_lanes, slots, _, _, _, rings, *_ = struct.unpack_from("<QIIQIIIIIIQII", view)
        ring = rings + random.randrange(min(4, nr_lanes)) * slots * 64
        for lane in met:
            at = ring + random.randrange(slots) * 64
            control, tag, data, payload = struct.unpack_from("<QQQ40s", view, at)
            kind, op = control >> 32 & 3, control >> 34 & 63
            if kind == INLINE and op == EAGER and control >> 48 <= 40:
                flags, length = control >> 40 & 255, control >> 48
                one.write(
                    lane, op, payload, flags=flags & ~WANTS_ACK, length=length, tag=tag, data=data
                )
                scene.did("replayed")


@attack(
    "ring-asks-silently",
    "Asks ranks for answers under many names, and never answers when they call back.",
    proof="met",
    # Its relay takes a part of this time from each handshake.
    connect_ms=2 * QUICK_MS,
)
def ring_asks_silently(scene: Scene) -> None:
    found = ranks(scene)
    for turn, _ in enumerate(scene.turns(0.05)):
        if turn < 10:
            one, met = meet_all(scene, found)
            one.listen()
            for lane in met:
                remote = struct.pack("<QQQ", 0, 8, turn)
                one.write(lane, WRITE, remote + bytes(8), tag=turn)


@attack("acks-false", "Counts more, less and other packets as read than it got.", proof="answered")
def acks_false(scene: Scene) -> None:
    found = ranks(scene)
    for turn, _ in enumerate(scene.turns(0.03)):
        one, met = meet_all(scene, found)
        lanes = iter(range(4, 8))

        def read(caller: socket.socket, one: Den = one, lanes: Iterator[int] = lanes) -> None:
            lane = next(lanes, -1)
            if lane < 0 or one.answer(caller, lane) < 0:
                return
            one.put("<Q", one.lane(lane, CONSUMED), random.choice((0, 1 << 63, 1 << 20, 5)))
            one.put("<Q", one.lane(lane, FREED), random.getrandbits(64))

        one.listen(read)
        for lane in met:
            for tag in range(4):
                remote = struct.pack("<QQQ", 0, 8, turn)
                one.write(lane, WRITE, remote + bytes(8), tag=tag)


@attack("acks-never", "Asks for answers without end, and takes none.", proof="packets")
def acks_never(scene: Scene) -> None:
    found = ranks(scene)
    one, met = meet_all(scene, found, slots=4096)
    lanes = iter(range(4, 8))
    one.listen(lambda caller: one.answer(caller, next(lanes, 7)))
    for _ in scene.turns(0.01):
        for lane in met:
            for tag in range(200 if one.sent[lane] < 100000 else 0):
                remote = struct.pack("<QQQ", 0, 8, tag)
                one.write(lane, WRITE, remote + bytes(8), tag=tag)


@attack(
    "frozen", "Stops all its processes in the middle of everything.", wildcards=True, proof="stops"
)
def frozen(scene: Scene) -> None:
    found = ranks(scene)
    while not scene.over():
        child = os.fork()
        if child == 0:
            one, met = meet_all(scene, found)
            one.listen()
            for lane in met:
                one.write(lane, RTS, struct.pack("<QQ", 1 << 40, 1), flags=TAGGED, tag=NOBODYS)
                one.write(lane, WRITE, struct.pack("<QQQ", 0, 8, 1) + bytes(8))
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        scene.did("stops")
        time.sleep(0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@attack("doorbells", "Rings every doorbell it has, and sends nothing.", proof="rings")
def doorbells(scene: Scene) -> None:
    found = ranks(scene)
    one, met = meet_all(scene, found)
    call = ctypes.CDLL(None).syscall
    base = ctypes.addressof(ctypes.c_char.from_buffer(one.map))
    for _ in scene.turns(0):
        for lane in met:
            at = one.lane(lane, BELL)
            one.put("<I", at, random.getrandbits(32))
            call(FUTEX, ctypes.c_void_p(base + at), WAKE, 1 << 30, None, None, 0)
            scene.did("rings")


@attack(
    "words-false",
    "Writes false states, lives and steps into its window.",
    wildcards=True,
    proof="words",
)
def words_false(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns():
        one, met = meet_all(scene, found)
        for lane in met:
            for _ in range(5):
                one.put("<I", LIFE, random.choice((0, 1 << 30, 0x40000001, 1, 0x80000000)))
                one.put("<I", STATE, random.choice((0, 1, 2, 3, 0xFFFFFFFF)))
                step = random.choice((0, 1, 2, 0x8000, 0x8FFF, 0x804A, 0xFFFF))
                one.put("<H", one.lane(lane, WRITER_STEP), step)
                one.put("<Q", 136, random.getrandbits(64))
                scene.did("words")
        time.sleep(0.15)


@attack(
    "copies-false", "Offers its memory with foreign numbers, and copies without end.", proof="met"
)
def copies_false(scene: Scene) -> None:
    found = ranks(scene)
    for turn, _ in enumerate(scene.turns(0.03)):
        one = Liar(scene, nr_lanes=8)
        for lane, who in enumerate(found):
            with contextlib.suppress(OSError):
                sock = scene.call(who)
                scene.held.append(sock)
                one.meet(Line(sock), who, lane)
                one.put("<Q", LANES_OFF + lane * LANE + REACHING, 2 * turn + 1)


class Liar(Den):
    """Its greetings name PID namespaces and places in memory that are not its own."""

    def greeting(self, kind: int, to: Identity | None = None, lane: int = 0) -> bytes:
        """Return a greeting with a false offer of direct copies."""
        data = bytearray(super().greeting(kind, to, lane))
        own = Path("/proc/self/ns/pid").stat()
        namespace = random.choice(((own.st_dev, own.st_ino), (4, 4026531836)))
        # The namespace, then the page and the slot of the offer.
        struct.pack_into("<QQ", data, 56, *namespace)
        struct.pack_into("<QQ", data, 72, random.getrandbits(47), random.getrandbits(47))
        return bytes(data)


@attack("farewells-without-end", "Says goodbye again and again, but stays.", proof="farewells")
def farewells_without_end(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns():
        one, met = meet_all(scene, found)
        for sock in scene.held[-len(met) :] if met else []:
            with contextlib.suppress(OSError):
                assert isinstance(sock, socket.socket)
                for kind, error in ((BYE, -74), (BYE, 0), (3, 0), (99, -5)):
                    words = os.urandom(180)
                    sock.send(FAREWELL.pack(MAGIC, VERSION, kind, error, words))
                    scene.did("farewells")
        scene.held.append(one)
        del scene.held[:-40]


@attack(
    "tags-of-others",
    "Sends messages with each tag that a job may use.",
    proof="packets",
    # It takes what is left over, from any source, when it frees a communicator.
    harms=("mpich5",),
)
def tags_of_others(scene: Scene) -> None:
    found = ranks(scene)
    one, met = meet_all(scene, found)
    for _ in scene.turns(0.005):
        for lane in met:
            for number in range(3):
                tag = random.choice((0, 1 << 63, 1 << 48, 1 << 32)) | random.randrange(400)
                flags = random.choice((TAGGED, TAGGED | WITH_DATA))
                one.write(lane, EAGER, bytes(8), flags=flags, tag=tag, data=number)
