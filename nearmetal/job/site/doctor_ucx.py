# SPDX-License-Identifier: Apache-2.0
"""The diagnoses of `nearmetal doctor --fabric ucx` about UCX and nearmetal's transport. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from nearmetal.job.mpi import Mpi, Ucx
from nearmetal.job.site.diagnoses import Diagnosis, Rating
from nearmetal.job.site.found import FoundMpi, LoadedUcx
from nearmetal.job.ucx import VERSION

NAMES = tuple(f"libuct_nearmetal{end}" for end in (".so", ".so.0", ".so.0.0.0"))
"""UCX looks for the end of the name that its own libucs was loaded with (docs/design/ucx.md)."""

_NEEDED = ".".join(map(str, VERSION))


def of_transport(plugin: Path, names: Iterable[str]) -> Diagnosis:
    """Say where the transport is, and whether it has all names that a UCX looks for."""
    lacking = [name for name in NAMES if name not in set(names)]
    if not lacking:
        return Diagnosis("transport", Rating.OK, f"{plugin}: {', '.join(NAMES)}")
    words = f"{plugin} lacks {', '.join(lacking)}: a UCX that looks for this name finds nothing"
    there = shlex.quote(str(plugin))
    links = " && ".join(f"ln -s libuct_nearmetal.so.0 {there}/{name}" for name in lacking)
    return Diagnosis("transport", Rating.WARN, words, links)


def of_way(mpi: FoundMpi) -> Diagnosis:
    """Say whether the MPI is built with UCX."""
    name = "mpi-ucx"
    kind = f"MPICH's device is {mpi.device}"
    if not mpi.device:
        kind = f"its component pml/ucx is {'there' if mpi.ucx else 'missing'}"
    if mpi.ucx:
        return Diagnosis(name, Rating.OK, f"{mpi.title} can use UCX: {kind}")
    if mpi.installation.mpi is Mpi.IMPI:
        words = "Intel MPI has no transport over UCX of its own: it uses libfabric"
        return Diagnosis(name, Rating.FAIL, words, "nearmetal doctor impi")
    fix = "use an Open MPI with pml/ucx or an MPICH with ch4:ucx, or leave out --fabric ucx"
    return Diagnosis(name, Rating.FAIL, f"{mpi.title} cannot use UCX: {kind}", fix)


def of_loaded(loaded: LoadedUcx | None, wanted: Ucx) -> Diagnosis:
    """Say which UCX the MPI loads with the variables of `nearmetal env`, and its version."""
    name = "ucx"
    if loaded is None:
        words = "the MPI loads no UCX with the variables of `nearmetal env --fabric ucx`"
        return Diagnosis(name, Rating.FAIL, words, "ldd LIBMPI; load the module of UCX")
    version = ".".join(map(str, loaded.version))
    words = f"UCX {version}: {loaded.path}"
    if loaded.version[:2] == VERSION:
        return Diagnosis(name, Rating.OK, words)
    words += f". The transport is for UCX {_NEEDED}"
    if loaded.path.parent.resolve() == wanted.libraries.resolve():
        fix = f"pip install libucx-cu12=={_NEEDED}.0; set NEARMETAL_UCX to its directory"
    else:
        words += f", and the MPI does not take the one in {wanted.libraries}"
        fix = "readelf -d LIBMPI: an RPATH comes before LD_LIBRARY_PATH; chrpath -d removes it"
    return Diagnosis(name, Rating.FAIL, words, fix)


def of_choice(env: Mapping[str, str]) -> Diagnosis:
    """Say whether UCX_TLS allows the transport in this environment."""
    name, text = "ucx-tls", env.get("UCX_TLS", "all")
    listed, excluding = {*text.removeprefix("^").split(",")}, text.startswith("^")
    allowed = "nearmetal" not in listed if excluding else listed & {"nearmetal", "all"}
    if not allowed:
        words = f"UCX_TLS={text} leaves out nearmetal"
        return Diagnosis(name, Rating.FAIL, words, "unset UCX_TLS, or add nearmetal to it")
    own = {"posix", "sysv", "xpmem", "sm", "shm", "shared_memory"}
    without_own = listed & own if excluding else not listed & {*own, "all"}
    if without_own:
        return Diagnosis(name, Rating.OK, f"UCX_TLS={text}")
    words = f"UCX_TLS={text}: UCX takes its own shared memory where it reaches the peer"
    return Diagnosis(name, Rating.WARN, words, "export UCX_TLS=^posix,sysv,xpmem")
