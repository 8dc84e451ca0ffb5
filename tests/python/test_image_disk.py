# SPDX-License-Identifier: Apache-2.0
"""The built image as a disk that boots: its places, by the readers of this machine."""

from __future__ import annotations

import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.core.errors import ImageError
from nearmetal.image.bootdisk import write_disk
from nearmetal.image.cache import Image
from nearmetal.image.system import debootstrap, named_mirror
from tests.python.image_parts import FakeDebian, parts

MIB = 1 << 20
FIRST, REST = bytes([0xEB, 0x63]) + b"G" * 510, b"core" * 1000


@pytest.fixture
def image(tmp_path: Path) -> Image:
    folder = tmp_path / "system"
    folder.mkdir()
    files = {"boot.img": FIRST, "core.img": REST, "vmlinuz": b"kernel", "initrd": b"disk" * 9}
    files["root.squashfs"] = b"hsqs" + b"r" * MIB
    for name, content in files.items():
        (folder / name).write_bytes(content)
    kernel, root = folder / "vmlinux", folder / "root.squashfs"
    return Image(
        "0123456789abcdef", kernel, folder / "vmlinuz", folder / "initrd", root, "quiet console=x"
    )


def test_a_disk_has_the_loader_an_archive_and_the_root(image: Image, tmp_path: Path) -> None:
    write_disk(tmp_path / "disk.raw", image)
    disk = (tmp_path / "disk.raw").read_bytes()
    assert len(disk) % MIB == 0
    assert disk[:440] == FIRST[:440]
    assert disk[512 : 512 + len(REST)] == REST
    assert disk[510:512] == b"\x55\xaa"
    entries = [struct.unpack_from("<B3sB3sII", disk, 446 + 16 * n) for n in range(4)]
    assert [entry[0] for entry in entries] == [0x80, 0, 0, 0]
    (begin, size), (root, length) = [(e[4] * 512, e[5] * 512) for e in entries[:2]]
    assert begin == MIB
    assert begin + size <= root
    assert disk[root : root + MIB + 4] == image.root.read_bytes()
    assert root + length <= len(disk)
    with tarfile.open(fileobj=io.BytesIO(disk[begin : begin + size])) as archive:
        found = {
            name: stream.read()
            for name in archive.getnames()
            if (stream := archive.extractfile(name)) is not None
        }
    assert (found["vmlinuz"], found["initrd"]) == (b"kernel", b"disk" * 9)
    # The kernel's command line names the disk as its first sector does.
    assert struct.unpack_from("<I", disk, 440) == (0x01234567,)
    assert b"linux /vmlinuz quiet console=x nearmetal.root=01234567\n" in found["grub.cfg"]


def test_equal_images_give_equal_disks(image: Image, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_disk(tmp_path / name, image)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_image_without_a_loader_is_named(image: Image, tmp_path: Path) -> None:
    (image.kernel.parent / "core.img").unlink()
    with pytest.raises(ImageError, match=r"core\.img") as error:
        write_disk(tmp_path / "disk", image)
    assert "--disk" in error.value.hint
    assert not (tmp_path / "disk").exists()


def test_a_loader_that_does_not_fit_is_refused(image: Image, tmp_path: Path) -> None:
    (image.kernel.parent / "core.img").write_bytes(bytes(MIB))
    with pytest.raises(ImageError, match="unexpected size"):
        write_disk(tmp_path / "disk", image)


def test_a_place_that_is_not_there_is_an_error(image: Image, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no such directory"):
        write_disk(tmp_path / "none" / "disk", image)


def test_only_a_system_with_grub_makes_a_loader(tmp_path: Path) -> None:
    plain = parts(tmp_path)
    loaders: list[bool] = []
    for given in (plain, replace(plain, packages=(*plain.packages, "grub-pc-bin"))):
        debian, folder = FakeDebian(), tmp_path / str(len(loaders))
        folder.mkdir()
        debootstrap(given, named_mirror("http://mirror.example/debian"), folder, debian.runner())
        loaders.append(any("grub-mkimage" in word for word in debian.calls[0]))
    assert loaders == [False, True]
