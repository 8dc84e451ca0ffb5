# SPDX-License-Identifier: Apache-2.0
"""The installed MPIs, with one prefix each."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.resources import REPOSITORY

_READ_LIMIT = 64 << 20

NO_MPI = (
    "install one, for example `pip install mpich` in the virtual environment of nearmetal, or "
    "openmpi-bin of Debian 12; or set NEARMETAL_MPI_PATH"
)
"""What to do if no MPI fits."""


class Family(Enum):
    """MPIs whose programs are interchangeable: the library name they are linked to."""

    OPENMPI = "libmpi.so.40"
    MPICH = "libmpi.so.12"


class Mpi(Enum):
    """The MPIs that nearmetal can set up; the value is the name on the command line."""

    OPENMPI5 = "openmpi5"
    MPICH5 = "mpich5"
    IMPI = "impi"
    OPENMPI4 = "openmpi4"

    @property
    def family(self) -> Family:
        """The MPI's binary interface."""
        return Family.OPENMPI if self in (Mpi.OPENMPI4, Mpi.OPENMPI5) else Family.MPICH

    @property
    def title(self) -> str:
        """The name in sentences."""
        return {
            Mpi.OPENMPI5: "Open MPI 5",
            Mpi.MPICH5: "MPICH 5",
            Mpi.IMPI: "Intel MPI 2021",
            Mpi.OPENMPI4: "Open MPI 4.1",
        }[self]


_LAUNCHERS = {
    Mpi.OPENMPI5: "bin/mpirun",
    Mpi.MPICH5: "bin/mpiexec.hydra",
    Mpi.IMPI: "bin/mpiexec.hydra",
    Mpi.OPENMPI4: "bin/mpirun.openmpi",
}


_MARKS = {Mpi.OPENMPI5: "bin/prte", Mpi.MPICH5: "bin/mpichversion", Mpi.IMPI: "bin/impi_info"}
"""A file that only this MPI has; the names of launchers are shared."""


@dataclass(frozen=True)
class Installation:
    """One installed MPI."""

    mpi: Mpi
    prefix: Path

    @property
    def launcher(self) -> Path:
        """The program that starts jobs."""
        return self.prefix / _LAUNCHERS[self.mpi]

    @property
    def library_directory(self) -> Path | None:
        """The directory of its libmpi; None if the system's linker finds it."""
        return None if self.prefix == Path("/usr") else self.prefix / "lib"

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The files in its libraries that are providers of its own libfabric, as they are here."""
        return tuple(sorted(path.name for path in (self.prefix / "lib").glob("*-fi.so")))


@dataclass(frozen=True)
class SearchPath:
    """Directories that may hold MPIs.

    `roots` have one prefix per name. The virtual environment, if there is one, may hold the wheel
    of an MPI, and the system the MPI of the distribution.
    """

    roots: tuple[Path, ...]
    system: Path | None
    environment: Path | None = None

    def prefixes(self, mpi: Mpi) -> list[Path]:
        """Return the possible prefixes of an MPI, in order."""
        found = [root / mpi.value for root in self.roots]
        inside = self.environment
        if inside is not None and mpi in _MARKS and (inside / _MARKS[mpi]).exists():
            found.append(inside)
        # libmpi 40.30 is Open MPI 4.1, and 40.40 is Open MPI 5.
        release = {Mpi.OPENMPI4: "30", Mpi.OPENMPI5: "40"}.get(mpi)
        if release is not None and self.system is not None:
            libraries = self.system.glob(f"lib/*/libmpi.so.40.{release}.*")
            found += [self.system for _ in libraries][:1]
        return found


def default_path() -> SearchPath:
    """Return $NEARMETAL_MPI_PATH, then build/mpi of the checkout, the environment, and /usr."""
    given = os.environ.get("NEARMETAL_MPI_PATH", "")
    named = [Path(path) for path in given.split(os.pathsep) if path]
    environment = None if sys.prefix == sys.base_prefix else Path(sys.prefix)
    return SearchPath((*named, REPOSITORY / "build" / "mpi"), Path("/usr"), environment)


def find_installations(places: SearchPath | None = None) -> dict[Mpi, Installation]:
    """Return the installed MPIs by name; `places` None: the default ones."""
    looked = places or default_path()
    found = {}
    for mpi in Mpi:
        installations = (Installation(mpi, prefix) for prefix in looked.prefixes(mpi))
        for installation in installations:
            if os.access(installation.launcher, os.X_OK):
                found[mpi] = installation
                break
    return found


def linked_family(program: Path) -> Family | None:
    """Return the MPI a program is linked to; None for scripts and programs without MPI."""
    try:
        with program.open("rb") as stream:
            if stream.read(4) != b"\x7fELF":
                return None
            content = stream.read(_READ_LIMIT)
    except OSError:
        return None
    families = [f for f in Family if f"\0{f.value}\0".encode() in content]
    return families[0] if len(families) == 1 else None


def pick(
    name: str | None, program: Path | None = None, places: SearchPath | None = None
) -> Installation:
    """Return the MPI to use: by name, else the first that fits the program.

    Raises UsageError for an unknown name, and LaunchError if none is installed or fits.
    """
    looked = places or default_path()
    found = find_installations(looked)
    here = ", ".join(mpi.value for mpi in found) or "none"
    family = None if program is None else linked_family(program)
    if name is None:
        for installation in found.values():
            if family in (None, installation.mpi.family):
                return installation
        raise LaunchError(
            f"no MPI for {program or 'the job'} is installed (here: {here})",
            NO_MPI,
        )
    try:
        mpi = Mpi(name)
    except ValueError:
        known = ", ".join(m.value for m in Mpi)
        raise UsageError(f"unknown MPI {name!r}", f"known: {known}; installed: {here}") from None
    if mpi not in found:
        prefixes = ", ".join(map(str, looked.prefixes(mpi)))
        others = "use --mpi with one of these, or " if found else ""
        raise LaunchError(
            f"{mpi.title} ({mpi.value}) is not installed: looked in {prefixes}",
            f"installed: {here}; {others}install {mpi.title}, with the parent of its directory "
            f"{mpi.value} in NEARMETAL_MPI_PATH",
        )
    if family not in (None, mpi.family):
        fitting = ", ".join(m.value for m in found if m.family is family) or "none installed"
        raise LaunchError(
            f"{program} is linked to {family.value if family else ''}, which is not {mpi.title}'s",
            f"use --mpi with one of: {fitting}; or compile it with {mpi.title}",
        )
    return found[mpi]
