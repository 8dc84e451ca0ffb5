# SPDX-License-Identifier: Apache-2.0
"""The ledger: the owner of each VF on this machine, one file under one lock, whole after any crash.

A file of JSON lines: a header with their number, then one line per adapter and per VF. A reader
sees the old or the new content. A writer holds the lock; a reader does not need it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nearmetal.core.errors import StateError
from nearmetal.core.files import remove_file, replace_file
from nearmetal.core.journal import NAME as JOURNAL
from nearmetal.core.lock import locked
from nearmetal.host.vf.model import Use, VfSettings
from nearmetal.host.vf.steps import PfBefore, VfBefore

DIRECTORY = Path("/var/lib/nearmetal/host")
"""One place for the machine, independent of NEARMETAL_STATE_DIR: with two ledgers, two owners could
get the same VF."""

VERSION = 1
WAIT_S = 300.0
"""Limit of the wait for the lock: its holder may wait for a link to come up."""

_MAX_BYTES = 16 << 20

Address = Annotated[str, Field(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:@/+-]{0,255}$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, strict=True)


class Owner(_Record):
    """The owner of a VF.

    A cluster owns it as long as its directory `state` exists, and so does a job of a batch system,
    whose number is `name`. A process owns it as long as it runs: `pid` and `start` time identify it.
    """

    kind: Literal["cluster", "process", "job"]
    name: Word
    node: Word = ""
    state: Word = ""
    pid: Annotated[int, Field(ge=0)] = 0
    start: Annotated[int, Field(ge=0)] = 0

    def __str__(self) -> str:
        """For example `node n1 of cluster demo`."""
        if self.kind == "job":
            return f"job {self.name}"
        whose = f"cluster {self.name}" if self.kind == "cluster" else f"{self.name} ({self.pid})"
        return f"node {self.node} of {whose}" if self.node else whose


class PfRecord(_Record):
    """A changed adapter, and its state before."""

    record: Literal["pf"] = "pf"
    pf: Address
    boot: Word
    before: PfBefore


class VfClaim(_Record):
    """A VF with an owner. `since` is in Unix seconds."""

    record: Literal["vf"] = "vf"
    vf: Address
    pf: Address
    owner: Owner
    since: Annotated[int, Field(ge=0)]
    boot: Word
    stage: Literal["preparing", "held"]
    before: VfBefore
    wanted: VfSettings
    use: Use = "machine"


_LINE: TypeAdapter[PfRecord | VfClaim] = TypeAdapter(
    Annotated[PfRecord | VfClaim, Field(discriminator="record")]
)
_HEADER: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


@dataclass
class Book:
    """The ledger's content: adapters and claims, by address."""

    pfs: dict[str, PfRecord] = field(default_factory=dict)
    claims: dict[str, VfClaim] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing is recorded."""
        return not self.pfs and not self.claims

    def owners(self) -> dict[str, str]:
        """Return the owner of each VF in words, by the VF's address."""
        return {address: str(claim.owner) for address, claim in self.claims.items()}

    def of(self, owner: Owner) -> VfClaim | None:
        """Return the claim of an owner."""
        return next((c for c in self.claims.values() if c.owner == owner), None)


class Ledger:
    """The ledger in a directory that belongs to root alone."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.directory = directory
        self.path = directory / "ledger.jsonl"

    def read(self) -> Book:
        """Return the content; raises StateError with file and line for a damaged ledger."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return Book()
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}", "run as root") from error
        with os.fdopen(descriptor, "rb") as file:
            _check_owner(self.path, os.fstat(file.fileno()))
            data = file.read(_MAX_BYTES + 1)
        return _parse(self.path, data)

    @contextlib.contextmanager
    def changing(self, wait_s: float = WAIT_S) -> Iterator[Book]:
        """Hold the lock and yield the content; `save` writes it. Raises LockedError after `wait_s`.

        An empty ledger is removed at the end: an unused nearmetal leaves no trace.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # another process removed it just now
                    _check_owner(self.directory, self.directory.stat())
                stack.callback(self._leave)
                lock = locked(self.directory / "lock", "the ledger of VFs", wait_s=wait_s)
                stack.enter_context(lock)
            except OSError as error:
                raise StateError(
                    f"cannot lock {self.directory}: {error.strerror}", "run as root"
                ) from error
            book = self.read()
            try:
                yield book
            finally:
                if book.empty:
                    remove_file(self.path)
                    remove_file(self.directory / JOURNAL)

    def save(self, book: Book) -> None:
        """Write the content so that it is whole after any crash. The caller holds the lock."""
        records = [*book.pfs.values(), *book.claims.values()]
        header = json.dumps({"ledger": "nearmetal", "version": VERSION, "records": len(records)})
        replace_file(
            self.path, "\n".join([header, *(each.model_dump_json() for each in records), ""])
        )

    def _leave(self) -> None:
        """Remove the directory if there is no ledger, and if no other process uses it now."""
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateError(
            f"{path} is not yours alone",
            f"run as root; otherwise find out which user wrote it, then run: chmod go-w {path}",
        )


def _damaged(path: Path, line: int, what: str) -> StateError:
    hint = (
        "nearmetal never leaves such a file: restore it from a copy; if no virtual machine uses "
        f"a VF, remove it: rm {path}"
    )
    return StateError(f"{path}:{line}: {what}", hint)


def _parse(path: Path, data: bytes) -> Book:
    if len(data) > _MAX_BYTES:
        raise _damaged(path, 1, "the file is too long for a ledger")
    lines = data.decode("utf-8", "replace").split("\n")
    expected = _header(path, lines[0])
    book = Book()
    for number, line in enumerate(lines[1 : expected + 1], start=2):
        try:
            record = _LINE.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise _damaged(
                path, number, f"not a record: {where or 'line'}: {first['msg']}"
            ) from error
        key = record.pf if isinstance(record, PfRecord) else record.vf
        known: dict[str, Any] = book.pfs if isinstance(record, PfRecord) else book.claims
        if key in known:
            raise _damaged(path, number, f"{key} is recorded twice")
        known[key] = record
    found = len(book.pfs) + len(book.claims)
    if found != expected or lines[expected + 1 :] != [""]:
        raise _damaged(path, len(lines), f"cut short or mixed up: {expected} records announced")
    return book


def _header(path: Path, line: str) -> int:
    try:
        header = _HEADER.validate_json(line)
    except ValidationError:
        header = {}
    if header.get("ledger") != "nearmetal":
        raise _damaged(path, 1, "not a ledger of nearmetal")
    if header.get("version") != VERSION:
        raise StateError(
            f"{path}:1: written by another release (version {header.get('version')!r})",
            "use that release, or return all VFs with it first",
        )
    records = header.get("records")
    if not isinstance(records, int) or not 0 <= records <= 1 << 20:
        raise _damaged(path, 1, "the number of records is missing")
    return records
