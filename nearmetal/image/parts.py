# SPDX-License-Identifier: Apache-2.0
"""The files that a guest gets of nearmetal: the guest unit, the provider, the tools.

The built image gets them in an initial RAM disk, in the kernel's "newc" cpio format. Equal files
give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import ImageError
from nearmetal.core.resources import (
    REMEDY,
    program_for_mpi,
    provider_library,
    share,
    tool,
)
from nearmetal.image.cache import read_limited

GUEST_LIBRARY = "usr/lib/nearmetal"
GUEST_PROVIDER = "/usr/lib/nearmetal/libnearmetal-fi.so"
GUEST_INFO = "/usr/bin/nearmetal-info"

GUEST_AGENT = "/usr/lib/nearmetal/agent"
"""The remote shell of MPI launchers, from which the guest unit makes the place for jobs."""

EXTRAS = ("compilers", "containers", "hypervisor", "slurm")
"""Optional content of an image, each a list share/guest/packages-NAME.txt."""

APPLIANCES = {"mpi": (), "kvm-host": ("hypervisor",)}
"""Images for one purpose, with the optional content of each. A login says what can be run."""

_BENCHMARKS = ("mpi_hello", "mpi_patterns", "mpi_window")

DISK = "disk"
"""The list of what an image needs to boot from a disk of its own."""

_BUILT_IMAGE_ONLY = (
    "etc/inittab",
    "usr/lib/nearmetal/init",
    "usr/lib/nearmetal/start",
    "usr/lib/nearmetal/serve",
)
_TRAILER = "TRAILER!!!"
_ALIGN = 4
_MAX_PART = 64 << 20
_TOOLS = ("nearmetal-info", "nearmetal-segment")


@dataclass(frozen=True)
class GuestFile:
    """One file for a guest, owned by root: path without a leading slash, mode with its type."""

    path: str
    mode: int
    content: bytes = b""


def regular(path: str, content: bytes, permissions: int = 0o644) -> GuestFile:
    """Return a file."""
    return GuestFile(path, stat.S_IFREG | permissions, content)


def link(path: str, target: str) -> GuestFile:
    """Return a symbolic link."""
    return GuestFile(path, stat.S_IFLNK | 0o777, target.encode())


@dataclass(frozen=True)
class Parts:
    """Files by the place they get in the guest, and the first program of the built image."""

    items: tuple[GuestFile, ...]
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


def parts_here(extras: Iterable[str] = (), appliance: str | None = None) -> Parts:
    """Collect the parts from this installation; `extras`: names out of EXTRAS, or DISK.

    `appliance`: one of APPLIANCES.

    Raises ImageError or LaunchError that names a missing part.
    """
    guest = share("guest")
    if not guest.is_dir():
        raise ImageError(
            f"the guest unit is not installed: looked for {guest}",
            REMEDY,
        )
    items = [
        regular(f"{GUEST_LIBRARY}/{path.name}", _read(path), path.stat().st_mode & 0o755)
        for path in sorted((guest / "unit").iterdir())
        if path.is_file() and path.name != "inittab"
    ]
    inittab = _read(guest / "unit/inittab")
    items += [
        link(f"{GUEST_LIBRARY}/init", "/usr/bin/busybox"),
        link("usr/bin/nearmetal-guest", "../lib/nearmetal/nearmetal-guest"),
        regular(GUEST_PROVIDER[1:], _read(provider_library())),
    ]
    items += [regular(f"usr/bin/{name}", _read(tool(name)), 0o755) for name in _TOOLS]
    wanted = {*extras}
    if appliance is not None:
        wanted |= {*APPLIANCES[appliance]}
        items += _appliance(guest, appliance)
        if service := _service(guest, appliance):
            inittab += f"::respawn:/{service.path}\n".encode()
            items.append(service)
    items.append(regular("etc/inittab", inittab))
    lists = ("packages", *(f"packages-{extra}" for extra in sorted(wanted)))
    packages = {name for stem in lists for name in listed(guest / f"{stem}.txt")}
    return Parts(
        tuple(items),
        _read(guest / "boot/init"),
        tuple(sorted(packages)),
        tuple(listed(guest / "excludes.txt")),
        guest / "system-setup.sh",
    )


def _appliance(guest: Path, name: str) -> list[GuestFile]:
    """Return the greeting of an appliance, and its benchmarks for Open MPI."""
    items = [regular("etc/motd", _read(guest / "appliances" / f"{name}.txt"))]
    if name == "mpi":
        items += [
            regular(f"usr/bin/{file}", _read(program_for_mpi(file, "openmpi5", "openmpi")), 0o755)
            for file in _BENCHMARKS
        ]
    return items


def _service(guest: Path, name: str) -> GuestFile | None:
    """Return the program that runs all the time in machines of an appliance, if it has one."""
    path = guest / "appliances" / f"{name}.sh"
    return regular(f"{GUEST_LIBRARY}/{name}", _read(path), 0o755) if path.exists() else None


def listed(path: Path) -> list[str]:
    """Return the lines of a list without comments and blank lines."""
    lines = (line.split("#")[0].strip() for line in _read(path).decode().splitlines())
    return [line for line in lines if line]


def _read(path: Path) -> bytes:
    return read_limited(path, _MAX_PART, REMEDY)


def with_directories(items: Iterable[GuestFile]) -> list[GuestFile]:
    """Return the items sorted, with every directory that they need before them."""
    files = {item.path: item for item in items}
    places = {
        "/".join(parts[:depth])
        for parts in (path.split("/") for path in files)
        for depth in range(1, len(parts))
    }
    directories = {place: GuestFile(place, stat.S_IFDIR | 0o755) for place in places}
    return [(directories | files)[path] for path in sorted({*directories, *files})]


def foreign_tar(parts: Parts) -> bytes:
    """Return the parts a foreign image needs, as a tar archive; equal parts give equal bytes."""
    return tar_of(item for item in parts.items if item.path not in _BUILT_IMAGE_ONLY)


def tar_of(items: Iterable[GuestFile]) -> bytes:
    """Return files as a tar archive; equal files give equal bytes."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for item in items:
            member = tarfile.TarInfo(item.path)
            member.mode = stat.S_IMODE(item.mode)
            if stat.S_ISLNK(item.mode):
                member.type, member.linkname = tarfile.SYMTYPE, item.content.decode()
                archive.addfile(member)
            else:
                member.size = len(item.content)
                archive.addfile(member, io.BytesIO(item.content))
    return output.getvalue()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGN)


def _entry(number: int, item: GuestFile) -> bytes:
    name = item.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(item.mode) else 1
    fields = (number, item.mode, 0, 0, links, 0, len(item.content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(item.content)


def archive(items: Iterable[GuestFile]) -> bytes:
    """Return the archive; times are zero and inodes are counted, so no byte depends on the day."""
    entries = [_entry(number, item) for number, item in enumerate(with_directories(items), 1)]
    return b"".join([*entries, _entry(0, GuestFile(_TRAILER, 0))])
