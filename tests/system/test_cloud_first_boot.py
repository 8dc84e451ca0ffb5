# SPDX-License-Identifier: Apache-2.0
"""A cloud image with the config drive of Nova: it shows its key, and becomes a node by ssh."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.cluster.ssh_guests import UNPACK, delivery, guest_parts
from nearmetal.image.seed import (
    KEY_MARK,
    FirstSeed,
    FirstSsh,
    Seed,
    SeedInterface,
    first_user_data,
)
from tests.system.cloud_images import cloud_image
from tests.system.machines import ROOT, Machine, Yard, built_image

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(3600),
]


def config_drive(folder: Path, user_data: bytes, mac: str, address: str) -> Path:
    """Write a config drive with the files that cloud-init reads of Nova's."""
    latest = folder / "drive" / "openstack" / "latest"
    latest.mkdir(parents=True)
    (latest / "user_data").write_bytes(user_data)
    meta = {"uuid": "5d3ca9f9-5b6c-4d7b-9d8e-0f1e2d3c4b5a", "hostname": "vm1", "name": "vm1"}
    (latest / "meta_data.json").write_text(json.dumps(meta))
    link = {"id": "tap0", "ethernet_mac_address": mac, "type": "bridge", "mtu": 1500}
    network = {
        "id": "network0",
        "link": "tap0",
        "type": "ipv4",
        "ip_address": address,
        "netmask": "255.255.255.0",
        "routes": [],
    }
    data = {"links": [link], "networks": [network], "services": []}
    (latest / "network_data.json").write_text(json.dumps(data))
    program, image = ROOT / "tests" / "openstack" / "mkisofs.py", folder / "drive.iso"
    argv = (sys.executable, "-I", program, "-o", image, "-V", "config-2", folder / "drive")
    subprocess.run([str(word) for word in argv], check=True, timeout=60)
    return image


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Yard]]:
    folder, cloud = tmp_path_factory.mktemp("first"), cloud_image()
    files = {"kernel": "vmlinuz", "initrd": "initrd.img", "root": "root.ext4"}
    image = built_image() | {name: str(cloud / file) for name, file in files.items()}
    image["append"] = "console=ttyS0 root=/dev/vda rw net.ifnames=0"
    yard = Yard(folder, image)
    seed = yard.seed("vm1", ["vm1"])
    mac = seed["interfaces"][1]["mac"]
    first = FirstSeed(
        cluster="yard",
        name="vm1",
        interfaces=[SeedInterface(mac=mac, address="10.0.2.15/24")],
        ssh=FirstSsh(authorized_keys=[yard.key("person").public]),
    )
    drive = config_drive(folder, first_user_data(first), mac, "10.0.2.15")
    devices = ["-drive", f"file={drive},media=cdrom,format=raw,readonly=on"]
    try:
        yield yard.start("vm1", seed, devices, cloud=True), yard
    finally:
        yard.end()


def test_a_cloud_image_shows_its_key_and_becomes_a_node(started: tuple[Machine, Yard]) -> None:
    machine, yard = started
    line = machine.wait_for(KEY_MARK)
    key = line[line.index(KEY_MARK) + len(KEY_MARK) :].strip()
    known = yard.folder / "known_hosts"
    known.write_text(f"vm1 {key}\n")
    assert machine.tell("id -un", "root") == "root"
    assert machine.tell("cat /proc/1/comm", "root") == "systemd"
    seed = yard.seed("vm1", ["vm1"])
    seed["nodes"][0]["address"] = "10.0.2.15"
    seed["interfaces"] = [
        {"mac": seed["interfaces"][1]["mac"], "address": "10.0.2.15/32", "keep": True}
    ]
    packed = gzip.compress(guest_parts(), 6)
    machine.tell(UNPACK, "root", stdin=delivery(Seed.model_validate(seed), packed))
    machine.ready()
    # From now on, sshd has the key of the seed.
    known.write_text(f"vm1 {yard.key('vm1').public}\n")
    subprocess.run(["ssh", *machine._options(), "-O", "exit", "127.0.0.1"], check=False, timeout=60)
    assert machine.tell("id -nG").split() == ["mpi", "nearmetal"]
    assert machine.tell("echo $FI_PROVIDER_PATH") == "+/usr/lib/nearmetal/libnearmetal-fi.so"
    assert machine.tell("getent hosts vm1").split() == ["10.0.2.15", "vm1"]
