# SPDX-License-Identifier: Apache-2.0
"""Parts of an image, a kernel, and a runner that makes a system without Debian, for tests."""

import lzma
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from nearmetal.core.process import Command, Completed, Runner
from nearmetal.image import Parts
from nearmetal.image.parts import link, regular

ELF = b"\x7fELF" + bytes(range(256)) * 40
PACKAGES = f"""Package: linux-image-6.12.1-amd64
Version: 6.12.1-1
Architecture: amd64
SHA256: {"ab" * 32}
Description: a kernel

Package: busybox-static
Version: 1:1.37.0-6+b9
Architecture: amd64
SHA256: {"cd" * 32}
"""


def bzimage(unpacked: bytes = ELF, *, size: int | None = None, length: int | None = None) -> bytes:
    """Return a kernel as Debian packs it; `size`, `length`: lies in its header."""
    packed = lzma.compress(unpacked) + struct.pack("<I", len(unpacked) if size is None else size)
    kernel = bytearray(1024)
    kernel[0x1F1] = 1
    kernel[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", kernel, 0x206, 0x020F)
    struct.pack_into("<II", kernel, 0x248, 16, len(packed) if length is None else length)
    return bytes(kernel) + bytes(16) + packed


def parts(folder: Path, unit: bytes = b"#!/bin/sh\n") -> Parts:
    """Return small parts."""
    setup = folder / "setup.sh"
    setup.write_text("true\n")
    items = (regular("usr/lib/nearmetal/unit", unit, 0o755), link("usr/bin/unit", "../lib/unit"))
    return Parts(
        items, b"#!/bin/busybox sh\n", ("linux-image-amd64",), ("/usr/share/doc/*",), setup
    )


@dataclass
class FakeDebian:
    """A runner for the two programs of a build; `before` is called with each one's name."""

    before: Callable[[str], None] = lambda _name: None
    kernel: bytes = field(default_factory=bzimage)
    packages: str = PACKAGES
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def attach(
        self,
        command: Command,
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        timeout_s: float | None = None,
        foreground: bool = False,
    ) -> Completed:
        del stderr, timeout_s, foreground
        argv = command.argv[command.argv.index("--") + 1 :]
        self.calls.append(argv)
        self.before(argv[0])
        if argv[0] == "mmdebstrap":
            (tar,) = (Path(word) for word in argv if word.endswith("/root.tar"))
            taken = tar.parent / "nearmetal-build"
            (taken / "modules").mkdir(parents=True)
            tar.write_bytes(b"a tree")
            (taken / "vmlinux").write_bytes(self.kernel)
            (taken / "busybox").write_bytes(b"busybox")
            (taken / "packages").write_text(self.packages)
            (taken / "modules/10-virtio_blk.ko.xz").write_bytes(lzma.compress(b"a module"))
            return Completed(command, 0, b"", b"", 0.0)
        assert stdin is not None
        assert stdout is not None
        Path(command.argv[-1]).write_bytes(b"squashed " + stdin.read())
        return Completed(command, 0, b"", b"", 0.0)

    def runner(self) -> Runner:
        return cast("Runner", self)
