# SPDX-License-Identifier: Apache-2.0
"""The program that printed a text, from the text alone; never from a file's name."""

from __future__ import annotations

import re

from nearmetal.evidence.parse.reader import check_lines, fail
from nearmetal.evidence.prefixes import find_prefix
from nearmetal.evidence.signatures import NOT_READ, SIGNATURES, formats_of

MAX_LOG_BYTES = 64 << 20

CRASHES = (
    "Segmentation fault",
    "Process received signal",
    "BAD TERMINATION OF ONE OF YOUR",
    "MPI_ABORT was invoked",
    "MPI_Abort(",
    "exited on signal",
    "DUE TO TIME LIMIT",
    "Out Of Memory",
    "oom-kill",
    "(core dumped)",
    "srun: error:",
    "CANCELLED AT",
    "MPI_ERRORS_ARE_FATAL",
    "exited with non-zero status",
    "job aborted:",
    "Fatal error in MPI_",
    "Fatal error in PMPI_",
    "Fatal error in internal_",
)


def decode(raw: bytes, file: str) -> str:
    """Return a raw log as text without its byte order mark; raises LogError for a binary file."""
    if not raw.strip():
        raise fail(file, 1, "the file is empty", "the run printed nothing, or did not start")
    if len(raw) > MAX_LOG_BYTES:
        raise fail(file, 1, f"larger than {MAX_LOG_BYTES >> 20} MiB", "no benchmark prints so much")
    if b"\0" in raw:
        line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
        utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        why = "UTF-16? save it as UTF-8" if utf16 else "this is not text: it is a binary file"
        raise fail(file, line, "a zero byte", why)
    text = raw.decode("utf-8", "replace").removeprefix("\ufeff")
    check_lines(text, file)
    return text


def recognize(text: str, file: str) -> str:
    """Return the format; raises LogError unless exactly one fits."""
    found = formats_of(text)
    if not found and (prefix := find_prefix(text)):
        found = formats_of(prefix.without(text))
    if len(found) == 1:
        return found[0]
    if found:
        raise fail(
            file,
            1,
            f"it holds the output of {' and '.join(found)}",
            "a file may have one format only: split it",
        )
    known = [
        name
        for name, (word, pattern) in NOT_READ.items()
        if word in text and re.search(pattern, text, re.MULTILINE)
    ]
    if known:
        raise fail(file, 1, f"this is {known[0]}", "which is not read")
    raise fail(file, 1, "the format is unknown", f"known: {', '.join(SIGNATURES)}")


def refuse_crash(text: str, file: str) -> None:
    """Raise LogError when the text says that the run crashed or was killed."""
    for words in CRASHES:
        where = text.find(words)
        if where >= 0:
            line = text.count("\n", 0, where) + 1
            raise fail(file, line, f"{words!r}", "the run crashed or was killed")
