# SPDX-License-Identifier: Apache-2.0
"""How the agent reads the priority flow control of an interface from the kernel.

The layout of the answers is that of linux/dcbnl.h. No adapter here has flow control, so answers with
it are made; the kernel of this machine answers for an interface without it.
"""

from __future__ import annotations

import random
import socket
import struct
import types

import pytest

from tests.python.test_check_agent import load_agent

AGENT: types.ModuleType = load_agent()


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def answer(enabled: int, nested: int = 0x8000) -> bytes:
    """Return an answer as mlx5 gives it: ETS first, then struct ieee_pfc of 136 bytes."""
    pfc = struct.pack("=BBBxH2x16Q", 8, enabled, 0, 700, *range(16))
    inner = attribute(1, bytes(59)) + attribute(2, pfc)
    body = struct.pack("=BBH", 0, 21, 0) + attribute(1, b"ens1f0np0\0")
    body += attribute(13 | nested, inner)
    return struct.pack("=IHHII", 16 + len(body), 78, 0, 1, 0) + body


@pytest.mark.parametrize(
    ("enabled", "told"), [(0, "none"), (8, "3"), (0b11000, "3 4"), (255, "0 1 2 3 4 5 6 7")]
)
def test_the_priorities_of_an_answer(enabled: int, told: str) -> None:
    assert AGENT.pfc_of(answer(enabled)) == told
    assert AGENT.pfc_of(answer(enabled, nested=0)) == told


def test_an_answer_that_is_cut_or_damaged_never_harms() -> None:
    whole, draw = answer(8), random.Random(7)
    for size in range(len(whole)):
        assert AGENT.pfc_of(whole[:size]) in (None, "3")
    for _ in range(2000):
        bytes_ = bytearray(whole)
        for _ in range(4):
            bytes_[draw.randrange(len(bytes_))] = draw.randrange(256)
        found = AGENT.pfc_of(bytes(bytes_))
        assert found is None or found == "none" or set(found) <= set("01234567 ")


def test_the_kernel_has_no_flow_control_for_an_interface_without_hardware() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5)
        kernel.send(AGENT.pfc_request("lo"))
        told = kernel.recv(65536)
    # An error of netlink: the kernel understood the question, or has no DCB at all.
    size, kind = struct.unpack_from("=IH", told)
    assert (size, kind) == (len(told), 2)
    assert AGENT.pfc_of(told) is None
