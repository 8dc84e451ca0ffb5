# SPDX-License-Identifier: Apache-2.0
"""PCI addresses, and what configuration space says about Access Control Services (ACS). Pure."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_SHORT = re.compile(r"[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")

_CAPABILITIES = 0x34
_PCI_EXPRESS = 0x10
_EXTENDED = 0x100
_CONFIG_SIZE = 4096
_ACS = 0x0D
_ROOT_PORT, _DOWNSTREAM_PORT = 4, 6

ISOLATING = 0x1D
"""ACS controls that keep functions below a port from reaching each other: source validation,
request and completion redirect, upstream forwarding (PCI Express Base 4.0, 7.7.8.3). The kernel
asks for the same before it gives a function an IOMMU group of its own."""


def is_address(text: str) -> bool:
    """Whether this is a PCI address with its domain, as `0000:01:10.0`."""
    return _ADDRESS.fullmatch(text) is not None


def full_address(text: str) -> str | None:
    """Return the address with its domain, for `01:10.0` too; None when it is none."""
    lower = text.lower()
    if is_address(lower):
        return lower
    return f"0000:{lower}" if _SHORT.fullmatch(lower) else None


@dataclass(frozen=True)
class Port:
    """A root or downstream port above an adapter. `acs`: None where nobody may read it."""

    address: str
    acs: bool | None

    @property
    def text(self) -> str:
        """One word for a table."""
        return {True: "on", False: "off", None: "unknown"}[self.acs]


def _express_type(config: bytes) -> int | None:
    """Return the port type of a PCI Express function; None for others and for broken lists."""
    place = config[_CAPABILITIES] & ~3
    for _ in range(48):  # no longer list fits: a loop otherwise
        if place < 0x40 or place + 4 > min(len(config), 256):  # noqa: PLR2004 - the standard header
            return None
        if config[place] == _PCI_EXPRESS:
            return config[place + 2] >> 4
        place = config[place + 1] & ~3
    return None


def acs_of_port(address: str, config: bytes) -> Port | None:
    """Return what a bridge says about isolation; None when ACS is no matter of its.

    `config` is what could be read: 64 bytes without privileges, 4096 with.
    """
    if len(config) < _EXTENDED:
        return Port(address, None)
    if _express_type(config) not in (_ROOT_PORT, _DOWNSTREAM_PORT):
        return None
    if len(config) < _CONFIG_SIZE:
        return Port(address, None)
    place = _EXTENDED
    for _ in range((_CONFIG_SIZE - _EXTENDED) // 8):
        if place < _EXTENDED or place + 8 > _CONFIG_SIZE:
            break
        (header,) = struct.unpack_from("<I", config, place)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, place + 6)
            return Port(address, control & ISOLATING == ISOLATING)
        place = header >> 20 & ~3
    return Port(address, acs=False)
