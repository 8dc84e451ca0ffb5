# SPDX-License-Identifier: Apache-2.0
"""Attacks by identities: those of ranks, and as many of the attacker's own as it can have."""

import contextlib
import os
import random
import socket
import time
from dataclasses import replace

from tests.system.faults.hello import (
    GO,
    HEADER,
    HELLO,
    MET,
    WELCOME,
    Greeting,
    Identity,
    Line,
)
from tests.system.faults.shm_den import Den, meet_all, ranks
from tests.system.faults.shm_scene import Scene
from tests.system.faults.shm_table import attack

PENDING = 700
"""More calls than a rank has lanes, with its limit of descriptors."""


def pairs(found: list[Identity]) -> list[tuple[Identity, Identity]]:
    """Return each two different ranks."""
    return [(one, other) for one in found for other in found if one != other]


@attack("identity-own-window", "Greets each rank as another rank, with a window of its own.")
def identity_own_window(scene: Scene) -> None:
    found = scene.scout()
    one = Den(scene)
    for turn, _ in enumerate(scene.turns()):
        for victim, callee in pairs(found):
            one.put("<6s", 64, victim.ident)
            with contextlib.suppress(OSError), scene.line(callee) as line:
                line.send(Greeting(victim, callee, HELLO).pack(), one.fd)
                scene.did("greeted")
                line.farewell()
        if turn == 2:
            scene.release()


@attack("identity-stolen-window", "Greets each rank as another one, with that one's own window.")
def identity_stolen_window(scene: Scene) -> None:
    found = scene.scout()
    for turn, _ in enumerate(scene.turns()):
        for victim, callee in pairs(found):
            if victim.ident not in scene.windows:
                continue
            with contextlib.suppress(OSError), scene.line(callee) as line:
                hello = Greeting(victim, callee, HELLO, challenge=7, lane=turn % 5)
                line.send(hello.pack(), scene.windows[victim.ident])
                data, fd = line.receive()
                if fd >= 0:
                    os.close(fd)
                if data and HEADER.unpack_from(data)[2] == WELCOME:
                    line.send_kind(MET)
                    line.send_kind(GO)
                    scene.did("claimed")
                    line.farewell()
        if turn == 2:
            scene.release()


@attack("identity-of-callee", "Greets each rank as that rank itself, and as nobody.")
def identity_of_callee(scene: Scene) -> None:
    found = ranks(scene)
    nobody = Identity(bytes(6), bytes(8))
    one = Den(scene)
    for _ in scene.turns():
        for who in found:
            for name in (who, nobody, replace(who, place=one.who.place)):
                with contextlib.suppress(OSError), scene.line(who) as line:
                    fd = scene.windows.get(who.ident, one.fd)
                    line.send(Greeting(name, who, HELLO).pack(), fd)
                    scene.did("greeted")
                    line.farewell()


@attack("identity-places", "Greets each rank as others whose places differ in one byte.")
def identity_places(scene: Scene) -> None:
    found = ranks(scene)
    one = Den(scene)
    for _ in scene.turns():
        for victim, callee in pairs(found):
            place = bytearray(victim.place)
            place[random.randrange(8)] ^= 1 << random.randrange(8)
            fd = scene.windows.get(victim.ident, one.fd)
            with contextlib.suppress(OSError), scene.line(callee) as line:
                line.send(Greeting(replace(victim, place=bytes(place)), callee).pack(), fd)
                scene.did("greeted")
                line.farewell()


@attack("identity-name-shared", "Meets each rank under another rank's name, with its own place.")
def identity_name_shared(scene: Scene) -> None:
    found = scene.scout()
    for victim, callee in pairs(found):
        one = Den(scene)
        one.who = replace(one.who, ident=victim.ident)
        one.put("<6s", 64, victim.ident)
        with contextlib.suppress(OSError):
            sock = scene.call(callee)
            scene.held.extend((sock, one))
            one.meet(Line(sock), callee)
    scene.release()
    for _ in scene.turns(0.1):
        pass


@attack(
    "identity-pending",
    "Begins more handshakes than ranks have lanes or descriptors, and completes none.",
    # Its relays, by which it learns the addresses, cut calls where the machine is slow, and such
    # pairs use the network: SECURITY.md.
    moves=True,
    proof="pending",
)
def identity_pending(scene: Scene) -> None:
    pend(scene, reads=True)


@attack(
    "identity-unread",
    "The same, and leaves the answers unread: the kernel counts the descriptors in them.",
    moves=True,
    proof="pending",
)
def identity_unread(scene: Scene) -> None:
    pend(scene, reads=False)


def pend(scene: Scene, *, reads: bool) -> None:
    """Keep many calls after their hello."""
    found = scene.scout()
    one = Den(scene, nr_lanes=1)
    one.touch_ring(0)
    calls: list[socket.socket] = []
    begin = time.monotonic()
    for _ in scene.turns(0):
        for who in found:
            with contextlib.suppress(OSError):
                sock = scene.call(who)
                calls.append(sock)
                Line(sock).send(one.greeting(HELLO, who), one.fd)
                scene.did("pending")
        for sock in calls[-40:] if reads else []:
            with contextlib.suppress(OSError):
                sock.setblocking(False)
                _, fds, _, _ = socket.recv_fds(sock, 4096, 4)
                for fd in fds:
                    os.close(fd)
        del calls[: -PENDING * len(found)]
        if len(calls) > 250 * len(found) or time.monotonic() > begin + 0.5:
            scene.release()


@attack(
    "identity-lanes",
    "Meets each rank under more names than it has descriptors for.",
    moves=True,
    proof="met",
)
def identity_lanes(scene: Scene) -> None:
    found = scene.scout()
    for turn in range(300):
        one, _ = meet_all(scene, found)
        scene.held.append(one)
        if turn == 40:
            scene.release()
        if scene.over():
            break
    scene.release()
    for _ in scene.turns(0.1):
        pass


@attack(
    "identity-churn",
    "Comes under a new name, and goes, as often as it can.",
    wildcards=True,
    proof="met",
)
def identity_churn(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns(0):
        one, _ = meet_all(scene, found)
        del scene.held[:]
        one.close()


@attack("identity-dying", "Dies at each step of a handshake.", wildcards=True, proof="deaths")
def identity_dying(scene: Scene) -> None:
    found = ranks(scene)
    for turn, _ in enumerate(scene.turns()):
        who = found[turn % len(found)]
        child = os.fork()
        if child == 0:
            die_at(scene, who, turn % 7)
            os._exit(0)
        os.waitpid(child, 0)
        scene.did("deaths")


def die_at(scene: Scene, who: Identity, step: int) -> None:
    """Get as far as STEP."""
    one = Den(scene)
    with contextlib.suppress(OSError), scene.line(who) as line:
        if step == 0:
            return
        if step == 1:
            line.send(one.greeting(HELLO, who), one.fd)
            return
        if step < 5:
            welcome = one.hello(line, who)
            if welcome and step > 2:
                one.show(0, who, welcome.challenge, writer=True)
                line.send_kind(MET)
            if step == 4:
                line.receive()
            return
        if one.meet(line, who) and step == 6:
            one.write(0, 1, b"last words", length=4000)
