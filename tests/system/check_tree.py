# SPDX-License-Identifier: Apache-2.0
"""Trees of files that stand for the /proc, /sys, /etc and /var of a node, for the agent's `--root`.

A `machine` has two sockets, an InfiniBand adapter with virtual functions, and a node of a site. A
`guest` is a virtual machine with a shared segment. Four of them agree as four real ones do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.python.test_check_dimms import device as memory_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CPUS = 8
CPU = "sys/devices/system/cpu"
SLOT = "0000:17:00.0"
ADAPTER = f"sys/devices/pci0000:16/{SLOT}"
PORT = f"{ADAPTER}/infiniband/mlx5_0/ports/1"
SEGMENT = "sys/devices/pci0000:00/0000:00:05.0"
PAT = "sys/kernel/debug/x86/pat_memtype_list"
MEMORY_TYPES = "PAT memtype list:\nPAT: [mem 0x0000004000000000-0x0000004001000000] {}\n"
DMI = "sys/firmware/dmi/tables/DMI"
MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:20 / /dev/shm rw,nosuid - tmpfs tmpfs rw
{}"""
HOME = "24 22 0:50 / /home rw,relatime - nfs4 server:/home rw\n"
PROVIDER = "usr/lib/x86_64-linux-gnu/nearmetal/libnearmetal-fi.so"
LINK = "usr/lib/x86_64-linux-gnu/libfabric/libnearmetal-fi.so"
DPKG = "var/lib/dpkg/status"
IDLE = (("POLL", 0, 0), ("C1", 2, 0), ("C6", 133, 1))
"""Idle states: name, latency in microseconds, and whether it is switched off."""
KERNEL = "6.1.0-18-amd64"
PACKAGES = {
    f"linux-image-{KERNEL}": "6.1.76-1",
    "libfabric1": "1.17.0-3",
    "libnearmetal-fi": "1.0-1",
}
MEMINFO = """\
MemTotal:       {total} kB
MemAvailable:   60000000 kB
SwapTotal:       8388604 kB
SwapFree:        {swap} kB
HardwareCorrupted:     0 kB
HugePages_Total:       {huge}
Hugepagesize:       2048 kB
"""


def status(packages: Mapping[str, str]) -> str:
    """Return the database of dpkg with these packages and versions."""
    return "".join(
        f"Package: {name}\nStatus: install ok installed\nPriority: optional\nSection: misc\n"
        f"Maintainer: Nearmetal <nearmetal@example.org>\nArchitecture: all\nVersion: {version}\n"
        f"Description: a package\n\n"
        for name, version in packages.items()
    )


def meminfo(total: int = 131072000, swap: int = 8388604, huge: int = 512) -> str:
    """Return /proc/meminfo."""
    return MEMINFO.format(total=total, swap=swap, huge=huge)


def modules(missing: str = "") -> bytes:
    """Return the table of firmware with eight modules of memory for two processors."""
    slots = [f"P{p}-DIMM{c}1" for p in (1, 2) for c in "ABCD"]
    table = b"".join(memory_device(0 if slot == missing else 16384, slot) for slot in slots)
    return table + bytes([127, 4, 0, 0, 0, 0])


def cpuinfo(microcode: str = "0x2b", flags: str = "fpu avx2", packages: int = 2) -> str:
    """Return /proc/cpuinfo. `microcode`: of the last processor; the others have 0x2b."""
    blocks = []
    for cpu in range(CPUS):
        own = microcode if cpu == CPUS - 1 else "0x2b"
        blocks.append(
            f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: Model P\n"
            f"microcode\t: {own}\nphysical id\t: {cpu * packages // CPUS}\n"
            f"core id\t: {cpu % (CPUS // packages)}\nflags\t: {flags}\n"
        )
    return "\n".join(blocks)


def daemon(pid: int, name: str) -> tuple[str, str]:
    """Return the state of a process: its file and content."""
    return f"proc/{pid}/stat", f"{pid} ({name}) S 1 {pid} 0\n"


def _common(number: int) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {
        "proc/sys/kernel/hostname": f"m{number}\n",
        "proc/sys/kernel/osrelease": KERNEL + "\n",
        "proc/sys/kernel/random/boot_id": f"boot-{number}\n",
        "proc/sys/kernel/numa_balancing": "0\n",
        "proc/sys/vm/swappiness": "10\n",
        "proc/sys/vm/nr_hugepages": "512\n",
        "proc/sys/net/core/somaxconn": "4096\n",
        "proc/cmdline": "root=/dev/sda1 quiet\n",
        "proc/uptime": "1000.0 1.0\n",
        "proc/loadavg": "0.0 0.0 0.0\n",
        "proc/stat": "cpu 9000 0 1000 90000 0 0 0 0 0 0\n",
        "proc/meminfo": meminfo(),
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": MOUNTS.format(HOME),
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        DPKG: status(PACKAGES),
        PROVIDER: "",
        "usr/lib/x86_64-linux-gnu/libfabric.so.1.18.0": "",
        "sys/class/dmi/id/bios_version": "2.1\n",
        "sys/class/dmi/id/product_uuid": f"4c4c4544-0000-1000-8000-00000000000{number}\n",
        "sys/module/apparmor/parameters/enabled": "Y\n",
        "sys/module/ib_uverbs/refcnt": "0\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        f"{CPU}/online": "0-7\n",
        f"{CPU}/present": "0-7\n",
        f"{CPU}/smt/control": "on\n",
        f"{CPU}/vulnerabilities/spectre_v2": "Mitigation: Enhanced IBRS\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm\n",
    }
    for pid, name in ((1, "systemd"), (70, "sshd"), (71, "chronyd"), (72, "munged")):
        file, text = daemon(pid, name)
        files[file] = text
    for cpu in range(CPUS):
        files[f"{CPU}/cpu{cpu}/online"] = "1\n"
    return files


def _machine(number: int) -> dict[str, str | bytes]:
    files = _common(number) | {
        "proc/cpuinfo": cpuinfo(),
        "sys/class/dmi/id/product_name": "Model 1\n",
        "sys/fs/selinux/enforce": "1\n",
        f"{CPU}/intel_pstate/no_turbo": "0\n",
        "sys/devices/system/edac/mc/mc0/ce_count": "0\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        DMI: modules(),
        f"{ADAPTER}/class": "0x020700\n",
        f"{ADAPTER}/vendor": "0x15b3\n",
        f"{ADAPTER}/device": "0x1013\n",
        f"{ADAPTER}/numa_node": "0\n",
        f"{ADAPTER}/current_link_speed": "8.0 GT/s PCIe\n",
        f"{ADAPTER}/max_link_speed": "8.0 GT/s PCIe\n",
        f"{ADAPTER}/current_link_width": "16\n",
        f"{ADAPTER}/max_link_width": "16\n",
        f"{ADAPTER}/sriov_totalvfs": "16\n",
        f"{ADAPTER}/sriov_numvfs": "16\n",
        f"{ADAPTER}/net/ib0/mtu": "4092\n",
        f"{ADAPTER}/net/ib0/type": "32\n",
        f"{ADAPTER}/net/ib0/operstate": "up\n",
        f"{ADAPTER}/infiniband/mlx5_0/node_guid": f"0002:c903:0000:000{number}\n",
        f"{ADAPTER}/infiniband/mlx5_0/fw_ver": "20.31.1014\n",
        f"{ADAPTER}/infiniband/mlx5_0/board_id": "MT_0000000010\n",
        f"{PORT}/state": "4: ACTIVE\n",
        f"{PORT}/phys_state": "5: LinkUp\n",
        f"{PORT}/rate": "100 Gb/sec (4X EDR)\n",
        f"{PORT}/link_layer": "InfiniBand\n",
        f"{PORT}/sm_lid": "0x1\n",
        f"{PORT}/pkeys/0": "0xffff\n",
        f"{PORT}/pkeys/1": "0x8001\n",
        f"{PORT}/counters/symbol_error": "0\n",
        f"{PORT}/counters/link_downed": "0\n",
        f"{PORT}/gid_attrs/ndevs/0": "ib0\n",
        f"sys/kernel/iommu_groups/7/devices/{SLOT}": "",
    }
    for node in (0, 1):
        folder = f"sys/devices/system/node/node{node}"
        files[f"{folder}/cpulist"] = "0-3\n" if node == 0 else "4-7\n"
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       65536000 kB\n"
    for cpu in range(CPUS):
        folder = f"{CPU}/cpu{cpu}/cpufreq"
        files[f"{folder}/scaling_governor"] = "performance\n"
        files[f"{folder}/cpuinfo_max_freq"] = "3000000\n"
        files[f"{folder}/scaling_max_freq"] = "3000000\n"
        for state_number, (name, latency, off) in enumerate(IDLE):
            state = f"{CPU}/cpu{cpu}/cpuidle/state{state_number}"
            files[f"{state}/name"] = f"{name}\n"
            files[f"{state}/latency"] = f"{latency}\n"
            files[f"{state}/disable"] = f"{off}\n"
    return files


def _guest(number: int) -> dict[str, str | bytes]:
    return _common(number) | {
        "proc/cpuinfo": cpuinfo(flags="fpu avx2 hypervisor", packages=1),
        "sys/class/dmi/id/product_name": "Standard PC\n",
        "sys/class/dmi/id/product_version": "pc-q35-7.2\n",
        f"{SEGMENT}/class": "0x050000\n",
        f"{SEGMENT}/vendor": "0x1af4\n",
        f"{SEGMENT}/device": "0x1110\n",
        f"{SEGMENT}/resource": "0x0 0x0 0x0\n" * 2 + "0x0000004000000000 0x0000004000ffffff 0x14\n",
        f"{SEGMENT}/resource2": "",
        PAT: MEMORY_TYPES.format("write-back"),
        "sys/bus/virtio/drivers/virtio_balloon/module": "",
    }


_LINKS = {
    "sys/class/infiniband/mlx5_0": f"../../../{ADAPTER}/infiniband/mlx5_0",
    f"{ADAPTER}/infiniband/mlx5_0/device": f"../../../{SLOT}",
    f"{ADAPTER}/iommu_group": "../../../kernel/iommu_groups/7",
    "sys/class/net/ib0": f"../../../{ADAPTER}/net/ib0",
    f"{ADAPTER}/net/ib0/device": f"../../../{SLOT}",
    f"sys/bus/pci/devices/{SLOT}": f"../../../../{ADAPTER}",
}
_SEGMENT_LINKS = {"sys/bus/pci/devices/0000:00:05.0": f"../../../../{SEGMENT}"}
KINDS = {"machine": (_machine, _LINKS), "guest": (_guest, _SEGMENT_LINKS)}


def change(tree: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Write files of a tree; None removes one."""
    for name, content in files.items():
        path = tree / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_tree(tree: Path, kind: str, number: int) -> None:
    """Make the tree of a healthy node."""
    files, links = KINDS[kind]
    change(tree, files(number))
    for name, target in ({LINK: "../nearmetal/libnearmetal-fi.so"} | links).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(target)
    for name in ("home", "dev/shm"):
        (tree / name).mkdir(parents=True)
    (tree / "dev/shm").chmod(0o1777)
