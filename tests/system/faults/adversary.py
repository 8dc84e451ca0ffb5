# SPDX-License-Identifier: Apache-2.0
"""A process inside a job that replaces every socket of the rundir by one of its own.

It passes each handshake on to the socket that was there, with its descriptors. When the two sides
have met, it blames each to the other and hangs up. It goes on until the file `stop` is there, and
then prints how many connections it cut. It needs nothing but Python's own library: it runs in a node.

Argument: the directory in which each job has its rundir.
"""

import contextlib
import json
import os
import re
import select
import socket
import struct
import sys
import threading
import time
from pathlib import Path

NAME = re.compile(r"[0-9a-f]{12}")
HELLO_MET_GO = 3
BYE = 6
EBADMSG = 74
LAST_S = 120
RANKS = 4
AFTER_S = 0.1


def farewell(version: int, error: int) -> bytes:
    """Return a BYE in the words of nobody."""
    return struct.pack("<IHHi180s", 0x746D6D6E, version, BYE, error, b"forged")


def pass_on(one: socket.socket, other: socket.socket) -> bytes:
    """Pass on one message with its descriptors; b"": it hung up."""
    data, fds, _, _ = socket.recv_fds(one, 4096, 4)
    if data:
        socket.send_fds(other, [data], fds)
    for fd in fds:
        os.close(fd)
    return data


class Adversary:
    """Replaces sockets in the rundirs below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mine: dict[int, socket.socket] = {}
        self.nr_cut = 0

    def replace(self, path: Path) -> None:
        """Listen under this name; what was there keeps a second name."""
        aside, fresh = path.with_name(f"aside-{path.name}"), path.with_name(f"fresh-{path.name}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(fresh))
        listener.listen()
        aside.unlink(missing_ok=True)
        aside.hardlink_to(path)
        self.mine[fresh.lstat().st_ino] = listener
        fresh.rename(path)
        threading.Thread(target=self.serve, args=(listener, aside), daemon=True).start()

    def serve(self, listener: socket.socket, aside: Path) -> None:
        """Relay all callers."""
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=self.relay, args=(caller, aside), daemon=True).start()

    def relay(self, caller: socket.socket, aside: Path) -> None:
        """Pass a handshake on, then cut both connections."""
        owner = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nr_said = 0
        version = 0
        with caller, owner, contextlib.suppress(OSError):
            owner.connect(str(aside))
            while nr_said < HELLO_MET_GO:
                for one in select.select([caller, owner], [], [])[0]:
                    data = pass_on(one, owner if one is caller else caller)
                    if not data:
                        return
                    version = struct.unpack_from("<IH", data)[1]
                    nr_said += one is caller
            time.sleep(AFTER_S)
            caller.send(farewell(version, -EBADMSG))
            owner.send(farewell(version, 0))
            self.nr_cut += 1

    def sockets(self) -> list[Path]:
        """Return what lies in the rundirs. They go while this looks, and Path.glob then raises."""
        found: list[Path] = []
        for rundir in self.directory.iterdir():
            with contextlib.suppress(NotADirectoryError, FileNotFoundError):
                found += rundir.iterdir()
        return found

    def work(self) -> None:
        """Look for sockets of others until the end."""
        end = time.monotonic() + LAST_S
        while time.monotonic() < end and not (self.directory / "stop").exists():
            all_wait = all((self.directory / f"at-{rank}").exists() for rank in range(RANKS))
            for path in self.sockets():
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    if NAME.fullmatch(path.name) and path.lstat().st_ino not in self.mine:
                        self.replace(path)
            if all_wait:
                # They meet from now on (mpi_rounds.c).
                (self.directory / "go").touch()
            time.sleep(0.001)
        for path in self.sockets():
            if path.is_socket():
                path.unlink(missing_ok=True)


def main() -> None:
    """Do it, and count."""
    adversary = Adversary(Path(sys.argv[1]))
    print("ready", flush=True)  # noqa: T201
    adversary.work()
    print(json.dumps({"done": adversary.nr_cut}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
