# SPDX-License-Identifier: Apache-2.0
"""Programs and MPIs for machines that share no file system with this one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from nearmetal.cluster.backend import STAGED
from nearmetal.core.errors import LaunchError
from nearmetal.job.mpi import Installation, pick
from nearmetal.job.mpi.installed import Family, Mpi, linked_family
from nearmetal.job.node_places import FILES

GUEST_MPI = Installation(Mpi.OPENMPI5, Path("/usr"))
"""What the built image brings by itself: Debian 13's Open MPI 5."""


def is_local(program: str) -> bool:
    """Whether a program named on the command line lies here; else it is one of the nodes' own.

    Raises LaunchError for a relative path to nothing: no directory of theirs is ours.
    """
    if "/" not in program or Path(program).is_file():
        return True
    if not Path(program).is_absolute():
        raise LaunchError(
            f"no program {program}: {Path(program).absolute()} is no file",
            "a program of the nodes' own needs its absolute path",
        )
    return False


def guest_mpi(name: str | None, program: Path | None) -> Installation:
    """Return the MPI to use in virtual machines: their own Open MPI 5, else one carried there."""
    family = None if program is None else linked_family(program)
    if name in (None, Mpi.OPENMPI5.value) and family in (None, Family.OPENMPI):
        return GUEST_MPI
    return pick(name, program)


@dataclass(frozen=True)
class Carried:
    """A job's program and MPI as the nodes will see them, and what must be staged for that."""

    program: Path
    installation: Installation
    files: tuple[tuple[Path, str], ...]


def carried(
    root: Path, job: str, program: Path | None, named: str, installation: Installation
) -> Carried:
    """Return what nodes lack; `program` None: it is theirs under the name given."""
    files, found = [], Path(named)
    if program is not None:
        files.append((program, job + FILES))
        found = root / STAGED / (job + FILES) / program.name
    if installation.prefix != GUEST_MPI.prefix:
        # By its place and age: another MPI of that name is carried anew.
        age = installation.launcher.stat().st_mtime_ns
        key = hashlib.sha256(f"{installation.prefix} {age}".encode()).hexdigest()[:8]
        name = f"{installation.mpi.value}-{key}"
        files.append((installation.prefix, name))
        installation = replace(installation, prefix=root / STAGED / name)
    return Carried(found, installation, tuple(files))
