# SPDX-License-Identifier: Apache-2.0
"""Outputs of esxcli: options of a module, VIBs, PCI devices. Pure.

The grammars follow Broadcom's ESXCLI reference: tables with rules in the second line, and blocks of
`Key: value` below an address. The texts are hostile: lengths and forms are checked.
"""

from __future__ import annotations

import re

MAX_TEXT = 4 << 20
MAX_ROWS = 4096

_RULE = re.compile(r"^-{1,256}( {1,8}-{1,256})*\s*$")
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_OPTION = re.compile(r'[A-Za-z0-9_]{1,64}=[A-Za-z0-9_,."-]{1,256}')
_ENTRY = re.compile(r"^ {3}([A-Z][A-Za-z ]{0,40}): ?(.{0,256})$")
_ID = re.compile(r"0x0{0,4}([0-9A-Fa-f]{1,4})")


def parse_table(text: str) -> list[dict[str, str]]:
    """Return the rows of a table by column; [] for a text without a table."""
    lines = text[:MAX_TEXT].splitlines()
    rule = next((n for n, line in enumerate(lines) if n and _RULE.match(line)), None)
    if rule is None:
        return []
    spans = [match.span() for match in re.finditer(r"-+", lines[rule])]
    starts = [start for start, _ in spans]
    ends: list[int | None] = [*starts[1:], None]
    names = [lines[rule - 1][a:b].strip() for a, b in zip(starts, ends, strict=True)]
    return [
        {name: line[a:b].strip() for name, a, b in zip(names, starts, ends, strict=True)}
        for line in lines[rule + 1 :][:MAX_ROWS]
        if line.strip()
    ]


def parse_module_parameters(text: str) -> str:
    """Return the options that are set, from `esxcli system module parameters list -m MODULE`."""
    pairs = (f"{row.get('Name', '')}={row.get('Value', '')}" for row in parse_table(text))
    return " ".join(pair for pair in pairs if _OPTION.fullmatch(pair))


def parse_vibs(text: str) -> dict[str, str]:
    """Return versions by name, from `esxcli software vib list`."""
    return {
        row["Name"]: row["Version"]
        for row in parse_table(text)
        if row.get("Name") and row.get("Version")
    }


def parse_pci(text: str) -> dict[str, dict[str, str]]:
    """Return the devices of `esxcli hardware pci list` by address, in its order."""
    found: dict[str, dict[str, str]] = {}
    now: dict[str, str] | None = None
    for line in text[:MAX_TEXT].splitlines():
        # Where the line above an entry is missing, its first line has the address, too.
        word = line.strip().removeprefix("Address: ")
        if PCI_ADDRESS.fullmatch(word) and len(found) < MAX_ROWS:
            now = found.setdefault(word, {})
        elif now is not None and (match := _ENTRY.match(line)):
            now[match[1]] = match[2].strip()
    return found


def pci_id(text: str) -> str:
    """Return `1017` for `0x1017` and `0x00001017`, the forms of different releases; "" for others."""
    match = _ID.fullmatch(text)
    return match[1].lower().zfill(4) if match else ""
