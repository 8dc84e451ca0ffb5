# SPDX-License-Identifier: Apache-2.0
"""nearmetal-computed on a real libvirt and QEMU, with guests that boot: a job uses the segment.

The domains have the metadata and the ports that Nova gives them. test_openstack_guests.py has Nova.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.cluster.backends.openstack.shared import EXTRA_SPEC
from nearmetal.computed.domains import NOVA
from nearmetal.computed.groups import ServerMembership
from nearmetal.computed.segment_files import PREFIX, SegmentFiles
from nearmetal.computed.service import ComputedService
from nearmetal.computed.settings import ComputedSettings
from nearmetal.core.process import LocalRunner
from nearmetal.image.seed import Seed
from tests.python.computed_world import GROUP, RED, states, uuid
from tests.system import hypervisors
from tests.system import segment_checks as segment
from tests.system.machines import Machine, Yard, built_image, free_port

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(900),
]

NAMES = ("vm1", "vm2")
SIZE = 16 << 20


class AnyProcess:
    """The process of a machine that libvirt runs, as `Machine` looks at it."""

    def poll(self) -> None:
        return None


class Libvirt(Yard):
    """Machines that libvirt runs, with the ports of a server of Nova."""

    host: hypervisors.Hypervisor

    def document(self, number: int, seed: dict[str, Any], port: int, project: str) -> str:
        path = self.folder / f"seed-{number}.json"
        path.touch(0o600)
        path.write_text(Seed.model_validate(seed).secret_json())
        lan, admin = (interface["mac"] for interface in seed["interfaces"])
        words = ["-fw_cfg", f"name=opt/nearmetal/seed,file={path}"]
        # At the end of the bus, where libvirt puts nothing.
        for slot, word in enumerate(self._network(number, lan, admin, port), 0x10):
            words.append(word if not word.startswith("virtio-net") else f"{word},addr={slot:#x}")
        arguments = "".join(f"<qemu:arg value={quoteattr(word)}/>" for word in words)
        ports = "<controller type='pci' model='pcie-root-port'/>" * 6
        return f"""<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
<name>instance-{number:08x}</name><uuid>{uuid(number)}</uuid>
<metadata><nova:instance xmlns:nova="{NOVA}"><nova:flavor name="f" id="1"><nova:extraSpecs>
<nova:extraSpec name="{EXTRA_SPEC}">{SIZE >> 20} MiB</nova:extraSpec></nova:extraSpecs></nova:flavor>
<nova:owner><nova:project uuid="{project}">p</nova:project></nova:owner></nova:instance></metadata>
<memory unit='MiB'>768</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>{self.image["kernel"]}</kernel>
<initrd>{self.image["initrd"]}</initrd><cmdline>{self.image["append"]}</cmdline></os>
<features><acpi/></features><cpu mode='maximum'/>
<devices><controller type='pci' model='pcie-root'/>{ports}<controller type='usb' model='none'/>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{self.image["root"]}'/>
<target dev='vda' bus='virtio'/><serial>nearmetal-root</serial><readonly/><shareable/></disk>
<serial type='file'><source path='{self.folder}/console-{number}'/></serial>
<memballoon model='none'/></devices>
<qemu:commandline>{arguments}</qemu:commandline></domain>"""

    def boot(self, link: Hypervisor, name: str, project: str = RED) -> Machine:
        number, port = NAMES.index(name) + 1, free_port()
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"{name} {self.key(name).public}\n")
        seed = self.seed(name, NAMES)
        link.start(f"instance-{number:08x}", self.document(number, seed, port, project))
        console = self.folder / f"console-{number}"
        process: Any = AnyProcess()
        return Machine(name, console, process, port, self.key("person"), self.folder)


class Nova:
    """All servers are in one group."""

    def membership(self, server: str) -> ServerMembership:
        del server
        return ServerMembership(RED, GROUP)


@dataclasses.dataclass
class Lab:
    yard: Libvirt
    link: Hypervisor
    host: hypervisors.Hypervisor
    state: Path
    files: SegmentFiles
    said: list[str] = dataclasses.field(default_factory=list)
    service: ComputedService | None = None
    thread: threading.Thread | None = None

    def start(self) -> None:
        settings = ComputedSettings(version=1, cloud="c", parts=2, libvirt=self.host.uri)
        self.service = ComputedService(settings, Nova(), self.files, self.said.append, self.state)
        self.thread = threading.Thread(target=self.service.serve)
        self.thread.start()

    def stop(self) -> None:
        if self.service is not None and self.thread is not None:
            self.service.stop.set()
            self.thread.join(60)
            assert not self.thread.is_alive()

    def until(self, wanted: dict[str, str]) -> None:
        end = time.monotonic() + 120
        while states(self.state) != wanted:
            assert time.monotonic() < end, (states(self.state), self.said)
            time.sleep(0.2)

    def segments(self) -> list[Path]:
        return sorted(Path("/dev/shm").glob(PREFIX + "*"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    hypervisors.need()
    image = built_image()
    with hypervisors.one() as host:
        yard = Libvirt(tmp_path, image)
        link = Hypervisor(host.uri)
        made = Lab(yard, link, host, tmp_path / "state", SegmentFiles(LocalRunner()))
        try:
            yield made
        finally:
            made.stop()
            for number in (1, 2):
                link.end(f"instance-{number:08x}")
            link.close()
            for path in made.segments():
                path.unlink()


def test_a_job_of_two_servers_uses_the_segment_that_the_service_plugs_in(lab: Lab) -> None:
    assert lab.segments() == []
    machines = [lab.yard.boot(lab.link, name) for name in NAMES]
    for machine in machines:
        machine.ready()
        assert machine.tell("test -e /run/nearmetal/segment.conf || echo none") == "none"
    lab.start()
    lab.until({uuid(1): "given", uuid(2): "given"})
    (path,) = lab.segments()
    assert path.stat().st_mode & 0o777 == 0o600
    parts = set()
    for machine in machines:
        # udev does this where there is one.
        machine.tell("nearmetal-guest hotplug", "root")
        conf = machine.tell("cat /run/nearmetal/segment.conf")
        assert "\nintegrity = enforced\n" in conf
        parts |= {line for line in conf.splitlines() if line.startswith("part = ")}
        # Repeated, it changes nothing.
        machine.tell("nearmetal-guest hotplug", "root")
        assert machine.tell("cat /run/nearmetal/segment.conf") == conf
    assert parts == {"part = 0", "part = 1"}
    segment.carries_random_traffic(machines)

    # The devices are taken from one of them, and given back to it.
    (lab.state / "withheld").mkdir()
    (lab.state / "withheld" / uuid(1)).touch()
    machines[0].tell("nearmetal-guest leave 30", "root")
    lab.until({uuid(1): "withheld by an administrator", uuid(2): "given"})
    machines[0].tell("nearmetal-guest hotplug", "root")
    assert machines[0].tell("ls /sys/bus/pci/devices/*/resource2 || echo none") == "none"
    assert machines[0].tell("test -e /run/nearmetal/segment.conf || echo none") == "none"
    (lab.state / "withheld" / uuid(1)).unlink()
    lab.until({uuid(1): "given", uuid(2): "given"})
    machines[0].tell("nearmetal-guest hotplug", "root")
    segment.carries_random_traffic(machines)

    # One ends, then the other.
    lab.link.end("instance-00000001")
    lab.until({uuid(1): "resting", uuid(2): "given"})
    lab.link.end("instance-00000002")
    lab.until({})
    assert lab.segments() == []
    assert list((lab.state / "withheld").iterdir()) == []
