# SPDX-License-Identifier: Apache-2.0
"""Endpoints in processes of their own, driven by a test line by line."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.job.stats import read_stats

REPOSITORY = Path(__file__).resolve().parents[3]
BUILD = REPOSITORY / "build" / "c"
PROGRAM = BUILD / "tests" / "system" / "fabric_peer"
PROVIDER_DIR = BUILD / "src" / "provider"

PATIENCE_S = 30.0
"""How long anything may take before a test fails. No test asserts on speed."""

ECONNRESET = 104
EHOSTUNREACH = 113


@dataclass(frozen=True)
class Node:
    """Namespaces of its own: what a container of a virtual cluster has, but for the network.

    `script` runs in them as root before the program starts. The network is shared on purpose:
    nearness must come out right without any help from it.
    """

    hostname: str
    script: str = ":"
    own_pids: bool = True

    def argv(self) -> list[str]:
        """Return what has to stand before a command."""
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        pids = ["--pid", "--fork", "--kill-child", "--mount-proc"] if self.own_pids else []
        script = f'hostname "{self.hostname}"; {self.script}; exec "$@"'
        return ["unshare", *user, "--mount", "--uts", "--ipc", *pids, "sh", "-ec", script, "sh"]


class Peer:
    """One `fabric_peer`. Every wait is bounded; what is late fails with what was seen."""

    def __init__(
        self,
        name: str,
        log: Path,
        env: Mapping[str, str],
        *,
        node: Node | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.node = node
        self.address = ""
        self.knobs: dict[str, str] = {}
        self.killed = False
        self._log_path = log
        self._stats = Path(env["NEARMETAL_STATS_DIR"])
        self._pending = b""
        self._lines: list[list[str]] = []
        argv = [*(node.argv() if node else []), *prefix, str(PROGRAM)]
        # libpsm, part of some libfabrics, leaves a file in the directory of a process that crashes.
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                argv,
                env={**env, "HFI_NO_BACKTRACE": "1", "IPATH_NO_BACKTRACE": "1"},
                cwd=log.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        """The process that runs the endpoint, as this namespace numbers it."""
        top = self.process.pid
        if self.node and self.node.own_pids:
            return int(Path(f"/proc/{top}/task/{top}/children").read_text().split()[0])
        return top

    @property
    def own_number(self) -> int:
        """Its pid as it sees it itself."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])

    @property
    def log(self) -> str:
        """Everything it has written to standard error so far."""
        return self._log_path.read_text(errors="replace")

    @property
    def log_lines(self) -> list[str]:
        """Lines of the provider's own log, warnings and worse."""
        return [line for line in self.log.splitlines() if line.startswith("nearmetal: ")]

    @property
    def identity(self) -> str:
        """The name of its socket."""
        return self.address[4:16]

    def tell(self, *words: object) -> None:
        """Give a command."""
        assert self.process.stdin is not None
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    def expect(self, *words: object, within_s: float = PATIENCE_S) -> list[str]:
        """Wait for the next line that begins with these words; return its other words."""
        wanted = [str(word) for word in words]
        deadline = time.monotonic() + within_s
        while True:
            for index, line in enumerate(self._lines):
                if line[: len(wanted)] == wanted:
                    del self._lines[index]
                    return line[len(wanted) :]
            refused = [line for line in self._lines if line[0] == "failed"]
            assert not refused or wanted[0] == "failed", f"{self.name}: {refused}; {self.log}"
            assert self._read_lines(deadline), (
                f"{self.name}: no line '{' '.join(wanted)}' within {within_s} s, but "
                f"{self._lines}; log:\n{self.log}"
            )

    def happened(self, *words: object, within_s: float) -> bool:
        """Tell whether such a line comes in that time; it stays to be expected."""
        wanted = [str(word) for word in words]
        deadline = time.monotonic() + within_s
        while not any(line[: len(wanted)] == wanted for line in self._lines):
            if not self._read_lines(deadline):
                return False
        return True

    def _read_lines(self, deadline: float) -> bool:
        assert self.process.stdout is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self.process.stdout], [], [], left)[0]:
            return False
        got = os.read(self.process.stdout.fileno(), 65536)
        if not got:
            return False
        *lines, self._pending = (self._pending + got).split(b"\n")
        self._lines += [line.decode().split() for line in lines]
        return True

    def ask(self, *words: object) -> list[str]:
        """Give a command that answers with a line of the same first word."""
        self.tell(*words)
        return self.expect(words[0])

    def open(self) -> "Peer":
        """Open the endpoint."""
        self.tell("open")
        return self.opened()

    def opened(self) -> "Peer":
        """Wait for the endpoint that is being opened."""
        (self.address,) = self.expect("ready")
        return self

    def knows(self, *others: "Peer") -> "Peer":
        """Insert the others' addresses under their names."""
        for other in others:
            self.tell("insert", other.name, other.address)
            self.expect("inserted", other.name)
        return self

    def post(self, what: str, ident: str, peer: str, size: int, tag: object) -> None:
        """Start to send or receive; returns when the endpoint has taken it."""
        self.tell(what, ident, peer, size, tag)
        self.expect("posted", ident)

    def fds(self) -> int:
        """Open descriptors of the process, as it counts them itself."""
        return int(self.ask("fds")[0])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that runs the endpoint."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash does."""
        self.killed = True
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def finish(self) -> int:
        """Close the endpoint in order by ending its input; return the exit code."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def abandon(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()

    def way_to(self, other: "Peer") -> dict[str, Any]:
        """Return what its statistics say of a peer; the endpoint must have been closed."""
        for endpoint in read_stats(self._stats):
            for peer in endpoint["peers"]:
                if (endpoint["identity"], peer["id"]) == (self.identity, other.identity):
                    return dict(peer)
        raise AssertionError(f"{self.name} has left no statistics of {other.name}")
