# SPDX-License-Identifier: Apache-2.0
"""Each fault of the table is found and named, nobody else is blamed, and its remedy works.

The remedy is the command of the finding, where it can be run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.check.collect import collect, here
from nearmetal.check.diff import compare
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.progress import Silent
from tests.python.check_nodes import DIFF, judged
from tests.system.check_faults import AGENTS, NODES, TREES, Files, TreeFault
from tests.system.check_tree import KINDS, change, make_tree
from tests.system.check_ward import NODE, Ward, ward_of
from tests.system.processor_quota import group_with_quota

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nearmetal.check.model import CheckFinding
    from nearmetal.check.snapshot import Snapshot

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="faults are injected as root"),
]

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


def test_the_table_is_long_enough() -> None:
    assert len(NODES) + len(AGENTS) + len(TREES) >= 30


SETS = re.compile(r"(echo [\w'-]+ >/|for \w in /sys/|sysctl -w |ip link set dev )")
"""Remedies that reach only what a test has put in the place of this machine's."""


def remedies(found: Iterable[str]) -> list[str]:
    """Return the commands that a test may run as root: none restarts or installs anything."""
    commands = sorted(set(found) - {DIFF})
    assert commands
    assert all(map(SETS.match, commands)), commands
    return commands


# Real nodes of a cluster


@pytest.fixture(scope="module")
def ward() -> Iterator[Ward]:
    with ward_of("faults") as found:
        assert found.findings() == []
        yield found


@pytest.mark.parametrize("name", NODES)
def test_a_fault_of_a_node(ward: Ward, name: str) -> None:
    fault = NODES[name]
    net = ward.interface()

    def enter(text: str) -> None:
        ward.enter(fault.namespaces, *shlex.split(text.format(net=net)))

    undo = fault.undo
    enter(fault.inject)
    try:
        found = ward.findings()
        if not undo:
            undo = shlex.join(["sh", "-ec", "; ".join(remedies(f["remedy"] for f in found))])
    finally:
        enter(undo or "true")
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
    for i in range(1, 5):
        name = f"m{i}"
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
    return [f for f in found if len(f.nodes) < 4 and f.check not in OF_THIS_MACHINE]


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


def test_a_quota_of_a_control_group() -> None:
    (command,) = here(ODD).values()
    with group_with_quota(percent=50) as group:
        join = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        found = odd_ones(targets(replace(command, argv=(*join, *command.argv))))
    assert [(f.key, f.folded) for f in found] == [("processor.quota", ODD)]
    assert odd_ones(targets()) == []


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


def repair(tree: Path, command: str) -> None:
    """Run a command with the files of a tree in the place of the kernel's."""
    mounts = "".join(f"mount --bind {tree}/{place} /{place}; " for place in ("sys", "proc/sys"))
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-ec", mounts + command]
    subprocess.run(argv, check=True, capture_output=True, timeout=30)


@pytest.mark.parametrize("name", TREES)
def test_a_fault_of_the_files_of_a_node(
    healthy: dict[str, tuple[Path, dict[str, Snapshot]]], name: str
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
            for command in remedies(f.remedy for f in found):
                repair(tree, command)
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
