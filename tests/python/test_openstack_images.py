# SPDX-License-Identifier: Apache-2.0
"""Images that a cluster uploads: what a spec may say, how they are known, and what is never used."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.images import ImageFile, is_whole, upload
from nearmetal.cluster.backends.openstack.plan import Server, image_name
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.stock import missing
from nearmetal.cluster.backends.openstack.world import World, read_world, server_values
from nearmetal.cluster.diff import make_plan
from nearmetal.cluster.registration import desired, from_canonical
from nearmetal.cluster.resource import Facts, Key, Kind
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import BackendError, SpecError
from nearmetal.core.process import LocalRunner
from tests.python.test_openstack_cloud import MADE, ONE, Given, NoCloud, backend_of, item, world_of
from tests.python.test_openstack_spec import HEAD
from tests.python.test_openstack_world import OTHER, OURS, Known, port, server

SUM = "5" * 64
CONTENT = bytes(510) + b"\x55\xaa" + bytes(512)


def spec_with(image: str, more: str = "", networks: str = MADE) -> OpenstackSpec:
    text = HEAD.replace("image: hpc", f"image: {image}") + networks + more + ONE
    spec = parse_spec(text, "c.yaml")
    assert isinstance(spec, OpenstackSpec)
    return spec


def in_glance(name: str, mark: str = OURS.token, **values: Any) -> SimpleNamespace:
    """Return an image as Glance shows it, whole unless `values` say otherwise."""
    properties = {
        "nearmetal_mark": mark,
        "nearmetal_image": name,
        "nearmetal_sha256": SUM,
        "nearmetal_sha512": "a" * 128,
    }
    same = {"status": "active", "hash_algo": "sha512", "hash_value": "a" * 128}
    return item("i1", properties=properties, min_ram=0, min_disk=0, **{**same, **values})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMETAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(CONTENT)
    return path


def file_of(path: Path) -> ImageFile:
    if shutil.which("qemu-img") is None:
        pytest.skip("no qemu-img")
    return ImageFile(str(path), LocalRunner(), path.parent / "memory.json")


# Specs and plans


def test_a_path_is_a_file_and_everything_else_a_name() -> None:
    assert spec_with("debian-13").image_files == []
    spec = spec_with("/srv/debian.qcow2", "image_properties: {os_distro: debian}\n")
    assert spec.image_files == ["/srv/debian.qcow2"]
    assert spec.properties == {
        "hw_disk_bus": "virtio",
        "hw_machine_type": "q35",
        "hw_vif_model": "virtio",
        "os_distro": "debian",
        "os_type": "linux",
    }
    assert from_canonical(spec.canonical()) == spec


@pytest.mark.parametrize(
    ("image", "more", "words"),
    [
        ("/srv/../etc/shadow", "", "is not an absolute path without .."),
        ("hpc", "image_properties: {os_distro: debian}\n", "no image is a path"),
        ("/a", "image_properties: {nearmetal_mark: x}\n", "is not a property of images"),
        ("/a", "image_properties: {os_hash_value: x}\n", "is not a property of images"),
        ("/a", "image_properties: {os_hidden: x}\n", "is not a property of images"),
        ("/a", 'image_properties: {os_distro: ""}\n', "is not a name of OpenStack"),
    ],
)
def test_what_a_spec_may_not_say(image: str, more: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec_with(image, more)


def test_content_and_properties_make_another_image_and_the_path_does_not() -> None:
    spec, moved = spec_with("/a"), spec_with("/b")
    first = desired(spec, Facts(images={"/a": SUM}))
    assert first.resources == desired(moved, Facts(images={"/b": SUM})).resources
    (name,) = (r.key.name for r in first.resources if r.key.kind is Kind.DISK)
    assert name == image_name(SUM, spec.properties)
    (node,) = (r for r in first.resources if r.key.kind is Kind.NODE)
    assert Key(Kind.DISK, name) in node.needs
    assert node.of(Server).image == name
    other = spec_with("/a", "image_properties: {hw_machine_type: pc}\n")
    assert name != image_name(SUM, other.properties)
    assert name != image_name("6" * 64, spec.properties)


# As it is


def test_only_a_whole_image_with_the_mark_is_used() -> None:
    marked = {"images": [in_glance("image-a"), in_glance("image-b", OTHER.token)]}
    world = read_world(NoCloud(**marked), OURS)
    assert [*world.images] == ["image-a"]
    assert world.scraps == {}
    for values in (
        {"status": "queued", "hash_value": None},
        {"status": "saving"},
        {"hash_value": "b" * 128},
        {"hash_value": None},
        {"hash_algo": "md4"},
        {"hash_algo": None},
    ):
        broken = in_glance("image-a", **values)
        assert not is_whole(broken)
        world = read_world(NoCloud(images=[broken]), OURS)
        assert (world.images, [*world.scraps]) == ({}, ["image-a"])


def test_a_server_shows_the_image_that_it_was_made_of() -> None:
    spec = spec_with("/a")
    was = {"nearmetal.host": "h1", "nearmetal.slots": "1", "nearmetal.image": "image-old"}
    one = server(metadata=was)
    ports = {("n1", "mpi"): port("s1")}
    there = World(servers={"n1": one}, images={"image-now": in_glance("image-now")}, ports=ports)
    assert server_values(spec, there, Known(), "n1").image == "image-now"
    # The image is gone from Glance: the server keeps what its metadata say.
    gone = World(servers={"n1": one}, ports=ports)
    assert server_values(spec, gone, Known(), "n1").image == "image-old"


def test_what_an_upload_left_goes_before_the_next_one(disk: Path, tmp_path: Path) -> None:
    spec = spec_with(str(disk))
    name = image_name(hashlib.sha256(CONTENT).hexdigest(), spec.properties)
    world = world_of()
    world.scraps[name].append(item("scrap"))
    world.scraps["image-000000000000"].append(item("older"))
    backend = backend_of(spec, world, tmp_path)
    facts, observed = backend.facts(), backend.observe()
    plan = make_plan("c", desired(spec, facts, observed), observed)
    steps = [(c.key.name, c.action.value) for c in plan.effective if c.key.kind is Kind.DISK]
    assert steps == [("image-000000000000", "-"), (name, "+")]
    backend.delete(Key(Kind.DISK, "image-000000000000"))
    assert backend._session.requests[-1] == ("delete_image", "older")  # type: ignore[attr-defined]


# Uploads


class Glance:
    """As much of Glance as an upload needs. `spoil`: whether it loses a byte."""

    def __init__(self, *, spoil: bool = False, algorithm: str = "sha512") -> None:
        self.spoil, self.sent, self.algorithm = spoil, b"", algorithm
        self.body: dict[str, str] = {}
        self.id = str(uuid.uuid4())

    def _answer(self, code: int, content: Any = None) -> SimpleNamespace:
        return SimpleNamespace(status_code=code, json=lambda: content, headers={})

    def post(self, url: str, *, json: dict[str, str]) -> SimpleNamespace:
        assert url == "/images"
        self.body = json
        return self._answer(201, {"id": self.id})

    def put(
        self, url: str, *, data: Any, headers: dict[str, str], timeout: tuple[float, float]
    ) -> SimpleNamespace:
        # A store may need many minutes after the last byte.
        assert timeout[1] >= 3600
        assert (url, [*headers.values()]) == (
            f"/images/{self.id}/file",
            ["application/octet-stream"],
        )
        self.sent = data.read()[: -1 if self.spoil else None]
        return self._answer(204)

    def get_image(self, image: str) -> SimpleNamespace:
        assert image == self.id
        value = hashlib.new(self.algorithm, self.sent).hexdigest()
        values = {"hash_algo": self.algorithm, "hash_value": value, "status": "active"}
        return item(image, properties=self.body, min_ram=0, min_disk=0, **values)


def uploaded(glance: Glance, file: ImageFile) -> Any:
    session = NoCloud()
    session.sdk.image = glance
    properties = {"os_distro": "debian", "hw_disk_bus": "virtio"}
    return upload(session, OURS, file, "image-x", cluster="c", properties=properties)


def test_an_upload_has_mark_checksums_and_properties_from_the_first_request_on(disk: Path) -> None:
    glance = Glance()
    image = uploaded(glance, file_of(disk))
    assert is_whole(image)
    assert glance.sent == CONTENT
    assert glance.body == {
        "name": "c.image-x",
        "visibility": "private",
        "container_format": "bare",
        "disk_format": "raw",
        "os_distro": "debian",
        "hw_disk_bus": "virtio",
        "nearmetal_mark": OURS.token,
        "nearmetal_image": "image-x",
        "nearmetal_sha256": hashlib.sha256(CONTENT).hexdigest(),
        "nearmetal_sha512": hashlib.sha512(CONTENT).hexdigest(),
    }


def test_an_image_that_arrives_damaged_is_an_error(disk: Path) -> None:
    with pytest.raises(BackendError, match="with another checksum"):
        uploaded(Glance(spoil=True), file_of(disk))


def test_a_checksum_that_is_not_compared_is_named(disk: Path) -> None:
    """Another upload would not help."""
    with pytest.raises(BackendError, match="with the checksum sha384, and") as caught:
        uploaded(Glance(algorithm="sha384"), file_of(disk))
    assert "upload the file yourself" in caught.value.hint


def test_an_image_that_an_administrator_deactivates_is_not_replaced(
    disk: Path, tmp_path: Path
) -> None:
    spec = spec_with(str(disk))
    name = image_name(hashlib.sha256(CONTENT).hexdigest(), spec.properties)
    there = in_glance(name, status="deactivated")
    there.properties["nearmetal_sha256"] = hashlib.sha256(CONTENT).hexdigest()
    world = read_world(NoCloud(images=[there]), OURS)
    assert ([*world.images], world.scraps) == ([name], {})
    backend = backend_of(spec, world, tmp_path)
    facts, observed = backend.facts(), backend.observe()
    plan = make_plan("c", desired(spec, facts, observed), observed)
    assert not [c for c in plan.effective if c.key.kind is Kind.DISK]
    (finding,) = backend._deactivated(plan)
    assert finding.why == "its status is deactivated"


def test_a_file_that_changes_after_the_plan_is_not_uploaded(disk: Path) -> None:
    file, glance = file_of(disk), Glance()
    assert file.sha256
    disk.write_bytes(CONTENT + bytes(512))
    with pytest.raises(BackendError, match="it has changed since the plan"):
        uploaded(glance, file)
    assert glance.body == {}


def test_a_file_that_no_machine_boots_is_refused_before_the_first_change(
    disk: Path, tmp_path: Path
) -> None:
    disk.write_bytes(bytes(1024))
    file_of(disk)
    backend = backend_of(spec_with(str(disk)), world_of(), tmp_path)
    facts, observed = backend.facts(), backend.observe()
    plan = make_plan("c", desired(backend.spec, facts, observed), observed)
    with pytest.raises(BackendError, match="it has no boot sector"):
        backend.check(plan)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    backend = backend_of(spec_with("/nowhere/disk"), World(), tmp_path)
    with pytest.raises(BackendError, match="image /nowhere/disk: No such file"):
        backend.facts()
    # What is removed is not read.
    assert backend.observe().resources


def test_a_flavor_with_a_smaller_disk_than_the_file_is_refused(disk: Path, tmp_path: Path) -> None:
    with disk.open("r+b") as stream:
        stream.truncate((1 << 30) + 512)
    files = {str(disk): file_of(disk)}
    backend = backend_of(spec_with(str(disk)), world_of(), tmp_path)
    facts, observed = backend.facts(), backend.observe()
    plan = make_plan("c", desired(backend.spec, facts, observed), observed)
    small = Given(flavor=item("small", ram=512, disk=1))
    (finding,) = missing(backend.spec, plan, small, files)
    assert finding.why == f"image {disk} needs 2 GiB of disk, the flavor has 1"
