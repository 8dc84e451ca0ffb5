# SPDX-License-Identifier: Apache-2.0
"""Waiting for virtual machines to become nodes: their consoles say when, or why not."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError
from nearmetal.image.seed import failed_line, ready_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
    from nearmetal.cluster.backends.libvirt.shell import HostShell

_PAUSE_S = 0.2
_TAIL_LINES = 15
_TAIL_WIDTH = 160


@dataclass(frozen=True)
class Waiting:
    """A node that has been started."""

    node: str
    domain: str
    console: str
    link: Hypervisor
    shell: HostShell
    needs: str = ""
    """What its image must have to become a node; for people whose node does not."""

    def text(self) -> str:
        """Return what its console shows; bytes of a guest, so only what can be printed."""
        raw = self.shell.read(self.console) or b""
        return printable(raw.decode("utf-8", "replace"))

    def tail(self) -> str:
        """Return the console's last lines."""
        lines = [line[:_TAIL_WIDTH] for line in self.text().splitlines() if line.strip()]
        shown = "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:])
        return shown or "  | (its console is empty)"


def printable(text: str) -> str:
    """Drop what could move a terminal's cursor or change its colours. Pure."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


def digest(seed: str) -> str:
    """Return what tells one seed from another; says nothing about its secrets."""
    return hashlib.sha256(seed.encode()).hexdigest()


def outcome(text: str, node: str) -> tuple[bool, str]:
    """Return (ready, reason why it failed) from a console's text. Pure.

    A last line without its end is still being written, and not judged: it is a part of the reason.
    """
    ready, failed = ready_line(node), failed_line(node)
    for line in text[: text.rfind("\n") + 1].splitlines():
        _, found, behind = line.partition(ready)
        if found and not behind[:1].strip():
            return True, ""
        if failed in line:
            return False, line.partition(failed)[2].strip() or "no reason given"
        if "nearmetal: failed ?:" in line:
            return False, line.partition("?:")[2].strip()
        if "Kernel panic" in line:
            return False, line[line.index("Kernel panic") :]
    return False, ""


def wait(nodes: Sequence[Waiting], timeout_s: float) -> Iterator[list[Waiting]]:
    """Yield nodes as they become ready: those together that were found so at one look.

    Raises BackendError with the reason and the console's last lines when one fails, ends, or is
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
            raise _failure(*failed[0])
        if pending and time.monotonic() > deadline:
            needs = f"; {pending[0].needs}" if pending[0].needs else ""
            raise _failure(pending[0], f"not ready after {timeout_s:.0f} s{needs}")
        if pending:
            time.sleep(_PAUSE_S)


def _failure(node: Waiting, reason: str) -> BackendError:
    msg = f"node {node.node} does not come up: {reason}\n{node.tail()}"
    node.link.end(node.domain)
    return BackendError(msg, f"its whole console: {node.console}; then run `nearmetal up` again")
