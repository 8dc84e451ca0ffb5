# SPDX-License-Identifier: Apache-2.0
"""The entry point: parses, runs one verb, turns errors and signals into exit codes."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import cast

import nearmetal
from nearmetal.cli.verbs import Handler, build_parser
from nearmetal.cli.view import View
from nearmetal.core import log
from nearmetal.core.errors import ExitCode, Interrupted, NearmetalError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    # Further signals must not interrupt the clean-up, which takes a bounded time.
    for name in _ENDING:
        signal.signal(name, signal.SIG_IGN)
    raise Interrupted(signum)


def _interruption(error: BaseException | None) -> Interrupted | None:
    """Return the Interrupted behind an error: a library may wrap it when it interrupts a callback."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    return error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(sys.argv[1:] if argv is None else argv, build_parser)


def run(argv: Sequence[str], make_parser: Callable[[], ArgumentParser]) -> int:
    """Make the parser, parse, and run the handler; returns the exit code."""
    _open_closed_streams()
    words = list(argv)
    options = words[: words.index("--")] if "--" in words else words
    view = View(as_json="--json" in options)
    try:
        try:
            return _run(words, make_parser, view)
        finally:
            # Here and not at exit, where a full disk is no error that this program can tell.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, for example `| head`.
        _discard_output()
    except OSError as error:
        # Standard output takes nothing, not even the document of an error.
        _discard_output()
        with contextlib.suppress(OSError):
            view.error(_of_system(error))
    return ExitCode.ERROR


def _open_closed_streams() -> None:
    """Open the null device where the caller has closed a standard stream.

    Otherwise the next file that is opened gets the number of the stream, and its writes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _discard_output() -> None:
    """Let standard output end without a further error, also at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _of_system(error: OSError) -> NearmetalError:
    return NearmetalError(str(error), "a full disk or a missing permission?")


def _run(words: list[str], make_parser: Callable[[], ArgumentParser], view: View) -> int:
    records = contextlib.ExitStack()
    # No work is under way while modules are loaded: a signal simply ends the process.
    before = {name: signal.signal(name, signal.SIG_DFL) for name in _ENDING}
    try:
        args = make_parser().parse_args(words)
        for name in _ENDING:
            signal.signal(name, _interrupt)
        view.as_json = bool(args.json)
        # The parser of benchmarks/promises has no such options.
        verbosity, path = getattr(args, "verbose", 0), getattr(args, "log_file", None)
        records.enter_context(log.logging_to(verbosity, path))
        log.told(f"nearmetal {nearmetal.__version__}: {shlex.join(words)}")
        records.callback(log.told, "end")
        return cast(Handler, args.handler)(args, view)
    except NearmetalError as error:
        view.error(error)
        return error.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:
        view.error(_of_system(error))
        return ExitCode.ERROR
    except Exception as error:
        interrupted = _interruption(error)
        if interrupted is None:
            raise
        view.error(interrupted)
        return interrupted.exit_code
    finally:
        for name, handler_before in before.items():
            signal.signal(name, handler_before)
        records.close()


if __name__ == "__main__":
    sys.exit(main())
