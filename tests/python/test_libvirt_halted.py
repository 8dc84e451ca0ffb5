# SPDX-License-Identifier: Apache-2.0
"""Machines that stand still: libvirt's own test driver has the domains, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from nearmetal.cluster.backends.libvirt.driver import LibvirtBackend
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.cluster.backends.libvirt.machine import NAMESPACE
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.resource import Key, Kind
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store
from nearmetal.core.process import LocalRunner
from tests.python.one_link import DOMAIN, OneLink

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("libvirt")

SPEC = """\
version: 1
name: c
backend: libvirt
hosts: [{name: h, uri: "qemu:///system", nodes: [{name: n1}]}]
"""
NODE = Key(Kind.NODE, "n1")


@pytest.mark.parametrize("ready", ["yes", "no"])
@pytest.mark.parametrize(
    ("act", "why"),
    [
        (None, ""),
        ("suspend", "it is paused; `virsh -c test:///default resume nearmetal.c.n1` continues it"),
    ],
)
def test_a_paused_machine_is_a_loss_and_one_that_never_was_ready_is_not(
    tmp_path: Path, ready: str, act: str | None, why: str
) -> None:
    spec, images = parse_spec(SPEC), cast("Any", object())
    assert isinstance(spec, LibvirtSpec)
    backend = LibvirtBackend(spec, Store(tmp_path), LocalRunner(), images)
    identity = backend._records.begin()
    link = Hypervisor("test:///default")
    backend._hosts = OneLink(spec, tmp_path, LocalRunner())
    backend._hosts.only = link
    link.start("nearmetal.c.n1", DOMAIN % (NAMESPACE, identity, ready))
    try:
        domain = link._link.lookupByName("nearmetal.c.n1")
        if act is not None:
            getattr(domain, act)()
        observed = backend.observe()
    finally:
        link.end("nearmetal.c.n1")
        link.close()
    assert NODE in observed.by_key()
    assert observed.halted == ({NODE: why} if why and ready == "yes" else {})
    assert (NODE in observed.broken) == (ready == "no")
