# SPDX-License-Identifier: Apache-2.0
"""A cloud image of the user's own: one disk that is never written, an overlay for each node.

Nothing of nearmetal is in it. What makes a machine of it a node comes on a NoCloud disc, which
cloud-init reads (nearmetal/image/nocloud.py).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cluster.backends.libvirt.build import Boot
from nearmetal.cluster.backends.libvirt.images import BuiltImages, carried
from nearmetal.cluster.backends.libvirt.records import write_whole
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command
from nearmetal.image import cache_directory
from nearmetal.image.nocloud import write_disc
from nearmetal.image.seed import Seed

if TYPE_CHECKING:
    from nearmetal.cluster.backends.libvirt.images import Images
    from nearmetal.cluster.backends.libvirt.shell import HostShell
    from nearmetal.core.process import Runner

FORMATS = ("qcow2", "raw")
_CHECK_S = 600.0
_PIECE = 1 << 20
_SIZE = 2
"""Where a file's size stands in its state."""

_SECTOR, _BOOT_MARK = 512, b"\x55\xaa"
_KEPT = 100
_REFUSED = {
    "backing-filename": ("stands on another file", "flatten it: qemu-img convert -O qcow2 {} ..."),
    "encrypted": ("is encrypted", "decrypt it: qemu-img convert -O qcow2 {} ..."),
    "data-file": ("keeps its data in another file", "join it: qemu-img convert -O qcow2 {} ..."),
}
"""What an image must not be: its content would not be all that its machines see."""


@dataclass
class CloudImages:
    """The image at a path on this machine."""

    path: str
    runner: Runner
    built: BuiltImages
    memory: Path = field(default_factory=lambda: cache_directory() / "cloud-images.json")
    """Where digests are remembered: reading gigabytes for every plan would be slow."""

    needs: str = "a cloud image needs systemd, sshd, cloud-init with NoCloud, and console=ttyS0"
    _form: str = ""

    @property
    def prober(self) -> Images:
        """The built image: it boots without a disk."""
        return self.built

    def digest(self) -> str:
        """Return what tells its machines from others: its content, and what the disc brings."""
        asked = f"{self.content()} {self.built.parts.digest()}"
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def content(self) -> str:
        """Return the SHA-256 of the image."""
        state = self._state()
        known = self._recalled().get(self.path)
        if isinstance(known, list) and known[:-1] == state and isinstance(known[-1], str):
            return known[-1]
        total = hashlib.sha256()
        try:
            with Path(self.path).open("rb") as stream:
                while piece := stream.read(_PIECE):
                    total.update(piece)
        except OSError as error:
            raise BackendError(f"image {self.path}: {error.strerror}") from error
        found = total.hexdigest()
        if self._state() != state:
            raise BackendError(
                f"image {self.path}: it is being written", "wait for that, and do the same again"
            )
        self._remember([*state, found])
        return found

    def _state(self) -> list[int]:
        """Return what changes when a file is written or exchanged."""
        try:
            stat = Path(self.path).stat()
        except OSError as error:
            msg = f"image {self.path}: {error.strerror}"
            raise BackendError(
                msg, "write the path of a cloud image there is, or default"
            ) from error
        if not Path(self.path).is_file():
            raise BackendError(
                f"image {self.path}: it is no file", "write the path of a cloud image"
            )
        return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]

    def _recalled(self) -> dict[str, Any]:
        try:
            data = json.loads(self.memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _remember(self, what: list[int | str]) -> None:
        self.memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = {path: known for path, known in self._recalled().items() if path != self.path}
        kept = dict(list(others.items())[-_KEPT:]) | {self.path: what}
        write_whole(self.memory, json.dumps(kept) + "\n")

    def ensure(self) -> None:
        """See to it that it is a disk that machines can boot; it is never made."""
        info = self._info()
        if info.form == "raw":
            self._check_raw()
        else:
            self._check_qcow2(info.cluster)
        self._form = info.form

    def _check_qcow2(self, cluster: int) -> None:
        argv = self._qemu_img("check", "--format", "qcow2", "--output=json")
        done = self.runner.run(argv, timeout_s=_CHECK_S)
        why = damage(done.text, done.error_tail, self._state()[_SIZE], cluster)
        if done.code != 0 or why:
            raise BackendError(
                f"image {self.path}: it is damaged: {why or 'no reason given'}",
                "fetch it again, and compare its checksum",
            )

    def _check_raw(self) -> None:
        """Whatever has no other format counts as raw: the first sector must be one of a disk."""
        try:
            with Path(self.path).open("rb") as stream:
                sector = stream.read(_SECTOR)
        except OSError as error:
            raise BackendError(f"image {self.path}: {error.strerror}") from error
        if len(sector) < _SECTOR or not sector.endswith(_BOOT_MARK):
            raise BackendError(
                f"image {self.path}: it has no boot sector, so it is no disk image",
                "a compressed one is to be unpacked; or convert it to qcow2",
            )

    def _info(self) -> Info:
        """Return what it is; raises BackendError for what cannot be booted."""
        self._state()
        try:
            text = self.runner.check(self._qemu_img("info", "--output=json"), timeout_s=60).text
        except CommandError as error:
            msg = f"image {self.path}: qemu-img cannot read it: {error.hint or error.message}"
            raise BackendError(msg, "is it a whole disk image, and may it be read?") from error
        return read_info(text, self.path)

    def _qemu_img(self, verb: str, *words: str) -> Command:
        # Shared: machines that run have it open. No option can follow: the path begins with "/".
        return Command(("qemu-img", verb, "--force-share", *words, self.path))

    def ready(self) -> bool:
        """It is there, or an error."""
        return Path(self.path).is_file()

    def boot(self, shell: HostShell) -> Boot:
        """Each node's own disk, by the firmware."""
        del shell
        return Boot()

    def overlay(self, shell: HostShell, path: str, owner: str) -> None:
        """Make a node's own disk anew: what is written there, over what the image has."""
        base = self.path
        if shell.remote:
            base = carried(shell, Path(self.path), self.content())
        argv = [
            "qemu-img",
            "create",
            "--quiet",
            "-f",
            "qcow2",
            "-F",
            self._form or self._info().form,
            "-b",
            base,
            path,
        ]
        shell.remove([path])
        shell.check(
            f"cannot make the disk {path}", ["sh", "-c", 'umask 077; exec "$@"', "sh", *argv]
        )
        if owner:
            shell.check(f"cannot give away {path}", ["chown", "--", owner, path])

    def disc(self, shell: HostShell, path: str, seed: str, owner: str) -> None:
        """Make the disc with a node's seed; it holds private keys, and is 0600 wherever it lies."""
        with tempfile.TemporaryDirectory(prefix="nearmetal-disc-") as directory:
            disc = Path(directory) / "disc.iso"
            write_disc(disc, Seed.from_json(seed), self.built.parts)
            shell.write(path, disc.read_bytes(), owner)


@dataclass(frozen=True)
class Info:
    """What an image file is. `cluster`: bytes of the pieces that a qcow2 file is made of."""

    form: str
    cluster: int


def damage(text: str, words: str, size: int, cluster: int) -> str:
    """Return what `qemu-img check` found in a file of `size` bytes; "" for nothing. Pure.

    It takes what is missing at the end for zeros, so a download that was cut short is sound to it.
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
    """Return what `qemu-img info` says in JSON; raises BackendError. Pure."""
    try:
        data = json.loads(text)
        found = Info(str(data["format"]), int(data.get("cluster-size") or 0))
        special = dict(data.get("format-specific") or {})
        inner = dict(special.get("data") or {})
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"image {path}: qemu-img says nothing of its format") from error
    if found.form not in FORMATS:
        raise BackendError(
            f"image {path}: its format is {found.form}",
            f"convert it: qemu-img convert -O qcow2 {path} ...",
        )
    for name, (what, hint) in _REFUSED.items():
        if data.get(name) or inner.get(name):
            raise BackendError(f"image {path}: it {what}", hint.format(path))
    return found
