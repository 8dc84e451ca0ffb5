# SPDX-License-Identifier: Apache-2.0
"""The libvirt backend with VFs, for real: on a host that is itself a machine.

Its SR-IOV adapter (igb) and IOMMU are emulated, its KVM is nested. nearmetal runs in it, and makes
two machines with a VF each. What it did is asked of libvirt, ip and /sys, and of the machines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.openstack.hypervisor import QEMU_CONF
from tests.system.machines import CACHE, Yard, built_image
from tests.system.sriov_lab import PF, Host, start_host

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(14400)]

HANG_S = 7200.0
"""Ends a test that hangs: two levels of emulation, on a machine that may be busy."""

CARRIED = {
    name: name
    for name in (
        "build/c/src/provider/libnearmetal-fi.so",
        "build/c/src/tools/nearmetal-info",
        "build/c/src/tools/nearmetal-segment",
        "build/programs/openmpi5/mpi_hello",
        "build/programs/openmpi5/mpi_traffic",
    )
}
"""What an installation has besides the Python package: the image is found by their content."""

ONE_IMAGE = "cd /opt/nm/nearmetal/share/guest && cat packages-hypervisor.txt >>packages.txt"
"""The inner machines boot the host's own image: a second one would only take time to build."""

MEMORY_MIB = 2800
"""All of it below 4 GiB, or the firmware lays the adapter's window above, where QEMU 10.0 cuts the
addresses of VFs to 32 bits, as `info pci` of its monitor shows: they answer nothing there."""

SHARE = [
    "-fsdev",
    f"local,id=cache,path={CACHE},security_model=none,readonly=on",
    "-device",
    "virtio-9p-pci,fsdev=cache,mount_tag=cache",
]

PREPARE = """
set -e
modprobe -a kvm_amd tun
mkdir -p /var/log/libvirt /var/lib/libvirt/dnsmasq /run/cache /var/cache/nearmetal/images /var/cache/nearmetal/systems
modprobe -a 9pnet_virtio 9p
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=1048576 cache /run/cache
# The cache is locked and swept as if it were this machine's own; what it holds stays where it is.
ln -s /run/cache/images/* /var/cache/nearmetal/images/
ln -s /run/cache/systems/* /var/cache/nearmetal/systems/
cat >/etc/libvirt/qemu.conf
echo 'auth_unix_rw = "none"' >/etc/libvirt/libvirtd.conf
libvirtd --daemon
"""

SPEC = """\
version: 1
name: vfs
backend: libvirt
accel: kvm
hosts:
  - name: here
    segment: {device: ivshmem, part: 16 MiB}
    nodes:
      - {name: n1, memory: 768 MiB, vf: {vlan: 100, rate: 200}}
      - {name: n2, memory: 768 MiB, vf: {vlan: 100, rate: 200}}
"""

THINGS = "ls /dev/shm /sys/class/net; ls /dev/vfio | grep -v vfio; pgrep -l qemu-system; true"
"""What clusters leave behind when they leave anything."""

DOMAIN = """python3 -c '
import libvirt, sys
print(libvirt.open("qemu:///system").lookupByName(sys.argv[1]).XMLDesc(0))' nearmetal.vfs."""


@dataclass
class Site:
    """The host, and the command line in it."""

    host: Host
    found: dict[str, Any]
    things: str

    def nearmetal(self, words: str) -> tuple[int, str]:
        command = f"cd /opt/nm && python3 -m nearmetal {words}"
        done = self.host.machine.run(command, "root", timeout_s=HANG_S)
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def ok(self, words: str) -> str:
        code, told = self.nearmetal(words)
        assert code == 0, f"{words}: {code}\n{told}"
        return told

    def job(self, words: str) -> dict[str, Any]:
        """Run a job that may use the segment alone; returns what `run --json` tells."""
        told = self.ok(f"run --json --channels self,segment vfs.yaml -n 2 -- {words}")
        answer: dict[str, Any] = json.loads(told[told.index("{") : told.rindex("}") + 1])
        return answer

    def node(self, name: str, script: str) -> str:
        """Run a shell script in an inner machine."""
        return self.ok(f"exec vfs.yaml {name} -- sh -c '{script}'").strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The inner cluster is up; after `down` the host is as it was found."""
    yard = Yard(tmp_path_factory.mktemp("host"), built_image("hypervisor"))
    try:
        host = start_host(yard, memory_mib=MEMORY_MIB, cpus=2, devices=SHARE)
        host.carry(CARRIED)
        host.tell(ONE_IMAGE)
        host.machine.tell(PREPARE, "root", QEMU_CONF.format(user="root").encode())
        host.machine.tell("cat >/opt/nm/vfs.yaml", "root", SPEC.encode())
        place = Site(host, host.as_found(), host.tell(THINGS))
        place.ok("up vfs.yaml")
        yield place
        place.ok("down --yes vfs.yaml")
        assert host.as_found() == place.found
        assert host.tell(THINGS) == place.things
        host.tell("test ! -e /var/lib/nearmetal/host")
    finally:
        yard.end()


def domain(site: Site, node: str) -> ET.Element:
    """What libvirt says of an inner machine."""
    return ET.fromstring(site.host.tell(DOMAIN + node))  # noqa: S314 - libvirt's own


def passed_on(site: Site, node: str) -> str:
    """The PCI address of the device that libvirt has passed on to an inner machine."""
    addresses = domain(site, node).findall("devices/hostdev/source/address")
    assert len(addresses) == 1
    parts = [int(addresses[0].get(n, ""), 0) for n in ("domain", "bus", "slot", "function")]
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)


def test_each_node_has_a_vf_that_is_configured_bound_and_attached(site: Site) -> None:
    numbers = {f"0000:01:1{i >> 2}.{2 * (i & 3)}": i for i in range(7)}
    told = {vf["vf"]: vf for vf in site.host.adapter()["vfinfo_list"]}
    vfs = {node: passed_on(site, node) for node in ("n1", "n2")}
    assert len(set(vfs.values())) == 2
    assert site.host.tell(f"cat {PF}/sriov_numvfs") == "7"
    for node, address in vfs.items():
        device = f"/sys/bus/pci/devices/{address}"
        assert site.host.tell(f"basename $(readlink -f {device}/driver)") == "vfio-pci"
        assert site.host.tell(f"readlink -f {device}/physfn") == site.host.tell(f"readlink -f {PF}")
        group = site.host.tell(f"basename $(readlink {device}/iommu_group)")
        pid = site.host.tell(f"pgrep -f guest=nearmetal.vfs.{node},")
        assert f"/dev/vfio/{group}" in site.host.tell(f"readlink /proc/{pid}/fd/*").split()
        seen = told[numbers[address]]
        assert (seen["vlan_list"][0]["vlan"], seen["rate"]["max_tx"]) == (100, 200)
        inner = site.node(node, "cat /sys/bus/pci/drivers/igbvf/0*/net/*/address")
        assert inner == seen["address"]


def test_the_inner_machines_run_under_kvm(site: Site) -> None:
    assert domain(site, "n1").get("type") == "kvm"
    assert site.node("n1", "grep -c -w hypervisor /proc/cpuinfo") == "1"


def test_the_ledger_and_status_name_the_nodes(site: Site) -> None:
    shown = json.loads(site.ok("host vf --json"))
    owners = [vf["owner"]["node"] for vf in shown["adapters"][0]["vfs"] if vf["owner"]]
    assert owners == ["n1", "n2"]
    assert shown["leaks"] == {}
    nodes = json.loads(site.ok("status --json vfs.yaml"))["nodes"]
    assert [(n["name"], n["healthy"]) for n in nodes] == [("n1", True), ("n2", True)]
    assert "nothing to do" in site.ok("plan vfs.yaml")


@pytest.mark.parametrize(
    "program",
    [
        "build/programs/openmpi5/mpi_hello",
        "build/programs/openmpi5/mpi_traffic -n 100 -s 7 -b 12M -w 600",
    ],
)
def test_a_job_runs_over_the_segment(site: Site, program: str) -> None:
    done = site.job(program)
    assert done["exit_code"] == 0
    assert done["proof"]["verdict"] == "proven"
    assert done["proof"]["messages"].get("segment", 0) > 0
    assert set(done["proof"]["messages"]) <= {"self", "segment"}
