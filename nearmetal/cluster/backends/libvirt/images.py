# SPDX-License-Identifier: Apache-2.0
"""What machines boot; here the built image, in cloud.py a cloud image of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from nearmetal.cluster.backends.libvirt.build import Boot
from nearmetal.cluster.backends.libvirt.machine import Kernel
from nearmetal.core.errors import BackendError
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

if TYPE_CHECKING:
    from nearmetal.cluster.backends.libvirt.shell import HostShell
    from nearmetal.core.process import Runner

ROOT_SERIAL = "nearmetal-root"
"""By which the built image's first program finds its root disk."""

_COPY_S = 3600.0
REMOTE_IMAGES = "/var/lib/nearmetal/images"


class Images(Protocol):
    """The image of one cluster. Errors are NearmetalError."""

    @property
    def needs(self) -> str:
        """What it must have to become a node, where that is not for us to know; else ""."""

    @property
    def prober(self) -> Images:
        """The image whose kernel tells whether KVM works on a host."""

    def digest(self) -> str:
        """Return what tells it from every other image; it need not exist yet."""

    def ensure(self) -> None:
        """Make it, or find it."""

    def ready(self) -> bool:
        """Whether it is there, so that `boot` takes no time."""

    def boot(self, shell: HostShell) -> Boot:
        """Return what machines of a host start, carried there when it is elsewhere."""

    def overlay(self, shell: HostShell, path: str, owner: str) -> None:
        """Make one node's own disk."""

    def disc(self, shell: HostShell, path: str, seed: str, owner: str) -> None:
        """Make the disc with a node's seed."""


class Told(Protocol):
    """Told about steps of a build."""

    def begin(self, total: int) -> None:
        """There will be `total` steps."""

    def step(self, text: str) -> None:
        """One step begins."""


class _Silent:
    def begin(self, total: int) -> None:
        """Ignore it."""

    def step(self, text: str) -> None:
        """Ignore it."""


@dataclass
class BuiltImages:
    """The image that nearmetal builds: one kernel, one read-only root for all nodes."""

    runner: Runner
    progress: Told = field(default_factory=_Silent)
    cache: Cache = field(default_factory=lambda: Cache(cache_directory()))
    parts: Parts = field(default_factory=parts_here)
    needs: str = ""
    _image: Image | None = None

    @property
    def prober(self) -> Images:
        """Itself."""
        return self

    def digest(self) -> str:
        """The key of its parts."""
        return expected_key(self.parts)

    def ensure(self) -> None:
        """Build what is missing."""
        if self._image is None:
            self._image = build_image(
                self.cache,
                self.parts,
                self.runner,
                progress=self.progress,
                mirror=lambda: machine_mirror(self.runner),
            )

    def _found(self) -> Image:
        self.ensure()
        assert self._image is not None  # noqa: S101 - ensure either sets it or raises
        return self._image

    def ready(self) -> bool:
        """Nothing is built for the asking."""
        if self._image is None:
            self._image = find_image(self.cache, self.parts)
        return self._image is not None

    def boot(self, shell: HostShell) -> Boot:
        """The three files, where they are or copied to the host."""
        image = self._found()
        files = [Path(path) for path in (image.kernel, image.initrd, image.root)]
        if not shell.remote:
            kernel, initrd, root = map(str, files)
        else:
            kernel, initrd, root = (carried(shell, path, self.digest()) for path in files)
        return Boot(Kernel(kernel, initrd, image.append), root, ROOT_SERIAL)

    def overlay(self, shell: HostShell, path: str, owner: str) -> None:
        """Nodes write into memory."""
        raise BackendError(f"host {shell.name}: the built image takes no disk {path} of {owner}")

    def disc(self, shell: HostShell, path: str, seed: str, owner: str) -> None:
        """The seed travels through the firmware."""
        raise BackendError(f"host {shell.name}: no disc {path} of {len(seed)} bytes for {owner}")


def carried(shell: HostShell, path: Path, key: str) -> str:
    """Return a file's path on another machine, copied when it is not there in its size."""
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
            f"host {shell.name}: cannot copy {path.name} there", "a full disk, or no permission?"
        )
    return target
