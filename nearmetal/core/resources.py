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

_LIBRARIES = (Path("/usr/local/lib"), Path("/usr/lib"))


def share(*names: str) -> Path:
    """Return the path of a file or folder below nearmetal/share."""
    return Path(str(resources.files("nearmetal"))).joinpath("share", *names)


def provider_places(libraries: Sequence[Path] = _LIBRARIES) -> list[Path]:
    """Return the possible places of the provider, best first: the build, then installed ones."""
    name = "nearmetal/libnearmetal-fi.so"
    places = [REPOSITORY / "build/c/src/provider/libnearmetal-fi.so"]
    for directory in libraries:
        places += [directory / name, *sorted(directory.glob(f"*/{name}"))]
    return places


def provider_library() -> Path:
    """Return the provider: $NEARMETAL_PROVIDER_LIB, the build's, or an installed one.

    Raises LaunchError.
    """
    given = os.environ.get("NEARMETAL_PROVIDER_LIB")
    places = [Path(given)] if given else provider_places()
    for path in places:
        if path.is_file():
            return path.resolve()
    if given:
        raise LaunchError(
            f"NEARMETAL_PROVIDER_LIB={given}: no such file",
            "set it to the path of libnearmetal-fi.so",
        )
    raise LaunchError(
        f"the provider is not built: looked for {places[0]} and below /usr/lib and /usr/local/lib",
        "run `make setup`, set NEARMETAL_PROVIDER_LIB, or run with --provider stock",
    )


def find_tool(name: str) -> Path | None:
    """Return nearmetal-info or nearmetal-segment: the build's, or an installed one.

    $NEARMETAL_INFO replaces nearmetal-info.
    """
    given = os.environ.get("NEARMETAL_INFO") if name == "nearmetal-info" else None
    path = Path(given) if given else REPOSITORY / "build/c/src/tools" / name
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
        raise LaunchError(f"{name} is not built or installed", "run `make setup`")
    return found
