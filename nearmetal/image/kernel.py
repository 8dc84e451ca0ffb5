# SPDX-License-Identifier: Apache-2.0
"""From Debian's compressed kernel to the ELF file that QEMU enters directly (PVH).

The compressed one boots as well, but decompresses itself inside the machine: seconds without KVM.
The header is the one of the Linux/x86 boot protocol, version 2.08 and later.
"""

from __future__ import annotations

import lzma
import struct
from typing import TYPE_CHECKING

from nearmetal.core.errors import ImageError
from nearmetal.core.process import Command

if TYPE_CHECKING:
    from nearmetal.core.process import Runner

_MAX_KERNEL = 256 << 20
_SECTOR = 512
_SETUP_SECTORS, _MAGIC, _VERSION, _PAYLOAD = 0x1F1, 0x202, 0x206, 0x248
_HEADER_END = 0x250
_FIRST_WITH_PAYLOAD = 0x0208
_ZSTD, _XZ, _ELF = b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"\x7fELF"
_ZSTD_TIMEOUT_S = 120.0


def payload(kernel: bytes) -> tuple[bytes, int]:
    """Return the compressed payload of a bzImage and its size unpacked; raises ImageError."""
    if len(kernel) < _HEADER_END or kernel[_MAGIC : _MAGIC + 4] != b"HdrS":
        raise ImageError("the kernel is no bzImage", "is it for another processor?")
    (version,) = struct.unpack_from("<H", kernel, _VERSION)
    if version < _FIRST_WITH_PAYLOAD:
        raise ImageError(f"the kernel's boot protocol {version:#06x} names no payload")
    sectors = kernel[_SETUP_SECTORS] or 4
    offset, length = struct.unpack_from("<II", kernel, _PAYLOAD)
    begin = (sectors + 1) * _SECTOR + offset
    if length <= len(_XZ) + 4 or begin + length > len(kernel):
        raise ImageError("the kernel is cut off: its payload ends beyond the file")
    # The build appends the unpacked size to what it compresses.
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
        raise ImageError("the kernel does not unpack to what its header says")
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
