# SPDX-License-Identifier: Apache-2.0
"""The images of virtual machines: the image that nearmetal builds, or the user's own cloud image.

The built image has one kernel and one read-only root for all nodes. A cloud image is one disk that
is never written, with an overlay for each node. It has no part of nearmetal: cloud-init reads the
part that makes its machine a node from a NoCloud disc (nearmetal/image/nocloud.py).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nearmetal.cluster.backends.libvirt.build import Boot
from nearmetal.cluster.backends.libvirt.efi import TABLE_SECTORS, boots_by_efi
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.machine import GuestKernel
from nearmetal.cluster.backends.libvirt.records import Memory
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import Command, Runner
from nearmetal.core.progress import Silent
from nearmetal.image import (
    Cache,
    Image,
    Parts,
    build_image,
    cache_directory,
    expected_key,
    find_image,
    machine_mirror,
    parts_here,
)
from nearmetal.image.nocloud import write_disc
from nearmetal.image.seed import Seed

ROOT_SERIAL = "nearmetal-root"
"""Serial number by which the first program of the built image finds its root disk."""

REMOTE_IMAGES = "/var/lib/nearmetal/images"
FORMATS = ("qcow2", "raw")
_COPY_S = 3600.0
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


def carried(shell: HostShell, path: Path, key: str) -> str:
    """Return a file's path on another machine; it is copied if it is not there in its size."""
    directory = PurePosixPath(REMOTE_IMAGES) / key
    target = str(directory / path.name)
    if shell.size(target) == path.stat().st_size:
        return target
    shell.check(f"cannot make {directory}", ["mkdir", "-p", "-m", "0755", "--", str(directory)])
    script = 'cat >"$1.new" && chmod 0644 "$1.new" && mv -f -- "$1.new" "$1"'
    with path.open("rb") as stream:
        done = shell.runner.attach(
            shell.command(["sh", "-c", script, "sh", target]), stdin=stream, timeout_s=_COPY_S
        )
    if done.code != 0:
        raise BackendError(
            f"host {shell.name}: cannot copy {path.name} there",
            "check the free space and the permissions there",
        )
    return target


@dataclass
class BuiltImages:
    """The image that nearmetal builds. Errors are NearmetalError."""

    runner: Runner
    cache: Cache = field(default_factory=lambda: Cache(cache_directory()))
    parts: Parts = field(default_factory=parts_here)
    needs: str = ""
    _image: Image | None = None

    def digest(self) -> str:
        """Return the key of its parts; the image need not exist yet."""
        return expected_key(self.parts)

    def ensure(self) -> None:
        """Build the missing parts."""
        if self._image is None:
            self._image = build_image(
                self.cache,
                self.parts,
                self.runner,
                progress=Silent(),
                mirror=lambda: machine_mirror(self.runner),
            )

    def ready(self) -> bool:
        """Whether it is there, so that `boot` takes no time; builds nothing."""
        if self._image is None:
            self._image = find_image(self.cache, self.parts)
        return self._image is not None

    def boot(self, shell: HostShell, *, efi: bool = False) -> Boot:
        """Return what machines of a host start; the files are copied to another host.

        `efi`: the kernel as the firmware starts it, which decompresses itself.
        """
        self.ensure()
        assert self._image is not None  # noqa: S101 - ensure either sets it or raises
        image = self._image
        files = [image.efi_kernel if efi else image.kernel, image.initrd, image.root]
        if not shell.remote:
            kernel, initrd, root = map(str, files)
        else:
            kernel, initrd, root = (carried(shell, path, self.digest()) for path in files)
        return Boot(GuestKernel(kernel, initrd, image.append), root, ROOT_SERIAL)


@dataclass
class CloudImages:
    """The image at a path on this machine. Errors are NearmetalError."""

    path: str
    runner: Runner
    built: BuiltImages
    memory: Path = field(default_factory=lambda: cache_directory() / "cloud-images.json")
    """File of known digests, because reading gigabytes for every plan would be slow."""

    efi: bool = False
    """Whether a machine boots it by EFI."""

    needs: str = "a cloud image needs systemd, sshd, cloud-init with NoCloud, and console=ttyS0"
    _form: str = ""

    def _error(self, what: str, hint: str = "") -> BackendError:
        return BackendError(f"image {self.path}: {what}", hint)

    def digest(self) -> str:
        """Return a digest of its content and of the disc."""
        asked = f"{self.content()} {self.built.parts.digest()}"
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

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
            raise self._error(f"{error.strerror}") from error
        if self._state() != state:
            raise self._error("another program is writing it", "wait for that, then try again")
        memory.remember(self.path, [*state, found])
        return found

    def _state(self) -> list[int]:
        """Return numbers that change when a file is written or replaced."""
        try:
            stat = Path(self.path).stat()
        except OSError as error:
            hint = "give the path of an existing cloud image, or default"
            raise self._error(f"{error.strerror}", hint) from error
        if not self.ready():
            raise self._error("it is not a regular file", "give the path of a cloud image")
        return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]

    def ensure(self) -> None:
        """Check that machines can boot it; it is never built."""
        info = self._info()
        if info.form == "raw":
            self._check_raw()
        else:
            self._check_qcow2(info.cluster)
        self._form = info.form
        if self.efi and not boots_by_efi(self._partitions(info.form)):
            raise self._error(
                "it has no EFI system partition, so no machine boots it with firmware: efi",
                "use an image that boots by EFI, or firmware: bios",
            )

    def _partitions(self, form: str) -> bytes:
        """Return the beginning of the disk, with its table of partitions."""
        with tempfile.TemporaryDirectory(prefix="nearmetal-disk-") as directory:
            out = Path(directory) / "table"
            options = f"dd --force-share -f {form} -O raw bs=512 count={TABLE_SECTORS}"
            argv = ("qemu-img", *options.split(), f"if={self.path}", f"of={out}")
            try:
                self.runner.check(Command(argv), timeout_s=60)
            except CommandError as error:
                raise self._error(
                    f"qemu-img cannot read it: {error.hint or error.message}"
                ) from error
            return out.read_bytes()

    def _check_qcow2(self, cluster: int) -> None:
        argv = self._qemu_img("check", "--format", "qcow2", "--output=json")
        done = self.runner.run(argv, timeout_s=_CHECK_S)
        why = damage(done.text, done.error_tail, self._state()[_SIZE], cluster)
        if done.code != 0 or why:
            raise self._error(
                f"it is damaged: {why or 'no reason given'}",
                "download it again, and compare its checksum",
            )

    def _check_raw(self) -> None:
        """Any file without another format counts as raw: the first sector must be of a disk."""
        try:
            with Path(self.path).open("rb") as stream:
                sector = stream.read(_SECTOR)
        except OSError as error:
            raise self._error(f"{error.strerror}") from error
        if len(sector) < _SECTOR or not sector.endswith(_BOOT_MARK):
            raise self._error(
                "it has no boot sector, so it is not a disk image",
                "unpack it if it is compressed, or convert it to qcow2",
            )

    def _info(self) -> Info:
        """Return its format; raises BackendError for an image that cannot be booted."""
        self._state()
        try:
            text = self.runner.check(self._qemu_img("info", "--output=json"), timeout_s=60).text
        except CommandError as error:
            raise self._error(
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

    def boot(self, shell: HostShell, *, efi: bool = False) -> Boot:
        """Return the start from each node's own disk, by the firmware."""
        del shell, efi
        return Boot()

    def overlay(self, shell: HostShell, path: str, owner: str) -> None:
        """Recreate a node's own disk, which has the node's changes to the image."""
        base = carried(shell, Path(self.path), self.content()) if shell.remote else self.path
        form = self._form or self._info().form
        argv = ["qemu-img", "create", "--quiet", "-f", "qcow2", "-F", form, "-b", base, path]
        shell.remove([path])
        shell.check(
            f"cannot make the disk {path}", ["sh", "-c", 'umask 077; exec "$@"', "sh", *argv]
        )
        shell.own(path, owner)

    def disc(self, shell: HostShell, path: str, seed: str, owner: str) -> None:
        """Make the disc with a node's seed; it holds private keys, and has mode 0600 everywhere."""
        with tempfile.TemporaryDirectory(prefix="nearmetal-disc-") as directory:
            disc = Path(directory) / "disc.iso"
            write_disc(disc, Seed.from_json(seed), self.built.parts)
            shell.write(path, disc.read_bytes(), owner)


@dataclass(frozen=True)
class Info:
    """The format of an image file. `cluster`: bytes of the pieces of a qcow2 file."""

    form: str
    cluster: int


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
        found = Info(str(data["format"]), int(data.get("cluster-size") or 0))
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
