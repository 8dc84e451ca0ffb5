# SPDX-License-Identifier: Apache-2.0
"""`nearmetal check` on a cluster of virtual machines, each with a kernel of its own to injure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.core.process import LocalRunner
from tests.python.check_nodes import DIFF
from tests.system import hypervisors
from tests.system.virtual_clusters import Place, places

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(1800),
]

hypervisors.need()

NAMES = ("n1", "n2", "n3")
NODE = "n2"
"""The machine that gets the faults."""

EACH = ", ".join(f"{{name: {name}, memory: 768 MiB, cpus: none}}" for name in NAMES)
PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

# The findings, what makes them, and what undoes them: if it is empty, the remedies as they are.
FAULTS: dict[str, tuple[set[str], str, str]] = {
    "a clock that is a minute behind": (
        {"base.clock"},
        "date -s @$(($(date +%s) - 60))",
        "date -s @$(($(date +%s) + 60))",
    ),
    "transparent huge pages": (
        {"uniformity.settings memory.transparent.enabled"},
        f"grep -q '\\[madvise\\]' {PAGES} || echo madvise >{PAGES}",
        "",
    ),
    "a clock source": (
        {"virtual.clock", "uniformity.processor virtual.clock"},
        f"echo acpi_pm >{CLOCK}",
        "",
    ),
    "a setting": (
        {"uniformity.settings sysctl[vm.swappiness]"},
        "echo 7 >/proc/sys/vm/swappiness",
        "",
    ),
    "a program that is missing": (
        {"uniformity.software software.programs.ibv_devinfo"},
        "mv /usr/bin/ibv_devinfo /usr/bin/away",
        "mv /usr/bin/away /usr/bin/ibv_devinfo",
    ),
    "a name that is not resolved": (
        {"base.resolution"},
        "cp /etc/hosts /run/kept && sed 's/ n2$/ gone/' /run/kept >/etc/hosts",
        "cat /run/kept >/etc/hosts",
    ),
    "a smaller MTU": (
        {"uniformity.interfaces net.eth0.mtu"},
        "ip link set eth0 mtu 1280",
        "",
    ),
    "a full file system": (
        {"storage.full /tmp"},
        "dd if=/dev/zero of=/tmp/full bs=1M 2>/dev/null || true",
        "rm /tmp/full",
    ),
    "a mount that others lack": (
        {"uniformity.mounts storage[/srv].type", "uniformity.mounts storage[/srv].options"},
        "mkdir -p /srv && mount -t tmpfs none /srv",
        "umount /srv",
    ),
    "a module of the kernel": (
        {"uniformity.software software.modules.ib_uverbs"},
        "modprobe ib_uverbs",
        "modprobe -r ib_uverbs",
    ),
}


@dataclass
class Ward:
    """A cluster of machines that is up, and commands as root of the one that gets the faults."""

    place: Place
    spec: str
    nodes: Nodes

    def findings(self) -> list[dict[str, Any]]:
        """Return what a check finds, without what all machines have from their image."""
        with self.place.start("check", self.spec, "--root", "--json") as process:
            out, err = process.communicate(timeout=900)
        assert process.returncode in (0, 4), err
        found: list[dict[str, Any]] = json.loads(out)["findings"]
        return [finding for finding in found if len(finding["nodes"]) < len(NAMES)]

    def root(self, text: str) -> None:
        self.nodes.check(NODE, "change", ["sh", "-ec", f"PATH=$PATH:/usr/sbin:/sbin; {text}"])


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    with places(tmp_path_factory.mktemp("check")) as place:
        spec = place.write(place.spec(f"segment: {{part: 2 MiB}}, nodes: [{EACH}]"))
        code, words = place.run("up", spec)
        assert code == 0, words
        where = {NODE: ("10.84.0.12", None)}
        yield Ward(place, spec, Nodes(place.state / "clusters" / "f", where, LocalRunner()))
        code, words = place.run("down", "--yes", spec)
        assert code == 0, words


def test_healthy_machines_pass_the_extended_checks_as_root_and_as_user(ward: Ward) -> None:
    for options in ((), ("--root",)):
        code, words = ward.place.run("check", ward.spec, *options, "--profile", "health_extended")
        assert code == 0, words
    assert ward.findings() == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_machine_is_found_and_gone_after_the_remedy(ward: Ward, name: str) -> None:
    expected, inject, undo = FAULTS[name]
    ward.root(inject)
    try:
        found = ward.findings()
        undo = undo or "; ".join({f["remedy"] for f in found} - {DIFF})
    finally:
        ward.root(undo or "true")
    assert {f"{f['check']} {f['about']}".strip() for f in found} == expected
    assert {node for f in found for node in f["nodes"]} == {NODE}
    assert ward.findings() == []
