# SPDX-License-Identifier: Apache-2.0
"""Addresses of VFs, derived from the names of cluster and node: stable, and nobody's own.

A VM that is made again, on whichever VF, keeps its MAC address and its GUIDs, so that leases,
subnet managers and switches know it again. Pure.
"""

from __future__ import annotations

import hashlib

_LOCAL, _GROUP = 0x02, 0x01


def _derived(what: str, names: tuple[str, ...], size: int) -> str:
    digest = bytearray(hashlib.sha256("\0".join(["nearmetal", what, *names]).encode()).digest())
    # Locally administered (IEEE 802, 8.2.2), and no group address: also what keeps it non-zero.
    digest[0] = (digest[0] | _LOCAL) & ~_GROUP
    return ":".join(f"{byte:02x}" for byte in digest[:size])


def derive_mac(*names: str) -> str:
    """Return the MAC address of a VM's VF."""
    return _derived("mac", names, 6)


def derive_guids(*names: str) -> tuple[str, str]:
    """Return the node GUID and the port GUID of a VM's VF; they differ and are not zero."""
    return _derived("node guid", names, 8), _derived("port guid", names, 8)
