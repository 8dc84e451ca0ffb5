# SPDX-License-Identifier: Apache-2.0
"""Attacks from between two ranks: sockets in place of theirs that pass on most of what is said."""

import contextlib
import os
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.system.faults.hello import ACK, BYE, FAREWELL, GO, HEADER, HELLO, MET, WELCOME
from tests.system.faults.shm_scene import Scene
from tests.system.faults.shm_table import QUICK_MS, attack

LANE_AT, CHALLENGE_AT = 36, 48


@dataclass
class Letter:
    """One message on its way."""

    data: bytes
    fds: list[int]
    from_caller: bool

    @property
    def kind(self) -> int:
        return int(HEADER.unpack_from(self.data)[2]) if len(self.data) >= HEADER.size else 0

    def alter(self, at: int, form: str, value: int) -> None:
        """Change a word of it."""
        data = bytearray(self.data)
        struct.pack_into(form, data, at, value)
        self.data = bytes(data)


Change = Callable[[Letter], list[Letter]]


def between(scene: Scene, change: Change, after: Callable[..., None] | None = None) -> None:
    """Relay all callers of all ranks; CHANGE returns the messages that are passed on."""

    def relay(caller: socket.socket, path: Path) -> None:
        said_go = False
        with caller, contextlib.suppress(OSError), scene.owner_of(path) as owner:
            while True:
                for one in select.select([caller, owner], [], [])[0]:
                    data, fds, _, _ = socket.recv_fds(one, 4096, 4)
                    if not data:
                        return
                    letter = Letter(data, fds, one is caller)
                    for other in change(letter):
                        to = owner if other.from_caller else caller
                        socket.send_fds(to, [other.data], other.fds)
                        scene.did("passed on")
                    for fd in fds:
                        os.close(fd)
                    said_go |= letter.kind == GO
                if said_go and after:
                    after(caller, owner)
                    return

    for _ in scene.turns(0.001):
        scene.replace_all(relay)


@attack(
    "relay-cuts",
    "Cuts connections after each step of a handshake.",
    moves=True,
    proof="cuts",
    slow=True,
)
def relay_cuts(scene: Scene) -> None:
    steps = [HELLO, WELCOME, MET, ACK, GO]

    def change(letter: Letter) -> list[Letter]:
        scene.did("letters")
        if letter.kind == steps[scene.counts["cuts"] % 5] and random.random() < 0.5:
            scene.did("cuts")
            raise OSError
        return [letter]

    between(scene, change)


@attack("relay-withholds-go", "Passes on all but GO.", alone=True, proof="withheld")
def relay_withholds_go(scene: Scene) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.kind != GO:
            return [letter]
        scene.did("withheld")
        return []

    between(scene, change)


@attack(
    "relay-withholds-ack",
    "Passes on all but ACK.",
    moves=True,
    proof="withheld",
    connect_ms=QUICK_MS,
)
def relay_withholds_ack(scene: Scene) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.kind != ACK:
            return [letter]
        scene.did("withheld")
        return []

    between(scene, change)


@attack(
    "relay-forges-ack",
    "Says ACK and GO in the name of ranks, too early.",
    moves=True,
    proof="forged",
)
def relay_forges_ack(scene: Scene) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.kind not in (MET, WELCOME):
            return [letter]
        kind = ACK if letter.kind == MET else GO
        header = HEADER.pack(*HEADER.unpack_from(letter.data)[:2], kind)
        forged = Letter(header + struct.pack("<I180s", 1, b""), [], letter.kind != MET)
        scene.did("forged")
        return [forged, letter]

    between(scene, change)


@attack(
    "relay-forges-bye",
    "Blames each rank to the other once they have met.",
    alone=True,
    proof="forged",
    slow=True,
)
def relay_forges_bye(scene: Scene) -> None:
    def blame(caller: socket.socket, owner: socket.socket) -> None:
        time.sleep(0.05)
        for sock, error in ((caller, -74), (owner, 0)):
            sock.send(FAREWELL.pack(0x746D6D6E, 4, BYE, error, b"forged"))
            scene.did("forged")

    between(scene, lambda letter: [letter], blame)


@attack(
    "relay-babbles",
    "Sends nonsense on connections of ranks that have met.",
    alone=True,
    proof="babbled",
    slow=True,
)
def relay_babbles(scene: Scene) -> None:
    def babble(caller: socket.socket, owner: socket.socket) -> None:
        for sock in (caller, owner):
            for length in (1, 8, 192, 224, 255, 4096):
                with contextlib.suppress(OSError):
                    sock.send(os.urandom(length))
                    scene.did("babbled")

    between(scene, lambda letter: [letter], babble)


@attack(
    "relay-other-lanes",
    "Changes lanes and challenges in greetings.",
    moves=True,
    proof="changed",
    slow=True,
)
def relay_other_lanes(scene: Scene) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.kind in (HELLO, WELCOME):
            if random.random() < 0.5:
                letter.alter(LANE_AT, "<I", random.choice((1, 2, 511, 0xFFFFFFFF)))
            else:
                letter.alter(CHALLENGE_AT, "<Q", random.getrandbits(64))
            scene.did("changed")
        return [letter]

    between(scene, change)


@attack(
    "relay-other-windows", "Puts another rank's window into greetings.", moves=True, proof="changed"
)
def relay_other_windows(scene: Scene) -> None:
    seen: list[int] = []

    def change(letter: Letter) -> list[Letter]:
        if letter.kind in (HELLO, WELCOME) and letter.fds:
            seen.append(os.dup(letter.fds[0]))
            scene.held.append(seen)
            scene.did("changed")
            return [Letter(letter.data, [random.choice(seen)], letter.from_caller)]
        return [letter]

    between(scene, change)


@attack(
    "relay-other-names",
    "Puts another rank's name into greetings.",
    moves=True,
    proof="changed",
    slow=True,
)
def relay_other_names(scene: Scene) -> None:
    seen: list[bytes] = []

    def change(letter: Letter) -> list[Letter]:
        if letter.kind in (HELLO, WELCOME):
            seen.append(letter.data[8:22])
            at = random.choice((8, 22))
            letter.data = letter.data[:at] + random.choice(seen) + letter.data[at + 14 :]
            scene.did("changed")
        return [letter]

    between(scene, change)


@attack("relay-repeats", "Passes on every message twice.", moves=True, proof="repeated", slow=True)
def relay_repeats(scene: Scene) -> None:
    def change(letter: Letter) -> list[Letter]:
        scene.did("repeated")
        return [letter, letter]

    between(scene, change)


@attack("relay-slow", "Passes on each message late.", alone=True, proof="late", slow=True)
def relay_slow(scene: Scene) -> None:
    def change(letter: Letter) -> list[Letter]:
        time.sleep(0.05)
        scene.did("late")
        return [letter]

    between(scene, change)


@attack(
    "relay-other-copies", "Changes what ranks say of direct copies.", alone=True, proof="changed"
)
def relay_other_copies(scene: Scene) -> None:
    def change(letter: Letter) -> list[Letter]:
        if letter.kind in (MET, ACK, GO):
            letter.alter(8, "<i", random.choice((0, 1, 1, 2, -1)))
            scene.did("changed")
        elif letter.kind in (HELLO, WELCOME):
            letter.alter(72 + 8 * random.randrange(4), "<Q", random.getrandbits(46))
            scene.did("changed")
        return [letter]

    between(scene, change)
