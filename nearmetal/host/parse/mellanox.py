# SPDX-License-Identifier: Apache-2.0
"""Outputs of NVIDIA's firmware tools (MFT, mstflint): mlxconfig, mlxfwmanager, mst status. Pure.

The grammars follow the NVIDIA Firmware Tools documentation, the listings of VMware's paper on
InfiniBand SR-IOV, and of mlxfwmanager what mstflint's source prints (mlxfwupdate/mlnx_dev.cpp): `FW`
is the image in the flash, and a line `FW (Running)` comes only where another one runs. The texts come
from hosts and are hostile: lengths and forms are checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearmetal.host.model import ConfigValue

MAX_TEXT = 1 << 20
MAX_SETTINGS = 2048
MAX_DEVICES = 64

_SETTING = re.compile(r"^[* ]{1,16}([A-Z][A-Z0-9_]{0,63}(?:\[[0-9.]{1,16}\])?)\s+(\S.*)$")
_NUMBERED = re.compile(r"[A-Za-z0-9_./ -]{1,64}\((0x[0-9a-fA-F]{1,16}|[0-9]{1,20})\)")
_COLUMN = re.compile(r"\s{2,}")
_DEVICE = re.compile(r"^Device #[0-9]{1,4}:")
_PAIR = re.compile(r"^\s*([A-Za-z][A-Za-z0-9 ]{0,31}):\s+(\S.*)$")
_FIRMWARE = re.compile(r"^\s*FW( \(Running\))?\s+([0-9]{1,6}(?:\.[0-9]{1,6}){1,3})\s")
_MST = re.compile(
    r"^(?P<type>[A-Za-z0-9-]{1,32})\(rev:[0-9a-fA-F]{1,4}\)\s+(?P<mst>\S{1,64})\s+"
    r"(?P<pci>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7])(?:\s|$)"
)


def _lines(text: str) -> list[str]:
    return text[:MAX_TEXT].splitlines()


def plain_value(text: str) -> str:
    """Return `1` for `True(1)`, and other values as they are."""
    text = text.strip()[:256]
    match = _NUMBERED.fullmatch(text)
    return match[1] if match else text


def parse_mlxconfig(text: str) -> dict[str, ConfigValue] | None:
    """Return the settings that `mlxconfig -d DEVICE -e query` prints; None where it prints none.

    With -e there are three columns: default, current, next boot.
    """
    found: dict[str, ConfigValue] = {}
    columns: list[str] = []
    for line in _lines(text):
        if line.startswith("Configurations:"):
            columns = _COLUMN.split(line.strip())[1:]
            continue
        match = _SETTING.match(line) if columns else None
        if match is None or len(found) >= MAX_SETTINGS:
            continue
        values = [plain_value(value) for value in _COLUMN.split(match[2].strip())]
        if len(values) != len(columns):
            continue  # an array or a remark: nothing that is planned for
        named = dict(zip(columns, values, strict=True))
        if "Next Boot" in named:
            current = named.get("Current", named["Next Boot"])
            found[match[1]] = ConfigValue(current, named["Next Boot"])
    return found or None


@dataclass(frozen=True)
class Inventory:
    """One device of mlxfwmanager. `stored`: what its flash holds, "" where that runs."""

    pci: str
    type: str
    psid: str
    firmware: str
    stored: str = ""


def parse_mlxfwmanager(text: str) -> list[Inventory]:
    """Return the devices that `mlxfwmanager --query` prints."""
    blocks: list[list[str]] = []
    for line in _lines(text):
        if _DEVICE.match(line):
            blocks.append([])
        elif blocks:
            blocks[-1].append(line)
    return [found for block in blocks[:MAX_DEVICES] if (found := _inventory(block))]


def _inventory(lines: list[str]) -> Inventory | None:
    pairs: dict[str, str] = {}
    versions: dict[bool, str] = {}
    for line in lines:
        match = _PAIR.match(line)
        if match:
            pairs.setdefault(match[1], match[2].strip()[:128])
        version = _FIRMWARE.match(line + " ")
        if version:
            versions.setdefault(version[1] is not None, version[2])
    pci = pairs.get("PCI Device Name", "")
    psid = pairs.get("PSID", "")
    if not pci or not re.fullmatch(r"[A-Z0-9_]{4,16}", psid):
        return None
    stored = versions.get(False, "")
    runs = versions.get(True, stored)
    return Inventory(
        pci, pairs.get("Device Type", "")[:32], psid, runs, "" if stored == runs else stored
    )


@dataclass(frozen=True)
class MstDevice:
    """One function of `mst status -vv`."""

    type: str
    name: str
    pci: str


def parse_mst_status(text: str) -> list[MstDevice]:
    """Return the PCI devices that `mst status -vv` prints; [] where mst does not run."""
    found = [match for line in _lines(text) if (match := _MST.match(line))]
    return [MstDevice(m["type"], m["mst"], m["pci"]) for m in found[:MAX_DEVICES]]
