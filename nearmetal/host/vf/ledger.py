# SPDX-License-Identifier: Apache-2.0
"""Who was given which VF, on this machine: one ledger under one lock, whole after any crash.

A file of JSON lines: a header with their number, then one line per adapter and per VF. It is
written beside its place, forced to disk and renamed, so a reader sees the old or the new one.
Whoever changes it holds the lock; whoever looks does not need to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nearmetal.core.errors import LockedError, StateError
from nearmetal.core.files import beside, replace_file
from nearmetal.host.vf.model import Use, VfSettings
from nearmetal.host.vf.steps import PfBefore, VfBefore

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = Path("/var/lib/nearmetal/host")
"""Of the machine, whatever NEARMETAL_STATE_DIR says: two ledgers would hand a VF out twice."""

VERSION = 1
WAIT_S = 300.0
"""For how long to wait for the lock: another one may be waiting for a link to come up."""

_MAX_BYTES = 16 << 20

Address = Annotated[str, Field(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:@/+-]{0,255}$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, strict=True)


class Owner(_Record):
    """For whom a VF is set aside.

    A cluster owns it as long as its directory `state` exists, and so does a job of a batch system,
    whose number is `name`; a process as long as the one with that pid and start time runs.
    """

    kind: Literal["cluster", "process", "job"]
    name: Word
    node: Word = ""
    state: Word = ""
    pid: Annotated[int, Field(ge=0)] = 0
    start: Annotated[int, Field(ge=0)] = 0

    def __str__(self) -> str:
        """As `node n1 of cluster demo`."""
        if self.kind == "job":
            return f"job {self.name}"
        whose = f"cluster {self.name}" if self.kind == "cluster" else f"{self.name} ({self.pid})"
        return f"node {self.node} of {whose}" if self.node else whose


class PfRecord(_Record):
    """An adapter that was touched: how it was, and what for."""

    record: Literal["pf"] = "pf"
    pf: Address
    boot: Word
    before: PfBefore


class Claim(_Record):
    """One VF that belongs to somebody. `since` is in Unix seconds."""

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


_LINE: TypeAdapter[PfRecord | Claim] = TypeAdapter(
    Annotated[PfRecord | Claim, Field(discriminator="record")]
)


_HEADER: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


@dataclass
class Book:
    """The ledger's content: adapters and claims, by address."""

    pfs: dict[str, PfRecord] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing is recorded."""
        return not self.pfs and not self.claims

    def owners(self) -> dict[str, str]:
        """Return in words whose each VF is, by its address."""
        return {address: str(claim.owner) for address, claim in self.claims.items()}

    def of(self, owner: Owner) -> Claim | None:
        """Return what an owner has."""
        return next((c for c in self.claims.values() if c.owner == owner), None)


class Ledger:
    """The ledger in a directory that belongs to root alone."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        """Remember the place; nothing is opened yet."""
        self.directory = directory
        self.path = directory / "ledger.jsonl"
        self._lock = directory / "lock"

    def read(self) -> Book:
        """Return what is recorded; raises StateError with file and line for anything else."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return Book()
        except OSError as error:
            msg = f"cannot read {self.path}: {error.strerror}"
            raise StateError(msg, "run as root") from error
        with os.fdopen(descriptor, "rb") as file:
            _check_owner(self.path, os.fstat(file.fileno()))
            data = file.read(_MAX_BYTES + 1)
        return _parse(self.path, data)

    @contextlib.contextmanager
    def changing(self, wait_s: float = WAIT_S) -> Iterator[Book]:
        """Hold the lock and yield the content; `save` writes it. LockedError when it takes long.

        An empty ledger is removed at the end: an unused nearmetal leaves no trace.
        """
        with self._locked(wait_s):
            book = self.read()
            try:
                yield book
            finally:
                if book.empty:
                    self._remove()

    def save(self, book: Book) -> None:
        """Write the content so that it is whole after any crash. The caller holds the lock."""
        records = [*book.pfs.values(), *book.claims.values()]
        header = json.dumps({"ledger": "nearmetal", "version": VERSION, "records": len(records)})
        text = "\n".join([header, *(record.model_dump_json() for record in records)]) + "\n"
        replace_file(self.path, text.encode())

    def _remove(self) -> None:
        for path in (self.path, self.directory / "journal.jsonl", beside(self.path)):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, wait_s: float) -> Iterator[None]:
        self._prepare()
        deadline = time.monotonic() + wait_s
        mine = False
        while not mine:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(self._lock, flags, 0o600)
            except FileNotFoundError:
                continue  # its last holder has just removed the directory
            try:
                _take(descriptor, deadline, wait_s)
                mine = _is_at(self._lock, descriptor)
                if mine:
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                    yield
            finally:
                if mine and not self.path.exists():
                    self._lock.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        self.directory.rmdir()
                os.close(descriptor)

    def _prepare(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.directory.stat()
        except FileNotFoundError:
            return  # removed by another one in this moment: the loop makes it again
        except OSError as error:
            msg = f"cannot make {self.directory}: {error.strerror}"
            raise StateError(msg, "run as root") from error
        _check_owner(self.directory, status)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        msg = f"{path} is not yours alone"
        raise StateError(msg, f"run as root; else find out who wrote it, then chmod go-w {path}")


def _take(descriptor: int, deadline: float, wait_s: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                msg = f"process {holder or '?'} has held the ledger of VFs for {wait_s:g} s"
                raise LockedError(msg, "wait for it, or end it; its work can be taken up") from None
            time.sleep(0.02)
        else:
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _damaged(path: Path, line: int, what: str) -> StateError:
    hint = (
        "nearmetal never leaves it so: restore it from a copy, or, when no virtual machine uses "
        f"a VF, remove it: rm {path}"
    )
    return StateError(f"{path}:{line}: {what}", hint)


def _parse(path: Path, data: bytes) -> Book:
    if len(data) > _MAX_BYTES:
        raise _damaged(path, 1, "is too long for a ledger")
    lines = data.decode("utf-8", "replace").split("\n")
    expected = _header(path, lines[0])
    book = Book()
    for number, line in enumerate(lines[1 : expected + 1], start=2):
        try:
            record = _LINE.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise _damaged(path, number, f"no record: {where or 'line'}: {first['msg']}") from error
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
        raise _damaged(path, 1, "is no ledger of nearmetal")
    if header.get("version") != VERSION:
        msg = f"{path}:1: written by another release (version {header.get('version')!r})"
        raise StateError(msg, "use that release, or give all VFs back with it first")
    records = header.get("records")
    if not isinstance(records, int) or not 0 <= records <= 1 << 20:
        raise _damaged(path, 1, "has no number of records")
    return records
