# SPDX-License-Identifier: Apache-2.0
"""Changes on a simulated vCenter, killed and refused at each of their calls: no machine is lost."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.host.vcenter.session import fetch
from tests.system.fuse import Fuse, Refusal, ended
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    machines_of,
    networks_of,
    plan_of,
    raised,
    simulator,
)
from tests.walks import walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

BODY = f"""\
machine:
  template: {TEMPLATE}
  memory: 64 MiB
  memory_reservation: full
  adapters:
    - {{kind: sriov, port_group: DC0_DVPG0, pf: '0000:3b:00.0'}}
  guest: {{address: 10.0.0.11-10.0.0.12/24, domain: x.org}}
parallel: 1
shutdown: 60
rules: [{{name: spread, kind: apart, nodes: [n0, n1]}}]
hosts:
  - {{name: h0, esxi: DC0_C0_H0, nodes: [{{name: n0}}]}}
  - {{name: h1, esxi: DC0_C0_H1, nodes: [{{name: n1}}]}}
"""

N1 = "{name: n1}"
CARDS = "{kind: vmxnet3, port_group: VM Network}"
PF = "{kind: sriov, port_group: DC0_DVPG0, pf: '0000:3b:00.0'}"

CHANGES = {
    "memory": ("memory: 64 MiB", "memory: 128 MiB", 22, 8),
    "adapters": (N1, f"{{name: n1, adapters: [{CARDS}, {PF}]}}", 17, 6),
    "settings": (N1, "{name: n1, numa: [0], vcpus: 2, p2p: true, latency: normal}", 11, 4),
    "guest": (N1, "{name: n1, guest: {domain: y.org}}", 17, 6),
    "shares": (N1, "{name: n1, cpu_shares: high}", 3, 1),
    "name": (N1, "{name: n1, vm: another, slots: 3}", 6, 2),
    "place": ("esxi: DC0_C0_H1", "esxi: DC0_C0_H2", 14, 5),
    "power": (N1, "{name: n1, power: off}", 2, 1),
}
"""Text of the spec before and after each change, and how many moments to kill and to refuse at."""

POINTS = [
    (change, way, moment)
    for change, (_, _, *counts) in CHANGES.items()
    for way, count in zip(("kill", "refusal"), counts, strict=True)
    for moment in range(count)
]


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture(scope="module")
def own(vcenter: Simulator) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSWORD, "pass")
        session = vcenter.session()
        yield session
        session.close()


def copied(own: Session, machine: Any, name: str) -> Any:
    """Copy a machine as a user does: the mark goes along."""
    place = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False, template=False)
    return own.wait("meddling", lambda: machine.CloneVM_Task(machine.parent, name, place))


def kept(own: Session) -> tuple[object, object, object]:
    """Return all machines of the vCenter with both identities, the cluster's own, and its networks."""
    content, kind = own.content, vim.VirtualMachine
    names = ["config.instanceUuid", "config.uuid"]
    every = {
        ref: (values["config.instanceUuid"], values["config.uuid"])
        for ref, values in fetch(content, content.rootFolder, kind, names).items()
    }
    return every, {*machines_of(content, "sweep").values()}, networks_of(content)


@pytest.fixture(scope="module")
def swept(
    vcenter: Simulator, own: Session, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path, object]]:
    """A cluster that all changes are made to, and a copy of a machine in its folder."""
    text, directory = vcenter.head("sweep") + BODY, tmp_path_factory.mktemp("sweep")
    raised(text, directory)
    copied(own, machines_of(own.content, "sweep")["n0"], "copy")
    yield text, directory, kept(own)
    own.wait("meddling", machines_of(own.content, "sweep")["copy"].Destroy_Task)
    gone(text, directory)


@pytest.mark.parametrize(("change", "way", "moment"), walk(POINTS, keep=10))
def test_a_change_that_is_killed_or_refused_is_completed_or_changed_back(
    own: Session,
    swept: tuple[str, Path, object],
    change: str,
    way: str,
    moment: int,
) -> None:
    text, directory, before = swept
    changed = text.replace(*CHANGES[change][:2])
    assert changed != text
    burn = (Fuse if way == "kill" else Refusal)(moment).at_changes
    status = ended(partial(raised, changed, directory), burn)
    assert status == (-signal.SIGKILL if way == "kill" else 1)
    # Every second time the user gives the change up.
    after = (changed, text)[moment % 2]
    raised(after, directory)
    assert plan_of(after, directory).empty
    assert kept(own) == before
    raised(text, directory)
    assert plan_of(text, directory).empty
    assert kept(own) == before
    there = machines_of(own.content, "sweep")
    assert {name: vm.runtime.powerState for name, vm in there.items()} == {
        "copy": "poweredOff",
        "n0": "poweredOn",
        "n1": "poweredOn",
    }
    assert [there[n].guest.ipAddress for n in ("n0", "n1")] == ["10.0.0.11", "10.0.0.12"]


@pytest.mark.full
@pytest.mark.parametrize("change", CHANGES)
def test_the_walk_has_every_moment(swept: tuple[str, Path, object], change: str) -> None:
    text, directory, _ = swept
    old, new, kills, refusals = CHANGES[change]
    for burn in (Fuse(kills).at_changes, Refusal(refusals).at_changes):
        assert ended(partial(raised, text.replace(old, new), directory), burn) == 0
        raised(text, directory)
