# SPDX-License-Identifier: Apache-2.0
"""Commands and files in virtual machines, by ssh with the cluster's own keys and known hosts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cluster.backend import SWEEP
from nearmetal.cluster.backends.libvirt.build import FILES, JOBS, PLACE
from nearmetal.cluster.backends.libvirt.shell import ssh_target
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command
from nearmetal.image.seed import GUEST_USER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.core.process import Completed, Runner

AGENT = f"{PLACE}/agent"
_HERE = Path(__file__).parent
_STEP_S = 120.0
_KEPT_S = "300"
"""How long a connection waits for the next command, because a login takes an emulated machine about
a second. One to a machine that has gone ends within half a minute, all of them with `down`."""

_SOCKET_MAX = 90
"""A Unix socket's path has 108 bytes, and ssh adds some of its own while it makes one."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of one cluster: name to (address, libvirt URI of its host)."""

    directory: Path
    where: Mapping[str, tuple[str, str]]
    runner: Runner

    @property
    def known_hosts(self) -> Path:
        """The public keys of the nodes' sshd; nothing else is trusted."""
        return self.directory / "known_hosts"

    def _ssh(self, node: str, user: str) -> list[str]:
        if node not in self.where:
            raise BackendError(f"no node {node}")
        address, uri = self.where[node]
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "60",
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(self.directory / "keys" / "client"),
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": node,
            "StrictHostKeyChecking": "yes",
            "LogLevel": "ERROR",
            # Emulated processors take a third less time for it than for ssh's first choice.
            "Ciphers": "^aes128-gcm@openssh.com",
        }
        control = self.directory / "m" / f"{node}.{user}"
        if len(str(control)) <= _SOCKET_MAX:
            options |= {"ControlMaster": "auto", "ControlPath": str(control)}
            options["ControlPersist"] = _KEPT_S
        jump = ssh_target(uri)
        if jump:
            # Through the hypervisor's machine, which alone must reach the network.
            options["ProxyCommand"] = shlex.join(["ssh", *jump, "-W", "[%h]:%p"])
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "/dev/null", *words, f"{user}@{address}"]

    def command(
        self,
        node: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: Path | None = None,
        user: str = GUEST_USER,
        stdin: bytes = b"",
    ) -> Command:
        """Return the command that runs `argv` in a node, in a directory where that is there."""
        text = ""
        if workdir is not None:
            text = f"cd {shlex.quote(str(workdir))} 2>/dev/null; "
        given = [f"{name}={value}" for name, value in (env or {}).items()]
        text += "exec " + shlex.join(["env", *given, *argv] if given else argv)
        return Command((*self._ssh(node, user), "--", text), stdin=stdin)

    def check(self, node: str, what: str, argv: Sequence[str], stdin: bytes = b"") -> str:
        """Run as root to the end; raises BackendError that says what failed."""
        command = self.command(node, argv, user="root", stdin=stdin)
        try:
            return self.runner.check(command, timeout_s=_STEP_S).text
        except CommandError as error:
            raise _failure(node, what, error.hint or error.message) from error

    def outfit(self, nodes: Sequence[str]) -> None:
        """Put the agent and the place for jobs into nodes that have just started, side by side.

        Jobs' directories are made by root alone, so nobody slips another file in between. Cloud
        images have a /run that no program may be started from.
        """
        agent = (_HERE / "agent.sh").read_bytes()
        script = (
            f"mkdir -p -m 0755 {PLACE} && "
            f"{{ ! findmnt -no OPTIONS -T {PLACE} | tr , '\\n' | grep -qx noexec || "
            f"mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs {PLACE}; }} && "
            f"mkdir -p -m 0755 {JOBS} {FILES} && cat >{AGENT} && chmod 0755 {AGENT}"
        )
        argv = ["sh", "-c", script]
        commands = [self.command(node, argv, user="root", stdin=agent) for node in nodes]
        what = "cannot be entered by ssh"
        try:
            ends = self.runner.run_all(commands, timeout_s=_STEP_S)
        except CommandError as error:
            raise BackendError(
                f"nodes {', '.join(nodes)}: {what}: {error.message}", error.hint
            ) from error
        for node, done in zip(nodes, ends, strict=True):
            if done.timed_out or done.code != 0:
                raise _failure(node, what, _reason(done))

    def sweep(self, marker: str) -> int:
        """Kill every process that carries the marker in all nodes; returns how many.

        Raises BackendError when a node cannot be asked; the others have been swept then.
        """
        script = ["sh", "-c", f"marker=$1{SWEEP}echo $killed", "sh", marker]
        commands = [self.command(node, script, user="root") for node in self.where]
        killed = 0
        try:
            ends = self.runner.run_all(commands, timeout_s=_STEP_S)
        except CommandError as error:
            raise BackendError(f"cannot end a job: {error.message}", error.hint) from error
        for node, done in zip(self.where, ends, strict=True):
            if done.timed_out or done.code != 0:
                raise _failure(node, "cannot end a job", _reason(done))
            killed += int(done.text.strip() or 0)
        return killed

    def close(self) -> None:
        """End the connections that were kept; no error when there are none."""
        masters = self.directory / "m"
        for path in masters.glob("*") if masters.is_dir() else ():
            argv = ("ssh", "-F", "/dev/null", "-o", f"ControlPath={path}", "-O", "exit", "node")
            self.runner.run(Command(argv), timeout_s=10)
            path.unlink(missing_ok=True)


def _reason(done: Completed) -> str:
    late = f"no end after {_STEP_S:g} s"
    return done.error_tail or (late if done.timed_out else f"exit code {done.code}")


def _failure(node: str, what: str, reason: str) -> BackendError:
    return BackendError(f"node {node}: {what}: {reason}", _hint(reason))


def _hint(reason: str) -> str:
    low = reason.lower()
    if "timed out" in low or "no route" in low or "unreachable" in low:
        return "this machine must reach the cluster's subnet: has the bridge an address in it?"
    if "host key" in low or "identification has changed" in low:
        return "another machine answers at its address: choose another subnet in `network:`"
    return ""
