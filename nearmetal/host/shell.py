# SPDX-License-Identifier: Apache-2.0
"""Commands on a host, over ssh or here. The only part of this package that starts processes.

Everything a host is asked goes to `sh -s` as one script on its input; what it answers is data.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nearmetal.core.errors import HostError
from nearmetal.core.process import Command, LocalRunner, Runner

if TYPE_CHECKING:
    from nearmetal.host.hosts_file import Ssh

CONNECT_S = 30
READ_S = 180.0
"""Of tools that read the flash of cards, one after the other, and of hosts that are slow."""
MAX_ANSWER = 16 << 20

ENVIRONMENT = "export LC_ALL=C PATH=/usr/sbin:/sbin:/usr/bin:/bin:/opt/mellanox/bin:$PATH\n"
"""What scripts begin with: answers in English, and the tools of the adapters in reach."""

_NO_CONNECTION = 255


@dataclass(frozen=True)
class Answer:
    """What one question was answered with. `code` is the exit code of its command."""

    code: int
    text: str


class Shell(Protocol):
    """A host that runs scripts of sh(1)."""

    def script(self, text: str, *, timeout_s: float) -> Answer:
        """Run a script; raises HostError when the host cannot be reached or does not answer."""


class SshShell:
    """A host over ssh(1): keys and everything else are the user's own, and nothing is asked."""

    def __init__(self, host: str, ssh: Ssh, runner: Runner | None = None) -> None:
        """Connect to nothing yet."""
        self._host = host
        self._runner = runner or LocalRunner()
        config = ("-F", ssh.config) if ssh.config else ()
        self._argv = (
            "ssh",
            *config,
            "-o",
            "BatchMode=yes",
            "-o",
            f"ConnectTimeout={CONNECT_S}",
            # A host that is busy with a boot or with its flash may say nothing for a while.
            "-o",
            "ServerAliveInterval=10",
            "-o",
            "ServerAliveCountMax=6",
            "-p",
            str(ssh.port),
            "-l",
            ssh.user,
            "--",
            host,
            "sh -s",
        )

    def script(self, text: str, *, timeout_s: float) -> Answer:
        """Run a script over a connection of its own."""
        command = Command(self._argv, stdin=text.encode())
        done = self._runner.run(command, timeout_s=timeout_s)
        if done.timed_out:
            raise HostError(
                f"{self._host}: no answer after {timeout_s:g} s",
                "look at its console through the BMC",
            )
        if done.code == _NO_CONNECTION:
            why = done.error_tail.splitlines()[-1:] or ["no reason given"]
            raise HostError(
                f"{self._host}: ssh: {why[0].removeprefix('ssh: ')[:200]}",
                "try `ssh` to it by hand; nothing is asked here, so keys and host keys "
                "must be in place",
            )
        return Answer(done.code, done.stdout[:MAX_ANSWER].decode("utf-8", "replace"))


def ask(
    shell: Shell, questions: Mapping[str, str], *, timeout_s: float = READ_S
) -> dict[str, Answer]:
    """Run several commands in one go; returns the answer to each by its name.

    A line with a word that no host can guess stands between the answers.
    """
    word = f"nearmetal-{secrets.token_hex(16)}"
    lines = []
    for name, command in questions.items():
        lines.append(f"echo {word} {shlex.quote(name)}")
        lines.append(f"( {command} ) </dev/null 2>/dev/null; code=$?; echo; echo {word} $code")
    answer = shell.script(ENVIRONMENT + "\n".join(lines) + "\n", timeout_s=timeout_s)
    found: dict[str, Answer] = {}
    parts = answer.text.split(f"{word} ")[1:]
    for head, tail in zip(parts[::2], parts[1::2], strict=False):
        name, _, text = head.partition("\n")
        code = tail.split("\n", 1)[0].strip()
        found[name.strip("'")] = Answer(int(code) if code.isdigit() else 1, text.removesuffix("\n"))
    missing = questions.keys() - found.keys()
    if missing:
        raise HostError(
            f"the host's shell gave no answer to {min(missing)}",
            "its login shell must run `sh -s`, and print nothing by itself",
        )
    return found


def quoted(words: Sequence[str]) -> str:
    """Return words as sh(1) takes them."""
    return shlex.join(words)
