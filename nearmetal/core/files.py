# SPDX-License-Identifier: Apache-2.0
"""Files and directories: written whole or not at all, and foreign ones read within limits.

New content is written beside its place and moved there by one rename. With `sync`, the content and
the directory are on disk when the call returns, so it also survives a power loss.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nearmetal.core.errors import HostError, NearmetalError

MAX_STATE = 64 << 20
"""Bytes of a file of our own state."""

_PIECE = 64 << 10
_GIVEN = re.compile(r"/dev/stdin|(?:/dev/fd|/proc/self/fd)/([0-9]{1,9})")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


def is_regular(path: Path) -> bool:
    """Whether a regular file, and not a link to one, is at `path`."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def check_private(path: Path, fault: type[NearmetalError], *, others: str, manual: str) -> None:
    """Raise `fault` unless a regular file is there that only root, or our user, may read or write.

    `others`: the words for other users. `manual`: the page that says what the file is.
    """
    try:
        found = path.lstat()
    except OSError as error:
        raise fault(f"cannot read {path}: {error.strerror}", f"see {manual}") from error
    if not stat.S_ISREG(found.st_mode):
        raise fault(f"{path} is not a regular file", "put the file itself there, and no link")
    if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & 0o077:
        hint = f"as root: chown root {path} && chmod 600 {path}"
        raise fault(f"{path}: {others} may read or write it", hint)


def read_regular(path: Path | str, most: int, *, below: Path | None = None) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raises OSError otherwise.

    A device, a FIFO, a socket or a directory is refused and never waited for; the size is bounded
    while the file is read. Without `below`, the user named the file, and a link is followed. With
    it, the file is at the relative `path` in that folder, and no part of `path` may be a link or
    `..`: another user may have made the folder, and may change it meanwhile.
    """
    descriptor = _open_regular(path, below)
    try:
        if os.fstat(descriptor).st_size > most:
            raise _too_large(most)
        return _read_open(descriptor, most)
    finally:
        os.close(descriptor)


def _read_open(descriptor: int, most: int) -> bytes:
    parts, left = [], most + 1
    # In pieces: a buffer for the largest file costs more than most files.
    while left and (part := os.read(descriptor, min(left, _PIECE))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise _too_large(most)
    return b"".join(parts)


def read_named(path: Path | str, most: int) -> bytes:
    """As `read_regular` for a file that the user named, which may also be a pipe that we were given.

    `nearmetal plan <(command)` names /dev/fd/N. Such a pipe is awaited; a FIFO in a folder is not.
    """
    found = _GIVEN.fullmatch(os.fspath(path))
    if found is None or not _is_pipe(int(found[1] or 0)):
        return read_regular(path, most)
    return _read_open(int(found[1] or 0), most)


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _too_large(most: int) -> OSError:
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
    return OSError(errno.EFBIG, f"larger than {size}")


def _open_regular(path: Path | str, below: Path | None) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if below is None:
        return _open_checked(path, flags, None)
    *folders, name = Path(path).parts
    if Path(path).is_absolute() or ".." in (*folders, name):
        raise OSError(errno.EPERM, "the path leaves its folder")
    flags |= os.O_NOFOLLOW
    at = os.open(below, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = _open_folder(folder, at)
            os.close(at)
            at = inner
        return _open_checked(name, flags, at)
    finally:
        os.close(at)


def _open_folder(name: str, at: int) -> int:
    """Open a folder in a folder, but not through a link."""
    try:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    except NotADirectoryError as error:
        raise OSError(errno.ENOTDIR, f"{name!r} is a link or not a directory") from error


def _open_checked(path: Path | str, flags: int, at: int | None) -> int:
    """Open what is a regular file before and after: to open a device may already act on it."""
    _check_kind(os.stat(path, dir_fd=at, follow_symlinks=not flags & os.O_NOFOLLOW))
    descriptor = os.open(path, flags, dir_fd=at)
    try:
        _check_kind(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_kind(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")


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
    `shared`: the writers hold no common lock, and the last one wins. Raises OSError, also if `path`
    is a device, a FIFO or the like: it would be lost. A link is replaced.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(path.parent))
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode):
            _check_kind(found)
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
        return json.loads(read_regular(path, MAX_STATE))
    except (OSError, ValueError, RecursionError):
        return None


def read_tables(path: Path, hint: str) -> dict[str, dict[str, Any]]:
    """Return the JSON object of objects in a file; {} if there is no file.

    Raises HostError with the hint if the file holds anything else, OSError if it is unreadable.
    """
    try:
        found: Any = json.loads(read_regular(path, MAX_STATE))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise HostError(f"{path} is damaged", hint)
    return found


def replace_tables(path: Path, content: dict[str, dict[str, Any]]) -> None:
    """Write what `read_tables` reads."""
    replace_file(path, json.dumps(content, indent=1))
