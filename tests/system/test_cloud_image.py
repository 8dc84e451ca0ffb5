# SPDX-License-Identifier: Apache-2.0
"""A cloud image of one's own: systemd and cloud-init, nothing of nearmetal in it but by the disc."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.image import parts_here
from nearmetal.image.nocloud import write_disc
from nearmetal.image.seed import Seed
from tests.system.cloud_images import cloud_image
from tests.system.machines import Machine, Shared, Yard, built_image

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(3600),
]

MIB = 1 << 20


@pytest.fixture(scope="module")
def cloud() -> Path:
    """Return a folder with kernel, initrd and root.ext4 of a plain Debian 13 cloud image."""
    return cloud_image()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, cloud: Path) -> Iterator[tuple[Machine, Shared]]:
    folder = tmp_path_factory.mktemp("cloud")
    yard = Yard(
        folder,
        built_image()
        | {
            "kernel": str(cloud / "vmlinuz"),
            "initrd": str(cloud / "initrd.img"),
            "root": str(cloud / "root.ext4"),
            "append": "console=ttyS0 root=/dev/vda rw net.ifnames=0",
        },
    )
    shared = Shared.create(yard.memory("segment"), 2, 2 * MIB)
    seed = yard.seed("vm1", ["vm1", "vm2"], segment=shared.seed(1))
    disc = folder / "disc.iso"
    write_disc(disc, Seed.model_validate(seed), parts_here())
    drive = f"file={disc},if=none,id=disc,format=raw,readonly=on"
    devices = [*shared.devices(1), "-drive", drive, "-device", "virtio-blk-pci,drive=disc"]
    try:
        yield yard.start("vm1", seed, devices, cloud=True).ready(), shared
    finally:
        yard.end()


def test_it_becomes_what_its_seed_says(node: tuple[Machine, Shared]) -> None:
    machine, _ = node
    assert machine.tell("hostname") == "vm1"
    assert machine.tell("getent hosts vm2").split() == ["10.9.0.12", "vm2"]
    assert machine.tell("id -nG").split() == ["mpi", "nearmetal"]
    states = machine.tell("systemctl is-active nearmetal-guest.service ssh.service", "root")
    assert states.split() == ["active", "active"]
    assert "10.9.0.11/24" in machine.tell("ip -br address show eth0")


def test_it_finds_the_segment(node: tuple[Machine, Shared]) -> None:
    machine, shared = node
    told = machine.tell("cat /run/nearmetal/segment.conf")
    assert f"token = {shared.token}" in told
    assert "part = 1" in told
    modes = machine.tell("stat -L -c '%a %G' /dev/nearmetal/own /dev/nearmetal/all")
    assert modes.splitlines() == ["660 nearmetal", "440 nearmetal"]


def test_sessions_find_the_provider(node: tuple[Machine, Shared]) -> None:
    machine, _ = node
    assert machine.tell("echo $FI_PROVIDER_PATH") == "+/usr/lib/nearmetal/libnearmetal-fi.so"
    machine.tell("nearmetal-info >/dev/null && test -r /usr/lib/nearmetal/libnearmetal-fi.so")


def test_secrets_stay_with_root(node: tuple[Machine, Shared]) -> None:
    machine, _ = node
    for path in ("/etc/nearmetal/seed.json", "/etc/nearmetal/ssh_host_key", "/dev/vdb"):
        assert machine.run(f"cat {path} >/dev/null").returncode != 0, path
    assert machine.run("cat /run/nearmetal-disc/seed.json").returncode != 0


def test_the_unit_may_be_started_again(node: tuple[Machine, Shared]) -> None:
    machine, _ = node
    boot = machine.tell("cat /proc/sys/kernel/random/boot_id")
    machine.run("systemctl restart nearmetal-guest.service", "root")
    assert machine.tell("systemctl is-active nearmetal-guest.service", "root") == "active"
    assert machine.tell("cat /proc/sys/kernel/random/boot_id") == boot
