# SPDX-License-Identifier: Apache-2.0
"""Measures HPL on each node by an MPI job of its own: the HPL of HPC Challenge (Debian's hpcc).

All nodes compute side by side. The size follows from the speed of the slowest node and from its
memory. A value counts only if HPL's own residual check has passed; a check that has failed is wrong
arithmetic, which is worse than a slow node.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import isqrt
from threading import Event
from typing import Self

from nearmetal.check.performance.run import (
    LIMIT_S,
    MAX_TEXT,
    TOGETHER,
    Item,
    MeasuredTurn,
    Order,
    is_possible,
)
from nearmetal.check.unmeasured import Unmeasured
from nearmetal.cluster.backend import Backend
from nearmetal.cluster.model import ClusterSpec
from nearmetal.core.errors import BackendError, LogError, NearmetalError
from nearmetal.core.process import AT_ONCE, Runner
from nearmetal.core.progress import Progress
from nearmetal.core.resources import share
from nearmetal.core.text import printable
from nearmetal.evidence import parse_log
from nearmetal.job.mpi import Family, find_installations
from nearmetal.job.places import new_name
from nearmetal.job.run import JobRequest, JobResult, Output, find_job_program, run_job

PROGRAM = "hpcc"
FIRST_SIZE, MOST_SIZE, STEP = 600, 2000, 100
"""Other tests of HPC Challenge take ten times as long as its HPL, and grow with its size."""

TARGET_S = 2.0
"""Time of HPL alone that the slowest node should need."""

SHARE_OF_MEMORY = 16
"""A matrix, with those of the other tests, has at most this part of the available memory."""

_COPIES = 4
_LEAST = 2
_LIMIT_S = 300.0
_LOOK_S = 0.5
"""Between two attempts to end jobs: one that is just starting cannot be ended yet."""

_MOST_OUTPUT = 1 << 20
_MARK = "NM_CHECK_HPL"
_REMEDY = "apt-get install hpcc  # on this machine, whose files the nodes see"
_PLACE = (
    "nodes that are machines have no common files: HPL is not measured in them|"
    "nearmetal study run STUDY.yaml  # with the workload hpcc"
)

_SCRIPT = (
    'd=$(mktemp -d) && cd "$d" || exit 1; trap \'rm -rf "$d"\' EXIT; '
    'echo "$1" | tr "|" "\\n" >hpccinf.txt; "$2" >said 2>&1; code=$?; '
    "[ ! -s hpccoutf.txt ] || { grep MemAvailable: /proc/meminfo; cat hpccoutf.txt; }; exit $code"
)
"""Only rank 0 has an output. The directory is in that of the job, which is removed at its end."""

_SECTION = re.compile(
    r"^Begin of HPL section\.$(.*?)^End of HPL section\.$", re.DOTALL | re.MULTILINE
)
_WRONG = re.compile(r"^.{0,200}\bFAILED\s*$", re.MULTILINE)
_MEMORY = re.compile(r"^MemAvailable:\s+(\d{1,12}) kB$", re.MULTILINE)


class WrongResultError(Exception):
    """HPL's own check of its result has failed: its line."""


@dataclass(frozen=True)
class HplResult:
    """What HPL of a node says: GFLOP/s, and the kibibytes of memory that it has left."""

    rate: float
    memory: int


def read_result(text: str, node: str) -> HplResult:
    """Return the result in an output of HPC Challenge; raises LogError or WrongResultError."""
    section = _SECTION.search(text)
    if section is None:
        raise LogError(f"{node}: hpcc printed no result of HPL", "run it by hand")
    wrong = _WRONG.search(section[1])
    if wrong is not None:
        raise WrongResultError(printable(wrong[0].strip())[:MAX_TEXT])
    log = parse_log(section[1].lstrip("\n"), node, "hpl")
    if any("not every result was checked" in words for _, words in log.remarks):
        raise LogError(f"{node}: HPL did not check its result", "run it by hand")
    rates = [row.values["rate"] for t in log.tables for row in t.rows if "rate" in row.values]
    memory = _MEMORY.search(text)
    if len(rates) != 1 or not is_possible(rates[0]) or memory is None:
        raise LogError(f"{node}: HPL has not one possible result", "run it by hand")
    return HplResult(rates[0], int(memory[1]))


def size_for(results: Mapping[str, HplResult], together: int) -> int:
    """Return the size of a matrix. `together`: nodes that may share the memory of one kernel."""
    operations = 1e9 * min(r.rate for r in results.values()) * TARGET_S
    by_time = (1.5 * operations) ** (1 / 3)
    bytes_ = 1024 * min(r.memory for r in results.values()) // SHARE_OF_MEMORY
    by_memory = isqrt(bytes_ // (8 * _COPIES * together))
    size = min(int(by_time), by_memory, MOST_SIZE) // STEP * STEP
    return max(size, STEP)


def grid(ranks: int) -> tuple[int, int]:
    """Return the grid of ranks that is closest to a square."""
    rows = next(rows for rows in range(isqrt(ranks), 0, -1) if ranks % rows == 0)
    return rows, ranks // rows


@dataclass
class HplMeasurement:
    """HPL of a run, as a context. `wrong`: nodes whose result is wrong, with the line of HPL."""

    backend: Backend
    spec: ClusterSpec
    runner: Runner
    progress: Progress
    limit_s: float = LIMIT_S
    run: Callable[..., JobResult] = run_job
    program: str = PROGRAM
    pool: type[ThreadPoolExecutor] = ThreadPoolExecutor
    lacking: dict[str, str] = field(default_factory=dict)
    setup: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    _unmeasured: Unmeasured = field(init=False)
    _mpi: str = ""
    _path: str = ""
    _size: int = 0
    _last: str = ""
    _hint: str = ""
    """Of the last job that failed: why, and the remedy."""
    _name: str = field(default_factory=lambda: new_name("hpl"))

    def __post_init__(self) -> None:
        """Nothing has failed yet."""
        self._unmeasured = Unmeasured(len(self.spec.nodes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._end()

    def _end(self) -> None:
        """End the jobs in the nodes."""
        with contextlib.suppress(BackendError):
            self.backend.end_marked(f"{_MARK}={self._name}")

    @property
    def failures(self) -> dict[tuple[str, ...], str]:
        """Nodes without a value, and why."""
        return self._unmeasured.reasons()

    def ask(self, order: Order) -> MeasuredTurn:
        """Run HPL on each of these nodes, side by side."""
        if not self._size and not self.lacking:
            self._prepare()
        values: dict[Item, float] = {}
        if not self.lacking:
            for name, result in self._results(self._size, {n for (n,) in order.items}).items():
                values[(name,)] = result.rate
        return MeasuredTurn(order.quantity, values)

    def _prepare(self) -> None:
        """Find the program and an MPI, and choose the size by small runs."""
        self.progress.step("measures HPL")
        if not self.backend.shares_files:
            self.lacking["hpl"] = _PLACE
            return
        mpis = [mpi for mpi in find_installations() if mpi.family is Family.OPENMPI]
        try:
            self._path = str(find_job_program(self.program))
        except NearmetalError as error:
            self.lacking["hpl"] = f"{printable(error.message)[:MAX_TEXT]}|{_REMEDY}"
            return
        if not mpis:
            self.lacking["hpl"] = "Debian's hpcc needs Open MPI, which is not installed|make setup"
            return
        self._mpi = mpis[0].value
        names = [node.name for _, node in self.spec.nodes]
        first = self._results(FIRST_SIZE, set(names))
        if not first:
            why = self._last or next(iter(self.wrong.values()), "no result")
            why = f"no node has a result of HPL: {why.replace('|', '/')}"[:MAX_TEXT]
            self.lacking["hpl"] = f"{why}|{self._hint}" if self._hint else why
            self._unmeasured = Unmeasured(len(names))  # what all lack is no fault of a node
            return
        self._size = size_for(first, len(names))
        self.setup["hpl"] = f"HPL of hpcc on all slots of a node, N = {self._size}, {self._mpi}"

    def measure_cluster(self) -> None:
        """Run HPL once on all nodes together; it has no class, so it is a word of the set-up."""
        slots = {n.name: n.slots for _, n in self.spec.nodes if (n.name,) not in self.failures}
        if self.lacking or not self._size or len(slots) < _LEAST:
            return
        size = min(MOST_SIZE, int(self._size * len(slots) ** 0.5) // STEP * STEP)
        ranks = sum(slots.values())
        end = self._outcome(tuple(slots), ranks, size)
        found = f"{end.rate:g} GFLOP/s" if isinstance(end, HplResult) else f"no value, {end}"
        self.setup["hpl"] += f"; {ranks} ranks on all nodes, N = {size}: {found}"

    def _results(self, size: int, wanted: set[str]) -> dict[str, HplResult]:
        found: dict[str, HplResult] = {}
        slots = {n.name: n.slots for _, n in self.spec.nodes if n.name in wanted}
        able = [n for n in slots if not self._unmeasured.is_left_out("hpl", (n,))]
        interrupted, running = Event(), set[str]()

        def outcome(name: str) -> HplResult | str:
            running.add(name)
            try:
                return "" if interrupted.is_set() else self._outcome((name,), slots[name], size)
            finally:
                running.remove(name)

        with self.pool(AT_ONCE) as pool:
            try:
                ends = list(pool.map(outcome, able))
            except BaseException:
                # The pool waits for its jobs, also for one that an interrupted submit() has begun:
                # they would take their whole limit.
                interrupted.set()
                while running:
                    self._end()
                    time.sleep(_LOOK_S)
                raise
        for name, end in zip(able, ends, strict=True):
            if isinstance(end, HplResult):
                found[name] = end
                self._unmeasured.succeed("hpl", (name,))
            else:
                self._last = end
                self._unmeasured.fail("hpl", (name,), end)
                self._unmeasured.was_late("hpl", (name,))
        return found

    def _outcome(self, names: tuple[str, ...], slots: int, size: int) -> HplResult | str:
        """Return the result of one job, or why there is none."""
        rows, columns = grid(slots)
        text = share("check", "hpccinf.txt").read_text(encoding="utf-8")
        for mark, number in (("@N@", size), ("@P@", rows), ("@Q@", columns)):
            text = text.replace(mark, str(number))
        words = ("-c", _SCRIPT, "sh", text.strip().replace("\n", "|"), self._path)
        request = JobRequest(
            "/bin/sh",
            words,
            mpi=self._mpi,
            ranks=slots,
            nodes=names,
            env={_MARK: self._name},
            timeout_s=_LIMIT_S + self.limit_s,
        )
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                done = self.run(
                    self.backend, self.spec, request, self.runner, Output(None, out, err)
                )
                out.seek(0)
                said = out.read(_MOST_OUTPUT).decode("utf-8", "replace")
                err.seek(0)
                last = err.read(_MOST_OUTPUT).decode("utf-8", "replace").strip().splitlines()
                if done.timed_out:
                    return f"HPL did not end in {request.timeout_s:g} s"
                if _SECTION.search(said) is None:
                    why = printable(last[-1]) if last else "it printed nothing"
                    return f"hpcc ended with code {done.exit_code}: {why}"[:MAX_TEXT]
                return read_result(said, names[0])
            except WrongResultError as error:
                together = TOGETHER if len(names) > 1 else ""
                for name in names:
                    self.wrong.setdefault(name, f"{together}{error}"[:MAX_TEXT])
                return "the result of HPL is wrong"
            except NearmetalError as error:
                self._hint = printable(error.hint)[:MAX_TEXT]
                return printable(error.message)[:MAX_TEXT]
