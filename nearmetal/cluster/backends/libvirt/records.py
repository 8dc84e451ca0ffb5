# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a cluster here: who it is, and what was begun, so that it can be removed.

Whether a resource is sound is asked of its host; records only say where to look. No secrets.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer

from nearmetal.cluster.backends.libvirt.plan import MODELS
from nearmetal.cluster.resource import Key, Kind, Resource, from_text
from nearmetal.image.seed import SeedInterface

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file of mode 0600 so that it is there entirely or not at all."""
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.rename(path)


class Notes(BaseModel):
    """Facts about a resource that the spec and the plan do not have."""

    model_config = ConfigDict(frozen=True)

    segment: str = ""
    """Path of a host's segment."""
    size: int | None = None
    """Bytes of the segment; None where it was not made."""
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
class Record:
    """One resource as it was begun, and notes of the backend about it."""

    item: Resource
    notes: Notes


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
        """Return what tells this cluster from every other of its name; None: it never began."""
        try:
            text = (self.directory / "identity").read_text(encoding="ascii").strip()
            return str(uuid.UUID(text))
        except (OSError, ValueError):
            return None

    def begin(self) -> str:
        """Return the identity, made when there is none."""
        known = self.identity()
        if known is None:
            self._resources.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = str(uuid.uuid4())
            write_whole(self.directory / "identity", known + "\n")
        self._resources.mkdir(mode=0o700, exist_ok=True)
        return known

    def write(self, item: Resource, notes: Notes | None = None) -> None:
        """Record a resource, in place of what was recorded of it."""
        kept = (notes or Notes()).model_dump(mode="json", exclude_defaults=True)
        data = {"attributes": dict(item.attributes), "notes": kept}
        write_whole(self._path(item.key), json.dumps(data, indent=1) + "\n")

    def forget(self, key: Key) -> None:
        """Remove a record; no error when there is none."""
        self._path(key).unlink(missing_ok=True)

    def read(self, key: Key) -> Record | None:
        """Return one record; None when there is none that can be read."""
        try:
            data: Any = json.loads(self._path(key).read_text(encoding="utf-8"))
            attributes = {str(name): str(value) for name, value in data["attributes"].items()}
            notes = Notes.model_validate(data["notes"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return Record(Resource(key, MODELS[key.kind].read(attributes)), notes)

    def all(self) -> list[Record]:
        """Return every record that can be read."""
        found = []
        for path in sorted(self._resources.glob("*.json")) if self._resources.is_dir() else ():
            kind, _, name = path.stem.partition(".")
            if kind in {k.value for k in Kind}:
                record = self.read(Key(Kind(kind), name))
                if record is not None:
                    found.append(record)
        return found
