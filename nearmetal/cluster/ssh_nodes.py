# SPDX-License-Identifier: Apache-2.0
"""Nodes that are machines: commands in them by ssh, and the jobs of a backend that has such nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from nearmetal.cluster.backend import (
    STAGED,
    SWEEP,
    Backend,
    CommandEntry,
    NodeEntry,
    agent_text,
    swept,
)
from nearmetal.cluster.model import ClusterSpec
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.core.ssh import NO_CONFIG, NO_CONNECTION, Login, own_keys, patient
from nearmetal.image import GUEST_AGENT
from nearmetal.image.seed import GUEST_USER

PLACE = "/run/nearmetal-cluster"
"""Directory in every node for the agent, jobs' directories and staged programs; the guest unit
makes it."""

AGENT = f"{PLACE}/agent"
JOBS = f"{PLACE}/jobs"
FILES = f"{JOBS}/{STAGED}"
"""Directory of staged programs and MPIs: the host's, or the node's own."""

OTHER_KEY = "its sshd does not have the expected host key"
"""The reason of a refused login. The advice of ssh, to trust the other key, is left out."""

_STEP_S = 120.0
_KEPT_S = 300
"""Life of an idle connection. It is kept because a login takes an emulated machine about a second.
A connection to a lost machine ends within a minute, later if a job is more patient, and `down` ends
all of them."""

_SOCKET_MAX = 90
"""The path of a Unix socket has at most 108 bytes, and ssh adds some of them."""


class NodeSilentError(BackendError):
    """A node could not be asked: ssh has no connection to it, so it has refused nothing."""


def machine_agent() -> bytes:
    """Return the remote-shell agent of nodes that are machines."""
    return agent_text(Path(__file__).with_name("agent_machine.sh")).encode()


def login_options(identity: Path | str, known_hosts: Path, node: str) -> dict[str, str]:
    """Return the options of ssh for a machine that is known by the name of its node."""
    return own_keys(identity, known_hosts) | {
        "ConnectTimeout": "60",
        "ServerAliveInterval": "10",
        "ServerAliveCountMax": "3",
        "HostKeyAlias": node,
        # It takes an emulated processor a third less time than ssh's first choice.
        "Ciphers": "^aes128-gcm@openssh.com",
    }


@dataclass(frozen=True)
class Nodes:
    """The nodes of one cluster: name to address, and to the host that forwards connections there."""

    directory: Path
    where: Mapping[str, tuple[str, Login | None]]
    runner: Runner

    @property
    def known_hosts(self) -> Path:
        """The public keys of the nodes' sshd; no others are trusted."""
        return self.directory / "known_hosts"

    def _to(self, node: str, user: str, identity: Path | str) -> tuple[Login, Login | None]:
        if node not in self.where:
            raise BackendError(f"the cluster has no node {node}")
        address, jump = self.where[node]
        options = login_options(identity, self.known_hosts, node)
        return Login(address, user, config=NO_CONFIG, options=options), jump

    def first_login(self, node: str, identity: Path | str) -> Login:
        """Return a login as root with a key that the machine has before it is a node."""
        login, jump = self._to(node, "root", identity)
        return login if jump is None else login.through(jump)

    def _login(self, node: str, user: str, patience_s: float | None) -> Login:
        login, jump = self._to(node, user, self.directory / "keys" / "client")
        control = self.directory / "m" / f"{node}.{user}"
        if patience_s is not None:
            # The limit is that of a connection, so commands with another one have their own.
            alive = patient(patience_s)
            login = replace(login, options={**login.options, **alive})
            control = control.with_name(f"{control.name}.{alive['ServerAliveInterval']}")
        if len(str(control)) <= _SOCKET_MAX:
            login = login.kept(control, _KEPT_S)
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
        patience_s: float | None = None,
    ) -> Command:
        """Return the command that runs `argv` in a node, as the user of jobs or as root."""
        enter = "" if workdir is None else f"cd {shlex.quote(str(workdir))} 2>/dev/null; "
        given = [f"{name}={value}" for name, value in (env or {}).items()]
        text = f"{enter}exec {shlex.join(['env', *given, *argv] if given else argv)}"
        login = self._login(node, "root" if root else GUEST_USER, patience_s)
        return Command(login.argv(text), stdin=stdin)

    def check(
        self,
        node: str,
        what: str,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        timeout_s: float = _STEP_S,
    ) -> str:
        """Run as root to the end; the BackendError of a failure says `what`.

        It is a NodeSilentError if there was no connection.
        """
        command = self.command(node, argv, root=True, stdin=stdin)
        try:
            return self.runner.check(command, timeout_s=timeout_s).text
        except CommandError as error:
            kind = NodeSilentError if error.code == NO_CONNECTION else BackendError
            raise entry_failure(node, what, error.hint or error.message, kind) from error

    def run_all(
        self, commands: Mapping[str, Command], what: str, *, timeout_s: float = _STEP_S
    ) -> list[Completed]:
        """Run a command in each node at the same time; raise the first failure."""
        try:
            ends = self.runner.run_all(list(commands.values()), timeout_s=timeout_s)
        except CommandError as error:
            raise BackendError(
                f"nodes {', '.join(commands)}: {what}: {error.message}", error.hint
            ) from error
        for node, done in zip(commands, ends, strict=True):
            if done.timed_out or done.code != 0:
                late = (
                    f"no end after {timeout_s:g} s" if done.timed_out else f"exit code {done.code}"
                )
                raise entry_failure(node, what, done.error_tail or late)
        return ends

    def outfit(self, nodes: Sequence[str]) -> None:
        """Put the agent into nodes that have just started, and make the place for jobs, in parallel.

        Only root makes jobs' directories, so no other user can plant a file.
        """
        new = f"{GUEST_AGENT}.new"
        script = (
            f"cat >{new} && chmod 0755 {new} && mv -f {new} {GUEST_AGENT} && nearmetal-guest place"
        )
        argv, agent = ["sh", "-c", script], machine_agent()
        commands = {name: self.command(name, argv, root=True, stdin=agent) for name in nodes}
        self.run_all(commands, "cannot be entered by ssh")

    def sweep(self, marker: str) -> int:
        """Kill every process that carries the marker in all nodes; returns their number.

        Raises BackendError if a node does not answer; the other nodes are finished then.
        """
        script = ["sh", "-c", f"marker=$1{SWEEP}echo $killed", "sh", marker]
        commands = {name: self.command(name, script, root=True) for name in self.where}
        ends = self.run_all(commands, "cannot end a job")
        return sum(swept(done.text) for done in ends)

    def close(self, node: str = "*") -> None:
        """End the kept connections to a node, or to all; no error if there are none.

        It ends what runs over them.
        """
        for path in (self.directory / "m").glob(f"{node}.*"):
            login = Login("node", config=NO_CONFIG, options={"ControlPath": str(path)})
            self.runner.run(Command(login.control("exit")), timeout_s=10)
            path.unlink(missing_ok=True)


NO_WAY = "this machine must reach the network of the cluster"
"""The hint where packets do not arrive."""


def entry_failure(
    node: str, what: str, reason: str, kind: type[BackendError] = BackendError
) -> BackendError:
    """Return the error of a command or login by ssh, with the hint for the reason."""
    low, hint = reason.lower(), ""
    if "timed out" in low or "no route" in low or "unreachable" in low:
        hint = NO_WAY
    elif "permission denied (" in low:
        # ssh names the methods that it has tried; without them, a command was denied a file.
        hint = "its sshd must let root log in with the key that the machine got at its first boot"
    elif "host key" in low or "identification has changed" in low:
        sent = re.search("SHA256:[A-Za-z0-9+/]{43}", reason)
        reason = f"{OTHER_KEY}{f' ({sent[0]})' if sent else ''}"
        hint = "another machine answers at its address, or its sshd has another key"
    return kind(f"node {node}: {what}: {reason}", hint)


class SshBackend(Backend):
    """The part of a backend whose nodes are machines that jobs enter by ssh."""

    shares_files = False
    spec: ClusterSpec

    def nodes(self) -> Nodes:
        """Return the nodes; raises BackendError if jobs cannot enter them."""
        raise NotImplementedError

    def on_node(self, node: str, argv: Sequence[str], **entry: Unpack[NodeEntry]) -> Command:
        """Enter by ssh, as the user of the cluster unless `root`."""
        return self.nodes().command(node, argv, **entry)

    def on_launcher(self, argv: Sequence[str], **entry: Unpack[CommandEntry]) -> Command:
        """Enter the first node, where a user would log in."""
        return self.on_node(self.spec.nodes[0][1].name, argv, **entry)

    def remote_shell(self) -> str:
        """Return the agent, which has the same path in every node."""
        return AGENT

    def job_root(self) -> Path:
        """Return a directory in memory, where root makes jobs' directories for the user."""
        return Path(JOBS)

    def staged(self, node: str) -> Path | None:
        """Return None: every node has copies of its own."""
        del node
        return None

    def end_marked(self, marker: str) -> int:
        """Kill in every node that the cluster should have."""
        return self.nodes().sweep(marker)
