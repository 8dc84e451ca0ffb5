# SPDX-License-Identifier: Apache-2.0
"""The family `processor`: frequency, idle states, quota, microcode, missing processors. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.families.base import by_system, cpus_of, word
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot, is_decimal
from nearmetal.core.text import printable

_GROUP = re.compile(
    r"/sys/fs/cgroup(?:/(?![.-])[\w@:.\\-]+)*/(?P<file>cpu\.max|cpu\.cfs_quota_us)", re.ASCII
)
_MOST_PATH = 120
"""A longer path would be cut in a remedy, to another one."""

_UNIT = re.compile(r"/(?P<unit>[^/]+\.(?:service|scope|slice))/[^/]+\Z")
_HIGHEST = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_SYSFS = "kernel, Documentation/admin-guide/pm/cpufreq.rst"
_CPUS = "/sys/devices/system/cpu/cpu*"


def _set(file: str, value: object) -> str:
    """Return the command that writes a value for all processors; it needs no further program."""
    return f"for f in {_CPUS}/{file}; do echo {value} >$f; done"


def _governor(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    accepted = wanted.value("governors")
    for governor, cpus in sorted(node.table("processor", "governors").items()):
        if governor not in accepted:
            yield Spotted(
                printable(governor)[:40],
                " or ".join(accepted),
                "the frequency follows the load, so the first microseconds of work are slow",
                _set("cpufreq/scaling_governor", word(accepted[0])),
                f"CPUs {printable(str(cpus))[:60]}",
                wanted.source("governors"),
            )


def _frequency(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    highest = {int(k) for k in node.table("processor", "highest_khz") if is_decimal(k)}
    for allowed, cpus in sorted(node.table("processor", "allowed_khz").items()):
        if highest and is_decimal(allowed) and int(allowed) < min(highest):
            yield Spotted(
                f"{int(allowed) / 1e6:.2f} GHz",
                f"{min(highest) / 1e6:.2f} GHz",
                "a limit of the frequency is set below that of the processor",
                # Each its own: some cores of a processor are faster than the others.
                f"for d in {_CPUS}/cpufreq; do cat $d/cpuinfo_max_freq >$d/scaling_max_freq; done",
                f"CPUs {printable(str(cpus))[:60]}",
            )


def _offline(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    # A virtual machine to which CPUs may be added has numbers for them, and no CPUs.
    online = cpus_of(node.text("processor", "online"))
    off = cpus_of(node.text("processor", "present")) - online if online else set()
    if off and node.text("processor", "smt") not in ("off", "forceoff"):
        yield Spotted(
            f"CPUs {', '.join(map(str, sorted(off)))}"[:60],
            "none",
            "processors are switched off, so jobs have fewer",
            _set("online", 1),
        )


def _quota(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    quota, usable = node.number("processor", "quota"), node.number("processor", "usable")
    if quota is not None and usable is not None and quota < usable:
        yield Spotted(
            f"{quota:g} processors",
            f"{usable:g}",
            "a control group stops its processes when they have used their share of a period",
            _without_quota(node.text("processor", "quota_file")),
        )


def _without_quota(file: str) -> str:
    """Return the command that ends the quota of a file. A unit of systemd must know it."""
    group, unit = _GROUP.fullmatch(file), _UNIT.search(file)
    # A container sees its own group as the highest one: only its host knows the name.
    if group and not unit and file not in _HIGHEST and len(file) <= _MOST_PATH:
        return f"echo {'max' if group['file'] == 'cpu.max' else -1} >{word(file)}"
    name = word(unit["unit"]) if group and unit else "UNIT"
    return f"systemctl set-property --runtime {name} CPUQuota="


def _microcode(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    versions = node.text("processor", "microcode")
    if ", " in versions:
        yield Spotted(
            printable(versions)[:100],
            "one version",
            "processors of one machine run different microcode",
            by_system(node, "update-initramfs -u", "dracut --force") + " && systemctl reboot",
        )


def _old_microcode(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    if node.text("processor", "vulnerabilities", "old_microcode") == "Vulnerable":
        amd = node.text("processor", "vendor") == "AuthenticAMD"
        newer = by_system(
            node,
            f"apt-get install {'amd64' if amd else 'intel'}-microcode",
            f"dnf upgrade {'linux-firmware' if amd else 'microcode_ctl'}",
        )
        yield Spotted(
            printable(node.text("processor", "microcode"))[:60],
            "a newer version",
            "the kernel knows a newer microcode of this processor",
            f"{newer} && systemctl reboot",
        )


def _throttled(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    if node.count("processor", "throttled"):
        yield Spotted(
            "throttled since boot",
            "never",
            "processors were too hot and slowed down",
            "grep . /sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count",
        )


def _idle(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    highest = wanted.value("idle_latency_us")
    states = node.table("processor", "idle")
    for state in sorted(states):
        latency = node.number("processor", "idle", state)
        if highest is not None and latency is not None and latency > highest:
            yield Spotted(
                f"{latency:g} µs",
                f"at most {highest:g} µs",
                "a sleeping processor needs this time to wake up",
                f"for d in {_CPUS}/cpuidle/state*; do "
                f"test $(cat $d/latency) -le {int(highest)} || echo 1 >$d/disable; done",
                printable(state)[:40],
                wanted.source("idle_latency_us"),
            )


CHECKS = (
    HealthCheck("processor.governor", Gravity.WARNING, "the frequency is high", "", _governor),
    HealthCheck(
        "processor.frequency", Gravity.WARNING, "no frequency limit is set", _SYSFS, _frequency
    ),
    HealthCheck("processor.offline", Gravity.WARNING, "all processors are on", OWN, _offline),
    HealthCheck(
        "processor.quota",
        Gravity.FAULT,
        "no control group slows processes",
        "kernel, Documentation/admin-guide/cgroup-v2.rst, cpu.max",
        _quota,
    ),
    HealthCheck(
        "processor.microcode", Gravity.FAULT, "one microcode in a machine", OWN, _microcode
    ),
    HealthCheck(
        "processor.old_microcode",
        Gravity.NOTE,
        "the microcode is current",
        "kernel, /sys/devices/system/cpu/vulnerabilities/old_microcode",
        _old_microcode,
    ),
    HealthCheck("processor.throttled", Gravity.WARNING, "processors are cool", OWN, _throttled),
    HealthCheck("processor.idle", Gravity.WARNING, "processors wake up quickly", "", _idle),
)
