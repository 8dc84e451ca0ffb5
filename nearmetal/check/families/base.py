# SPDX-License-Identifier: Apache-2.0
"""The family `base`: answers, clock, names, services, limits, kernel settings. Pure."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot, is_decimal
from nearmetal.core.text import printable

_MOST_CPUS = 8192
_NEVER_READ = "packages of rpm are not read"
"""What the agent leaves out on each system with rpm: no fault of a node."""
_ASLEEP = "are not read: they sleep"
"""What the agent leaves out because it would wake a device."""
_RED_HAT = ("rhel", "centos", "rocky", "almalinux", "fedora", "ol")
_LIMITS = "/etc/security/limits.d"
_NR_OPEN = "/etc/sysctl.d/zz-open-files.conf"
_MOST_OPEN = 1 << 20
"""Of fs.nr_open, if it is not set."""

_UNITS = {"munged": ("munge", "munge"), "sshd": ("ssh", "sshd")}
"""The units of daemons that have another name, on Debian and on Red Hat."""

_SETTERS = {
    "timemaster": ("systemctl restart timemaster",) * 2,
    "chronyd": ("chronyc makestep",) * 2,
    "ntpd": ("systemctl restart ntp", "systemctl restart ntpd"),
    "systemd-timesyn": ("systemctl restart systemd-timesyncd",) * 2,
    # Their units have the names of interfaces, on Debian. The first offset is a step for them.
    "phc2sys": ("systemctl restart 'phc2sys*'",) * 2,
    "ptp4l": ("systemctl restart 'ptp4l*'",) * 2,
    # Only without another keeper: the clock would have two.
    "vmtoolsd": ("vmware-toolbox-cmd timesync enable",) * 2,
}
"""What sets the clock at once, by the process that keeps it, on Debian and on Red Hat."""

_PRIVILEGE = ("only root", "for root only", "hidden")


def word(name: str) -> str:
    """Return a name of a node for a remedy, which people copy into a shell: quoted, in one line."""
    return shlex.quote(printable(name)[:120])


def by_system(node: Snapshot, debian: str, red_hat: str) -> str:
    """Return the command for the packages of a node."""
    rpm = node.text("system", "os", "id") in _RED_HAT or _NEVER_READ in node.unseen.get(
        "packages", ""
    )
    return red_hat if rpm else debian


def iommu_remedy(node: Snapshot) -> str:
    """Return the command that switches the IOMMU on, without translation for the host's devices."""
    # The kernel uses an IOMMU of AMD without a word, if the firmware has switched it on.
    amd = node.text("processor", "vendor") == "AuthenticAMD"
    words = "iommu=pt" if amd else "intel_iommu=on iommu=pt"
    grub = "/etc/default/grub && update-grub"
    return by_system(
        node,
        f"sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{words} /' {grub}",
        f"grubby --update-kernel=ALL --args='{words}'",
    )


def was_cut(why: str) -> bool:
    """Whether the agent left out a part of a source because it was too much."""
    return why.startswith("cut: ")


def cpus_of(text: object) -> set[int]:
    """Return the numbers of a list such as 0-3,8; an empty set for anything else."""
    found: set[int] = set()
    for part in str(text)[:1024].split(","):
        first, _, last = part.partition("-")
        if not is_decimal(first) or (last and not is_decimal(last)):
            return set()
        low, high = int(first), int(last or first)
        if high >= _MOST_CPUS or low > high:
            return set()
        found.update(range(low, high + 1))
    return found


def size(value: float) -> str:
    """Return bytes for people."""
    if math.isinf(value) or value < 0:
        return "unlimited"
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.4g} {unit}"
    return f"{value:g} B"


def _sources(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for source, why in node.unseen.items():
        judged = source == "storage" and not was_cut(why)
        if not judged and not any(word in why for word in _PRIVILEGE):
            yield Spotted(
                printable(why)[:200],
                "an answer",
                f"the agent could not read all of its source {source!r}, which is judged in part",
                "python3 -I -B - <nearmetal/share/check/agent.py",
                source,
                grade=Gravity.NOTE if _NEVER_READ in why or _ASLEEP in why else None,
            )


def _privilege(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    hidden = sorted(s for s, why in node.unseen.items() if any(w in why for w in _PRIVILEGE))
    if not hidden:
        return
    why = "the agent ran as a user who may not read these sources"
    remedy = "nearmetal check collect --root"
    if node.root:
        why = "the agent ran as root, and the kernel or a container hides these sources"
        unmounted = any("debugfs" in node.unseen[source] for source in hidden)
        remedy = "mount -t debugfs debugfs /sys/kernel/debug" if unmounted else "uname -r; id"
    yield Spotted(", ".join(hidden), "all sources", why, remedy)


def _clock(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    if node.early is None or node.late is None:
        return
    limit, keeper = wanted.value("clock_s"), node.text("services", "time").split(", ")
    offset = node.early if node.early > limit else node.late if node.late < -limit else 0
    if offset:
        yield Spotted(
            f"at least {abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}",
            f"at most {limit:g} s",
            "its clock differs from the clock of the machine that collected the facts",
            by_system(
                node, *next((_SETTERS[k] for k in _SETTERS if k in keeper), _SETTERS["chronyd"])
            ),
            source=wanted.source("clock_s"),
        )


def _time_service(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    services = node.table("services")
    if services and not node.text("services", "time") and not contained(node):
        yield Spotted(
            "none",
            "chronyd, ntpd, systemd-timesyncd, ptp4l or a hypervisor's agent",
            "no process keeps the clock right, so it drifts",
            by_system(
                node,
                "apt-get install chrony && systemctl enable --now chrony",
                "dnf install chrony && systemctl enable --now chronyd",
            ),
        )


def contained(node: Snapshot) -> bool:
    """Whether the node is a container, which has the clock and kernel of its host."""
    return bool(node.text("virtual", "container"))


def _resolution(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    error = node.text("names", "error")
    if error:
        yield Spotted(
            printable(error)[:120],
            "an address",
            "the node does not resolve its own name, and MPI launchers may need that",
            "getent hosts $(hostname)",
        )


def _memlock(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    limit = node.number("limits", "memlock", "soft")
    least = wanted.value("memlock")
    if limit is None or not node.table("fabric") or least is None:
        return
    if (math.inf if limit < 0 else limit) < least:
        yield Spotted(
            size(limit),
            f"at least {size(least)}",
            "RDMA locks its buffers in memory, and a job fails or hangs when it may lock no more",
            # The last file decides.
            f"echo '* - memlock unlimited' >{_LIMITS}/zz-memlock.conf",
            source=wanted.source("memlock"),
        )


def _open_files(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    limit, least = node.number("limits", "nofile", "soft"), wanted.value("open_files")
    if limit is not None and least is not None and 0 <= limit < least:
        high = least > _MOST_OPEN
        yield Spotted(
            f"{limit:.0f}",
            f"at least {least:.0f}",
            "each process of a large job opens many sockets and files",
            # Above the kernel's own limit, logins fail.
            (_raise_open(f"{least:.0f}") if high else "")
            + f"echo '* - nofile {least:.0f}' >{_LIMITS}/zz-open-files.conf",
            source=wanted.source("open_files"),
        )


def _raise_open(least: str) -> str:
    """Return the first half of a command: a kernel with a higher limit, as of systemd, keeps it."""
    raised = f"{{ echo fs.nr_open={least} >{_NR_OPEN} && sysctl -p {_NR_OPEN}; }}"
    return f"test $(cat /proc/sys/fs/nr_open) -ge {least} || {raised} && "


def _services(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    running = {} if "services" in node.unseen else node.table("services")
    for name in wanted.value("services") or ():
        if running and name not in running:
            yield Spotted(
                "not running",
                "running",
                "the profile names this daemon",
                f"systemctl restart {by_system(node, *_UNITS.get(name, (name, name)))}",
                name,
                wanted.source("services"),
            )


def _kernel(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    accepted, running = wanted.value("kernel"), node.text("system", "kernel")
    if accepted and running and running not in accepted:
        yield Spotted(
            running,
            ", ".join(accepted),
            "another kernel runs than the profile names",
            "systemctl reboot",
            source=wanted.source("kernel"),
        )


def _balancing(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    value, accepted = node.text("sysctl", "kernel.numa_balancing"), wanted.value("numa_balancing")
    if value and value not in accepted and len(node.table("memory", "nodes")) > 1:
        yield Spotted(
            value,
            ", ".join(accepted),
            "the kernel unmaps pages to find out who uses them, and MPI places memory itself",
            f"sysctl -w kernel.numa_balancing={accepted[0]}",
            source=wanted.source("numa_balancing"),
        )


def _swapped(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    total, free = node.number("memory", "SwapTotal"), node.number("memory", "SwapFree")
    memory = node.number("memory", "MemTotal")
    if total and free is not None and memory and total - free > memory / 100:
        # Pages that find no room in memory would cost programs their lives.
        fits = (node.number("memory", "MemAvailable") or 0) > (total - free) * 1.5
        yield Spotted(
            "more than 1 % of memory",
            "none",
            "pages of programs are on disk: an access to them takes milliseconds",
            "swapoff -a && swapon -a"
            if fits
            else "grep VmSwap /proc/[0-9]*/status | sort -nk2 | tail",
        )


class _Hostnames:
    """Two nodes with one host name."""

    def __init__(self, _: Expectations) -> None:
        self._names: dict[str, list[str]] = defaultdict(list)

    def add(self, node: Snapshot) -> None:
        name = node.text("system", "hostname")
        if name:
            self._names[name].append(node.name)

    def results(self) -> Iterator[tuple[list[str], Spotted]]:
        for name, nodes in self._names.items():
            if len(nodes) > 1:
                yield (
                    nodes,
                    Spotted(
                        printable(name)[:80],
                        "one name for each node",
                        "several nodes have the same host name",
                        "hostnamectl set-hostname NAME",
                    ),
                )


ANSWER = HealthCheck("base.answer", Gravity.FAULT, "the node answers", OWN)
"""Its findings are made of the collection and not of a snapshot."""

CHECKS = (
    ANSWER,
    HealthCheck("base.sources", Gravity.WARNING, "the agent reads all its sources", OWN, _sources),
    HealthCheck(
        "base.privilege", Gravity.NOTE, "the agent may read all its sources", OWN, _privilege
    ),
    HealthCheck("base.clock", Gravity.FAULT, "the clock is right", OWN, _clock),
    HealthCheck(
        "base.time_service", Gravity.WARNING, "a process keeps the clock", OWN, _time_service
    ),
    HealthCheck("base.resolution", Gravity.WARNING, "the node resolves its name", OWN, _resolution),
    HealthCheck("base.hostname", Gravity.FAULT, "host names are unique", OWN, compare=_Hostnames),
    HealthCheck("base.memlock", Gravity.FAULT, "processes may lock memory", "", _memlock),
    HealthCheck("base.open_files", Gravity.WARNING, "processes may open files", "", _open_files),
    HealthCheck("base.services", Gravity.FAULT, "daemons run", "", _services),
    HealthCheck("base.kernel", Gravity.WARNING, "an accepted kernel runs", "", _kernel),
    HealthCheck("base.numa_balancing", Gravity.WARNING, "no NUMA balancing", "", _balancing),
    HealthCheck("base.swap", Gravity.WARNING, "no memory on disk", OWN, _swapped),
)
