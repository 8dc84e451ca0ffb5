# SPDX-License-Identifier: Apache-2.0
"""The error tree.

NearmetalError              message, hint, exit code; caught only in cli.main
├── UsageError              the command line is wrong (2)
├── SpecError               the cluster spec is wrong: every problem at once (1)
├── StateError              the recorded state and the request contradict each other (1)
│   └── LockedError         another nearmetal works on the same cluster (1)
├── BackendError            a step on the backend failed (1)
├── PasswordError           a password is not where a file says it is (1)
├── HostError               this machine cannot give what is asked of its adapters (1)
│   └── NoVfError           it has no virtual function (any more) for who asks (1)
├── CommandError            a started program failed, timed out or was not found (1)
├── LaunchError             an MPI job could not be started (1)
├── SlurmError              a container of a Slurm job cannot be made, ended or judged (1)
├── ImageError              a guest image cannot be built, or is damaged (1)
├── LogError                a raw log is not what it claims to be: file:line, what, why (1)
└── Interrupted             Ctrl-C or SIGTERM (128 + signal)
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ExitCode(IntEnum):
    """What the command line returns; the table in nearmetal(1)."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    CHANGES = 3
    CHECKS_FAILED = 4


class NearmetalError(Exception):
    """An error a person can act on: what happened, and what to do about it."""

    exit_code: int = ExitCode.ERROR

    def __init__(self, message: str, hint: str = "") -> None:
        """Keep the message and the hint apart: the views print them differently."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NearmetalError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a file: where (1-based), what, why, and what to write instead."""

    file: str
    line: int
    column: int
    what: str
    why: str
    hint: str = ""

    def __str__(self) -> str:
        """Return one line: `file:line:col: what: why; hint`."""
        text = f"{self.file}:{self.line}:{self.column}: {self.what}"
        text += f": {self.why}" if self.why else ""
        return f"{text}; {self.hint}" if self.hint else text


class SpecError(NearmetalError):
    """Everything wrong in one cluster spec, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Sort the problems by position; there must be at least one."""
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.column)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class StateError(NearmetalError):
    """What is recorded or running contradicts what is asked."""


class LockedError(StateError):
    """Another nearmetal process holds the cluster's lock."""


class BackendError(NearmetalError):
    """A step on the backend failed; the message says which and why."""


class PasswordError(NearmetalError):
    """No password where a file says one is, or others may read it; never holds any of it."""


class HostError(NearmetalError):
    """This machine cannot give what is asked of its adapters; the hint says what would help."""


class NoVfError(HostError):
    """No virtual function is left, or none fits: who asks is told, and the machine is sound."""


class CommandError(NearmetalError):
    """A program that nearmetal started failed, timed out, or is not installed."""


class LaunchError(NearmetalError):
    """An MPI job could not be started."""


class SlurmError(NearmetalError):
    """A container of a Slurm job cannot be made or ended on this node, or Slurm does not answer."""


class ImageError(NearmetalError):
    """A guest image could not be built, is not there, or is not what its manifest says."""


class LogError(NearmetalError):
    """A raw log or a run's manifest is damaged, cut off, or something else."""


class Interrupted(NearmetalError):  # noqa: N818 - it is a person's wish, not a failure
    """Ctrl-C, SIGTERM or SIGHUP: whatever was under way has been ended."""

    def __init__(self, signum: int) -> None:
        """Name the signal."""
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = signum
        self.exit_code = 128 + signum
