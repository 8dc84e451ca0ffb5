# SPDX-License-Identifier: Apache-2.0
"""The system of the built image: a Debian 13 tree as a compressed, read-only root file system.

Its packages come from the mirrors that this machine's apt uses, or from a given one. QEMU enters
the ELF file inside Debian's compressed kernel directly (PVH). The compressed kernel boots as well,
but decompresses itself inside the machine, which takes seconds without KVM; EFI starts only that
one. Its header is the one of the Linux/x86 boot protocol, version 2.08 and later.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import struct
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import IO

from nearmetal.core.errors import ImageError, UsageError
from nearmetal.core.process import Command, Runner, find_program
from nearmetal.image.cache import Package, SystemManifest, read_limited, record
from nearmetal.image.parts import Parts

SUITE = "trixie"
ROOT = "root.squashfs"
KERNEL = "vmlinux"
EFI_KERNEL = "vmlinuz"
BUSYBOX = "busybox"
LOADER, LOADER_REST = "boot.img", "core.img"
"""GRUB for disks: what its first sector holds, and what follows. Only systems with GRUB have it."""

STEPS = ("Debian packages", "root file system", "kernel")

_FORMAT = 2
"""Increment it if this module makes another system from the same parts."""

_EPOCH = "1754006400"
"""The time of every file made by the build: an image must not depend on when it was made."""

_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "tar2sqfs": "squashfs-tools-ng",
    "zstd": "zstd",
    "apt-get": "apt",
}
_DEBIAN_TIMEOUT_S = 3600.0
_SQUASH_TIMEOUT_S = 1200.0
_MAX_MODULE = 16 << 20
_MAX_TAKEN = 64 << 20
_MODULE = re.compile(r"[0-9]{2}-[A-Za-z0-9_-]{1,64}\.ko(\.xz)?")
_KERNEL_PACKAGE = re.compile(r"linux-image-([0-9]+\.[0-9]+[A-Za-z0-9.+~_-]{0,64})")
_LOG = "build.log"
_CAUSES = (
    "No space left",
    "Could not resolve",
    "Failed to fetch",
    "Unable to locate package",
    "Permission denied",
    "newuidmap",
)
"""Words of the errors that explain the others, the most certain ones first."""

_GRUB = "grub-pc-bin"
_TAKE_LOADER = (
    "grub-mkimage -O i386-pc -o /nearmetal-build/core.img -p '(hd0,msdos1)/'"
    " biosdisk part_msdos tar linux normal && cp /usr/lib/grub/i386-pc/boot.img /nearmetal-build"
)
"""The first partition is an archive, so GRUB needs no file system."""

_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")
"""Ends the program when this process is killed, so it writes nothing afterwards."""

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_APT_TIMEOUT_S = 60.0
_URI = r"(https?|file|copy)://?[A-Za-z0-9._~:/@%+-]+"
_INDEX = re.compile(rf"(bookworm|trixie|forky|sid)(?P<security>-security)? main (?P<uri>{_URI})")

_MAX_KERNEL = 256 << 20
_SECTOR = 512
_SETUP_SECTORS, _MAGIC, _VERSION, _PAYLOAD = 0x1F1, 0x202, 0x206, 0x248
_HEADER_END = 0x250
_FIRST_WITH_PAYLOAD = 0x0208
_ZSTD, _XZ, _ELF = b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"\x7fELF"
_ZSTD_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Mirror:
    """A Debian archive, and its archive of security updates if there is one."""

    archive: str
    security: str | None = None

    def sources(self, suite: str) -> list[str]:
        """Return lines for apt's list of sources; every index is checked by Debian's keys."""
        lines = [f"deb [signed-by={KEYRING}] {self.archive} {suite} main"]
        if self.security:
            lines.append(f"deb [signed-by={KEYRING}] {self.security} {suite}-security main")
        return lines


def named_mirror(uri: str) -> Mirror:
    """Return the archive at a URI; raises UsageError for anything else."""
    if not re.fullmatch(_URI, uri):
        raise UsageError(
            f"--mirror {uri!r} is not the address of a Debian archive",
            "use for example http://mirror.example/debian",
        )
    return Mirror(uri)


def machine_mirror(runner: Runner) -> Mirror:
    """Return the archives of this machine's apt; raises ImageError if none is Debian's."""
    format_ = "$(RELEASE) $(COMPONENT) $(REPO_URI)"
    command = Command(("apt-get", "indextargets", "--format", format_, "Created-By: Packages"))
    lines = runner.check(command, timeout_s=_APT_TIMEOUT_S).text.splitlines()
    archive, security = mirrors_of(lines)
    if archive is None:
        raise ImageError(
            "the apt sources of this machine contain no Debian archive",
            "give one: nearmetal image build --mirror URI",
        )
    return Mirror(archive, security)


def mirrors_of(lines: list[str]) -> tuple[str | None, str | None]:
    """Return archive and security archive out of `release component uri` lines. Pure."""
    found: dict[bool, str] = {}
    for line in lines:
        if match := _INDEX.fullmatch(line.strip()):
            found.setdefault(match["security"] is not None, match["uri"])
    return found.get(False), found.get(True)


def system_key(parts: Parts) -> str:
    """Return the key of the system of these parts: same inputs, same key."""
    asked = {
        "format": _FORMAT,
        "suite": SUITE,
        "epoch": _EPOCH,
        "packages": sorted(parts.packages),
        "excludes": sorted(parts.excludes),
        "setup": parts.system_setup.read_text(),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def require_tools() -> None:
    """Raise ImageError with every missing program and its package."""
    missing = [name for name in _TOOLS if find_program(name) is None]
    if missing:
        packages = " ".join(_TOOLS[name] for name in missing)
        raise ImageError(
            f"building an image needs {', '.join(missing)}",
            f"as root: apt-get install --no-install-recommends {packages}",
        )


def debootstrap(parts: Parts, mirror: Mirror, folder: Path, runner: Runner) -> None:
    """Make `folder`/root.tar and `folder`/nearmetal-build; raises ImageError with the reason."""
    packages = ",".join(sorted(parts.packages))
    argv = [
        "mmdebstrap",
        "--mode=auto",
        "--variant=minbase",
        "--format=tar",
        "--skip=output/dev",
        "--architectures=amd64",
        f"--include={packages}",
        "--aptopt=APT::Install-Recommends false",
        "--aptopt=Acquire::Retries 3",
        "--aptopt=Acquire::Languages none",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in parts.excludes),
        f"--customize-hook=upload {parts.system_setup} /nearmetal-setup",
        '--customize-hook=chroot "$1" sh /nearmetal-setup',
        *(
            [f'--customize-hook=chroot "$1" sh -c "{_TAKE_LOADER}"']
            if _GRUB in parts.packages
            else []
        ),
        f"--customize-hook=copy-out /nearmetal-build {folder}",
        '--customize-hook=rm -rf "$1/nearmetal-setup" "$1/nearmetal-build"',
        SUITE,
        str(folder / "root.tar"),
        *mirror.sources(SUITE),
    ]
    env = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH, "LC_ALL": "C.UTF-8"}
    if os.geteuid() == 0:
        # Beside the result: only one place needs room, and the next build removes leftovers. Not
        # without root: the users of the namespace are others, and cannot enter a home.
        env["TMPDIR"] = str(folder)
    _logged(Command(tuple(argv), env=env), folder, runner, _DEBIAN_TIMEOUT_S)


def squash(folder: Path, runner: Runner) -> None:
    """Turn root.tar into root.squashfs. lz4: a machine without KVM decompresses slowly."""
    tar = folder / "root.tar"
    options = f"--quiet --compressor lz4 --no-xattr --defaults mtime={_EPOCH}"
    command = Command(("tar2sqfs", *options.split(), str(folder / ROOT)))
    with tar.open("rb") as stream:
        _logged(command, folder, runner, _SQUASH_TIMEOUT_S, stream)
    tar.unlink()


def _logged(
    command: Command, folder: Path, runner: Runner, timeout_s: float, stdin: IO[bytes] | None = None
) -> None:
    log = folder / _LOG
    started = replace(command, argv=(*_WITH_US, *command.argv))
    with log.open("ab") as output:
        done = runner.attach(
            started, stdin=stdin, stdout=output, stderr=output, timeout_s=timeout_s
        )
    if done.timed_out:
        raise ImageError(f"{command.argv[0]} did not end within {timeout_s:g} s", _tail(log))
    if done.code != 0:
        raise ImageError(f"{command.argv[0]} failed: {_reason(log)}", _tail(log))


def _words(log: Path) -> list[str]:
    text = log.read_bytes()[-65536:].decode("utf-8", "replace")
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def _reason(log: Path) -> str:
    """Return the most useful line: the first error with a known cause."""
    lines = _words(log)
    known = [line for cause in _CAUSES for line in lines if cause in line]
    errors = [line for line in lines if line.startswith(("E:", "tar2sqfs:"))]
    return (known or errors or lines or ["it wrote no message"])[0]


def _tail(log: Path) -> str:
    return "the end of its log:\n" + "\n".join(_words(log)[-8:])


def take_kernel(folder: Path, key: str, runner: Runner) -> SystemManifest:
    """Unpack the files that the build of the tree left in nearmetal-build; return the manifest."""
    taken = folder / "nearmetal-build"
    compressed = _read(taken / "vmlinux")
    (folder / EFI_KERNEL).write_bytes(compressed)
    (folder / KERNEL).write_bytes(uncompressed_kernel(compressed, runner))
    (folder / BUSYBOX).write_bytes(_read(taken / "busybox"))
    names = [KERNEL, EFI_KERNEL, ROOT, BUSYBOX]
    for name in (name for name in (LOADER, LOADER_REST) if (taken / name).exists()):
        (folder / name).write_bytes(_read(taken / name))
        names.append(name)
    for path in sorted((taken / "modules").iterdir()):
        if not _MODULE.fullmatch(path.name):
            raise ImageError(f"unexpected file name for a kernel module: {path.name!r}")
        content = _read(path)
        if path.suffix == ".xz":
            content = unpack_xz(content, _MAX_MODULE)
        name = path.name.removesuffix(".xz").lower()
        (folder / name).write_bytes(content)
        names.append(name)
    packages = parse_packages(_read(taken / "packages").decode("utf-8", "replace"))
    release = kernel_release(packages)
    shutil.rmtree(taken)
    (folder / _LOG).unlink()
    return SystemManifest(
        key=key,
        files=[record(folder / name) for name in names],
        suite=SUITE,
        kernel_release=release,
        packages=packages,
    )


def _read(path: Path) -> bytes:
    content = read_limited(path, _MAX_TAKEN)
    if not content:
        raise ImageError(f"the build wrote an empty {path.name}")
    return content


def parse_packages(text: str) -> list[Package]:
    """Read stanzas of an apt index, sorted by name; raises ImageError if one is incomplete."""
    found = {}
    for stanza in text.split("\n\n"):
        if not stanza.strip():
            continue
        fields = HeaderParser().parsestr(stanza)
        try:
            package = Package(
                name=str(fields["Package"]),
                version=str(fields["Version"]),
                architecture=str(fields["Architecture"]),
                sha256=str(fields["SHA256"]),
            )
        except ValueError as error:
            raise ImageError(f"the record of package {fields['Package']!r} is damaged") from error
        found[package.name, package.architecture] = package
    if not found:
        raise ImageError("the build wrote no record of its packages")
    return [found[key] for key in sorted(found)]


def kernel_release(packages: list[Package]) -> str:
    """Return the kernel's release out of the packages' names; raises ImageError."""
    found = (_KERNEL_PACKAGE.fullmatch(package.name) for package in packages)
    releases = [match[1] for match in found if match]
    if len(releases) != 1:
        raise ImageError(f"the system needs one kernel, it has: {', '.join(releases) or 'none'}")
    return releases[0]


def payload(kernel: bytes) -> tuple[bytes, int]:
    """Return the compressed payload of a bzImage and its size unpacked; raises ImageError."""
    if len(kernel) < _HEADER_END or kernel[_MAGIC : _MAGIC + 4] != b"HdrS":
        raise ImageError("the kernel is not a bzImage", "check its processor type")
    (version,) = struct.unpack_from("<H", kernel, _VERSION)
    if version < _FIRST_WITH_PAYLOAD:
        raise ImageError(f"the kernel's boot protocol {version:#06x} has no payload")
    sectors = kernel[_SETUP_SECTORS] or 4
    offset, length = struct.unpack_from("<II", kernel, _PAYLOAD)
    begin = (sectors + 1) * _SECTOR + offset
    if length <= len(_XZ) + 4 or begin + length > len(kernel):
        raise ImageError("the kernel is cut off: its payload ends beyond the file")
    # The build appends the unpacked size to the compressed data.
    (size,) = struct.unpack_from("<I", kernel, begin + length - 4)
    if not 0 < size <= _MAX_KERNEL:
        raise ImageError(f"the kernel claims to have {size} bytes unpacked")
    return kernel[begin : begin + length - 4], size


def uncompressed_kernel(kernel: bytes, runner: Runner) -> bytes:
    """Return the ELF file inside a bzImage; raises ImageError with the reason."""
    packed, size = payload(kernel)
    if packed.startswith(_ZSTD):
        command = Command(
            ("zstd", "--decompress", "--stdout", f"--memory={_MAX_KERNEL}"), stdin=packed
        )
        done = runner.run(command, timeout_s=_ZSTD_TIMEOUT_S)
        if done.code != 0:
            raise ImageError("the kernel cannot be decompressed", done.error_tail)
        unpacked = done.stdout
    elif packed.startswith(_XZ):
        unpacked = unpack_xz(packed, size + 1)
    else:
        raise ImageError(f"the kernel is compressed in an unknown way ({packed[:6].hex()})")
    if len(unpacked) != size or not unpacked.startswith(_ELF):
        raise ImageError("the kernel does not unpack to the size and format in its header")
    return unpacked


def unpack_xz(packed: bytes, limit: int) -> bytes:
    """Return the content of the first xz stream, at most `limit` bytes; raises ImageError."""
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MAX_KERNEL)
    try:
        unpacked = decompressor.decompress(packed, limit)
    except lzma.LZMAError as error:
        raise ImageError(f"not a valid xz stream: {error}") from error
    if not decompressor.eof and len(unpacked) < limit:
        raise ImageError("an xz stream is cut off")
    return unpacked
