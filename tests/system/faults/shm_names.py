# SPDX-License-Identifier: Apache-2.0
"""Attacks on the names in the rundir of a job. They need no address."""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tests.system.faults.shm_den import hidden
from tests.system.faults.shm_scene import Scene, seqpacket
from tests.system.faults.shm_table import QUICK_MS, attack


def instead(scene: Scene, make: Callable[[Path], None]) -> None:
    """Put something else in the place of every socket that appears."""
    for _ in scene.turns():
        for path in scene.sockets():
            with contextlib.suppress(OSError):
                path.unlink()
                make(path)
                scene.did("replaced")


@attack("names-removed", "Removes every socket again and again.", moves=True)
def names_removed(scene: Scene) -> None:
    instead(scene, lambda _: None)


@attack("names-swapped", "Gives each rank's name to another rank's socket.", moves=True, slow=True)
def names_swapped(scene: Scene) -> None:
    for _ in scene.turns():
        paths = sorted(scene.sockets())
        for one, other in zip(paths[::2], paths[1::2], strict=False):
            third = one.with_name("swap")
            with contextlib.suppress(OSError):
                one.rename(third)
                other.rename(one)
                third.rename(other)
                scene.did("swapped")
        time.sleep(0.02)


@attack(
    "names-linked",
    "Hard links and symbolic links lead each name to another.",
    moves=True,
    slow=True,
)
def names_linked(scene: Scene) -> None:
    for _ in scene.turns(0.02):
        paths = sorted(scene.sockets())
        for one, other in zip(paths, paths[1:] + paths[:1], strict=False):
            link = one.with_name("link")
            with contextlib.suppress(OSError):
                link.unlink(missing_ok=True)
                link.symlink_to(other) if scene.counts["linked"] % 2 else link.hardlink_to(other)
                link.rename(one)
                scene.did("linked")


@attack("names-refuse", "Puts sockets in place that do not listen.", moves=True, slow=True)
def names_refuse(scene: Scene) -> None:
    for _ in scene.turns():
        scene.replace_all(None, backlog=-1)


@attack(
    "names-full",
    "Puts listeners in place whose queues are full.",
    moves=True,
    connect_ms=QUICK_MS,
    slow=True,
)
def names_full(scene: Scene) -> None:
    def fill(path: Path) -> None:
        listener = seqpacket()
        listener.bind(str(path))
        listener.listen(0)
        scene.held.append(listener)
        for _ in range(3):
            caller = seqpacket()
            caller.setblocking(False)
            scene.held.append(caller)
            with contextlib.suppress(OSError):
                caller.connect(str(path))
        scene.mine.add(path.lstat().st_ino)

    instead(scene, fill)


@attack(
    "names-silent", "Puts listeners in place that never answer.", moves=True, connect_ms=QUICK_MS
)
def names_silent(scene: Scene) -> None:
    def hold(caller: socket.socket, _: Path) -> None:
        scene.did("callers held")
        scene.held.append(caller)

    for _ in scene.turns():
        scene.replace_all(hold)


@attack("names-directories", "Puts directories in place, which no rename replaces.", moves=True)
def names_directories(scene: Scene) -> None:
    instead(scene, Path.mkdir)


@attack(
    "names-odd-files",
    "Puts FIFOs, links to devices and loops of links in place.",
    moves=True,
    slow=True,
)
def names_odd_files(scene: Scene) -> None:
    makers: list[Callable[[Path], object]] = [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.write_bytes(b"no socket"),
    ]

    def make(path: Path) -> None:
        makers[scene.counts["replaced"] % len(makers)](path)

    instead(scene, make)


@attack("names-modes", "Takes all rights from the sockets.", moves=True, slow=True)
def names_modes(scene: Scene) -> None:
    for _ in scene.turns():
        for path in scene.sockets():
            with contextlib.suppress(OSError):
                if path.lstat().st_mode & 0o777:
                    path.chmod(0)
                    scene.did("closed")


@attack(
    "names-crowd",
    "Fills the rundir with 10,000 names like those of dead ranks.",
    alone=True,
    proof="names",
)
def names_crowd(scene: Scene) -> None:
    for _ in scene.turns(0.05):
        for rundir in scene.rundirs():
            if rundir in scene.held:
                continue
            scene.held.append(rundir)
            crowd(scene, rundir)


def crowd(scene: Scene, rundir: Path) -> None:
    """Old sockets that refuse, with names as ranks have them, and longer ones."""
    with contextlib.suppress(OSError):
        for nr in range(10000):
            name = f"{nr:012x}" if nr % 4 else f".{nr:012x}.{nr:08x}"
            if nr % 100 == 99:
                name = f"{nr:0200x}"
            path = rundir / name
            if nr % 10:
                path.touch()
            else:
                with seqpacket() as sock:
                    sock.bind(f"{rundir}/{name[:60]}")
            scene.did("names")
            with contextlib.suppress(OSError):
                os.utime(path, (0, 0))


@attack("names-shut", "Closes the rundir, and opens it to everybody, in turn.", moves=True)
def names_shut(scene: Scene) -> None:
    modes = 0o000, 0o777, 0o700, 0o500
    for turn, _ in enumerate(scene.turns(0.03)):
        for rundir in scene.rundirs():
            with contextlib.suppress(OSError):
                rundir.chmod(modes[turn % len(modes)])
                scene.did("modes")


@attack("names-hidden", "Replaces sockets in the moment before they are shown.", moves=True)
def names_hidden(scene: Scene) -> None:
    for _ in scene.turns(0):
        for rundir in scene.rundirs():
            with contextlib.suppress(OSError):
                for path in rundir.iterdir():
                    if hidden(path):
                        path.unlink()
                        path.symlink_to("/dev/null")
                        scene.did("hidden")
                    elif path.lstat().st_ino not in scene.mine:
                        path.unlink()
                        scene.did("removed")


@attack("names-moved", "Moves the whole rundir away and puts another one in place.", moves=True)
def names_moved(scene: Scene) -> None:
    for _ in scene.turns(0.05):
        for rundir in scene.rundirs():
            if rundir.suffix == ".gone" or not any(rundir.iterdir()):
                continue
            with contextlib.suppress(OSError):
                rundir.rename(rundir.with_name(f"{rundir.name}.{scene.counts['moved']}.gone"))
                rundir.mkdir(0o700)
                scene.did("moved")
