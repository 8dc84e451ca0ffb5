# SPDX-License-Identifier: Apache-2.0
"""Attacks by the windows of greetings, under an identity of the attacker's own."""

import contextlib
import os
import random
import socket
import struct
from collections.abc import Iterator

from tests.system.faults.hello import HELLO, SEALS, Greeting, Identity, Line, Window
from tests.system.faults.shm_den import Den, ranks
from tests.system.faults.shm_scene import Scene
from tests.system.faults.shm_table import attack

MIB = 1 << 20


def offer(scene: Scene, to: Identity, who: Identity, *fds: int, lane: int = 0) -> None:
    """Say hello with some descriptor, and read the refusal."""
    with contextlib.suppress(OSError), scene.line(to) as line:
        line.send(Greeting(who, to, HELLO, lane=lane).pack(), *fds)
        scene.did("hellos")
        line.farewell()
        scene.did("refused")


def odd_descriptors(scene: Scene) -> list[int]:
    """Return descriptors of everything that is no window."""
    pipe = os.pipe()
    one, other = socket.socketpair()
    scene.held.extend((one, other))
    fds = [*pipe, one.fileno(), os.eventfd(0)]
    for path, flags in (
        ("/dev/zero", os.O_RDWR),
        ("/dev/null", os.O_WRONLY),
        ("/", os.O_RDONLY),
        ("/proc/self/mem", os.O_RDONLY),
        ("/proc/self/maps", os.O_RDONLY),
        ("/etc/passwd", os.O_PATH),
        ("/etc/passwd", os.O_RDONLY),
    ):
        fds.append(os.open(path, flags))
    with contextlib.suppress(OSError):
        fds.append(os.memfd_create("huge", os.MFD_HUGETLB | os.MFD_ALLOW_SEALING))
    return fds


@attack("windows-odd-files", "Offers pipes, devices, directories and huge pages as its window.")
def windows_odd_files(scene: Scene) -> None:
    found, fds = ranks(scene), odd_descriptors(scene)
    for _ in scene.turns():
        for who in found:
            offer(scene, who, Identity.random(), random.choice(fds))
            offer(scene, who, Identity.random())


@attack("windows-unsealed", "Offers windows that could still shrink, grow or get a writer.")
def windows_unsealed(scene: Scene) -> None:
    found = ranks(scene)
    windows = [
        Window(Identity.random(), seals=seals).at(scene.number)
        for seals in (0, 1, 2, 4, 6, 16, 22, SEALS & ~4, SEALS & ~1, SEALS & ~2, 8)
    ]
    for window in windows:
        with contextlib.suppress(OSError):
            window.seal()
    for _ in scene.turns():
        for who in found:
            window = random.choice(windows)
            offer(scene, who, window.who, window.fd)


def sparse_windows(scene: Scene) -> Iterator[Window]:
    """Windows of sizes that nobody means."""
    for size, claimed in (
        (64 * MIB, 64 * MIB),
        (1 << 40, 1 << 40),
        (4096, 69632),
        (69632, 4096),
        (128, 128),
        (0, 0),
        (1 << 20, 1 << 62),
        (69632, 0),
    ):
        window = Window(Identity.random(), claimed_size=claimed, real_size=size, sparse=True).at(
            scene.number
        )
        window.seal()
        yield window


@attack("windows-sparse", "Offers windows of any size up to 1 TiB, with and without holes.")
def windows_sparse(scene: Scene) -> None:
    found = ranks(scene)
    windows = list(sparse_windows(scene))
    for _ in scene.turns():
        for who in found:
            window = random.choice(windows)
            offer(scene, who, window.who, window.fd)


@attack("windows-geometry", "Offers sound files whose headers lie.")
def windows_geometry(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns():
        for who in found:
            one = Den(scene)
            for _ in range(random.randrange(1, 4)):
                at = random.randrange(8, 64)
                one.put("<I", at & ~3, random.choice((0, 1, 2, 0xFFFFFFFF, 1 << 20, 255)))
            offer(scene, who, one.who, one.fd, lane=random.choice((0, 3, 4, 512, 0xFFFFFFFF)))
            one.close()


@attack("windows-lanes", "Names lanes that its window does not have, or did not touch.")
def windows_lanes(scene: Scene) -> None:
    found = ranks(scene)
    one = Den(scene, nr_lanes=16)
    one.touch_ring(15)
    for _ in scene.turns():
        for who in found:
            offer(scene, who, one.who, one.fd, lane=random.choice((16, 17, 5, 4096, 0xFFFFFFFF)))


@attack(
    "windows-large",
    "Offers windows of 48 MiB again and again, which take time to map; it reads no answer.",
    moves=True,
)
def windows_large(scene: Scene) -> None:
    found = ranks(scene)
    one = Den(scene, nr_lanes=8, chunk=65536, nr=768)
    calls: list[object] = []
    for _ in scene.turns(0):
        for lane, who in enumerate(found):
            with contextlib.suppress(OSError):
                one.touch_ring(lane)
                sock = scene.call(who)
                socket.send_fds(sock, [one.greeting(HELLO, who, lane)], [one.fd])
                calls.append(sock)
                scene.did("hellos")
        del calls[:-16]


@attack(
    "windows-budget",
    "Takes all address space that ranks give to windows, with identities of its own.",
    moves=True,
    proof="met",
)
def windows_budget(scene: Scene) -> None:
    found = scene.scout()
    for _ in range(24):
        with contextlib.suppress(OSError):
            one = Den(scene, nr_lanes=4096, slots=4096)
            scene.held.append(one)
            for lane, who in enumerate(found):
                sock = scene.call(who)
                scene.held.append(sock)
                one.meet(Line(sock), who, lane)
    scene.release()
    for _ in scene.turns(0.1):
        pass


@attack("windows-changing", "Rewrites its header and its lanes while it is being met.")
def windows_changing(scene: Scene) -> None:
    found = ranks(scene)
    for _ in scene.turns():
        for lane, who in enumerate(found):
            one = Den(scene, nr_lanes=8)
            with contextlib.suppress(OSError), scene.line(who) as line:
                welcome = one.hello(line, who, lane)
                for _ in range(4):
                    at = random.randrange(0, one.rings, 8)
                    one.put("<Q", at, random.getrandbits(64))
                if welcome:
                    one.show(lane, who, welcome.challenge, writer=True)
                    line.send(struct.pack("<IHHI180s", 0x746D6D6E, 4, 3, 1, b"\x1b[2J"))
                    scene.did("changed")
                    line.receive()
            one.close()
