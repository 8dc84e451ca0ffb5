# SPDX-License-Identifier: Apache-2.0
"""Switches where something is out of reach or unclear: hosts, answers, another vCenter, names taken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cluster.apply import down, plan_down
from nearmetal.cluster.backends.vsphere.inventory import VsphereInventory
from nearmetal.cluster.backends.vsphere.networks import read_hosts
from nearmetal.cluster.backends.vsphere.record import Center, SwitchRecord
from nearmetal.cluster.backends.vsphere.standard import StandardSwitches
from nearmetal.core.errors import BackendError
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    networks_of,
    opened,
    plan_of,
    raised,
    simulator,
    spec_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

BODY = f"""\
machine: {{template: {TEMPLATE}, memory: 64 MiB}}
hosts:
  - {{name: h0, esxi: one, nodes: [{{name: n0}}]}}
  - {{name: h1, esxi: two, nodes: [{{name: n1}}]}}
"""
NEAR = "{name: near, kind: standard, nics: [vmnic1], port_groups: [{name: lan, vlan: 7}]}"
FAR = "{name: far, kind: distributed, nics: [vmnic2, vmnic3], port_groups: [{name: rdma}]}"


@pytest.fixture
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"), "one", "two")


@pytest.fixture
def other_vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("other"), "one", "two")


@pytest.fixture(autouse=True)
def own(vcenter: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Return a session of our own; the vCenter must be left as it was."""
    monkeypatch.setenv(PASSWORD, "pass")
    session = vcenter.session()
    before = networks_of(session.content)
    yield session
    assert networks_of(session.content) == before
    session.close()


def text_of(vcenter: Simulator, *switches: str) -> str:
    return f"{vcenter.head('lost')}switches: [{', '.join(switches)}]\n{BODY}"


def gone_for_good(text: str, directory: Path) -> None:
    gone(text, directory)
    assert not (directory / "state").exists()


def host_named(own: Session, name: str) -> Any:
    hosts = own.content.rootFolder.childEntity[0].hostFolder.childEntity[0].host
    return next(host for host in hosts if host.name == name)


def disconnect(own: Session, name: str) -> None:
    own.wait("meddling", host_named(own, name).DisconnectHost_Task)


def connect(own: Session, name: str) -> None:
    own.wait("meddling", host_named(own, name).ReconnectHost_Task)


def record_of(own: Session, directory: Path) -> SwitchRecord:
    center = Center("127.0.0.1", own.content.about.instanceUuid)
    return SwitchRecord(directory / "state" / "clusters" / "lost", center)


def standard(text: str, own: Session, directory: Path) -> StandardSwitches:
    """Return what settles the standard switches of a spec, to be called out of turn."""
    places = VsphereInventory(own.content, spec_of(text))
    return StandardSwitches(own, places, record_of(own, directory))


def hosts_of(text: str, own: Session) -> dict[str, Any]:
    return dict(read_hosts(own, VsphereInventory(own.content, spec_of(text))))


def test_a_switch_of_a_host_that_does_not_answer_stays_recorded(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, NEAR)
    raised(text, tmp_path)
    disconnect(own, "one")
    what = "switch near of one stays: the host does not answer vCenter"
    for _ in range(2):
        with pytest.raises(BackendError, match=what) as caught:
            gone_for_good(text, tmp_path)
        assert caught.value.hint == "connect the host again, then repeat the command"
        assert record_of(own, tmp_path).read() == {"near": {"one": ["lan"]}}
    connect(own, "one")
    found: Any = networks_of(own.content)
    assert "near" in found["one"]
    assert "near" not in found["two"]
    raised(text, tmp_path)
    gone_for_good(text, tmp_path)


def test_a_switch_that_leaves_a_host_that_does_not_answer_stays_recorded(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    raised(text_of(vcenter, NEAR), tmp_path)
    fewer = text_of(vcenter, NEAR.replace("kind:", "esxi: [two], kind:"))
    disconnect(own, "one")
    with pytest.raises(BackendError, match="switch near of one stays"):
        raised(fewer, tmp_path)
    connect(own, "one")
    raised(fewer, tmp_path)
    assert "near" not in networks_of(own.content)["one"]  # type: ignore[operator]
    gone_for_good(fewer, tmp_path)


def test_nothing_is_made_or_forgotten_on_a_host_that_stopped_to_answer(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, NEAR)
    raised(text, tmp_path)
    switch = spec_of(text).switches[0]
    disconnect(own, "one")
    with pytest.raises(BackendError, match="near of one stays: the host does not answer"):
        standard(text, own, tmp_path).settle(switch, [hosts_of(text, own)["one"]])
    assert record_of(own, tmp_path).groups("near", "one") == ["lan"]
    connect(own, "one")
    gone_for_good(text, tmp_path)


@pytest.mark.parametrize(
    ("old", "new"), [("name: near", "name: unheard"), ("name: lan", "name: unheard")]
)
def test_what_was_made_when_the_answer_was_lost_is_ours(
    vcenter: Simulator, tmp_path: Path, old: str, new: str
) -> None:
    text = text_of(vcenter, NEAR.replace(old, new))
    # Once for each host.
    for _ in range(2):
        with pytest.raises(BackendError, match="HostCommunication"):
            raised(text, tmp_path)
    raised(text, tmp_path)
    assert plan_of(text, tmp_path).empty
    gone_for_good(text, tmp_path)


def test_what_may_have_been_made_stays_recorded_until_its_host_answers(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, NEAR)
    hosts = hosts_of(text, own)
    disconnect(own, "one")
    with pytest.raises(BackendError, match="HostNotConnected"):
        standard(text, own, tmp_path).settle(spec_of(text).switches[0], [hosts["one"]])
    assert record_of(own, tmp_path).groups("near", "one") == []
    connect(own, "one")
    assert standard(text, own, tmp_path).trim({}) == []
    assert record_of(own, tmp_path).read() == {}


def test_what_somebody_else_made_in_between_is_not_ours(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, NEAR)
    before = hosts_of(text, own)["one"]
    system = host_named(own, "one").configManager.networkSystem
    system.AddVirtualSwitch("near", vim.host.VirtualSwitch.Specification(numPorts=8))
    with pytest.raises(BackendError, match="AlreadyExists"):
        standard(text, own, tmp_path).settle(spec_of(text).switches[0], [before])
    assert record_of(own, tmp_path).read() == {}
    system.RemoveVirtualSwitch("near")


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ("vmnic2, vmnic3", ""),
        ("vmnic3, vmnic2", "vmnic1"),
        ("", "vmnic4, vmnic5"),
    ],
)
def test_two_uplinks_change_hands_at_once(
    vcenter: Simulator, own: Session, tmp_path: Path, near: str, far: str
) -> None:
    before = text_of(vcenter, NEAR.replace("vmnic1", "vmnic4, vmnic5"), FAR)
    raised(before, tmp_path)
    wanted = [NEAR.replace("vmnic1", near), FAR.replace("vmnic2, vmnic3", far)]
    # Who is to have them is settled first.
    after = text_of(vcenter, *(wanted if near else reversed(wanted)))
    raised(after, tmp_path)
    assert plan_of(after, tmp_path).empty
    found: Any = networks_of(own.content)
    for host in ("one", "two"):
        assert ", ".join(found[host]["near"][1]) == ", ".join(sorted(near.split(", ")))
        assert ", ".join(found["distributed far"][1][host]) == far
    gone_for_good(after, tmp_path)


WIDE = "{name: wide, kind: distributed, port_groups: [{name: lan}]}"
NEXT = "{name: next, kind: standard, port_groups: [{name: rdma}]}"


@pytest.mark.parametrize("case", [(NEAR, WIDE, "near"), (FAR, NEXT, "far")], ids=["wide", "next"])
def test_a_port_group_moves_to_a_switch_of_another_kind_in_two_steps(
    vcenter: Simulator, own: Session, tmp_path: Path, case: tuple[str, str, str]
) -> None:
    there, wanted, holder = case
    raised(text_of(vcenter, there), tmp_path)
    before = networks_of(own.content)
    text = text_of(vcenter, wanted)
    with pytest.raises(BackendError, match=r"the datacenter has a .* of that name") as caught:
        raised(text, tmp_path, replace=True)
    assert f"first remove it from switch {holder} with a separate `up`" in caught.value.message
    assert networks_of(own.content) == before
    raised(text_of(vcenter), tmp_path, replace=True)
    raised(text, tmp_path)
    gone_for_good(text, tmp_path)


def test_a_record_of_another_vcenter_is_refused(
    vcenter: Simulator, other_vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, NEAR)
    raised(text, tmp_path)
    moved = text_of(other_vcenter, NEAR)
    other = other_vcenter.session()
    for work in (raised, plan_of, gone):
        with pytest.raises(BackendError, match="is of vCenter") as caught:
            work(moved, tmp_path)
        assert own.content.about.instanceUuid in caught.value.message
        assert other.content.about.instanceUuid in caught.value.message
        assert "under vcenter again, and `nearmetal down` first" in caught.value.hint
    other.close()
    assert plan_of(text, tmp_path).empty
    gone_for_good(text, tmp_path)


def test_a_switch_that_left_with_its_host_is_told(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = text_of(vcenter, NEAR)
    raised(text, tmp_path)
    told = "switch near of three: the datacenter does not have this host, so the switch counts as "
    told += "removed (if the host has another name now, remove the switch there by hand)"
    assert told not in plan_of(text, tmp_path).notes
    record_of(own, tmp_path).claim("near", "three", ["lan"])
    assert told in plan_of(text, tmp_path).notes
    spec = spec_of(text)
    assert plan_down(opened(spec, tmp_path)).notes == (told,)
    record = json.loads((tmp_path / "state/clusters/lost/switches.json").read_text())
    assert record["vcenter"]["server"] == "127.0.0.1"
    assert down(opened(spec, tmp_path)).notes == (told,)
    assert not (tmp_path / "state").exists()
