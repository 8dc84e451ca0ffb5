# SPDX-License-Identifier: Apache-2.0
"""The family `processor`: frequency, idle states, quota, microcode, missing processors. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.model import Check, Grade, Seen
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_SYSFS = "kernel, Documentation/admin-guide/pm/cpufreq.rst"


def _governor(node: Snapshot, wanted: Expectations) -> Iterator[Seen]:
    accepted = wanted.value("governors")
    for governor, cpus in sorted(node.table("processor", "governors").items()):
        if governor not in accepted:
            yield Seen(
                printable(governor)[:40],
                " or ".join(accepted),
                "the frequency follows the load, so the first microseconds of work are slow",
                f"cpupower frequency-set -g {accepted[0]}",
                f"CPUs {printable(str(cpus))[:60]}",
                wanted.source("governors"),
            )


def _frequency(node: Snapshot, _: Expectations) -> Iterator[Seen]:
    highest = {int(k) for k in node.table("processor", "highest_khz") if k.isdigit()}
    for allowed, cpus in sorted(node.table("processor", "allowed_khz").items()):
        if highest and allowed.isdigit() and int(allowed) < min(highest):
            yield Seen(
                f"{int(allowed) / 1e6:.2f} GHz",
                f"{min(highest) / 1e6:.2f} GHz",
                "a limit of the frequency is set below that of the processor",
                f"cpupower frequency-set -u {min(highest)}",
                f"CPUs {printable(str(cpus))[:60]}",
            )


def _offline(node: Snapshot, _: Expectations) -> Iterator[Seen]:
    cpus = node.text("processor", "offline")
    if cpus and node.text("processor", "smt") not in ("off", "forceoff"):
        yield Seen(
            f"CPUs {printable(cpus)[:60]}",
            "none",
            "processors are switched off, so jobs have fewer",
            "for f in /sys/devices/system/cpu/cpu*/online; do echo 1 >$f; done",
        )


def _quota(node: Snapshot, _: Expectations) -> Iterator[Seen]:
    quota, usable = node.number("processor", "quota"), node.number("processor", "usable")
    if quota is not None and usable is not None and quota < usable:
        yield Seen(
            f"{quota:g} processors",
            f"{usable:g}",
            "a control group stops its processes when they have used their share of a period",
            "systemctl set-property --runtime UNIT CPUQuota=",
        )


def _microcode(node: Snapshot, _: Expectations) -> Iterator[Seen]:
    versions = node.text("processor", "microcode")
    if ", " in versions:
        yield Seen(
            printable(versions)[:100],
            "one version",
            "processors of one machine run different microcode",
            "update-initramfs -u && systemctl reboot",
        )


def _old_microcode(node: Snapshot, _: Expectations) -> Iterator[Seen]:
    if node.text("processor", "vulnerabilities", "old_microcode") == "Vulnerable":
        yield Seen(
            printable(node.text("processor", "microcode"))[:60],
            "a newer version",
            "the kernel knows a newer microcode of this processor",
            "apt-get install intel-microcode && systemctl reboot",
        )


def _throttled(node: Snapshot, _: Expectations) -> Iterator[Seen]:
    if node.count("processor", "throttled"):
        yield Seen(
            "throttled since boot",
            "never",
            "processors were too hot and slowed down",
            "grep . /sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count",
        )


def _idle(node: Snapshot, wanted: Expectations) -> Iterator[Seen]:
    highest = wanted.value("idle_latency_us")
    states = node.table("processor", "idle")
    for state in sorted(states):
        latency = node.number("processor", "idle", state)
        if highest is not None and latency is not None and latency > highest:
            yield Seen(
                f"{latency:g} µs",
                f"at most {highest:g} µs",
                "a sleeping processor needs this time to wake up",
                "cpupower idle-set -D 1",
                printable(state)[:40],
                wanted.source("idle_latency_us"),
            )


CHECKS = (
    Check("processor.governor", Grade.WARNING, "the frequency is high", "", _governor),
    Check("processor.frequency", Grade.WARNING, "no frequency limit is set", _SYSFS, _frequency),
    Check("processor.offline", Grade.WARNING, "all processors are on", OWN, _offline),
    Check(
        "processor.quota",
        Grade.FAULT,
        "no control group slows processes",
        "kernel, Documentation/admin-guide/cgroup-v2.rst, cpu.max",
        _quota,
    ),
    Check("processor.microcode", Grade.FAULT, "one microcode in a machine", OWN, _microcode),
    Check(
        "processor.old_microcode",
        Grade.NOTE,
        "the microcode is current",
        "kernel, /sys/devices/system/cpu/vulnerabilities/old_microcode",
        _old_microcode,
    ),
    Check("processor.throttled", Grade.WARNING, "processors are cool", OWN, _throttled),
    Check("processor.idle", Grade.WARNING, "processors wake up quickly", "", _idle),
)
