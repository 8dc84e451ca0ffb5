# SPDX-License-Identifier: Apache-2.0
"""The remedies of findings: the right command for the node, and none that does harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nearmetal.check.expect import DAEMONS
from nearmetal.core.errors import SpecError
from tests.python.check_nodes import judged, node, only


@pytest.mark.parametrize(
    ("ids", "remedy"),
    [
        ("15b3:1013", "mlxconfig -d 0000:17:00.0 set SRIOV_EN=1 NUM_OF_VFS=64"),
        ("8086:1592", "devlink dev param show pci/0000:17:00.0"),
    ],
)
def test_the_firmware_of_an_adapter_is_set_by_the_tool_of_its_vendor(ids: str, remedy: str) -> None:
    profile = "name: s\nchecks: ['*']\nexpect: {vfs: 64}\n"
    assert only(judged([node(1, ("pci>0000:17:00.0>ids", ids))], profile)).remedy == remedy


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("/sys/fs/cgroup/jobs/cpu.max", "echo max >/sys/fs/cgroup/jobs/cpu.max"),
        ("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "echo -1 >/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us"),
        ("/sys/fs/cgroup/system.slice/slurmd.service/cpu.max", "slurmd.service"),
        ("/sys/fs/cgroup/user.slice/a/cpu.max", "echo max >/sys/fs/cgroup/user.slice/a/cpu.max"),
        # The highest group of a container.
        ("/sys/fs/cgroup/cpu.max", "UNIT"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "UNIT"),
        # Hostile nodes.
        ("/sys/fs/cgroup/../../../etc/passwd/cpu.max", "UNIT"),
        ("/sys/fs/cgroup/a;b/cpu.max", "UNIT"),
        # Its path would be cut, to that of another file.
        ("/sys/fs/cgroup/" + "a" * 100 + "/b/cpu.max", "UNIT"),
        ("/sys/fs/cgroup/--now.slice/cpu.max", "UNIT"),
        ("/etc/passwd", "UNIT"),
        ("", "UNIT"),
    ],
)
def test_a_quota_is_ended_at_its_group(file: str, remedy: str) -> None:
    unit = f"systemctl set-property --runtime {remedy} CPUQuota="
    found = only(judged([node(1, ("processor>quota", 0.5), ("processor>quota_file", file))]))
    assert found.remedy == (remedy if remedy.startswith("echo") else unit)


@pytest.mark.parametrize(
    ("available", "remedy"),
    [(60 << 20, "swapoff -a && swapon -a"), (8 << 20, "grep VmSwap"), (..., "grep VmSwap")],
)
def test_swapped_pages_are_read_back_only_if_memory_has_room(available: Any, remedy: str) -> None:
    changes = [("memory>SwapTotal", 16 << 20), ("memory>SwapFree", 8 << 20)]
    more = [] if available is ... else [("memory>MemAvailable", available)]
    assert only(judged([node(1, *changes, *more)])).remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("system", "service", "unit"),
    [
        ("debian", "munged", "munge"),
        ("rocky", "munged", "munge"),
        ("debian", "sshd", "ssh"),
        ("rocky", "sshd", "sshd"),
        ("debian", "slurmd", "slurmd"),
    ],
)
def test_a_daemon_is_started_by_the_name_of_its_unit(system: str, service: str, unit: str) -> None:
    changes = ("system>os>id", system), ("services", {"time": "chronyd", "init": "runs"})
    profile = f"name: s\nchecks: ['*']\nexpect: {{services: [{service}]}}\n"
    assert only(judged([node(1, *changes)], profile)).remedy == f"systemctl restart {unit}"


@pytest.mark.parametrize(
    ("keeper", "remedy"),
    [
        ("chronyd", "chronyc makestep"),
        ("systemd-timesyn", "systemctl restart systemd-timesyncd"),
        ("ntpd", "systemctl restart ntp"),
        ("chronyd, timemaster", "systemctl restart timemaster"),
        ("vmtoolsd", "vmware-toolbox-cmd timesync enable"),
        # VMware: only one process may keep the clock of a guest.
        ("phc2sys, ptp4l, vmtoolsd", "systemctl restart 'phc2sys*'"),
        ("ptp4l, vmtoolsd", "systemctl restart 'ptp4l*'"),
        ("", "chronyc makestep"),
    ],
)
def test_a_clock_is_set_by_the_process_that_keeps_it(keeper: str, remedy: str) -> None:
    late = node(1, ("services>time", keeper), clock=(-9.0, -8.0))
    (found,) = [f for f in judged([late]).findings if f.check == "base.clock"]
    assert found.remedy == remedy


def test_ntpd_has_another_unit_on_red_hat() -> None:
    changes = ("services>time", "ntpd"), ("system>os>id", "rocky")
    found = only(judged([node(1, *changes, clock=(-9.0, -8.0))]))
    assert found.remedy == "systemctl restart ntpd"


@pytest.mark.parametrize(
    ("point", "remote", "remedy"),
    [
        ("/home", True, "umount -l /home && mount /home"),
        # What programs still write to a disk must not meet a second mount of it.
        ("/data", False, "umount /data && mount /data"),
        ("/", False, "dmesg | grep -i error"),
    ],
)
def test_a_broken_file_system_is_mounted_again(point: str, remote: bool, remedy: str) -> None:
    mount = {"type": "x", "options": "rw", "remote": remote, "error": "Input/output error"}
    assert only(judged([node(1, (f"storage>{point}", mount))])).remedy == remedy


def test_only_slow_idle_states_are_switched_off() -> None:
    profile = "name: s\nchecks: ['*']\nexpect: {idle_latency_us: 20.5}\n"
    assert only(judged([node(1, ("processor>idle>C6", 133))], profile)).remedy == (
        "for d in /sys/devices/system/cpu/cpu*/cpuidle/state*; "
        "do test $(cat $d/latency) -le 20 || echo 1 >$d/disable; done"
    )


def test_a_daemon_for_which_the_agent_does_not_look_is_refused() -> None:
    with pytest.raises(SpecError, match="has 'rpcbind', for which the agent does not look"):
        judged([], "name: s\nchecks: ['*']\nexpect: {services: [sshd, rpcbind]}\n")
    agent = (Path(__file__).parents[2] / "nearmetal/share/check/agent.py").read_text()
    listed = agent.partition("def services()")[2].partition("for name in (")[2].partition(")")[0]
    assert listed.replace('"', " ").replace(",", " ").split() == list(DAEMONS)
