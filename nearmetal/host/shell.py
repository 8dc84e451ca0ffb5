# SPDX-License-Identifier: Apache-2.0
"""Commands on a host over ssh: questions with their answers, and the script of each step.

A script goes to `sh -s` on its standard input; the answer is data.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from nearmetal.core import log
from nearmetal.core.errors import HostError
from nearmetal.core.process import Command, LocalRunner, Runner
from nearmetal.core.ssh import NO_CONNECTION, Login
from nearmetal.host.hosts_file import Ssh
from nearmetal.host.steps import (
    Burn,
    SetArguments,
    SetConfig,
    SetGovernor,
    SetMtu,
    SetProfile,
    SetVfs,
    Step,
    WriteFile,
)

READ_S = 180.0
"""Limit for answers: some tools read the flash of one card after the other, and hosts are slow."""
STEP_S = 600.0
MAX_ANSWER = 16 << 20

ENVIRONMENT = "export LC_ALL=C PATH=/usr/sbin:/sbin:/usr/bin:/bin:/opt/mellanox/bin:$PATH\n"
"""The first line of scripts: answers in English, and the tools of the adapters in the path."""

BEGUN = ".begun"
"""Suffix of the mark beside a file of nearmetal while its change is not yet in force."""

_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "30",
    # A host that boots or writes its flash may not answer for a while.
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "6",
}

# A step continues when its ssh is lost, so the next step waits for its end. The lock is not in
# /run/lock, because any user may create files there.
_ALONE = f"""\
exec 9>/run/nearmetal-host.lock
flock -w {STEP_S / 2:.0f} 9 || {{ echo 'an earlier step still runs'; exit 1; }}
"""

quoted = shlex.join


@dataclass(frozen=True)
class Answer:
    """The answer to one question. `code` is the exit code of its command."""

    code: int
    text: str


class Shell(Protocol):
    """A host that runs scripts of sh(1)."""

    def script(self, text: str, *, timeout_s: float) -> Answer:
        """Run a script; raises HostError if the host cannot be reached or does not answer."""


class SshShell:
    """A host over ssh(1), with the user's own keys and without questions."""

    def __init__(self, host: str, ssh: Ssh, runner: Runner | None = None) -> None:
        self._host = host
        self._runner = runner or LocalRunner()
        self._login = Login(host, ssh.user, ssh.port, ssh.config or "", _OPTIONS)

    def script(self, text: str, *, timeout_s: float) -> Answer:
        """Run a script over its own connection."""
        log.detail(f"script for {self._host}:\n{text}")
        command = Command(self._login.argv("sh -s"), stdin=text.encode())
        done = self._runner.run(command, timeout_s=timeout_s)
        if done.timed_out:
            raise HostError(
                f"{self._host}: no answer after {timeout_s:g} s",
                "look at its console through the BMC",
            )
        if done.code == NO_CONNECTION:
            why = done.error_tail.splitlines()[-1:] or ["no reason given"]
            raise HostError(
                f"{self._host}: ssh: {why[0].removeprefix('ssh: ')[:200]}",
                "try `ssh` by hand: it must work without questions, so keys and host keys must be "
                "in place",
            )
        return Answer(done.code, done.stdout[:MAX_ANSWER].decode("utf-8", "replace"))


def ask(
    shell: Shell, questions: Mapping[str, str], *, timeout_s: float = READ_S
) -> dict[str, Answer]:
    """Run several commands in one script; returns the answer to each by its name.

    A line with a random word, which a host cannot guess, separates the answers.
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
            "its login shell must run `sh -s`, and must not print anything itself",
        )
    return found


def take(shell: Shell, step: Step, *, alone: bool = True) -> None:
    """Execute one step; raises HostError with the host's own words.

    `alone`: after the end of an earlier step; not on ESXi, which has no lock.
    """
    text = "set -e\n" + ENVIRONMENT + (_ALONE if alone else "") + script_of(step)
    answer = shell.script(f"{{ {text}}} 2>&1\n", timeout_s=STEP_S)
    if answer.code:
        why = " ".join(answer.text.split())[-300:] or f"exit code {answer.code}"
        raise HostError(f"{step.text}: {why}", "no later step was started on this host")


def script_of(step: Step) -> str:
    """Return the script of a step; raises HostError for a step that a shell cannot execute."""
    match step.action:
        case SetConfig(device=device, setting=setting, value=value):
            arguments = ["-d", device, "-y", "set", f"{setting}={value}"]
            return _either(("mlxconfig", "mstconfig"), arguments)
        case Burn() as burn:
            return _burn(burn)
        case WriteFile(path=path, content=content, refresh=refresh):
            return _write(path, content, quoted(refresh))
        case SetArguments(arguments=words, removed=removed):
            changes = (("--remove-args", removed), ("--args", words))
            return "".join(
                quoted(["grubby", "--update-kernel=ALL", f"{option}={' '.join(words)}"]) + "\n"
                for option, words in changes
                if words
            )
        case SetVfs(address=address, count=count, before=before):
            file = f"/sys/bus/pci/devices/{address}/sriov_numvfs"
            clear = f"echo 0 >{file}\n" if before and count else ""
            return f'{clear}echo {count} >{file}\n[ "$(cat {file})" = {count} ]\n'
        case SetMtu() as change:
            return _mtu(change)
        case SetGovernor(governor=governor):
            return (
                "for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do\n"
                f'echo {quoted([governor])} >"$f"\ndone\n'
            )
        case SetProfile(profile=profile):
            profiles = ["profile", *profile.split()] if profile else ["off"]
            return quoted(["tuned-adm", *profiles]) + "\n"
        case _:
            raise HostError(f"{step.text}: a shell cannot execute this step")


def _burn(burn: Burn) -> str:
    """Burn an image unless the flash has it: a burn without its ssh continues, and may be done."""
    tools = ("flint", "mstflint")
    parts = r"\.".join(f"0*{int(part)}" for part in burn.version.split("."))
    return (
        f"stored=$({_either(tools, ['-d', burn.device, 'query'])}) || true\n"
        f"if ! echo \"$stored\" | grep -x 'FW Version: *{parts} *' >/dev/null; then\n"
        f"echo {quoted([f'{burn.sha256}  {burn.file}'])} | sha256sum -c -\n"
        f"{_either(tools, ['-d', burn.device, '-i', burn.file, '-y', 'burn'])}fi\n"
    )


def _mtu(change: SetMtu) -> str:
    devices = "/sys/bus/pci/devices"
    own = f"{devices}/{change.address}"
    places = {f"{own}/net/* {own}/virtfn*/net/*": change.mtu}
    places |= {f"{devices}/{vf}/net/*": mtu for vf, mtu in change.vfs.items()}
    return (
        "".join(
            f'for n in {place}; do\n[ -e "$n/mtu" ] || continue\necho {mtu} >"$n/mtu"\ndone\n'
            for place, mtu in places.items()
        )
        + f'[ "$(cat {own}/net/*/mtu | sort -u)" = {change.mtu} ]\n'
    )


def _either(tools: tuple[str, str], arguments: list[str]) -> str:
    first, second = tools
    tail = quoted(arguments)
    return f"if command -v {first} >/dev/null; then {first} {tail}; else {second} {tail}; fi\n"


def _write(path: str, content: str | None, refresh: str) -> str:
    """Replace a file by a rename, so that no reader sees a part of it, and apply it.

    If the host dies in between, the file is not in force. The mark beside it records this.
    """
    name, mark = quoted([path]), quoted([path + BEGUN])
    folder = quoted([path.rpartition("/")[0]])
    change = (
        f"rm -f {name}\n"
        if content is None
        else f"new=$(mktemp {quoted([path + '.XXXXXX'])})\n"
        f'printf %s {quoted([content])} >"$new"\nchmod 644 "$new"\nsync "$new"\nmv "$new" {name}\n'
    )
    return f": >{mark}\nsync {folder}\n{change}{refresh}\nsync -f {folder}\nrm {mark}\n"
