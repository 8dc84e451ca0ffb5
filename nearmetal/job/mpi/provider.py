# SPDX-License-Identifier: Apache-2.0
"""Where the provider is on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import LaunchError
from nearmetal.core.resources import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Sequence


def provider_places(
    libraries: Sequence[Path] = (Path("/usr/local/lib"), Path("/usr/lib")),
) -> list[Path]:
    """Return where the provider may lie, best first: the build, then where it is installed to."""
    name = "nearmetal/libnearmetal-fi.so"
    places = [REPOSITORY / "build/c/src/provider/libnearmetal-fi.so"]
    for directory in libraries:
        places += [directory / name, *sorted(directory.glob(f"*/{name}"))]
    return places


def provider_library() -> Path:
    """Return the provider: $NEARMETAL_PROVIDER_LIB, the build's, or an installed one."""
    given = os.environ.get("NEARMETAL_PROVIDER_LIB")
    if given:
        if not Path(given).is_file():
            raise LaunchError(
                f"NEARMETAL_PROVIDER_LIB={given}: no such file",
                "give the path of libnearmetal-fi.so",
            )
        return Path(given).resolve()
    places = provider_places()
    for path in places:
        if path.is_file():
            return path.resolve()
    raise LaunchError(
        f"the provider is not built: looked for {places[0]} and below /usr/lib and /usr/local/lib",
        "run `make setup`, set NEARMETAL_PROVIDER_LIB, or run with --provider stock",
    )
