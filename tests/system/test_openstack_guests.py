# SPDX-License-Identifier: Apache-2.0
"""Servers that boot for real: Nova's libvirt driver, and QEMU's emulation.

The guest is one sector of a disk that `up` uploads. It writes a line to its console and halts: it
shows that Nova boots this content, and needs no kernel.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openstack")

from tests.system.openstack_cloud import (
    QUIET,
    RealCloud,
    gone,
    objects,
    opened,
    plan_of,
    raised,
    running_cloud,
)
from tests.system.openstack_guests import console, guest_bridge, machine_of, ports_of

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(900),
    *QUIET,
]

WORDS = b"nearmetal guest is up"
# cld; cli; ds = 0; si = the words; dx = COM1; until 0: lodsb, out dx; then hlt for ever.
CODE = bytes.fromhex("fc fa 31c0 8ed8 be177c baf803 ac 84c0 7403 ee ebf8 f4 ebfd")
_PARTITION = b"\x80\0\0\0\x83\0\0\0" + struct.pack("<II", 1, 2000)
DISK = (CODE + WORDS + b"\r\n\0").ljust(446, b"\0") + _PARTITION + bytes(48) + b"\x55\xaa"

HOSTS = "hosts: [{name: h1, nodes: [{name: n1}, {name: n2}]}]\n"


@pytest.fixture(scope="module")
def bridge() -> Iterator[str]:
    with guest_bridge("10.82.0.1/24") as name:
        yield name


@pytest.fixture(scope="module")
def cloud(bridge: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with (
        pytest.MonkeyPatch.context() as patch,
        running_cloud(tmp_path_factory.mktemp("openstack"), bridge=bridge) as found,
    ):
        patch.setenv("NEARMETAL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield found


def wait_for_words(cloud: RealCloud, server: Any) -> None:
    for _ in cloud.waiting(f"the console of {server.name}"):
        if WORDS.decode() in console(cloud, server):
            return


def test_servers_of_an_uploaded_image_boot_are_started_again_and_leave_nothing(
    cloud: RealCloud, bridge: str, tmp_path: Path
) -> None:
    sdk, before = cloud.connected(), objects(cloud)
    path = tmp_path / "disk.raw"
    path.write_bytes(DISK + bytes(1 << 20))
    text = f"networks: [{{name: mpi, subnet: 10.82.0.0/24}}]\n{HOSTS}"
    spec = cloud.spec("real", text, path)
    raised(spec, tmp_path)
    servers = {server.name: server for server in sdk.compute.servers(details=True)}
    assert {server.status for server in servers.values()} == {"ACTIVE"}
    assert servers["n1"].host_id == servers["n2"].host_id
    for server in servers.values():
        wait_for_words(cloud, server)
        assert len(machine_of(server.id)) == 1
    for _ in cloud.waiting("the taps on the bridge"):
        if len(ports_of(bridge)) == 2:
            break
    assert plan_of(spec, tmp_path).empty

    # The machine of a server dies: `up` starts the server again, in place.
    (pid,) = machine_of(servers["n1"].id)
    os.kill(pid, signal.SIGKILL)
    for _ in cloud.waiting("Nova to see that n1 is off"):
        if sdk.compute.get_server(servers["n1"].id).status == "SHUTOFF":
            break
    assert [node.healthy for node in opened(spec, tmp_path).backend.status()] == [False, True]
    plan = raised(spec, tmp_path)
    assert [(str(c.key), c.in_place) for c in plan.effective] == [("node n1", True)]
    wait_for_words(cloud, servers["n1"])
    assert machine_of(servers["n1"].id) != [pid]

    gone(spec, tmp_path)
    assert objects(cloud) == before
    assert ports_of(bridge) == []
    assert [machine_of(server.id) for server in servers.values()] == [[], []]
