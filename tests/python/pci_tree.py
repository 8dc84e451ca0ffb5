# SPDX-License-Identifier: Apache-2.0
"""Files of sysfs for PCI devices: bridges, GPUs and adapters, with their configuration space."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

ACS, ATS = 0x0D, 0x0F
_HEADERS = {0x03: 0x100, 0x01: 0xFB4, 0x04: 0x138, 0x02: 0x148, 0x12: 0xE00}
"""Capabilities of a port of a PLX PEX 8747, each with its place, as lspci shows them: serial number,
error reporting, power budget, virtual channels, multicast; then ACS and its own."""

MIB, GIB = 1 << 20, 1 << 30


def config(*capabilities: tuple[int, int, int], size: int = 4096, ids: str = "10b5:8747") -> bytes:
    """Return a configuration space. Each capability: its number, its place, and the word at +4."""
    space = bytearray(size)
    vendor, device = (int(part, 16) for part in ids.split(":"))
    struct.pack_into("<HH", space, 0, vendor, device)
    following = [place for _, place, _ in capabilities[1:]] + [0]
    for (number, place, word), successor in zip(capabilities, following, strict=False):
        struct.pack_into("<II", space, place, number | 1 << 16 | successor << 20, word)
    return bytes(space)


def switch_port(able: int, on: int) -> bytes:
    """Return the configuration of a port of a switch with ACS."""
    chain = [(number, place, 0) for number, place in _HEADERS.items()]
    return config(*chain, (ACS, 0xF24, able | on << 16), (0x0B, 0xB70, 0))


def adapter(*, ats: bool | None) -> bytes:
    """Return the configuration of a ConnectX; None: ATS is off in its firmware."""
    chain = [(0x01, 0x100, 0), (0x0E, 0x150, 0), (0x10, 0x180, 0)]
    if ats is not None:
        chain.append((ATS, 0x480, 0x8000_0000 if ats else 0))
    return config(*chain, ids="15b3:1017")


def region(start: int, size: int, flags: int = 0x14220C) -> str:
    """Return the line of a 64-bit prefetchable memory region in the file `resource`."""
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}\n"


NO_REGION = "0x0000000000000000 " * 2 + "0x0000000000000000\n"


def gpu_regions(size: int, start: int = 0x3800_0000_0000, flags: int = 0x14220C) -> str:
    """Return the regions of a GPU of NVIDIA: registers, BAR1 and BAR3. Size 0: BAR1 was forgotten."""
    registers = region(0x9C00_0000, 16 * MIB, 0x40200)
    memory = region(start, size, flags) if size else NO_REGION
    third = region(0x3900_0000_0000, 32 * MIB)
    return registers + memory + NO_REGION + third + NO_REGION * 9


def hopper_regions(size: int) -> str:
    """Return the regions of an H100, whose registers also have a 64-bit address."""
    memory = region(0x2000_0000_0000, size) if size else NO_REGION
    registers, third = region(0x2420_4200_0000, 16 * MIB), region(0x2420_4000_0000, 32 * MIB)
    return registers + NO_REGION + memory + NO_REGION + third + NO_REGION * 8


def put(tree: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files."""
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def device(
    tree: Path,
    above: Iterable[str],
    address: str,
    files: Mapping[str, str | bytes],
    *,
    driver: str = "",
    group: str = "",
    physical: str = "",
) -> str:
    """Make a PCI device below a root complex and bridges. `group`: the type of its IOMMU group.

    `physical`: it is a virtual function of this device.
    """
    folder = "/".join(["sys/devices", *above, address])
    put(tree, {f"{folder}/{name}": content for name, content in files.items()})
    link(tree, f"sys/bus/pci/devices/{address}", folder)
    if physical:
        link(tree, f"{folder}/physfn", f"sys/bus/pci/devices/{physical}")
    if driver:
        (tree / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        link(tree, f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
    if group:
        place = f"sys/kernel/iommu_groups/{address[5:7]}"
        put(tree, {f"{place}/type": group + "\n", f"{place}/devices/{address}": ""})
        link(tree, f"{folder}/iommu_group", place)
    return folder


def link(tree: Path, name: str, target: str) -> None:
    """Make a link within the tree, as sysfs has them: relative."""
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    up = "../" * (len(Path(name).parts) - 1)
    path.symlink_to(up + target)
