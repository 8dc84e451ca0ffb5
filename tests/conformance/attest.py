# SPDX-License-Identifier: Apache-2.0
"""The proof of the provider that carried a test, left by the test's own processes.

Each test gets a private directory. The dynamic linker names there the libraries that each process
has loaded (LD_DEBUG), and each endpoint of nearmetal leaves its counters (NEARMETAL_STATS_DIR). So
the proof depends neither on what a command asked for nor on what a test prints.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from nearmetal.job.stats import read_counters
from tests.conformance.outcomes import Outcome, Record, finish

OURS = "nearmetal"
SELF = "self"
_LIBRARY = r"(?:libnearmetal-fi\.so|libuct_nearmetal\.so[.0]*)"
_LOADED = re.compile(rf"calling init: (/.*/{_LIBRARY})$", re.MULTILINE)
_MAX_LOG = 64 << 20


@dataclass(frozen=True)
class Proof:
    """The traces of nearmetal in the processes of one test."""

    builds: tuple[str, ...] = ()
    """SHA-256 of each library that was loaded."""
    endpoints: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    """Messages, by channel."""
    accessed: dict[str, int] = field(default_factory=dict)
    """Puts, gets and atomics, by way."""
    doubt: str = ""
    """Why the library may not be the one that was hashed."""

    @property
    def carried(self) -> bool:
        """Whether something went from one process to another."""
        return bool(self.accessed or set(self.sent) - {SELF})

    def words(self) -> str:
        """Return endpoints and counts for a person."""
        counts = {**self.sent, **{f"{way} accesses": nr for way, nr in self.accessed.items()}}
        return f"{self.endpoints} endpoints, {counts or 'no messages'}"


@dataclass(frozen=True)
class Expected:
    """What a proof must contain."""

    provider: str
    endpoints: int
    messages: bool
    """The test sends messages between processes."""


def doubts(proof: Proof, expected: Expected) -> str:
    """Return why the provider did not carry the test; '' if it did."""
    if expected.provider != OURS:
        carried = f"nearmetal opened {proof.words()} in a run over {expected.provider}"
        return carried if proof.endpoints else ""
    if not proof.builds:
        wanted = "is FI_PROVIDER_PATH '+' and an absolute path, or UCX_PLUGIN_PATH a directory?"
        return f"no process loaded nearmetal: {wanted}"
    if proof.doubt:
        return proof.doubt
    if len(proof.builds) > 1:
        return f"processes loaded {len(proof.builds)} builds of nearmetal"
    if proof.endpoints < expected.endpoints:
        return f"{proof.endpoints} endpoints of nearmetal, {expected.endpoints} expected"
    if expected.messages and not proof.carried:
        return f"nearmetal carried no message between processes: {proof.words()}"
    return ""


def attested(outcome: Outcome, proof: Proof, expected: Expected) -> Outcome:
    """Return the outcome with its proof. A result without the expected proof is `unproven`."""
    held = replace(
        outcome,
        # A run over another provider may load ours, and not use it.
        provider=",".join(proof.builds) if expected.provider == OURS or proof.endpoints else "",
        endpoints=proof.endpoints,
        sent=proof.sent,
        accessed=proof.accessed,
    )
    if outcome.result == "notrun":
        expected = replace(expected, endpoints=0, messages=False)
    if outcome.result not in {"pass", "notrun"}:
        return held
    why = doubts(proof, expected)
    return replace(held, result="unproven", note=f"{why} {outcome.note}".strip()) if why else held


@lru_cache
def _hash(path: Path, _changed_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Trace:
    """The private directory of one test, as this process and as the test's processes see it."""

    here: Path
    there: Path
    root: Path
    """The root directory of the test's processes."""
    begin_ns: int

    @property
    def env(self) -> dict[str, str]:
        """The settings by which endpoints leave their counters."""
        return {"NEARMETAL_STATS_DIR": str(self.there)}

    def named(self, program: Sequence[str]) -> list[str]:
        """Return the program, started so that it names its libraries.

        Its launchers do not: they may run elsewhere, and then they write among its output.
        """
        return ["env", "LD_DEBUG=files", f"LD_DEBUG_OUTPUT={self.there / 'ld'}", *program]

    def _libraries(self) -> set[str]:
        found: set[str] = set()
        for path in self.here.glob("ld.*"):
            with path.open("rb") as file:
                found.update(_LOADED.findall(file.read(_MAX_LOG).decode("utf-8", "replace")))
        return found

    def read(self) -> Proof:
        """Return what the processes have left; they may still run."""
        builds, doubt = set(), ""
        for name in sorted(self._libraries()):
            path = self.root / name.lstrip("/")
            try:
                changed_ns = path.stat().st_ctime_ns
                builds.add(_hash(path, changed_ns))
            except OSError as error:
                doubt = f"{name}: {error.strerror}"
                continue
            if changed_ns >= self.begin_ns:
                doubt = f"{name} was replaced while the test ran"
        sent: Counter[str] = Counter()
        accessed: Counter[str] = Counter()
        seen = read_counters(self.here)
        for peer in (peer for one in seen for peer in one.counters.peers):
            for channel, traffic in peer.channels.items():
                sent[channel] += traffic.sent_messages
            for way, kinds in peer.accesses.items() if peer.relation != SELF else ():
                accessed[way] += sum(count.operations for count in kinds.values())
        return Proof(tuple(sorted(builds)), len(seen), dict(+sent), dict(+accessed), doubt)


@dataclass(frozen=True)
class Place:
    """Where tests leave their proof."""

    here: Path
    there: Path
    root: Path = Path("/")

    @contextlib.contextmanager
    def trace(self) -> Iterator[Trace]:
        """A new private directory, removed at the end. Ranks may have another user's number."""
        made = Path(tempfile.mkdtemp(prefix="proof-", dir=self.here))
        made.chmod(0o1777)
        try:
            yield Trace(made, self.there / made.name, self.root, time.time_ns())
        finally:
            shutil.rmtree(made, ignore_errors=True)


def place_of(options: argparse.Namespace) -> Place:
    """Return the place that --node-pid and --place name; by default one of this machine."""
    if options.node_pid:
        root = Path(f"/proc/{options.node_pid}/root")
        return Place(root / options.place.lstrip("/"), Path(options.place), root)
    return Place(Path(options.place), Path(options.place))


def add_arguments(parser: argparse.ArgumentParser, suites: Sequence[str]) -> None:
    """Add the arguments that all runners share."""
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--provider", default=OURS, help="that is to carry the tests")
    parser.add_argument("--suites", default=",".join(suites))
    parser.add_argument("--only", default="", help="regular expression")
    parser.add_argument("--again", default="", help="results to repeat, comma list")
    parser.add_argument("--timeout", type=float, default=90, help="seconds per test")
    parser.add_argument("--place", default=tempfile.gettempdir(), help="for what processes leave")
    parser.add_argument("--node-pid", type=int, help="process of the node that has the place")


def run_all(
    options: argparse.Namespace, tests: Iterable[tuple[str, str, Callable[[], Outcome]]]
) -> int:
    """Run the selected tests that the record lacks; return the exit code of the runner.

    A test is its suite, its name, and what runs it.
    """
    record = Record(options.record, [word for word in options.again.split(",") if word])
    selected: list[Outcome] = []
    for suite, name, attempt in tests:
        if not re.search(options.only, name):
            continue
        if (suite, name) not in record.outcomes:
            record.add(attempt())
        selected.append(record.outcomes[suite, name])
    suites = () if options.only else options.suites.split(",")
    return finish(selected, suites, ours=options.provider == OURS)
