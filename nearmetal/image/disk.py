# SPDX-License-Identifier: Apache-2.0
"""A file with the disk of a machine, qcow2 or raw: its content, and what makes it unusable."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.memory import Memory
from nearmetal.core.process import Command, Runner
from nearmetal.image.cache import cache_directory

FORMATS = ("qcow2", "raw")
_CHECK_S = 600.0
_SIZE = 2
"""Index of the size in the state of a file."""

_SECTOR, _BOOT_MARK = 512, b"\x55\xaa"
_KEPT = 100
_REFUSED = {
    "backing-filename": ("has a backing file", "flatten it: qemu-img convert -O qcow2 {} ..."),
    "encrypted": ("is encrypted", "decrypt it: qemu-img convert -O qcow2 {} ..."),
    "data-file": ("keeps its data in another file", "join it: qemu-img convert -O qcow2 {} ..."),
}
"""Properties of an image whose machines would see more, or less, than its content."""


@dataclass(frozen=True)
class Info:
    """The format of an image file. `cluster`: bytes of the pieces of a qcow2 file.

    `size`: bytes of the disk that a machine sees.
    """

    form: str
    cluster: int
    size: int = 0


def damage(text: str, words: str, size: int, cluster: int) -> str:
    """Return the damage that `qemu-img check` found in a file of `size` bytes, or "". Pure.

    qemu-img takes missing bytes at the end for zeros, so it accepts an incomplete download.
    """
    try:
        data = json.loads(text)
        end = int(data["image-end-offset"])
        found = {name: int(data.get(name, 0)) for name in ("corruptions", "check-errors")}
    except (ValueError, KeyError, TypeError):
        return next((line.strip() for line in words.split("\n") if line.strip()), "")
    if any(found.values()):
        return ", ".join(f"{count} {name}" for name, count in found.items() if count)
    if end >= size + cluster:
        return f"its content ends at byte {end}, the file at {size}"
    return ""


def read_info(text: str, path: str) -> Info:
    """Return the format in the JSON of `qemu-img info`; raises BackendError. Pure."""
    try:
        data = json.loads(text)
        sizes = (int(data.get(name) or 0) for name in ("cluster-size", "virtual-size"))
        found = Info(str(data["format"]), *sizes)
        special = dict(data.get("format-specific") or {})
        inner = dict(special.get("data") or {})
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"image {path}: qemu-img does not report its format") from error
    if found.form not in FORMATS:
        raise BackendError(
            f"image {path}: its format is {found.form}",
            f"convert it: qemu-img convert -O qcow2 {path} ...",
        )
    for name, (what, hint) in _REFUSED.items():
        if data.get(name) or inner.get(name):
            raise BackendError(f"image {path}: it {what}", hint.format(path))
    return found


def known_digests() -> Path:
    """Return the file of known digests."""
    return cache_directory() / "cloud-images.json"


class DiskFile:
    """The image at a path on this machine. Errors are BackendError."""

    path: str
    runner: Runner
    memory: Path
    """File of known digests, because reading gigabytes for every plan would be slow."""

    def fault(self, what: str, hint: str = "") -> BackendError:
        """Return an error that names the file."""
        return BackendError(f"image {self.path}: {what}", hint)

    def content(self) -> str:
        """Return the SHA-256 of the image."""
        state, memory = self._state(), Memory(self.memory, _KEPT)
        known = memory.recall(self.path) or [None]
        if known[:-1] == state and isinstance(known[-1], str):
            return known[-1]
        try:
            with Path(self.path).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise self.fault(f"{error.strerror}") from error
        if self._state() != state:
            raise self.fault("another program is writing it", "wait for that, then try again")
        memory.remember(self.path, [*state, found])
        return found

    def _state(self) -> list[int]:
        """Return numbers that change when a file is written or replaced."""
        try:
            stat = Path(self.path).stat()
        except OSError as error:
            hint = "give the path of an existing cloud image, or default"
            raise self.fault(f"{error.strerror}", hint) from error
        if not self.ready():
            raise self.fault("it is not a regular file", "give the path of a cloud image")
        return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]

    def checked(self) -> Info:
        """Return its format; raises BackendError if machines cannot boot it."""
        found = self.info()
        if found.form == "raw":
            self._check_raw()
        else:
            self._check_qcow2(found.cluster)
        return found

    def _check_qcow2(self, cluster: int) -> None:
        argv = self._qemu_img("check", "--format", "qcow2", "--output=json")
        done = self.runner.run(argv, timeout_s=_CHECK_S)
        why = damage(done.text, done.error_tail, self._state()[_SIZE], cluster)
        if done.code != 0 or why:
            raise self.fault(
                f"it is damaged: {why or 'no reason given'}",
                "download it again, and compare its checksum",
            )

    def _check_raw(self) -> None:
        """Any file without another format counts as raw: the first sector must be of a disk."""
        try:
            with Path(self.path).open("rb") as stream:
                sector = stream.read(_SECTOR)
        except OSError as error:
            raise self.fault(f"{error.strerror}") from error
        if len(sector) < _SECTOR or not sector.endswith(_BOOT_MARK):
            raise self.fault(
                "it has no boot sector, so it is not a disk image",
                "unpack it if it is compressed, or convert it to qcow2",
            )

    def info(self) -> Info:
        """Return its format; raises BackendError for an image that cannot be booted."""
        self._state()
        try:
            text = self.runner.check(self._qemu_img("info", "--output=json"), timeout_s=60).text
        except CommandError as error:
            raise self.fault(
                f"qemu-img cannot read it: {error.hint or error.message}",
                "check that it is a whole disk image and that you may read it",
            ) from error
        return read_info(text, self.path)

    def _qemu_img(self, verb: str, *words: str) -> Command:
        # Shared: running machines have it open. The path is no option, because it begins with "/".
        return Command(("qemu-img", verb, "--force-share", *words, self.path))

    def ready(self) -> bool:
        """Whether it is a regular file."""
        return Path(self.path).is_file()
