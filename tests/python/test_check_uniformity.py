# SPDX-License-Identifier: Apache-2.0
"""The odd node out is found without any expectation, and a mixed cluster blames no node."""

from __future__ import annotations

from typing import Any

import pytest

from nearmetal.check.model import Gravity
from tests.python.check_nodes import DIFF, PORT, cluster, judged, named, node, only

ODD: list[tuple[str, str, Any, str]] = [
    ("uniformity.kernel", "system>boot_words", {"mitigations": "off"}, "system.boot_words"),
    ("uniformity.settings", "sysctl>vm.swappiness", "60", "sysctl[vm.swappiness]"),
    ("uniformity.limits", "limits>nofile>soft", 1024, "limits.nofile.soft"),
    ("uniformity.services", "services>slurmd", "runs", "services.slurmd"),
    ("uniformity.processor", "processor>microcode", "0x2a", "processor.microcode"),
    ("uniformity.processor", "processor>model", "Model Q", "processor.model"),
    ("uniformity.memory", "memory>MemTotal", 48 << 20, "memory.MemTotal"),
    ("uniformity.firmware", "system>dmi>bios_version", "1.9", "system.dmi.bios_version"),
    ("uniformity.fabric", "fabric>mlx5_0>fw_ver", "20.28.2006", "fabric.mlx5_0.fw_ver"),
    ("uniformity.fabric", "fabric>mlx5_0>ports>1>rate", "50 Gb/sec (2X EDR)", "rate"),
    ("uniformity.interfaces", "net>ib0>mtu", 2044, "net.ib0.mtu"),
    ("uniformity.mounts", "storage>/home", {"type": "nfs4", "options": "rw"}, "storage[/home]"),
    ("uniformity.software", "software>packages>libfabric1", "1.18.0-1", "libfabric1"),
]


@pytest.mark.parametrize(("check", "path", "value", "place"), ODD)
def test_the_odd_node_is_named(check: str, path: str, value: Any, place: str) -> None:
    findings = judged(cluster(node(5, (path, value)), size=9)).findings
    assert findings
    assert {f.check for f in findings} == {check}
    assert all(f.folded == "compute-05" for f in findings)
    assert any(place in f.about for f in findings)
    assert all("as 8 of 9 nodes" in f.expected for f in findings)


def test_a_node_without_any_driver_is_named() -> None:
    assert ("uniformity.software", "compute-03") in [
        (f.check, f.folded)
        for f in judged(cluster(node(3, ("fabric", {}), ("software>modules", ...)))).findings
    ]


@pytest.mark.parametrize(
    ("path", "value", "remedy"),
    [
        ("sysctl>vm.swappiness", "60", "sysctl -w vm.swappiness=10"),
        ("net>ib0>mtu", 2044, "ip link set dev ib0 mtu 4092"),
        (
            "memory>transparent>enabled",
            "madvise",
            "echo always >/sys/kernel/mm/transparent_hugepage/enabled",
        ),
        # Most nodes have no such setting.
        ("sysctl>vm.extra", "1", DIFF),
        # This node has none.
        ("sysctl>vm.swappiness", ..., DIFF),
        # Most nodes have no SMT to switch on.
        ("processor>smt", "off", DIFF),
    ],
)
def test_the_remedy_sets_the_value_of_most_nodes(path: str, value: Any, remedy: str) -> None:
    assert only(judged(cluster(node(5, (path, value))))).remedy == remedy


@pytest.mark.parametrize(
    ("path", "usual", "value", "remedy"),
    [
        ("processor>smt", "on", "off", "echo on >/sys/devices/system/cpu/smt/control"),
        ("net>ib0>state", "up", "down", "ip link set dev ib0 up"),
        ("net>ib0>state", "down", "up", DIFF),
        ("net>ib0>state", "unknown", "down", DIFF),
        ("system>selinux", "enforcing", "permissive", "echo 1 >/sys/fs/selinux/enforce"),
        ("system>selinux", "permissive", "enforcing", DIFF),
        ("system>selinux", "enforcing", "off", DIFF),
        ("pci>0000:17:00.0>vfs", 16, 0, "echo 16 >/sys/class/infiniband/mlx5_0/device/"),
        # The kernel refuses another number, and none at all would end machines that use them.
        ("pci>0000:17:00.0>vfs", 16, 4, DIFF),
        ("pci>0000:17:00.0>vfs", 0, 16, DIFF),
        ("processor>no_turbo", "0", "1", "echo 0 >/sys/devices/system/cpu/intel_pstate/no_turbo"),
        ("processor>no_turbo", "1", "0", DIFF),
        ("processor>boost", "1", "0", "echo 1 >/sys/devices/system/cpu/cpufreq/boost"),
        ("processor>boost", "0", "1", DIFF),
        # Most nodes are less safe.
        ("sysctl>kernel.randomize_va_space", "2", "0", "sysctl -w kernel.randomize_va_space=2"),
        ("sysctl>kernel.randomize_va_space", "0", "2", DIFF),
        ("sysctl>kernel.yama.ptrace_scope", "1", "0", "sysctl -w kernel.yama.ptrace_scope=1"),
        ("sysctl>kernel.yama.ptrace_scope", "0", "1", DIFF),
        ("sysctl>kernel.perf_event_paranoid", "2", "1", "sysctl -w kernel.perf_event_paranoid=2"),
        ("sysctl>kernel.perf_event_paranoid", "1", "2", DIFF),
        ("sysctl>kernel.perf_event_paranoid", "0", "1", DIFF),
        ("sysctl>kernel.yama.ptrace_scope", "3", "0", DIFF),
        # Jobs and machines may use the pages.
        ("memory>HugePages_Total", 512, 0, "sysctl -w vm.nr_hugepages=512"),
        ("memory>HugePages_Total", 0, 512, DIFF),
        ("sysctl>vm.nr_hugepages", "0", "512", DIFF),
        (
            "software>packages>libx++1",
            "1:2~rc+1-3",
            "1:1-1",
            "apt-get install libx++1='1:2~rc+1-3'",
        ),
        ("software>packages>libx", "2-1", "", "apt-get install libx=2-1"),
        ("software>packages>libx", "", "2-1", DIFF),
        ("software>packages>-o", "2-1", "1-1", DIFF),
        # Most nodes have fallen back to a slow one.
        ("virtual>clock", "hpet", "tsc", DIFF),
    ],
)
def test_the_remedy_does_no_harm_where_most_nodes_are_wrong(
    path: str, usual: Any, value: Any, remedy: str
) -> None:
    device = ("fabric>mlx5_0>address", "0000:17:00.0")
    nodes = [node(i, device, (path, usual)) for i in range(1, 6)]
    found = judged([*nodes, node(6, device, (path, value))]).findings
    (finding,) = [f for f in found if f.folded == "compute-06"]
    assert finding.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("path", "usual"),
    [
        ("sysctl>x; rm -rf ~", "60"),
        ("sysctl>--load=/tmp/evil", "60"),
        ("sysctl>vm.swappiness", "x; rm -rf ~"),
        ("sysctl>vm.swappiness", "|/tmp/evil"),
        ("sysctl>vm.swappiness", "6\n0"),
        ("sysctl>vm.swappiness", "v" * 200),
        ("memory>transparent>../../../../etc/cron.d/evil", "always"),
        ("memory>transparent>enabled", "-e"),
    ],
)
def test_names_and_values_of_hostile_nodes_are_in_no_remedy(path: str, usual: str) -> None:
    nodes = [node(i, (path, usual)) for i in (1, 2, 3)]
    found = judged([*nodes, node(4, (path, "1"))]).findings
    (finding,) = [f for f in found if f.check == "uniformity.settings"]
    assert finding.folded == "compute-04"
    assert finding.remedy == DIFF


def test_less_than_a_percent_of_memory_is_no_difference() -> None:
    assert named(judged(cluster(node(2, ("memory>MemTotal", (64 << 20) - 4000))))) == []


def test_two_nodes_have_no_majority() -> None:
    finding = only(judged([node(1), node(2, ("sysctl>vm.swappiness", "60"))]))
    assert (finding.grade, finding.folded) == (Gravity.NOTE, "compute-[01-02]")
    assert "10: 1 nodes" in finding.value


def test_a_cluster_of_two_halves_blames_no_node() -> None:
    half = [node(i, ("processor>model", "Q"), ("processor>microcode", "0x9")) for i in (4, 5, 6)]
    finding = only(judged(cluster(*half)))
    assert (finding.check, finding.grade) == ("uniformity.processor", Gravity.NOTE)


def test_guests_and_machines_are_not_compared() -> None:
    guests = [node(i, ("virtual>guest", True), ("processor>threads", 4)) for i in (5, 6)]
    assert named(judged(cluster(*guests))) == []


def test_a_node_that_lacks_a_device_is_named() -> None:
    finding = judged(cluster(node(3, ("fabric", {}), ("software>modules", {})))).findings
    assert {(f.check, f.folded) for f in finding} == {
        ("uniformity.fabric", "compute-03"),
        ("uniformity.software", "compute-03"),
    }


def test_many_differences_of_one_table_are_cut() -> None:
    packages = {f"package-{i}": "1" for i in range(400)}
    findings = judged(cluster(node(3, ("software>packages", packages)))).findings
    assert {f.folded for f in findings if f.check.startswith("uniformity")} == {"compute-03"}
    assert len(findings) < 25
    assert any(f.value.endswith("more differences") for f in findings)


def test_a_value_that_differs_everywhere_is_left_out_and_hides_nothing_else() -> None:
    nodes = [node(i, ("services>own", str(i))) for i in range(1, 80)]
    found = judged([*nodes, node(80, ("services>own", "x"), ("services>sshd", ...))])
    assert named(found) == [("uniformity.services", "warning", "compute-80")]
    assert found.not_run == {
        "uniformity.services services.own": "not compared: 64 or more different values"
    }


def test_a_node_with_half_the_memory_is_named_where_no_two_nodes_are_equal() -> None:
    nodes = [node(i, ("memory>MemTotal", (64 << 20) - 8 * i)) for i in range(1, 100)]
    finding = only(judged([*nodes, node(100, ("memory>MemTotal", 32 << 20))]))
    assert (finding.check, finding.folded) == ("uniformity.memory", "compute-100")
    assert (finding.grade, finding.expected[-18:]) == (Gravity.FAULT, "as 99 of 100 nodes")


def test_what_the_kernel_computes_of_memory_is_not_compared() -> None:
    def own(i: int) -> tuple[tuple[str, Any], ...]:
        return ("sysctl>kernel.threads-max", str(9000 + i)), ("limits>nproc>soft", 4500 + i)

    odd = node(10, *own(10), ("sysctl>vm.swappiness", "60"))
    found = judged([*(node(i, *own(i)) for i in range(1, 10)), odd])
    assert [(f.about, f.folded) for f in found.findings] == [
        ("sysctl[vm.swappiness]", "compute-10")
    ]


def test_the_first_node_may_be_the_odd_one() -> None:
    odd = node(1, ("software>packages>libfabric1", "1"), ("services>sshd", ...))
    assert {f.folded for f in judged(cluster(odd)).findings} == {"compute-01"}


def test_a_port_that_is_down_on_one_node_only() -> None:
    two = [node(i, ("fabric>mlx5_0>ports>2", PORT)) for i in range(1, 6)]
    down = dict(PORT, state="DOWN", phys_state="Disabled")
    findings = judged([*two, node(6, ("fabric>mlx5_0>ports>2", down))]).findings
    assert {(f.check, f.grade, f.folded) for f in findings} == {
        ("uniformity.fabric", Gravity.WARNING, "compute-06"),
        ("fabric.state", Gravity.NOTE, "compute-06"),
    }


MOUNTED = {"type": "nfs4", "options": "relatime rw"}


@pytest.mark.parametrize(
    ("point", "usual", "value", "about", "remedy"),
    [
        ("/home", MOUNTED, ..., "type", "mount /home"),
        ("/home", MOUNTED, ..., "options", DIFF),
        ("/home", ..., MOUNTED, "type", DIFF),
        ("/home", MOUNTED, MOUNTED | {"type": "ext4"}, "type", DIFF),
        ("/a/b", MOUNTED, MOUNTED | {"options": "ro"}, "options", "mount -o remount,rw /a/b"),
        ("/home", MOUNTED | {"options": "ro"}, MOUNTED, "options", DIFF),
        ("/home", MOUNTED, MOUNTED | {"options": "noatime rw"}, "options", DIFF),
        # No line of /etc/fstab says how.
        ("/dev/shm", MOUNTED, ..., "type", DIFF),
        ("/../etc", MOUNTED, ..., "type", DIFF),
        ("/a b", MOUNTED, ..., "type", DIFF),
        ("/-o", MOUNTED, ..., "type", DIFF),
    ],
)
def test_a_mount_is_made_as_on_most_nodes(
    point: str, usual: Any, value: Any, about: str, remedy: str
) -> None:
    def mounts(given: Any) -> tuple[str, Any]:
        return (f"storage>{point}", {} if given is ... else given)

    found = judged([*(node(i, mounts(usual)) for i in (1, 2, 3)), node(4, mounts(value))]).findings
    (finding,) = [f for f in found if f.about == f"storage[{point}].{about}"]
    assert (finding.folded, finding.remedy) == ("compute-04", remedy)
