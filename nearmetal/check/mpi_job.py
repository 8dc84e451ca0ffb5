# SPDX-License-Identifier: Apache-2.0
"""Measures by one MPI job that lives as long as the run: STREAM's triad, DGEMM, and pairs by MPI.

The job has a rank for each slot, and gets its orders on the input of rank 0. What fails ends the
job, and the quantities that it should have measured are named with the reason: they are not slow.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from nearmetal.check.performance.run import (
    LIMIT_S,
    MAX_TEXT,
    QUANTITIES,
    Item,
    MeasuredTurn,
    Order,
    is_possible,
)
from nearmetal.cluster.backend import Backend
from nearmetal.cluster.model import ClusterSpec
from nearmetal.core.errors import BackendError, LaunchError, NearmetalError
from nearmetal.core.process import Runner
from nearmetal.core.progress import Progress
from nearmetal.core.resources import REMEDY, program_for_mpi
from nearmetal.core.text import printable
from nearmetal.job.client_server import FirstWords, first_words
from nearmetal.job.mpi import NO_MPI, MapBy, Mpi, find_installations
from nearmetal.job.mpi.launcher import place
from nearmetal.job.places import new_name
from nearmetal.job.run import JobRequest, JobResult, Output, crowded, run_job

PROGRAM = "mpi_check"
ORDERS = {
    "stream": "triad",
    "dgemm": "dgemm",
    "mpi_latency": "latency",
    "mpi_bandwidth": "bandwidth",
}
"""The quantities of the job, and their names in its orders."""

OPENBLAS = "libopenblas.so.0"
_REMEDY = "apt-get install libopenblas0-pthread  # on each node"

_CROWDED = (
    "nodes share cores, so messages of MPI would wait for the scheduler|"
    "give each node cores of its own (cpus in the spec), and run `nearmetal up` again"
)

_NOT_COMPILED = f"{REMEDY}; a build with meson needs -Dopenmpi=PREFIX or -Dmpich=PREFIX"

_SECONDS = {"stream": 0.3, "dgemm": 0.3, "mpi_latency": 0.1, "mpi_bandwidth": 0.1}
_VERSION = 1
_START_S = 180.0
"""Time in which the job must start: emulated machines take most of a minute for MPI_Init."""

_LATE_S = 15.0
"""Time after the limit of an order in which the job ends itself."""

_END_S = 60.0
_MOST_WORDS = 4096
_MOST_LINE = 1 << 16
_MOST_VALUE = 32
_MARK = "NM_CHECK_RUN"
"""A variable of the job's processes: the name of the job itself is not known here."""


class _JobEndError(Exception):
    """The job has ended, or answers what it should not: the reason."""


@dataclass
class MpiMeasurement:
    """The job of a run, as a context. It starts with the first order.

    `lacking`: "why|remedy" of each quantity that has no values, or not those that one expects.
    `setup`: how a quantity was measured, in words.
    """

    backend: Backend
    spec: ClusterSpec
    runner: Runner
    progress: Progress
    limit_s: float = LIMIT_S
    run: Callable[..., JobResult] = run_job
    program: Callable[[str, str, str], Path] = program_for_mpi
    end_s: float = _END_S
    """Time in which the job ends, by itself or killed."""
    lacking: dict[str, str] = field(default_factory=dict)
    setup: dict[str, str] = field(default_factory=dict)
    _name: str = field(default_factory=lambda: new_name("check"))
    _ranks: tuple[tuple[str, int], ...] = ()
    _orders: IO[bytes] | None = None
    _answers: int = -1
    _read: bytearray = field(default_factory=bytearray)
    _thread: threading.Thread | None = None
    _words: FirstWords | None = None
    _number: int = 0
    _shares_cores: bool | None = None
    _over: str = ""
    """Why nothing more is measured, as "why|remedy"."""
    _why: str = ""
    """How the job ended, as its thread says it."""
    _quantity: str = ""
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._close(broken=kind is not None)

    def ask(self, order: Order) -> MeasuredTurn:
        """Measure side by side, or say why this quantity lacks."""
        if order.quantity != self._quantity:
            self._quantity = order.quantity
            self.progress.step(f"measures {QUANTITIES[order.quantity].title}")
        values: dict[Item, float] = {}
        if self._crowded(order.quantity):
            self.lacking[order.quantity] = _CROWDED
            return MeasuredTurn(order.quantity, values)
        if not self._over:
            try:
                if self._thread is None:
                    self._start()
                values = self._asked(order)
            except _JobEndError as ended:
                self._over = str(ended)
                self._close(broken=True)
        if self._over:
            self.lacking[order.quantity] = self._over
        return MeasuredTurn(order.quantity, values)

    def _crowded(self, quantity: str) -> bool:
        """Whether ranks would take turns on cores, so that a message waits for the scheduler."""
        if not QUANTITIES[quantity].of_pairs:
            return False
        if self._shares_cores is None:
            slots = [(node.name, node.slots) for _, node in self.spec.nodes]
            placement = place(slots, None, MapBy.SLOT)
            self._shares_cores = crowded(self.spec, self.backend, placement)
        return self._shares_cores

    def _start(self) -> None:
        try:
            request = self._request()
        except NearmetalError as error:
            raise _JobEndError(_words(error.message, error.hint)) from error
        orders, self._orders = (os.fdopen(end, mode, buffering=0) for end, mode in _pipe())
        self._answers, answers = os.pipe()
        self._words = self._stack.enter_context(first_words(_MOST_WORDS))
        output = Output(orders, os.fdopen(answers, "wb", buffering=0), self._words.stream)
        self._thread = threading.Thread(target=self._run, args=(request, output), daemon=True)
        self._thread.start()
        ranks = sum(count for _, count in self._ranks)
        hello = re.fullmatch(
            rf"{PROGRAM} {_VERSION} {ranks} (\d{{1,9}}) (\d{{1,9}})", self._line(_START_S)
        )
        if hello is None:
            raise _JobEndError(f"its first line is not that of the program|{REMEDY}")
        mib, lacking = int(hello[1]), int(hello[2])
        self.setup["stream"] = f"a[i] = b[i] + s * c[i] in arrays of {mib} MiB by each rank"
        kernel = OPENBLAS if not lacking else f"a loop of nearmetal, not {OPENBLAS}"
        self.setup["dgemm"] = f"products of matrices by one rank on each slot: {kernel}"
        if lacking:
            self.lacking["dgemm"] = (
                f"measured with a loop of nearmetal: {OPENBLAS} is missing for {lacking} of {ranks} "
                f"ranks|{_REMEDY}"
            )

    def _request(self) -> JobRequest:
        """Return the job on the nodes that are up; raises LaunchError."""
        up = [status.name for status in self.backend.status() if status.healthy]
        slots = [(node.name, node.slots) for _, node in self.spec.nodes if node.name in up]
        self._ranks = place(slots, None, MapBy.SLOT).ranks
        installed = find_installations() if self.backend.shares_files else (Mpi.OPENMPI5,)
        for mpi in installed:
            try:
                path = self.program(PROGRAM, mpi.value, mpi.family.name.lower())
            except LaunchError:
                continue
            for name in ("mpi_latency", "mpi_bandwidth"):
                size = "8 bytes" if name == "mpi_latency" else "256 KiB"
                self.setup[name] = f"messages of {size} by {mpi.title} between first ranks"
            return JobRequest(str(path), mpi=mpi.value, nodes=tuple(up), env={_MARK: self._name})
        if not installed:
            raise LaunchError("no MPI is installed", NO_MPI)
        titles = ", ".join(mpi.title for mpi in installed)
        raise LaunchError(f"{PROGRAM} is not compiled for {titles}", _NOT_COMPILED)

    def _run(self, request: JobRequest, output: Output) -> None:
        """Run the job to its end, in a thread."""
        try:
            result = self.run(self.backend, self.spec, request, self.runner, output)
            self._why = f"the MPI job ended with {result.lost or f'code {result.exit_code}'}"
        except NearmetalError as error:
            self._why = _words(error.message, error.hint)
        except OSError as error:
            self._why = _words(f"this machine cannot run the MPI job: {error}", "")
        finally:
            for stream in (output.stdin, output.stdout):
                if stream is not None:
                    stream.close()

    def _asked(self, order: Order) -> dict[Item, float]:
        quantity = QUANTITIES[order.quantity]
        first, at = {}, 0
        for name, count in self._ranks:
            first[name] = at
            at += count
        items = [item for item in order.items if all(name in first for name in item)]
        if not items:
            return {}
        pairs = [f"{first[a]}:{first[b]}" for a, b in items] if quantity.of_pairs else []
        self._number += 1
        words = (ORDERS[order.quantity], _SECONDS[order.quantity], int(self.limit_s) + 1, *pairs)
        text = f"{self._number} {' '.join(map(str, words))}\n"
        try:
            if self._orders is not None:
                self._orders.write(text.encode())
        except OSError as error:
            raise _JobEndError(self._reason()) from error
        values = self._values(at if not pairs else 2 * len(pairs))
        if quantity.of_pairs:
            ways = [way for a, b in items for way in ((a, b), (b, a))]
            return dict(zip(ways, values, strict=True))
        wanted = {name for (name,) in items}
        return {
            (name,): sum(values[first[name] : first[name] + count])
            for name, count in self._ranks
            if name in wanted
        }

    def _values(self, count: int) -> list[float]:
        number, *words = self._line(self.limit_s + _LATE_S).split() or [""]
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        if number != str(self._number) or len(values) != count or not all(map(is_possible, values)):
            raise _JobEndError("the MPI job gives an answer that is not possible|measure again")
        return values

    def _line(self, wait_s: float) -> str:
        """Return the next line of the job."""
        deadline = time.monotonic() + wait_s
        most = _MOST_LINE + _MOST_VALUE * sum(count for _, count in self._ranks)
        poll = select.poll()  # any descriptor, also over 1023
        poll.register(self._answers, select.POLLIN)
        while b"\n" not in self._read:
            rest = deadline - time.monotonic()
            ready = rest > 0 and poll.poll(1000 * rest)
            piece = os.read(self._answers, 1 << 16) if ready else b""
            self._read += piece
            if not ready:
                raise _JobEndError(
                    f"the MPI job does not answer in {wait_s:g} s|nearmetal status SPEC"
                )
            if not piece:
                raise _JobEndError(self._reason())
            if len(self._read) > most:
                raise _JobEndError("the MPI job prints a line without an end|measure again")
        line, _, rest_of_it = bytes(self._read).partition(b"\n")
        self._read[:] = rest_of_it
        return line.decode("ascii", "replace")

    def _reason(self) -> str:
        """Return why the job has ended, or has to."""
        if self._thread is not None:
            self._thread.join(self.end_s)
        said = [] if self._words is None else self._words.text().splitlines()
        why, _, remedy = (self._why or "the MPI job ended").partition("|")
        # The program's own words say more than those of the launcher, which draws lines.
        words = [line for line in said if any(map(str.isalpha, line))]
        own = [line for line in words if line.startswith("FAILED rank ")]
        last = f": {(own or words[-1:])[0]}" if words else ""
        return _words(f"{why}{last}", remedy)

    def _close(self, *, broken: bool) -> None:
        """End the job by its last order; what does not end by itself is killed."""
        if self._orders is not None:
            with contextlib.suppress(OSError, ValueError):
                self._orders.write(b"end\n")
            with contextlib.suppress(OSError):
                self._orders.close()
        if self._thread is not None:
            if not broken:
                self._thread.join(self.end_s)
            if self._thread.is_alive():
                self._hear_no_more()
                with contextlib.suppress(BackendError):
                    self.backend.end_marked(f"{_MARK}={self._name}")
                self._thread.join(self.end_s)
        self._hear_no_more()
        self._stack.close()

    def _hear_no_more(self) -> None:
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1


def _words(why: str, remedy: str) -> str:
    """Return "why|remedy". Both may have words of nodes."""
    first = printable(why.replace("|", "/"))[:MAX_TEXT]
    return f"{first}|{printable(remedy)[:MAX_TEXT] or 'nearmetal run SPEC -- PROGRAM'}"


def _pipe() -> Sequence[tuple[int, str]]:
    reading, writing = os.pipe()
    return (reading, "rb"), (writing, "wb")
