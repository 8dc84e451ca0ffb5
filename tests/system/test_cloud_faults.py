# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a cloud image of one's own, on a real libvirt: said before a machine starts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.apply import down, plan_up, up
from nearmetal.cluster.resource import Kind
from nearmetal.core.errors import BackendError
from tests.system import hypervisors
from tests.system.virtual_clusters import Place, places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.root, pytest.mark.timeout(900)]

hypervisors.need()

SECTOR, MARK = 512, b"\x55\xaa"
HALT = b"\xfa\xf4\xeb\xfc"
"""cli; hlt; jmp back to hlt: a boot loader that goes nowhere."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with places(tmp_path_factory.mktemp("cloud")) as site:
        yield site


@pytest.fixture(autouse=True)
def gone(place: Place, tmp_path: Path) -> Iterator[None]:
    """Take away what a test's `up` has begun, whatever became of its image."""
    yield
    spec = spec_of(place, tmp_path / "none")
    down(place.cluster(spec))
    assert not place.state.exists()


def spec_of(place: Place, image: Path) -> LibvirtSpec:
    return place.spec(more=f"image: {image}\n")


def attempt(place: Place, image: Path, boot_s: float = 1) -> BackendError:
    """Return with which error an `up` fails."""
    spec = spec_of(place, image)
    with pytest.raises(BackendError) as caught:
        up(place.cluster(spec, boot_s=boot_s), spec)
    assert place.host.machines() == []
    return caught.value


def disk(path: Path, code: bytes = HALT) -> Path:
    """Write a raw disk whose boot loader is `code`."""
    path.write_bytes(code.ljust(SECTOR - 2, b"\0") + MARK + bytes(1 << 20))
    return path


def convert(source: Path, target: Path, form: str, *words: str) -> Path:
    subprocess.run(["qemu-img", "convert", "-O", form, *words, source, target], check=True)
    return target


def test_an_image_that_is_missing_is_named(place: Place, tmp_path: Path) -> None:
    error = attempt(place, tmp_path / "none.qcow2")
    assert "none.qcow2: No such file or directory" in error.message


def test_an_image_that_is_damaged_is_named(place: Place, tmp_path: Path) -> None:
    image = convert(disk(tmp_path / "raw"), tmp_path / "i.qcow2", "qcow2")
    whole = image.read_bytes()
    cluster, l1_offset = 1 << 16, int.from_bytes(whole[40:48], "big")
    # The first entry of its table leads to nowhere in the file.
    image.write_bytes(
        whole[:l1_offset] + (cluster * 4096 | 1 << 63).to_bytes(8, "big") + whole[l1_offset + 8 :]
    )
    error = attempt(place, image)
    assert "it is damaged" in error.message
    assert "compare its checksum" in error.hint
    image.write_bytes(whole[: len(whole) // 2])
    assert "it is damaged" in attempt(place, image).message
    image.write_bytes(whole[:50])
    assert "qemu-img cannot read it" in attempt(place, image).message


def test_what_is_no_disk_image_is_refused(place: Place, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no disk\n" * 100)
    assert "no boot sector" in attempt(place, text).message
    raw = disk(tmp_path / "raw")
    vmdk = convert(raw, tmp_path / "i.vmdk", "vmdk")
    assert "its format is vmdk" in attempt(place, vmdk).message
    base = convert(raw, tmp_path / "base.qcow2", "qcow2")
    over = convert(raw, tmp_path / "over.qcow2", "qcow2", "-B", str(base), "-F", "qcow2")
    assert "has a backing file" in attempt(place, over).message


@pytest.mark.parametrize("form", ["raw", "qcow2"])
def test_an_image_that_makes_no_node_ends_with_a_time_out(
    place: Place, tmp_path: Path, form: str
) -> None:
    """Of cloud-init the host sees nothing: there is a ready line, or there is none in time."""
    image = disk(tmp_path / "raw")
    if form != "raw":
        image = convert(image, tmp_path / "i.qcow2", form)
    before = image.read_bytes()
    error = attempt(place, image)
    assert "node n1 does not come up: not ready after 1 s; a cloud image needs" in error.message
    assert "(its console is empty)" in error.message
    assert "its whole console" in error.hint
    assert image.read_bytes() == before
    node = place.state / "clusters" / "f" / "hosts" / "h1"
    assert oct((node / "n1.iso").stat().st_mode & 0o777) == "0o600"
    assert oct((node / "n1.qcow2").stat().st_mode & 0o777) == "0o600"
    told = subprocess.run(
        ["qemu-img", "info", node / "n1.qcow2"], check=True, capture_output=True, text=True
    )
    assert f"backing file: {image}" in told.stdout
    assert f"backing file format: {form}" in told.stdout


def test_another_content_makes_other_nodes(place: Place, tmp_path: Path) -> None:
    image = disk(tmp_path / "raw")
    spec = spec_of(place, image)
    attempt(place, image)
    before = plan_up(place.cluster(spec), spec)
    disk(image, HALT[1:])
    after = plan_up(place.cluster(spec), spec)
    (old, new) = (
        {c.key: dict(c.after) for c in plan.changes if c.key.kind is Kind.DISK}
        for plan in (before, after)
    )
    assert [d["image"] for d in old.values()] != [d["image"] for d in new.values()]


def test_a_disk_without_room_for_an_overlay_is_named(place: Place, tmp_path: Path) -> None:
    image = disk(tmp_path / "raw")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small], check=True)
    try:
        spec = spec_of(place, image)
        host = spec.hosts[0].model_copy(update={"directory": str(small / "d")})
        spec = spec.model_copy(update={"hosts": [host]})
        with pytest.raises(BackendError, match=r"cannot make the disk .*/n1\.qcow2"):
            up(place.cluster(spec), spec)
        down(place.cluster(spec))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", small], check=True)
