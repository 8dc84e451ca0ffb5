# SPDX-License-Identifier: Apache-2.0
"""Detection of the MPI that a launcher, a directory, a library or a name means."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.process import Command, Runner
from nearmetal.core.text import printable
from nearmetal.job.mpi import Family, Installation, Mpi, pick

LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich", "prterun")
"""Names of programs that start MPI jobs."""

_PROBE = Path(__file__).with_name("probe.py")
_PROBE_S = 60.0
_MAX_TEXT = 4096
_DIRECTORIES = ("lib", "lib64", "lib/*-linux-gnu", "lib/release", "lib64/openmpi/lib")
_NAMES = {
    Family.OPENMPI: ("libmpi.so.40",),
    Family.MPICH: ("libmpi.so.12", "libmpich.so.12"),
}
_COMPONENTS = ("openmpi*/mca_{}.so", "openmpi/lib/openmpi*/mca_{}.so")
_INTEL_FABRICS = ("lib", "opt/mpi/libfabric/lib", "libfabric/lib")


@dataclass(frozen=True)
class Libfabric:
    """The libfabric that an MPI loads. `own`: it came with the MPI; else it is the system's."""

    path: Path
    version: tuple[int, int]
    own: bool
    providers: tuple[str, ...]
    nearmetal: str
    """The file of the nearmetal provider that it loaded; "" for none."""

    @property
    def title(self) -> str:
        """The version in sentences."""
        return f"libfabric {self.version[0]}.{self.version[1]}"


@dataclass(frozen=True)
class LoadedUcx:
    """The UCX that an MPI loads."""

    path: Path
    version: tuple[int, ...]


@dataclass(frozen=True)
class FoundMpi:
    """An MPI of the site. `title`: its name and version. `device`: of MPICH, for example ch4:ofi.

    `launcher` None: not known. `fabrics`: the files that bring libfabric into its processes.
    `ofi` and `ucx`: whether it can use libfabric, and UCX. `unknown`: what was not detected, in
    words. `ucx_parts`: the files that bring UCX into its processes, if its library does not.
    """

    installation: Installation
    title: str
    device: str
    launcher: Path | None
    library: Path
    fabrics: tuple[str, ...]
    libfabric: Libfabric | None
    ofi: bool
    source: str
    unknown: tuple[str, ...] = ()
    ucx: bool = False
    ucx_parts: tuple[str, ...] = ()

    @property
    def fabric_providers(self) -> Path | None:
        """The directory of providers that its libfabric reads by itself, if there is one."""
        if self.libfabric is None:
            return None
        beside = self.libfabric.path.parent
        places = (beside / "libfabric", beside / "prov", beside)
        return next((place for place in places if any(place.glob("*-fi.so"))), None)


def find_mpi(text: str | None, runner: Runner) -> FoundMpi:
    """Return the MPI that a name or a path means; None: that of `mpirun` in PATH.

    Raises UsageError or LaunchError.
    """
    if text is None:
        found = next(filter(None, map(shutil.which, ("mpirun", "mpiexec"))), None)
        if found is None:
            raise LaunchError(
                "no mpirun or mpiexec in PATH",
                f"load the MPI's module, or give a name ({_names()}) or the path of an MPI",
            )
        return _of_launcher(Path(found), f"{found}, in PATH", runner)
    if "/" not in text:
        if text in (mpi.value for mpi in Mpi):
            chosen = pick(text)
            library = _library(chosen.prefix, (chosen.mpi.family,))
            return _described(library, chosen.launcher, f"the name {text}", runner, chosen.prefix)
        if text in LAUNCHERS and (there := shutil.which(text)):
            return _of_launcher(Path(there), f"{there}, in PATH", runner)
        raise UsageError(
            f"{text!r} names no MPI", f"known: {_names()}; or give a path, for example ./{text}"
        )
    path = Path(text).absolute()
    if path.is_dir():
        return _of_prefix(path, f"the directory {path}", runner)
    if not path.is_file():
        raise LaunchError(
            f"{path} does not exist", "give the directory, mpirun or libmpi of an MPI"
        )
    if ".so" in path.name:
        return _described(path, None, f"the library {path}", runner)
    return _of_launcher(path, str(path), runner)


def look_again(
    mpi: FoundMpi, env: Mapping[str, str], runner: Runner
) -> tuple[Libfabric | None, str]:
    """Return its libfabric in this environment, with the providers there, and what they printed."""
    report, said = _probe(mpi.library, mpi.fabrics, env, runner)
    return _libfabric(report, mpi.installation.prefix), said


def look_for_ucx(mpi: FoundMpi, env: Mapping[str, str], runner: Runner) -> LoadedUcx | None:
    """Return the UCX that this MPI loads in this environment; raises LaunchError."""
    report, _ = _probe(mpi.library, mpi.ucx_parts, env, runner)
    path, version = report.get("ucx"), report.get("ucx_version")
    if not isinstance(path, str) or not path or not isinstance(version, list):
        return None
    return LoadedUcx(Path(path), tuple(number for number in version if isinstance(number, int)))


def _names() -> str:
    return ", ".join(mpi.value for mpi in Mpi)


def _of_launcher(launcher: Path, source: str, runner: Runner) -> FoundMpi:
    # The alternatives of Debian are links to links; the last one shows the MPI.
    real = launcher.resolve()
    if {launcher.parent.name, real.parent.name}.isdisjoint(("bin", "sbin")):
        raise LaunchError(
            f"{launcher} is not in a directory bin, so its MPI is not known",
            "give the directory or the libmpi of the MPI",
        )
    known = _families(real.name) or _families(_version_of(launcher, runner))
    if not known:
        raise LaunchError(
            f"{launcher} is not the launcher of a known MPI: `{launcher} --version` names none",
            "known: Open MPI, MPICH, Intel MPI; or give the path of the MPI's libmpi.so",
        )
    places = dict.fromkeys((launcher.parent.parent, real.parent.parent))
    for place in places:
        library = next(_libraries(place, known), None)
        if library is not None:
            return _described(library, launcher, source, runner, place)
    raise LaunchError(
        f"{launcher}: no libmpi of this launcher below {', '.join(map(str, places))}",
        "give the path of its libmpi.so",
    )


def _version_of(launcher: Path, runner: Runner) -> str:
    # Intel's mpirun is a script that looks for its Hydra in PATH.
    env = {"PATH": f"{launcher.parent}:/usr/bin:/bin", "HOME": "/"}
    done = runner.run(Command((str(launcher), "--version"), env=env), timeout_s=_PROBE_S)
    return done.text[:_MAX_TEXT]


def _families(text: str) -> tuple[Family, ...]:
    """Return the family that the name or the version of a launcher shows; () if unknown."""
    if re.search(r"orterun|prterun|openmpi|Open MPI|prrte", text):
        return (Family.OPENMPI,)
    if re.search(r"hydra|HYDRA|mpich|MPICH|Intel\(R\) MPI", text):
        return (Family.MPICH,)
    return ()


def _of_prefix(prefix: Path, source: str, runner: Runner) -> FoundMpi:
    launchers = [prefix / "bin" / name for name in LAUNCHERS]
    launcher = next((path for path in launchers if os.access(path, os.X_OK)), None)
    if launcher is not None:
        return _of_launcher(launcher, source, runner)
    return _described(_library(prefix, tuple(Family)), None, source, runner, prefix)


def _libraries(prefix: Path, families: Sequence[Family]) -> Iterator[Path]:
    for family in families:
        for directory in _DIRECTORIES:
            for name in _NAMES[family]:
                yield from sorted(prefix.glob(f"{directory}/{name}"))


def _library(prefix: Path, families: Sequence[Family]) -> Path:
    found = next(_libraries(prefix, families), None)
    if found is None:
        names = ", ".join(name for family in families for name in _NAMES[family])
        raise LaunchError(
            f"{prefix} holds no MPI: no {names} below it", "give the path of libmpi.so"
        )
    return found


def _components(library: Path, name: str) -> tuple[str, ...]:
    """Return the files of this component of Open MPI."""
    beside = library.resolve().parent
    found = (path for form in _COMPONENTS for path in sorted(beside.glob(form.format(name))))
    return tuple(map(str, found))


def _fabrics(library: Path, prefix: Path) -> tuple[str, ...]:
    """Return what brings libfabric into a process: a component of Open MPI, or Intel's own."""
    components = _components(library, "mtl_ofi")
    if components:
        return components
    if os.environ.get("I_MPI_OFI_LIBRARY_INTERNAL", "1") in ("0", "no", "off", "disable"):
        return ("libfabric.so.1",)
    return tuple(str(prefix / place / "libfabric.so.1") for place in _INTEL_FABRICS)


def _probe(
    library: Path, fabrics: Sequence[str], env: Mapping[str, str], runner: Runner
) -> tuple[dict[str, Any], str]:
    """Return the report of the probe, and the last line of its standard error."""
    argv = (sys.executable, "-I", str(_PROBE), str(library), json.dumps(list(fabrics)))
    done = runner.run(Command(argv, env=env, most=1 << 20), timeout_s=_PROBE_S)
    last = done.text.strip().rpartition("\n")[2]
    try:
        report = json.loads(last)
    except ValueError:
        report = None
    if not isinstance(report, dict) or not isinstance(report.get("version"), str):
        why = "no answer" if done.timed_out else done.error_tail.rpartition("\n")[2]
        raise LaunchError(
            f"{library} cannot be loaded: {printable(why) or f'exit code {done.code}'}",
            "is it an MPI library for this machine? Load the modules that its job would load",
        )
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return report, printable(said[:_MAX_TEXT])


def _libfabric(report: Mapping[str, Any], prefix: Path) -> Libfabric | None:
    path, version = report.get("libfabric"), report.get("fabric_version")
    if not isinstance(path, str) or not path or not isinstance(version, list):
        return None
    numbers = [number for number in version if isinstance(number, int)]
    if len(numbers) != 2:  # noqa: PLR2004 - major and minor
        return None
    names = [name for name in report.get("providers") or [] if isinstance(name, str)]
    top = prefix.resolve()
    own = str(top) not in ("/", "/usr") and Path(path).resolve().is_relative_to(top)
    loaded = report.get("provider")
    return Libfabric(
        Path(path),
        (numbers[0], numbers[1]),
        own,
        tuple(map(printable, names)),
        loaded if isinstance(loaded, str) else "",
    )


def _described(
    library: Path, launcher: Path | None, source: str, runner: Runner, prefix: Path | None = None
) -> FoundMpi:
    """Ask the library itself for its name and version; raises LaunchError for another MPI."""
    place = prefix or library.parent.parent
    # The provider is not asked for yet: a variable of the caller must not select another one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("FI_")}
    fabrics = _fabrics(library, place)
    report, _ = _probe(library, fabrics, env, runner)
    text = report["version"][:_MAX_TEXT]
    mpi, title = _identity(text, library)
    device = re.search(r"^MPICH Device:\s*(\S.*)$", text, re.MULTILINE)
    libfabric = _libfabric(report, place)
    parts = _components(library, "pml_ucx")
    if mpi.family is Family.OPENMPI:
        ofi = report.get("mtl_ofi") is True
        ucx = bool(parts) or report.get("pml_ucx") is True
    else:
        ofi = mpi is Mpi.IMPI or (device is not None and "ofi" in device[1])
        ucx = device is not None and "ucx" in device[1]
    unknown = []
    if launcher is None:
        unknown.append("the launcher is not known: only its library was given")
    if libfabric is None and ofi:
        unknown.append("the libfabric that it loads was not found")
    return FoundMpi(
        installation=Installation(mpi, place),
        title=title,
        device=printable(device[1]) if device else "",
        launcher=launcher,
        library=library,
        fabrics=fabrics,
        libfabric=libfabric,
        ofi=ofi,
        source=source,
        unknown=tuple(unknown),
        ucx=ucx,
        ucx_parts=parts,
    )


def _identity(text: str, library: Path) -> tuple[Mpi, str]:
    """Return the MPI in the text of MPI_Get_library_version, and its name with the version."""
    if found := re.match(r"Open MPI v?((\d+)\.[\w.]+)", text):
        mpi = {"4": Mpi.OPENMPI4, "5": Mpi.OPENMPI5}.get(found[2])
        if mpi is not None:
            return mpi, f"Open MPI {found[1]}"
    elif found := re.match(r"MPICH Version:\s*([\w.]+)", text):
        return Mpi.MPICH5, f"MPICH {found[1]}"
    elif found := re.match(r"Intel\(R\) MPI Library ([\w.]+)", text):
        return Mpi.IMPI, f"Intel MPI {found[1]}"
    first = printable(text.strip().partition("\n")[0][:80]) or "nothing"
    raise LaunchError(
        f"{library}: this MPI is not known: it calls itself {first!r}",
        "known: Open MPI 4 and 5, MPICH, Intel MPI. Set its variables as fi_nearmetal(7) shows",
    )
