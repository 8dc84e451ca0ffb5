# SPDX-License-Identifier: Apache-2.0
"""Building images: what is cached under which name, what survives a kill, what is refused."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nearmetal.core.errors import ImageError, UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.image import (
    Cache,
    Image,
    Mirror,
    build_image,
    cache_directory,
    expected_key,
    find_image,
    named_mirror,
    parts_here,
    system,
)
from nearmetal.image.parts import archive, link, regular
from nearmetal.image.system import mirrors_of, system_key, uncompressed_kernel
from tests.python.image_parts import ELF, PACKAGES, FakeDebian, bzimage, parts


class Heard:
    """Remembers the steps."""

    def __init__(self) -> None:
        self.total = 0
        self.steps: list[str] = []

    def begin(self, total: int) -> None:
        self.total = total

    def step(self, text: str) -> None:
        self.steps.append(text)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a build looks for; none of them is started here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("mmdebstrap", "tar2sqfs", "zstd", "apt-get"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def build(cache: Cache, debian: FakeDebian, unit: bytes = b"unit") -> Image:
    return build_image(
        cache,
        parts(cache.root.parent, unit),
        debian.runner(),
        progress=Heard(),
        mirror=lambda: Mirror("http://mirror.example/debian"),
    )


def test_an_image_is_built_once(cache: Cache) -> None:
    debian = FakeDebian()
    image = build(cache, debian)
    assert [argv[0] for argv in debian.calls] == ["mmdebstrap", "tar2sqfs"]
    assert image.kernel.read_bytes() == ELF
    assert image.root.read_bytes() == b"squashed a tree"
    assert build(cache, debian) == image
    assert len(debian.calls) == 2
    assert not (cache.root / "fresh").exists() or not list((cache.root / "fresh").iterdir())


def test_another_guest_unit_keeps_the_system(cache: Cache) -> None:
    debian = FakeDebian()
    first, second = build(cache, debian), build(cache, debian, b"another unit")
    assert len(debian.calls) == 2
    assert first.key != second.key
    assert first.root == second.root
    assert first.initrd.read_bytes() != second.initrd.read_bytes()


def test_the_manifest_says_what_is_inside(cache: Cache) -> None:
    image = build(cache, FakeDebian())
    manifest = json.loads((image.kernel.parent / "manifest.json").read_text())
    assert manifest["kernel_release"] == "6.12.1-amd64"
    assert [(p["name"], p["version"]) for p in manifest["packages"]] == [
        ("busybox-static", "1:1.37.0-6+b9"),
        ("linux-image-6.12.1-amd64", "6.12.1-1"),
    ]
    assert {f["name"] for f in manifest["files"]} == {
        "vmlinux",
        "vmlinuz",
        "root.squashfs",
        "busybox",
        "10-virtio_blk.ko",
    }


def test_packages_come_checked_from_the_mirror_that_was_given(cache: Cache) -> None:
    debian = FakeDebian()
    build(cache, debian)
    (line,) = (word for word in debian.calls[0] if word.startswith("deb "))
    assert line.endswith(".gpg] http://mirror.example/debian trixie main")
    assert "[signed-by=" in line


@pytest.mark.parametrize("victim", ["initrd", "vmlinux", "root.squashfs", "manifest.json"])
def test_a_damaged_file_is_noticed_and_made_anew(cache: Cache, victim: str) -> None:
    debian = FakeDebian()
    image = build(cache, debian)
    (path,) = (
        p
        for p in (image.initrd.parent / victim, image.kernel.parent / victim)
        if p.exists() and p.parent.parent == (cache.images if victim == "initrd" else cache.systems)
    )
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ImageError, match=f"{victim}.* (is not what|is damaged)"):
        find_image(cache, parts(cache.root.parent, b"unit"))
    assert build(cache, debian) == image
    if victim != "manifest.json":
        assert path.read_bytes() == content


@pytest.mark.parametrize("victim", ["initrd", "vmlinux", "root.squashfs", "manifest.json"])
def test_a_missing_file_is_noticed(cache: Cache, victim: str) -> None:
    image = build(cache, FakeDebian())
    places = (image.initrd.parent / victim, image.kernel.parent / victim)
    next(p for p in places if p.exists()).unlink()
    with pytest.raises(ImageError, match=f"cannot read .*{victim}"):
        find_image(cache, parts(cache.root.parent, b"unit"))


@pytest.mark.parametrize("dying", ["mmdebstrap", "tar2sqfs"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_build_that_ends_early_leaves_nothing(
    cache: Cache, dying: str, error: BaseException
) -> None:
    def stop(name: str) -> None:
        if name == dying:
            raise error

    with pytest.raises((KeyboardInterrupt, ImageError)) as caught:
        build(cache, FakeDebian(before=stop))
    if isinstance(error, OSError):
        assert "No space left" in str(caught.value)
    assert not list(cache.systems.iterdir())
    assert not list(cache.images.iterdir())
    assert not list((cache.root / "fresh").iterdir())
    assert build(cache, FakeDebian()).root.exists()


def test_what_a_killed_build_left_goes_with_the_next(cache: Cache) -> None:
    image = build(cache, FakeDebian())
    left = cache.root / "fresh" / "0123.abc"
    left.mkdir(parents=True)
    (left / "root.tar").write_bytes(b"half")
    assert build(cache, FakeDebian()) == image
    assert not left.exists()


def test_removing_an_image_removes_what_only_it_needs(cache: Cache) -> None:
    first, second = build(cache, FakeDebian()), build(cache, FakeDebian(), b"another unit")
    with cache.locked(lambda: None):
        assert cache.remove([first.key]) == [f"images/{first.key}"]
        assert second.root.exists()
        gone = cache.remove([second.key])
    assert gone == [f"images/{second.key}", f"systems/{second.root.parent.name}"]
    assert cache.entries() == []


def test_removing_what_is_not_there_names_what_is(cache: Cache) -> None:
    image = build(cache, FakeDebian())
    with cache.locked(lambda: None), pytest.raises(ImageError, match="no image") as caught:
        cache.remove(["feedfacefeedface"])
    assert image.key in caught.value.hint


def test_listing_tells_of_damage(cache: Cache) -> None:
    image = build(cache, FakeDebian())
    assert [entry.problem for entry in cache.entries()] == [""]
    (image.initrd.parent / "manifest.json").write_text("{}")
    (entry,) = cache.entries()
    assert "is damaged" in entry.problem


def test_missing_tools_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "tar2sqfs").unlink()
    (tmp_path / "bin" / "mmdebstrap").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    missing = [name for name in ("mmdebstrap", "tar2sqfs") if not Path("/usr/bin", name).exists()]
    if not missing:
        system.require_tools()
        return
    with pytest.raises(ImageError, match=", ".join(missing)) as caught:
        system.require_tools()
    assert "apt-get install" in caught.value.hint


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (b"", "not a bzImage"),
        (b"\x7fELF" + bytes(4000), "not a bzImage"),
        (bzimage()[:1030], "cut off"),
        (bzimage(length=1 << 31), "cut off"),
        (bzimage(length=3), "cut off"),
        (bzimage(size=0), "claims to have 0 bytes"),
        (bzimage(size=0xFFFFFFFF), "claims to have 4294967295 bytes"),
        (bzimage(size=len(ELF) - 1), "does not unpack to"),
        (bzimage(size=len(ELF) + 1), "does not unpack to"),
        (bzimage(b"no elf file at all, but as long as one"), "does not unpack to"),
        (bzimage().replace(b"\xfd7zXZ", b"\xfd8zXZ"), "compressed in an unknown way"),
        (bzimage()[:-40] + bytes(36) + bzimage()[-4:], "not a valid xz stream"),
    ],
)
def test_a_kernel_that_lies_is_refused(kernel: bytes, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        uncompressed_kernel(kernel, LocalRunner())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no record of its packages"),
        ("Package: a\nVersion: 1\nArchitecture: amd64\n", "record of package 'a' is damaged"),
        (PACKAGES.replace("cd", "CD"), "is damaged"),
        (PACKAGES.replace("1:1.37.0-6+b9", "1\x1b[2J"), "is damaged"),
    ],
)
def test_a_record_of_packages_that_lies_is_refused(text: str, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        system.parse_packages(text)


def test_a_tree_without_a_kernel_is_refused(cache: Cache) -> None:
    text = PACKAGES.replace("linux-image-6.12.1-amd64", "linux-image-amd64")
    with pytest.raises(ImageError, match="the system needs one kernel"):
        build(cache, FakeDebian(packages=text))


def test_an_initial_ram_disk_has_directories_before_files() -> None:
    data = archive([regular("a/b/c", b"12345", 0o600), link("a/l", "b")])
    headers = [
        data[at : at + 110] for at in range(0, len(data), 4) if data[at : at + 6] == b"070701"
    ]
    modes = [int(header[14:22], 16) for header in headers]
    assert modes == [0o040755, 0o040755, 0o100600, 0o120777, 0]
    assert data.index(b"a/b\0") < data.index(b"a/b/c\0") < data.index(b"TRAILER!!!")
    assert len(data) % 4 == 0
    assert data == archive([link("a/l", "b"), regular("a/b/c", b"12345", 0o600)])


def test_the_machine_tells_where_its_packages_come_from() -> None:
    lines = [
        "nodistro main https://other.example/node",
        "bookworm contrib http://mirror.example/debian/",
        "bookworm main http://mirror.example/debian/",
        "bookworm-updates main http://mirror.example/updates/",
        "bookworm-security main http://mirror.example/debian-security/",
        "bookworm main http://other.example/$(reboot)",
        "bookworm main",
    ]
    assert mirrors_of(lines) == (
        "http://mirror.example/debian/",
        "http://mirror.example/debian-security/",
    )
    assert mirrors_of(["jammy main http://mirror.example/ubuntu"]) == (None, None)


@pytest.mark.parametrize("uri", ["", "mirror", "http://a b", "ftp://x/", "http://x/\ndeb http://y"])
def test_a_mirror_must_be_an_address(uri: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a Debian archive"):
        named_mirror(uri)


def test_everything_that_goes_into_a_guest_counts() -> None:
    here = parts_here()
    assert expected_key(here) == expected_key(parts_here())
    assert expected_key(here) != expected_key(parts_here(["containers"]))
    assert {
        "usr/lib/nearmetal/nearmetal-guest",
        "usr/bin/nearmetal-info",
        "usr/lib/nearmetal/libnearmetal-fi.so",
        "etc/inittab",
    } <= {i.path for i in here.items}


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({"NEARMETAL_CACHE_DIR": "/var/tmp/c"}, 0, "/var/tmp/c"),
        ({}, 0, "/var/cache/nearmetal"),
        ({"XDG_CACHE_HOME": "/var/tmp/x"}, 7, "/var/tmp/x/nearmetal"),
    ],
)
def test_where_images_are_kept(environ: dict[str, Any], uid: int, expected: str) -> None:
    assert cache_directory(environ, uid) == Path(expected)


def test_an_appliance_has_its_benchmarks_and_a_greeting_that_names_them() -> None:
    here = {item.path: item for item in parts_here(appliance="mpi").items}
    greeting = here["etc/motd"].content.decode()
    programs = {path.removeprefix("usr/bin/") for path in here if path.startswith("usr/bin/mpi_")}
    assert programs == {"mpi_hello", "mpi_patterns", "mpi_window"}
    assert {word for word in greeting.split() if word.startswith("mpi_")} == programs
    assert all(here[f"usr/bin/{name}"].mode & 0o111 for name in programs)
    assert "etc/motd" not in {item.path for item in parts_here().items}
    # Only the upper layer differs, so a build uses the system that is there.
    assert system_key(parts_here(appliance="mpi")) == system_key(parts_here())


def test_a_host_of_virtual_machines_has_what_they_need() -> None:
    host = parts_here(appliance="kvm-host")
    assert system_key(host) == system_key(parts_here(["hypervisor"]))
    files = {item.path: item for item in host.items}
    greeting = files["etc/motd"].content.decode()
    assert "nearmetal host plan" in greeting
    assert "virsh list --all" in greeting
    assert "libvirt-clients" in host.packages
    # The first program starts libvirtd, and nothing else in the image loads these modules.
    service = files["usr/lib/nearmetal/kvm-host"]
    assert files["etc/inittab"].content.endswith(b"\n::respawn:/usr/lib/nearmetal/kvm-host\n")
    assert service.mode & 0o111
    assert b"modprobe -a kvm_intel kvm_amd" in service.content
    assert service.content.endswith(b"exec libvirtd\n")
    for other in (parts_here(appliance="mpi"), parts_here(["hypervisor"])):
        table = {item.path: item for item in other.items}["etc/inittab"].content
        assert b"kvm-host" not in table
