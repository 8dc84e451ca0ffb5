# SPDX-License-Identifier: Apache-2.0
"""A segment as QEMU shows it to one machine: its own part, and all of it read-only. Pure."""

from __future__ import annotations

import json

OWN_SLOT, ALL_SLOT = 0x10, 0x11
"""Where a guest finds the two ivshmem devices on its root bus; libvirt counts from 1 upwards."""

OWN_PCI, ALL_PCI = (f"0000:00:{slot:02x}.0" for slot in (OWN_SLOT, ALL_SLOT))


def ivshmem_words(path: str, size: int, own_offset: int, own_size: int) -> list[str]:
    """Return QEMU's words for the two views. Sizes in bytes; `own_offset` within the file."""
    base = {"qom-type": "memory-backend-file", "mem-path": path, "share": True}
    own = base | {"id": "nm-own", "offset": own_offset, "size": own_size}
    # rom: a write by the guest is dropped instead of ending the machine.
    whole = base | {"id": "nm-all", "size": size, "readonly": True, "rom": "on"}
    words = []
    for backend, slot in ((own, OWN_SLOT), (whole, ALL_SLOT)):
        device = {
            "driver": "ivshmem-plain",
            "id": f"{backend['id']}-device",
            "memdev": backend["id"],
            "bus": "pcie.0",
            "addr": hex(slot),
        }
        words += ["-object", json.dumps(backend), "-device", json.dumps(device)]
    return words
