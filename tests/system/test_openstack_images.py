# SPDX-License-Identifier: Apache-2.0
"""Images that `up` uploads to a real Glance: whole, once, and gone with the cluster."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from keystoneauth1 import exceptions as auth_faults
from keystoneauth1.session import Session

from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.core.errors import BackendError, StateError
from tests.system.need import lacking
from tests.system.openstack_cloud import (
    QUIET,
    RealCloud,
    gone,
    objects,
    plan_of,
    raised,
    running_cloud,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.timeout(600),
    *QUIET,
]

_PARTITION = b"\x80\0\0\0\x83\0\0\0" + struct.pack("<II", 1, 100)
SECTOR = bytes(446) + _PARTITION + bytes(48) + b"\x55\xaa"
"""Glance looks for a table of partitions where a boot sector says that there is one."""

SIZE = 3 << 20


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    if shutil.which("qemu-img") is None:
        lacking("no qemu-img: `make setup-vm` installs it")
    with (
        pytest.MonkeyPatch.context() as patch,
        running_cloud(tmp_path_factory.mktemp("openstack")) as found,
    ):
        patch.setenv("NEARMETAL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield found


def disk(directory: Path, byte: bytes) -> Path:
    """Return the file of a disk with a boot sector, and nothing that boots."""
    path = directory / "disk.raw"
    path.write_bytes(SECTOR + byte * (SIZE - len(SECTOR)))
    return path


def spec_of(cloud: RealCloud, path: Path, *nodes: str) -> OpenstackSpec:
    listed = ", ".join(f"{{name: {node}}}" for node in nodes or ("n1",))
    text = (
        "image_properties: {os_distro: debian}\nnetworks: [{name: mpi, subnet: 10.81.0.0/24}]\n"
        f"hosts: [{{name: h1, nodes: [{listed}]}}]\n"
    )
    return cloud.spec("own", text, path)


def images(cloud: RealCloud) -> list[Any]:
    sdk = cloud.connected()
    return list(sdk.image.images(owner=sdk.current_project_id))


def test_a_file_is_uploaded_once_used_by_all_and_removed_with_the_cluster(
    cloud: RealCloud, tmp_path: Path
) -> None:
    sdk, before = cloud.connected(), objects(cloud)
    path = disk(tmp_path, b"a")
    spec = spec_of(cloud, path, "n1", "n2")
    plan = raised(spec, tmp_path)
    assert [c.key.kind.value for c in plan.effective].count("disk") == 1
    (image,) = images(cloud)
    assert image.hash_value == hashlib.new(image.hash_algo, path.read_bytes()).hexdigest()
    assert (image.size, image.visibility, image.disk_format) == (SIZE, "private", "raw")
    assert (image.hw_disk_bus, image.hw_machine_type) == ("virtio", "q35")
    assert (image.os_type, image.os_distro) == ("linux", "debian")
    assert {server.image["id"] for server in sdk.compute.servers(details=True)} == {image.id}
    assert plan_of(spec, tmp_path).empty

    # The same content by another path is the same image.
    moved = path.rename(tmp_path / "moved.raw")
    assert plan_of(spec_of(cloud, moved, "n1", "n2"), tmp_path).empty
    moved.rename(path)

    # Other content is another image, and its servers are made again only if that is agreed.
    disk(tmp_path, b"b")
    with pytest.raises(StateError, match="already up under another spec"):
        raised(spec, tmp_path)
    assert [one.id for one in images(cloud)] == [image.id]
    raised(spec, tmp_path, replace=True)
    (other,) = images(cloud)
    assert other.hash_value == hashlib.sha512(path.read_bytes()).hexdigest()
    assert {server.image["id"] for server in sdk.compute.servers(details=True)} == {other.id}

    # An image that another user has removed is uploaded again, and the servers stay.
    kept = objects(cloud)["servers"]
    sdk.image.delete_image(other)
    plan = raised(spec, tmp_path)
    assert [c.key.kind.value for c in plan.effective] == ["disk"]
    assert objects(cloud)["servers"] == kept

    # A removal does not need the file.
    path.unlink()
    stranger = sdk.image.create_image(
        "own.image-1", data=b"x", disk_format="raw", allow_duplicates=True
    )
    gone(spec, tmp_path)
    assert [one.id for one in images(cloud)] == [stranger.id]
    sdk.image.delete_image(stranger)
    assert objects(cloud) == before


def _half(data: Any) -> Iterator[bytes]:
    yield data.read(SIZE // 2)
    raise Killed


def breaking(method: str, how: str) -> Callable[..., Any]:
    """Break the request that makes an image (POST), or the one that sends its bytes (PUT)."""
    original = Session.request

    def request(session: Session, url: str, verb: str, **named: Any) -> Any:
        # Requests to Glance have a path below the address of the service.
        if not (verb == method and "/images" in url):
            return original(session, url, verb, **named)
        if how == "refused":
            raise auth_faults.ConnectFailure("no route")
        if how == "half":
            named["data"] = _half(named["data"])
        if how != "before":
            original(session, url, verb, **named)
        raise Killed

    return request


SAMPLE = [("PUT", "half"), ("PUT", "after")]
EVERY = [(method, how) for method in ("POST", "PUT") for how in ("before", "after", "refused")]


@pytest.mark.parametrize(
    ("method", "how"),
    [
        pytest.param(
            *one, marks=() if one in SAMPLE else pytest.mark.full, id="-".join(map(str, one))
        )
        for one in [*EVERY, ("PUT", "half")]
    ],
)
def test_after_a_broken_upload_the_next_up_ends_with_one_whole_image(
    cloud: RealCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, how: str
) -> None:
    before = objects(cloud)
    path = disk(tmp_path, method.encode()[:1])
    spec = spec_of(cloud, path)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "request", breaking(method, how))
        with pytest.raises(BackendError if how == "refused" else Killed):
            raised(spec, tmp_path)
    left = images(cloud)
    assert len(left) == (0 if method == "POST" and how != "after" else 1)
    assert objects(cloud)["servers"] == before["servers"]
    raised(spec, tmp_path)
    (image,) = images(cloud)
    assert image.hash_value == hashlib.sha512(path.read_bytes()).hexdigest()
    if how == "after" and method == "PUT":
        assert image.id == left[0].id
    gone(spec, tmp_path)
    assert objects(cloud) == before


def test_content_that_glance_refuses_is_an_error_with_its_reason(
    cloud: RealCloud, tmp_path: Path
) -> None:
    before = objects(cloud)
    path = disk(tmp_path, b"x")
    path.write_bytes(bytes(510) + SECTOR[510:] + bytes(SIZE))
    with pytest.raises(BackendError, match="Image failed safety checks") as caught:
        raised(spec_of(cloud, path), tmp_path)
    assert "a table of partitions" in caught.value.hint
    gone(spec_of(cloud, path), tmp_path)
    assert objects(cloud) == before


def test_a_removal_takes_what_an_upload_left(
    cloud: RealCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = objects(cloud)
    spec = spec_of(cloud, disk(tmp_path, b"r"))
    with monkeypatch.context() as patch:
        patch.setattr(Session, "request", breaking("PUT", "half"))
        with pytest.raises(Killed):
            raised(spec, tmp_path)
    assert len(images(cloud)) == 1
    gone(spec, tmp_path)
    assert objects(cloud) == before
