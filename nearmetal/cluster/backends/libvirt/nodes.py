# SPDX-License-Identifier: Apache-2.0
"""Nodes of a cluster: the wait until machines become nodes, and commands in them by ssh."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal.cluster.backend import SWEEP, agent_text
from nearmetal.cluster.backends.libvirt.build import FILES, JOBS, PLACE
from nearmetal.cluster.backends.libvirt.hosts import HostShell, ssh_login
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.core.ssh import NO_CONFIG, Login, own_keys
from nearmetal.image.seed import GUEST_USER, failed_line, ready_line

AGENT = f"{PLACE}/agent"
_PAUSE_S = 0.2
_TAIL_LINES = 15
_TAIL_WIDTH = 160
_STEP_S = 120.0
_KEPT_S = 300
"""Life of an idle connection. It is kept because a login takes an emulated machine about a second.
A connection to a lost machine ends within half a minute, and `down` ends all of them."""

_SOCKET_MAX = 90
"""The path of a Unix socket has at most 108 bytes, and ssh adds some of them."""


@dataclass(frozen=True)
class Waiting:
    """A machine that was started and is not a node yet."""

    node: str
    domain: str
    console: str
    link: Hypervisor
    shell: HostShell
    needs: str = ""
    """Requirements of a node on its image, for the message of a boot that takes too long."""

    def text(self) -> str:
        """Return the printable text of its console, whose bytes come from a guest."""
        raw = self.shell.read(self.console) or b""
        return printable(raw.decode("utf-8", "replace"))

    def failure(self, reason: str) -> BackendError:
        """End the machine; return the error with the last lines of its console."""
        lines = [line[:_TAIL_WIDTH] for line in self.text().splitlines() if line.strip()]
        shown = "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:])
        self.link.end(self.domain)
        return BackendError(
            f"node {self.node} does not come up: {reason}\n{shown or '  | (its console is empty)'}",
            f"its whole console: {self.console}; then run `nearmetal up` again",
        )


def printable(text: str) -> str:
    """Drop characters that move a terminal's cursor or change its colours. Pure."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


def digest(seed: str) -> str:
    """Return a digest of a seed, which reveals none of its secrets."""
    return hashlib.sha256(seed.encode()).hexdigest()


def outcome(text: str, node: str) -> tuple[bool, str]:
    """Return (ready, reason of a failure) from a console's text. Pure.

    A last line without its end is still being written, so it is not judged yet.
    """
    ready, failed = ready_line(node), failed_line(node)
    for line in text[: text.rfind("\n") + 1].splitlines():
        _, found, rest = line.partition(ready)
        if found and not rest[:1].strip():
            return True, ""
        if failed in line:
            return False, line.partition(failed)[2].strip() or "no reason given"
        if "nearmetal: failed ?:" in line:
            return False, line.partition("?:")[2].strip()
        if "Kernel panic" in line:
            return False, line[line.index("Kernel panic") :]
    return False, ""


def wait(nodes: Sequence[Waiting], timeout_s: float) -> Iterator[list[Waiting]]:
    """Yield nodes as they become ready: all that one look finds together.

    Raises BackendError with the reason and the end of the console if a machine fails, ends, or is
    not ready in time.
    """
    pending = list(nodes)
    deadline = time.monotonic() + timeout_s
    while pending:
        came: list[Waiting] = []
        failed: list[tuple[Waiting, str]] = []
        for node in pending:
            alive = node.link.running(node.domain)
            ready, reason = outcome(node.text(), node.node)
            if ready:
                came.append(node)
            elif reason or not alive:
                failed.append((node, reason or "it ended while it booted"))
        pending = [node for node in pending if node not in came]
        if came:
            yield came
        if failed:
            node, reason = failed[0]
            raise node.failure(reason)
        if pending and time.monotonic() > deadline:
            needs = f"; {pending[0].needs}" if pending[0].needs else ""
            raise pending[0].failure(f"not ready after {timeout_s:.0f} s{needs}")
        if pending:
            time.sleep(_PAUSE_S)


@dataclass(frozen=True)
class Nodes:
    """The nodes of one cluster: name to (address, libvirt URI of its host)."""

    directory: Path
    where: Mapping[str, tuple[str, str]]
    runner: Runner

    @property
    def known_hosts(self) -> Path:
        """The public keys of the nodes' sshd; no others are trusted."""
        return self.directory / "known_hosts"

    def _login(self, node: str, user: str) -> Login:
        if node not in self.where:
            raise BackendError(f"the cluster has no node {node}")
        address, uri = self.where[node]
        options = own_keys(self.directory / "keys" / "client", self.known_hosts) | {
            "ConnectTimeout": "60",
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            "HostKeyAlias": node,
            # It takes an emulated processor a third less time than ssh's first choice.
            "Ciphers": "^aes128-gcm@openssh.com",
        }
        login = Login(address, user, config=NO_CONFIG, options=options)
        control = self.directory / "m" / f"{node}.{user}"
        if len(str(control)) <= _SOCKET_MAX:
            login = login.kept(control, _KEPT_S)
        # Only the hypervisor's machine must reach the network.
        jump = ssh_login(uri)
        return login if jump is None else login.through(jump)

    def command(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        root: bool = False,
        stdin: bytes = b"",
    ) -> Command:
        """Return the command that runs `argv` in a node, as the user of jobs or as root."""
        enter = "" if workdir is None else f"cd {shlex.quote(str(workdir))} 2>/dev/null; "
        given = [f"{name}={value}" for name, value in (env or {}).items()]
        text = f"{enter}exec {shlex.join(['env', *given, *argv] if given else argv)}"
        login = self._login(node, "root" if root else GUEST_USER)
        return Command(login.argv(text), stdin=stdin)

    def check(self, node: str, what: str, argv: Sequence[str], stdin: bytes = b"") -> str:
        """Run as root to the end; the BackendError of a failure says `what`."""
        command = self.command(node, argv, root=True, stdin=stdin)
        try:
            return self.runner.check(command, timeout_s=_STEP_S).text
        except CommandError as error:
            raise _failure(node, what, error.hint or error.message) from error

    def _check_all(self, commands: Mapping[str, Command], what: str) -> list[Completed]:
        """Run a command in each node at the same time; raise the first failure."""
        try:
            ends = self.runner.run_all(list(commands.values()), timeout_s=_STEP_S)
        except CommandError as error:
            raise BackendError(
                f"nodes {', '.join(commands)}: {what}: {error.message}", error.hint
            ) from error
        for node, done in zip(commands, ends, strict=True):
            if done.timed_out or done.code != 0:
                late = f"no end after {_STEP_S:g} s" if done.timed_out else f"exit code {done.code}"
                raise _failure(node, what, done.error_tail or late)
        return ends

    def outfit(self, nodes: Sequence[str]) -> None:
        """Put the agent and the place for jobs into nodes that have just started, in parallel.

        Only root makes jobs' directories, so no other user can plant a file. Cloud images have a
        /run that does not allow programs.
        """
        agent = agent_text(Path(__file__).with_name("agent.sh")).encode()
        script = (
            f"mkdir -p -m 0755 {PLACE} && "
            f"{{ ! findmnt -no OPTIONS -T {PLACE} | tr , '\\n' | grep -qx noexec || "
            f"mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs {PLACE}; }} && "
            f"mkdir -p -m 0755 {JOBS} {FILES} && cat >{AGENT} && chmod 0755 {AGENT}"
        )
        argv = ["sh", "-c", script]
        commands = {name: self.command(name, argv, root=True, stdin=agent) for name in nodes}
        self._check_all(commands, "cannot be entered by ssh")

    def sweep(self, marker: str) -> int:
        """Kill every process that carries the marker in all nodes; returns their number.

        Raises BackendError if a node does not answer; the other nodes are finished then.
        """
        script = ["sh", "-c", f"marker=$1{SWEEP}echo $killed", "sh", marker]
        commands = {name: self.command(name, script, root=True) for name in self.where}
        ends = self._check_all(commands, "cannot end a job")
        return sum(int(done.text.strip() or 0) for done in ends)

    def close(self) -> None:
        """End the kept connections; no error if there are none."""
        for path in (self.directory / "m").glob("*"):
            login = Login("node", config=NO_CONFIG, options={"ControlPath": str(path)})
            self.runner.run(Command(login.control("exit")), timeout_s=10)
            path.unlink(missing_ok=True)


def _failure(node: str, what: str, reason: str) -> BackendError:
    low, hint = reason.lower(), ""
    if "timed out" in low or "no route" in low or "unreachable" in low:
        hint = "this machine must reach the cluster's subnet: has the bridge an address in it?"
    elif "host key" in low or "identification has changed" in low:
        hint = "another machine answers at its address: choose another subnet in `network:`"
    return BackendError(f"node {node}: {what}: {reason}", hint)
