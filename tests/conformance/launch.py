# SPDX-License-Identifier: Apache-2.0
"""Starts MPI tests under any launcher, and keeps what their processes leave as proof."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.attest import Place, Proof, place_of
from tests.conformance.outcomes import end


@dataclass(frozen=True)
class Done:
    """The end of one job. `code`: None if the time limit ended it."""

    code: int | None
    output: str
    seconds: float
    proof: Proof


@dataclass(frozen=True)
class Launcher:
    """A launcher, with {n} for the ranks."""

    words: Sequence[str]
    env_option: str
    """The launcher's option for K=V; '': it passes on its environment."""
    provider: str
    place: Place
    timeout_s: float

    def command(
        self, program: Sequence[str], ranks: int, settings: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command of one job, and its environment."""
        words = [word.replace("{n}", str(ranks)) for word in self.words]
        if not self.env_option:
            return [*words, *program], {**os.environ, **settings}
        cut = words.index("--") if "--" in words else len(words)
        pairs = [f"{name}={value}" for name, value in settings.items()]
        given = [word for pair in pairs for word in (self.env_option, pair)]
        return [*words[:cut], *given, *words[cut:], *program], dict(os.environ)

    def run(
        self, program: Sequence[str], ranks: int, directory: Path, settings: Mapping[str, str]
    ) -> Done:
        """Run one job to its end or to the time limit."""
        begin = time.monotonic()
        with self.place.trace() as trace:
            command, env = self.command(trace.named(program), ranks, {**settings, **trace.env})
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=self.timeout_s)
                code: int | None = process.returncode
            except subprocess.TimeoutExpired as expired:
                output, code = expired.stdout or b"", None
            finally:
                if process.poll() is None:
                    end(process)
                if process.stdout is not None:
                    process.stdout.close()
            seconds = round(time.monotonic() - begin, 1)
            return Done(code, output.decode("utf-8", "replace"), seconds, trace.read())


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of runners of MPI tests."""
    parser.add_argument("--launch", required=True, help="launcher, with {n} for the ranks")
    parser.add_argument("--env-option", default="", help="the launcher's option for K=V")


def launcher_of(options: argparse.Namespace) -> Launcher:
    """Return the launcher that the options name."""
    options.record.parent.mkdir(parents=True, exist_ok=True)
    return Launcher(
        shlex.split(options.launch),
        options.env_option,
        options.provider,
        place_of(options),
        options.timeout,
    )
