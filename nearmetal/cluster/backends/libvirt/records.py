# SPDX-License-Identifier: Apache-2.0
"""Records on this machine: a cluster's identity and resources.

Each host says whether a resource is sound; records only say where it is. They hold no secrets.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainSerializer

from nearmetal.cluster.backends.libvirt.values import MODELS
from nearmetal.cluster.resource import Key, Kind, Resource, from_text
from nearmetal.core.files import read_json, read_regular, replace_file
from nearmetal.image.seed import SeedInterface

_MAX_TEXT = 1 << 16


class RecordNotes(BaseModel):
    """Facts about a resource that neither the spec nor the plan has."""

    model_config = ConfigDict(frozen=True)

    segment: str = ""
    """Path of a host's segment."""
    size: int | None = None
    """Bytes of the segment; None if it was not made."""
    path: str = ""
    """Path of a disk."""
    started: float | None = None
    """Unix time of a node's start."""
    seed: str = ""
    """Digest of a node's seed."""
    vf: Annotated[
        SeedInterface | None,
        from_text(lambda text: SeedInterface.model_validate_json(text) if text else None),
        PlainSerializer(lambda value: "" if value is None else value.model_dump_json()),
    ] = None
    """The interface of a node's virtual function."""


@dataclass(frozen=True)
class ResourceRecord:
    """One resource that was begun, and notes of the backend about it."""

    item: Resource
    notes: RecordNotes


@dataclass(frozen=True)
class Records:
    """The records in a cluster's directory."""

    directory: Path

    @property
    def _resources(self) -> Path:
        return self.directory / "resources"

    def _path(self, key: Key) -> Path:
        return self._resources / f"{key.kind.value}.{key.name}.json"

    def identity(self) -> str | None:
        """Return the UUID of this cluster, which no other of its name has; None: it never began."""
        try:
            text = read_regular(self.directory / "identity", _MAX_TEXT).decode("ascii").strip()
            return str(uuid.UUID(text))
        except (OSError, ValueError):
            return None

    def begin(self) -> str:
        """Return the identity, which is made if there is none."""
        self._resources.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = self.identity()
        if known is None:
            known = str(uuid.uuid4())
            replace_file(self.directory / "identity", known + "\n")
        return known

    def write(self, item: Resource, notes: RecordNotes | None = None) -> None:
        """Record a resource, in place of its earlier record."""
        kept = (notes or RecordNotes()).model_dump(mode="json", exclude_defaults=True)
        data = {"attributes": dict(item.attributes), "notes": kept}
        replace_file(self._path(item.key), json.dumps(data, indent=1) + "\n")

    def forget(self, key: Key) -> None:
        """Remove a record; no error if there is none."""
        self._path(key).unlink(missing_ok=True)

    def read(self, key: Key) -> ResourceRecord | None:
        """Return one record; None if there is none that is readable."""
        data = read_json(self._path(key))
        try:
            attributes = {str(name): str(value) for name, value in data["attributes"].items()}
            notes = RecordNotes.model_validate(data["notes"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return ResourceRecord(Resource(key, MODELS[key.kind].read(attributes)), notes)

    def all(self) -> list[ResourceRecord]:
        """Return every readable record."""
        names = (path.stem.partition(".") for path in sorted(self._resources.glob("*.json")))
        kinds = {kind.value: kind for kind in Kind}
        keys = (Key(kinds[kind], name) for kind, _, name in names if kind in kinds)
        return [record for key in keys if (record := self.read(key)) is not None]
