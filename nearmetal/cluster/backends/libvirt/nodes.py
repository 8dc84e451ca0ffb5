# SPDX-License-Identifier: Apache-2.0
"""The wait until machines become nodes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.core.errors import BackendError
from nearmetal.image.seed import failed_line, ready_line

_PAUSE_S = 0.2
_TAIL_LINES = 15
_TAIL_WIDTH = 160


@dataclass(frozen=True)
class Waiting:
    """A machine that was started and is not a node yet."""

    node: str
    domain: str
    console: str
    link: Hypervisor
    shell: HostShell
    needs: str = ""
    """Requirements of a node on its image, for the message of a boot that takes too long."""

    def text(self) -> str:
        """Return the printable text of its console, whose bytes come from a guest."""
        raw = self.shell.read(self.console) or b""
        return printable(raw.decode("utf-8", "replace"))

    def failure(self, reason: str) -> BackendError:
        """End the machine; return the error with the last lines of its console."""
        lines = [line[:_TAIL_WIDTH] for line in self.text().splitlines() if line.strip()]
        shown = "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:])
        self.link.end(self.domain)
        return BackendError(
            f"node {self.node} does not come up: {reason}\n{shown or '  | (its console is empty)'}",
            f"its whole console: {self.console}; then run `nearmetal up` again",
        )


def printable(text: str) -> str:
    """Drop characters that move a terminal's cursor or change its colours. Pure."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


def digest(seed: str) -> str:
    """Return a digest of a seed, which reveals none of its secrets."""
    return hashlib.sha256(seed.encode()).hexdigest()


def outcome(text: str, node: str) -> tuple[bool, str]:
    """Return (ready, reason of a failure) from a console's text. Pure.

    A last line without its end is still being written, so it is not judged yet.
    """
    ready, failed = ready_line(node), failed_line(node)
    for line in text[: text.rfind("\n") + 1].splitlines():
        _, found, rest = line.partition(ready)
        if found and not rest[:1].strip():
            return True, ""
        if failed in line:
            return False, line.partition(failed)[2].strip() or "no reason given"
        if "nearmetal: failed ?:" in line:
            return False, line.partition("?:")[2].strip()
        if "Kernel panic" in line:
            return False, line[line.index("Kernel panic") :]
    return False, ""


def wait(nodes: Sequence[Waiting], timeout_s: float) -> Iterator[list[Waiting]]:
    """Yield nodes as they become ready: all that one look finds together.

    Raises BackendError with the reason and the end of the console if a machine fails, ends, or is
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
            node, reason = failed[0]
            raise node.failure(reason)
        if pending and time.monotonic() > deadline:
            needs = f"; {pending[0].needs}" if pending[0].needs else ""
            raise pending[0].failure(f"not ready after {timeout_s:.0f} s{needs}")
        if pending:
            time.sleep(_PAUSE_S)
