# SPDX-License-Identifier: Apache-2.0
"""How objects of a cluster are known: only what carries the mark of its record is ever removed.

A mark is random and made before the first object. Objects of Neutron carry it in their description and
servers in their metadata, both from the request that makes them on. Server groups have neither, so it
is in their name.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.cluster.store import SPEC
from nearmetal.core.errors import StateError
from nearmetal.core.files import read_regular, replace_file

_FILE = "mark"
_BYTES = 12
_MAX_FILE = 1024
_RESTORE = "restore it: without it, nearmetal does not know which objects are its own"

MARK, CLUSTER, NODE = "nearmetal.mark", "nearmetal.cluster", "nearmetal.node"
HOST, SLOTS, IMAGE = "nearmetal.host", "nearmetal.slots", "nearmetal.image"
ACCESS, RESERVATION = "nearmetal.access", "nearmetal.reservation"
"""Keys of the metadata of servers."""

IMAGE_MARK, IMAGE_NAME = "nearmetal_mark", "nearmetal_image"
"""Keys of the properties of uploaded images. Nova copies them into its own records of servers."""


@dataclass(frozen=True)
class ClusterMark:
    """The mark of one cluster. `home`: the project and region where its objects are."""

    token: str
    home: str

    def text(self, *words: str) -> str:
        """Return the description of an object."""
        return " ".join(("nearmetal", self.token, *words))

    def words(self, item: Any) -> tuple[str, ...] | None:
        """Return the words in the description of an object; None: it is not of this cluster."""
        found = str(getattr(item, "description", None) or "").split()
        return tuple(found[2:]) if found[:2] == ["nearmetal", self.token] else None

    def group(self, name: str) -> str:
        """Return the name of a server group in the cloud."""
        return f"nearmetal.{self.token}.{name}"

    def group_name(self, item: Any) -> str | None:
        """Return the name of a server group in the cluster; None: it is not of this cluster."""
        prefix, name = self.group(""), str(item.name or "")
        return name.removeprefix(prefix) if name.startswith(prefix) else None

    def image_name(self, image: Any) -> str | None:
        """Return the name of an uploaded image; None: it is not of this cluster."""
        properties = image.properties or {}
        if properties.get(IMAGE_MARK) != self.token:
            return None
        return str(properties.get(IMAGE_NAME, ""))

    def node(self, server: Any) -> str | None:
        """Return the node of a server; None: it is not of this cluster."""
        metadata = server.metadata or {}
        return str(metadata.get(NODE, "")) if metadata.get(MARK) == self.token else None


def read_mark(directory: Path) -> ClusterMark | None:
    """Return the mark of a cluster's directory; None: nothing was made yet."""
    path = directory / _FILE
    try:
        text = read_regular(path, _MAX_FILE).decode("utf-8", "replace")
    except FileNotFoundError:
        if (directory / SPEC).exists():
            # The record of a spec comes after the mark.
            raise StateError(f"{path} is missing", _RESTORE) from None
        return None
    mark = mark_of(text)
    if mark is None:
        raise StateError(f"{path} is damaged", _RESTORE)
    return mark


def mark_of(text: str) -> ClusterMark | None:
    """Return the mark in the text of a file or record; None: it is damaged. Pure."""
    token, _, home = text.removesuffix("\n").partition("\n")
    if not re.fullmatch(rf"[0-9a-f]{{{2 * _BYTES}}}", token) or not home.isprintable():
        return None
    return ClusterMark(token, home)


def make_mark(directory: Path, home: str) -> ClusterMark:
    """Return the mark of a cluster's directory; a new one is on the disk before any object is made."""
    found = read_mark(directory)
    if found is None:
        found = ClusterMark(secrets.token_hex(_BYTES), home)
        keep_mark(directory, found)
    return found


def keep_mark(directory: Path, mark: ClusterMark) -> None:
    """Write the mark of a cluster into its directory, where it has none."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(directory / _FILE, f"{mark.token}\n{mark.home}\n")
