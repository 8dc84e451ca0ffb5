# SPDX-License-Identifier: Apache-2.0
"""Where built systems and images are kept, each in a folder named by its key.

    systems/KEY/   manifest.json vmlinux root.squashfs busybox NN-module.ko ...
    images/KEY/    manifest.json initrd
    fresh/         what is being built; anything there belongs to whoever holds the lock
    lock

A folder appears under its name when it is complete, by a rename, and is never changed after that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import ImageError
from nearmetal.image.manifest import ImageManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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
class Entry:
    """One image in the cache. `problem`: why it cannot be used; empty when it can."""

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
        """Hold the cache alone; `waiting` is called once when somebody else holds it.

        What a killed build left behind is removed first.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for place in (self.systems, self.images):
                place.mkdir(exist_ok=True)
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ImageError(
                f"cannot use the image cache {self.root}: {error.strerror}",
                "set NEARMETAL_CACHE_DIR to a directory of yours",
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._sweep()
            yield
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        shutil.rmtree(self.root / "fresh", ignore_errors=True)

    @contextlib.contextmanager
    def fresh(self, place: Path, key: str) -> Iterator[Path]:
        """Give a new folder, and put it at `place/key` when the block ends well."""
        fresh = self.root / "fresh"
        fresh.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=fresh))
        folder.chmod(0o755)
        try:
            yield folder
            for path in folder.iterdir():
                _sync(path)
            self.drop(place / key)
            folder.rename(place / key)
            _sync(place)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def entries(self) -> list[Entry]:
        """Return what is in the cache, oldest first; checks manifests and sizes, not content."""
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
            found.append(Entry(folder.name, nr_bytes, folder.stat().st_mtime, problem))
        return sorted(found, key=lambda entry: entry.made)

    def drop(self, folder: Path) -> bool:
        """Take a folder out of the cache at once, then remove it; False when there was none."""
        return _discard(folder, self.root / "fresh")

    def remove(self, keys: list[str]) -> list[str]:
        """Remove images, and systems that no image needs any more; returns what went."""
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


def _discard(folder: Path, fresh: Path) -> bool:
    fresh.mkdir(exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="old.", dir=fresh))
    try:
        folder.rename(aside / folder.name)
    except FileNotFoundError:
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.glob("*") if path.is_dir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
