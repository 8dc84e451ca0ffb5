# SPDX-License-Identifier: Apache-2.0
"""The table of faults that `nearmetal check` must find and name, and what undoes each of them.

A fault is injected where it can be: into a real node of a local cluster (`NODES`), into a real
agent on this machine (`AGENTS`), into the shell (`SHELLS`) or the login (`LOGINS`) that starts it,
or into the files that a real agent reads (`TREES`). The last ones are faults of hardware that this
machine lacks, and faults that would hit all nodes of a local cluster, which share its kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tests.system.check_tree import (
    ADAPTER,
    CPU,
    CPUS,
    DMI,
    DPKG,
    HOME,
    KERNEL,
    LINK,
    MEMORY_TYPES,
    MOUNTS,
    PACKAGES,
    PAT,
    PORT,
    PROVIDER,
    SLOT,
    cpuinfo,
    daemon,
    meminfo,
    modules,
    status,
)

Files = dict[str, "str | bytes | None"]


@dataclass(frozen=True)
class NodeFault:
    """A fault of a node of a local cluster. {net}: its interface."""

    found: set[str]
    namespaces: str
    """Of the node, as options of nsenter."""
    inject: str
    undo: str = ""
    why: str = ""
    """Why the remedy of the finding is not run, and `undo` is.

    If it is empty, the remedy is run as it is."""
    device: str = os.devnull
    """Of this machine, on the standard input of the injection."""
    others: tuple[str, ...] = ()
    """Nodes that are a part of the fault."""


@dataclass(frozen=True)
class TreeFault:
    """A fault in the files of one node."""

    found: set[str]
    files: Files
    why: str = ""
    """Why the remedy of the finding cannot be run on files; they are then put back.

    If it is empty, the remedy is run as it is."""
    kernel: Files = field(default_factory=dict)
    """What a kernel shows in other files after the remedy."""
    network: tuple[str, str] = ("", "")
    """If the remedy changes a network: what makes it in a namespace, and what then shows it in the
    files of {tree}."""
    kind: str = "machine"
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentFault:
    """A fault of the process of an agent, which is a node here."""

    found: set[str]
    why: str
    """Why the remedy of the finding cannot be run."""
    words: tuple[str, ...] = ()
    """Before its command."""
    ahead_s: float = 0.0
    """How far its clock is ahead."""


@dataclass(frozen=True)
class ShellFault:
    """A fault of the shell that starts an agent; the remedy is run in it. {tmp}: a folder."""

    found: set[str]
    inject: str


MOUNTING = "-m -p"
"""`mount` reads the table of its own process."""

SHOWS = "it shows more, and changes nothing"
SHM = "nosuid,nodev,relatime /dev/shm"
CLOCK = "it would set the clock of this machine"
SHM_MOUNT = {f"uniformity.mounts storage[/dev/shm].{each}" for each in ("type", "options")}
SRV_MOUNT = {f"uniformity.mounts storage[/srv].{each}" for each in ("type", "options")}
NODES: dict[str, NodeFault] = {
    "a smaller MTU": NodeFault(
        {"uniformity.interfaces net.{net}.mtu"}, "-n", "ip link set {net} mtu 1200"
    ),
    "an interface that is down": NodeFault(
        {f"uniformity.interfaces net.{{net}}.{each}" for each in ("state", "speed", "duplex")},
        "-n",
        "ip link set {net} down",
    ),
    "a setting": NodeFault(
        {"uniformity.settings sysctl[net.core.somaxconn]"},
        "-n",
        "sysctl -w net.core.somaxconn=17",
    ),
    "a setting of two numbers": NodeFault(
        {"uniformity.settings sysctl[net.ipv4.ip_local_port_range]"},
        "-n",
        "sysctl -w net.ipv4.ip_local_port_range='40000 50000'",
    ),
    "another control of congestion": NodeFault(
        {"uniformity.settings sysctl[net.ipv4.tcp_congestion_control]"},
        "-n",
        "sysctl -w net.ipv4.tcp_congestion_control=reno",
    ),
    "a second node of a name": NodeFault(
        {"base.hostname"},
        "-u",
        "hostname n1",
        "hostname n3",
        why="which of both has the wrong name is not known",
        others=("n1",),
    ),
    "a name that is not resolved": NodeFault(
        {"base.resolution"}, "-u", "hostname lost", "hostname n3", why=SHOWS
    ),
    "a mount that others lack": NodeFault(
        {"uniformity.mounts storage[/opt].type", "uniformity.mounts storage[/opt].options"},
        MOUNTING,
        "mount -t tmpfs none /opt",
        "umount /opt",
        why="no remedy takes away what only one node has",
    ),
    "a mount that is missing": NodeFault(
        {"storage.mounts /srv"} | SRV_MOUNT, MOUNTING, "umount /srv"
    ),
    "a mount that is read-only": NodeFault(
        {"uniformity.mounts storage[/srv].options"}, MOUNTING, "mount -o remount,ro /srv"
    ),
    "a mount whose server has died": NodeFault(
        {"storage.broken /srv", "uniformity.mounts storage[/srv].type"},
        MOUNTING,
        "umount /srv && mount -i -t fuse -o fd=0,rootmode=40000,user_id=0,group_id=0 none /srv",
        device="/dev/fuse",
    ),
    "shared memory that is read-only": NodeFault(
        {"nearmetal.shared", "uniformity.mounts storage[/dev/shm].options"},
        MOUNTING,
        f"mount -o remount,ro,{SHM}",
    ),
    "no shared memory": NodeFault({"nearmetal.shared"} | SHM_MOUNT, MOUNTING, "umount /dev/shm"),
    "shared memory for root only": NodeFault({"nearmetal.shared"}, MOUNTING, "chmod 755 /dev/shm"),
    "little shared memory": NodeFault(
        {"nearmetal.shared"}, MOUNTING, "mount -o remount,size=1m /dev/shm"
    ),
    "a full file system": NodeFault(
        {"storage.full /dev/shm"},
        MOUNTING,
        "head -c 17000000 /dev/zero >/dev/shm/full || true",
        "rm /dev/shm/full",
        why=SHOWS,
    ),
}

AGENTS: dict[str, AgentFault] = {
    "a limit of open files": AgentFault(
        {"uniformity.limits limits.nofile.hard", "uniformity.limits limits.nofile.soft"},
        SHOWS,
        ("prlimit", "--nofile=256:512", "--"),
    ),
    "a clock that is 5 s ahead": AgentFault({"base.clock"}, CLOCK, ahead_s=5.0),
    # An agent may take seconds to answer, and might have read its clock at the first moment.
    "a clock that is a minute behind": AgentFault({"base.clock"}, CLOCK, ahead_s=-60.0),
}

SHELLS: dict[str, ShellFault] = {
    "another provider": ShellFault({"nearmetal.environment"}, "export FI_PROVIDER=tcp"),
    "a path without the provider": ShellFault(
        {
            "nearmetal.provider {tmp}/nearmetal/libnearmetal-fi.so",
            "uniformity.software nearmetal.providers[{tmp}/nearmetal/libnearmetal-fi.so]",
        },
        "export FI_PROVIDER_PATH={tmp}/nearmetal",
    ),
    "a rundir that is missing": ShellFault(
        {"nearmetal.rundir {tmp}/none/rundir"}, "export NEARMETAL_RUNDIR={tmp}/none/rundir"
    ),
    "a rundir of all users": ShellFault(
        {"nearmetal.rundir {tmp}/rundir"},
        "mkdir -m 1777 {tmp}/rundir; export NEARMETAL_RUNDIR={tmp}/rundir",
    ),
}

LIMIT = "uniformity.limits limits."
LOGINS: dict[str, ShellFault] = {
    "few open files": ShellFault(
        {"base.open_files", f"{LIMIT}nofile.hard", f"{LIMIT}nofile.soft"},
        "echo '* - nofile 512' >/etc/security/limits.d/few.conf",
    ),
    "little locked memory": ShellFault(
        {"base.memlock", f"{LIMIT}memlock.hard", f"{LIMIT}memlock.soft"},
        "echo '* - memlock 64' >/etc/security/limits.d/little.conf",
    ),
}
"""Faults of a node's files for logins: the agent is started by a login, after the remedy."""

REBOOT = "the machine would have to be restarted"
HARDWARE = "a person would have to touch hardware"
HOST = "it is a command of the host"
MACHINE = "it would reach the kernel of this machine"
LIBRARIES = {k: v for k, v in PACKAGES.items() if k.startswith("lib")}
FABRIC = "it shows more, and the cause is in the fabric"
DAEMON = "files run no daemon"

SYS_CPU = "/sys/devices/system/cpu"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
DEFRAG = "sys/kernel/mm/transparent_hugepage/defrag"
CLOCKS = "sys/devices/system/clocksource/clocksource0/current_clocksource"
OLD_KERNEL = "6.1.0-17-amd64"
FAMILY = "uniformity.processor processor."


def per_cpu(file: str, text: str) -> Files:
    """Return one file of each processor."""
    return {f"{CPU}/cpu{cpu}/{file}": text for cpu in range(CPUS)}


def stopped(pid: int, name: str) -> Files:
    """Return the files of a daemon that has ended."""
    file, _ = daemon(pid, name)
    return {file: None}


TREES: dict[str, TreeFault] = {
    "a governor": TreeFault(
        {
            "processor.governor CPUs 0-7",
            f"{FAMILY}governors.performance",
            f"{FAMILY}governors.powersave",
        },
        per_cpu("cpufreq/scaling_governor", "powersave\n"),
    ),
    "a limit of the frequency": TreeFault(
        {
            "processor.frequency CPUs 0-7",
            f"{FAMILY}allowed_khz.2000000",
            f"{FAMILY}allowed_khz.3000000",
        },
        per_cpu("cpufreq/scaling_max_freq", "2000000\n"),
    ),
    "a processor that is off": TreeFault(
        {"processor.offline"},
        {f"{CPU}/online": "0-6\n", f"{CPU}/cpu7/online": "0\n"},
        kernel={f"{CPU}/online": "0-7\n"},
    ),
    "SMT": TreeFault({f"{FAMILY}smt"}, {f"{CPU}/smt/control": "off\n"}),
    "mitigations": TreeFault(
        {f"{FAMILY}vulnerabilities.spectre_v2", "uniformity.kernel system.boot_words.mitigations"},
        {
            "proc/cmdline": "root=/dev/sda1 quiet mitigations=off\n",
            f"{CPU}/vulnerabilities/spectre_v2": "Vulnerable\n",
        },
        why=REBOOT,
    ),
    "two microcodes": TreeFault(
        {"processor.microcode", f"{FAMILY}microcode"},
        {"proc/cpuinfo": cpuinfo(microcode="0x2c")},
        why=REBOOT,
    ),
    "a quota": TreeFault(
        {"processor.quota"},
        {
            "proc/self/cgroup": "0::/jobs\n",
            "sys/fs/cgroup/jobs/cpu.max": "10000 100000\n",
        },
    ),
    "no turbo": TreeFault({f"{FAMILY}no_turbo"}, {f"{CPU}/intel_pstate/no_turbo": "1\n"}),
    "a slow idle state": TreeFault({"processor.idle C6"}, per_cpu("cpuidle/state2/disable", "0\n")),
    "a missing module of memory": TreeFault(
        {
            "memory.spread",
            "uniformity.memory memory.MemTotal",
            "uniformity.memory memory.modules.P1-DIMMA1",
            "uniformity.memory memory.slots.empty",
        },
        {DMI: modules(missing="P1-DIMMA1"), "proc/meminfo": meminfo(total=114688000)},
        why=HARDWARE,
    ),
    "corrected errors of memory": TreeFault(
        {"memory.corrected mc0"}, {"sys/devices/system/edac/mc/mc0/ce_count": "9\n"}, why=HARDWARE
    ),
    "lost data of memory": TreeFault(
        {"memory.uncorrected mc0"}, {"sys/devices/system/edac/mc/mc0/ue_count": "1\n"}, why=HARDWARE
    ),
    "transparent huge pages": TreeFault(
        {"memory.transparent", "uniformity.settings memory.transparent.enabled"},
        {THP: "always madvise [never]\n"},
        kernel={THP: "[always] madvise never\n"},
    ),
    "the making of huge pages": TreeFault(
        {"uniformity.settings memory.transparent.defrag"},
        {DEFRAG: "[always] defer defer+madvise madvise never\n"},
        kernel={DEFRAG: "always defer defer+madvise [madvise] never\n"},
    ),
    "too few huge pages": TreeFault(
        {
            "memory.huge_pages",
            "uniformity.settings memory.HugePages_Total",
            "uniformity.settings sysctl[vm.nr_hugepages]",
        },
        {"proc/sys/vm/nr_hugepages": "0\n", "proc/meminfo": meminfo(huge=0)},
        kernel={"proc/meminfo": meminfo()},
    ),
    "memory on disk": TreeFault({"base.swap"}, {"proc/meminfo": meminfo(swap=1000)}, why=MACHINE),
    "NUMA balancing": TreeFault(
        {"base.numa_balancing", "uniformity.settings sysctl[kernel.numa_balancing]"},
        {"proc/sys/kernel/numa_balancing": "1\n"},
    ),
    "swappiness": TreeFault(
        {"uniformity.settings sysctl[vm.swappiness]"}, {"proc/sys/vm/swappiness": "60\n"}
    ),
    "a swapped package of the kernel": TreeFault(
        {
            "software.kernel",
            f"uniformity.software software.packages[linux-image-{KERNEL}]",
            f"uniformity.software software.packages[linux-image-{OLD_KERNEL}]",
        },
        {DPKG: status({f"linux-image-{OLD_KERNEL}": "6.1.69-1"} | LIBRARIES)},
        why="no remedy takes away the package that only one node has",
    ),
    "a package that is missing": TreeFault(
        {"software.packages libfabric1", "uniformity.software software.packages.libfabric1"},
        {DPKG: status({k: v for k, v in PACKAGES.items() if k != "libfabric1"})},
    ),
    "an old package": TreeFault(
        {"software.packages libfabric1", "uniformity.software software.packages.libfabric1"},
        {DPKG: status(PACKAGES | {"libfabric1": "1.11.0-2"})},
    ),
    "another kernel": TreeFault(
        {"software.kernel", "uniformity.kernel system.kernel"},
        {"proc/sys/kernel/osrelease": OLD_KERNEL + "\n"},
        why=REBOOT,
    ),
    "SELinux": TreeFault({"uniformity.kernel system.selinux"}, {"sys/fs/selinux/enforce": "0\n"}),
    "AppArmor": TreeFault(
        {"uniformity.kernel system.apparmor"},
        {"sys/module/apparmor/parameters/enabled": "N\n"},
        why=REBOOT,
    ),
    "a daemon that ended": TreeFault(
        {"base.services munged", "uniformity.services services.munged"},
        stopped(72, "munged"),
        why=DAEMON,
    ),
    "no keeper of the clock": TreeFault(
        {"base.time_service", "uniformity.services services.time"},
        stopped(71, "chronyd"),
        why=DAEMON,
    ),
    "a mount that is missing": TreeFault(
        {
            "storage.mounts /home",
            "uniformity.mounts storage[/home].type",
            "uniformity.mounts storage[/home].options",
        },
        {"proc/self/mountinfo": MOUNTS.format("")},
        why="no file system is behind it",
    ),
    "a mount that is read-only": TreeFault(
        {"uniformity.mounts storage[/home].options"},
        {"proc/self/mountinfo": MOUNTS.format(HOME.replace("rw", "ro"))},
        why="no file system is behind it",
    ),
    "two equal GUIDs": TreeFault(
        {"fabric.twice GUID"},
        {f"{ADAPTER}/infiniband/mlx5_0/node_guid": "0002:c903:0000:0001\n"},
        why=MACHINE,
        others=("m1",),
    ),
    "no GUID": TreeFault(
        {"fabric.guid mlx5_0"},
        {f"{ADAPTER}/infiniband/mlx5_0/node_guid": "0000:0000:0000:0000\n"},
        why=MACHINE,
    ),
    "a narrow link": TreeFault(
        {"fabric.rate mlx5_0/1", "uniformity.fabric fabric[mlx5_0/1].rate"},
        {f"{PORT}/rate": "25 Gb/sec (1X EDR)\n"},
        why=FABRIC,
    ),
    "no link": TreeFault(
        {"fabric.state mlx5_0/1", "uniformity.fabric fabric[mlx5_0/1].state"},
        {f"{PORT}/state": "1: DOWN\n", f"{PORT}/phys_state": "3: Disabled\n"},
        why=FABRIC,
    ),
    "no subnet manager": TreeFault(
        {"fabric.manager mlx5_0/1"}, {f"{PORT}/sm_lid": "0x0\n"}, why=FABRIC
    ),
    "a partition key that is missing": TreeFault(
        {"uniformity.fabric fabric[mlx5_0/1].pkeys"}, {f"{PORT}/pkeys/1": None}, why=FABRIC
    ),
    "errors of a link": TreeFault(
        {"fabric.counters mlx5_0/1"}, {f"{PORT}/counters/symbol_error": "77\n"}, why=FABRIC
    ),
    "the firmware of an adapter": TreeFault(
        {"uniformity.fabric fabric.mlx5_0.fw_ver"},
        {f"{ADAPTER}/infiniband/mlx5_0/fw_ver": "20.28.0000\n"},
        why=FABRIC,
    ),
    "a smaller MTU of an adapter": TreeFault(
        {"fabric.mtu mlx5_0/1", "uniformity.interfaces net.ib0.mtu"},
        {f"{ADAPTER}/net/ib0/mtu": "2044\n"},
        network=(
            "ip link add ib0 type veth peer name ib1 && ip link set ib0 mtu 2044",
            rf"ip -o link show ib0 | sed 's/.* mtu \([0-9]*\) .*/\1/' >{{tree}}/{ADAPTER}/net/ib0/mtu",
        ),
    ),
    "a slot with half of its lanes": TreeFault(
        {f"fabric.slot {SLOT}"}, {f"{ADAPTER}/current_link_width": "8\n"}, why=HARDWARE
    ),
    "too few virtual functions": TreeFault(
        {f"virtual.functions {SLOT}", "uniformity.fabric fabric.mlx5_0.vfs"},
        {f"{ADAPTER}/sriov_numvfs": "4\n"},
    ),
    "firmware without virtual functions": TreeFault(
        {f"virtual.functions {SLOT}", "uniformity.fabric fabric.mlx5_0.vfs"},
        {f"{ADAPTER}/sriov_totalvfs": "8\n", f"{ADAPTER}/sriov_numvfs": "8\n"},
        why=REBOOT,
    ),
    "a BIOS": TreeFault(
        {"uniformity.firmware system.dmi.bios_version"},
        {"sys/class/dmi/id/bios_version": "1.9\n"},
        why=REBOOT,
    ),
    "no provider": TreeFault(
        {
            f"nearmetal.provider /{LINK}",
            f"uniformity.software nearmetal.providers[/{LINK}]",
        },
        {PROVIDER: None, DPKG: status(PACKAGES)},
    ),
    "a clock source": TreeFault(
        {"virtual.clock", "uniformity.processor virtual.clock"}, {CLOCKS: "acpi_pm\n"}, kind="guest"
    ),
    "stolen time": TreeFault(
        {"virtual.steal"},
        {"proc/stat": "cpu 9000 0 1000 90000 0 0 0 9000 0 0\n"},
        why=HOST,
        kind="guest",
    ),
    "a balloon": TreeFault(
        {"virtual.balloon"},
        {"sys/bus/virtio/drivers/virtio_balloon/virtio0/status": "0x7\n"},
        why=HOST,
        kind="guest",
    ),
    "a machine type": TreeFault(
        {"uniformity.machine system.dmi.product_version"},
        {"sys/class/dmi/id/product_version": "pc-i440fx-7.2\n"},
        why=HOST,
        kind="guest",
    ),
    "a segment that is not cached": TreeFault(
        {"nearmetal.segment 0000:00:05.0"},
        {PAT: MEMORY_TYPES.format("uncached-minus")},
        why=HOST,
        kind="guest",
    ),
}
