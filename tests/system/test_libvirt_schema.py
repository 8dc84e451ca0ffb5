# SPDX-License-Identifier: Apache-2.0
"""The recorded domains and networks, shown to a real libvirt: by its schema, and by its QEMU driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.system import hypervisors
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.timeout(300)]

hypervisors.need()

GOLDEN = Path(__file__).parents[1] / "python" / "golden"
DOMAINS = sorted(p for p in GOLDEN.glob("*.xml") if p.name != "made-network.xml")
QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"


@pytest.fixture(scope="module")
def link() -> Iterator[Any]:
    """An open connection to a daemon of one's own."""
    import libvirt  # noqa: PLC0415 - hypervisors.need() asked for it

    if not Path("/usr/share/libvirt/schemas/domain.rng").exists():
        lacking("libvirt's schemas are not installed: `make setup-vm` brings them")
    with hypervisors.one() as host:
        connection = libvirt.open(host.uri)
        yield connection
        connection.close()


def offered(link: Any, path: Path) -> str:
    """Return a recorded domain as this machine's QEMU can have it: KVM may be missing here."""
    text = path.read_text()
    kinds = {d.get("type") for d in ET.fromstring(link.getCapabilities()).iter("domain")}  # noqa: S314
    if "kvm" not in kinds:
        text = text.replace('type="kvm"', 'type="qemu"').replace("host-passthrough", "maximum")
    return text


def command_line(link: Any, text: str) -> str:
    """Return what libvirt would start QEMU with."""
    return str(link.domainXMLToNative("qemu-argv", text, 0))


@pytest.mark.parametrize("path", DOMAINS, ids=lambda path: path.stem)
def test_a_recorded_domain_is_one(link: Any, path: Path) -> None:
    import libvirt  # noqa: PLC0415 - as above

    text = offered(link, path)
    domain = link.defineXMLFlags(text, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    try:
        read = ET.fromstring(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))  # noqa: S314
    finally:
        domain.undefine()
    # libvirt drops in silence what it does not know: everything of ours must be there still.
    wanted = ET.fromstring(text)  # noqa: S314 - our own
    for tag in ("memoryBacking", "cputune", "numatune", "sysinfo", "features", "iommu", "hostdev"):
        ours = {e.tag for found in wanted.iter(tag) for e in found.iter()}
        theirs = {e.tag for found in read.iter(tag) for e in found.iter()}
        assert ours <= theirs, f"{tag}: {ours - theirs}"
    assert [a.get("value") for a in read.iter(f"{QEMU}arg")] == [
        a.get("value") for a in wanted.iter(f"{QEMU}arg")
    ]


def test_what_tunes_a_machine_reaches_qemu(link: Any) -> None:
    import libvirt  # noqa: PLC0415 - as above

    told = offered(link, GOLDEN / "nearmetal.vms-tuned.n2.xml")
    # The host's own huge pages, NUMA nodes and networks are not this machine's.
    top = ET.fromstring(told)  # noqa: S314 - our own
    for interface in top.findall("devices/interface"):
        interface.set("type", "user")
        for name in ("source", "mtu"):
            interface.remove(interface.find(name))  # type: ignore[arg-type]
    for tune in (*top.findall("numatune"), *top.findall("memoryBacking/hugepages")):
        for parent in (top, *top.findall("memoryBacking")):
            if tune in list(parent):
                parent.remove(tune)
    words = command_line(link, ET.tostring(top, encoding="unicode"))
    assert "mem-lock=on" in words or "-realtime mlock=on" in words
    assert "intel-iommu" in words
    assert '"intremap":"on"' in words or "intremap=on" in words
    assert "kernel_irqchip=split" in words or "accel=tcg" in words or "-accel tcg" in words
    assert "memory-backend-memfd" in words
    assert words.index("memory-backend-memfd") < words.index("nm-own")
    assert libvirt.getVersion() >= 9_000_000


@pytest.mark.parametrize(
    ("name", "device"), [("nvdimm", "nvdimm"), ("virtio-pmem", "virtio-pmem-pci")]
)
def test_a_segment_that_is_a_memory_device_reaches_qemu(link: Any, name: str, device: str) -> None:
    top = ET.fromstring(offered(link, GOLDEN / f"segment-{name}.xml"))  # noqa: S314 - our own
    for interface in top.findall("devices/interface"):
        interface.set("type", "user")
        for part in ("source", "mtu"):
            interface.remove(interface.find(part))  # type: ignore[arg-type]
    words = command_line(link, ET.tostring(top, encoding="unicode"))
    assert f'"driver":"{device}"' in words or f"-device {device}" in words
    assert '"mem-path":"/dev/shm/segment"' in words or "mem-path=/dev/shm/segment" in words
    assert '"share":true' in words or "share=yes" in words or "share=on" in words


def test_a_recorded_network_is_one(link: Any) -> None:
    import libvirt  # noqa: PLC0415 - as above

    text = (GOLDEN / "made-network.xml").read_text()
    network = link.networkDefineXMLFlags(text, libvirt.VIR_NETWORK_DEFINE_VALIDATE)
    try:
        read = ET.fromstring(network.XMLDesc(0))  # noqa: S314 - libvirt's own
    finally:
        network.undefine()
    assert read.find("dhcp") is None
    forward, dns = read.find("forward"), read.find("dns")
    assert forward is not None
    assert dns is not None
    assert (forward.get("mode"), dns.get("enable")) == ("open", "no")
