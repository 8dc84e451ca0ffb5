# SPDX-License-Identifier: Apache-2.0
"""Each fault of the table is found and named, nobody else is blamed, and its remedy works.

The remedy is the command of the finding, where it can be run.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.check.collect import collect, here
from nearmetal.check.diff import compare
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.progress import Silent
from tests.python.check_nodes import judged
from tests.system.check_faults import (
    AGENTS,
    LOGINS,
    NODES,
    SHELLS,
    TREES,
    Files,
    ShellFault,
    TreeFault,
)
from tests.system.check_remedies import make_archive, remedies, repair
from tests.system.check_tree import KINDS, change, make_tree
from tests.system.check_ward import NODE, Ward, ward_of
from tests.system.processor_quota import group_with_quota

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nearmetal.check.model import CheckFinding
    from nearmetal.check.snapshot import Snapshot

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="faults are injected as root"),
]

NAMES = ("m1", "m2", "m3", "m4")
ODD = "m3"
"""The agent that gets the faults."""

SITE = """\
name: site
base: health_extended
expect:
  services: [sshd, munged]
  mounts: [/home]
  huge_pages: 512
  vfs: 16
  link_gbit: 100
  mtu: 4092
  memlock: 64 KiB
  idle_latency_us: 20
  packages: {libfabric1: 1.17.0-3}
"""
"""What the site of the trees expects."""

OF_THIS_MACHINE = ("base.hostname", "fabric.twice", "nearmetal.environment")
"""Findings of agents that are one machine."""

CLOCK = """\
import sys, time
now = time.time
time.time = lambda: now() + float(sys.argv.pop(1))
exec(compile(sys.stdin.read(), "agent", "exec"))
"""


def test_thirty_remedies_are_run_as_they_are_printed() -> None:
    tables = [fault.why for table in (NODES, TREES) for fault in table.values()]
    assert len(SHELLS) + len(LOGINS) + tables.count("") >= 30


# Real nodes of a cluster

OF_NODES = """\
name: nodes
base: health_extended
expect: {mounts: [/srv], shm_bytes: 8 MiB}
"""


@pytest.fixture(scope="module")
def ward() -> Iterator[Ward]:
    with ward_of("faults") as found:
        found.profile = found.place.write("profile.yaml", OF_NODES)
        for node in found.pids:
            table = "echo 'none /srv tmpfs size=1m 0 0' >/tmp/fstab; mount -B /tmp/fstab /etc/fstab"
            found.enter("-m -p", f"{table}; mount /srv", node)
        assert found.findings() == []
        yield found


@pytest.mark.parametrize("name", NODES)
def test_a_fault_of_a_node(ward: Ward, name: str) -> None:
    fault = NODES[name]
    net = ward.interface()
    if not Path(fault.device).exists():
        pytest.skip(f"this machine has no {fault.device}")
    ward.enter(fault.namespaces, fault.inject.format(net=net), device=fault.device)
    undo = fault.undo
    try:
        found = ward.findings()
        if not fault.why:
            undo = "\n".join(remedies(f["remedy"] for f in found))
    finally:
        ward.enter(fault.namespaces, undo or "true")
    keys = {f"{f['check']} {f['about']}".strip() for f in found}
    assert keys == {each.format(net=net) for each in fault.found}
    assert {node for f in found for node in f["nodes"]} == {NODE, *fault.others}
    assert all(f["remedy"] and f["source"] and f["reason"] for f in found)
    assert ward.findings() == []


# Agents on this machine


def targets(
    odd: Command | None = None, options: Mapping[str, str] | None = None
) -> dict[str, Command]:
    """Return four agents on this machine; `odd` is the third one."""
    found = {}
    for name in NAMES:
        (command,) = here(name).values()
        command = odd if odd is not None and name == ODD else command
        option = (options or {}).get(name)
        found[name] = replace(command, argv=(*command.argv, option)) if option else command
    return found


def snapshots(commands: Mapping[str, Command]) -> dict[str, Snapshot]:
    gathered = collect(commands, LocalRunner(), progress=Silent())
    assert not gathered.silent
    return {each.name: each for each in gathered.snapshots()}


def odd_ones(commands: Mapping[str, Command]) -> list[CheckFinding]:
    """Return the findings that not all agents have."""
    found = judged(snapshots(commands).values()).findings
    return [
        f
        for f in found
        if len(f.nodes) < len(NAMES) and (f.check not in OF_THIS_MACHINE or f.folded == ODD)
    ]


@pytest.mark.parametrize("name", AGENTS)
def test_a_fault_of_an_agent(name: str) -> None:
    fault = AGENTS[name]
    (command,) = here(ODD).values()
    if fault.ahead_s:
        odd = Command(("python3", "-I", "-S", "-B", "-c", CLOCK, str(fault.ahead_s)))
    else:
        odd = replace(command, argv=(*fault.words, *command.argv))
    found = odd_ones(targets(odd))
    assert {f.key for f in found} == fault.found
    assert {f.folded for f in found} == {ODD}
    assert odd_ones(targets()) == []


def cured(fault: ShellFault, tmp: str, odd_with: Callable[[str], list[CheckFinding]]) -> None:
    """Assert that a fault is found at its node, and that its remedies in the same shell end it."""
    inject = fault.inject.format(tmp=tmp)
    found = odd_with(inject)
    assert {f.key for f in found} == {key.format(tmp=tmp) for key in fault.found}
    assert {f.folded for f in found} == {ODD}
    commands = "\n".join(remedies(f.remedy for f in found))
    assert odd_with(f"{inject}\n{{ {commands}\n}} >/dev/null") == []


@pytest.mark.parametrize("name", SHELLS)
def test_a_fault_of_the_shell_of_an_agent(name: str) -> None:
    (command,) = here(ODD).values()

    def odd_with(text: str) -> list[CheckFinding]:
        return odd_ones(targets(after(text, command)))

    with tempfile.TemporaryDirectory(prefix="nm-") as tmp:
        cured(SHELLS[name], tmp, odd_with)


LOGIN = """\
mount -t tmpfs none /etc/security/limits.d
printf '* - nofile 4096\\n* - memlock unlimited\\n' >/etc/security/limits.d/all.conf
mount --bind {tree} /mnt
{text}
exec su -s /bin/sh nobody -c {agent}
"""


@pytest.mark.parametrize("name", LOGINS)
def test_a_fault_of_the_limits_of_logins(
    healthy: dict[str, tuple[Path, dict[str, Snapshot]]], name: str
) -> None:
    place, _ = healthy["machine"]
    profile = SITE.replace("64 KiB", "1 MiB\n  open_files: 4096")

    def odd_with(text: str) -> list[CheckFinding]:
        commands = {}
        for each, command in targets(options=dict.fromkeys(NAMES, "--root=/mnt")).items():
            agent = shlex.quote("exec " + shlex.join(command.argv))
            own = LOGIN.format(tree=place / each, text=text if each == ODD else "", agent=agent)
            namespace = ("unshare", "-m", "--propagation", "private", "sh", "-ec", own)
            commands[each] = Command(namespace)
        found = judged(snapshots(commands).values(), profile).findings
        return [f for f in found if len(f.nodes) < len(NAMES)]

    cured(LOGINS[name], "", odd_with)


def after(text: str, command: Command) -> Command:
    """Return a command that a shell starts after a text."""
    return replace(command, argv=("sh", "-c", f'{text}\nexec "$@"', "sh", *command.argv))


def test_a_quota_of_a_control_group() -> None:
    (command,) = here(ODD).values()
    with group_with_quota(percent=50) as group:
        odd = after(f"echo $$ >{group}/cgroup.procs", command)
        found = odd_ones(targets(odd))
        assert [(f.key, f.folded) for f in found] == [("processor.quota", ODD)]
        (remedy,) = remedies(f.remedy for f in found)
        assert str(group) in remedy
        subprocess.run(["sh", "-ec", remedy], check=True, timeout=30)
        assert odd_ones(targets(odd)) == []


# Files of a node


@pytest.fixture(scope="module")
def healthy(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Path, dict[str, Snapshot]]]:
    """The trees of four healthy nodes of each kind, and their snapshots."""
    found = {}
    for kind in KINDS:
        place = tmp_path_factory.mktemp(kind)
        for i in range(1, 5):
            make_tree(place / f"m{i}", kind, i)
        options = {f"m{i}": f"--root={place}/m{i}" for i in range(1, 5)}
        found[kind] = place, snapshots(targets(options=options))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_healthy_trees_have_no_finding(
    healthy: dict[str, tuple[Path, dict[str, Snapshot]]], kind: str
) -> None:
    assert judged(healthy[kind][1].values(), SITE).findings == []


@contextlib.contextmanager
def changed(tree: Path, files: Files) -> Iterator[None]:
    """Change files of a tree for a while."""
    before: dict[str, bytes | None] = {
        name: (tree / name).read_bytes() if (tree / name).exists() else None for name in files
    }
    change(tree, files)
    try:
        yield
    finally:
        change(tree, {name: text for name, text in before.items() if text is not None})
        for name, text in before.items():
            if text is None:
                (tree / name).unlink()
                for parent in (tree / name).parents:
                    if any(parent.iterdir()):
                        break
                    parent.rmdir()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with the packages of the trees."""
    return make_archive(tmp_path_factory.mktemp("packages"))


@pytest.mark.parametrize("name", TREES)
def test_a_fault_of_the_files_of_a_node(
    healthy: dict[str, tuple[Path, dict[str, Snapshot]]], archive: Path, name: str
) -> None:
    fault: TreeFault = TREES[name]
    place, others = healthy[fault.kind]
    tree = place / ODD

    def findings() -> list[CheckFinding]:
        command = targets(options={ODD: f"--root={tree}"})[ODD]
        now = others | snapshots({ODD: command})
        return judged(now.values(), SITE).findings

    with changed(tree, fault.kernel), changed(tree, fault.files):
        found = findings()
        assert {f.key for f in found} == fault.found
        assert {node for f in found for node in f.nodes} == {ODD, *fault.others}
        assert all(f.remedy and f.source and f.reason for f in found)
        if not fault.why:
            repair(tree, remedies(f.remedy for f in found), archive, fault.network)
            change(tree, fault.kernel)
            assert findings() == []
    assert findings() == []


def test_errors_of_memory_that_grow_are_told(
    healthy: dict[str, tuple[Path, dict[str, Snapshot]]],
) -> None:
    place, before = healthy["machine"]
    count = "sys/devices/system/edac/mc/mc0/ce_count"
    with changed(place / ODD, {count: "3\n"}):
        command = targets(options={ODD: f"--root={place / ODD}"})[ODD]
        after = before | snapshots({ODD: command})
    changes = [c for c in compare(before.values(), after.values()) if c.grown]
    assert [(c.place, c.before, c.after, c.nodes) for c in changes] == [
        ("memory.edac.mc0.ce", "0", "3", (ODD,))
    ]
