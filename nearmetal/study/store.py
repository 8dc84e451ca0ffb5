# SPDX-License-Identifier: Apache-2.0
"""A study on disk: raw objects by their SHA-256, and two tables made from them.

    objects/ab/abcd...   every raw file, read-only, once
    sources.parquet      one row per file of the import
    facts.parquet        one row per number
    study-labels.yaml    the labels of the import

Tables are written beside their places and renamed: an interrupted import leaves the old study, or
no study.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Self

from nearmetal.config.document import MAX_BYTES
from nearmetal.core.errors import LogError
from nearmetal.core.extras import ExtraError
from nearmetal.core.files import is_regular, move, read_regular
from nearmetal.core.text import printable
from nearmetal.evidence import Log, Unit
from nearmetal.evidence.model import Setup
from nearmetal.evidence.recognize import MAX_LOG_BYTES
from nearmetal.study.model import Cell, Observation, Point, SourceFile

if TYPE_CHECKING:
    import duckdb

FACTS = "facts.parquet"
SOURCES = "sources.parquet"
LABELS = "study-labels.yaml"
OBJECTS = "objects"
NEW = ".new"
_DIGEST = re.compile("[0-9a-f]{64}")
MEMORY_LIMIT = "384MB"
_UNITS = frozenset(unit.value for unit in Unit)

_PARTS = tuple(f'"{name}"' for name in Setup._fields)
_FACT_COLUMNS = (
    "index UINTEGER, launch UINTEGER, line UINTEGER, test VARCHAR, variant VARCHAR, size UBIGINT, ranks UINTEGER, "
    f"nodes UINTEGER, {', '.join(f'{name} VARCHAR' for name in Setup._fields)}, "
    "metric VARCHAR, unit VARCHAR, value DOUBLE"
)
_SOURCE_COLUMNS = (
    "index UINTEGER, source VARCHAR, path VARCHAR, status VARCHAR, reason VARCHAR, "
    "format VARCHAR, parser VARCHAR, run VARCHAR, arm VARCHAR, launch UINTEGER, block UINTEGER, "
    "nodes UINTEGER, ranks UINTEGER, header VARCHAR, remarks VARCHAR"
)

_TYPES = {
    SOURCES: _SOURCE_COLUMNS.partition(", ")[2],
    FACTS: "run VARCHAR, launch UINTEGER, block UINTEGER, arm VARCHAR, program VARCHAR, "
    "test VARCHAR, variant VARCHAR, size UBIGINT, ranks UINTEGER, nodes UINTEGER, "
    f"metric VARCHAR, unit VARCHAR, {', '.join(f'{name} VARCHAR' for name in _PARTS)}, "
    "value DOUBLE, source VARCHAR, path VARCHAR, line UINTEGER, parser VARCHAR",
}
"""The columns of each table: a study from another person may have others."""

_JOINED = f"""
    SELECT s.run, s.launch + f.launch AS launch, s.block, s.arm, s.format AS program, f.test,
        coalesce(f.variant, '') AS variant, f.size, f.ranks,
        CASE WHEN s.nodes IS NOT NULL THEN coalesce(f.nodes, s.nodes) END AS nodes,
        f.metric, coalesce(f.unit, '') AS unit,
        {", ".join(f"coalesce(f.{name}, '') AS {name}" for name in _PARTS)},
        f.value, s.source, s.path, f.line, s.parser
    FROM f JOIN s ON f.index = s.index
    ORDER BY f.index, f.line, f.test, f.variant, f.metric
"""  # noqa: S608 - our own names


_CELL = f"arm, program, test, variant, size, ranks, nodes, metric, unit, {', '.join(_PARTS)}"
"""Columns whose values make a cell."""

_CELL_COLUMNS = _CELL.count(",") + 1


@contextmanager
def _plain_name(directory: Path) -> Iterator[str]:
    """Yield a name of a directory in which DuckDB finds no pattern, no partition and no scheme."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _read_csv(path: str, columns: str) -> str:
    spec = ", ".join("'{}': '{}'".format(*c.split()) for c in columns.split(", "))
    return (
        f"read_csv('{path}', columns={{{spec}}}, header=false, nullstr='', "
        "delim=',', quote='\"', escape='\"', auto_detect=false, max_line_size=16777216)"
    )


def _duckdb() -> ModuleType:
    """Return the module; raises ExtraError. It is slow to load, and a help text needs no table."""
    try:
        import duckdb  # noqa: PLC0415 - see above
    except ImportError as error:
        raise ExtraError("study", "a study", error) from error
    found: ModuleType = duckdb
    return found


def _connect(**config: str | int) -> duckdb.DuckDBPyConnection:
    made: duckdb.DuckDBPyConnection = _duckdb().connect(
        config={"memory_limit": MEMORY_LIMIT, **config}
    )
    return made


class Writer:
    """Writes a study: `add` per file, then `commit`. Leaving the block without it changes nothing."""

    def __init__(self, directory: Path) -> None:
        """Make the directories; raises LogError if it has other content."""
        self.directory = directory
        if directory.exists() and any(directory.iterdir()) and not is_store(directory):
            raise LogError(f"{directory} is neither empty nor a study", "give a new directory")
        self._new = directory / NEW
        self._made = not directory.exists()
        self._fresh = not (directory / OBJECTS).exists()
        self._whole = False
        if self._new.exists():
            shutil.rmtree(self._new)
        self._new.mkdir(parents=True)
        self._objects = directory / OBJECTS
        self._objects.mkdir(exist_ok=True)
        with os.scandir(self._objects) as found:
            if self._objects.is_symlink() or any(entry.is_symlink() for entry in found):
                raise LogError(f"{self._objects} has links", "give a new directory")
        self._files: list[IO[str]] = []
        self._facts = self._open("facts.csv")
        self._sources = self._open("sources.csv")
        self._count = 0
        self.facts = 0

    def _open(self, name: str) -> Any:
        stream = (self._new / name).open("w", encoding="utf-8", newline="")
        self._files.append(stream)
        return csv.writer(stream, lineterminator="\n")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Remove the files of an import without commit, and a study that it began."""
        for stream in self._files:
            stream.close()
        shutil.rmtree(self._new, ignore_errors=True)
        if self._fresh and not self._whole:
            shutil.rmtree(self._objects, ignore_errors=True)
            if self._made:
                with suppress(OSError):
                    self.directory.rmdir()

    def keep(self, content: bytes) -> str:
        """Keep the bytes of a raw file; returns their SHA-256."""
        digest = hashlib.sha256(content).hexdigest()
        path = f"{self._objects}/{digest[:2]}/{digest}"
        try:
            _write_once(path, content)
        except FileNotFoundError:
            Path(path).parent.mkdir(exist_ok=True)
            _write_once(path, content)
        except FileExistsError:
            # A killed import may have left the beginning of it.
            if Path(path).lstat().st_size != len(content):
                fresh = f"{self._new}/object"
                _write_once(fresh, content)
                Path(fresh).replace(path)
        return digest

    def add(self, source: SourceFile, log: Log | None) -> None:
        """Add one file and its numbers."""
        index, self._count = self._count, self._count + 1
        self._sources.writerow(
            (
                index,
                source.source,
                printable(source.path),
                source.status,
                printable(source.reason),
                *source[4:-2],
                json.dumps(dict(source.header), ensure_ascii=False),
                json.dumps(source.remarks),
            )
        )
        if log is None:
            return
        rows: list[tuple[object, ...]] = []
        for table in log.tables:
            ranks = table.processes or source.ranks
            units = {column.metric: column.unit.value for column in table.columns}
            for row in table.rows:
                line, values = row
                size = int(values["size"]) if "size" in values else None
                setup = table.setup_of(row)
                names = (index, table.launch, line, table.test, table.variant)
                place = (*names, size, ranks, table.nodes, *setup)
                rows += [
                    (*place, metric, units[metric], value)
                    for metric, value in values.items()
                    if metric != "size"
                ]
        self._facts.writerows(rows)
        self.facts += len(rows)

    def commit(self, labels: str) -> None:
        """Make the tables and put them in place."""
        for stream in self._files:
            stream.close()
        with (
            _plain_name(self._new) as new,
            closing(_connect(threads=2, temp_directory=new)) as connection,
        ):
            facts = _read_csv(f"{new}/facts.csv", _FACT_COLUMNS)
            sources = _read_csv(f"{new}/sources.csv", _SOURCE_COLUMNS)
            connection.execute(f"CREATE TABLE s AS SELECT * FROM {sources}")  # noqa: S608 - ours
            connection.execute(f"CREATE VIEW f AS SELECT * FROM {facts}")  # noqa: S608 - ours
            listed = "SELECT * EXCLUDE (index) FROM s ORDER BY index"
            for query, name in ((listed, SOURCES), (_JOINED, FACTS)):
                to = f"'{new}/{name}' (FORMAT parquet, COMPRESSION zstd)"
                connection.execute(f"COPY ({query}) TO {to}")
        (self._new / LABELS).write_text(labels, encoding="utf-8")
        for name in (LABELS, SOURCES, FACTS):
            move(self._new / name, self.directory / name)
        self._whole = True


def _write_once(path: str, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)


def _source(row: tuple[Any, ...]) -> SourceFile:
    """Return a row of the table of sources; raises ValueError, TypeError or RecursionError."""
    texts = tuple(text or "" for text in row[:8])
    header, remarks = json.loads(row[12]), json.loads(row[13])
    if not isinstance(header, dict) or not all(isinstance(v, str) for v in header.values()):
        raise ValueError("a setting is not a text")
    said = tuple((int(line), str(text)) for line, text in remarks)
    return SourceFile._make((*texts, *row[8:12], header, said))


def _is_sound(seen: Observation) -> bool:
    known = None not in (seen.launch, seen.value, seen.source, seen.line)
    return known and math.isfinite(seen.value)


def object_path(digest: str) -> str:
    """Return where a raw file lies in a study; raises LogError for a foreign name."""
    if not _DIGEST.fullmatch(digest):
        raise LogError(f"{printable(digest[:80])!r} is not a SHA-256", "import again")
    return f"{OBJECTS}/{digest[:2]}/{digest}"


def is_store(directory: Path) -> bool:
    """Return whether a directory is a study, or an unfinished import."""
    return (directory / FACTS).is_file() or (directory / OBJECTS).is_dir()


class _Files(dict[str, SourceFile]):
    def __init__(self, damaged: Callable[[str], LogError], known: Mapping[str, SourceFile]) -> None:
        super().__init__(known)
        self._damaged = damaged

    def __missing__(self, path: str) -> SourceFile:
        raise self._damaged(f"{FACTS}: no file {printable(path)!r} in {SOURCES}")


class Study:
    """A study that was imported, for reading."""

    def __init__(self, directory: Path) -> None:
        """Raises LogError if the directory is not a study."""
        for name in (FACTS, SOURCES):
            if not is_regular(directory / name):
                raise LogError(
                    f"{directory} is not a study: it has no {name}",
                    "create a study with `nearmetal study import`",
                )
        self.directory = directory

    def _rows(
        self, name: str, query: str, values: Sequence[object] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a query over the table of this name, which it calls `t`."""
        typed = ", ".join("{0}::{1} AS {0}".format(*c.split()) for c in _TYPES[name].split(", "))
        with _plain_name(self.directory) as here, closing(_connect()) as connection:
            try:
                table = f"SELECT {typed} FROM read_parquet('{here}/{name}')"  # noqa: S608 - ours
                connection.execute(f"CREATE VIEW t AS {table}")
                cursor = connection.execute(query, values)
                while rows := cursor.fetchmany(10_000):
                    yield from rows
            except _duckdb().Error as error:
                words = str(error).replace(here, str(self.directory))
                raise self._damaged(words) from error

    def _damaged(self, words: str) -> LogError:
        return LogError(f"{self.directory}: {words}", "the tables are damaged; import again")

    def sources(self) -> list[SourceFile]:
        """Return every file of the import, in its order."""
        try:
            return [_source(row) for row in self._rows(SOURCES, "SELECT * FROM t")]
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(f"{SOURCES}: {error}") from error

    def files(self) -> Mapping[str, SourceFile]:
        """Return the files with numbers by path. A look-up of any other path raises LogError."""
        return _Files(self._damaged, {s.path: s for s in self.sources() if s.status == "facts"})

    def labels(self) -> str:
        """Return the text of the labels of the import; empty if it needed none."""
        path = self.directory / LABELS
        try:
            return read_regular(LABELS, MAX_BYTES, below=self.directory).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise LogError(f"cannot read {path}: {why}", "import again") from error

    def cells(self, **wanted: object) -> Iterator[Cell]:
        """Return the cells with these values of columns, for example `cells(test="osu_latency")`."""
        conditions = " AND ".join(f"{name} IS NOT DISTINCT FROM ?" for name in wanted) or "true"
        rows = self._rows(
            FACTS,
            f"SELECT {_CELL}, run, launch, block, value, path, line "  # noqa: S608 - our own names
            f"FROM t WHERE {conditions} "
            f"ORDER BY {_CELL.replace('size', 'size NULLS FIRST')}, block, launch, run, line",
            list(wanted.values()),
        )
        columns = _CELL_COLUMNS
        for key, members in groupby(rows, key=lambda row: row[:columns]):
            test, unit = key[2], key[8]
            seen = tuple(Observation(*row[columns:]) for row in members)
            if unit not in _UNITS or not all(_is_sound(each) for each in seen):
                raise self._damaged(f"{FACTS}: {test}: a number, its unit or its place is missing")
            point = Point._make(
                (*key[1:8], Unit(unit), Setup._make(part or "" for part in key[9:]))
            )
            yield Cell(key[0], point, seen)

    def cell_count(self, launches: int) -> int:
        """Return the number of cells of all arms with at least `launches` launches."""
        rows = self._rows(
            FACTS,
            f"SELECT count(*) FROM (SELECT 1 FROM t GROUP BY {_CELL} "  # noqa: S608 - our own names
            "HAVING count(DISTINCT (run, launch)) >= ?)",
            [launches],
        )
        return next(int(row[0]) for row in rows)

    def raw(self, source: str) -> bytes:
        """Return the bytes of a raw file; raises LogError if they have changed."""
        inside = object_path(source)
        path = self.directory / inside
        try:
            content = read_regular(inside, MAX_LOG_BYTES, below=self.directory)
        except OSError as error:
            raise LogError(f"{path}: {error.strerror}", "import again") from error
        if hashlib.sha256(content).hexdigest() != source:
            raise LogError(
                f"{path}: its content is not what was recorded",
                "raw files must not be edited; import again",
            )
        return content
