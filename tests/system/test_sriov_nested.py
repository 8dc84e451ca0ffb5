# SPDX-License-Identifier: Apache-2.0
"""The libvirt backend on a host with SR-IOV, for real: a machine that has an adapter, an IOMMU and
nested KVM runs two inner machines, each with a VF; they share a segment and run MPI over it.

Traffic between the VFs is not tested: QEMU's igb brings no link up in a guest of a guest.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.machines import CACHE, ROOT, Yard, built_image
from tests.system.sriov_lab import PF, Host, start_host

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(3600)]

SPEC = """\
version: 1
name: inner
backend: libvirt
accel: ACCEL
network: {subnet: 10.91.0.0/24}
hosts:
  - name: h
    segment: {part: 16 MiB}
    nodes:
      - {name: n1, memory: 640 MiB, cpus: none, vf: {vlan: 100, rate: 500}}
      - {name: n2, memory: 640 MiB, cpus: none, vf: {vlan: 100, trust: true}}
"""

LIBVIRT = """\
set -e
mkdir -p /etc/libvirt
cat >/etc/libvirt/qemu.conf <<'CONF'
user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
remember_owner = 0
stdio_handler = "file"
CONF
modprobe kvm_amd
modprobe ext4
for disk in /sys/block/vd*; do
	[ "$(cat $disk/serial)" != lab ] || mount /dev/${disk##*/} /opt
done
printf 'auth_unix_rw = "none"\\nauth_unix_ro = "none"\\n' >/etc/libvirt/libvirtd.conf
libvirtd -d
"""

NEARMETAL = "cd /opt && NEARMETAL_CACHE_DIR=/opt/cache timeout 1500 python3 -m nearmetal"


def make_disk(folder: Path) -> Path:
    """Return a disk with nearmetal as built here, and with the image that inner machines boot."""
    image = built_image()
    tree = folder / "tree"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("nearmetal", "guest"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for name in (
        "build/c/src/provider/libnearmetal-fi.so",
        "build/c/src/tools/nearmetal-info",
        "build/c/src/tools/nearmetal-segment",
        "build/programs/openmpi5/mpi_traffic",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    for path in (Path(image["kernel"]).parent, Path(image["initrd"]).parent):
        shutil.copytree(path, tree / "cache" / path.relative_to(CACHE))
    disk = folder / "lab.ext4"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tree, disk, "1200M"],
                   check=True, timeout=600)  # fmt: skip
    shutil.rmtree(tree)
    return disk


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    disk = make_disk(tmp_path)
    yard = Yard(tmp_path, built_image("hypervisor"))
    try:
        made = start_host(yard, memory_mib=4096, devices=[
            "-smp", "2", "-drive", f"file={disk},if=none,id=lab,format=raw",
            "-device", "virtio-blk-pci,drive=lab,serial=lab",
        ])  # fmt: skip
        made.tell(LIBVIRT)
        yield made
    finally:
        yard.end()


def test_inner_machines_have_vfs_meet_in_a_segment_and_leave_nothing(host: Host) -> None:
    found = host.as_found()
    host.machine.tell("cat >/root/inner.yaml", "root", SPEC.replace("ACCEL", "kvm").encode())
    host.slow(f"{NEARMETAL} up /root/inner.yaml")
    shown = json.loads(host.tell(f"{NEARMETAL} host vf --json 2>/dev/null"))
    vfs = shown["adapters"][0]["vfs"]
    assert [vf["owner"]["node"] for vf in vfs[:2]] == ["n1", "n2"]
    assert all(vf["driver"] == "vfio-pci" and vf["holders"] for vf in vfs[:2])
    told = {vf["vf"]: vf for vf in host.adapter()["vfinfo_list"]}
    assert told[0]["vlan_list"][0]["vlan"] == 100
    assert (told[0]["rate"]["max_tx"], told[1]["trust"]) == (500, True)

    for number, node in enumerate(("n1", "n2")):
        inside = host.slow(f"{NEARMETAL} exec inner {node} -- cat /sys/class/net/*/address")
        assert told[number]["address"] in inside.split()

    pairs = json.loads(host.tell(f"{NEARMETAL} locality --json inner 2>/dev/null"))["pairs"]
    channel = {(pair["node"], pair["peer"]): pair["channel"] for pair in pairs}
    assert channel["n1", "n2"] == channel["n2", "n1"] == "segment"
    out = host.slow(f"{NEARMETAL} run inner -n 2 -- build/programs/openmpi5/mpi_traffic "
                    "-n 60 -s 7 -b 1M -w 600")  # fmt: skip
    assert "carried by nearmetal: 2 endpoints" in out

    host.slow(f"{NEARMETAL} down inner")
    assert host.as_found() == found
    assert host.tell(f"cat {PF}/sriov_numvfs") == "0"
    assert (
        host.tell("ls /var/lib/nearmetal 2>/dev/null; ls /dev/shm; pidof qemu-system-x86_64 || :")
        == ""
    )
