# SPDX-License-Identifier: Apache-2.0
"""The built image as one disk that boots by itself, for clouds where a machine gets only a disk.

    sector 0        GRUB's first sector, and the table of partitions
    sector 1        the rest of GRUB
    partition 1     a tar archive, which GRUB reads: kernel, initial RAM disk, menu
    partition 2     the root file system, as it is in the cache

It needs no root and no other program. Equal images give equal bytes.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from nearmetal.core.errors import ImageError
from nearmetal.core.files import replacing
from nearmetal.image.cache import Image, read_limited
from nearmetal.image.parts import GuestFile, regular, tar_of
from nearmetal.image.system import LOADER, LOADER_REST

_SECTOR, _ALIGN = 512, 1 << 20
_CODE = 440
"""Bytes of the first sector that are the boot loader's; the identity of the disk follows."""

_TAR, _LINUX = 0xDA, 0x83
"""Types of partitions: data without a file system, and Linux."""

_MOST = 64 << 20


def write_disk(path: Path, image: Image) -> None:
    """Write the disk of an image, whole or not at all; raises ImageError."""
    first, rest = (_loader(image, name) for name in (LOADER, LOADER_REST))
    if len(first) != _SECTOR or _SECTOR + len(rest) > _ALIGN:
        raise ImageError("the boot loader of the system has an unexpected size")
    identity = image.key[:8]
    begin = tar_of(_boot_files(image, identity))
    root = image.root.stat().st_size
    second = _ALIGN + _aligned(len(begin))
    table = _entry(_ALIGN, len(begin), _TAR, boots=True) + _entry(second, root, _LINUX)
    head = first[:_CODE] + int(identity, 16).to_bytes(4, "little") + bytes(2)
    try:
        with replacing(path, shared=True) as stream, image.root.open("rb") as squashed:
            stream.write(head + table.ljust(64, b"\0") + b"\x55\xaa" + rest)
            stream.seek(_ALIGN)
            stream.write(begin)
            stream.seek(second)
            shutil.copyfileobj(squashed, stream, _ALIGN)
            stream.truncate(second + _aligned(root))
    except OSError as error:
        raise ImageError(f"cannot write {path}: {error.strerror}") from error


def _loader(image: Image, name: str) -> bytes:
    return read_limited(image.kernel.parent / name, _MOST, "build the image again with --disk")


def _boot_files(image: Image, identity: str) -> list[GuestFile]:
    """Return what GRUB reads. The root is the second partition of the disk with this identity."""
    menu = f"linux /vmlinuz {image.append} nearmetal.root={identity}\ninitrd /initrd\nboot\n"
    return [
        regular("grub.cfg", menu.encode()),
        regular("vmlinuz", read_limited(image.efi_kernel, _MOST)),
        regular("initrd", read_limited(image.initrd, _MOST)),
    ]


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _entry(begin: int, size: int, kind: int, *, boots: bool = False) -> bytes:
    """Return an entry of the table, which counts sectors; heads and cylinders are unused."""
    sectors = -(-size // _SECTOR)
    active = 0x80 if boots else 0
    return struct.pack("<B3sB3sII", active, bytes(3), kind, bytes(3), begin // _SECTOR, sectors)
