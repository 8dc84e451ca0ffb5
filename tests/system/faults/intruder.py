# SPDX-License-Identifier: Apache-2.0
"""Get a neighbour's window by a real handshake and try every way to change a byte of it.

Arguments: the rundir and its number, the owner's address, and its pid or 0. Prints one JSON object:
what each way came to ("refused: ...", or "done").
"""

import ctypes
import fcntl
import json
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.system.faults.hello import (
    HELLO,
    Greeting,
    Identity,
    Window,
    visit,
)

PUNCH = 0x2 | 0x1  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
libc = ctypes.CDLL(None, use_errno=True)


class Owner:
    """The part of a driven endpoint that a visitor needs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.identity = address[4:16]


def check(result: int) -> None:
    """Raise what errno says when a C call failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def protect(fd: int) -> None:
    """Map for reading, ask for more later."""
    size = os.fstat(fd).st_size
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(size), 1, 1, fd, ctypes.c_long(0))
    check(libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 3))


def write_anew(path: str) -> None:
    """Open it by path once more, for writing."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, b"intruder", 0)
    finally:
        os.close(fd)


def map_anew(path: str) -> None:
    """Open it by path once more and map it for writing."""
    fd = os.open(path, os.O_RDWR)
    try:
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)


def paths_of(pid: int) -> list[str]:
    """Every path under which the kernel shows the owner's own window."""
    if not pid:
        return []
    fds = [
        str(path)
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if "nearmetal-window" in str(path.readlink())
    ]
    maps = [
        f"/proc/{pid}/map_files/{line.split()[0]}"
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "nearmetal-window" in line
    ]
    return fds + maps


def attempt(way: Callable[[], object]) -> str:
    """Tell how a way ended."""
    try:
        way()
    except (OSError, ValueError) as error:
        return f"refused: {error}"
    return "done"


def intrude(fd: int, pid: int) -> dict[str, str]:
    """Try everything."""
    here = f"/proc/self/fd/{fd}"
    shared, writable = mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
    ways: dict[str, Callable[[], object]] = {
        "write": lambda: os.pwrite(fd, b"intruder", 0),
        "map": lambda: mmap.mmap(fd, 4096, shared, writable),
        "protect": lambda: protect(fd),
        "truncate": lambda: os.ftruncate(fd, 0),
        "extend": lambda: os.ftruncate(fd, 1 << 40),
        "punch": lambda: check(libc.fallocate(fd, PUNCH, ctypes.c_long(0), ctypes.c_long(4096))),
        "seal": lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x8),
        "reopen and write": lambda: write_anew(here),
        "reopen and map": lambda: map_anew(here),
        "reopen and truncate": lambda: os.truncate(here, 0),
    }
    for path in paths_of(pid):
        kind = path.split("/")[3]
        ways[f"{kind} write"] = lambda path=path: write_anew(path)  # type: ignore[misc]
        ways[f"{kind} map"] = lambda path=path: map_anew(path)  # type: ignore[misc]
        ways[f"{kind} truncate"] = lambda path=path: os.truncate(path, 0)  # type: ignore[misc]
    return {name: attempt(way) for name, way in ways.items()}


def main() -> None:
    """Visit, take the window, try, tell."""
    directory, number, address, pid = sys.argv[1:]
    owner = Owner(address)
    window = Window(Identity.random()).at(int(number))
    with visit(Path(directory), owner) as line:
        line.send(Greeting(window.who, Identity.of(owner), HELLO).pack(), window.seal())
        _, fd = line.receive()
        result = intrude(fd, int(pid))
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main()
