# SPDX-License-Identifier: Apache-2.0
"""A disk with Debian 13 that starts by its own GRUB and systemd: a host out of the box.

Built once, by root, and kept under build/ by what it is made of; machines run on overlays.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from nearmetal.core.process import LocalRunner
from nearmetal.image.system import machine_mirror
from tests.system.need import lacking

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "image-cache" / "linux-disk"
SUITE = "trixie"
SIZE_MIB = 2048
SETUP = ROOT / "tests" / "system" / "programs" / "lab_setup.sh"
CARD = ROOT / "tests" / "system" / "programs" / "lab_card.py"
TOOLS = tuple(ROOT / "tests" / "python" / f"fake_{name}.py" for name in ("flint", "mlxconfig"))
PACKAGES = (
    "linux-image-amd64",
    "systemd-sysv",
    "udev",
    "kmod",
    "initramfs-tools",
    "openssh-server",
    "grub-pc-bin",
    "grub2-common",
    "iproute2",
    "ethtool",
    "python3",
    "procps",
)
EXCLUDED = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/usr/lib/modules/*/kernel/drivers/gpu/*",
    "/usr/lib/modules/*/kernel/drivers/media/*",
    "/usr/lib/modules/*/kernel/drivers/net/wireless/*",
    "/usr/lib/modules/*/kernel/sound/*",
    "/usr/lib/modules/*/kernel/drivers/usb/*",
    "/usr/lib/modules/*/kernel/drivers/iio/*",
)
# Before the kernel comes: its initial RAM disk holds what the root needs, and no more.
_INITRAMFS = """\
mkdir -p "$1/etc/initramfs-tools/conf.d"
printf 'MODULES=list\\nCOMPRESS=gzip\\n' >"$1/etc/initramfs-tools/conf.d/lab"
printf 'virtio_pci\\nvirtio_blk\\next4\\n' >"$1/etc/initramfs-tools/modules"
"""
_FIRST_SECTOR = 2048
_SECTOR = 512


def factory_disk() -> Path:
    """Return the disk, built if need be. Never written to again."""
    for program in ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mke2fs"):
        if shutil.which(program) is None:
            lacking(f"no {program}: run `make setup-vm`")
    if os.geteuid() != 0:
        lacking("a disk with a system on it is made by root")
    CACHE.mkdir(parents=True, exist_ok=True)
    disk = CACHE / f"{_key()}.raw"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not disk.exists():
            for old in CACHE.glob("*.raw"):
                old.unlink()
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                _build(Path(folder)).rename(disk)
    return disk


def _key() -> str:
    parts = [
        SUITE,
        SIZE_MIB,
        PACKAGES,
        EXCLUDED,
        *(p.read_text() for p in (SETUP, CARD, *TOOLS)),
        Path(__file__).read_text(),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _build(folder: Path) -> Path:
    """Return the disk in a folder that is thrown away."""
    tree, disk = folder / "tree", folder / "disk.raw"
    argv = [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        "--architectures=amd64",
        f"--include={','.join(PACKAGES)}",
        "--aptopt=APT::Install-Recommends false",
        "--aptopt=Acquire::Retries 3",
        "--aptopt=Acquire::Languages none",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
        f"--essential-hook={_INITRAMFS}",
        '--customize-hook=mkdir -p "$1/opt/lab"',
        *(f"--customize-hook=upload {path} /opt/lab/{path.name}" for path in (SETUP, CARD, *TOOLS)),
        f'--customize-hook=chroot "$1" sh /opt/lab/{SETUP.name}',
        SUITE,
        str(tree),
        *machine_mirror(LocalRunner()).sources(SUITE),
    ]
    _run(argv, {"TMPDIR": str(folder)})
    # An empty one makes each start the first one, which takes long.
    (tree / "etc" / "machine-id").write_text(f"{_key():0<32}\n")
    return _disk(tree, disk)


def _disk(tree: Path, disk: Path) -> Path:
    """Make a disk that starts, out of a tree."""
    with disk.open("wb") as stream:
        stream.truncate(SIZE_MIB << 20)
    blocks = (SIZE_MIB << 10) - _FIRST_SECTOR * _SECTOR // 1024
    _run(
        [
            "mke2fs",
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-d",
            str(tree),
            # What GRUB reads.
            "-O",
            "^metadata_csum_seed,^orphan_file",
            "-E",
            f"offset={_FIRST_SECTOR * _SECTOR}",
            str(disk),
            f"{blocks}k",
        ]
    )
    _make_bootable(disk, tree / "boot" / "grub")
    return disk


def _make_bootable(disk: Path, grub: Path) -> None:
    """Write the partition table and GRUB: its first sector, and its core right behind it."""
    boot = (grub / "i386-pc" / "boot.img").read_bytes()
    core = (grub / "core.img").read_bytes()
    assert len(core) < (_FIRST_SECTOR - 1) * _SECTOR
    sectors = (SIZE_MIB << 20) // _SECTOR - _FIRST_SECTOR
    far = b"\xfe\xff\xff"
    entry = struct.pack("<B3sB3sII", 0x80, far, 0x83, far, _FIRST_SECTOR, sectors)
    first = boot[:440] + bytes(6) + entry + bytes(48) + b"\x55\xaa"
    with disk.open("r+b") as stream:
        stream.write(first + core)


def _run(argv: list[str], more: dict[str, str] | None = None) -> None:
    env = {**os.environ, "LC_ALL": "C.UTF-8", **(more or {})}
    # Ends with this process, and with it what it would still write.
    done = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", "--", *argv],
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, f"{argv[0]}: {done.stderr[-3000:]}"
