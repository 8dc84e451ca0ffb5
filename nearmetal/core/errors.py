# SPDX-License-Identifier: Apache-2.0
"""The errors of nearmetal. Only cli.main catches NearmetalError; the exit code is 1 unless said."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from nearmetal.core.text import printable

MAX_PROBLEMS = 100
"""Problems of a file that its error shows; it counts the rest."""


class ExitCode(IntEnum):
    """The exit codes of the command line; nearmetal(1) has the same table."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    CHANGES = 3
    CHECKS_FAILED = 4


class NearmetalError(Exception):
    """An error that a user can act on: the fault, and what to do about it."""

    exit_code: int = ExitCode.ERROR

    def __init__(self, message: str, hint: str = "") -> None:
        """Keep the message and the hint apart, because the views print them differently."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NearmetalError):
    """The command line names something that does not exist, or contradicts itself."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Problem:
    """One problem in a file: its position (1-based), the fault, the reason, and what to write."""

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
        return printable(f"{text}; {self.hint}" if self.hint else text)


class SpecError(NearmetalError):
    """All problems of a file that a user wrote, in the order of the file."""

    def __init__(self, problems: Sequence[Problem], more: int = 0) -> None:
        """Sort the problems by position; there must be at least one. `more`: how many are not given."""
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.column)))
        lines = [str(problem) for problem in self.problems[:MAX_PROBLEMS]]
        more += len(self.problems) - len(lines)
        super().__init__("\n".join([*lines, *([f"and {more} more problems"] if more else [])]))


class StateError(NearmetalError):
    """The recorded state or the running state contradicts the request."""


class LockedError(StateError):
    """Another process holds the lock."""


class BackendError(NearmetalError):
    """A step on the backend failed; the message names the step and the reason."""


class PasswordError(NearmetalError):
    """The password is missing, or other users may read it; the message never contains it."""


class HostError(NearmetalError):
    """A host or its adapters cannot do what is requested; the hint says what would help."""


class NoVfError(HostError):
    """No virtual function is left, or none fits; the host itself is sound."""


class CommandError(NearmetalError):
    """A program that nearmetal started failed, timed out, or is not installed."""

    def __init__(self, message: str, hint: str = "", *, code: int | None = None) -> None:
        """Keep the exit code; None for a program that did not end by itself."""
        super().__init__(message, hint)
        self.code = code


class LaunchError(NearmetalError):
    """An MPI job could not be started."""


class SlurmError(NearmetalError):
    """A container of a Slurm job cannot be made or ended here, or Slurm does not answer."""


class ImageError(NearmetalError):
    """A guest image could not be built, is missing, or differs from its manifest."""


class LogError(NearmetalError):
    """A raw log or the manifest of a run is damaged, incomplete, or of another kind."""


class Interrupted(NearmetalError):  # noqa: N818 - a wish of the user, not a failure
    """Ctrl-C, SIGTERM or SIGHUP: the work was ended in order."""

    def __init__(self, signum: int) -> None:
        """Keep the signal: the exit code is made of it."""
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = signum
        self.exit_code = 128 + signum
