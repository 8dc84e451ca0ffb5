# SPDX-License-Identifier: Apache-2.0
"""One node writes random bytes over its whole window while two others exchange messages.

The two lose nothing and never leave memory. Every exchange with the scribbler ends, with its bytes,
with an error or over the network, and nobody crashes or hangs.
"""

import subprocess

import pytest

from nearmetal.job.stats import read_stats
from tests.system.faults.arena import Arena
from tests.system.faults.peer import BUILD, Node

pytestmark = pytest.mark.system

PROGRAM = BUILD / "tests" / "system" / "scribbler"


class Job:
    """Two honest processes and a scribbler, each in a node of its own."""

    def __init__(self, arena: Arena, seconds: float, **knobs: str) -> None:
        self.arena = arena
        self.addresses = arena.root / "addresses"
        self.addresses.mkdir()
        names = {"a": "bs", "b": "as", "s": "ab"}
        self.logs = {name: arena.root / f"{name}.log" for name in names}
        self.processes = {
            name: self._start(name, others, seconds, knobs) for name, others in names.items()
        }

    def _start(
        self, name: str, others: str, seconds: float, knobs: dict[str, str]
    ) -> subprocess.Popen[str]:
        # The honest ones outlive the scribbler, so that its last end is noticed too.
        last = seconds if name == "s" else seconds + 4
        role = "scribbler" if name == "s" else "honest"
        command = [PROGRAM, role, last, self.addresses, name, *others]
        with self.logs[name].open("w") as log:
            return subprocess.Popen(
                [*Node(name).argv(), *map(str, command)],
                env=self.arena.environment(**knobs),
                cwd=self.arena.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def finish(self, within_s: float) -> dict[str, dict[str, dict[str, int]]]:
        """Wait for all; return what each counted with each other."""
        counted = {}
        try:
            for name, process in self.processes.items():
                out, _ = process.communicate(timeout=within_s)
                log = self.logs[name].read_text(errors="replace")
                assert process.returncode == 0, f"{name}: {process.returncode}\n{log[-3000:]}"
                lines = [line.split() for line in out.splitlines()]
                counted[name] = {
                    other: dict(zip(rest[::2], map(int, rest[1::2]), strict=True))
                    for other, *rest in lines
                }
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
        return counted

    def ways(self, name: str) -> list[dict[str, object]]:
        """Return what the statistics of NAME's endpoints say of their peers."""
        endpoints = [one for one in read_stats(self.arena.stats) if one["host"] == name]
        return [peer for one in endpoints for peer in one["peers"]]

    def identity(self, name: str) -> str:
        return (self.addresses / name).read_text()[4:16]


def scribble(arena: Arena, seconds: float, **knobs: str) -> tuple[Job, list[dict[str, object]]]:
    """Run a job; check what holds in any case. Return it with what `a` says of the scribbler."""
    job = Job(arena, seconds, CLOSE_MS="500", **knobs)
    counted = job.finish(seconds + 100)
    for one, other in (("a", "b"), ("b", "a")):
        assert counted[one][other]["errors"] == 0, counted
        assert counted[one][other]["spoiled"] == 0, counted
        assert counted[one][other]["good"] > 100, counted
        if knobs.get("CHECKSUM") == "on":
            assert counted[one]["s"]["spoiled"] == 0, counted
    (way,) = [way for way in job.ways("a") if way["id"] == job.identity("b")]
    assert (way["channel"], way["quarantines"]) == ("shm", 0)
    others = [way for way in job.ways("a") if way["id"] != job.identity("b")]
    caught = [way for way in others if way["quarantines"]]
    assert caught, others
    assert all(way["quarantine_reason"] for way in caught)
    assert any(way["channel"] == "net" and not way["down"] for way in caught) or any(
        way["channel"] == "net" and "closed" in str(way["down_reason"]) for way in caught
    ), caught
    assert not arena.sockets()
    return job, others


@pytest.mark.parametrize("checksum", ["off", "on"])
def test_a_scribbler_harms_its_own_messages_only(arena: Arena, checksum: str) -> None:
    scribble(arena, 5, CHECKSUM=checksum)


@pytest.mark.full
def test_a_minute_of_scribbling(arena: Arena) -> None:
    scribble(arena, 60)
