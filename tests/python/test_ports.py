# SPDX-License-Identifier: Apache-2.0
"""Ports for servers of tests are free, differ, and are not in the range of the kernel."""

import socket

from tests import ports


def test_ports_differ_and_the_kernel_assigns_none_of_them() -> None:
    least = int(ports.RANGE.read_text(encoding="ascii").split()[0])
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < least
    for port in found:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_in_use_is_left_out() -> None:
    (used,) = ports.free_ports(1)
    least = int(ports.RANGE.read_text(encoding="ascii").split()[0])
    numbers = iter([used - least // 2, *range(least // 2)])
    with socket.create_server(("127.0.0.1", used)):
        (found,) = ports.free_ports(1, lambda _: next(numbers))
    assert found != used
