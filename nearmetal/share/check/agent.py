# SPDX-License-Identifier: Apache-2.0
"""The agent of `nearmetal check`: facts of one node as one JSON document on standard output.

One file, the standard library, Python 3.6 or later: it is sent whole to nodes where nearmetal is
not installed, and runs from standard input (`python3 -I -B - <agent.py`), as any user. It changes
nothing, opens no file to write, and loads no module of the kernel. Each source is read in a process
of its own, with a limit of time and bytes: a file system that hangs costs its own facts and no
others. A source that this user cannot see is named in `unseen`.
"""

import json
import os
import re
import resource
import select
import signal
import stat
import struct
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

VERSION = 1
SOURCE_S = 5.0
TOTAL_S = 45.0
QUICK_TOTAL_S = 12.0
MOST_BYTES = 384 << 10
MOST_FILE = 4 << 20
MOST_TEXT = 512
MOST_NAMES = 1 << 16
MOST_MOUNTS = 1024

Facts = Iterator[Tuple[str, Any]]
"""Pairs of a dotted place (`processor.model`; `|` in place of a dot within a name) and a value."""

ROOT = "/"
"""The root of /proc, /sys, /etc and /var; tests choose another one."""

CUT = []  # type: List[str]
"""What this process left out because it was too much."""

SYSCTLS = """\
kernel.numa_balancing kernel.randomize_va_space kernel.pid_max kernel.threads-max kernel.shmmax
kernel.shmall kernel.perf_event_paranoid kernel.yama.ptrace_scope kernel.nmi_watchdog kernel.timer_migration
kernel.sched_rt_runtime_us fs.file-max vm.swappiness vm.zone_reclaim_mode vm.overcommit_memory
vm.overcommit_ratio vm.min_free_kbytes vm.nr_hugepages vm.compaction_proactiveness vm.stat_interval
vm.dirty_ratio vm.dirty_background_ratio vm.max_map_count net.core.rmem_max net.core.wmem_max
net.core.somaxconn net.core.netdev_max_backlog net.core.busy_poll net.core.busy_read
net.ipv4.tcp_congestion_control net.ipv4.neigh.default.gc_thresh3 net.ipv4.ip_local_port_range
user.max_user_namespaces""".split()

BOOT_WORDS = """\
mitigations isolcpus nohz_full rcu_nocbs nosmt idle processor.max_cstate intel_idle.max_cstate
intel_pstate amd_pstate iommu intel_iommu amd_iommu iommu.passthrough hugepages hugepagesz
default_hugepagesz transparent_hugepage numa_balancing numa clocksource tsc nmi_watchdog selinux
apparmor pci pcie_aspm spectre_v2 nospectre_v2 maxcpus mem""".split()
"""Words of the kernel's command line that are recorded: others may be secrets."""

CPU = "sys/devices/system/cpu/"
LINES = [
    row.split()
    for row in """\
system.kernel proc/sys/kernel/osrelease
system.boot_id proc/sys/kernel/random/boot_id
system.dmi.product_name sys/class/dmi/id/product_name
system.dmi.product_version sys/class/dmi/id/product_version
system.dmi.sys_vendor sys/class/dmi/id/sys_vendor
system.dmi.bios_version sys/class/dmi/id/bios_version
system.dmi.board_name sys/class/dmi/id/board_name
processor.online sys/devices/system/cpu/online
processor.present sys/devices/system/cpu/present
processor.isolated sys/devices/system/cpu/isolated
processor.nohz_full sys/devices/system/cpu/nohz_full
processor.smt sys/devices/system/cpu/smt/control
processor.frequency_driver sys/devices/system/cpu/cpu0/cpufreq/scaling_driver
processor.no_turbo sys/devices/system/cpu/intel_pstate/no_turbo
processor.boost sys/devices/system/cpu/cpufreq/boost
processor.idle_driver sys/devices/system/cpu/cpuidle/current_driver
memory.ksm sys/kernel/mm/ksm/run
virtual.clock sys/devices/system/clocksource/clocksource0/current_clocksource
virtual.clocks sys/devices/system/clocksource/clocksource0/available_clocksource""".splitlines()
]
"""Facts that are one line of one file."""

GOVERNED = {
    "governors": "cpufreq/scaling_governor",
    "preference": "cpufreq/energy_performance_preference",
    "highest_khz": "cpufreq/cpuinfo_max_freq",
    "allowed_khz": "cpufreq/scaling_max_freq",
}
NAMED = {
    "model name": "model",
    "vendor_id": "vendor",
    "cpu family": "family",
    "model": "number",
    "stepping": "stepping",
    "cache size": "cache",
}
FEATURES = set(
    "avx avx2 avx512f amx_tile fma sve asimd erms rdtscp constant_tsc nonstop_tsc pdpe1gb x2apic".split()
)
KERNEL_FILES = set(
    """proc sysfs cgroup cgroup2 devpts mqueue securityfs debugfs tracefs bpf pstore configfs autofs
    rpc_pipefs binfmt_misc nsfs efivarfs squashfs iso9660 hugetlbfs selinuxfs fusectl""".split()
)
"""File systems that have no space of their own."""

PORT_COUNTERS = """\
symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors
port_rcv_switch_relay_errors port_xmit_discards local_link_integrity_errors
excessive_buffer_overrun_errors VL15_dropped port_xmit_wait""".split()

LIBRARIES = (
    "libfabric libmpi libucp libibverbs librdmacm libpmix libopenblas libnearmetal-fi".split()
)
PROVIDER = "libnearmetal-fi.so"
PLACES = [
    "usr/lib",
    "usr/lib64",
    "usr/local/lib",
    "opt/mellanox",
    "opt/openmpi/lib",
    "opt/mpich/lib",
]
SYNC = (
    "chronyd",
    "ntpd",
    "systemd-timesyn",
    "ntpdate",
    "ptp4l",
    "phc2sys",
    "vmtoolsd",
    "timemaster",
)
NETWORK_TYPES = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "9p",
    "fuse",
    "panfs",
)


class Unseen(Exception):  # noqa: N818 - not an error of the agent
    """A source cannot be seen; the text is the reason."""


def at(name: str) -> str:
    return os.path.join(ROOT, name)


def clean(text: str) -> str:
    """Return one line without characters that are not text."""
    return "".join(c if c.isprintable() else " " for c in text.strip())[:MOST_TEXT]


def raw(name: str, most: int = MOST_FILE) -> bytes:
    """Return a regular file; raises OSError. A device or a FIFO is refused and never waited for."""
    descriptor = os.open(at(name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        parts, left = [], most
        while left > 0:
            part = os.read(descriptor, min(left, 65536))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def whole(name: str) -> str:
    """Return a file as text; "" if it cannot be read."""
    try:
        return raw(name).decode("utf-8", "replace")
    except OSError:
        return ""


def line(name: str) -> str:
    return clean(whole(name))


def number(name: str) -> Optional[int]:
    text = line(name)
    try:
        return int(text, 0) if len(text) < 21 else None
    except ValueError:
        return int(text) if text.isdigit() and len(text) < 21 else None


def names(name: str) -> List[str]:
    try:
        found = sorted(os.listdir(at(name)))
    except OSError:
        return []
    return first(found, MOST_NAMES, "names of /" + name)


def first(found: List[Any], most: int, what: str) -> List[Any]:
    if len(found) > most:
        CUT.append("cut: %d of %d %s" % (most, len(found), what))
    return found[:most]


def processes() -> Iterator[str]:
    """Yield the number of each process, however many there are."""
    try:
        with os.scandir(at("proc")) as entries:
            for entry in entries:
                if re.match(r"[0-9]+$", entry.name):
                    yield entry.name
    except OSError:
        return


def target(name: str) -> str:
    try:
        return os.path.basename(os.readlink(at(name)))
    except OSError:
        return ""


def key(name: str) -> str:
    return clean(name).replace(".", "|") or "-"


def folded(numbers: List[int]) -> str:
    """Return numbers as ranges: 0-3,8."""
    found = []  # type: List[List[int]]
    for one in sorted(numbers):
        if found and one == found[-1][1] + 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ",".join(str(a) if a == b else "%d-%d" % (a, b) for a, b in found)


def grouped(pattern: str) -> Dict[str, str]:
    """Return the values of one file of every processor, each with its processors."""
    found = {}  # type: Dict[str, List[int]]
    for entry in names("sys/devices/system/cpu"):
        if re.match(r"cpu[0-9]+$", entry):
            text = line("%s%s/%s" % (CPU, entry, pattern))
            if text:
                found.setdefault(text, []).append(int(entry[3:]))
    return {key(text): folded(cpus) for text, cpus in found.items()}


def single_lines() -> Facts:
    for place, file in LINES:
        yield place, line(file)


def system() -> Facts:
    kernel = os.uname()
    yield "system.hostname", line("proc/sys/kernel/hostname") or kernel.nodename
    yield "system.architecture", kernel.machine
    for text in whole("etc/os-release").splitlines():
        name, _, value = text.partition("=")
        if name in ("ID", "VERSION_ID", "PRETTY_NAME"):
            yield "system.os." + name.lower(), clean(value.strip("\"'"))
    for word in whole("proc/cmdline").split():
        name, _, value = word.partition("=")
        if name in BOOT_WORDS:
            yield "system.boot_words." + key(name), clean(value) or "set"
    yield "system.uptime_s", float((line("proc/uptime").split() or ["0"])[0])
    yield "system.load_1", float((line("proc/loadavg").split() or ["0"])[0])
    enforced = {"1": "enforcing", "0": "permissive"}
    yield "system.selinux", enforced.get(line("sys/fs/selinux/enforce"), "off")
    yield "system.apparmor", line("sys/module/apparmor/parameters/enabled") == "Y"


def machine_id() -> Facts:
    if not os.path.exists(at("sys/class/dmi/id/product_uuid")):
        return
    text = line("sys/class/dmi/id/product_uuid")
    if not text:
        raise Unseen("only root may read it")
    yield "virtual.uuid", text.lower()


def settings() -> Facts:
    for name in SYSCTLS:
        text = line("proc/sys/" + name.replace(".", "/"))
        if text:
            yield "sysctl." + key(name), text


def limits() -> Facts:
    for name in ("MEMLOCK", "NOFILE", "STACK", "NPROC", "CORE", "AS"):
        soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
        for kind, value in (("soft", soft), ("hard", hard)):
            shown = -1 if value == resource.RLIM_INFINITY or value < 0 else value
            yield "limits.%s.%s" % (name.lower(), kind), shown


def services() -> Facts:
    running, uninterruptible, zombies = set(), 0, 0
    for pid in processes():
        head, _, tail = line("proc/%s/stat" % pid).rpartition(")")
        running.add(head.partition("(")[2])
        state = tail.split()[:1]
        uninterruptible += state == ["D"]
        zombies += state == ["Z"]
    for name in (
        "sshd",
        "slurmd",
        "munged",
        "systemd",
        "opensm",
        "irqbalance",
        "tuned",
        "libvirtd",
        "init",
    ):
        if name in running:
            yield "services." + name, "runs"
    yield "services.time", ", ".join(sorted(running.intersection(SYNC)))
    yield "system.processes.uninterruptible", uninterruptible
    yield "system.processes.zombies", zombies


def resolution() -> Facts:
    import socket  # noqa: PLC0415 - slow to load, and not needed with --quick

    name = socket.gethostname()
    yield "names.own", name
    begin = time.monotonic()
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
        yield "names.addresses", ", ".join(found)[:MOST_TEXT]
    except OSError as error:
        yield "names.error", clean(str(error))
    yield "names.seconds", round(time.monotonic() - begin, 3)


def processor() -> Facts:
    info = {}  # type: Dict[str, str]
    cores, packages, microcodes = set(), set(), set()
    package, count = "0", 0
    for text in whole("proc/cpuinfo").splitlines():
        name, _, value = (part.strip() for part in text.partition(":"))
        info.setdefault(name, value)
        count += name == "processor"
        if name == "physical id":
            package = value
            packages.add(value)
        elif name == "core id":
            cores.add((package, value))
        elif name == "microcode":
            microcodes.add(value)
    for name, place in NAMED.items():
        if name in info:
            yield "processor." + place, clean(info[name])
    flags = set(info.get("flags", info.get("Features", "")).split())
    yield "processor.microcode", ", ".join(sorted(microcodes))[:MOST_TEXT]
    yield "processor.features", " ".join(sorted(flags & FEATURES))
    yield "virtual.guest", "hypervisor" in flags
    yield "processor.packages", len(packages) or 1
    yield "processor.cores", len(cores) or count
    yield "processor.threads", count
    yield "processor.usable", len(os.sched_getaffinity(0))


def frequency() -> Facts:
    for place, file in GOVERNED.items():
        yield "processor." + place, grouped(file)
    for entry in names(CPU + "cpu0/cpuidle"):
        state = CPU + "cpu0/cpuidle/" + entry
        if line(state + "/disable") == "0":
            yield "processor.idle." + key(line(state + "/name")), number(state + "/latency")
    for entry in names(CPU + "vulnerabilities"):
        yield "processor.vulnerabilities." + key(entry), line(CPU + "vulnerabilities/" + entry)
    counts = grouped("thermal_throttle/core_throttle_count")
    yield "processor.throttled", max([int(c) for c in counts if c.isdigit()] or [0])


def quota() -> Facts:
    """The bandwidth limits of the control groups above this process."""
    for text in whole("proc/self/cgroup").splitlines():
        number_, controllers, path = [*text.split(":", 2), "", ""][:3]
        if number_ == "0" and not controllers:
            base, file, fields = "sys/fs/cgroup", "cpu.max", 2
        elif "cpu" in controllers.split(","):
            base, file, fields = "sys/fs/cgroup/cpu", "cpu.cfs_quota_us", 1
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([base, *parts[:depth]])
            words = line(folder + "/" + file).split()
            if fields == 1 and words:
                words.append(line(folder + "/cpu.cfs_period_us"))
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                yield "processor.quota", round(int(words[0]) / int(words[1]), 3)
                yield "processor.quota_file", clean("/%s/%s" % (folder, file))
                return


def memory() -> Facts:
    for text in whole("proc/meminfo").splitlines():
        name, _, value = text.partition(":")
        words = value.split()
        if (
            words
            and words[0].isdigit()
            and name
            in (
                "MemTotal",
                "MemAvailable",
                "SwapTotal",
                "SwapFree",
                "Mlocked",
                "HardwareCorrupted",
                "HugePages_Total",
                "HugePages_Free",
                "Hugepagesize",
                "Committed_AS",
                "CommitLimit",
                "Shmem",
            )
        ):
            yield "memory." + name, int(words[0])
    thp = "sys/kernel/mm/transparent_hugepage/"
    for name in ("enabled", "defrag", "shmem_enabled"):
        chosen = re.search(r"\[(\S+)\]", line(thp + name))
        if chosen:
            yield "memory.transparent." + name, chosen.group(1)
    for node in names("sys/devices/system/node"):
        if re.match(r"node[0-9]+$", node):
            folder, place = "sys/devices/system/node/" + node, "memory.nodes." + node[4:]
            yield place + ".cpus", line(folder + "/cpulist")
            yield place + ".distances", line(folder + "/distance")
            total = re.search(r"MemTotal:\s+([0-9]+) kB", whole(folder + "/meminfo"))
            if total:
                yield place + ".MemTotal", int(total.group(1))
            for size in names(folder + "/hugepages"):
                pages = number("%s/hugepages/%s/nr_hugepages" % (folder, size))
                if pages:
                    yield "%s.%s" % (place, key(size)), pages


def corrections() -> Facts:
    """The error counters of the memory controllers (EDAC), and the modules of memory."""
    for controller in names("sys/devices/system/edac/mc"):
        folder = "sys/devices/system/edac/mc/" + controller
        if not re.match(r"mc[0-9]+$", controller):
            continue
        for kind in ("ce", "ue"):
            yield "memory.edac.%s.%s" % (controller, kind), number("%s/%s_count" % (folder, kind))
        for module in names(folder):
            corrected = number("%s/%s/dimm_ce_count" % (folder, module))
            uncorrected = number("%s/%s/dimm_ue_count" % (folder, module))
            if corrected or uncorrected:
                label = line("%s/%s/dimm_label" % (folder, module)) or module
                yield (
                    "memory.edac.%s.%s" % (controller, key(label)),
                    "%s, %s" % (corrected, uncorrected),
                )


def structures(table: bytes) -> Iterator[Tuple[int, bytes, List[bytes]]]:
    """Type, fields and texts of each structure of SMBIOS (DSP0134)."""
    place = 0
    while place + 4 <= len(table):
        length = table[place + 1]
        end = table.find(b"\0\0", place + length)
        if length < 4 or end < 0:
            return
        yield table[place], table[place : place + length], table[place + length : end].split(b"\0")
        place = end + 2


class Module:
    """One memory device (type 17), without its serial number."""

    def __init__(self, fields: bytes, texts: List[bytes]) -> None:
        def word(at: int) -> int:
            return int(struct.unpack_from("<H", fields, at)[0]) if len(fields) >= at + 2 else 0

        def text(at: int) -> str:
            index = fields[at]
            return texts[index - 1].decode("ascii", "replace") if 0 < index <= len(texts) else ""

        size, self.size = word(0x0C), 0
        if size == 0x7FFF and len(fields) >= 0x20:
            self.size = struct.unpack_from("<I", fields, 0x1C)[0] & 0x7FFFFFFF
        elif size & 0x8000 and size != 0xFFFF:
            self.size = (size & 0x7FFF) >> 10  # in KiB
        elif size != 0xFFFF:
            self.size = size
        self.array, self.kind = word(4), fields[0x12]
        self.slot, self.bank = text(0x10).strip(), text(0x11).strip()
        self.speed, self.running = word(0x15), word(0x20)
        technology = fields[0x28] if len(fields) > 0x28 else 0
        self.persistent = self.kind == 0x1F or 4 <= technology <= 7


PROCESSOR = re.compile(r"(?:P|CPU|PROC|Socket)[ _]?([0-9]{1,2})[ _-]", re.IGNORECASE)


def groups_of(modules: List[Module]) -> Dict[str, List[Module]]:
    """Modules by processor if each slot names one, else by array: a processor or its controller."""
    found = {}  # type: Dict[str, List[Module]]
    named = [PROCESSOR.match(module.slot) for module in modules]
    arrays = sorted({module.array for module in modules})
    for module, match in zip(modules, named):
        name = "array %d" % (arrays.index(module.array) + 1)
        if match and all(named):
            name = "processor " + match.group(1)
        found.setdefault(name, []).append(module)
    return found


def modules_of_memory() -> Facts:
    """The modules of main memory; firmware also lists its own ROM as a memory device."""
    name = "sys/firmware/dmi/tables/DMI"
    if not os.path.exists(at(name)):
        return
    try:
        table = raw(name, 1 << 18)
    except OSError as error:
        raise Unseen("only root may read it") from error
    found = [
        Module(fields, texts)
        for kind, fields, texts in structures(table)
        if kind == 17 and len(fields) >= 0x17
    ]
    slots = [module for module in found if not 8 <= module.kind <= 12]
    names = [module.slot for module in slots]
    for number, module in enumerate(slots):
        place = module.slot or str(number)
        if names.count(module.slot) > 1:
            # Some boards count the slots of each channel: "DIMM 0" of "P0 CHANNEL A".
            place = ("%s %s" % (module.bank, place)).strip()
        if module.size and module.persistent:
            yield "memory.persistent." + key(place), "%d MiB" % module.size
        elif module.size:
            speeds = (module.size, module.running or module.speed, module.speed)
            yield "memory.modules." + key(place), "%d MiB, %d MT/s of %d" % speeds
    for group, members in groups_of(slots).items():
        full = [m for m in members if m.size and not m.persistent]
        counts = (sum(m.size for m in full), len(full), len(members))
        yield "memory.groups." + group, "%d MiB in %d of %d slots" % counts
    yield "memory.slots.all", len(slots)
    yield "memory.slots.empty", sum(not module.size for module in slots)


def interfaces() -> Facts:
    for name in names("sys/class/net"):
        folder, place = "sys/class/net/" + name, "net." + key(name)
        if name == "lo" or not os.path.isdir(at(folder)):
            continue
        yield place + ".mtu", number(folder + "/mtu")
        yield place + ".state", line(folder + "/operstate")
        yield place + ".mac", line(folder + "/address")
        yield place + ".kind", number(folder + "/type")
        for each in ("speed", "duplex"):
            text = line(folder + "/" + each)
            if text and not text.startswith("-"):
                yield place + "." + each, text
        yield place + ".driver", target(folder + "/device/driver")
        yield place + ".address", target(folder + "/device")
        for counter in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors"):
            yield (
                "%s.counters.%s" % (place, counter),
                number("%s/statistics/%s" % (folder, counter)),
            )
        for side in ("np", "rp"):
            for priority in names("%s/ecn/roce_%s/enable" % (folder, side)):
                yield (
                    "%s.ecn.%s.%s" % (place, side, key(priority)),
                    line("%s/ecn/roce_%s/enable/%s" % (folder, side, priority)),
                )


GET_DCB, IEEE_GET, REQUEST = 78, 21, 1
DCB_NAME, DCB_IEEE, IEEE_PFC = 1, 13, 2
"""Numbers of linux/rtnetlink.h, linux/netlink.h and linux/dcbnl.h."""


def attributes(data: bytes) -> Dict[int, bytes]:
    """Return the attributes of netlink by their numbers, without the flags of these."""
    found, place = {}, 0
    while place + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, place)
        if size < 4 or place + size > len(data):
            break
        found[kind & 0x3FFF] = data[place + 4 : place + size]
        place += size + 3 & ~3
    return found


def pfc_request(name: str) -> bytes:
    """Return the question for the priority flow control of an interface."""
    text = name.encode() + b"\0"
    named = struct.pack("=HH", 4 + len(text), DCB_NAME) + text + bytes(-len(text) % 4)
    body = struct.pack("=BBH", 0, IEEE_GET, 0) + named
    return struct.pack("=IHHII", 16 + len(body), GET_DCB, REQUEST, 1, 0) + body


def pfc_of(answer: bytes) -> Optional[str]:
    """Return the priorities with flow control in an answer; None: the driver has none."""
    if len(answer) < 20 or struct.unpack_from("=H", answer, 4)[0] != GET_DCB:
        return None
    told = attributes(attributes(answer[20:]).get(DCB_IEEE, b"")).get(IEEE_PFC, b"")
    if len(told) < 2:
        return None
    return " ".join(str(each) for each in range(8) if told[1] >> each & 1) or "none"


def flow_control() -> Facts:
    """The priorities with flow control (PFC), of the Ethernet interfaces of RDMA ports."""
    wanted = set()
    for device in names("sys/class/infiniband"):
        for port in names("sys/class/infiniband/%s/ports" % device):
            folder = "sys/class/infiniband/%s/ports/%s" % (device, port)
            if line(folder + "/link_layer") == "Ethernet":
                wanted.add(line(folder + "/gid_attrs/ndevs/0"))
    wanted.discard("")
    if not wanted or ROOT != "/":
        return
    import socket  # noqa: PLC0415 - slow to load

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(1)
        for name in sorted(wanted):
            kernel.send(pfc_request(name))
            found = pfc_of(kernel.recv(65536))
            if found is not None:
                yield "net.%s.pfc" % key(name), found


def fabric() -> Facts:
    for name in names("sys/class/infiniband"):
        folder, place = "sys/class/infiniband/" + name, "fabric." + key(name)
        for each in ("node_guid", "sys_image_guid", "fw_ver", "board_id", "hca_type"):
            yield "%s.%s" % (place, each), line("%s/%s" % (folder, each))
        real = os.path.realpath(at(folder))
        yield (
            place + ".software",
            "/devices/virtual/" in real or os.path.exists(at(folder + "/parent")),
        )
        yield place + ".function", "VF" if os.path.exists(at(folder + "/device/physfn")) else "PF"
        yield place + ".driver", target(folder + "/device/driver")
        yield place + ".address", target(folder + "/device")
        yield place + ".numa", number(folder + "/device/numa_node")
        for port in names(folder + "/ports"):
            for fact in port_of("%s/ports/%s" % (folder, port), "%s.ports.%s" % (place, key(port))):
                yield fact
    for name in (
        "ib_uverbs",
        "ib_umad",
        "rdma_ucm",
        "ib_ipoib",
        "nvidia_peermem",
        "nv_peer_mem",
        "mlx5_ib",
        "mlx4_ib",
        "irdma",
    ):
        if os.path.isdir(at("sys/module/" + name)):
            yield "software.modules." + name, line("sys/module/%s/version" % name) or "kernel"


def port_of(folder: str, place: str) -> Facts:
    for each in ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid"):
        yield "%s.%s" % (place, each), line("%s/%s" % (folder, each)).split(": ", 1)[-1]
    for counter in PORT_COUNTERS:
        value = number("%s/counters/%s" % (folder, counter))
        if value is not None:
            yield "%s.counters.%s" % (place, counter), value
    pkeys = {line("%s/pkeys/%s" % (folder, index)) for index in names(folder + "/pkeys")}
    yield place + ".pkeys", " ".join(sorted(pkeys - {"0x0000", ""}))[:MOST_TEXT]
    kinds = {}  # type: Dict[str, int]
    for index in names(folder + "/gid_attrs/types"):
        kind = line("%s/gid_attrs/types/%s" % (folder, index))
        gid = line("%s/gids/%s" % (folder, index))
        if kind and gid.strip("0:"):
            # The kernel makes a GID of the link itself for each kind that the port has.
            kinds[kind] = kinds.get(kind, 0) + (not gid.lower().startswith("fe80:"))
    yield place + ".gids", {key(kind): count for kind, count in kinds.items()}
    yield place + ".netdev", line("%s/gid_attrs/ndevs/0" % folder)


LINK_FILES = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")


def devices() -> Facts:
    """PCI functions of networks, GPUs and shared memory: link, NUMA node, SR-IOV, IOMMU group."""
    base, given, hidden, rdma = "sys/bus/pci/devices", 0, 0, rdma_functions()
    for address in names(base):
        folder, place = "%s/%s" % (base, address), "pci." + key(address)
        given += "vfio" in target(folder + "/driver")
        kind = number(folder + "/class") or 0
        ids = line(folder + "/vendor")[2:] + ":" + line(folder + "/device")[2:]
        if kind >> 16 not in (0x02, 0x03, 0x12) and kind >> 8 != 0x0207 and ids != "1af4:1110":
            continue
        yield place + ".class", "%06x" % kind
        yield place + ".ids", ids
        yield place + ".driver", target(folder + "/driver")
        yield place + ".numa", number(folder + "/numa_node")
        if not sleeps(folder):
            for each in LINK_FILES:
                yield "%s.%s" % (place, each), line("%s/%s" % (folder, each))
            if address in rdma:
                payload = configuration(address, largest_payload)
                hidden += payload is None and os.path.exists(at(folder + "/config"))
                yield place + ".max_payload", payload
        total = number(folder + "/sriov_totalvfs")
        if total:
            yield place + ".vfs_possible", total
            yield place + ".vfs", number(folder + "/sriov_numvfs")
        if target(folder + "/physfn"):
            yield place + ".physical", target(folder + "/physfn")
        yield place + ".iommu_group", target(folder + "/iommu_group")
        if target(folder + "/iommu_group"):
            yield place + ".group_size", len(names(folder + "/iommu_group/devices"))
    yield "virtual.iommu_groups", len(names("sys/kernel/iommu_groups"))
    yield "virtual.given", given
    if hidden:
        raise Unseen("MaxPayload of RDMA adapters: only root may read it")


def rdma_functions() -> Set[str]:
    """Return the PCI functions of RDMA devices."""
    return {target("sys/class/infiniband/%s/device" % n) for n in names("sys/class/infiniband")}


BRIDGE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
EXTENDED, PCIE_BYTES = 0x100, 4096
FIRST, PCIE = 0x34, 0x10
ACS, ATS = 0x0D, 0x0F
MEMORY, PREFETCHABLE, WIDE, UNSET = 0x200, 0x2000, 0x100000, 0x20000000
"""Of a region: it is memory, reading it has no effect, it has 64 bits, and it has no address."""


def extended(read: Callable[[int, int], bytes], wanted: Tuple[int, ...]) -> Dict[int, int]:
    """Return the wanted extended capabilities of a PCI function: the four bytes after their header.

    Only the headers and these bytes are read: other places are the maker's, and may do something
    when they are read. The list is that of a device, and may be damaged or have no end.
    """
    found, seen, place = {}, set(), EXTENDED  # type: Dict[int, int], Set[int], int
    while EXTENDED <= place <= PCIE_BYTES - 8 and place not in seen:
        seen.add(place)
        header = dword(read(place, 4))
        if header in (None, 0, 0xFFFFFFFF):
            break
        if header & 0xFFFF in wanted and header & 0xFFFF not in found:
            value = dword(read(place + 4, 4))
            if value is None:
                break
            found[header & 0xFFFF] = value
        place = header >> 20 & 0xFFC
    return found


def dword(part: bytes) -> Any:
    return struct.unpack("<I", part)[0] if len(part) == 4 else None


def largest_payload(read: Callable[[int, int], bytes]) -> int:
    """Return MaxPayload of a PCI function: bytes of a packet, as set; 0: it has none.

    Of the list of capabilities, only the headers and the control word of PCIe are read.
    """
    seen, place = set(), (read(FIRST, 1) or b"\0")[0] & 0xFC  # type: Set[int], int
    while 0x40 <= place <= EXTENDED - 12 and place not in seen:
        seen.add(place)
        header = read(place, 2)
        if len(header) < 2 or header == b"\xff\xff":
            break
        if header[0] == PCIE:
            control = read(place + 8, 2)
            return 128 << (control[0] >> 5) if len(control) == 2 and control[0] >> 5 < 6 else 0
        place = header[1] & 0xFC
    return 0


def configuration(address: str, look: Callable[[Callable[[int, int], bytes]], Any]) -> Any:
    """Look at the configuration of a PCI function that is awake.

    None: a user gets only its first 64 bytes.
    """
    name = "sys/bus/pci/devices/%s/config" % address
    try:
        descriptor = os.open(at(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)

        def read(place: int, size: int) -> bytes:
            return os.pread(descriptor, size, place)

        if not stat.S_ISREG(found.st_mode) or found.st_size < EXTENDED:
            return None
        if found.st_size > EXTENDED and not read(EXTENDED, 4):
            return None
        # A device that does not answer gives only ones.
        return None if read(0, 4) == b"\xff" * 4 else look(read)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def sleeps(folder: str) -> bool:
    """Whether the kernel has switched off a PCI function: reading its configuration would wake it."""
    state = line(folder + "/power/runtime_status")
    return state in ("suspended", "suspending") or line(folder + "/power_state") == "D3cold"


def above(folder: str) -> List[str]:
    """Return the root complex and the bridges above a PCI device, the root complex first."""
    parts = os.path.realpath(at(folder)).split("/")[:-1]
    roots = [number for number, part in enumerate(parts) if ROOT_COMPLEX.match(part)]
    chain = parts[roots[-1] :] if roots else []
    return chain[:1] + [part for part in chain[1:] if BRIDGE.match(part)]


def regions(folder: str) -> Facts:
    """The largest memory region that peers can use, and the sum of those without an address.

    `missing`: the first or second region of a GPU of NVIDIA is empty. All have both, and Linux may
    forget the size of a region that gets no address.
    """
    largest, unmapped, kinds = 0, 0, {}  # type: int, int, Dict[int, int]
    for index, row in enumerate(whole(folder + "/resource").splitlines()[:6]):
        words = row.split()
        if len(words) != 3 or not all(re.match(r"0x[0-9a-f]{1,16}$", word) for word in words):
            continue
        start, end, flags = (int(word, 16) for word in words)
        kinds[index] = flags
        if flags & MEMORY and end > start:
            size = end - start + 1
            unmapped += size if flags & UNSET or not start else 0
            largest = max(largest, size if flags & PREFETCHABLE else 0)
    yield "region", largest
    yield "unmapped", unmapped
    if line(folder + "/vendor") == "0x10de" and len(kinds) == 6:
        # A region with a 64-bit address takes two places.
        second = kinds.get(2 if kinds.get(0, 0) & WIDE else 1)
        yield "missing", not kinds.get(0) or not second


def peers() -> Facts:
    """GPUs and RDMA adapters: the way between them, and what lets them reach each other."""
    base, rdma = "sys/bus/pci/devices/", rdma_functions()
    gpus, adapters = [], []  # type: List[str], List[str]
    for address in names(base):
        kind = number(base + address + "/class") or 0
        given = kind >> 16 == 0x02 and target(base + address + "/driver") == "vfio-pci"
        if kind >> 16 in (0x03, 0x12):
            gpus.append(address)
        elif address in rdma or kind >> 8 == 0x0207 or given:
            adapters.append(address)
    bridges = set()  # type: Set[str]
    for address in gpus + adapters:
        folder, place = base + address, "pci." + key(address)
        chain = above(folder)
        yield place + ".above", " ".join(chain)[:MOST_TEXT]
        bridges.update(chain[1:])
        yield place + ".iommu_type", line(folder + "/iommu_group/type")
        for name, size in regions(folder) if address in gpus else ():
            yield "%s.%s" % (place, name), size
    yield from driver_of_gpus()
    if gpus and adapters:
        yield from switches(adapters, sorted(bridges))


def switches(adapters: List[str], bridges: List[str]) -> Facts:
    """ATS of adapters and ACS of bridges: what they can do, and what is switched on."""
    hidden, asleep = 0, []  # type: int, List[str]
    for address in adapters + bridges:
        if sleeps("sys/bus/pci/devices/" + address):
            asleep.append(address)
            continue
        found = configuration(address, lambda read: extended(read, (ACS, ATS)))
        if found is None:
            hidden += 1
        elif address in bridges:
            yield "bridges.%s.acs" % key(address), found.get(ACS, 0) & 0xFFFF
            yield "bridges.%s.acs_on" % key(address), found.get(ACS, 0) >> 16
        else:
            on = "on" if found.get(ATS, 0) & 0x80000000 else "off"
            yield "pci.%s.ats" % key(address), on if ATS in found else "none"
    if hidden:
        raise Unseen("the configuration of PCI devices: only root may read it")
    if asleep:
        few = ", ".join(asleep)[:MOST_TEXT]
        raise Unseen("the configurations of %s are not read: they sleep" % few)


def driver_of_gpus() -> Facts:
    """The version of NVIDIA's driver, and whether it is that of the open kernel modules."""
    text = whole("proc/driver/nvidia/version").split("\n", 1)[0]
    found = re.search(r"\s([0-9]+(?:\.[0-9]+)+)\s", text + " ")
    if found:
        yield "gpu.driver", found.group(1)[:32]
        yield "gpu.open", "Open Kernel Module" in text


def guest() -> Facts:
    yield (
        "virtual.container",
        line("run/systemd/container")
        or (
            "docker"
            if os.path.exists(at(".dockerenv"))
            else "podman"
            if os.path.exists(at("run/.containerenv"))
            else ""
        ),
    )
    times = whole("proc/stat").split("\n", 1)[0].split()[1:]
    if len(times) >= 8 and all(t.isdigit() for t in times):
        ticks = [int(t) for t in times[:8]]
        yield "virtual.steal_percent", round(100.0 * ticks[7] / (sum(ticks) or 1), 3)
    balloon = names("sys/bus/virtio/drivers/virtio_balloon")
    yield (
        "virtual.balloon",
        any(n.startswith("virtio") for n in balloon) or os.path.isdir(at("sys/module/vmw_balloon")),
    )
    for name in names("sys/bus/nd/devices"):
        if name.startswith("region"):
            yield "virtual.dax." + key(name), number("sys/bus/nd/devices/%s/size" % name)


GIVEN = re.compile(r"\bhost\W{1,3}((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
"""A device of the host in an option of QEMU, as words or as JSON."""


def machines() -> Facts:
    """The QEMU machines of this host: processors and their pins, memory, and its kind."""
    hidden = 0
    for pid in processes():
        if not line("proc/%s/comm" % pid).startswith(("qemu-", "kvm")):
            continue
        words = whole("proc/%s/cmdline" % pid).split("\0")
        if "-name" not in words and "-uuid" not in words and "-m" not in words:
            hidden += 1
            continue
        options = {}  # type: Dict[str, List[str]]
        for word, value in zip(words, words[1:]):
            if word in (
                "-device",
                "-uuid",
                "-machine",
                "-M",
                "-m",
                "-name",
                "-overcommit",
                "-mem-path",
            ):
                options.setdefault(word, []).append(value)
        uuid = (options.get("-uuid") or ["pid-" + pid])[0].lower()
        place = "virtual.guests." + key(uuid)
        yield (
            place + ".name",
            clean((options.get("-name") or [""])[0].split(",")[0].replace("guest=", "")),
        )
        yield (
            place + ".machine",
            clean((options.get("-machine") or options.get("-M") or [""])[0].split(",")[0]),
        )
        status = whole("proc/%s/status" % pid)
        for label, name in (
            ("VmLck", "locked_kib"),
            ("VmRSS", "resident_kib"),
            ("HugetlbPages", "huge_kib"),
        ):
            found = re.search(r"^%s:\s+([0-9]+) kB" % label, status, re.MULTILINE)
            if found:
                yield "%s.%s" % (place, name), int(found.group(1))
        yield (
            place + ".memory_locked",
            any("mem-lock=on" in o for o in options.get("-overcommit", [])),
        )
        yield place + ".pins", pins_of(pid)
        given = [GIVEN.search(each) for each in options.get("-device", []) if "vfio-pci" in each]
        for device in [each.group(1) for each in given if each]:
            address = device if device.count(":") > 1 else "0000:" + device
            numa = number("sys/bus/pci/devices/%s/numa_node" % address)
            yield "%s.devices.%s" % (place, key(address)), numa
    if hidden:
        raise Unseen("the command lines of %d QEMU processes are hidden" % hidden)


def pins_of(pid: str) -> Dict[str, str]:
    """Return the processors that each virtual processor of a QEMU process may use."""
    found = {}
    for task in names("proc/%s/task" % pid):
        folder = "proc/%s/task/%s" % (pid, task)
        thread = re.match(r"CPU ([0-9]+)/", line(folder + "/comm"))
        allowed = re.search(r"^Cpus_allowed_list:\s+(\S+)", whole(folder + "/status"), re.MULTILINE)
        if thread and allowed:
            found[thread.group(1)] = clean(allowed.group(1))
    return found


def covered_mounts(rows: List[List[str]]) -> Set[str]:
    """Return the mounts, by their numbers, that another mount hides: no program can reach them.

    Two mounts have one parent, and the point of one of them is above that of the other.
    """
    points = {}  # type: Dict[str, Set[str]]
    for row in rows:
        # The first mount of a kernel, the root of some nodes without a disk, is its own parent.
        if row[0] != row[1]:
            points.setdefault(row[1], set()).add(row[4])
    found = set()  # type: Set[str]
    for row in rows:
        above = {row[4][:place] or "/" for place, c in enumerate(row[4]) if c == "/"} - {row[4]}
        if row[1] in found or above & points.get(row[1], set()):
            found.add(row[0])
    return found


def mounts() -> Facts:
    """Mounted file systems, network ones last: these may hang, and then cost only themselves."""
    points = {}  # type: Dict[str, Tuple[bool, str, str, str, str]]
    rows = []
    for text in whole("proc/self/mountinfo").splitlines():
        left, _, right = text.partition(" - ")
        front, back = left.split(), right.split()
        if len(front) >= 6 and len(back) >= 2:
            rows.append((front, back))
    covered = covered_mounts([front for front, _ in rows])
    for front, back in rows:
        if back[0] in KERNEL_FILES or front[0] in covered:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), front[4])
        kind, options = back[0], set(front[5].split(","))
        # A file system that is read-only as a whole is so at each of its mount points.
        if "ro" in back[-1].split(","):
            options = options - {"rw"} | {"ro"}
        shown = " ".join(sorted(options & {"ro", "rw", "noatime", "relatime", "nosuid", "noexec"}))
        # The last mount of a point covers the others.
        points[point] = (kind.split(".")[0] in NETWORK_TYPES, point, kind, front[2], shown)
    # All mounts are named before one of them may hang.
    chosen = first(list(points.values()), MOST_MOUNTS, "mounts")
    for remote, point, kind, _, shown in chosen:
        place = "storage." + key(point)
        yield place + ".type", kind
        yield place + ".remote", remote
        yield place + ".options", shown
    asked = set()
    for remote, point, _, device, _ in sorted(chosen, key=lambda mount: mount[0]):
        if device in asked:
            continue
        asked.add(device)
        place = "storage." + key(point)
        # Said again, so that the reason names this mount point if the query hangs.
        yield place + ".remote", remote
        begin = time.monotonic()
        try:
            found = os.statvfs(at(point.lstrip("/")))
        except OSError as error:
            yield place + ".error", clean(error.strerror or str(error))
            continue
        yield place + ".seconds", round(time.monotonic() - begin, 4)
        yield place + ".bytes", found.f_frsize * found.f_blocks
        yield place + ".free", found.f_frsize * found.f_bavail
        yield place + ".inodes", found.f_files
        yield place + ".inodes_free", found.f_favail


def libraries() -> Facts:
    for place in PLACES:
        for sub in [place] + [
            "%s/%s" % (place, n) for n in names(place) if n.endswith(("-linux-gnu", "nearmetal"))
        ]:
            for name in names(sub):
                stem = name.split(".so", 1)[0]
                if (
                    ".so" in name
                    and stem in LIBRARIES
                    and not os.path.islink(at("%s/%s" % (sub, name)))
                ):
                    yield (
                        "software.libraries.%s.%s" % (key(stem), key("/%s/%s" % (sub, name))),
                        "there",
                    )
    for name in (
        "mpirun",
        "mpiexec",
        "srun",
        "ibv_devinfo",
        "ucx_info",
        "fi_info",
        "numactl",
        "gcc",
    ):
        found = [
            d
            for d in ("usr/local/bin", "usr/bin", "bin")
            if os.path.exists(at("%s/%s" % (d, name)))
        ]
        if found:
            yield "software.programs." + name, "/%s/%s" % (found[0], name)
    yield (
        "software.glibc",
        os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else "",
    )
    yield "software.python", "%d.%d.%d" % sys.version_info[:3]
    for name in (
        "mlx5_core",
        "mlx4_core",
        "nvidia",
        "vmxnet3",
        "vmw_pvrdma",
        "i40e",
        "ice",
        "bnxt_en",
        "kvm",
    ):
        if os.path.isdir(at("sys/module/" + name)):
            yield "software.modules." + name, line("sys/module/%s/version" % name) or "kernel"


def packages() -> Facts:
    """Installed packages of dpkg. The database of rpm has no form that can be read without rpm."""
    name, found = "", False
    for text in whole("var/lib/dpkg/status").splitlines():
        if text.startswith("Package: "):
            name, found = text[9:].strip(), False
        elif text.startswith("Status: "):
            found = text.endswith(" installed")
        elif text.startswith("Version: ") and found and name:
            yield "software.packages." + key(name), clean(text[9:])
    if not name and os.path.isdir(at("var/lib/rpm")):
        raise Unseen("packages of rpm are not read: rpm may write to its database")


def providers() -> Facts:
    """Where libfabric looks for the provider, and whether it is there."""
    folders = []  # type: List[str]
    for place in ("usr/lib", "usr/lib64", "usr/local/lib"):
        folders += ["%s/%s" % (place, n) for n in names(place) if n.endswith("-linux-gnu")]
        folders.append(place)
    found = {"/%s/libfabric/%s" % (folder, PROVIDER): "" for folder in folders}
    # Other libraries have providers of their own, and places for them.
    chosen = [w for w in os.environ.get("FI_PROVIDER_PATH", "").split(":") if "nearmetal" in w]
    for word in first(chosen, 64, "places of FI_PROVIDER_PATH"):
        name = word.lstrip("+@")
        found[name if name.endswith(".so") else name + "/" + PROVIDER] = "missing"
    for name, absent in found.items():
        path = at(name.lstrip("/"))
        state = "a link to nothing" if os.path.islink(path) else absent
        if os.path.isfile(path):
            state = "there"
        if state:
            yield "nearmetal.providers." + key(name), state


def folder_of(name: str, *, maker: bool = False) -> Facts:
    """Whether endpoints can use a folder; `maker`: they make it if its parent lets them."""
    place = "nearmetal.folders." + key("/" + name)
    try:
        yield place + ".mode", "%o" % stat.S_IMODE(os.stat(at(name)).st_mode)
    except OSError:
        if not maker:
            return
        name = os.path.dirname(name)
    yield place + ".writable", os.access(at(name), os.W_OK | os.X_OK)


def own() -> Facts:
    """Nearmetal itself: shared memory, environment, provider, rundir.

    Places that a user has chosen come last: a file system behind them may hang.
    """
    yield from folder_of("dev/shm")
    try:
        room = os.statvfs(at("dev/shm"))
        yield "nearmetal.shm_bytes", room.f_frsize * room.f_blocks
        yield "nearmetal.shm_free", room.f_frsize * room.f_bavail
    except OSError:
        pass
    yield from folder_of("run/nearmetal")
    for name in ("FI_PROVIDER_PATH", "FI_PROVIDER", "NEARMETAL_RUNDIR", "NEARMETAL_CHANNELS"):
        if os.environ.get(name):
            yield "nearmetal.environment." + name, clean(os.environ[name])
    yield from providers()
    rundir = clean(os.environ.get("NEARMETAL_RUNDIR", "")).strip("/")
    if rundir:
        yield from folder_of(rundir, maker=True)


def segments() -> Facts:
    """The devices of shared segments (ivshmem): their sizes, and how the kernel maps them."""
    found = [
        n
        for n in names("sys/bus/pci/devices")
        if line("sys/bus/pci/devices/%s/vendor" % n) == "0x1af4"
        and line("sys/bus/pci/devices/%s/device" % n) == "0x1110"
    ]
    for address in found:
        folder = "sys/bus/pci/devices/" + address
        yield (
            "nearmetal.segments.%s.combining" % key(address),
            os.path.exists(at(folder + "/resource2_wc")),
        )
        try:
            size = os.stat(at(folder + "/resource2")).st_size
        except OSError:
            size = 0
        yield "nearmetal.segments.%s.bytes" % key(address), size
    memtypes = "sys/kernel/debug/x86/pat_memtype_list"
    if found and os.path.isdir(at("sys/kernel/debug")):
        text = whole(memtypes)
        if not text:
            raise Unseen("the memory types of mappings: debugfs is for root only, or not mounted")
        for address in found:
            resources = [
                row.split()
                for row in whole("sys/bus/pci/devices/%s/resource" % address).splitlines()
            ]
            start = int(resources[2][0], 16) if len(resources) > 2 else 0
            kind = (
                re.search(r"^PAT: \[mem 0x0*%x-\S+\] (\S+)" % start, text, re.MULTILINE)
                if start
                else None
            )
            if kind:
                yield "nearmetal.segments.%s.memory_type" % key(address), clean(kind.group(1))


SOURCES = [
    ("lines", single_lines),
    ("system", system),
    ("limits", limits),
    ("sysctl", settings),
    ("services", services),
    ("names", resolution),
    ("processor", processor),
    ("frequency", frequency),
    ("quota", quota),
    ("memory", memory),
    ("edac", corrections),
    ("dmi", modules_of_memory),
    ("net", interfaces),
    ("fabric", fabric),
    ("pfc", flow_control),
    ("pci", devices),
    ("peers", peers),
    ("guest", guest),
    ("uuid", machine_id),
    ("machines", machines),
    ("storage", mounts),
    ("libraries", libraries),
    ("packages", packages),
    ("nearmetal", own),
    ("segments", segments),
]  # type: List[Tuple[str, Callable[[], Facts]]]

SLOW = ("names", "packages", "libraries", "machines", "dmi", "pfc")
"""Sources that `--quick` leaves out."""


def child(source: Callable[[], Facts], out: int) -> None:
    """Write each fact as a line when it is there; the last line says how it ended."""
    end = ["end", ""]
    try:
        for place, value in source():
            if value is not None:
                os.write(out, (json.dumps([place, value]) + "\n").encode())
        end[1] = ", ".join(CUT)[:MOST_TEXT]
    except Unseen as reason:
        end[1] = str(reason)
    except Exception as error:  # noqa: BLE001 - a source that fails must not cost the others
        end[1] = "%s: %s" % (type(error).__name__, clean(str(error)))
    os.write(out, (json.dumps(end) + "\n").encode())


def leave_streams() -> None:
    """Give up the streams of the agent: who reads them must not wait for a source that hangs."""
    null = os.open(os.devnull, os.O_RDONLY)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def read_source(source: Callable[[], Facts], seconds: float) -> Tuple[List[Any], str]:
    """Return the facts of a source, and why there are no more; "" for a whole answer."""
    inner, outer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(inner)
            leave_streams()
            child(source, outer)
            code = 0
        finally:
            os._exit(code)
    os.close(outer)
    text, why, deadline = b"", "", time.monotonic() + seconds
    while not why:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([inner], [], [], left)[0]:
            why = "no answer in %g s" % seconds
            break
        part = os.read(inner, 65536)
        if not part:
            break
        text += part
        if len(text) > MOST_BYTES:
            why = "more than %d bytes" % MOST_BYTES
    os.close(inner)
    if why:
        os.kill(pid, signal.SIGKILL)
    # A process in an uninterruptible call cannot be reaped; it ends with the call.
    os.waitpid(pid, os.WNOHANG if why else 0)
    rows = [json.loads(row) for row in text.decode("utf-8", "replace").split("\n")[:-1]]
    if rows and rows[-1][0] == "end":
        return rows[:-1], str(rows[-1][1])
    last = " after %s" % rows[-1][0] if rows else ""
    return rows, (why or "it ended early") + last


def put(facts: Dict[str, Any], place: str, value: Any) -> None:
    parts = place.split(".")
    for part in parts[:-1]:
        inner = facts.setdefault(part.replace("|", "."), {})
        if not isinstance(inner, dict):
            return
        facts = inner
    if isinstance(value, dict):
        value = {str(k).replace("|", "."): v for k, v in value.items()}
    facts[parts[-1].replace("|", ".")] = value


def main(arguments: List[str]) -> int:
    global ROOT  # noqa: PLW0603 - sources take no arguments
    quick = "--quick" in arguments
    for word in arguments:
        if word.startswith("--root="):
            ROOT = word[7:]
    begin = time.monotonic()
    facts, unseen = {}, {}  # type: Dict[str, Any], Dict[str, str]
    for name, source in SOURCES:
        if quick and name in SLOW:
            continue
        left = (QUICK_TOTAL_S if quick else TOTAL_S) - (time.monotonic() - begin)
        if left <= 0:
            unseen[name] = "the time for all sources is over"
            continue
        rows, why = read_source(source, min(SOURCE_S, left))
        for place, value in rows:
            put(facts, place, value)
        if why:
            unseen[name] = why
    snapshot = {
        "format": "nearmetal-snapshot",
        "version": VERSION,
        "quick": quick,
        "root": os.geteuid() == 0,
        "seconds": round(time.monotonic() - begin, 3),
        "unseen": unseen,
        "facts": facts,
        "taken": round(time.time(), 3),
    }
    sys.stdout.write(json.dumps(snapshot, sort_keys=True, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
