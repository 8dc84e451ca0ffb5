# SPDX-License-Identifier: Apache-2.0
"""Collects snapshots: one agent on each node, several at a time. The agent changes nothing there.

The agent travels on the standard input of the node's Python, so no file of it is left.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.check.collection import INDEX, Entry, index_text
from nearmetal.check.settings import Settings, with_facts
from nearmetal.check.snapshot import MAX_BYTES, Snapshot, digest_of, parse_snapshot
from nearmetal.core.errors import CommandError, LogError
from nearmetal.core.files import new_directory
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.core.progress import Progress
from nearmetal.core.resources import share
from nearmetal.core.ssh import NO_CONNECTION, Login
from nearmetal.core.text import printable

if TYPE_CHECKING:
    from nearmetal.check.meetings import Meetings

AT_ONCE = 16
TIMEOUT_S = 60.0
_NO_PYTHON = 127

_START = (
    "for p in python3 /usr/libexec/platform-python; do "
    'command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -B "$@"; done; '
    "echo it has no python3 >&2; exit 127"
)
_COMPILED = (
    "import sys; sys.path.append(sys.argv[1]); import agent; sys.exit(agent.main(sys.argv[2:]))"
)
_STEP = (
    "--quiet",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--mpi=none",
    "--cpu-bind=none",
    "--chdir=/",
)
_OF_SLURM = ("SLURM_", "SRUN_")
_KEPT = ("SLURM_CONF",)
_OPTIONS = {"BatchMode": "yes", "ConnectTimeout": "15", "LogLevel": "ERROR"}


def python_argv(*words: str) -> list[str]:
    """Return the command that runs the Python of a node, with these arguments."""
    return ["sh", "-c", _START, "sh", *words]


def agent_argv() -> list[str]:
    """Return the command that runs the agent from its standard input."""
    return python_argv("-")


def with_agent(command: Command) -> Command:
    """Return a command of `agent_argv` with the agent as its input."""
    return replace(command, stdin=share("check", "agent.py").read_bytes(), most=MAX_BYTES)


def login(host: str, user: str) -> Login:
    """Return a login to a host that the user's own ssh reaches without questions."""
    return Login(host, user, options=_OPTIONS)


def over_ssh(hosts: Sequence[str], user: str = "") -> dict[str, Command]:
    """Return the commands for hosts, by `login`."""
    # ssh joins its words, and the login shell there splits them again.
    text = f"sh -c '{_START}' sh -"
    return {host: Command(login(host, user).argv(text)) for host in hosts}


def over_srun(nodes: Sequence[str], job: str, minutes: int) -> dict[str, Command]:
    """Return the commands for the nodes of a job of Slurm: a step on each, beside other steps."""
    # Variables of srun are options of it, such as one that puts a number before each line.
    env = {k: v for k, v in os.environ.items() if k in _KEPT or not k.startswith(_OF_SLURM)}
    words = (f"--jobid={job}", *_STEP, f"--time={minutes}")
    return {
        node: Command(("srun", *words, f"--nodelist={node}", "--", *agent_argv()), env=env)
        for node in nodes
    }


def here(name: str, *, quick: bool = False) -> dict[str, Command]:
    """Return the command for this machine. A quick one takes this Python, and a compiled agent."""
    folder = str(share("check", "agent.py").parent)
    own = (sys.executable, "-I", "-S", "-B", "-c", _COMPILED, folder, "--quick")
    return {name: Command(own if quick else tuple(agent_argv()))}


@dataclass
class Gathered:
    """What came back: the snapshots, and silent nodes, each with "why|remedy"."""

    contents: dict[str, bytes] = field(default_factory=dict)
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    taken: float = 0.0

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots, in the order of the targets."""
        return [
            parse_snapshot(content, name, name, self.clocks[name])
            for name, content in self.contents.items()
        ]

    def add_settings(self, settings: Settings) -> None:
        """Add to each snapshot of a machine the settings that only its backend sees."""
        for name in self.contents.keys() & settings.keys():
            self.contents[name] = with_facts(
                self.contents[name], "virtual", "settings", settings[name]
            )

    def add_meetings(self, meetings: Meetings) -> None:
        """Add to each snapshot how its node met the others."""
        for name in self.contents.keys() & meetings.keys():
            self.contents[name] = with_facts(
                self.contents[name], "nearmetal", "meetings", meetings[name]
            )

    def write(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        """Write a collection, and more files into it; raises OSError."""
        with new_directory(folder, mode=0o755) as fresh:
            nodes = {}
            for name, content in self.contents.items():
                digest = digest_of(content)
                nodes[name] = Entry(digest, self.clocks[name])
                (fresh / f"{digest}.json").write_bytes(content)
            silent = {name: why.partition("|")[0] for name, why in self.silent.items()}
            files = {INDEX: index_text(self.taken, nodes, silent)} | dict(more or {})
            for file, text in files.items():
                (fresh / file).write_text(text, encoding="utf-8")


def collect(
    targets: Mapping[str, Command],
    runner: Runner,
    *,
    at_once: int = AT_ONCE,
    timeout_s: float = TIMEOUT_S,
    progress: Progress,
) -> Gathered:
    """Run the agent on all targets. A node that is silent delays no other node."""
    gathered, lock = Gathered(taken=time.time()), threading.Lock()
    ends: dict[str, bytes | str] = {}
    progress.begin(len(targets))

    def one(entry: tuple[str, Command]) -> None:
        name, command = entry
        begin = time.time()
        answer = _ask(runner, with_agent(command), timeout_s)
        end = time.time()
        with lock:
            progress.step(name)
            ends[name] = answer
            if isinstance(answer, bytes):
                checked = _checked(answer, name)
                if isinstance(checked, str):
                    ends[name] = checked
                else:
                    took = checked.seconds if 0 <= checked.seconds <= end - begin else 0.0
                    offset = checked.taken - end
                    gathered.clocks[name] = (offset, checked.taken - begin - took)

    with ThreadPoolExecutor(max(1, at_once)) as pool:
        list(pool.map(one, targets.items()))
    for name in targets:
        answer = ends[name]
        if isinstance(answer, bytes):
            gathered.contents[name] = answer
        else:
            gathered.silent[name] = answer
    return gathered


def _ask(runner: Runner, command: Command, timeout_s: float) -> bytes | str:
    """Return the agent's answer, or "why|remedy"."""
    try:
        done = runner.run(command, timeout_s=timeout_s)
    except CommandError as error:
        return f"{printable(error.message)[:200]}|{error.hint}"
    if done.timed_out:
        return f"no answer in {timeout_s:g} s|ssh NODE uptime"
    if done.code == 0:
        return done.stdout
    return _failure(done)


def _failure(done: Completed) -> str:
    words = printable((done.error_tail.splitlines() or ["no reason given"])[-1])[:200]
    words = words.replace("|", "/")
    if done.code == _NO_PYTHON:
        return "it has no python3|apt-get install python3"
    if done.code == NO_CONNECTION:
        return f"ssh: {words.removeprefix('ssh: ')}|ssh -v NODE true"
    if words.startswith("srun: "):
        return f"{words}|scontrol show node NODE"
    return f"the agent failed: {words}|python3 -I -B - <nearmetal/share/check/agent.py"


def _checked(content: bytes, name: str) -> Snapshot | str:
    try:
        return parse_snapshot(content, name, name)
    except LogError as error:
        return f"{error.message.replace('|', '/')}|{error.hint}"
