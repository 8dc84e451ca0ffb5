# SPDX-License-Identifier: Apache-2.0
"""The cache of built systems and images, each in a folder named by its key, with a manifest.

    systems/KEY/   manifest.json vmlinux root.squashfs busybox NN-module.ko ...
    images/KEY/    manifest.json initrd
    fresh/         unfinished folders; the holder of the lock owns them
    lock

A folder appears under its name when it is complete, by a rename, and is never changed after that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from nearmetal.config.model import Model
from nearmetal.core.errors import ImageError
from nearmetal.core.files import new_directory
from nearmetal.core.lock import locked

_MANIFEST = "manifest.json"
_MAX_MANIFEST = 4 << 20
_REBUILD = "run `nearmetal image build`, which recreates it"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
FileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Text = Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,256}$")]


class Package(Model):
    """One Debian package of a system."""

    name: Text
    version: Text
    architecture: Text
    sha256: Sha256


class FileRecord(Model):
    """One file beside the manifest."""

    name: FileName
    size: Annotated[int, Field(ge=0, le=1 << 40)]
    sha256: Sha256


class _Manifest(Model):
    version: Literal[1] = 1
    key: Key
    files: list[FileRecord]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest of a folder; raises ImageError if it is missing or damaged."""
        path = folder / _MANIFEST
        try:
            manifest = cls.model_validate_json(read_limited(path, _MAX_MANIFEST, _REBUILD))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            where = ".".join(map(str, detail["loc"])) or "the document"
            raise ImageError(f"{path} is damaged: {where}: {detail['msg']}", _REBUILD) from error
        if manifest.key != folder.name:
            raise ImageError(f"{path} belongs to {manifest.key}", _REBUILD)
        return manifest

    def save(self, folder: Path) -> None:
        """Write the manifest."""
        (folder / _MANIFEST).write_text(self.model_dump_json(indent=1) + "\n")

    def verify(self, folder: Path) -> None:
        """Compare every file with its record; raises ImageError that names the first difference."""
        for record in self.files:
            path = folder / record.name
            try:
                size = path.stat().st_size
                same = size == record.size and hash_file(path) == record.sha256
            except OSError as error:
                raise ImageError(f"cannot read {path}: {error.strerror}", _REBUILD) from error
            if not same:
                raise ImageError(f"{path} does not match its manifest: it is damaged", _REBUILD)


class SystemManifest(_Manifest):
    """The kernel, the root file system, and the files for the initial RAM disk."""

    suite: Text
    kernel_release: Text
    packages: list[Package]


class ImageManifest(_Manifest):
    """The initial RAM disk with nearmetal in it, over a system."""

    system: Key
    append: Text = Field(description="arguments for the kernel")


@dataclass(frozen=True)
class Image:
    """A built image, ready to boot. Machines only read its files."""

    key: str
    kernel: Path
    efi_kernel: Path
    initrd: Path
    root: Path
    append: str


def read_limited(path: Path, most: int, hint: str = "") -> bytes:
    """Return a file's content; raises ImageError with the hint if it is missing or too large."""
    try:
        with path.open("rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error.strerror}", hint) from error
    if len(content) > most:
        raise ImageError(f"{path} is larger than {most >> 20} MiB", hint)
    return content


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def record(path: Path) -> FileRecord:
    """Return the record of a file."""
    return FileRecord(name=path.name, size=path.stat().st_size, sha256=hash_file(path))


def cache_directory(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Return $NEARMETAL_CACHE_DIR, else /var/cache/nearmetal for root, else the user's own."""
    variables = os.environ if environ is None else environ
    given = variables.get("NEARMETAL_CACHE_DIR")
    if given:
        return Path(given).absolute()
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/cache/nearmetal")
    base = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "nearmetal"


@dataclass(frozen=True)
class CachedImage:
    """One image in the cache. `problem`: the reason why it is unusable; empty if it is sound."""

    key: str
    nr_bytes: int
    made: float
    problem: str


@dataclass(frozen=True)
class Cache:
    """The cache directory. Errors are ImageError."""

    root: Path

    @property
    def systems(self) -> Path:
        """Where systems are."""
        return self.root / "systems"

    @property
    def images(self) -> Path:
        """Where images are."""
        return self.root / "images"

    @contextlib.contextmanager
    def locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the cache alone; `waiting` is called once if another process holds it.

        The leftovers of a killed build are removed first.
        """
        with contextlib.ExitStack() as stack:
            try:
                for place in (self.root, self.systems, self.images):
                    place.mkdir(parents=True, exist_ok=True)
                lock = locked(self.root / "lock", "the image cache", wait_s=None, waiting=waiting)
                stack.enter_context(lock)
            except OSError as error:
                raise ImageError(
                    f"cannot use the image cache {self.root}: {error.strerror}",
                    "set NEARMETAL_CACHE_DIR to a directory of yours",
                ) from error
            self._sweep()
            yield

    def _sweep(self) -> None:
        shutil.rmtree(self._fresh, ignore_errors=True)

    @property
    def _fresh(self) -> Path:
        return self.root / "fresh"

    @contextlib.contextmanager
    def fresh(self, place: Path, key: str) -> Iterator[Path]:
        """Yield a new folder, and put it at `place/key` when the block ends well."""
        self._fresh.mkdir(exist_ok=True)
        with new_directory(place / key, self._fresh / key, mode=0o755) as folder:
            yield folder
            self.drop(place / key)

    def entries(self) -> list[CachedImage]:
        """Return the images, oldest first; checks manifests and sizes, not content."""
        found = []
        for folder in _folders(self.images):
            problem, nr_bytes = "", _size(folder)
            try:
                system = self.systems / ImageManifest.load(folder).system
                nr_bytes += _size(system)
                if not system.is_dir():
                    problem = f"its system {system.name} is missing"
            except ImageError as error:
                problem = error.message
            found.append(CachedImage(folder.name, nr_bytes, folder.stat().st_mtime, problem))
        return sorted(found, key=lambda entry: entry.made)

    def drop(self, folder: Path) -> bool:
        """Take a folder out of the cache at once, then remove it; False if there was none."""
        self._fresh.mkdir(exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix="old.", dir=self._fresh))
        try:
            folder.rename(aside / folder.name)
        except FileNotFoundError:
            return False
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return True

    def remove(self, keys: list[str]) -> list[str]:
        """Remove images, and systems that no image needs any more; return the removed folders."""
        for key in keys:
            if not (self.images / key).is_dir():
                known = ", ".join(entry.key for entry in self.entries()) or "none"
                raise ImageError(f"no image {key!r} in {self.root}", f"there are: {known}")
        gone = [f"images/{key}" for key in keys if self.drop(self.images / key)]
        needed = set()
        for folder in _folders(self.images):
            with contextlib.suppress(ImageError):
                needed.add(ImageManifest.load(folder).system)
        idle = [folder for folder in _folders(self.systems) if folder.name not in needed]
        gone += [f"systems/{folder.name}" for folder in idle if self.drop(folder)]
        self._sweep()
        return gone


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.glob("*") if path.is_dir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())
