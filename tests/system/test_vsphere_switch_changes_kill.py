# SPDX-License-Identifier: Apache-2.0
"""Changes of switches on a simulated vCenter, killed and refused at each call: nothing is lost."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.host.vcenter.session import fetch
from tests.system.fuse import Fuse, Refusal, ended, settle
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
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

NEAR = "nics: [vmnic1], port_groups: [{name: lan, vlan: 7}, {name: old}]"
FAR = "nics: [vmnic2], mtu: 9000, port_groups: [{name: rdma}, {name: older}]"
BODY = f"""\
machine:
  template: {TEMPLATE}
  memory: 64 MiB
  adapters: [{{kind: vmxnet3, port_group: lan}}, {{kind: pvrdma, port_group: rdma}}]
switches:
  - {{name: near, kind: standard, {NEAR}}}
  - {{name: far, kind: distributed, {FAR}}}
  - {{name: spare, kind: standard, esxi: [one], port_groups: [{{name: none}}]}}
hosts:
  - {{name: h0, esxi: one, nodes: [{{name: n0}}]}}
  - {{name: h1, esxi: two, nodes: [{{name: n1}}]}}
"""

CHANGES: dict[str, tuple[dict[str, str], int, int]] = {
    "standard": (
        {NEAR: "nics: [vmnic4], mtu: 9000, port_groups: [{name: lan, vlan: 9}, {name: new}]"},
        16,
        8,
    ),
    "distributed": (
        {FAR: "nics: [vmnic3], port_groups: [{name: rdma, vlan: 4}, {name: newer}]"},
        12,
        6,
    ),
    "uplinks": ({"vmnic1": "vmnic2", "vmnic2": "vmnic1"}, 12, 6),
    "hosts": ({"esxi: [one]": "esxi: [two]"}, 8, 4),
}
"""New words for those of the spec, and how many moments to kill and to refuse at."""

POINTS = [
    (change, way, moment)
    for change, (_, *counts) in CHANGES.items()
    for way, count in zip(("kill", "refusal"), counts, strict=True)
    for moment in range(count)
]


def changed(text: str, words: dict[str, str]) -> str:
    """Replace all words at once, so that two may change places."""
    for i, old in enumerate(words):
        assert old in text
        text = text.replace(old, f"<{i}>")
    for i, new in enumerate(words.values()):
        text = text.replace(f"<{i}>", new)
    return text


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Simulator, Session]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSWORD, "pass")
        for vcenter in simulator(tmp_path_factory.mktemp("vcenter"), "one", "two"):
            session = vcenter.session()
            yield vcenter, session
            session.close()


def machines(session: Session) -> dict[Any, tuple[object, ...]]:
    """Return all machines of the vCenter, each with its identity, power and cards."""
    names = ["config.instanceUuid", "runtime.powerState", "config.hardware.device"]
    found = fetch(session.content, session.content.rootFolder, vim.VirtualMachine, names)
    card = vim.vm.device.VirtualEthernetCard
    return {
        ref: (
            *(values[name] for name in names[:2]),
            sorted(str(d.macAddress) for d in values[names[2]] if isinstance(d, card)),
        )
        for ref, values in found.items()
    }


def define_theirs(session: Session) -> None:
    """Give a host a switch of a user, and each of our switches a port group of a user."""
    center = session.content.rootFolder.childEntity[0]
    host = next(h for h in center.hostFolder.childEntity[0].host if h.name == "one")
    system = host.configManager.networkSystem
    bridge = vim.host.VirtualSwitch.BondBridge(nicDevice=["vmnic5"])
    system.AddVirtualSwitch(
        "theirs", vim.host.VirtualSwitch.Specification(numPorts=8, bridge=bridge)
    )
    for name, switch in (("office", "theirs"), ("guests", "near"), ("backup", "vSwitch0")):
        group = vim.host.PortGroup.Specification(
            name=name, vlanId=3, vswitchName=switch, policy=vim.host.NetworkPolicy()
        )
        system.AddPortGroup(group)
    far = next(s for s in center.networkFolder.childEntity if s.name == "far")
    group = vim.dvs.DistributedVirtualPortgroup.ConfigSpec(
        name="storage", type="earlyBinding", numPorts=1
    )
    session.wait("meddling", lambda: far.AddDVPortgroup_Task([group]))


Swept = tuple["Session", str, "Path", object, object]


@pytest.fixture(scope="module")
def swept(own: tuple[Simulator, Session], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A cluster that all changes are made to, and things of a user on the same switches."""
    vcenter, session = own
    text, directory = vcenter.head("sweep") + BODY, tmp_path_factory.mktemp("sweep")
    raised(text, directory)
    define_theirs(session)
    return session, text, directory, machines(session), networks_of(session.content)


@pytest.mark.parametrize(("change", "way", "moment"), walk(POINTS, keep=8))
def test_a_change_that_is_killed_or_refused_is_completed_or_changed_back(
    swept: Swept, change: str, way: str, moment: int
) -> None:
    session, text, directory, before, networks = swept
    wanted = changed(text, CHANGES[change][0])
    burn = (Fuse if way == "kill" else Refusal)(moment).at_calls
    status = ended(partial(raised, wanted, directory), burn)
    assert status == (-signal.SIGKILL if way == "kill" else 1)
    settle(session.content)
    # Every second time the user gives the change up.
    after = (wanted, text)[moment % 2]
    raised(after, directory)
    assert plan_of(after, directory).empty
    assert machines(session) == before
    now: Any = networks_of(session.content)
    assert ("guests", 3) in now["one"]["near"][2]
    assert "storage" in now["distributed far"][2]
    assert now["one"]["theirs"] == (1500, ["vmnic5"], [("office", 3)])
    raised(text, directory)
    assert plan_of(text, directory).empty
    assert machines(session) == before
    assert networks_of(session.content) == networks


@pytest.mark.full
@pytest.mark.parametrize("change", CHANGES)
def test_the_walk_has_every_moment(swept: Swept, change: str) -> None:
    _, text, directory, *_ = swept
    words, kills, refusals = CHANGES[change]
    for burn in (Fuse(kills).at_calls, Refusal(refusals).at_calls):
        assert ended(partial(raised, changed(text, words), directory), burn) == 0
        raised(text, directory)
