# SPDX-License-Identifier: Apache-2.0
"""An initial RAM disk: the kernel's "newc" cpio format. Pure; equal entries give equal bytes."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRAILER = "TRAILER!!!"
_ALIGN = 4


@dataclass(frozen=True)
class Item:
    """One file for a guest, owned by root: path without a leading slash, mode with its type."""

    path: str
    mode: int
    content: bytes = b""


def regular(path: str, content: bytes, permissions: int = 0o644) -> Item:
    """Return a file."""
    return Item(path, stat.S_IFREG | permissions, content)


def link(path: str, target: str) -> Item:
    """Return a symbolic link."""
    return Item(path, stat.S_IFLNK | 0o777, target.encode())


def with_directories(items: Iterable[Item]) -> list[Item]:
    """Return the items sorted, with every directory that they need before them."""
    files = {item.path: item for item in items}
    places = {
        "/".join(parts[:depth])
        for parts in (path.split("/") for path in files)
        for depth in range(1, len(parts))
    }
    directories = {place: Item(place, stat.S_IFDIR | 0o755) for place in places}
    return [(directories | files)[path] for path in sorted({*directories, *files})]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGN)


def _entry(number: int, item: Item) -> bytes:
    name = item.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(item.mode) else 1
    fields = (number, item.mode, 0, 0, links, 0, len(item.content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(item.content)


def archive(items: Iterable[Item]) -> bytes:
    """Return the archive; times are zero and inodes are counted, so nothing depends on the day."""
    entries = [_entry(number, item) for number, item in enumerate(with_directories(items), 1)]
    return b"".join([*entries, _entry(0, Item(_TRAILER, 0))])
