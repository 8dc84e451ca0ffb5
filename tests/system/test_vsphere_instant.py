# SPDX-License-Identifier: Apache-2.0
"""Instant clones on a simulated vCenter: made, refused in words, killed and refused at each call."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cluster.apply import describe
from nearmetal.core.errors import BackendError
from tests.system.fuse import Fuse, Refusal, ended, settle
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    machines_of,
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

HOST = "DC0_C0_H1"
BODY = """\
machine: {template: source, clone: instant, cpu_shares: high}
parallel: 1
shutdown: 0
rules: [{name: one, kind: together, nodes: [n0, n1]}]
hosts: [{name: h, esxi: DC0_C0_H1, nodes: [{name: n0}, {name: n1, vm: second}]}]
"""


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture(scope="module")
def own(vcenter: Simulator) -> Iterator[Session]:
    """Return a session of our own; a machine is on from which others can be forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSWORD, "pass")
        session = vcenter.session()
        center = session.content.rootFolder.childEntity[0]
        compute = center.hostFolder.childEntity[0]
        template = next(vm for vm in center.vmFolder.childEntity if vm.name == TEMPLATE)
        place = vim.vm.RelocateSpec(
            pool=compute.resourcePool, host=next(h for h in compute.host if h.name == HOST)
        )
        spec = vim.vm.CloneSpec(location=place, powerOn=False, template=False)
        start = partial(template.CloneVM_Task, center.vmFolder, "source", spec)
        source: Any = session.wait("preparing", start)
        session.wait("preparing", source.PowerOnVM_Task)
        yield session
        session.close()


def source_of(own: Session) -> Any:
    folder = own.content.rootFolder.childEntity[0].vmFolder
    return next(vm for vm in folder.childEntity if vm.name == "source")


def test_instant_clones_are_made_changed_and_removed(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("forks") + BODY
    plan = plan_of(text, tmp_path)
    assert any("instant clones run on the host of their source: n0, n1" in n for n in plan.notes)
    raised(text, tmp_path)
    assert plan_of(text, tmp_path).empty
    there, source = machines_of(own.content, "forks"), source_of(own)
    assert {vm.runtime.host.name for vm in there.values()} == {HOST}
    assert {vm.runtime.powerState for vm in there.values()} == {"poweredOn"}
    assert {vm.config.cpuAllocation.shares.level for vm in there.values()} == {"high"}
    assert len({vm.config.instanceUuid for vm in (*there.values(), source)}) == 3
    assert set(there) == {"n0", "second"}
    # The source goes on as it was.
    assert source.runtime.powerState == "poweredOn"
    assert not any(option.key == "nearmetal.mark" for option in source.config.extraConfig)

    before = {name: vm.config.instanceUuid for name, vm in there.items()}
    changed = text.replace("cpu_shares: high", "cpu_shares: low").replace("vm: second", "slots: 2")
    changed = changed.replace("{name: n0}", "{name: n0, power: off}")
    raised(changed, tmp_path)
    assert plan_of(changed, tmp_path).empty
    now = machines_of(own.content, "forks")
    assert (now["n0"].runtime.powerState, now["n1"].runtime.powerState) == (
        "poweredOff",
        "poweredOn",
    )
    assert sorted(vm.config.instanceUuid for vm in now.values()) == sorted(before.values())
    gone(text, tmp_path)
    assert machines_of(own.content, "forks") == {}


def test_an_instant_clone_that_was_moved_is_found_and_moved_back(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("strays") + BODY
    raised(text, tmp_path)
    before = machines_of(own.content, "strays")
    center = own.content.rootFolder.childEntity[0]
    elsewhere = own.call("meddling", lambda: center.vmFolder.CreateFolder("away"))
    own.wait("meddling", lambda: elsewhere.MoveIntoFolder_Task([before["n0"]]))
    own.wait("meddling", lambda: before["n0"].Rename_Task("odd"))
    # A copy beside it has its mark, and is not taken for it.
    place = vim.vm.RelocateSpec(pool=center.hostFolder.childEntity[0].resourcePool)
    spec = vim.vm.CloneSpec(location=place, powerOn=False, template=False)
    copy: Any = own.wait(
        "meddling", lambda: before["n0"].CloneVM_Task(center.vmFolder, "copy", spec)
    )
    plan = plan_of(text, tmp_path)
    assert [describe(change) for change in plan.effective] == [
        "~ node n0: vm odd -> n0 (in place; it is not in the folder of the cluster)"
    ]
    raised(text, tmp_path)
    assert machines_of(own.content, "strays") == before
    assert plan_of(text, tmp_path).empty
    # The fork keeps its home when its marks change, and a cluster of the same name has another.
    raised(text.replace("{name: n0}", "{name: n0, slots: 2}"), tmp_path)
    own.wait("meddling", lambda: elsewhere.MoveIntoFolder_Task([before["n0"]]))
    with pytest.raises(BackendError, match="had left folder strays and stay: n0"):
        gone(text, tmp_path)
    assert list(elsewhere.childEntity) == [before["n0"]]
    twin = text.replace("hosts:", "folder: away\nhosts:")
    raised(twin, tmp_path / "twin")
    inner = next(one for one in elsewhere.childEntity if one.name == "strays")
    lost = next(vm for vm in inner.childEntity if vm.name == "n0")
    own.wait("meddling", lost.PowerOffVM_Task)
    own.wait("meddling", lost.Destroy_Task)
    raised(twin, tmp_path / "twin")
    assert {vm.name for vm in inner.childEntity} == {"n0", "second"}
    assert before["n0"] in elsewhere.childEntity
    gone(twin, tmp_path / "twin")
    for machine in (copy, before["n0"]):
        if machine.runtime.powerState == "poweredOn":
            own.wait("meddling", machine.PowerOffVM_Task)
        own.wait("meddling", machine.Destroy_Task)
    own.wait("meddling", elsewhere.Destroy_Task)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("template: source", f"template: {TEMPLATE}", f"machine {TEMPLATE} is a template"),
        ("esxi: DC0_C0_H1", "esxi: DC0_C0_H2", "runs on DC0_C0_H1, not on DC0_C0_H2"),
        ("cpu_shares: high", "p2p: true", "source has p2p false, not true"),
        ("cpu_shares: high", "numa: [1]", "source has numa [], not [1]"),
        (
            "cpu_shares: high",
            "memory_reservation: full",
            "source has memory_reservation none, not full",
        ),
    ],
)
def test_what_no_source_gives_is_refused_before_any_change(  # noqa: PLR0917 - parameters
    vcenter: Simulator, own: Session, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    text = (vcenter.head("forks") + BODY).replace(old, new)
    with pytest.raises(BackendError) as error:
        raised(text, tmp_path)
    assert reason in error.value.message
    assert "nothing was changed" in error.value.message
    assert machines_of(own.content, "forks") == {}


def test_a_source_that_is_off_or_has_a_device_is_refused(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text, source = vcenter.head("forks") + BODY, source_of(own)
    kind = vim.vm.device.VirtualPCIPassthrough
    backing = kind.DeviceBackingInfo(
        id="0000:86:00.0", deviceId="20b0", systemId="s", vendorId=4318, deviceName="A100"
    )
    device = kind(key=-1, backing=backing)
    added = vim.vm.device.VirtualDeviceSpec(operation="add", device=device)
    own.wait("meddling", source.PowerOffVM_Task)
    try:
        with pytest.raises(BackendError, match="machine source is not on"):
            raised(text, tmp_path)
        spec = vim.vm.ConfigSpec(deviceChange=[added], memoryReservationLockedToMax=True)
        own.wait("meddling", partial(source.ReconfigVM_Task, spec))
        own.wait("meddling", source.PowerOnVM_Task)
        with pytest.raises(BackendError, match="machine source has a device of its host"):
            raised(text, tmp_path)
    finally:
        removed = [
            vim.vm.device.VirtualDeviceSpec(operation="remove", device=card)
            for card in source.config.hardware.device
            if isinstance(card, kind)
        ]
        if source.runtime.powerState == "poweredOn":
            own.wait("meddling", source.PowerOffVM_Task)
        spec = vim.vm.ConfigSpec(deviceChange=removed, memoryReservationLockedToMax=False)
        shares = vim.SharesInfo(level="normal", shares=0)
        spec.memoryAllocation = vim.ResourceAllocationInfo(reservation=0, shares=shares)
        own.wait("meddling", partial(source.ReconfigVM_Task, spec))
        own.wait("meddling", source.PowerOnVM_Task)
    assert machines_of(own.content, "forks") == {}


KILLS, REFUSALS = 15, 5
POINTS = [
    *(("kill", moment) for moment in range(KILLS)),
    *(("refusal", moment) for moment in range(REFUSALS)),
]


@pytest.mark.parametrize(("way", "moment"), walk(POINTS, keep=6))
def test_an_up_that_is_killed_or_refused_anywhere_is_completed(
    vcenter: Simulator, own: Session, tmp_path: Path, way: str, moment: int
) -> None:
    """What was forked is neither forked twice nor removed, and keeps running."""
    text, source = vcenter.head("forks") + BODY, source_of(own)
    burn = (Fuse if way == "kill" else Refusal)(moment).at_changes
    status = ended(partial(raised, text, tmp_path), burn)
    assert status == (-signal.SIGKILL if way == "kill" else 1)
    settle(own.content)
    begun = {name: vm.config.uuid for name, vm in machines_of(own.content, "forks").items()}
    raised(text, tmp_path)
    assert plan_of(text, tmp_path).empty
    there = machines_of(own.content, "forks")
    made = {name: vm.config.uuid for name, vm in there.items()}
    assert made | begun == made
    assert set(made) == {"n0", "second"}
    assert {vm.runtime.powerState for vm in (*there.values(), source)} == {"poweredOn"}
    gone(text, tmp_path)
    assert machines_of(own.content, "forks") == {}
    assert source.runtime.powerState == "poweredOn"


def test_the_counts_of_moments_are_those_of_an_up(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("forks") + BODY
    assert own.content
    for burn in (Fuse(KILLS).at_changes, Refusal(REFUSALS).at_changes):
        assert ended(partial(raised, text, tmp_path), burn) == 0
        gone(text, tmp_path)
