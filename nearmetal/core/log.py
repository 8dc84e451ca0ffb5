# SPDX-License-Identifier: Apache-2.0
"""The log of one run of nearmetal: every command with its time, on standard error or in a file.

Any module writes with the functions below; only the command line chooses where the lines go. No
line holds a secret: passwords that were read are known, and words that look like one are masked.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from nearmetal.core.errors import Interrupted, NearmetalError
from nearmetal.core.text import printable

MASK = "***"
MAX_LINE = 16 << 10
"""Characters of an entry; the file is for people, and a command may carry a whole script."""

MAX_OUTPUT = 2048
"""Characters of a program's output in the log."""

_LOGGER = logging.getLogger("nearmetal")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False

_TOLD = logging.INFO + 5
"""Lines that the user has seen already: they go to the file only."""

_WORD = (
    r"(?:pass(?:word|wd|phrase)?|secret|token|credentials?|api[_-]?key|private[_-]?key"
    r"|authorization|cookie|vmware_soap_session)[\w-]{0,40}"
)
_QUOTED = r"(\"[^\"\n]{0,4096}\"?|'[^'\n]{0,4096}'?)"
_BETWEEN_QUOTES = re.compile(rf"(?i)({_WORD}['\"]?\s{{0,4}}[=:]\s{{0,4}}){_QUOTED}")
# A value after a colon may have spaces, as in YAML and in the headers of HTTP.
_TO_LINE_END = re.compile(rf"(?i)({_WORD}['\"]?\s{{0,4}}:[ \t]{{1,4}})([^\s'\"][^\n]{{0,4096}})")
_NAMED = re.compile(rf"(?i)({_WORD}['\"]?\s{{0,4}}[=:]\s{{0,4}})([^\s'\",;&]{{1,4096}})")
_OPTION = re.compile(rf"(?i)(--?(?:[\w]{{1,40}}-)?{_WORD}\s+['\"]?)((?!--)[^\s'\"]{{1,4096}})")
_OF_PROGRAMS = re.compile(r"(\bsshpass\s{1,4}-p\s{0,4}|\s-u\s{1,4}[^\s:]{1,256}:)(\S{1,4096})")
_IN_URL = re.compile(r"(?<=://)([^\s/:@]{1,256}):([^\s/@]{1,1024})@")
_KEY = re.compile(r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(-----END|\Z)")
_REST_OF_KEY = re.compile(r"(?s)\A.*?(?=-----END [A-Z ]{0,40}PRIVATE KEY)")

_known: set[str] = set()
_known_lock = threading.Lock()


def keep_secret(value: str) -> None:
    """Mask this value in every later line."""
    if value:
        with _known_lock:
            _known.add(value)


def masked(text: str) -> str:
    """Return text without known passwords, and without values that are named as a secret."""
    with _known_lock:
        known = sorted(_known, key=len, reverse=True)
    for value in known:
        text = text.replace(value, MASK)
    text = _KEY.sub(rf"\1{MASK}\2", text)
    before, begin, after = text.partition("-----BEGIN")
    text = _REST_OF_KEY.sub(MASK, before) + begin + after
    for pattern in (_BETWEEN_QUOTES, _TO_LINE_END, _NAMED, _OPTION, _OF_PROGRAMS):
        text = pattern.sub(rf"\1{MASK}", text)
    return _IN_URL.sub(rf"\1:{MASK}@", text)


def command(text: str) -> None:
    """Log the end of a command, for -v."""
    _LOGGER.info("%s", text)


def detail(text: str) -> None:
    """Log what only -vv shows: the start of a command, its output, the script of a step."""
    _LOGGER.debug("%s", text)


def output(name: str, content: bytes) -> None:
    """Log the end of a program's output."""
    if content and _LOGGER.isEnabledFor(logging.DEBUG):
        # A secret is masked by its name, which may stand before the part that is shown.
        text = masked(content[-3 * MAX_OUTPUT :].decode("utf-8", "replace")).rstrip()
        cut = f" (the last of {len(content)} bytes)" if len(content) > MAX_OUTPUT else ""
        detail(f"{name}{cut}:\n{text[-MAX_OUTPUT:]}")


def told(text: str) -> None:
    """Keep a line in the file that standard error shows anyway: a step, a warning, an error."""
    _LOGGER.log(_TOLD, "%s", text)


class _Lines(logging.Formatter):
    """One entry: the time, then the lines of the text, without secrets and control characters."""

    def __init__(self, *, date: bool) -> None:
        super().__init__()
        self._form = "%Y-%m-%dT%H:%M:%S" if date else "%H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        text = masked(record.getMessage())
        if len(text) > MAX_LINE:
            text = f"{text[:MAX_LINE]} ... and {len(text) - MAX_LINE} characters"
        first, *rest = text.splitlines() or [""]
        stamp = time.strftime(self._form, time.localtime(record.created))
        begin = f"{stamp}.{int(record.msecs):03} "
        return "\n".join([begin + printable(first), *(f"    {printable(line)}" for line in rest)])


class _Stream(logging.StreamHandler[TextIO]):
    """A log that says once that it cannot be written, and never swallows a signal."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - of the library
        """Let an interruption through; the record itself is shown nowhere."""
        error = sys.exc_info()[1]
        if isinstance(error, Interrupted):
            raise error
        if not self._failed:
            self._failed = True
            with suppress(OSError):
                os.write(2, f"nearmetal: warning: the log has a gap: {error}\n".encode())


@contextmanager
def logging_to(verbosity: int, path: Path | None) -> Iterator[None]:
    """Write the log until the block ends. `verbosity`: the number of -v; `path`: of --log-file.

    The file gets everything, and is readable for its owner only. Raises NearmetalError.
    """
    handlers: list[_Stream] = []
    if verbosity:
        screen = _Stream(sys.stderr)
        screen.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
        screen.addFilter(lambda record: record.levelno != _TOLD)
        screen.setFormatter(_Lines(date=False))
        handlers.append(screen)
    if path is not None:
        file = _Stream(_opened(path))
        file.setLevel(logging.DEBUG)
        file.setFormatter(_Lines(date=True))
        handlers.append(file)
    for handler in handlers:
        _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.DEBUG if handlers else logging.CRITICAL)
    try:
        yield
    finally:
        for handler in handlers:
            _LOGGER.removeHandler(handler)
            if handler.stream is not sys.stderr:
                handler.stream.close()


def _opened(path: Path) -> TextIO:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _refusal(path, error.strerror) from error
    status = os.fstat(descriptor)
    regular = stat.S_ISREG(status.st_mode)
    if not regular or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise _refusal(path, "it is another user's file" if regular else "it is not a regular file")
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def _refusal(path: Path, why: str | None) -> NearmetalError:
    return NearmetalError(f"cannot write the log {path}: {why}", "name a file that you may write")
