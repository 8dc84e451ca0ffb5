# SPDX-License-Identifier: Apache-2.0
"""Files of nearmetal: those that come with the package, and the built provider and programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from nearmetal.core.errors import LaunchError

REPOSITORY = Path(__file__).resolve().parents[2]
"""The checkout that this package runs from, where its build/ lies; elsewhere a folder without one."""

REMEDY = (
    "run `make setup`"
    if (REPOSITORY / "tools/setup/setup.sh").is_file()
    else "this installation of nearmetal is incomplete: install it again"
)
"""What to do if a built file is missing."""

PROVIDER = "libnearmetal-fi.so"
HEAP = "libnearmetal-heap.so"
_UCX = "ucx/libuct_nearmetal.so.0"
_IN_BUILD = {
    PROVIDER: "build/c/src/provider",
    HEAP: "build/c/src/heap",
    _UCX: "build/c/src",
    "nearmetal-info": "build/c/src/tools",
    "nearmetal-segment": "build/c/src/tools",
}
_LIBRARIES = (Path("/usr/local/lib"), Path("/usr/lib"), Path("/usr/lib64"))


def share(*names: str) -> Path:
    """Return the path of a file or folder below nearmetal/share."""
    return Path(str(resources.files("nearmetal"))).joinpath("share", *names)


def built_places(name: str, libraries: Sequence[Path] = _LIBRARIES) -> list[Path]:
    """Return the possible places of a built file, best first.

    They are the build of the checkout, the wheel, and the libraries that a package installs.
    """
    places = [REPOSITORY / _IN_BUILD.get(name, "build/c/benchmarks") / name, share("built", name)]
    for directory in libraries:
        places += [directory / "nearmetal" / name, *sorted(directory.glob(f"*/nearmetal/{name}"))]
    return places


def built_program(name: str) -> Path:
    """Return a built program that no user starts, for example `limits`; raises LaunchError."""
    places = built_places(name)
    for path in places:
        if os.access(path, os.X_OK):
            return path
    raise LaunchError(f"{places[0]} is not a program", REMEDY)


def program_for_mpi(name: str, mpi: str, family: str) -> Path:
    """Return a built MPI program; raises LaunchError.

    A checkout compiles for each MPI, a package once for all MPIs of one binary interface.
    """
    path = REPOSITORY / "build/programs" / mpi / name
    return path if os.access(path, os.X_OK) else built_program(f"{name}-{family}")


def _first_file(places: Sequence[Path]) -> Path | None:
    return next((path.resolve() for path in places if path.is_file()), None)


def provider_library() -> Path:
    """Return the provider: $NEARMETAL_PROVIDER_LIB, the build's, or an installed one.

    Raises LaunchError.
    """
    given = os.environ.get("NEARMETAL_PROVIDER_LIB")
    places = [Path(given)] if given else built_places(PROVIDER)
    found = _first_file(places)
    if found:
        return found
    if given:
        raise LaunchError(
            f"NEARMETAL_PROVIDER_LIB={given}: no such file",
            "set it to the path of libnearmetal-fi.so",
        )
    raise LaunchError(
        f"the provider is not built: looked for {places[0]} and below /usr/lib and /usr/local/lib",
        f"{REMEDY}, set NEARMETAL_PROVIDER_LIB, or run with --provider stock",
    )


def heap_library(places: Sequence[Path] = ()) -> Path:
    """Return the library for LD_PRELOAD whose memory neighbours read; raises LaunchError."""
    places = places or built_places(HEAP)
    found = _first_file(places)
    if found is None:
        raise LaunchError(f"{places[0]} is not there", f"{REMEDY}, or run without --heap")
    return found


def ucx_transport() -> Path:
    """Return the directory of the transport for UCX, the build's or an installed one.

    Raises LaunchError.
    """
    places = built_places(_UCX)
    found = _first_file(places)
    if found is None:
        raise LaunchError(
            f"the transport for UCX is not built: looked for {places[0]} and below /usr/lib and "
            "/usr/local/lib",
            f"{REMEDY}, or run with --fabric ofi",
        )
    return found.parent


def find_tool(name: str) -> Path | None:
    """Return nearmetal-info or nearmetal-segment: the build's, or an installed one.

    $NEARMETAL_INFO replaces nearmetal-info.
    """
    given = os.environ.get("NEARMETAL_INFO") if name == "nearmetal-info" else None
    for path in [Path(given)] if given else built_places(name, ()):
        if os.access(path, os.X_OK):
            return path
    # Without PATH, as in some prologs, an empty entry would mean the working directory.
    places = f"{os.environ.get('PATH') or '/usr/local/bin'}:/usr/bin:/bin"
    found = None if given else shutil.which(name, path=places)
    return Path(found) if found else None


def tool(name: str) -> Path:
    """As `find_tool`; raises LaunchError if there is none."""
    found = find_tool(name)
    if found is None:
        raise LaunchError(f"{name} is not built or installed", REMEDY)
    return found
