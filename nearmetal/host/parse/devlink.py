# SPDX-License-Identifier: Apache-2.0
"""Output of `devlink -j dev info`: firmware and board of adapters by PCI address. Pure.

`running` and `stored` are as the kernel's documentation of devlink-info has them, for mlx5 too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_TEXT = 1 << 20

_ADDRESS = re.compile(r"pci/([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])")
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")
_PSID = re.compile(r"[A-Z0-9_]{4,16}")


@dataclass(frozen=True)
class Device:
    """What devlink tells of one function. `stored`: what its flash holds, "" where that runs."""

    driver: str
    psid: str
    firmware: str
    stored: str = ""


def parse_devlink(text: str) -> dict[str, Device]:
    """Return devices by PCI address; {} for what is no such document."""
    try:
        document = json.loads(text[:MAX_TEXT])
    except (ValueError, RecursionError):
        return {}
    info = document.get("info") if isinstance(document, dict) else None
    if not isinstance(info, dict):
        return {}
    found: dict[str, Device] = {}
    for name, entry in info.items():
        match = _ADDRESS.fullmatch(name)
        if match is None or not isinstance(entry, dict):
            continue
        versions = entry.get("versions")
        fixed = _dictionary(versions, "fixed")
        firmware = _firmware(_dictionary(versions, "running"))
        stored = _firmware(_dictionary(versions, "stored"))
        driver = entry.get("driver")
        found[match[1]] = Device(
            driver[:64] if isinstance(driver, str) else "",
            _text(fixed.get("fw.psid", ""), _PSID),
            firmware,
            "" if stored == firmware else stored,
        )
    return found


def _firmware(versions: dict[str, Any]) -> str:
    return _text(versions.get("fw.version") or versions.get("fw") or "", _VERSION)


def _dictionary(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _text(value: Any, pattern: re.Pattern[str]) -> str:
    return value if isinstance(value, str) and pattern.fullmatch(value) else ""
