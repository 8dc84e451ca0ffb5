# SPDX-License-Identifier: Apache-2.0
"""The built image on a cloud: the real part of the guest unit that reads config drives."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from nearmetal.core.resources import share
from nearmetal.image.seed import SAY_KEY, FirstSeed, first_user_data

KEY = "ssh-ed25519 " + "A" * 68
FIRST = FirstSeed.model_validate(
    {
        "cluster": "c",
        "name": "n1",
        "interfaces": [{"mac": "fa:16:3e:00:00:01", "address": "10.77.0.11/24"}],
        "ssh": {"authorized_keys": [KEY]},
    }
)
OURS = first_user_data(FIRST)

# Drives are folders. One without `disc` has a file system of another type.
SCRIPT = """
set -u
etc={top}/etc run={top}/run lib={unit}
say() {{ echo "$1" >&2; }}
fail() {{ say "failed: $*"; exit 1; }}
put() {{ cat >"$1.new" && mv -f "$1.new" "$1"; }}
sleep() {{ :; }}
real() {{ [ "$1" != blkid ] || ls -d {top}/drives/* 2>/dev/null; }}
mount() {{
	for word; do
		case $word in {top}/drives/*) [ -e "$word/disc" ] && cp -a "$word/." {top}/run/drive/; return ;; esac
	done
}}
umount() {{ rm -rf "$1" && mkdir "$1"; }}
. "$lib/seed.sh"
. "$lib/cloud.sh"
cloud_load_drivers() {{ :; }}
cloud_fetch || exit 3
seed_read
echo "$node"
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


def fetch(top: Path, **drives: bytes | None) -> subprocess.CompletedProcess[str]:
    """Run the unit with these drives, in the order of their names; None: no disc."""
    if shutil.which("jq") is None:
        pytest.skip("no jq, which this part of the unit uses")
    for place in ("etc", "run", "drives"):
        (top / place).mkdir()
    for name, data in drives.items():
        folder = top / "drives" / name / "openstack" / "latest"
        folder.mkdir(parents=True)
        (folder / "user_data").write_bytes(OURS if data is None else data)
        if data is not None:
            (top / "drives" / name / "disc").touch()
    return run(SCRIPT.format(top=top, unit=share("guest", "unit")))


def test_the_user_data_of_a_config_drive_are_read(tmp_path: Path) -> None:
    done = fetch(tmp_path, sr0=OURS)
    assert (done.returncode, done.stdout) == (0, "n1\n"), done.stderr
    assert json.loads((tmp_path / "etc" / "seed.first").read_text())["name"] == "n1"
    assert [*(tmp_path / "run").iterdir()] == []


@pytest.mark.parametrize("other", [None, b"#cloud-config\n{}\n", b"\xff\n\xff", b""])
def test_a_volume_with_the_label_of_config_drives_does_no_harm(
    tmp_path: Path, other: bytes | None
) -> None:
    done = fetch(tmp_path, a_volume=other, sr0=OURS)
    assert (done.returncode, done.stdout) == (0, "n1\n"), done.stderr


def test_a_drive_without_our_data_is_named(tmp_path: Path) -> None:
    done = fetch(tmp_path, sr0=b"#cloud-config\n{}\n")
    assert done.returncode == 1
    assert f"user data on the config drive {tmp_path}/drives/sr0 are not those" in done.stderr


def test_a_drive_that_cannot_be_mounted_is_named(tmp_path: Path) -> None:
    done = fetch(tmp_path, sr0=None)
    assert done.returncode == 1
    assert f"cannot mount the config drive {tmp_path}/drives/sr0" in done.stderr


def test_without_a_drive_there_is_no_seed(tmp_path: Path) -> None:
    assert fetch(tmp_path).returncode == 3


def test_the_key_is_said_twice_as_the_kernel_may_cut_a_line(tmp_path: Path) -> None:
    for folder in ("etc", "run"):
        (tmp_path / folder).mkdir()
    (tmp_path / "etc" / "ssh_host_key.pub").write_text(f"{KEY} \n")
    script = SCRIPT.format(top=tmp_path, unit=share("guest", "unit"))
    script = script.partition("cloud_fetch ||")[0] + "sleep() { say pause; }\ncloud_say_key\n"
    done = run(script)
    line = f"nearmetal: key {KEY}"
    assert done.stderr.splitlines() == [line, "pause", line]


def test_cloud_init_says_the_key_twice_at_both_places(tmp_path: Path) -> None:
    (tmp_path / "ssh_host_ed25519_key.pub").write_text(f"{KEY} root@host\n")
    script = SAY_KEY.replace("/etc/ssh/", f"{tmp_path}/")
    script = script.replace("/dev/", f"{tmp_path}/").replace(">$", ">>$")
    done = run(f'sleep() {{ echo "$1"; }}\n{script}')
    assert (done.returncode, done.stdout.split()) == (0, ["2", "0"]), done.stderr
    for place in ("console", "ttyS0"):
        assert (tmp_path / place).read_text() == f"nearmetal: key {KEY}\n" * 2
