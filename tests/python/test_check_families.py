# SPDX-License-Identifier: Apache-2.0
"""Each injected fault is found, it is named, and no other node is blamed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nearmetal.check.families import CHECKS
from nearmetal.check.model import Gravity
from tests.python.check_nodes import PORT, cluster, judged, named, node, only

FAULTS: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    ("base.memlock", [("limits>memlock>soft", 8 << 20)], "8 MiB", "fault"),
    ("base.time_service", [("services>time", "")], "none", "warning"),
    ("base.resolution", [("names", {"error": "Name or service not known"})], "Name", "warning"),
    ("base.numa_balancing", [("sysctl>kernel.numa_balancing", "1")], "1", "warning"),
    ("base.swap", [("memory>SwapTotal", 8 << 20), ("memory>SwapFree", 1 << 20)], "more", "warning"),
    ("processor.governor", [("processor>governors", {"powersave": "0-7"})], "powersave", "warning"),
    ("processor.frequency", [("processor>allowed_khz", {"2000000": "0-7"})], "2.00", "warning"),
    ("processor.offline", [("processor>online", "0-6")], "CPUs 7", "warning"),
    ("processor.quota", [("processor>quota", 0.5)], "0.5 processors", "fault"),
    ("processor.microcode", [("processor>microcode", "0x2a, 0x2b")], "0x2a, 0x2b", "fault"),
    ("processor.throttled", [("processor>throttled", 12)], "throttled", "warning"),
    (
        "processor.old_microcode",
        [("processor>vulnerabilities", {"old_microcode": "Vulnerable"})],
        "0x2b",
        "note",
    ),
    ("memory.uncorrected", [("memory>edac>mc0>ue", 1)], "errors", "fault"),
    ("memory.corrected", [("memory>edac>mc0>ce", 9)], "errors", "warning"),
    ("memory.poisoned", [("memory>HardwareCorrupted", 4)], "4 KiB", "fault"),
    (
        "memory.speed",
        [("memory>modules>A1", "32768 MiB, 2666 MT/s of 3200")],
        "2666 MT/s",
        "note",
    ),
    (
        "memory.sizes",
        [("memory>modules>A1", "16384 MiB, 3200 MT/s of 3200")],
        "16 GiB, 32 GiB",
        "warning",
    ),
    (
        "memory.spread",
        [
            ("memory>groups>processor 1", "131072 MiB in 8 of 8 slots"),
            ("memory>groups>processor 2", "114688 MiB in 7 of 8 slots"),
            ("memory>groups>processor 3", "0 MiB in 0 of 8 slots"),
        ],
        "processor 1: 131072 MiB in 8 of 8 slots, processor 2: 114688 MiB in 7 of 8 slots",
        "warning",
    ),
    ("memory.empty_node", [("memory>nodes>1>MemTotal", 0)], "no memory", "warning"),
    ("memory.transparent", [("memory>transparent>enabled", "never")], "never", "warning"),
    ("fabric.state", [("fabric>mlx5_0>ports>1>state", "DOWN")], "DOWN, LinkUp", "fault"),
    ("fabric.state", [("fabric>mlx5_0>ports>1>state", "INIT")], "INIT, LinkUp", "fault"),
    ("fabric.manager", [("fabric>mlx5_0>ports>1>sm_lid", "0x0")], "none", "fault"),
    ("fabric.manager", [("fabric>mlx5_0>ports>1>pkeys", "")], "none", "fault"),
    ("fabric.guid", [("fabric>mlx5_0>node_guid", "0000:0000:0000:0000")], "0000", "fault"),
    ("fabric.twice", [("fabric>mlx5_0>node_guid", "0002:c903:0000:0002")], "0002:c903", "fault"),
    (
        "fabric.counters",
        [("fabric>mlx5_0>ports>1>counters>symbol_error", 77)],
        "symbol_error",
        "note",
    ),
    (
        "fabric.roce",
        [
            ("fabric>mlx5_0>ports>1>link_layer", "Ethernet"),
            ("fabric>mlx5_0>ports>1>gids", {"RoCE v2": 0, "IB/RoCE v1": 1}),
        ],
        "none",
        "fault",
    ),
    ("fabric.slot", [("pci>0000:17:00.0>current_link_width", "8")], "x8", "warning"),
    ("virtual.clock", [("virtual>clock", "acpi_pm")], "acpi_pm", "warning"),
    ("virtual.steal", [("virtual>steal_percent", 7.5)], "more than 1 %", "warning"),
    ("virtual.reserved", [("virtual>settings", {"latency": "normal"})], "normal", "warning"),
    (
        "virtual.iommu",
        [("pci>0000:17:00.1", {"physical": "0000:17:00.0", "group_size": 3})],
        "",
        "",
    ),
    ("storage.full", [("storage>/>free", 1 << 30)], "95 % or more", "fault"),
    ("storage.full", [("storage>/>inodes_free", 3)], "95 % or more", "fault"),
    ("storage.broken", [("storage>/data", {"error": "Stale file handle"})], "Stale", "fault"),
    ("storage.slow", [("storage>/>seconds", 4.2)], "4.2 s", "warning"),
    ("software.kernel", [("system>kernel", "6.1.0-17-amd64")], "6.1.0-17", "warning"),
    ("software.verbs", [("software>modules", {})], "not loaded", "fault"),
    ("nearmetal.shared", [("nearmetal>folders>/dev/shm>writable", False)], "missing", "fault"),
    (
        "nearmetal.rundir",
        [
            ("nearmetal>folders>/run/nearmetal", {"writable": False, "mode": "755"}),
            ("nearmetal>environment>NEARMETAL_RUNDIR", "/run/nearmetal"),
        ],
        "not writable",
        "warning",
    ),
    (
        "nearmetal.segment",
        [("nearmetal>segments>0000:00:05.0>memory_type", "uncached-minus")],
        "uncached-minus",
        "fault",
    ),
    ("nearmetal.environment", [("nearmetal>environment>FI_PROVIDER", "tcp")], "tcp", "warning"),
    (
        "nearmetal.provider",
        [("nearmetal>providers", {"/opt/nearmetal/libnearmetal-fi.so": "missing"})],
        "missing",
        "warning",
    ),
]

OLD_MICROCODE = ("processor>vulnerabilities", {"old_microcode": "Vulnerable"})
NO_IOMMU = ("virtual>iommu_groups", 0)


def test_a_healthy_cluster_has_no_finding() -> None:
    assert named(judged(cluster())) == []


@pytest.mark.parametrize(
    ("check", "changes", "value", "severity"), FAULTS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_fault_is_found_and_only_its_node_is_named(
    check: str, changes: list[tuple[str, Any]], value: str, severity: str
) -> None:
    analysis = judged(cluster(node(4, *changes)))
    found = [f for f in analysis.findings if f.check == check]
    assert len(found) == 1
    assert value in found[0].value
    assert found[0].grade.word == (severity or "warning")
    assert found[0].reason
    assert found[0].remedy
    assert found[0].source or CHECKS[check].source
    blamed = {name for f in analysis.findings for name in f.nodes}
    twin = {"compute-01"} if check == "fabric.twice" else set()
    assert blamed == {"compute-04"} | twin


def test_every_check_of_one_node_has_a_fault_above_or_needs_an_expectation() -> None:
    injected = {check for check, *_ in FAULTS}
    expected = {check for check, *_ in EXPECTED}
    special = {"base.sources", "base.privilege", "base.clock", "storage.silent"}
    special |= {"virtual.balloon", "virtual.placement", "virtual.pins", "virtual.distance"}
    special |= {"fabric.pfc", "fabric.ecn"}
    # The rungs of GPUDirect have files of their own: test_check_gpudirect.py.
    each = {n for n, c in CHECKS.items() if c.judge is not None and c.family != "gpudirect"}
    assert each <= injected | expected | special


EXPECTED = [
    ("base.open_files", "open_files: 100000", "65536"),
    ("base.services", "services: [slurmd]", "not running"),
    ("base.kernel", "kernel: [6.1.0-19-amd64]", "6.1.0-18"),
    ("processor.idle", "idle_latency_us: 1", "2 µs"),
    ("memory.per_core", "memory_per_core_gib: 16", "8.0 GiB"),
    ("memory.huge_pages", "huge_pages: 512", "0"),
    ("fabric.rate", "link_gbit: 200", "100 Gb/sec"),
    ("fabric.mtu", "mtu: 9000", "4092"),
    ("virtual.functions", "vfs: 32", "16 of 16"),
    ("storage.mounts", "mounts: [/home]", "not mounted"),
    ("software.packages", "packages: {libfabric1: 2.1.0-1}", "1.17.0-3"),
    ("nearmetal.shared", "shm_bytes: 64 GiB", "32 GiB"),
]


@pytest.mark.parametrize(("check", "line", "value"), EXPECTED)
def test_an_expectation_of_a_site_is_named_with_its_line(check: str, line: str, value: str) -> None:
    profile = f"name: site\nchecks: ['{check}']\nexpect:\n  {line}\n"
    finding = only(judged(cluster(), profile))
    assert (finding.check, finding.source) == (check, "site.yaml:4")
    assert finding.value.startswith(value)
    assert finding.folded == "compute-[01-06]"


def test_a_limit_of_the_frequency_slows_no_faster_core() -> None:
    faster = {"3000000": "0-5", "3900000": "6-7"}
    changes = ("processor>highest_khz", faster), ("processor>allowed_khz", {"2000000": "0-7"})
    assert only(judged([node(1, *changes)])).remedy == (
        "for d in /sys/devices/system/cpu/cpu*/cpufreq; "
        "do cat $d/cpuinfo_max_freq >$d/scaling_max_freq; done"
    )


def test_the_kernel_changes_no_number_of_functions_but_0() -> None:
    def remedy(made: int) -> str:
        change = ("pci>0000:17:00.0>vfs", made)
        return only(judged([node(1, change)], "name: s\nchecks: ['*']\nexpect: {vfs: 16}\n")).remedy

    file = "/sys/bus/pci/devices/0000:17:00.0/sriov_numvfs"
    assert remedy(0) == f"echo 16 >{file}"
    assert remedy(4) == f"echo 0 >{file} && echo 16 >{file}"


SYSCTLS = "/etc/sysctl.d/zz-open-files.conf"
NR_OPEN = (
    "test $(cat /proc/sys/fs/nr_open) -ge 2000000 || "
    f"{{ echo fs.nr_open=2000000 >{SYSCTLS} && sysctl -p {SYSCTLS}; }} && "
)


@pytest.mark.parametrize(
    ("expected", "remedy"),
    [
        (
            "open_files: 1048576",
            "echo '* - nofile 1048576' >/etc/security/limits.d/zz-open-files.conf",
        ),
        # Logins fail with a limit that the kernel does not allow. systemd raises that of the kernel.
        (
            "open_files: 2000000",
            NR_OPEN + "echo '* - nofile 2000000' >/etc/security/limits.d/zz-open-files.conf",
        ),
        ("huge_pages: 1234567", "sysctl -w vm.nr_hugepages=1234567"),
    ],
)
def test_large_numbers_of_a_profile_keep_their_digits(expected: str, remedy: str) -> None:
    found = only(judged([node(1)], f"name: s\nchecks: ['*']\nexpect: {{{expected}}}\n"))
    assert found.remedy == remedy
    assert found.expected == f"at least {expected.split()[1]}"


@pytest.mark.parametrize(
    ("system", "vendor", "changes", "remedy"),
    [
        ("debian", "", ("services>time", ""), "apt-get install chrony"),
        ("rocky", "", ("services>time", ""), "dnf install chrony"),
        ("debian", "AuthenticAMD", OLD_MICROCODE, "apt-get install amd64-microcode"),
        ("debian", "GenuineIntel", OLD_MICROCODE, "apt-get install intel-microcode"),
        ("rhel", "GenuineIntel", OLD_MICROCODE, "dnf upgrade microcode_ctl"),
        ("rhel", "AuthenticAMD", OLD_MICROCODE, "dnf upgrade linux-firmware"),
        ("rhel", "", ("processor>microcode", "0x2a, 0x2b"), "dracut --force"),
        ("debian", "", NO_IOMMU, "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on iommu=pt /'"),
        ("rhel", "", NO_IOMMU, "grubby --update-kernel=ALL --args='intel_iommu=on iommu=pt'"),
        ("rhel", "AuthenticAMD", NO_IOMMU, "grubby --update-kernel=ALL --args='iommu=pt'"),
    ],
)
def test_remedies_are_those_of_the_system_and_the_processor(
    system: str, vendor: str, changes: tuple[str, Any], remedy: str
) -> None:
    own = ("system>os>id", system), ("processor>vendor", vendor)
    function = ("pci>0000:17:00.1", {"physical": "0000:17:00.0"})
    assert only(judged([node(1, *own, function, changes)])).remedy.startswith(remedy)


def test_packages_that_are_never_read_are_no_fault_of_a_node() -> None:
    unseen = {"packages": "packages of rpm are not read: rpm may write to its database"}
    found = only(judged([node(1, unseen=unseen)]))
    assert (found.check, found.grade) == ("base.sources", Gravity.NOTE)
    agent = (Path(__file__).parents[2] / "nearmetal/share/check/agent.py").read_text()
    assert unseen["packages"] in agent


def test_a_folder_of_the_guest_unit_is_no_rundir() -> None:
    folder = ("nearmetal>folders>/run/nearmetal", {"writable": False})
    assert named(judged([node(1, folder)])) == []
    container = node(1, folder, ("virtual>container", "podman"))
    assert only(judged([container])).check == "nearmetal.rundir"


@pytest.mark.parametrize(
    ("path", "folder", "value", "remedy"),
    [
        ("/d", {"writable": True, "mode": "700"}, "", ""),
        # The provider makes it.
        ("/d", {"writable": True}, "", ""),
        ("/d", {"writable": False}, "missing", "mkdir -p -m 700 /d"),
        ("/d", {"writable": False, "mode": "700"}, "not writable", "unset NEARMETAL_RUNDIR"),
        # The provider refuses these, and another mode of /tmp would end all other programs.
        ("/d", {"writable": True, "mode": "1777"}, "writable by others", "unset NEARMETAL_RUNDIR"),
        ("/d", {"writable": True, "mode": "770"}, "writable by others", "unset NEARMETAL_RUNDIR"),
        ("//d/", {"writable": True, "mode": "700"}, "", ""),
        ("d", {"writable": True, "mode": "700"}, "no absolute path", "unset NEARMETAL_RUNDIR"),
        ("/$(x)", None, "", ""),
    ],
)
def test_a_rundir_is_judged_as_the_provider_does(
    path: str, folder: dict[str, Any] | None, value: str, remedy: str
) -> None:
    place = ("nearmetal>environment>NEARMETAL_RUNDIR", path)
    folders = [("nearmetal>folders>/d", folder)] if folder else []
    found = judged([node(1, place, *folders)]).findings
    assert [f.remedy for f in found] == ([remedy] if remedy else [])
    assert all(value in f.value for f in found)


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/a; $(x)", "mkdir -p -m 700 '/a; $(x)'"),
        ("/" + "d" * 200, "unset NEARMETAL_RUNDIR"),
        ("/d\n", "unset NEARMETAL_RUNDIR"),
    ],
)
def test_a_rundir_of_a_hostile_node_is_quoted_and_never_cut(path: str, remedy: str) -> None:
    changes = (
        ("nearmetal>environment>NEARMETAL_RUNDIR", path),
        (f"nearmetal>folders>{path}", {"writable": False}),
    )
    assert only(judged([node(1, *changes)])).remedy == remedy


def test_shared_memory_is_not_judged_if_the_agent_did_not_see_it() -> None:
    unseen = {"nearmetal": "no answer in 5 s"}
    changes = (("nearmetal>folders", ...), ("nearmetal>environment>NEARMETAL_CHANNELS", "shm"))
    assert [f.check for f in judged([node(1, *changes, unseen=unseen)]).findings] == [
        "base.sources"
    ]
    absent = only(judged([node(1, *changes)]))
    assert absent.check == "nearmetal.shared"


SHM = {"type": "tmpfs", "options": "nosuid relatime rw"}
CLOSED = ("nearmetal>folders>/dev/shm>writable", False)
NOT_FOR_USERS = ("nearmetal>folders>/dev/shm>mode", "755")
MADE = "mkdir -p -m 1777 /dev/shm && mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /dev/shm"
OPENED = "mount -o remount,rw /dev/shm && chmod 1777 /dev/shm"


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ([CLOSED, ("storage>/dev/shm", SHM)], OPENED),
        # Root may write to all folders, but jobs may not.
        ([NOT_FOR_USERS, ("storage>/dev/shm", SHM)], OPENED),
        # A folder without a file system of its own, and a node that did not name its mounts.
        ([CLOSED], MADE),
        ([CLOSED, ("storage", {})], OPENED),
        ([("nearmetal>folders>/dev/shm", ...)], MADE),
    ],
)
def test_shared_memory_is_mounted_or_opened(changes: list[tuple[str, Any]], remedy: str) -> None:
    assert only(judged([node(1, *changes)])).remedy == remedy


@pytest.mark.parametrize("why", ["cut: 1024 of 2000 mounts", "no answer in 5 s: storage./scratch"])
def test_shared_memory_is_not_hidden_where_not_all_mounts_are_known(why: str) -> None:
    found = judged([node(1, CLOSED, unseen={"storage": why})]).findings
    assert [f.remedy for f in found if f.check == "nearmetal.shared"] == [OPENED]


def test_the_remedy_of_a_missing_provider_is_that_of_its_place() -> None:
    link = ("nearmetal>providers", {"/usr/lib64/libfabric/libnearmetal-fi.so": "a link to nothing"})
    asked = ("nearmetal>providers", {"/opt/nearmetal/libnearmetal-fi.so": "missing"})
    rpm = {"packages": "packages of rpm are not read: rpm may write to its database"}

    def remedy(change: tuple[str, Any], unseen: dict[str, str] | None = None) -> str:
        found = judged([node(1, change, unseen=unseen or {})]).findings
        (finding,) = [f for f in found if f.check == "nearmetal.provider"]
        return finding.remedy

    assert remedy(link) == "apt-get install --reinstall libnearmetal-fi"
    assert remedy(link, rpm) == "dnf reinstall libnearmetal-fi"
    assert remedy(asked) == "unset FI_PROVIDER_PATH"


def test_a_second_port_without_a_cable_is_a_note() -> None:
    down = dict(PORT, state="DOWN", phys_state="Polling")
    finding = only(judged([node(1, ("fabric>mlx5_0>ports>2", down))]))
    assert (finding.check, finding.grade, finding.about) == (
        "fabric.state",
        Gravity.NOTE,
        "mlx5_0/2",
    )


def test_clocks_count_only_when_the_offset_is_certain() -> None:
    late = node(2, clock=(-5.3, -4.9))
    early = node(3, clock=(4.9, 5.2))
    unsure = node(4, clock=(-5.0, 5.0))
    unknown = node(5, clock=None)
    found = judged(cluster(late, early, unsure, unknown)).findings
    assert [(f.check, f.folded, f.value) for f in found] == [
        ("base.clock", "compute-02", "at least 5 s behind"),
        ("base.clock", "compute-03", "at least 5 s ahead"),
    ]


def test_what_the_agent_could_not_see_is_said() -> None:
    unseen = {
        "dmi": "only root may read it",
        "fabric": "no answer in 5 s after fabric.mlx5_0.node_guid",
        "storage": "no answer in 5 s after storage./data.remote",
    }
    assert named(judged([node(1, unseen=unseen)])) == [
        ("storage.silent", "fault", "compute-01"),
        ("base.sources", "warning", "compute-01"),
        ("base.privilege", "note", "compute-01"),
    ]


def test_who_could_not_see_is_said() -> None:
    unseen = {"segments": "the memory types of mappings: debugfs is for root only, or not mounted"}
    user = only(judged([node(1, unseen=unseen, root=False)]))
    root = only(judged([node(1, unseen=unseen)]))
    assert user.check == root.check == "base.privilege"
    assert user.remedy == "nearmetal check collect --root"
    assert root.remedy == "mount -t debugfs debugfs /sys/kernel/debug"


def test_daemons_are_not_judged_if_the_agent_did_not_see_all() -> None:
    profile = "name: s\nchecks: [base.services]\nexpect: {services: [slurmd]}\n"
    unseen = {"services": "no answer in 5 s after services.sshd"}
    assert named(judged([node(1, unseen=unseen)], profile)) == []


def test_many_mounts_are_no_silent_file_system() -> None:
    profile = "name: s\nbase: health_extended\nexpect: {mounts: [/home]}\n"
    found = judged([node(1, unseen={"storage": "cut: 1024 of 2000 mounts"})], profile)
    assert named(found) == [("base.sources", "warning", "compute-01")]


def test_shared_space_and_memory_that_are_full_drain_no_node() -> None:
    full = {"options": "rw", "bytes": 100, "free": 0}
    for facts in (dict(full, type="tmpfs", remote=False), dict(full, type="nfs4", remote=True)):
        changes = ("storage>/x", facts)
        assert named(judged([node(1, changes, quick=True)], "health_base")) == []
        found = only(judged([node(1, changes)], "health_base"))
        assert (found.check, found.about) == ("storage.full", "/x")
    local = node(1, ("storage>/x", dict(full, type="xfs", remote=False)), quick=True)
    assert only(judged([local], "health_base")).check == "storage.full"


def test_processors_that_could_be_added_are_not_switched_off() -> None:
    guest = node(1, ("processor>offline", "8-127"), ("processor>possible", "0-127"))
    assert named(judged([guest])) == []


def test_an_ethernet_port_without_roce_needs_no_address_of_it() -> None:
    port = dict(PORT, link_layer="Ethernet", gids={"IB/RoCE v1": 1})
    assert named(judged([node(1, ("fabric>mlx5_0>ports>1", port))])) == []


def test_a_gpu_without_work_is_judged_by_its_lanes_only() -> None:
    place = "pci>0000:17:00.0>"
    slow = (place + "current_link_speed", "2.5 GT/s PCIe")
    narrow = (place + "current_link_width", "8")
    for kind, changes, count in (
        ("030200", [slow], 0),
        ("120000", [slow], 0),
        ("020700", [slow], 1),
        ("030200", [slow, narrow], 1),
    ):
        found = judged([node(1, (place + "class", kind), *changes)])
        assert named(found) == [("fabric.slot", "warning", "compute-01")] * count


def test_silent_nodes_are_one_finding_for_each_reason() -> None:
    silent = {f"gone-{i}": "no answer in 60 s|ssh NODE uptime" for i in range(3)}
    finding = only(judged(cluster(), silent=silent))
    assert (finding.check, finding.folded) == ("base.answer", "gone-[0-2]")
    assert (finding.value, finding.remedy) == ("no answer in 60 s", "ssh NODE uptime")


UUID = "4c4c4544-0000-1000-8000-000000000001"


def guest(number: int, *changes: tuple[str, Any]) -> Any:
    return node(
        number,
        ("virtual>guest", True),
        ("virtual>uuid", UUID),
        ("system>dmi>product_version", "pc-q35-7.2"),
        *changes,
    )


def host(**machine: Any) -> Any:
    pins = {str(i): str(i + 2) for i in range(8)}
    facts = {"name": "vm1", "pins": pins, "locked_kib": 64 << 20, "huge_kib": 0} | machine
    return node(9, (f"virtual>guests>{UUID}", facts))


def test_a_machine_whose_sides_agree_has_no_finding() -> None:
    assert named(judged([guest(1), host()])) == []


def test_a_guest_with_fewer_processors_than_its_host_gives() -> None:
    found = judged([guest(1, ("processor>threads", 7)), host()]).findings
    assert [(f.check, f.folded, f.value) for f in found] == [
        ("virtual.sides", "compute-01", "7 processors")
    ]


def test_a_guest_whose_memory_is_not_reserved() -> None:
    finding = only(judged([guest(1), host(locked_kib=0, huge_kib=1 << 20)]))
    assert (finding.check, finding.value) == ("virtual.sides", "not reserved")
    assert finding.source.startswith("VMW-IB")


def test_a_balloon_and_an_adapter_without_a_place_in_a_guest() -> None:
    odd = guest(1, ("virtual>balloon", True), ("fabric>mlx5_0>numa", -1))
    assert named(judged([odd])) == [
        ("virtual.placement", "warning", "compute-01"),
        ("virtual.balloon", "note", "compute-01"),
    ]


def test_virtual_processors_that_are_not_pinned_or_share_a_processor() -> None:
    loose = only(judged([host(pins={"0": "0-7", "1": "0-7"})]))
    assert (loose.check, loose.about, loose.value) == ("virtual.pins", "vm1", "not pinned")
    other = {"name": "vm2", "pins": {"0": "2"}, "locked_kib": 1}
    machines = {UUID: {"name": "vm1", "pins": {"0": "2"}, "locked_kib": 1}, "u2": other}
    shared = only(judged([node(9, ("virtual>guests", machines))]))
    assert (shared.value, shared.grade) == ("CPUs 2", Gravity.FAULT)
    assert "vm1, vm2" in shared.reason


DEVICES = {"0000:17:02.1": 1}


@pytest.mark.parametrize(
    ("pins", "devices", "found"),
    [
        ({"0": "2", "1": "3"}, DEVICES, ["0000:17:02.1 on NUMA node 1"]),
        ({"0": "2", "1": "4"}, DEVICES, []),
        ({"0": "4"}, DEVICES, []),
        ({"0": "2"}, {"0000:17:02.1": -1}, []),
        ({}, DEVICES, []),
    ],
)
def test_a_device_far_from_all_processors_of_its_machine(
    pins: dict[str, str], devices: dict[str, int], found: list[str]
) -> None:
    machine = {"name": "vm1", "pins": pins, "devices": devices, "locked_kib": 1}
    analysis = judged([node(9, ("virtual>guests", {UUID: machine}))])
    far = [f for f in analysis.findings if f.check == "virtual.distance"]
    assert [f.value for f in far] == found
    assert all(f.about == "vm1" and "node1/cpulist" in f.remedy for f in far)


ROCE = [
    ("fabric>mlx5_0>ports>1>link_layer", "Ethernet"),
    ("fabric>mlx5_0>ports>1>netdev", "ens1"),
]


@pytest.mark.parametrize(
    ("text", "net", "found"),
    [
        ("pfc: [3]", {"pfc": "3"}, []),
        ("pfc: [3]", {"pfc": "3 4"}, [("fabric.pfc", "3 4")]),
        ("pfc: 3", {"pfc": "none"}, [("fabric.pfc", "none")]),
        ("pfc: [3]", {}, []),
        ("ecn: [3]", {"ecn": {"np": {"3": "1"}, "rp": {"3": "1"}}}, []),
        ("ecn: [3]", {"ecn": {"np": {"3": "1"}, "rp": {"3": "0"}}}, [("fabric.ecn", "off")]),
        ("ecn: [3]", {}, []),
        ("mtu: 1500", {"pfc": "none", "ecn": {"np": {"3": "0"}}}, []),
    ],
)
def test_flow_control_and_congestion_control_of_roce(
    text: str, net: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    profile = f"name: site\nchecks: ['*']\nexpect:\n  {text}\n"
    facts = [*ROCE, ("net>ens1", {"mtu": 9000, "kind": 1, **net})]
    seen = judged([node(1, *facts)], profile).findings
    ours = [f for f in seen if f.check in ("fabric.pfc", "fabric.ecn")]
    assert [
        (f.check, f.value[: len(value)]) for f, (_, value) in zip(ours, found, strict=True)
    ] == found
    assert all(f.about == "ens1" and f.source == "site.yaml:4" for f in ours)


def test_names_of_a_hostile_node_are_quoted_in_remedies() -> None:
    evil = "x; rm -rf ~"
    full = {"options": "rw", "bytes": 100, "free": 0, "seconds": 9.0}
    down = dict(PORT, state="DOWN")
    active = dict(PORT, link_layer="Ethernet", netdev=evil)
    device = {"software": False, "node_guid": "1", "ports": {evil: down, "2": active}}
    slot = {"vfs_possible": 1, "vfs": 0, "current_link_width": "1", "max_link_width": "2"}
    odd = node(
        1,
        ("storage", {evil: full, f"{evil}2": {"error": "gone"}}),
        ("fabric", {evil: device}),
        ("net", {evil: {"mtu": 1}}),
        ("pci", {evil: slot}),
    )
    profile = "name: s\nbase: health_extended\nexpect: {mtu: 9000, vfs: 8}\n"
    remedies = [f.remedy for f in judged([odd], profile).findings]
    assert sum(f"'{evil}" in remedy for remedy in remedies) >= 7
    assert all(evil not in re.sub("'[^']*'", "", remedy) for remedy in remedies)
