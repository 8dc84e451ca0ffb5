# SPDX-License-Identifier: Apache-2.0
"""Attacks by calls: greetings that say nothing, too little or too much. They need no address."""

import contextlib
import os
import random
import socket
import struct
import time

from tests.system.faults.hello import MAGIC, VERSION, Greeting, Identity, Line
from tests.system.faults.shm_scene import Scene, seqpacket
from tests.system.faults.shm_table import QUICK_MS, attack

MANY = 400


def knock(scene: Scene) -> list[socket.socket]:
    """Call every rank once."""
    callers = []
    for path in scene.sockets():
        caller = seqpacket()
        caller.setblocking(False)
        with contextlib.suppress(OSError):
            caller.connect(str(path))
            scene.did("calls")
            callers.append(caller)
    return callers


@attack("callers-silent", "Calls every rank without end and says nothing.")
def callers_silent(scene: Scene) -> None:
    held: list[socket.socket] = []
    for _ in scene.turns(0.0005):
        held += knock(scene)
        for caller in held[: max(0, len(held) - 4 * MANY)]:
            caller.close()
        held = held[-4 * MANY :]


@attack("callers-flood", "Calls and hangs up as fast as it can.")
def callers_flood(scene: Scene) -> None:
    for _ in scene.turns(0):
        for caller in knock(scene):
            caller.close()


@attack("callers-slow", "Says hello one byte at a time, in many calls at once.", proof="bytes")
def callers_slow(scene: Scene) -> None:
    hello = Greeting(Identity.random()).pack()
    callers: list[tuple[socket.socket, int]] = []
    for _ in scene.turns():
        callers = callers[-MANY:] + [(caller, 0) for caller in knock(scene)]
        for index, (caller, said) in enumerate(callers):
            with contextlib.suppress(OSError):
                caller.send(hello[said : said + 1])
                scene.did("bytes")
            callers[index] = (caller, (said + 1) % len(hello))


@attack("callers-wrong-kind", "Sends each kind of message first, in each length.", proof="messages")
def callers_wrong_kind(scene: Scene) -> None:
    for _ in scene.turns():
        for caller in knock(scene):
            with caller, contextlib.suppress(OSError):
                for _ in range(random.randrange(1, 5)):
                    kind = random.randrange(9)
                    head = struct.pack("<IHH", MAGIC, random.choice((VERSION, 0, 9)), kind)
                    length = random.choice((0, 1, 8, 192, 224, 256, 257, 4096, 65536))
                    caller.send((head + os.urandom(length))[:length])
                    scene.did("messages")


@attack(
    "callers-descriptors",
    "Sends as many descriptors as fit, in every message.",
    moves=True,
    proof="sent",
)
def callers_descriptors(scene: Scene) -> None:
    fds = [os.open("/dev/zero", os.O_RDONLY) for _ in range(253)]
    hello = Greeting(Identity.random()).pack()
    for _ in scene.turns():
        for caller in knock(scene):
            scene.held.append(caller)
            with contextlib.suppress(OSError):
                for nr in (253, 2, 253, 1):
                    socket.send_fds(caller, [hello], fds[:nr])
                    scene.did("sent", nr)
        del scene.held[:-MANY]


@attack(
    "callers-in-flight",
    "Keeps so many descriptors in flight that the kernel lets its user send no more.",
    moves=True,
    proof="in flight",
    connect_ms=QUICK_MS,
)
def callers_in_flight(scene: Scene) -> None:
    fill_the_kernel(scene)
    for _ in scene.turns(0.1):
        pass


@attack(
    "callers-in-flight-at-times",
    "Fills that limit for half a second, again and again, with a tenth of a second between.",
    alone=True,
    proof="in flight",
)
def callers_in_flight_at_times(scene: Scene) -> None:
    for _ in scene.turns(0.1):
        fill_the_kernel(scene)
        time.sleep(0.5)
        scene.held.clear()


def fill_the_kernel(scene: Scene) -> None:
    """Hold as many descriptors in flight as the kernel allows."""
    fds = [os.open("/dev/zero", os.O_RDONLY) for _ in range(250)]
    with contextlib.suppress(OSError):
        for _ in range(60):
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            one.setblocking(False)
            scene.held.extend((one, other))
            for _ in range(5):
                socket.send_fds(one, [b"x"], fds)
                scene.did("in flight", len(fds))
    for fd in fds:
        os.close(fd)


@attack("callers-farewells", "Says goodbye before, instead of and after hello.", proof="farewells")
def callers_farewells(scene: Scene) -> None:
    for _ in scene.turns():
        for caller in knock(scene):
            with caller, contextlib.suppress(OSError):
                line = Line(caller)
                caller.setblocking(False)
                for kind in (6, 5, 4, 3, 6, 6):
                    line.send_kind(kind)
                    scene.did("farewells")
