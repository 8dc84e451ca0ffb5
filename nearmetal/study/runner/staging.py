# SPDX-License-Identifier: Apache-2.0
"""Directories in which programs work on the nodes: laid out here, carried there, fetched back.

Nodes need not share a file system with us, nor let anybody write where we do.
"""

from __future__ import annotations

import io
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearmetal.core.errors import LaunchError
from nearmetal.job.places import new_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nearmetal.cluster.backend import Backend
    from nearmetal.core.process import Completed, Runner

_S = 300.0
_ENV = {"PATH": "/usr/bin:/bin"}

# What the nodes of one host share comes first: ranks may read what others of them wrote.
_CHOOSE = 'for d in /run/shared /tmp; do [ -w "$d" ] && echo "$d" && exit 0; done; exit 1'
_UNPACK = 'mkdir -p -m 700 "$0" && tar -x --no-same-owner -C "$0"'
_FETCH = 'cd "$0" && for f in $1; do [ -f "$f" ] && last=$f; done; [ -n "$last" ] && cat "$last"'
START = 'cd "$0" && exec "$@"'
"""A shell's words: its first argument is the directory, then the program and its arguments."""


@dataclass(frozen=True)
class Staged:
    """A directory on the nodes."""

    backend: Backend
    runner: Runner
    nodes: tuple[str, ...]
    path: str

    def argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Return the words that start a program there."""
        return ("/bin/sh", "-c", START, self.path, *program)

    def fetch(self, pattern: str) -> bytes | None:
        """Return the last file that fits the pattern, from the first node; None when there is none."""
        done = self.run(self.nodes[0], (_FETCH, self.path, pattern))
        return done.stdout if done.code == 0 else None

    def run(self, node: str, words: Sequence[str], stdin: bytes = b"") -> Completed:
        """Run a shell's words on a node."""
        command = self.backend.on_node(node, ["/bin/sh", "-c", *words], env=_ENV)
        return self.runner.run(replace(command, stdin=stdin), timeout_s=_S)


def _packed(place: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(place, ".")
    return stream.getvalue()


@contextmanager
def staged(backend: Backend, runner: Runner, nodes: Sequence[str], place: Path) -> Iterator[Staged]:
    """Carry a directory to the nodes, and remove it there afterwards."""
    first = Staged(backend, runner, tuple(nodes), "")
    chosen = first.run(nodes[0], (_CHOOSE,))
    if chosen.code != 0:
        raise LaunchError(
            f"node {nodes[0]} lets nobody write to /run/shared or /tmp",
            "programs with files need one of them",
        )
    there = replace(first, path=f"{chosen.text.strip()}/{new_name('work')}")
    content = _packed(place)
    try:
        for node in nodes:
            done = there.run(node, (_UNPACK, there.path), content)
            if done.code != 0:
                raise LaunchError(f"node {node}: {done.error_tail}", "is there room for the input?")
        yield there
    finally:
        for node in nodes:
            there.run(node, ('rm -rf -- "$0"', there.path))
