# SPDX-License-Identifier: Apache-2.0
"""The program and libraries of a job on nodes without our files, and the counters that come back."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import shutil
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nearmetal.cluster.backend import STAGED
from nearmetal.core.errors import LaunchError
from nearmetal.core.files import new_directory
from nearmetal.job.mpi import Installation, Ucx, pick
from nearmetal.job.mpi.installed import Family, Mpi, linked_family

FILES = ".files"
"""Ends the staged name of a job's own program."""

NEW = ".new"
"""Ends the name of an unfinished copy, which begins with the job's name."""

GUEST_MPI = Installation(Mpi.OPENMPI5, Path("/usr"))
"""The MPI of the built image: Debian 13's Open MPI 5."""

_MAX_STATS = 64 << 20
_MAX_MEMBERS = 16384


def is_local(program: str) -> bool:
    """Whether a program named on the command line is on this machine; else the nodes have it.

    Raises LaunchError for a relative path to nothing: no directory of the nodes is ours.
    """
    if "/" not in program or Path(program).is_file():
        return True
    if not Path(program).is_absolute():
        raise LaunchError(
            f"no program {program}: {Path(program).absolute()} is not a file",
            "a program of the nodes needs its absolute path",
        )
    return False


def guest_mpi(name: str | None, program: Path | None) -> Installation:
    """Return the MPI to use in virtual machines: their own Open MPI 5, or a copied one.

    Raises UsageError or LaunchError as `pick`, and for an MPI that shares /usr with the system.
    """
    family = None if program is None else linked_family(program)
    if name in (None, Mpi.OPENMPI5.value) and family in (None, Family.OPENMPI):
        return GUEST_MPI
    found = pick(name, program)
    if found.prefix == GUEST_MPI.prefix:
        raise LaunchError(
            f"virtual machines cannot get a copy of {found.mpi.title} in {found.prefix}: theirs "
            f"has {GUEST_MPI.mpi.title}",
            "leave out --mpi, or use an MPI that has a directory of its own",
        )
    return found


class Staging(NamedTuple):
    """A file or directory here that nodes need, and its staged name.

    `only`: these files of the directory, by their paths in it; (): the directory as it is.
    """

    path: Path
    name: str
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Carried:
    """A job's program, MPI and UCX as the nodes see them, and the files to stage for that."""

    program: Path
    installation: Installation
    files: tuple[Staging, ...]
    ucx: Ucx | None = None


def carried(
    root: Path, job: str, program: Path | None, named: str, installation: Installation
) -> Carried:
    """Return what nodes lack; `program` None: they have it under the given name."""
    files, found = [], Path(named)
    if program is not None:
        files.append(Staging(program, job + FILES))
        found = root / STAGED / (job + FILES) / program.name
    if installation.prefix != GUEST_MPI.prefix:
        name = _kept(installation.mpi.value, installation.prefix, [installation.launcher])
        files.append(Staging(installation.prefix, name))
        installation = replace(installation, prefix=root / STAGED / name)
    return Carried(found, installation, tuple(files))


def with_ucx(root: Path, taken: Carried, ucx: Ucx | None) -> Carried:
    """Add UCX and its transport, if the job uses them."""
    if ucx is None:
        return taken
    made = []
    for kind, path in (("ucx", ucx.libraries), ("ucx-transport", ucx.plugin)):
        # Programs load libraries by these names alone; the rest of a directory is for compilers.
        found = [*path.glob("libuc[mpst].so.0"), *path.glob("ucx/libuct_*.so.0")]
        found += path.glob("libuct_*.so.0")
        only = tuple(sorted(str(file.relative_to(path)) for file in found))
        made.append(Staging(path, _kept(kind, path, found), only))
    there = Ucx(*(root / STAGED / one.name for one in made))
    return replace(taken, files=(*taken.files, *made), ucx=there)


def _kept(kind: str, path: Path, files: Sequence[Path]) -> str:
    """Return the staged name of what stays for later jobs: another place or age has another one."""
    ages = sorted(file.stat().st_mtime_ns for file in files)
    key = hashlib.sha256(f"{path} {' '.join(map(str, ages))}".encode()).hexdigest()[:8]
    return f"{kind}-{key}"


def _is_for_compilers(name: str) -> bool:
    """Whether only compilers read this path within an MPI."""
    return name.partition("/")[0] == "include" or name.endswith((".a", ".la"))


def packed(path: Path, only: Sequence[str] = ()) -> bytes:
    """Return a compressed tar archive of a file, or of a directory without files for compilers.

    A link is followed if it is the file asked for, and kept within a directory. `only`: as Staging.
    """
    stream, whole = io.BytesIO(), path.is_dir() and not only
    entries = {path.name: path}
    if only:
        entries = {name: path / name for name in only}
    elif whole:
        entries = {entry.name: entry for entry in sorted(path.iterdir())}
    with tarfile.open(
        fileobj=stream, mode="w:gz", compresslevel=6, dereference=not whole
    ) as archive:
        for name, entry in entries.items():
            archive.add(entry, name, filter=_needed if whole else _plain)
    return stream.getvalue()


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _is_for_compilers(member.name) else _plain(member)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out the owner of a file here."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = _open_mode(member.mode)
    return member


def _open_mode(mode: int) -> int:
    """Return the mode of a staged file: all users may read it, and run it if it is a program."""
    return 0o755 if mode & stat.S_IXUSR else 0o644


def stage(wanted: Staging, shared: Path, job: str) -> None:
    """Copy the files that `packed` packs to the name in a directory that nodes see as it is.

    An existing copy stays; an unfinished copy never has that name. Raises LaunchError.
    """
    path, target = wanted.path, shared / wanted.name
    if target.exists():
        return
    try:
        with new_directory(target, shared / f"{job}{NEW}", mode=0o755, sync=False) as fresh:
            if wanted.only:
                for name in wanted.only:
                    folder = (fresh / name).parent
                    folder.mkdir(exist_ok=True)
                    folder.chmod(0o755)
                    _copy_file(path / name, fresh / name)
            elif path.is_dir():
                for entry in sorted(path.iterdir()):
                    _copy(entry, fresh, entry.name)
            else:
                _copy_file(path, fresh / path.name)
    except OSError as error:
        # Another job may have been faster.
        if not target.exists():
            raise LaunchError(
                f"cannot copy {path} to {target}: {error.strerror or error}",
                "check that the state directory has room",
            ) from error


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


_DAMAGED = (tarfile.TarError, EOFError, OSError, ArithmeticError, ValueError, RecursionError)


def unpack(archive: bytes, directory: Path) -> None:
    """Write the regular files of a foreign archive flat into a new directory, within limits.

    Raises LaunchError for a damaged or compressed archive: a small one may grow large.
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
    except _DAMAGED as error:
        raise LaunchError(f"a node sent damaged counters: {error}") from error
