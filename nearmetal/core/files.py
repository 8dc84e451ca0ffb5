# SPDX-License-Identifier: Apache-2.0
"""Files and directories that are whole after any crash: the old content or the new content.

New content is written beside its place and moved there by one rename. With `sync`, the content and
the directory are on disk when the call returns, so it also survives a power loss.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nearmetal.core.errors import HostError


def beside(path: Path, *, shared: bool = False) -> Path:
    """Return where the new content of `path` is written before the rename.

    Several processes may write a shared file at the same time, so each has its own place.
    """
    return path.with_name(f"{path.name}.{os.getpid()}.new" if shared else f"{path.name}.new")


@contextlib.contextmanager
def replacing(
    path: Path, *, mode: int = 0o600, sync: bool = True, shared: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a new file, open to write and read; it replaces `path` when the block ends well.

    If the block fails, the old file stays as it was. A leftover of a killed process is removed.
    `shared`: the writers hold no common lock, and the last one wins. Raises OSError.
    """
    fresh = beside(path, shared=shared)
    fresh.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            os.fchmod(stream.fileno(), mode)
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if sync:
        sync_path(path.parent)


def replace_file(
    path: Path,
    content: str | bytes,
    *,
    mode: int = 0o600,
    sync: bool = True,
    shared: bool = False,
) -> None:
    """Replace a file, or make it; text is UTF-8. The options are those of `replacing`."""
    with replacing(path, mode=mode, sync=sync, shared=shared) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def move(fresh: Path, path: Path, *, sync: bool = True) -> None:
    """Give a file or directory that another program wrote its final name. Raises OSError.

    It replaces a file at `path`, but not a directory that holds anything: that is an OSError.
    `sync` covers the file, or the files directly in the directory.
    """
    if sync:
        for entry in (fresh, *(fresh.iterdir() if fresh.is_dir() else ())):
            sync_path(entry)
    fresh.rename(path)
    if sync:
        sync_path(path.parent)


@contextlib.contextmanager
def new_directory(
    path: Path, fresh: Path | None = None, *, mode: int = 0o700, sync: bool = True
) -> Iterator[Path]:
    """Yield an empty directory that gets the name `path` when the block ends well.

    `fresh`: where it is filled, on the same file system (default: beside `path`). A leftover there
    is removed first, and so is the directory of a failed block. Raises OSError, as `move` does.
    """
    place = beside(path) if fresh is None else fresh
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        place.chmod(mode)
        yield place
        move(place, path, sync=sync)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def remove_file(path: Path) -> None:
    """Remove a file and any leftover beside it, on disk too. A missing file is no error."""
    for each in (beside(path), path):
        with contextlib.suppress(FileNotFoundError):
            each.unlink()
            sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Force a file's content, or a directory's entries, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """Return the JSON value in a file; None if the file is missing, unreadable or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_tables(path: Path, hint: str) -> dict[str, dict[str, Any]]:
    """Return the JSON object of objects in a file; {} if there is no file.

    Raises HostError with the hint if the file holds anything else, OSError if it is unreadable.
    """
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise HostError(f"{path} is damaged", hint)
    return found


def replace_tables(path: Path, content: dict[str, dict[str, Any]]) -> None:
    """Write what `read_tables` reads."""
    replace_file(path, json.dumps(content, indent=1))
