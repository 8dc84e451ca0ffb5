# SPDX-License-Identifier: Apache-2.0
"""The meeting protocol spoken by hand, well or badly: what src/connect/message.h says, in Python."""

import array
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from tests.system.faults.peer import PATIENCE_S

MAGIC = 0x746D6D6E
VERSION = 4
HELLO, WELCOME, MET, ACK, GO, BYE = range(1, 7)
NOBODYS = (1 << 64) - 1
"""The tag of a message that no job looks for (docs/design/faults.md: messages that are left over)."""

HEADER = struct.Struct("<IHH")
GREETING = struct.Struct("<IHH 6s8s 6s8s III QQQ 56s 96s")
STEP = struct.Struct("<IHH I180s")
FAREWELL = struct.Struct("<IHH i180s")

WINDOW = struct.Struct("<Q II Q IIII II Q II 6s58x I60x")
WINDOW_MAGIC = 0x31776C6174656D6E
SEALS = 0x1 | 0x2 | 0x4 | 0x10  # seal, shrink, grow, future write
LANES_OFF, REGIONS_OFF, BOXES_OFF = 256, 2048, 4096
POOL_OFF, WINDOW_SIZE = 65536, 65536 + 4096
LANE_WRITER_PROOF, LANE_READER_PROOF = 64, 72  # in the lane


class Owner(Protocol):
    """An endpoint as far as a visitor has to know it."""

    @property
    def address(self) -> str:
        """Its fabric address, in hexadecimal digits."""

    @property
    def identity(self) -> str:
        """The name of its socket."""


class Process(Owner, Protocol):
    """An endpoint whose process can be examined."""

    @property
    def pid(self) -> int:
        """Its number here."""


PLACE = (1 << 40) - 1
"""Bits of a place that name the file of a window."""


def rundir_number(peer: Process) -> int:
    """Return what the inode number of a window is mixed with in addresses of a rundir."""
    for line in Path(f"/proc/{peer.pid}/maps").read_text().splitlines():
        _, rights, _, _, inode, *name = line.split()
        if "nearmetal-window" in "".join(name) and "w" in rights:
            return (int.from_bytes(Identity.of(peer).place, "little") ^ int(inode)) & PLACE
    raise AssertionError("it has no window")


@dataclass(frozen=True)
class Identity:
    """Who an endpoint is: the name of its socket, and the place of its window."""

    ident: bytes
    place: bytes

    @classmethod
    def random(cls) -> Self:
        """Somebody new."""
        return cls(os.urandom(6), os.urandom(8))

    @classmethod
    def of(cls, peer: Owner) -> Self:
        """Read it from a fabric address."""
        address = bytes.fromhex(peer.address)
        return cls(address[2:8], address[8:16])


@dataclass
class Greeting:
    """HELLO or WELCOME; the defaults are right, so that a test can make one thing wrong."""

    who: Identity
    to: Identity = field(default_factory=lambda: Identity(bytes(6), bytes(8)))
    kind: int = HELLO
    magic: int = MAGIC
    version: int = VERSION
    lane: int = 0
    features: int = 0
    challenge: int = 0x1234567890
    label: bytes = b"a stranger, pid 1"

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return GREETING.pack(
            *(self.magic, self.version, self.kind),
            *(self.who.ident, self.who.place, self.to.ident, self.to.place),
            *(self.lane, self.features, 0),
            *(self.challenge, 0, 0),
            bytes(56),
            self.label,
        )

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what a sound endpoint has sent."""
        magic, version, kind, *who, lane, features, _, challenge, _, _, _, label = GREETING.unpack(
            data
        )
        names = Identity(*who[:2]), Identity(*who[2:])
        rest = lane, features, challenge, label.rstrip(b"\0")
        return cls(*names, kind, magic, version, *rest)


@dataclass
class Window:
    """A shared window, sound unless told otherwise."""

    who: Identity
    magic: int = WINDOW_MAGIC
    version: int = VERSION
    features: int = 0
    claimed_size: int = WINDOW_SIZE
    nr_lanes: int = 1
    real_size: int = WINDOW_SIZE
    seals: int = SEALS
    sparse: bool = False
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        header = WINDOW.pack(
            *(self.magic, self.version, self.features, self.claimed_size),
            *(self.nr_lanes, 16, 4096, 1, LANES_OFF, BOXES_OFF, POOL_OFF, REGIONS_OFF, 0),
            *(self.who.ident, 1),
        )
        self.fd = os.memfd_create("stranger", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.real_size)
        # An owner touches its pages: neighbours refuse holes.
        length = BOXES_OFF if self.sparse else self.real_size
        os.pwrite(self.fd, header.ljust(length, b"\0")[: self.real_size], 0)

    def at(self, number: int) -> Self:
        """Let its identity name this file, in the rundir with that number."""
        named = (os.fstat(self.fd).st_ino ^ number) & PLACE
        self.who = replace(self.who, place=named.to_bytes(5, "little") + self.who.place[5:])
        return self

    def seal(self) -> int:
        """Close it to writers as an owner must; returns the descriptor."""
        if self.seals:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, self.seals)
        return self.fd

    def prove(self, offset_in_lane: int, challenge: int) -> None:
        """Show that what is written here can be seen there; only before it is sealed."""
        os.pwrite(self.fd, struct.pack("<Q", challenge), LANES_OFF + offset_in_lane)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


class Line:
    """One end of a meeting socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.settimeout(PATIENCE_S)

    def send(self, data: bytes, *fds: int) -> None:
        """Send one message, with descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._sock.sendmsg([data], rights)

    def send_kind(self, kind: int) -> None:
        """Send a message that is a header alone."""
        self.send(STEP.pack(MAGIC, VERSION, kind, 0, b"a stranger copies nothing"))

    def receive(self) -> tuple[bytes, int]:
        """Return one message and the descriptor that came with it, or -1; b"": it hung up."""
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, 4096, 4)
        except ConnectionResetError:
            return self.receive()
        return data, fds[0] if fds else -1

    def farewell(self) -> str:
        """Read on to the farewell; return its words, or that there were none."""
        while True:
            data, fd = self.receive()
            if fd >= 0:
                os.close(fd)
            if not data:
                return "(hung up without a word)"
            if HEADER.unpack_from(data)[2] == BYE:
                words: bytes = FAREWELL.unpack(data)[4]
                return words.rstrip(b"\0").decode()

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


@contextlib.contextmanager
def visit(directory: Path, owner: Owner) -> Iterator[Line]:
    """Knock at an endpoint's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        fd = os.open(directory, os.O_PATH)
        try:
            sock.connect(f"/proc/self/fd/{fd}/{owner.identity}")
        finally:
            os.close(fd)
        yield Line(sock)


@contextlib.contextmanager
def impersonate(directory: Path, owner: Owner) -> Iterator[socket.socket]:
    """Listen in the place of an endpoint, whose socket is set aside meanwhile."""
    name = directory / owner.identity
    aside = directory.parent / f"{owner.identity}.aside"
    name.rename(aside)
    fd = os.open(directory, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(f"/proc/self/fd/{fd}/{owner.identity}")
            sock.listen()
            sock.settimeout(PATIENCE_S)
            yield sock
    finally:
        os.close(fd)
        aside.rename(name)
