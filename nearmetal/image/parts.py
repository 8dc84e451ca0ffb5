# SPDX-License-Identifier: Apache-2.0
"""What a guest gets of nearmetal itself: the guest unit, the provider, the tools."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import ImageError
from nearmetal.core.process import find_program
from nearmetal.core.resources import REPOSITORY, share
from nearmetal.image.cpio import Item, link, regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GUEST_LIBRARY = "usr/lib/nearmetal"
GUEST_PROVIDER = "/usr/lib/nearmetal/libnearmetal-fi.so"
GUEST_INFO = "/usr/bin/nearmetal-info"

EXTRAS = ("compilers", "containers", "hypervisor", "slurm")
"""What an image may hold besides, each a list share/guest/packages-NAME.txt."""

_MAX_PART = 64 << 20
_TOOLS = ("nearmetal-info", "nearmetal-segment")


@dataclass(frozen=True)
class Parts:
    """Files by the place they get in the guest, and the first program of the built image."""

    items: tuple[Item, ...]
    first_program: bytes
    packages: tuple[str, ...]
    excludes: tuple[str, ...]
    system_setup: Path

    def digest(self) -> str:
        """Return a hash over everything that goes into the initial RAM disk from here."""
        digest = hashlib.sha256(self.first_program)
        for item in self.items:
            digest.update(f"{item.path} {item.mode:o} {len(item.content)}\n".encode())
            digest.update(item.content)
        return digest.hexdigest()


def parts_here(extras: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Parts:
    """Collect the parts from this installation; `extras`: names out of EXTRAS.

    Raises ImageError naming what is missing.
    """
    variables = os.environ if environ is None else environ
    guest = share("guest")
    if not guest.is_dir():
        raise ImageError(
            f"the guest unit is not installed: looked for {guest}",
            "run nearmetal from a checkout of its repository",
        )
    items = [
        regular(f"{GUEST_LIBRARY}/{path.name}", _read(path), path.stat().st_mode & 0o755)
        for path in sorted((guest / "unit").iterdir())
        if path.is_file() and path.name != "inittab"
    ]
    items += [
        regular("etc/inittab", _read(guest / "unit/inittab")),
        link(f"{GUEST_LIBRARY}/init", "/usr/bin/busybox"),
        link("usr/bin/nearmetal-guest", "../lib/nearmetal/nearmetal-guest"),
        regular(GUEST_PROVIDER[1:], _read(_provider(variables))),
    ]
    items += [regular(f"usr/bin/{name}", _read(_tool(name, variables)), 0o755) for name in _TOOLS]
    lists = ("packages", *(f"packages-{extra}" for extra in extras))
    packages = {name for stem in lists for name in listed(guest / f"{stem}.txt")}
    return Parts(
        tuple(items),
        _read(guest / "boot/init"),
        tuple(sorted(packages)),
        tuple(listed(guest / "excludes.txt")),
        guest / "system-setup.sh",
    )


def tool_here(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return one of nearmetal's own C tools: the build's, or an installed one."""
    return _tool(name, os.environ if environ is None else environ)


def listed(path: Path) -> list[str]:
    """Return the lines of a list without comments and blank lines."""
    lines = (line.split("#")[0].strip() for line in _read(path).decode().splitlines())
    return [line for line in lines if line]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_PART + 1)
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error.strerror}", "run `make setup`") from error
    if len(content) > _MAX_PART:
        raise ImageError(f"{path} is larger than anything a guest gets of nearmetal")
    return content


def _first(places: Iterable[Path | None], what: str) -> Path:
    for place in places:
        if place is not None and place.is_file():
            return place
    raise ImageError(f"{what} is not built", "run `make setup`")


def _provider(variables: Mapping[str, str]) -> Path:
    given = variables.get("NEARMETAL_PROVIDER_LIB")
    if given:
        return _first([Path(given)], f"{given} (NEARMETAL_PROVIDER_LIB)")
    installed = sorted(
        path
        for prefix in (Path("/usr/local"), Path("/usr"))
        for path in prefix.glob("lib/**/nearmetal/libnearmetal-fi.so")
    )
    return _first(
        [REPOSITORY / "build/c/src/provider/libnearmetal-fi.so", *installed], "libnearmetal-fi.so"
    )


def _tool(name: str, variables: Mapping[str, str]) -> Path:
    given = variables.get("NEARMETAL_INFO") if name == "nearmetal-info" else None
    if given:
        return _first([Path(given)], f"{given} (NEARMETAL_INFO)")
    return _first([REPOSITORY / "build/c/src/tools" / name, find_program(name)], name)
