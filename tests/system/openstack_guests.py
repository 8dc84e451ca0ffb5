# SPDX-License-Identifier: Apache-2.0
"""Real guests of Nova's libvirt driver: their bridge, their QEMUs, their consoles."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.system import hypervisors
from tests.system.need import lacking
from tests.system.openstack_cloud import SERVICES, RealCloud

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def guest_bridge(address: str) -> Iterator[str]:
    """Yield the bridge of the ports of all guests; this machine has an address there."""
    hypervisors.need()
    if not [*(SERVICES / "venv").glob("lib/python3*/site-packages/libvirt.py")]:
        lacking("no libvirt for the services: run `make setup-vm setup-openstack`")
    with hypervisors.bridge(address) as name:
        try:
            yield name
        finally:
            for port in ports_of(name):
                hypervisors.ip("link", "del", port, check=False)


def ports_of(bridge: str) -> list[str]:
    """Return the names of the taps on a bridge."""
    return sorted(path.name for path in Path(f"/sys/class/net/{bridge}/brif").glob("*"))


def machine_of(server: str) -> list[int]:
    """Return the process IDs of the QEMU of a server."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes()
                if words.startswith(b"/usr/bin/qemu-system") and server.encode() in words:
                    found.append(int(entry.name))
    return found


def console(cloud: RealCloud, server: Any) -> str:
    """Return what the console of a server shows."""
    said = cloud.connected().compute.get_server_console_output(server, length=100)
    return str(said.get("output", said))
