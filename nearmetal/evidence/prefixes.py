# SPDX-License-Identifier: Apache-2.0
"""What launchers and loggers put before every line of an output: the rank, and the time.

`srun --label`, `mpiexec -l` and `mpirun --tag-output` write the rank, loggers write the time. Such a
text is read as if each line stood alone; the numbers of the lines stay. One rank prints the results
of most programs. Rows of another rank are never taken for its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nearmetal.core.errors import LogError
from nearmetal.evidence.signatures import candidates, formats_of, shows

_CLOCK = r"\d\d:\d\d:\d\d"
_STREAM = r"<std(?:out|err|diag)>:"
_END = r"(?: |(?=\r?$))"
PIECES = {
    # srun --label pads the rank
    "slurm": rf" {{0,6}}RANK:{_END}",
    # Open MPI: version 5 adds a blank; tag-detailed has host and process
    "open_mpi": rf"\[\d{{1,9}},RANK\](?:\[[^\]\n]{{1,255}}\])?{_STREAM} ?",
    # Hydra -l; Open MPI 5, --output rank
    "rank": rf"\[RANK\](?:{_STREAM})?{_END}",
    # Ray, and tools on top of it
    "ray": r"\((?:[\w.-]{1,80}, )?(?:rank=\d{1,7}, )?pid=\d{1,9}(?:, ip=[\w.:]{1,60})?\) ",
    # kubectl logs --timestamps, the logs of a container runtime, CI, loggers
    "iso": (
        rf"\[?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:[.,]\d{{1,9}})?(?:Z|[+-]\d\d:?\d\d)?\]?"
        rf"(?: std(?:out|err) [FP])?{_END}"
    ),
    # Open MPI, with and without brackets; a tag may follow
    "ctime": (
        rf"\[?[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d {_CLOCK} \d{{4}}\]?"
        rf"(?:{_STREAM} ?|(?=\[)|{_END})"
    ),
    # ts
    "ts": rf"[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}{_END}",
    "clock": rf"\[?{_CLOCK}(?:[.,]\d{{1,9}})?\]?{_END}",
    "seconds": rf"\[ {{0,11}}\d{{1,9}}\.\d{{1,9}}\]{_END}",
}
"""Before a line, by name; RANK is the number of the process. No part can match without an end."""

_STREAM_MARK = "]<std"
MAX_PIECES = 3
RANK = r"\d{1,7}"
EVERY_RANK = ("perftest", "matrix", "netpipe")
"""Formats whose results more than one process prints."""

ASIDE = "\0"
"""Stands before a line that is not of the rank with the results. No log has this character."""

_PIECE = re.compile("|".join(f"(?P<{n}>{p.replace('RANK', RANK)})" for n, p in PIECES.items()))
_ROW = re.compile(r"\s*[-+.]?\d[\d.eE+-]*(?:\s+[-+.]?\d[\d.eE+-]*)+\s*$")


def _peeled(line: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the names of the pieces before a line, and what follows them: the shortest first."""
    names: tuple[str, ...] = ()
    while len(names) < MAX_PIECES and (match := _PIECE.match(line)) and match.end():
        names, line = (*names, str(match.lastgroup)), line[match.end() :]
        yield names, line


class LinePrefix(NamedTuple):
    """What stands before the lines of one text."""

    pattern: re.Pattern[str]
    title: int
    """Number of the line by which the format is known."""

    def without(self, text: str) -> str:
        """Return the text without what stands before its lines."""
        return "\n".join(self._split(line)[1] for line in text.split("\n"))

    def _split(self, line: str) -> tuple[int | None, str]:
        """Return the rank, if there is one, and what it printed.

        Open MPI 4 writes the rank also within a line, where one of its buffers ends.
        """
        match = self.pattern.match(line)
        if match is None:
            return None, line
        rank, rest = match.groupdict().get("rank"), line[match.end() :]
        if rank and _STREAM_MARK in rest:
            rest = self.pattern.sub(lambda inner: "" if inner["rank"] == rank else inner[0], rest)
        return int(rank) if rank else None, rest

    def of_one_rank(self, text: str, file: str, log_format: str) -> str:
        """Return the text without its prefixes. Lines of ranks without results begin with ASIDE.

        Raises LogError if two ranks print results of a program in which one rank does.
        """
        if log_format in EVERY_RANK:
            return self.without(text)
        lines = text.split("\n")
        voice, _ = self._split(lines[self.title - 1])
        return "\n".join(
            self._of_voice(line, voice, f"{file}:{number}", log_format)
            for number, line in enumerate(lines, 1)
        )

    def _of_voice(self, line: str, voice: int | None, place: str, log_format: str) -> str:
        rank, rest = self._split(line)
        if voice is None or rank == voice:
            return rest
        if rank is not None and shows(log_format, rest + "\n"):
            raise LogError(
                f"{place}: rank {rank} prints a title, as rank {voice} does, the ranks did not find "
                "each other: each of them ran alone"
            )
        if _ROW.match(rest):
            who = "no rank" if rank is None else f"rank {rank}"
            raise LogError(
                f"{place}: {rest.strip()[:80]!r} of {who}, rank {voice} prints the results: "
                "two outputs are mixed"
            )
        return rest if rank is None and rest else ASIDE + rest


def find_prefix(text: str, log_format: str = "") -> LinePrefix | None:
    """Return what stands before the line by which a format is known; `log_format`: this one only.

    None if there is no such line.
    """
    for start in candidates(text):
        end = text.find("\n", start)
        for names, rest in _peeled(text[start : end if end >= 0 else len(text)]):
            ended = rest + "\n"
            if shows(log_format, ended) if log_format else formats_of(ended):
                return LinePrefix(_pattern(names), text.count("\n", 0, start) + 1)
    return None


def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    parts, ranked = [], False
    for name in names:
        piece = PIECES[name]
        parts.append(piece.replace("RANK", RANK if ranked else f"(?P<rank>{RANK})"))
        ranked = ranked or "RANK" in piece
    return re.compile("".join(parts))
