# SPDX-License-Identifier: Apache-2.0
"""A cloud image of one's own: known by its content, refused in words. No machine is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nearmetal.cluster.backends.libvirt.images import BuiltImages, CloudImages
from nearmetal.core.errors import BackendError
from nearmetal.core.process import LocalRunner
from nearmetal.image import Cache
from nearmetal.image.disk import Info, damage, read_info
from tests.python.image_parts import parts


def images(path: Path, unit: bytes = b"unit") -> CloudImages:
    built = BuiltImages(
        LocalRunner(), cache=Cache(path.parent / "cache"), parts=parts(path.parent, unit)
    )
    return CloudImages(str(path), LocalRunner(), built, path.parent / "memory" / "digests.json")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "debian.qcow2"
    path.write_bytes(b"one")
    return path


def test_an_image_is_known_by_its_content(image: Path) -> None:
    first = images(image).digest()
    assert images(image).digest() == first
    image.write_bytes(b"two")
    assert images(image).digest() != first
    copy = image.with_name("copy.qcow2")
    copy.write_bytes(b"one")
    assert images(copy).digest() == first


def test_another_guest_unit_makes_other_machines(image: Path) -> None:
    assert images(image, b"other").digest() != images(image).digest()
    assert images(image, b"other").content() == images(image).content()


def test_a_file_that_was_read_once_is_not_read_again_until_it_changes(image: Path) -> None:
    found = images(image).content()
    memory = image.parent / "memory" / "digests.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    known = json.loads(memory.read_text())
    known[str(image)][-1] = "what is remembered"
    memory.write_text(json.dumps(known))
    assert images(image).content() == "what is remembered"
    stat = image.stat()
    image.write_bytes(b"two")
    # Somebody may set the time back; the time of the change itself goes on.
    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert images(image).content() not in ("what is remembered", found)


@pytest.mark.parametrize("text", ["", "[]", '{"x": 3}', "\0"])
def test_a_memory_that_makes_no_sense_is_made_anew(image: Path, text: str) -> None:
    memory = image.parent / "memory" / "digests.json"
    memory.parent.mkdir()
    memory.write_text(text)
    found = images(image).content()
    assert json.loads(memory.read_text())[str(image)][-1] == found


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"none\.qcow2: No such file or directory") as caught:
        images(tmp_path / "none.qcow2").digest()
    assert "or default" in caught.value.hint
    with pytest.raises(BackendError, match="it is not a regular file"):
        images(tmp_path).digest()


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("", "does not report its format", ""),
        ("[]", "does not report its format", ""),
        ('{"format": "qcow2", "format-specific": 3}', "does not report its format", ""),
        ('{"format": "vmdk"}', "its format is vmdk", "convert -O qcow2 /i"),
        ('{"format": "qcow2", "backing-filename": "/b"}', "has a backing file", "flatten it"),
        ('{"format": "qcow2", "encrypted": true}', "is encrypted", "decrypt it"),
        (
            '{"format": "qcow2", "format-specific": {"data": {"data-file": "/d"}}}',
            "keeps its data in another file",
            "join it",
        ),
    ],
)
def test_what_machines_cannot_boot_is_refused(text: str, why: str, hint: str) -> None:
    with pytest.raises(BackendError, match=why) as caught:
        read_info(text, "/i")
    assert hint in caught.value.hint


@pytest.mark.parametrize("form", ["qcow2", "raw"])
def test_two_formats_are_taken(form: str) -> None:
    told = {"format": form, "encrypted": False, "cluster-size": 65536}
    assert read_info(json.dumps(told), "/i") == Info(form, 65536)


@pytest.mark.parametrize(
    ("text", "words", "size", "why"),
    [
        ('{"image-end-offset": 262144}', "", 262144, ""),
        # The last piece of a compressed image is as short as it is.
        ('{"image-end-offset": 262144}', "", 262144 - 65535, ""),
        (
            '{"image-end-offset": 262144}',
            "",
            262144 - 65536,
            "ends at byte 262144, the file at 196608",
        ),
        ('{"image-end-offset": 9, "corruptions": 3}', "ERROR: x", 9, "3 corruptions"),
        ('{"image-end-offset": 9, "check-errors": 1}', "", 9, "1 check-errors"),
        ("", "\n qemu-img: cannot open\nmore", 9, "qemu-img: cannot open"),
        ("[]", "", 9, ""),
    ],
)
def test_what_a_check_finds_is_told(text: str, words: str, size: int, why: str) -> None:
    assert damage(text, words, size, 65536).endswith(why)
    assert bool(damage(text, words, size, 65536)) == bool(why)
