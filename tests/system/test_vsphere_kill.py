# SPDX-License-Identifier: Apache-2.0
"""`up` on a simulated vCenter, killed at each record of its journal and around each task, and run again."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim, vmodl

from nearmetal.apply import Journal, down, plan_up, up
from tests.system.vcenter import PASSWORD, TEMPLATE, Simulator, opened, simulator, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nearmetal.backend.vsphere.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

BODY = f"""\
machine:
  template: {TEMPLATE}
  memory: 64 MiB
  memory_reservation: full
  adapters: [{{kind: sriov, port_group: DC0_DVPG0, pf: '0000:3b:00.0'}}]
  guest: {{address: 10.0.0.11-10.0.0.12/24}}
parallel: 1
rules: [{{name: spread, kind: apart, nodes: [n0, n1]}}]
hosts:
  - {{name: h0, esxi: DC0_C0_H0, nodes: [{{name: n0}}]}}
  - {{name: h1, esxi: DC0_C0_H1, nodes: [{{name: n1}}]}}
"""


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture
def own(vcenter: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv(PASSWORD, "pass")
    session = vcenter.session()
    yield session
    session.close()


class Fuse:
    """Kills its process when it was touched so often."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def touch(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def at_records(self) -> None:
        """Burn at each record that is on the disk."""
        write = Journal.write

        def written(*args: Any, **options: Any) -> None:
            write(*args, **options)
            self.touch()

        Journal.write = written  # type: ignore[method-assign]

    def at_tasks(self) -> None:
        """Burn when a task was started, and when it has ended."""
        from nearmetal.backend.vsphere.session import Session  # noqa: PLC0415 - needs the SDK

        wait, touch = Session.wait, self.touch

        def waited(self: Session, what: str, start: Callable[[], Any]) -> Any:
            def started() -> Any:
                task = start()
                touch()
                return task

            result = wait(self, what, started)
            touch()
            return result

        Session.wait = waited  # type: ignore[method-assign]


def survives(text: str, directory: Path, burn: Callable[[], None]) -> bool:
    """Run `up` in a process of its own with a fuse lit; whether it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            burn()
            spec = spec_of(text)
            up(opened(spec, directory), spec)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - this process must not go on as the tests
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status == 0


def settle(content: Any) -> None:
    """Wait for what vCenter goes on with when who asked for it is dead."""
    collector = vmodl.query.PropertyCollector
    state = collector.PropertySpec(type=vim.Task, pathSet=["info.state"])
    for _ in range(600):
        tasks = [collector.ObjectSpec(obj=task) for task in content.taskManager.recentTask]
        spec = collector.FilterSpec(objectSet=tasks, propSet=[state])
        found = content.propertyCollector.RetrieveContents([spec])
        if all(item.propSet[0].val in ("success", "error") for item in found):
            return
        time.sleep(0.1)
    pytest.fail("a task never ended")


@pytest.mark.parametrize(
    ("light", "moments"),
    [("at_records", 10), pytest.param("at_tasks", 22, marks=pytest.mark.full)],
)
def test_up_killed_anywhere_is_taken_up(
    vcenter: Simulator, own: Session, tmp_path: Path, light: str, moments: int
) -> None:
    text = vcenter.head("fuse") + BODY
    spec = spec_of(text)
    datacenter = own.content.rootFolder.childEntity[0]
    compute = datacenter.hostFolder.childEntity[0]
    killed = 0
    while not survives(text, tmp_path, getattr(Fuse(killed), light)):
        killed += 1
        settle(own.content)
        up(opened(spec, tmp_path), spec)
        assert plan_up(opened(spec, tmp_path), spec).empty
        folder = own.content.searchIndex.FindChild(datacenter.vmFolder, "fuse")
        made = {vm.name: vm for vm in folder.childEntity}
        assert sorted(made) == ["n0", "n1"]
        assert {vm.runtime.powerState for vm in made.values()} == {"poweredOn"}
        assert [made["n0"].guest.ipAddress, made["n1"].guest.ipAddress] == [
            "10.0.0.11",
            "10.0.0.12",
        ]
        (rule,) = compute.configurationEx.rule
        assert {vm.name for vm in rule.vm} == {"n0", "n1"}
        down(opened(spec, tmp_path))
        assert own.content.searchIndex.FindChild(datacenter.vmFolder, "fuse") is None
        assert not compute.configurationEx.rule
    assert killed == moments
    down(opened(spec, tmp_path))
    assert not (tmp_path / "state").exists()
