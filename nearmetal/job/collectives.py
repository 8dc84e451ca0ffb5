# SPDX-License-Identifier: Apache-2.0
"""Saved rules for collectives: a directory with the variables, and the file, of each MPI.

`nearmetal tune collectives` writes them. A job uses them only with the library that was measured.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.files import read_regular, replace_file
from nearmetal.job.mpi.installed import Installation, Mpi
from nearmetal.job.mpi.rules import (
    COLLECTIVES,
    FILE_VARIABLES,
    Rules,
    algorithms,
    whole_collective,
)

FORMAT = "# nearmetal-collectives 1"
_MOST = 1 << 20
_HINT = "measure again with `nearmetal tune collectives`"
_LIBRARY = re.compile(r"# library (?P<digest>[0-9a-f]{64})")
_RANKS = re.compile(r"# ranks (?P<ranks>[1-9][0-9]{0,6})")
_FILE = re.compile(r"# file (?P<name>[a-z0-9]+\.rules) (?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class SavedRules:
    """The variables of a job, and the file that its nodes must see; None: there is none.

    `ranks`: the number of ranks of the jobs that they are for; None: any.
    """

    variables: dict[str, str]
    file: Path | None
    ranks: int | None


def mpi_library(installation: Installation) -> Path:
    """Return the file of the MPI's library; raises LaunchError."""
    name = installation.mpi.family.value
    own = installation.library_directory
    places = [own / name] if own else sorted((installation.prefix / "lib").glob(f"*/{name}"))
    for place in places:
        if place.is_file():
            return place.resolve()
    raise LaunchError(f"{installation.mpi.title} has no {name} below {installation.prefix}")


def library_digest(installation: Installation) -> str:
    """Return the checksum of the MPI's library."""
    return _digest(mpi_library(installation).read_bytes())


def write_rules(
    directory: Path, installation: Installation, rules: Rules, header: Sequence[str]
) -> Path:
    """Write the rules of an MPI; returns the path of the variables. A new file replaces the old."""
    mpi = installation.mpi
    lines = [FORMAT, f"# mpi {mpi.value}", f"# library {library_digest(installation)}"]
    variables = dict(rules.variables)
    if rules.ranks is not None:
        lines.append(f"# ranks {rules.ranks}")
    if rules.file:
        name = f"{mpi.value}.rules"
        path = directory.absolute() / name
        content = rules.file.encode("ascii")
        _write(path, content)
        lines.append(f"# file {name} {_digest(content)}")
        variables[rules.variable] = str(path)
    lines += [f"# {line}" for line in header]
    lines += [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    target = directory / f"{mpi.value}.env"
    _write(target, ("\n".join(lines) + "\n").encode())
    return target


def read_rules(directory: Path, installation: Installation) -> SavedRules:
    """Return the saved rules of an MPI; raises UsageError or LaunchError with the reason."""
    path = directory.absolute() / f"{installation.mpi.value}.env"
    try:
        lines = read_regular(path, _MOST).decode("utf-8").splitlines()
    except FileNotFoundError as error:
        raise UsageError(
            f"{directory} has no rules for {installation.mpi.title}: no {path.name}", _HINT
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{path}: {getattr(error, 'strerror', None) or error}", _HINT) from error
    if lines[:2] != [FORMAT, f"# mpi {installation.mpi.value}"]:
        raise LaunchError(f"{path}:1: not rules for {installation.mpi.title}", _HINT)
    _check_library(path, lines, installation)
    whole = whole_collective(installation.mpi)
    file = None if whole else _checked_file(path, lines)
    ranks = _only_ranks(path, lines) if whole else None
    allowed = _allowed(installation.mpi)
    variables = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or name not in allowed:
            raise LaunchError(f"{path}:{number}: {name!r} is no variable of these rules", _HINT)
        words = _words(value)
        if len(words) != 1:
            raise LaunchError(f"{path}:{number}: {name} has no value that a shell reads", _HINT)
        if allowed[name] and words[0] not in allowed[name]:
            raise LaunchError(f"{path}:{number}: {name} has no such value: {words[0]!r}", _HINT)
        variables[name] = words[0]
    if file is not None:
        variables[FILE_VARIABLES[installation.mpi]] = str(file)
    return SavedRules(variables, file, ranks)


def _allowed(mpi: Mpi) -> dict[str, tuple[str, ...]]:
    """Return the variables that rules may set, with their values; (): our own path replaces it.

    A file of another user sets no others.
    """
    if mpi is Mpi.IMPI:
        known = {name: algorithms(mpi, name, 2) for name in COLLECTIVES}
        return {f"I_MPI_ADJUST_{name.upper()}": of for name, of in known.items() if of}
    return {"OMPI_MCA_coll_tuned_use_dynamic_rules": ("1",), FILE_VARIABLES[mpi]: ()}


def _check_library(path: Path, lines: Sequence[str], installation: Installation) -> None:
    found = next((m for m in map(_LIBRARY.fullmatch, lines) if m), None)
    if found is None:
        raise LaunchError(f"{path}: the checksum of the measured library is missing", _HINT)
    if found["digest"] != library_digest(installation):
        raise LaunchError(
            f"{path}: measured with another version of {installation.mpi.title} than "
            f"{mpi_library(installation)}",
            _HINT,
        )


def _only_ranks(path: Path, lines: Sequence[str]) -> int:
    found = next((m for m in map(_RANKS.fullmatch, lines) if m), None)
    if found is None:
        raise LaunchError(f"{path}: the measured number of ranks is missing", _HINT)
    return int(found["ranks"])


def _checked_file(path: Path, lines: Sequence[str]) -> Path:
    """Return the file of the rules, beside the variables; raises LaunchError if it was changed."""
    found = next((m for m in map(_FILE.fullmatch, lines) if m), None)
    if found is None:
        raise LaunchError(f"{path}: the checksum of the file with the rules is missing", _HINT)
    file = path.parent / found["name"]
    try:
        content = read_regular(file, _MOST)
    except OSError as error:
        raise LaunchError(f"{file}: {error.strerror or error}", _HINT) from error
    if _digest(content) != found["digest"]:
        raise LaunchError(f"{file}: not the file that {path.name} was written with", _HINT)
    return file


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return []


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content, mode=0o644, sync=False, shared=True)
    except OSError as error:
        raise LaunchError(
            f"cannot write {path}: {error.strerror}", "give another --output"
        ) from error
