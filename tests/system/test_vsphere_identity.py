# SPDX-License-Identifier: Apache-2.0
"""Which machine is a node's on a simulated vCenter: copies, moves, renames; tasks and guests that take time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cluster.apply import describe, up
from nearmetal.core.errors import BackendError, StateError
from tests.system.fuse import Fuse, survives
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    machines_of,
    plan_of,
    raised,
    simulator,
    spec_of,
    unchecked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

BODY = f"""\
machine: {{template: {TEMPLATE}, memory: 64 MiB}}
shutdown: 2
hosts:
  - {{name: h0, esxi: DC0_C0_H0, nodes: [{{name: n0}}, {{name: n1}}]}}
"""
ONE_BY_ONE = f"{BODY}parallel: 1\n"
SLOW_MS = 8000
"""How long a clone takes in the slow vCenter."""


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("slow"), slow=f"CloneVm={SLOW_MS}")


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "pass")


@pytest.fixture
def own(vcenter: Simulator, password: None) -> Iterator[Session]:
    del password
    session = vcenter.session()
    yield session
    session.close()


def copied(own: Session, machine: Any, name: str) -> Any:
    """Copy a machine as a user does: the mark goes along."""
    place = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False, template=False)
    return own.wait("meddling", lambda: machine.CloneVM_Task(machine.parent, name, place))


def top(own: Session) -> Any:
    return own.content.rootFolder.childEntity[0].vmFolder


def test_a_copy_of_a_machine_is_a_stranger_and_stays(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("copies") + BODY
    raised(text, tmp_path)
    original = machines_of(own.content, "copies")["n1"]
    copy = copied(own, original, "keepsake")
    marks = {o.key: o.value for o in copy.config.extraConfig}
    assert marks["nearmetal.mark"] == next(
        o.value for o in original.config.extraConfig if o.key == "nearmetal.mark"
    )
    plan = plan_of(text, tmp_path)
    assert plan.empty
    assert any("machine keepsake in folder copies has a copy of the mark" in n for n in plan.notes)
    # The node itself is made again, and the copy is not taken for it.
    raised(text.replace("64 MiB}", "64 MiB, clone: linked}"), tmp_path, replace=True)
    there = machines_of(own.content, "copies")
    assert there["keepsake"] == copy
    assert there["n1"] not in (original, copy)
    with pytest.raises(BackendError, match="objects of another owner: keepsake"):
        gone(text, tmp_path)
    assert list(machines_of(own.content, "copies")) == ["keepsake"]
    own.wait("meddling", copy.Destroy_Task)
    gone(text, tmp_path)
    assert machines_of(own.content, "copies") == {}


def test_a_machine_that_was_moved_or_renamed_is_put_right_in_place(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("moved") + BODY
    raised(text, tmp_path)
    before = machines_of(own.content, "moved")
    elsewhere = own.call("meddling", lambda: top(own).CreateFolder("elsewhere"))
    own.wait("meddling", lambda: elsewhere.MoveIntoFolder_Task([before["n0"]]))
    own.wait("meddling", lambda: before["n0"].Rename_Task("odd"))
    own.wait("meddling", lambda: before["n1"].Rename_Task("even"))
    plan = plan_of(text, tmp_path)
    assert [describe(c) for c in plan.effective] == [
        "~ node n0: vm odd -> n0 (in place; it is not in the folder of the cluster)",
        "~ node n1: vm even -> n1 (in place)",
    ]
    raised(text, tmp_path)
    assert machines_of(own.content, "moved") == before
    assert plan_of(text, tmp_path).empty
    assert {m.runtime.powerState for m in before.values()} == {"poweredOn"}
    # A whole folder of another name is found too.
    folder = before["n0"].parent
    own.wait("meddling", lambda: folder.Rename_Task("unmoved"))
    raised(text, tmp_path)
    assert machines_of(own.content, "moved") == before
    own.wait("meddling", folder.Destroy_Task)
    # `down` leaves a machine outside, and says so.
    own.wait("meddling", lambda: elsewhere.MoveIntoFolder_Task([before["n0"]]))
    with pytest.raises(BackendError, match="had left folder moved and stay: n0"):
        gone(text, tmp_path)
    assert list(elsewhere.childEntity) == [before["n0"]]
    assert machines_of(own.content, "moved") == {}
    own.wait("meddling", elsewhere.Destroy_Task)


def test_a_spec_that_is_reverted_after_a_refusal_changes_the_machines_back(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    card = "{kind: sriov, port_group: DC0_DVPG0, pf: '0000:3b:00.0'}"
    devices = f"memory_reservation: full, adapters: [{card}]"
    text = vcenter.head("refused") + BODY.replace("64 MiB}", f"64 MiB, {devices}}}")
    raised(text, tmp_path)
    before = machines_of(own.content, "refused")
    other = spec_of(text.replace("0000:3b:00.0", "0000:99:00.0"))
    with pytest.raises(BackendError, match=r"the host has no 0000:99:00\.0"):
        up(unchecked(other, tmp_path), other)
    plan = raised(text, tmp_path)
    assert {c.in_place for c in plan.effective} == {True}
    assert plan_of(text, tmp_path).empty
    assert machines_of(own.content, "refused") == before
    assert {m.runtime.powerState for m in before.values()} == {"poweredOn"}
    gone(text, tmp_path)


def test_a_machine_without_devices_moves_to_another_host_while_it_runs(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("place") + BODY
    raised(text, tmp_path)
    before = machines_of(own.content, "place")
    other = text.replace("DC0_C0_H0", "DC0_C0_H1")
    plan = raised(other, tmp_path)
    assert [describe(c) for c in plan.effective] == [
        "~ node n0: esxi DC0_C0_H0 -> DC0_C0_H1 (in place)",
        "~ node n1: esxi DC0_C0_H0 -> DC0_C0_H1 (in place)",
    ]
    assert machines_of(own.content, "place") == before
    assert {m.runtime.host.name for m in before.values()} == {"DC0_C0_H1"}
    assert [shut_down(m) for m in before.values()] == [[], []]
    gone(other, tmp_path)


def test_a_virtual_hardware_version_is_applied_and_never_lowered(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("version") + BODY
    newer = text.replace("64 MiB}", "64 MiB, hardware: 19}")
    raised(newer, tmp_path)
    before = machines_of(own.content, "version")
    assert {m.config.version for m in before.values()} == {"vmx-19"}
    newest = text.replace("64 MiB}", "64 MiB, hardware: 20}")
    assert {c.in_place for c in raised(newest, tmp_path).effective} == {True}
    assert {m.config.version for m in before.values()} == {"vmx-20"}
    assert plan_of(newer, tmp_path).empty
    assert machines_of(own.content, "version") == before
    gone(text, tmp_path)


def test_an_earlier_release_left_marks_without_identity(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("earlier") + BODY
    raised(text, tmp_path)
    before = machines_of(own.content, "earlier")
    for name, state in (("n0", "made"), ("n1", "begun")):
        mark = f'{{"cluster": "earlier", "node": "{name}", "state": "{state}", "host": "h0", '
        mark += f'"slots": "1", "template": "{TEMPLATE}", "clone": "full", "guest": ""}}'
        spec = vim.vm.ConfigSpec(
            extraConfig=[vim.option.OptionValue(key="nearmetal.mark", value=mark)]
        )
        own.wait("meddling", partial(before[name].ReconfigVM_Task, spec))
    plan = raised(text, tmp_path)
    assert [(c.key.name, c.in_place, c.why) for c in plan.effective] == [
        ("n0", True, "its mark does not name it"),
        ("n1", True, "its creation was interrupted"),
    ]
    assert machines_of(own.content, "earlier") == before
    other = text.replace("64 MiB}", "64 MiB, clone: linked}")
    with pytest.raises(StateError, match="already up under another spec"):
        raised(other, tmp_path)
    gone(text, tmp_path)


def shut_down(machine: Any) -> list[str]:
    """Return how a machine was switched off, once for each time."""
    ways = ("powerOffVm", "powerOff", "shutdownGuest")
    found = [task.info.descriptionId.rpartition(".")[2] for task in machine.recentTask]
    return [way.removesuffix("Vm") for way in found if way in ways]


@pytest.mark.parametrize(
    ("name", "patience", "ways"),
    [
        ("n1", 60, ["shutdownGuest"]),
        ("n1", 0, ["powerOff"]),
        ("bare", 60, ["powerOff"]),
        ("stubborn", 1, ["powerOff"]),
    ],
)
def test_a_guest_is_asked_before_its_power_is_cut(  # noqa: PLR0917 - parameters
    vcenter: Simulator, own: Session, tmp_path: Path, name: str, patience: int, ways: list[str]
) -> None:
    text = vcenter.head("power") + BODY.replace("n1", name)
    text = text.replace("shutdown: 2", f"shutdown: {patience}")
    raised(text, tmp_path)
    machine = machines_of(own.content, "power")[name]
    began = time.monotonic()
    raised(text.replace("64 MiB}", "128 MiB}"), tmp_path)
    if name == "stubborn":
        assert time.monotonic() - began >= patience
    assert shut_down(machine) == ways
    assert machine.config.hardware.memoryMB == 128
    gone(text, tmp_path)


def test_a_task_of_a_killed_up_is_waited_for_and_its_machine_kept(
    slow: Simulator, tmp_path: Path
) -> None:
    text = slow.head("adopted") + BODY
    session = slow.session()
    # Each of the two clones has begun, or one.
    assert not survives(partial(raised, text, tmp_path), Fuse(0).at_tasks)
    plan = raised(text, tmp_path)
    assert any("of an earlier run were waited for: clone" in note for note in plan.notes)
    assert plan_of(text, tmp_path).empty
    assert sorted(machines_of(session.content, "adopted")) == ["n0", "n1"]
    gone(text, tmp_path)
    session.close()


def cloning(session: Session) -> bool:
    """Whether the vCenter clones the template."""
    return any(
        task.info.state == "running"
        for vm in top(session).childEntity
        if vm.name == TEMPLATE
        for task in vm.recentTask
    )


def interrupt_while_cloning(slow: Simulator, spec: Path, state: Path) -> None:
    """Interrupt `up` while vCenter clones, and check what it says."""
    environ = {**os.environ, "NEARMETAL_STATE_DIR": str(state)}
    command = [sys.executable, "-m", "nearmetal", "up", str(spec)]
    session = slow.session()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        while not cloning(session):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    session.close()
    assert process.returncode == 128 + signal.SIGINT
    assert "node n0: cloning continues in vCenter" in said
    assert "waits for them" in said


def test_up_after_an_interrupt_completes_the_cluster(slow: Simulator, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(slow.head("stopped") + ONE_BY_ONE)
    interrupt_while_cloning(slow, spec, tmp_path / "state")
    raised(spec.read_text(), tmp_path)
    assert plan_of(spec.read_text(), tmp_path).empty
    session = slow.session()
    assert sorted(machines_of(session.content, "stopped")) == ["n0", "n1"]
    session.close()
    gone(spec.read_text(), tmp_path)


def test_an_interrupt_names_the_tasks_that_continue(slow: Simulator, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(slow.head("named") + ONE_BY_ONE)
    interrupt_while_cloning(slow, spec, tmp_path / "state")
