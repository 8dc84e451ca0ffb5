# SPDX-License-Identifier: Apache-2.0
"""Faults that are injected into real nodes: each is found, and only its node is named.

After the remedy the finding is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.check.collect import collect, here
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.progress import Silent
from tests.python.check_nodes import judged
from tests.system.local import Site, site
from tests.system.processor_quota import group_with_quota

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="faults are injected as root"),
]

SPEC = """\
version: 1
name: check
backend: local
network: {mtu: 1400}
hosts:
  - name: h1
    nodes:
      - {name: n1, shm: 16 MiB}
      - {name: n2, shm: 16 MiB}
  - name: h2
    nodes:
      - {name: n3, shm: 16 MiB}
      - {name: n4, shm: 16 MiB}
"""

NODE = "n3"
"""The node that gets the faults."""


@dataclass
class Ward:
    """A cluster of four nodes, and the node that gets the faults."""

    place: Site
    spec: str
    pid: int

    def enter(self, namespaces: str, *argv: str) -> None:
        """Run a program of this machine as root in namespaces of the node."""
        subprocess.run(
            ["nsenter", "-t", str(self.pid), *namespaces.split(), "--", *argv],
            check=True,
            capture_output=True,
            timeout=30,
        )

    def shell(self, text: str) -> None:
        """Run a script in the node."""
        self.place.ok("exec", self.spec, NODE, "--", "sh", "-c", text)

    def findings(self) -> list[dict[str, Any]]:
        """Return what a check finds, without what all nodes have from this machine."""
        done = self.place.run("check", self.spec, "--json")
        assert done.returncode in (0, 4), done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [finding for finding in found if len(finding["nodes"]) < 4]


@pytest.fixture(scope="module")
def ward() -> Iterator[Ward]:
    with site() as place:
        spec = place.write("spec.yaml", SPEC)
        place.ok("up", spec)
        (pid,) = [n["pid"] for n in place.json("status", spec)["nodes"] if n["name"] == NODE]
        yield Ward(place, spec, pid)
        place.look(spec)
        place.ok("down", "--yes", spec)
        place.assert_no_trace()


def test_a_healthy_cluster_passes_the_extended_checks(ward: Ward) -> None:
    assert ward.place.run("check", ward.spec).returncode == 0
    assert ward.findings() == []


def interface(ward: Ward) -> str:
    out = ward.place.ok("exec", ward.spec, NODE, "--", "ls", "/sys/class/net")
    (name,) = [word for word in out.split() if word not in ("lo", "sit0", "tunl0")]
    return name


NET = "-n"
MOUNT = "-m"
FAULTS = {
    "mtu": (
        "uniformity.interfaces",
        NET,
        "ip link set {net} mtu 1200",
        "ip link set {net} mtu 1400",
    ),
    "link": ("uniformity.interfaces", NET, "ip link set {net} down", "ip link set {net} up"),
    "setting": (
        "uniformity.settings",
        NET,
        "sysctl -w net.core.somaxconn=17",
        "sysctl -w net.core.somaxconn=4096",
    ),
    "hostname": ("base.hostname", "-u", "hostname n1", "hostname n3"),
    "mount": ("uniformity.mounts", MOUNT, "mount -t tmpfs none /mnt", "umount /mnt"),
    "shm": (
        "nearmetal.shared",
        MOUNT,
        "mount -o remount,ro,nosuid,nodev,relatime /dev/shm",
        "mount -o remount,rw,nosuid,nodev,relatime /dev/shm",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_found_and_gone_after_the_remedy(ward: Ward, fault: str) -> None:
    check, namespaces, inject, remedy = FAULTS[fault]
    net = interface(ward)
    ward.enter(namespaces, *inject.format(net=net).split())
    try:
        found = ward.findings()
    finally:
        ward.enter(namespaces, *remedy.format(net=net).split())
    assert check in {finding["check"] for finding in found}
    blamed = {name for finding in found for name in finding["nodes"]}
    assert blamed == ({NODE, "n1"} if fault == "hostname" else {NODE})
    assert all(finding["remedy"] and finding["source"] for finding in found)
    assert ward.findings() == []


def test_a_full_file_system_is_found_and_gone_after_the_remedy(ward: Ward) -> None:
    ward.shell("head -c 17000000 /dev/zero >/dev/shm/full 2>/dev/null; true")
    try:
        found = ward.findings()
    finally:
        ward.shell("rm /dev/shm/full")
    assert [(f["check"], f["about"], f["nodes"]) for f in found] == [
        ("storage.full", "/dev/shm", [NODE])
    ]
    assert ward.findings() == []


def targets(*odd: str, **more: str) -> dict[str, Command]:
    """Return four agents on this machine; the third has words in front, or options behind."""
    found = {}
    for i in range(1, 5):
        name = f"m{i}"
        (command,) = here(name).values()
        if i == 3:
            command = replace(command, argv=(*odd, *command.argv))
        option = more.get(name)
        found[name] = replace(command, argv=(*command.argv, option)) if option else command
    return found


def found_by(commands: dict[str, Command]) -> list[tuple[str, str, str]]:
    gathered = collect(commands, LocalRunner(), progress=Silent())
    assert not gathered.silent
    analysis = judged(gathered.snapshots())
    own = ("base.hostname", "fabric.twice", "nearmetal.environment")
    return [
        (f.check, f.about, f.folded)
        for f in analysis.findings
        if len(f.nodes) < 4 and f.check not in own
    ]


def test_a_wrong_limit_is_found() -> None:
    assert found_by(targets("prlimit", "--nofile=256:512", "--")) == [
        ("uniformity.limits", "limits.nofile.hard", "m3"),
        ("uniformity.limits", "limits.nofile.soft", "m3"),
    ]
    assert found_by(targets()) == []


def test_a_quota_of_a_control_group_is_found() -> None:
    with group_with_quota(percent=50) as group:
        join = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        assert ("processor.quota", "", "m3") in found_by(targets(*join))
    assert found_by(targets()) == []


def fake_adapter(root: Path, guid: str) -> str:
    """Make a root whose only content is one RDMA device."""
    device = root / "sys/devices/pci0000:00/0000:17:00.0"
    adapter = device / "infiniband/mlx5_0"
    port = adapter / "ports/1"
    port.mkdir(parents=True)
    for name, text in (
        ("node_guid", guid),
        ("fw_ver", "20.31.1014"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/link_layer", "InfiniBand"),
        ("ports/1/sm_lid", "0x1"),
        ("ports/1/pkeys/0", "0xffff"),
    ):
        (adapter / name).parent.mkdir(exist_ok=True)
        (adapter / name).write_text(text + "\n")
    (adapter / "device").symlink_to("../..")
    (root / "sys/class/infiniband").mkdir(parents=True)
    (root / "sys/class/infiniband/mlx5_0").symlink_to(adapter)
    (root / "sys/module/ib_uverbs").mkdir(parents=True)
    return f"--root={root}"


def test_two_equal_guids_of_a_faked_sysfs_are_found(tmp_path: Path) -> None:
    guids = {f"m{i}": f"0002:c903:0000:000{i}" for i in range(1, 5)} | {"m4": "0002:c903:0000:0001"}
    roots = {name: fake_adapter(tmp_path / name, guid) for name, guid in guids.items()}
    gathered = collect(targets(**roots), LocalRunner(), progress=Silent())
    profile = "name: fabric\nchecks: [fabric.*]\n"
    found = judged(gathered.snapshots(), profile).findings
    assert [(f.check, f.value, f.folded) for f in found] == [
        ("fabric.twice", "0002:c903:0000:0001", "m[1,4]")
    ]
    assert "m1 mlx5_0, m4 mlx5_0" in found[0].reason


def test_a_node_that_ended_is_a_finding() -> None:
    with site() as place:
        spec = place.write("spec.yaml", SPEC.replace("name: check", "name: ended"))
        place.ok("up", spec)
        place.look(spec)
        pids = {n["name"]: n["pid"] for n in place.json("status", spec)["nodes"]}
        os.kill(pids["n2"], 9)
        time.sleep(0.5)
        done = place.run("check", spec, "--json", "--timeout", "20")
        assert done.returncode == 4, done.stderr
        found = [f for f in json.loads(done.stdout)["findings"] if len(f["nodes"]) < 3]
        assert [(f["check"], f["nodes"]) for f in found] == [("base.answer", ["n2"])]
        place.ok("down", "--yes", spec)
        assert place.run("check", spec).returncode == 1
        place.assert_no_trace()


def test_the_agent_leaves_no_file_in_a_node(ward: Ward) -> None:
    own = "find /tmp /run /dev/shm -type f 2>/dev/null | sort"
    before = ward.place.ok("exec", ward.spec, NODE, "--", "sh", "-c", own)
    assert ward.place.run("check", ward.spec).returncode == 0
    assert ward.place.ok("exec", ward.spec, NODE, "--", "sh", "-c", own) == before
