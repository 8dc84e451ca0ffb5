# SPDX-License-Identifier: Apache-2.0
"""Finds or builds the image of some parts, and its system if that is missing too."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from nearmetal.core.errors import ImageError
from nearmetal.core.process import Runner
from nearmetal.core.progress import Progress
from nearmetal.image import system
from nearmetal.image.cache import Cache, Image, ImageManifest, SystemManifest, record
from nearmetal.image.parts import GuestFile, Parts, archive, link, regular
from nearmetal.image.system import Mirror, system_key

INITRD = "initrd"

APPEND = "console=ttyS0 quiet loglevel=3 panic=-1 net.ifnames=0 random.trust_cpu=on no_timer_check"
"""Arguments for the kernel: the console is the serial port, a panic ends the machine at once (no
data is lost), interfaces have the kernel's names, entropy exists at the first key exchange. The
timer is not checked: without KVM on a busy machine it comes late, and the kernel would panic."""


def expected_key(parts: Parts) -> str:
    """Return the key of the image that these parts make. Same parts, same key."""
    asked = f"{system_key(parts)} {parts.digest()} {APPEND}"
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def find_image(cache: Cache, parts: Parts) -> Image | None:
    """Return the image if it is in the cache; raises ImageError if it is damaged."""
    return load_image(cache, expected_key(parts))


def load_image(cache: Cache, key: str) -> Image | None:
    """As `find_image`, by an image's key."""
    folder = cache.images / key
    if not folder.is_dir():
        return None
    manifest = ImageManifest.load(folder)
    manifest.verify(folder)
    below = cache.systems / manifest.system
    SystemManifest.load(below).verify(below)
    return Image(
        manifest.key,
        below / system.KERNEL,
        below / system.EFI_KERNEL,
        folder / INITRD,
        below / system.ROOT,
        manifest.append,
    )


def build_image(
    cache: Cache, parts: Parts, runner: Runner, *, progress: Progress, mirror: Callable[[], Mirror]
) -> Image:
    """Return the image; build the parts of it that the cache lacks, or has in a damaged state.

    May be killed at any point and run again: every entry of the cache is complete. Raises
    ImageError.
    """
    progress.begin(len(system.STEPS) + 2)
    with cache.locked(lambda: progress.step("another build")):
        progress.step("cache")
        key, below = expected_key(parts), system_key(parts)
        try:
            if not _sound(SystemManifest, cache.systems / below):
                system.require_tools()
                with cache.fresh(cache.systems, below) as folder:
                    _build_system(folder, parts, mirror(), runner, progress)
            if not _sound(ImageManifest, cache.images / key):
                progress.step("initial RAM disk")
                _build_initrd(cache, key, below, parts)
        except OSError as error:
            raise ImageError(
                f"cannot build the image in {cache.root}: {error.strerror}",
                "free some space, or set NEARMETAL_CACHE_DIR to another place",
            ) from error
        image = find_image(cache, parts)
    if image is None:
        raise ImageError(f"image {key} was removed during its build", "run the build again")
    return image


def _sound(manifest: type[ImageManifest | SystemManifest], folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        manifest.load(folder).verify(folder)
    except ImageError:
        return False
    return True


def _build_system(
    folder: Path, parts: Parts, mirror: Mirror, runner: Runner, progress: Progress
) -> None:
    packages, root, kernel = system.STEPS
    progress.step(packages)
    system.debootstrap(parts, mirror, folder, runner)
    progress.step(root)
    system.squash(folder, runner)
    progress.step(kernel)
    system.take_kernel(folder, system_key(parts), runner).save(folder)


def _build_initrd(cache: Cache, key: str, below: str, parts: Parts) -> None:
    with cache.fresh(cache.images, key) as folder:
        (folder / INITRD).write_bytes(archive(initrd_items(cache.systems / below, parts)))
        manifest = ImageManifest(
            key=key, files=[record(folder / INITRD)], system=below, append=APPEND
        )
        manifest.save(folder)


def initrd_items(system_folder: Path, parts: Parts) -> list[GuestFile]:
    """Return the initial RAM disk: the first program, its modules, and the parts it installs."""
    modules = sorted(system_folder.glob("*.ko"))
    order = "".join(f"{path.name}\n" for path in modules)
    return [
        regular("init", parts.first_program, 0o755),
        regular("bin/busybox", (system_folder / system.BUSYBOX).read_bytes(), 0o755),
        link("bin/sh", "busybox"),
        *(regular(f"modules/{path.name}", path.read_bytes()) for path in modules),
        regular("modules/order", order.encode()),
        *(GuestFile(f"nearmetal/{item.path}", item.mode, item.content) for item in parts.items),
    ]
