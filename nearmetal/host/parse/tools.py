# SPDX-License-Identifier: Apache-2.0
"""Outputs of the tools of a host: mlxconfig, mlxfwmanager, mst, devlink, tuned-adm. Pure.

The texts come from hosts and are hostile: lengths and forms are checked. Sources of the grammars:
mlxconfig, mlxfwmanager and mst: NVIDIA Firmware Tools documentation, the listings in
tests/data/hosts, and mstflint's source. mlxfwupdate/mlnx_dev.cpp: `FW` is the image in the flash,
and a line `FW (Running)` appears only if another one runs. mlxconfig/mlxcfg_ui.cpp: `*` marks a
setting that changes, RO one that cannot be set, N/A an unknown value; columns have a width, and one
space follows a wider value. devlink: the kernel's documentation of devlink-info, also for mlx5.
tuned-adm: TuneD's source (tuned/admin/admin.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from nearmetal.host.model import ConfigValue

MAX_TEXT = 1 << 20
MAX_SETTINGS = 2048
MAX_DEVICES = 64

_SETTING = re.compile(
    r"^[* ]{1,24}(RO {1,16})?([A-Z][A-Z0-9_x]{0,63}(?:\[[0-9.]{1,16}\])?)\s+(\S.*)$"
)
_NUMBERED = re.compile(r"[A-Za-z0-9_./ -]{1,64}\((0x[0-9a-fA-F]{1,16}|[0-9]{1,20})\)")
_COLUMN = re.compile(r"\s{2,}")
_DEVICE = re.compile(r"^Device #[0-9]{1,4}:")
_PAIR = re.compile(r"^\s*([A-Za-z][A-Za-z0-9 ]{0,31}):\s+(\S.*)$")
_FIRMWARE = re.compile(r"^\s*FW( \(Running\))?\s+([0-9]{1,6}(?:\.[0-9]{1,6}){1,3})\s")
_MST = re.compile(
    r"^(?P<type>[A-Za-z0-9-]{1,32})\(rev:[0-9a-fA-F]{1,4}\)\s+(?P<mst>\S{1,64})\s+"
    r"(?P<pci>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7])(?:\s|$)"
)
_ADDRESS = re.compile(r"pci/([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])")
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")
_PSID = re.compile(r"[A-Z0-9_]{4,16}")
_NAMES = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?: [A-Za-z0-9][A-Za-z0-9_.-]{0,63}){0,15}"
_ACTIVE = re.compile(rf"^Current active profile: ({_NAMES})\s*$", re.MULTILINE)
_AFTERWARDS = re.compile(rf"^Current post-loaded profile: ({_NAMES})\s*$", re.MULTILINE)


def _lines(text: str) -> list[str]:
    return text[:MAX_TEXT].splitlines()


def plain_value(text: str) -> str:
    """Return `1` for `True(1)`, and other values unchanged."""
    text = text.strip()[:256]
    match = _NUMBERED.fullmatch(text)
    return match[1] if match else text


def parse_mlxconfig(text: str) -> dict[str, ConfigValue] | None:
    """Return the settings in the output of `mlxconfig -d DEVICE -e query`; None for none.

    With -e there are three columns: default, current, next boot.
    """
    found: dict[str, ConfigValue] = {}
    columns: list[str] = []
    for line in _lines(text):
        if line.strip().startswith("Configurations:"):
            columns = _COLUMN.split(line.strip())[1:]
            continue
        match = _SETTING.match(line) if columns else None
        if match is None or len(found) >= MAX_SETTINGS:
            continue
        values = _cells(match[3], len(columns))
        if len(values) != len(columns):
            continue  # an array or a remark
        named = dict(zip(columns, map(plain_value, values), strict=True))
        if "Next Boot" in named:
            current = named.get("Current", named["Next Boot"])
            found[match[2]] = ConfigValue(current, named["Next Boot"], match[1] is not None)
    return found or None


def _cells(text: str, columns: int) -> list[str]:
    """Return the values of a row. Only one space follows a value as wide as its column."""
    words = text.split()
    return words if len(words) == columns else _COLUMN.split(text.strip())


@dataclass(frozen=True)
class Board:
    """One adapter, or one function of it. `stored`: firmware in its flash, "" if that runs."""

    pci: str
    type: str
    psid: str
    firmware: str
    stored: str = ""


def parse_mlxfwmanager(text: str) -> list[Board]:
    """Return the devices in the output of `mlxfwmanager --query`."""
    blocks: list[list[str]] = []
    for line in _lines(text):
        if _DEVICE.match(line):
            blocks.append([])
        elif blocks:
            blocks[-1].append(line)
    return [found for block in blocks[:MAX_DEVICES] if (found := _inventory(block))]


def _inventory(lines: list[str]) -> Board | None:
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
    if not pci or not _PSID.fullmatch(psid):
        return None
    stored = versions.get(False, "")
    runs = versions.get(True, stored)
    return Board(
        pci, pairs.get("Device Type", "")[:32], psid, runs, "" if stored == runs else stored
    )


@dataclass(frozen=True)
class MstDevice:
    """One function of `mst status -vv`."""

    type: str
    name: str
    pci: str


def parse_mst_status(text: str) -> list[MstDevice]:
    """Return the PCI devices in the output of `mst status -vv`; [] if mst does not run."""
    found = [match for line in _lines(text) if (match := _MST.match(line))]
    return [MstDevice(m["type"], m["mst"], m["pci"]) for m in found[:MAX_DEVICES]]


def place(pci: str) -> str:
    """Return the address of the card of a function, in the form of any tool."""
    return (pci if pci.count(":") > 1 else f"0000:{pci}").rpartition(".")[0]


def boards_by_card(boards: list[Board], devices: list[MstDevice]) -> dict[str, Board]:
    """Return boards by the address of their card.

    While mst runs, mlxfwmanager names a device of Linux by its file, for example
    /dev/mst/mt4115_pciconf0. `devices`, of mst itself, have its address.
    """
    names = {device.name: device.pci for device in devices}
    found = {place(names.get(board.pci, board.pci)): board for board in boards}
    return {address: board for address, board in found.items() if address}


def parse_devlink(text: str) -> dict[str, Board]:
    """Return the functions of `devlink -j dev info` by PCI address; {} for another document."""
    try:
        document = json.loads(text[:MAX_TEXT])
    except (ValueError, RecursionError):
        return {}
    found: dict[str, Board] = {}
    for name, entry in _inner(document, "info").items():
        match = _ADDRESS.fullmatch(name)
        if match is None or not isinstance(entry, dict):
            continue
        versions = _inner(entry, "versions")
        firmware, stored = (_firmware(_inner(versions, key)) for key in ("running", "stored"))
        psid = _text(_inner(versions, "fixed").get("fw.psid"), _PSID)
        left = "" if stored == firmware else stored
        found[match[1]] = Board(match[1], "", psid, firmware, left)
    return found


def _firmware(versions: dict[str, Any]) -> str:
    return _text(versions.get("fw.version") or versions.get("fw"), _VERSION)


def _inner(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _text(value: Any, pattern: re.Pattern[str]) -> str:
    return value if isinstance(value, str) and pattern.fullmatch(value) else ""


def parse_tuned(text: str) -> str | None:
    """Return the profiles of `tuned-adm active` (both streams), as `tuned-adm profile` takes them.

    "": no profile; None: tuned does not run. Several profiles are in one line with spaces between;
    the last may be a post-loaded profile, which has its own line. If tuned does not run, the output
    begins with that, and then shows the profile of its next start.
    """
    text = text[: 1 << 16].strip()
    if text == "No current active profile.":
        return ""
    active, afterwards = _ACTIVE.search(text), _AFTERWARDS.search(text)
    if active is None:
        return None
    return active[1].removesuffix(afterwards[1] if afterwards else "").strip()
