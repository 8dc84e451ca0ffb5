# SPDX-License-Identifier: Apache-2.0
"""Memory regions of a PCI device, as the file `resource` of sysfs lists them. Pure.

Each line has start, end and flags of one region: six of the device, its ROM, six of all of its
virtual functions together (kernel, Documentation/PCI/sysfs-pci.rst and include/linux/pci.h).
"""

from __future__ import annotations

import re

_LINE = re.compile(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16})")
_MEMORY, _UNSET = 0x200, 0x20000000
"""Of the flags: a memory region, and one without an address."""

_OWN, _OF_VFS = slice(0, 6), slice(7, 13)


def _regions(lines: list[str]) -> list[tuple[int, bool]]:
    matches = filter(None, (_LINE.fullmatch(line.strip()) for line in lines))
    numbers = ([int(digits, 16) for digits in match.groups()] for match in matches)
    return [
        (end - start + 1, not start or bool(flags & _UNSET))
        for start, end, flags in numbers
        if flags & _MEMORY and end > start
    ]


def regions_of(text: str) -> list[tuple[int, bool]]:
    """Return the size of each region of a device, and whether it lacks an address."""
    return _regions(text.splitlines()[_OWN])


def regions_of_vf(text: str, total: int) -> list[int]:
    """Return the sizes of the regions of each VF, from the file of a function with `total` VFs."""
    return [size // total for size, _ in _regions(text.splitlines()[_OF_VFS])] if total else []
