# SPDX-License-Identifier: Apache-2.0
"""What nearmetal-computed makes of a libvirt that fails midway, and of a hostile QEMU."""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nearmetal.cluster.backends.libvirt.machine import ivshmem_views
from nearmetal.computed.domains import ServerDomain
from nearmetal.computed.servers import ServerHypervisor
from nearmetal.core.errors import BackendError
from tests.python.test_computed_domains import PROJECT, SERVER, document

NO_DOMAIN, BROKEN = 42, 38


class LinkError(Exception):
    """An error of libvirt."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def get_error_code(self) -> int:
        return self.code

    def get_error_message(self) -> str:
        return f"code {self.code}"


class FakeDomain:
    """A domain of libvirt that may fail when it is read."""

    def __init__(self, server: str = SERVER, code: int = 0) -> None:
        self._server, self._code = server, code

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's name
        return self._server

    def ID(self) -> int:  # noqa: N802 - libvirt's name
        return 3

    def name(self) -> str:
        return "instance-00000001"

    def state(self) -> list[int]:
        return [1, 0]

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - libvirt's name
        if self._code:
            raise LinkError(self._code)
        return document(server=self._server)


def hypervisor(*domains: FakeDomain) -> ServerHypervisor:
    """Return a hypervisor without a connection."""
    found = object.__new__(ServerHypervisor)
    constants = {"VIR_CONNECT_LIST_DOMAINS_ACTIVE": 1, "VIR_ERR_NO_DOMAIN": NO_DOMAIN}
    found.uri = "qemu:///system"
    found._api = SimpleNamespace(libvirtError=LinkError, **constants)
    found._link = SimpleNamespace(
        listAllDomains=lambda _flags: list(domains), lookupByUUIDString=lambda _server: domains[0]
    )
    return found


def test_a_domain_that_has_ended_meanwhile_is_left_out() -> None:
    other = SERVER.replace("8", "9")
    seen = hypervisor(FakeDomain(code=NO_DOMAIN), FakeDomain(other)).servers()
    assert [one.server for one in seen] == [other]


def test_a_server_that_cannot_be_read_has_not_ended() -> None:
    # libvirt is started again between the list and the questions, for example.
    with pytest.raises(BackendError, match=f"cannot read server {SERVER}: code {BROKEN}"):
        hypervisor(FakeDomain(), FakeDomain(code=BROKEN)).servers()


@pytest.mark.parametrize(
    "answer",
    [
        [],
        "no JSON",
        {"error": []},
        {"return": None},
        {"return": [None]},
        {"return": [{"devices": None}]},
        {"return": [{"devices": [{"pci_bridge": {}, "qdev_id": {}}]}]},
    ],
)
def test_a_qemu_may_answer_anything(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    monkeypatch.setitem(
        sys.modules, "libvirt_qemu", SimpleNamespace(qemuMonitorCommand=lambda *_: text)
    )
    place, views = hypervisor(FakeDomain()), ivshmem_views("/x", 2, 1, 1)
    questions = (
        lambda: place.has(SERVER, views),
        lambda: place.ask_back(SERVER, views),
        lambda: place.plug_in(SERVER, views, ("pci.2", "pci.1")),
    )
    for question in questions:
        with pytest.raises(BackendError):
            question()
    server = ServerDomain(SERVER, "x", PROJECT, 1, ports=("pci.1",))
    ports: tuple[str, ...] = ()
    with contextlib.suppress(BackendError):
        ports = place.empty_ports(server)
    assert ports == ()
