# SPDX-License-Identifier: Apache-2.0
"""What a system and an image consist of, as recorded beside them, and whether it still holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nearmetal.core.errors import ImageError

_MAX_MANIFEST = 4 << 20
_CHUNK = 1 << 20

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
FileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Text = Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,256}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, strict=True)


class Package(_Model):
    """One Debian package that went into a system."""

    name: Text
    version: Text
    architecture: Text
    sha256: Sha256


class FileRecord(_Model):
    """One file beside the manifest."""

    name: FileName
    size: Annotated[int, Field(ge=0, le=1 << 40)]
    sha256: Sha256


class _Manifest(_Model):
    version: Literal[1] = 1
    key: Key
    files: list[FileRecord]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest of a folder; raises ImageError when it is missing or damaged."""
        path = folder / MANIFEST
        try:
            with path.open("rb") as stream:
                raw = stream.read(_MAX_MANIFEST + 1)
        except OSError as error:
            raise ImageError(f"cannot read {path}: {error.strerror}", _REBUILD) from error
        if len(raw) > _MAX_MANIFEST:
            raise ImageError(f"{path} is too large for a manifest", _REBUILD)
        try:
            manifest = cls.model_validate_json(raw)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            where = ".".join(map(str, detail["loc"])) or "the document"
            raise ImageError(f"{path} is damaged: {where}: {detail['msg']}", _REBUILD) from error
        if manifest.key != folder.name:
            raise ImageError(f"{path} belongs to {manifest.key}", _REBUILD)
        return manifest

    def save(self, folder: Path) -> None:
        """Write the manifest."""
        (folder / MANIFEST).write_text(self.model_dump_json(indent=1) + "\n")

    def verify(self, folder: Path) -> None:
        """Compare every file with its record; raises ImageError naming the first that differs."""
        for record in self.files:
            path = folder / record.name
            try:
                size = path.stat().st_size
                same = size == record.size and hash_file(path) == record.sha256
            except OSError as error:
                raise ImageError(f"cannot read {path}: {error.strerror}", _REBUILD) from error
            if not same:
                raise ImageError(
                    f"{path} is not what its manifest says: it was changed or damaged", _REBUILD
                )


MANIFEST = "manifest.json"
_REBUILD = "run `nearmetal image build`, which makes it anew"


class SystemManifest(_Manifest):
    """Kernel, root file system and what the initial RAM disk takes from them."""

    suite: Text
    kernel_release: Text
    packages: list[Package]


class ImageManifest(_Manifest):
    """The initial RAM disk with nearmetal in it, over a system."""

    system: Key
    append: Text = Field(description="arguments for the kernel")


@dataclass(frozen=True)
class Image:
    """A built image, ready to boot: what a machine is given. All files are only read."""

    key: str
    kernel: Path
    initrd: Path
    root: Path
    append: str


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def record(path: Path) -> FileRecord:
    """Return the record of a file."""
    return FileRecord(name=path.name, size=path.stat().st_size, sha256=hash_file(path))
