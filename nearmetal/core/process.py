# SPDX-License-Identifier: Apache-2.0
"""The only module that starts processes.

A command is an argument list, never a shell string. Every captured command runs in its own session,
so that a time-out, an error or Ctrl-C ends the command and all its children. Its output is foreign:
a node may answer without end, so a command that prints more than its bound is ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn, Protocol

from nearmetal.core import log
from nearmetal.core.errors import CommandError

GRACE_S = 2.0
"""Time for a cancelled process group between SIGTERM and SIGKILL."""

SEND_S = 10.0
"""Time in which the partner of a dialogue must read a line, once its pipe is full."""

AT_ONCE = 8
"""Commands that run side by side. Many are logins through one machine, and its sshd drops some of more
than ten logins that are not yet authenticated (MaxStartups)."""

MAX_OUTPUT = 96 << 20
"""Bytes of each output of a captured command: more than the largest file that nodes send us."""

MAX_LINE = 1 << 20
"""Bytes of a line in a dialogue."""

_PIECE = 64 << 10

_Stream = IO[bytes] | int | None

_TAIL_LINES = 12
_LOOK_S = 0.5


@dataclass(frozen=True)
class Command:
    """A program to start: its arguments, its whole environment (None: inherited), its directory.

    `most`: bytes that `run`, `run_all` and `check` accept on each of its outputs.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    stdin: bytes = field(default=b"", repr=False)
    most: int = MAX_OUTPUT

    def __str__(self) -> str:
        """Return the command as a user would type it."""
        return shlex.join(self.argv)


@dataclass(frozen=True)
class Completed:
    """The end of a command. `code` is negative for a signal, as in `subprocess`."""

    command: Command
    code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Standard output as text; undecodable bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_tail(self) -> str:
        """The last lines of standard error, or of standard output if that is empty."""
        lines = (self.stderr or self.stdout).decode("utf-8", "replace").strip().splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


class Dialogue(Protocol):
    """A running program that reads and writes lines."""

    def send(self, line: str, timeout_s: float = SEND_S) -> None:
        """Write one line; raises CommandError if the program has ended, or does not read in time.

        After an error the line may be there in part.
        """

    def receive(self, timeout_s: float) -> str | None:
        """Return the next line without its newline; None at the end of output or at the time-out.

        Raises CommandError for a line of more than MAX_LINE bytes.
        """

    def finish(self, timeout_s: float) -> int:
        """Close its input, wait, kill its session if it is late; returns the exit code."""


class Runner(Protocol):
    """Starts processes; `LocalRunner` starts them on this machine."""

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        """Run to the end and capture; CommandError if it cannot start or prints without bound."""

    def run_all(
        self,
        commands: Sequence[Command],
        *,
        timeout_s: float,
        ended: Callable[[int, Completed], None] | None = None,
    ) -> list[Completed]:
        """As `run`, side by side, each with that time; returns the ends in the given order.

        `ended`: called with the index and the end of each command as soon as it ends.
        """

    def check(self, command: Command, *, timeout_s: float) -> Completed:
        """As `run`, and raises CommandError if it fails or is late."""

    def attach(
        self,
        command: Command,
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        timeout_s: float | None = None,
        idle_s: float | None = None,
        foreground: bool = False,
    ) -> Completed:
        """Run with the caller's streams (None: inherited output, empty input).

        `idle_s`: time after which it is late if the files that it writes have not grown.
        `foreground`: stay in the process group of the terminal.
        """

    def converse(self, command: Command, *, stderr: IO[bytes] | None = None) -> Dialogue:
        """Start a program to exchange lines with."""


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session, by SIGTERM first; returns when the process is reaped."""
    for signum, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            break
    # The leader may have ended before other processes of its session.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _start(
    command: Command, stdin: _Stream, stdout: _Stream, stderr: _Stream, *, own_session: bool = True
) -> subprocess.Popen[bytes]:
    where = f" in {command.cwd}" if command.cwd else ""
    log.detail(f"starts{where}: {command}")
    try:
        return subprocess.Popen(
            command.argv,
            env=None if command.env is None else dict(command.env),
            cwd=command.cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=own_session,
        )
    except OSError as error:
        log.command(f"cannot start ({error.strerror}): {command}")
        hint = "install it, or check PATH" if isinstance(error, FileNotFoundError) else ""
        raise CommandError(f"cannot start {command.argv[0]}: {error.strerror}", hint) from error


@contextlib.contextmanager
def _started(
    command: Command, stdin: _Stream, stdout: _Stream, stderr: _Stream, *, own_session: bool = True
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process; on any exception, KeyboardInterrupt included, end its session."""
    process = _start(command, stdin, stdout, stderr, own_session=own_session)
    try:
        yield process
    except BaseException:
        if own_session:
            _end_session(process)
        else:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            process.kill()
            process.wait()
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class _Running:
    """A started command, whose input is fed and whose outputs are read as its pipes allow."""

    def __init__(
        self, command: Command, process: subprocess.Popen[bytes], selector: selectors.BaseSelector
    ) -> None:
        assert process.stdin is not None  # noqa: S101 - our own invariant: all three are pipes
        assert process.stdout is not None  # noqa: S101 - as above
        assert process.stderr is not None  # noqa: S101 - as above
        self.command = command
        self.process = process
        self.timed_out = False
        self._selector = selector
        self._begin = time.monotonic()
        self._seconds = 0.0
        self._input = memoryview(command.stdin)
        self._outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self._stdin = process.stdin.fileno()
        self._exit = os.pidfd_open(process.pid)
        self._watched = {self._exit, self._stdin, *self._outputs}
        for source in self._watched:
            os.set_blocking(source, False)
            event = selectors.EVENT_WRITE if source == self._stdin else selectors.EVENT_READ
            selector.register(source, event, self)
        if not self._input:
            self._close_input()

    def act(self, source: int) -> bool:
        """Feed or read the ready pipe; returns whether the command has ended."""
        if source == self._exit:
            self.end()
            return True
        if source == self._stdin:
            self._feed()
        elif source in self._watched:
            self._read(source)
        return False

    def end(self) -> None:
        """Read what is left, and reap it: it has ended.

        Its processes wrote all their output to the pipes; a daemon may keep them open without end.
        """
        for output in self._outputs:
            while output in self._watched and self._read(output):
                pass
        for source in list(self._watched):
            self._drop(source)
        self.process.wait()
        self._seconds = time.monotonic() - self._begin

    def close(self) -> None:
        """Close the descriptor of its end."""
        os.close(self._exit)

    def completed(self) -> Completed:
        """Return its end."""
        stdout, stderr = map(bytes, self._outputs.values())
        code = self.process.returncode
        return Completed(self.command, code, stdout, stderr, self._seconds, self.timed_out)

    def _drop(self, source: int) -> None:
        self._watched.discard(source)
        self._selector.unregister(source)

    def _close_input(self) -> None:
        self._drop(self._stdin)
        assert self.process.stdin is not None  # noqa: S101 - as above
        self.process.stdin.close()
        self._stdin = -1

    def _feed(self) -> None:
        try:
            self._input = self._input[os.write(self._stdin, self._input[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._input = self._input[:0]
        if not self._input:
            self._close_input()

    def _read(self, output: int) -> bool:
        """Read one piece; returns whether there may be more."""
        try:
            piece = os.read(output, _PIECE)
        except BlockingIOError:
            return False
        content = self._outputs[output]
        if len(content) + len(piece) > self.command.most:
            raise CommandError(
                f"more than {self.command.most} bytes of output: {self.command}",
                "the command was ended: no answer is as long",
            )
        content += piece
        if not piece:
            self._drop(output)
        return bool(piece)


_Ended = Callable[[int, Completed], None]


def _shifted(ended: _Ended, first: int) -> _Ended:
    return lambda index, end: ended(first + index, end)


def _run_side_by_side(
    commands: Sequence[Command], timeout_s: float, ended: _Ended | None = None
) -> list[Completed]:
    """Start all commands, wait for each; on any exception end the sessions of all."""
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        running = []
        for command in commands:
            process = stack.enter_context(_started(command, pipe, pipe, pipe))
            one = _Running(command, process, selector)
            stack.callback(one.close)
            running.append(one)
        deadline = time.monotonic() + timeout_s
        active = set(running)
        ends: dict[_Running, Completed] = {}

        def note(one: _Running) -> None:
            ends[one] = _logged(one.completed())
            if ended is not None:
                ended(running.index(one), ends[one])

        while active and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                if key.data in active and key.data.act(key.fd):
                    active.remove(key.data)
                    note(key.data)
        for late in active:
            late.timed_out = True
            _end_session(late.process)
            late.end()
            note(late)
        return [ends[one] for one in running]


def _logged(end: Completed) -> Completed:
    """Write the end of a command to the log, and return it."""
    how = "timed out" if end.timed_out else f"exit {end.code}"
    log.command(f"{end.seconds:.3f} s, {how}: {end.command}")
    log.output("output", end.stdout)
    log.output("errors", end.stderr)
    return end


def _ready(stream: IO[bytes], event: int, deadline: float) -> bool:
    """Wait until a pipe is ready; returns False at the deadline. Any descriptor, also over 1023."""
    left_s = deadline - time.monotonic()
    poll = select.poll()
    poll.register(stream, event)
    return left_s > 0 and bool(poll.poll(1000 * left_s))


class _LocalDialogue:
    """A Dialogue over two pipes."""

    def __init__(self, command: Command, process: subprocess.Popen[bytes]) -> None:
        self._command = command
        self._process = process
        self._begin = time.monotonic()
        self._pending = bytearray()
        assert process.stdin is not None  # noqa: S101 - our own invariant: it was opened with a pipe
        # A partner that does not read must block neither a line nor the end: no buffer of ours.
        os.set_blocking(process.stdin.fileno(), False)

    def send(self, line: str, timeout_s: float = SEND_S) -> None:
        stream = self._process.stdin
        assert stream is not None  # noqa: S101 - our own invariant: it was opened with a pipe
        deadline = time.monotonic() + timeout_s
        left = memoryview(line.encode() + b"\n")
        try:
            while left:
                with contextlib.suppress(BlockingIOError):
                    left = left[os.write(stream.fileno(), left[:_PIECE]) :]
                    continue
                if not _ready(stream, select.POLLOUT, deadline):
                    raise CommandError(f"{self._command.argv[0]} does not read its input")
        except (OSError, ValueError) as error:
            raise CommandError(f"{self._command.argv[0]} ended before it read all input") from error

    def receive(self, timeout_s: float) -> str | None:
        stream = self._process.stdout
        assert stream is not None  # noqa: S101 - our own invariant: it was opened with a pipe
        deadline = time.monotonic() + timeout_s
        looked = 0
        while (end := self._pending.find(b"\n", looked)) < 0:
            looked = len(self._pending)
            if looked > MAX_LINE:
                raise CommandError(f"{self._command.argv[0]} printed a line without an end")
            if not _ready(stream, select.POLLIN, deadline):
                return None
            chunk = os.read(stream.fileno(), _PIECE)
            if not chunk:
                return None
            self._pending += chunk
        line = self._pending[:end].decode("utf-8", "replace")
        del self._pending[: end + 1]
        return line

    def finish(self, timeout_s: float) -> int:
        process = self._process
        try:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        finally:
            if process.poll() is None:
                _end_session(process)
            if process.stdout is not None:
                process.stdout.close()
        seconds = time.monotonic() - self._begin
        _logged(Completed(self._command, process.returncode, b"", b"", seconds))
        return process.returncode


def _await(
    process: subprocess.Popen[bytes],
    timeout_s: float | None,
    idle_s: float | None,
    files: Sequence[IO[bytes]],
) -> None:
    """Wait for the end; raises TimeoutExpired if it takes too long, or is silent for too long."""
    if idle_s is None:
        process.wait(timeout_s)
        return
    begin = grown = time.monotonic()
    size = -1
    while True:
        try:
            process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            now, written = time.monotonic(), sum(os.fstat(f.fileno()).st_size for f in files)
            if written != size:
                size, grown = written, now
            if now - grown > idle_s or (timeout_s is not None and now - begin > timeout_s):
                raise
        else:
            return


class LocalRunner:
    """Starts processes on this machine."""

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        """Run to the end and capture both outputs."""
        (end,) = _run_side_by_side([command], timeout_s)
        return end

    def run_all(
        self,
        commands: Sequence[Command],
        *,
        timeout_s: float,
        ended: _Ended | None = None,
    ) -> list[Completed]:
        """Run all to their ends, AT_ONCE at a time."""
        ends: list[Completed] = []
        for first in range(0, len(commands), AT_ONCE):
            some = commands[first : first + AT_ONCE]
            tell = None if ended is None else _shifted(ended, first)
            ends += _run_side_by_side(some, timeout_s, tell)
        return ends

    def check(self, command: Command, *, timeout_s: float) -> Completed:
        """Run to the end; the hint of the error is the last output of the program."""
        completed = self.run(command, timeout_s=timeout_s)
        if completed.timed_out:
            raise CommandError(f"no end after {timeout_s:g} s: {command}", completed.error_tail)
        if completed.code != 0:
            raise CommandError(
                f"exit code {completed.code}: {command}", completed.error_tail, code=completed.code
            )
        return completed

    def attach(
        self,
        command: Command,
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        timeout_s: float | None = None,
        idle_s: float | None = None,
        foreground: bool = False,
    ) -> Completed:
        """Run with the caller's streams."""
        begin = time.monotonic()
        timed_out = False
        with _started(
            command,
            subprocess.DEVNULL if stdin is None else stdin,
            stdout,
            stderr,
            own_session=not foreground,
        ) as process:
            try:
                _await(process, timeout_s, idle_s, [s for s in (stdout, stderr) if s is not None])
            except subprocess.TimeoutExpired:
                timed_out = True
                _end_session(process)
            seconds = time.monotonic() - begin
            return _logged(Completed(command, process.returncode, b"", b"", seconds, timed_out))

    def converse(self, command: Command, *, stderr: IO[bytes] | None = None) -> Dialogue:
        """Start a program with pipes for its input and output."""
        pipe = subprocess.PIPE
        process = _start(command, pipe, pipe, stderr)
        return _LocalDialogue(command, process)


def find_program(name: str) -> Path | None:
    """Find an executable in PATH and the system directories."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
    found = shutil.which(name, path=places)
    return None if found is None else Path(found)


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program, found by the PATH of `env`. Raises CommandError."""
    try:
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - no shell, as everywhere here
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError(f"cannot start {argv[0]}: {why}", "check its path") from error
