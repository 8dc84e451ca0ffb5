# SPDX-License-Identifier: Apache-2.0
"""The disc for cloud images: what is on it, who may read it, what happens when it cannot be written."""

import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from pycdlib import PyCdlib

from nearmetal.core.errors import ImageError
from nearmetal.image.nocloud import disc_files, write_disc
from nearmetal.image.seed import Seed
from tests.python.image_parts import parts
from tests.python.seeds import SECRET, seed_data


@pytest.fixture
def seed() -> Seed:
    data = seed_data()
    data["interfaces"].append({"mac": "52:54:00:00:00:02", "gateway": None})
    return Seed.model_validate(data)


def read_back(path: Path) -> tuple[str, dict[str, bytes]]:
    disc = PyCdlib()
    disc.open(str(path))
    label = disc.pvd.volume_identifier.decode().strip()
    found = {}
    for child in disc.list_children(rr_path="/"):
        if child.is_dot() or child.is_dotdot():
            continue
        name = child.rock_ridge.name().decode()
        content = io.BytesIO()
        disc.get_file_from_iso_fp(content, joliet_path=f"/{name}")
        found[name] = content.getvalue()
    disc.close()
    return label, found


def test_the_disc_holds_what_cloud_init_looks_for(tmp_path: Path, seed: Seed) -> None:
    path, given = tmp_path / "disc.iso", parts(tmp_path)
    write_disc(path, seed, given)
    label, found = read_back(path)
    assert label == "cidata"
    assert found == disc_files(seed, given)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".iso"] == ["disc.iso"]


def test_private_keys_are_in_the_seed_alone(tmp_path: Path, seed: Seed) -> None:
    files = disc_files(seed, parts(tmp_path))
    assert [name for name, content in files.items() if SECRET.encode() in content] == ["seed.json"]
    assert Seed.from_json(files["seed.json"].decode()) == seed


def test_the_machine_waits_for_no_dhcp(tmp_path: Path, seed: Seed) -> None:
    network: dict[str, Any] = yaml.safe_load(disc_files(seed, parts(tmp_path))["network-config"])
    assert network["ethernets"]["nm0"] == {
        "match": {"macaddress": "52:54:00:00:00:01"},
        "optional": True,
        "addresses": ["10.9.0.11/24"],
        "mtu": 1500,
    }
    assert network["ethernets"]["nm1"]["dhcp4"] is False


def test_a_new_seed_is_a_new_instance(tmp_path: Path, seed: Seed) -> None:
    other = seed.model_copy(update={"cluster": "another"})
    first, second = (
        json.loads(disc_files(s, parts(tmp_path))["meta-data"])["instance-id"]
        for s in (seed, other)
    )
    assert first != second


def test_user_data_is_what_cloud_init_takes(tmp_path: Path, seed: Seed) -> None:
    text = disc_files(seed, parts(tmp_path))["user-data"].decode()
    assert text.startswith("#cloud-config\n")
    data = yaml.safe_load(text)
    ((shell, option, script),) = data["runcmd"]
    assert (shell, option) == ("sh", "-c")
    assert "become-node" in script


def test_the_tar_archive_holds_files_of_root_at_their_places(tmp_path: Path, seed: Seed) -> None:
    data = disc_files(seed, parts(tmp_path))["nearmetal.tar"]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {m.name: (m.mode, m.uid, m.issym(), m.mtime) for m in archive.getmembers()}
    assert members == {
        "usr/lib/nearmetal/unit": (0o755, 0, False, 0),
        "usr/bin/unit": (0o777, 0, True, 0),
    }


def test_a_disc_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, seed: Seed) -> None:
    path = tmp_path / "disc.iso"
    path.mkdir()
    with pytest.raises(ImageError, match=r"cannot write .*disc\.iso"):
        write_disc(path, seed, parts(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] in (
        ["disc.iso", "setup.sh"],
        ["setup.sh", "disc.iso"],
    )
