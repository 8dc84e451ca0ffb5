# SPDX-License-Identifier: Apache-2.0
"""Makes a cloud image as a distribution would: systemd and cloud-init, nothing of nearmetal in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from nearmetal.core.process import LocalRunner
from nearmetal.image import machine_mirror
from tests.system.machines import CACHE
from tests.system.need import lacking

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = (
    "cloud-init",
    "grub-pc-bin",
    "initramfs-tools",
    "iproute2",
    "linux-image-amd64",
    "netplan.io",
    "openssh-server",
    "systemd-sysv",
    "udev",
)
# What a distribution's image builder does: no host keys, no machine id, DHCP by default.
SETUP = (
    'rm -f "$1"/etc/ssh/ssh_host_*; : >"$1/etc/machine-id"; '
    'chroot "$1" systemctl enable systemd-networkd; '
    """echo 'datasource_list: [NoCloud, ConfigDrive, None]' >"$1/etc/cloud/cloud.cfg.d/90_ds.cfg\""""
)

# A boot loader without a device to install it on: its image lies behind the first sector, which
# names that place already.
LOADER = (
    "grub-mkimage -O i386-pc -o /core.img -p '(hd0,msdos1)/boot/grub'"
    " biosdisk part_msdos ext2 linux normal"
)
MENU = """\
linux /boot/vmlinuz root=/dev/vda1 rw console=ttyS0 net.ifnames=0
initrd /boot/initrd.img
boot
"""
_CONTENT = "\n".join((*PACKAGES, SETUP, LOADER, MENU)).encode()
FOLDER = CACHE / f"cloud-image-{hashlib.sha256(_CONTENT).hexdigest()[:12]}"
SECTOR, BEGIN, SIZE = 512, 1 << 20, 2 << 30
CODE = 440
"""Bytes of the first sector that are the boot loader's; the table of partitions follows."""


def cloud_image() -> Path:
    """Return a folder with a plain Debian 13 cloud image, made when it is not there.

    disk.qcow2 is what its maker would offer; vmlinuz, initrd.img and root.ext4 are its parts.
    """
    if os.geteuid() != 0:
        pytest.skip("making a cloud image with owners and devices needs root")
    for program in ("mmdebstrap", "qemu-img", "mke2fs"):
        if shutil.which(program) is None:
            lacking(f"no {program}: run `make setup-vm`")
    if not (FOLDER / "disk.qcow2").exists():
        for old in CACHE.glob("cloud-image*"):
            # Another content made it. It has a gigabyte.
            if old.is_dir() and old != FOLDER:
                _run("rm", "-rf", old)
        _make(FOLDER)
    return FOLDER


def _run(*argv: object, timeout: float = 900) -> None:
    subprocess.run([str(word) for word in argv], check=True, timeout=timeout)


def _make(folder: Path) -> None:
    tree, part, disk = folder / "tree", folder / "root.ext4", folder / "disk.raw"
    folder.mkdir(parents=True, exist_ok=True)
    _run("rm", "-rf", tree)
    _run(
        "mmdebstrap",
        "--mode=root",
        "--format=directory",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        "--aptopt=APT::Install-Recommends false",
        f"--customize-hook={SETUP}",
        f'--customize-hook=chroot "$1" {LOADER}',
        "trixie",
        tree,
        *machine_mirror(LocalRunner()).sources("trixie"),
        timeout=3000,
    )
    loader = tree / "usr/lib/grub/i386-pc/boot.img", tree / "core.img"
    first, rest = (path.read_bytes() for path in loader)
    loader[1].unlink()
    for name in ("vmlinuz", "initrd.img"):
        (file,) = (tree / "boot").glob(f"{name}-*")
        shutil.copyfile(file, folder / name)
        file.rename(tree / "boot" / name)
    (tree / "boot/grub").mkdir(exist_ok=True)
    (tree / "boot/grub/grub.cfg").write_text(MENU)
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^metadata_csum_seed", "-d", tree, part, "2G")
    _run("rm", "-rf", tree)
    with disk.open("wb") as stream:
        stream.write(first[:CODE].ljust(CODE, b"\0") + _table() + rest)
        assert stream.tell() <= BEGIN
        stream.truncate(BEGIN + SIZE)
    _run(
        "dd",
        f"if={part}",
        f"of={disk}",
        "bs=1M",
        f"seek={BEGIN >> 20}",
        "conv=notrunc,sparse",
        "status=none",
    )
    _run("qemu-img", "convert", "-O", "qcow2", disk, folder / "disk.new")
    disk.unlink()
    (folder / "disk.new").rename(folder / "disk.qcow2")


def _table() -> bytes:
    """Return what ends a first sector: the disk's number, one partition that boots, the mark."""
    linux, active = 0x83, 0x80
    entry = struct.pack(
        "<B3sB3sII", active, b"\0" * 3, linux, b"\0" * 3, BEGIN // SECTOR, SIZE // SECTOR
    )
    return b"nmc1\0\0" + entry + b"\0" * 48 + b"\x55\xaa"
