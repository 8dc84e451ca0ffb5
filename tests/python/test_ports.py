# SPDX-License-Identifier: Apache-2.0
"""Ports for servers of tests are free, differ, and are given to no other program meanwhile."""

import socket

import pytest

from tests import ports


def test_ports_differ_and_the_kernel_gives_out_none_of_them() -> None:
    least = int(ports.RANGE.read_text(encoding="ascii").split()[0])
    found = ports.free_ports(300)
    assert len(set(found)) == 300
    assert max(found) < least
    for port in found:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_in_use_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([7, 7, 8])
    monkeypatch.setattr(ports.secrets, "randbelow", lambda _: next(numbers))
    first, second = ports.free_ports(2)
    assert second == first + 1
