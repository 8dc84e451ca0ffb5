# SPDX-License-Identifier: Apache-2.0
"""What the attacks on the channel shm share: the sockets of a job, and the addresses of its ranks.

The attacker is a process of the job's user in one node of the job. It sees the rundir of the job.
It learns all addresses as any rank would have them: it puts sockets of its own in place, reads the
greetings of the callers, and passes them on to the owners.
"""

import contextlib
import copy
import os
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from tests.system.faults.hello import GREETING, HEADER, HELLO, PLACE, Greeting, Identity, Line

NAME = re.compile(r"[0-9a-f]{12}")
LAST_S = 200
HOLD_S = 0.6
"""How long callers wait at most while the attacker learns and prepares."""
MIN_KNOWN = 4
RANKS = 4
IDLE_S, TAKES_S = 0.3, 10
"""How long the ranks wait before they meet: for an attack that begins, and for one that takes their
names, which a busy machine may hold up."""


def seqpacket() -> socket.socket:
    """Return a socket of the kind that endpoints use."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def pass_on(one: socket.socket, other: socket.socket) -> bytes:
    """Pass on one message with its descriptors; b"": it hung up."""
    data, fds, _, _ = socket.recv_fds(one, 4096, 4)
    if data:
        socket.send_fds(other, [data], fds)
    for fd in fds:
        os.close(fd)
    return data


Handler = Callable[[socket.socket, Path], None]


class Scene:
    """The rundirs below one directory, and what the attacker has learnt and done there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.end = time.monotonic() + LAST_S
        self.counts: Counter[str] = Counter()
        self.mine: set[int] = set()
        self.known: dict[bytes, Identity] = {}
        self.homes: dict[bytes, Path] = {}
        self.windows: dict[bytes, int] = {}
        self.numbers: list[int] = []
        self.begins: list[float] = []
        self.released = threading.Event()
        self.takes, self.took = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.scouting = threading.Lock()
        self.held: list[object] = []

    def view(self) -> Self:
        """Return the same scene for another attack, which counts and holds for itself."""
        one = copy.copy(self)
        one.counts, one.held = Counter(), []
        return one

    @property
    def number(self) -> int:
        """What the inode numbers of windows are mixed with in addresses of this rundir."""
        return self.numbers[0] if self.numbers else 0

    def over(self) -> bool:
        """Tell whether the job has ended."""
        return time.monotonic() > self.end or (self.directory / "stop").exists()

    def turns(self, pause_s: float = 0.002) -> Iterator[None]:
        """Return once per turn until the job has ended."""
        while not self.over():
            yield
            time.sleep(pause_s)

    def did(self, what: str, nr: int = 1) -> None:
        """Count what was done."""
        self.counts[what] += nr

    def ranks_wait(self) -> bool:
        """Tell whether all ranks wait to meet each other: see mpi_rounds.c."""
        return all((self.directory / f"at-{rank}").exists() for rank in range(RANKS))

    def start_ranks(self) -> None:
        """Let the ranks meet, as soon as an attack has taken their names, or does not."""
        for _ in self.turns():
            if self.ranks_wait():
                if self.takes.wait(IDLE_S):
                    self.took.wait(TAKES_S)
                (self.directory / "go").touch()
                return

    def rundirs(self) -> list[Path]:
        """Return the rundirs of jobs."""
        with contextlib.suppress(OSError):
            return [p for p in self.directory.iterdir() if p.is_dir() and p.suffix != ".stats"]
        return []

    def sockets(self) -> list[Path]:
        """Return the sockets of ranks. They go while this looks."""
        found = []
        for rundir in self.rundirs():
            with contextlib.suppress(OSError):
                for path in rundir.iterdir():
                    with contextlib.suppress(OSError):
                        if NAME.fullmatch(path.name) and path.lstat().st_ino not in self.mine:
                            found.append(path)
        return [path for path in found if path.is_socket()]

    def replace(self, path: Path, handler: Handler | None, backlog: int = 128) -> None:
        """Take a name; its owner's socket keeps a second one. HANDLER serves callers in threads."""
        aside = self.aside(path)
        fresh = path.with_name(f"fresh-{path.name}")
        listener = seqpacket()
        for left in (fresh, aside):
            left.unlink(missing_ok=True)
        listener.bind(str(fresh))
        if backlog >= 0:
            listener.listen(backlog)
        self.mine.add(fresh.lstat().st_ino)
        aside.hardlink_to(path)
        fresh.rename(path)
        threading.Thread(target=self._serve, args=(listener, path, handler), daemon=True).start()

    @staticmethod
    def aside(path: Path) -> Path:
        """Return the second name of a socket whose name was taken."""
        return path.with_name(f"aside-{path.name}")

    @staticmethod
    def _serve(listener: socket.socket, path: Path, handler: Handler | None) -> None:
        if handler is None:
            threading.Event().wait()
        while handler is not None:
            caller, _ = listener.accept()
            threading.Thread(target=handler, args=(caller, path), daemon=True).start()

    def replace_all(self, handler: Handler | None, backlog: int = 128) -> None:
        """Take the names of all ranks that have them at the moment."""
        self.takes.set()
        wait = self.ranks_wait()
        for path in self.sockets():
            with contextlib.suppress(OSError):
                self.replace(path, handler, backlog)
                self.did("names taken")
        if wait:
            self.took.set()

    def owner_of(self, path: Path) -> socket.socket:
        """Call the owner of a name, wherever its present socket is."""
        for _ in range(200):
            for name in (self.aside(path), path):
                owner = seqpacket()
                with contextlib.suppress(OSError):
                    if name.lstat().st_ino not in self.mine or name != path:
                        owner.connect(str(name))
                        return owner
                    owner.close()
            if self.over():
                break
            time.sleep(0.01)
        raise ConnectionRefusedError(path)

    def learn(self, data: bytes, fds: list[int], path: Path) -> None:
        """Read a greeting that passes by."""
        if len(data) != GREETING.size or HEADER.unpack_from(data)[2] != HELLO:
            return
        hello = Greeting.parse(data)
        to = Identity(*struct.unpack_from("6s8s", data, 22))
        with self.lock:
            self.begins.append(time.monotonic())
            for who in (hello.who, to):
                self.known[who.ident] = who
                self.homes[who.ident] = path.with_name(who.ident.hex())
            if fds and hello.who.ident not in self.windows:
                self.windows[hello.who.ident] = os.dup(fds[0])
                inode = os.fstat(fds[0]).st_ino
                number = (int.from_bytes(hello.who.place, "little") ^ inode) & PLACE
                self.numbers.append(number)

    def relay(self, caller: socket.socket, path: Path) -> None:
        """Hold a caller until the attacker is ready, then pass everything on."""
        with caller, contextlib.suppress(OSError):
            data, fds, _, _ = socket.recv_fds(caller, 4096, 4)
            self.learn(data, fds, path)
            self.released.wait(HOLD_S)
            with self.owner_of(path) as owner:
                socket.send_fds(owner, [data], fds)
                while True:
                    for one in select.select([caller, owner], [], [])[0]:
                        if not pass_on(one, owner if one is caller else caller):
                            return

    def scout(self) -> list[Identity]:
        """Learn the addresses. Callers wait until release(), or HOLD_S."""
        with self.scouting:
            return list(self.known.values()) or self._scout()

    def _scout(self) -> list[Identity]:
        for _ in self.turns():
            self.replace_all(self.relay)
            with self.lock:
                late = self.begins and time.monotonic() > self.begins[0] + HOLD_S / 2
                if late or len(self.known) >= MIN_KNOWN:
                    self.did("addresses learnt", len(self.known))
                    self.took.set()
                    return list(self.known.values())
        return []

    def release(self) -> None:
        """Let the callers go on."""
        self.released.set()

    def call(self, who: Identity) -> socket.socket:
        """Call a rank that was learnt, past the attacker's own sockets."""
        return self.owner_of(self.homes[who.ident])

    @contextlib.contextmanager
    def line(self, who: Identity, patience_s: float = 2) -> Iterator[Line]:
        """Call a rank for a while."""
        with self.call(who) as sock:
            line = Line(sock)
            sock.settimeout(patience_s)
            yield line

    def tidy(self) -> None:
        """Remove what the attacker left in the rundirs."""
        for rundir in self.rundirs():
            with contextlib.suppress(OSError):
                rundir.chmod(0o700)
                for path in rundir.iterdir():
                    with contextlib.suppress(OSError):
                        path.rmdir() if path.is_dir() else path.unlink()
