# SPDX-License-Identifier: Apache-2.0
"""Files that go to nodes which do not see ours, and counters that come back from them."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import stat
import tarfile
from pathlib import Path

from nearmetal.core.errors import LaunchError

NEW = ".new"
"""Ends the name of what is being copied; a job's name begins it."""

_MAX_STATS = 64 << 20
_MAX_MEMBERS = 16384


def _is_for_compilers(name: str) -> bool:
    """Whether a path within an MPI is one that only compilers read."""
    return name.partition("/")[0] == "include" or name.endswith((".a", ".la"))


def packed(path: Path) -> bytes:
    """Return a compressed tar archive of a file, or of what a directory has for programs.

    A link is followed where it is the file asked for, and kept within a directory.
    """
    stream, whole = io.BytesIO(), path.is_dir()
    with tarfile.open(
        fileobj=stream, mode="w:gz", compresslevel=6, dereference=not whole
    ) as archive:
        if whole:
            for entry in sorted(path.iterdir()):
                archive.add(entry, entry.name, filter=_needed)
        else:
            archive.add(path, path.name, filter=_plain)
    return stream.getvalue()


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what only compilers read."""
    return None if _is_for_compilers(member.name) else _plain(member)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who owns a file here."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = _open_mode(member.mode)
    return member


def _open_mode(mode: int) -> int:
    """Return the rights that all have on a staged file: to read it, and to run what is a program."""
    return 0o755 if mode & stat.S_IXUSR else 0o644


def stage(path: Path, shared: Path, name: str, job: str) -> None:
    """Copy what `packed` packs to `name` of a directory that nodes see as it is.

    What is there already stays; half a copy is never there under its name. Raises LaunchError.
    """
    target = shared / name
    if target.exists():
        return
    fresh = shared / f"{job}{NEW}"
    try:
        fresh.mkdir(mode=0o755)
        fresh.chmod(0o755)
        if path.is_dir():
            for entry in sorted(path.iterdir()):
                _copy(entry, fresh, entry.name)
        else:
            _copy_file(path, fresh / path.name)
        fresh.rename(target)
    except OSError as error:
        # Another job may have been faster.
        if not target.exists():
            msg = f"cannot copy {path} to {target}: {error.strerror or error}"
            raise LaunchError(msg, "is there room in the state directory?") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _copy(source: Path, folder: Path, name: str) -> None:
    if _is_for_compilers(name):
        return
    target = folder / source.name
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir()
        target.chmod(0o755)
        for entry in source.iterdir():
            _copy(entry, target, f"{name}/{entry.name}")
    elif source.is_file():
        _copy_file(source, target)


def _copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(_open_mode(source.stat().st_mode))


def unpack(archive: bytes, directory: Path) -> None:
    """Write the regular files of a foreign archive flat into a new directory, and not too many.

    Raises LaunchError for one that is no archive, or not plain: a small one may grow large.
    """
    directory.mkdir(mode=0o700)
    left = _MAX_STATS
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as content:
            for member in itertools.islice(content, _MAX_MEMBERS):
                name = Path(member.name).name
                if not member.isreg() or not name or not 0 <= member.size <= left:
                    continue
                left -= member.size
                data = content.extractfile(member)
                target = directory / name
                if data is not None and not target.exists():
                    target.write_bytes(data.read())
                    os.utime(target, (member.mtime, member.mtime))
    except (
        tarfile.TarError,
        EOFError,
        OSError,
        ArithmeticError,
        ValueError,
        RecursionError,
    ) as error:
        raise LaunchError(f"a node sent damaged counters: {error}") from error
