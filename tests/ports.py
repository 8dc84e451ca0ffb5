# SPDX-License-Identifier: Apache-2.0
"""Free ports for servers that take a given port some time later."""

import contextlib
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, below: Callable[[int], int] = secrets.randbelow) -> list[int]:
    """Return `count` free TCP ports of 127.0.0.1, below the range from which the kernel assigns.

    The kernel may assign a port of its range to another program before the server takes it.
    """
    least = int(RANGE.read_text(encoding="ascii").split()[0])
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            probe, port = held.enter_context(socket.socket()), least // 2 + below(least // 2)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports
