# SPDX-License-Identifier: Apache-2.0
"""The probe of KVM: what a kernel says decides, and a clock only ends what hangs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree as ET

import pytest

from nearmetal.cluster.backends.libvirt import probe
from nearmetal.cluster.backends.libvirt.build import Boot
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.hypervisor import About, Hypervisor
from nearmetal.cluster.backends.libvirt.machine import GuestKernel
from nearmetal.core.errors import BackendError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    from nearmetal.cluster.backends.libvirt.images import BuiltImages

QUIET = "console=ttyS0 quiet loglevel=3 panic=-1"
OK = "nearmetal: probe ok\n"


class Image:
    """An image that is there."""

    def digest(self) -> str:
        return "image"

    def ready(self) -> bool:
        return True

    def boot(self, _shell: HostShell) -> Boot:
        return Boot(GuestKernel("/vmlinux", "/initrd", QUIET), "/root.img", "serial")


class Guest:
    """A hypervisor whose one machine says words at given seconds, on a clock of its own."""

    uri = "qemu:///system"

    def __init__(self, said: dict[float, str], ends: float = 1e9, refusal: str = "") -> None:
        self.said, self.ends, self.refusal = said, ends, refusal
        self.now = 0.0
        self.boots = 0
        self.arguments = ""

    def start(self, name: str, document: str) -> None:
        self.boots += 1
        if self.refusal:
            raise BackendError(self.refusal)
        tree = ET.fromstring(document)  # noqa: S314 - our own
        assert tree.get("type") == "kvm"
        assert tree.findtext("name") == name
        self.arguments = tree.findtext("os/cmdline") or ""
        source = tree.find("devices/serial/source")
        assert source is not None
        self.console = Path(source.get("path", ""))
        self.began = self.now

    def running(self, _name: str) -> bool:
        passed = self.now - self.began
        spoken = "".join(text for when, text in self.said.items() if when <= passed)
        self.console.write_text(spoken)
        return passed < self.ends

    def end(self, _name: str) -> None:
        self.ends = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        # Steps of a second make hours of silence short.
        self.now += max(seconds, 1.0)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "probes.json"


def asked(guest: Guest, memory: Path) -> tuple[bool, str]:
    about = About("11.3.0", "10.0.2", "/usr/bin/qemu", "AMD", ((0,),), "", offers_kvm=True)
    shell = HostShell("h1", guest.uri, LocalRunner())
    what: Any = probe.Probe(cast("Hypervisor", guest), shell, about, memory, guest)
    answer: tuple[bool, str] = what.kvm(cast("BuiltImages", Image()))
    return answer


def test_a_slow_kernel_that_keeps_talking_is_waited_for(memory: Path) -> None:
    slow = {1.0: "early\n", 500.0: "memory\n", 1000.0: "disks\n", 1500.0: OK}
    guest = Guest(slow)
    assert asked(guest, memory) == (True, "a probe boot under KVM reached user space")
    assert guest.now >= 1500
    assert "quiet" not in guest.arguments
    assert "loglevel" not in guest.arguments
    assert guest.arguments.split()[-1] == "nearmetal.probe"
    assert asked(guest, memory)[0]
    assert guest.boots == 1


def test_user_space_counts_when_the_machine_is_gone_already(memory: Path) -> None:
    assert asked(Guest({0.0: OK}, ends=0.0), memory)[0]


@pytest.mark.parametrize(
    ("guest", "why", "least"),
    [
        (Guest({}), "hangs: it said nothing more for 600 s", 600),
        (Guest({5.0: "\x1b[2Jhello\r\n\n"}), "for 600 s; its last line: [2Jhello", 605),
        (
            Guest({float(at): "rcu: stall\n" for at in range(0, 3000, 60)}),
            "hangs: it reached no user space for 1800 s; its last line: rcu: stall",
            1800,
        ),
        (Guest({2.0: "Panic\n"}, ends=3.0), "ended before user space; its last line: Panic", 3),
        (Guest({}, ends=0.0), "ended before user space", 0),
    ],
)
def test_a_probe_that_fails_says_how_and_is_not_repeated(
    guest: Guest, why: str, least: int, memory: Path
) -> None:
    works, reason = asked(guest, memory)
    assert not works
    assert reason.endswith(why)
    assert least <= guest.now < least + 10
    assert asked(guest, memory) == (works, reason)
    assert guest.boots == 1
    assert not guest.console.parent.exists()


def test_a_probe_that_does_not_start_is_tried_again_later(memory: Path) -> None:
    guest = Guest({0.0: OK}, refusal="cannot start: no memory\nmore words")
    works, reason = asked(guest, memory)
    assert (works, reason) == (
        False,
        "a probe boot under KVM does not start: cannot start: no memory",
    )
    guest.refusal = ""
    assert asked(guest, memory) == (works, reason)
    assert guest.boots == 1
    guest.now += probe.AGAIN_S
    assert asked(guest, memory)[0]
    assert guest.boots == 2


def test_a_refusal_of_before_a_restart_of_this_machine_is_not_believed(memory: Path) -> None:
    guest = Guest({0.0: OK}, refusal="cannot start")
    guest.now = 1000.0
    assert not asked(guest, memory)[0]
    guest.refusal, guest.now = "", 5.0
    assert asked(guest, memory)[0]


def test_the_pins_of_running_machines_come_from_libvirt() -> None:
    libvirt = pytest.importorskip("libvirt")
    link = Hypervisor("test:///default")
    try:
        assert link.pins() == {}
        (domain,) = link._link.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        cores = len(domain.vcpuPinInfo(libvirt.VIR_DOMAIN_AFFECT_LIVE)[0])
        domain.pinVcpu(0, tuple(core == 1 for core in range(cores)))
        assert link.pins() == {domain.name(): frozenset({1})}
        domain.pinVcpu(1, tuple(core < 2 for core in range(cores)))
        assert link.pins() == {domain.name(): frozenset({1})}
    finally:
        link.close()
