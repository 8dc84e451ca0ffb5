# SPDX-License-Identifier: Apache-2.0
"""EFI for machines: the firmware of a host, the boot partition of an image, the MMIO window. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nearmetal.cluster.backends.libvirt.spec import MAX_MMIO
from nearmetal.cluster.resource import Region
from nearmetal.config.size import format_size
from nearmetal.core.errors import StateError
from nearmetal.host.stages.devices import window

GIB = 1 << 30
DEFAULT_WINDOW = 32 * GIB
"""The 64-bit MMIO window that OVMF makes if nothing is asked for, and QEMU's on q35."""

MARK = "=== "
LIST = f"""for d in /usr/share/qemu/firmware /etc/qemu/firmware; do
  for f in "$d"/*.json; do
    [ -f "$f" ] && printf '\\n{MARK}%s\\n' "${{f##*/}}" && head -c 65536 -- "$f"
  done
done | head -c 1048576; true"""
"""Shell that lists the firmware of a host by the rules of QEMU (docs/interop/firmware.json): a file
in /etc replaces the one of the same name in /usr/share, and a smaller name has priority."""

_UNFIT = {
    "requires-smm": "its machines have no SMM",
    "secure-boot": "its images are not signed",
    "enrolled-keys": "its images are not signed",
    "amd-sev-snp": "its machines are not encrypted",
    "intel-tdx": "its machines are not encrypted",
}
"""Features of firmware that needs other machines than ours."""

_SECTOR = 512
TABLE_SECTORS = 64
"""Sectors at the beginning of a disk with its partition table: a GPT has 34."""

_EFI_MBR = 0xEF
_EFI_GPT = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
_MAX_ENTRIES = 128


@dataclass(frozen=True)
class Firmware:
    """Firmware on a host: its code, and the file that each machine's variables begin as."""

    code: str
    variables: str


def _fitting(text: str) -> Firmware | None:
    try:
        data: Any = json.loads(text)
        features = set(data["features"])
        mapping, targets = data["mapping"], data["targets"]
        files = [mapping["executable"], mapping["nvram-template"]]
        fits = (
            "uefi" in data["interface-types"]
            and mapping["device"] == "flash"
            and mapping.get("mode", "split") == "split"
            and all(file["format"] == "raw" for file in files)
            and any(
                target["architecture"] == "x86_64"
                and any(str(name).startswith("pc-q35-") for name in target["machines"])
                for target in targets
            )
        )
        names = [str(file["filename"]) for file in files]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not fits or features & _UNFIT.keys() or not all(name.startswith("/") for name in names):
        return None
    return Firmware(*names)


def choose_firmware(listed: str) -> Firmware | None:
    """Return the first firmware in the output of LIST that our machines can have."""
    files = {}
    for part in f"\n{listed}".split(f"\n{MARK}")[1:]:
        name, _, text = part.partition("\n")
        files[name] = text
    found = (_fitting(text) for _, text in sorted(files.items()))
    return next((firmware for firmware in found if firmware), None)


def boots_by_efi(table: bytes) -> bool:
    """Whether a disk that begins with these bytes has an EFI system partition."""
    entries = (table[at : at + 16] for at in range(446, 510, 16))
    if any(len(entry) > 4 and entry[4] == _EFI_MBR for entry in entries):  # noqa: PLR2004 - its type
        return True
    header = table[_SECTOR : 2 * _SECTOR]
    if len(header) < _SECTOR or not header.startswith(b"EFI PART"):
        return False
    first, count, size = struct.unpack_from("<QII", header, 72)
    if not size or first > TABLE_SECTORS:
        return False
    places = (first * _SECTOR + i * size for i in range(min(count, _MAX_ENTRIES)))
    return any(table[place : place + 16] == _EFI_GPT for place in places)


def mmio_window(node: str, asked: int | None, regions: Sequence[Region]) -> tuple[int | None, str]:
    """Return the size of the 64-bit MMIO window of a node, None for OVMF's own, and the reason.

    `asked`: the size in the spec. Raises StateError if the regions do not fit.
    """
    needed = window([size for region in regions for size in region.sizes]) * GIB
    what = " and ".join(f"{r.name} {format_size(sum(r.sizes))}" for r in regions)
    why = f"the regions of its devices need {format_size(needed)} ({what}, up to a power of two)"
    if needed > MAX_MMIO:
        hint = f"OVMF gives at most {format_size(MAX_MMIO)}: remove devices from it"
        raise StateError(f"node {node}: {why}", hint)
    if asked is not None:
        if asked < needed:
            raise StateError(
                f"node {node}: mmio is {format_size(asked)}, and {why}",
                f"write mmio: {format_size(needed)}, or auto",
            )
        return asked, "the spec asks for it"
    if needed <= DEFAULT_WINDOW:
        return None, ""
    return needed, why


def shared_regions(nr_parts: int, part_size: int) -> Region:
    """Return the regions of the two devices of a segment: at most its file, and one part."""
    file = 1 << (nr_parts * part_size).bit_length()
    return Region("its segment", (file, part_size))
