# SPDX-License-Identifier: Apache-2.0
"""The images of virtual machines: the image that nearmetal builds, or the user's own cloud image.

The built image has one kernel and one read-only root for all nodes. A cloud image is one disk that
is never written, with an overlay for each node. It has no part of nearmetal: cloud-init reads the
part that makes its machine a node from a NoCloud disc (nearmetal/image/nocloud.py).
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nearmetal.cluster.backends.libvirt.build import Boot
from nearmetal.cluster.backends.libvirt.efi import TABLE_SECTORS, boots_by_efi
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.machine import GuestKernel
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
from nearmetal.image.disk import DiskFile, known_digests
from nearmetal.image.nocloud import write_disc
from nearmetal.image.seed import Seed

ROOT_SERIAL = "nearmetal-root"
"""Serial number by which the first program of the built image finds its root disk."""

REMOTE_IMAGES = "/var/lib/nearmetal/images"
_COPY_S = 3600.0


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
class CloudImages(DiskFile):
    """The image at a path on this machine. Errors are NearmetalError."""

    path: str
    runner: Runner
    built: BuiltImages
    memory: Path = field(default_factory=known_digests)
    efi: bool = False
    """Whether a machine boots it by EFI."""

    needs: str = "a cloud image needs systemd, sshd, cloud-init with NoCloud, and console=ttyS0"
    _form: str = ""

    def digest(self) -> str:
        """Return a digest of its content and of the disc."""
        asked = f"{self.content()} {self.built.parts.digest()}"
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def ensure(self) -> None:
        """Check that machines can boot it; it is never built."""
        self._form = self.checked().form
        if self.efi and not boots_by_efi(self._partitions(self._form)):
            raise self.fault(
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
                raise self.fault(
                    f"qemu-img cannot read it: {error.hint or error.message}"
                ) from error
            return out.read_bytes()

    def boot(self, shell: HostShell, *, efi: bool = False) -> Boot:
        """Return the start from each node's own disk, by the firmware."""
        del shell, efi
        return Boot()

    def overlay(self, shell: HostShell, path: str, owner: str) -> None:
        """Recreate a node's own disk, which has the node's changes to the image."""
        base = carried(shell, Path(self.path), self.content()) if shell.remote else self.path
        form = self._form or self.info().form
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
