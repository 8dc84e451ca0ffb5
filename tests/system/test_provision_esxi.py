# SPDX-License-Identifier: Apache-2.0
"""`nearmetal host` on ESXi hosts of a simulated vCenter: real calls over TLS, reboots, kills."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from pyVmomi import vim, vmodl

from nearmetal.cli.main import main
from nearmetal.core.errors import BackendError, HostError, LockedError
from nearmetal.core.journal import Journal
from nearmetal.core.lock import locked
from nearmetal.host.apply import Earlier, Patience
from nearmetal.host.facts import Reach
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.parse.tools import parse_mlxconfig
from nearmetal.host.rollback import Rollback
from nearmetal.host.vcenter.session import fetch
from nearmetal.host.vsphere_host import ENTER
from tests.python.host_listings import listings
from tests.system.esxi_lab import (
    PORTS,
    QUICK,
    EsxiShell,
    Hosts,
    Shells,
    applier,
    hosts_file,
    sriov_card,
)
from tests.system.fuse import Fuse, settle, survives
from tests.system.vcenter import PASSWORD, Simulator, simulator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

POWER = "    esxi: {power: high-performance}\n"
MARKED = "esxi.json"


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "pass")


@pytest.fixture
def vcenter(tmp_path: Path) -> Iterator[Simulator]:
    yield from simulator(tmp_path, "esx1", "esx2", "esx3", options="drss=4")


@pytest.fixture
def hosts(vcenter: Simulator, password: None) -> Iterator[Hosts]:
    del password
    session = vcenter.session()
    yield Hosts(session)
    session.close()


def steps(state: Path, event: str) -> list[str]:
    return [record.step for record in Journal(state).read() if record.event == event]


def test_hosts_get_their_functions_one_after_the_other_and_are_put_back(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    state, text = tmp_path / "state", hosts_file(vcenter, more=POWER + PORTS)
    before = {name: hosts.boot(name) for name in hosts.refs}
    plan = applier(text + "canary: esx2\n", state).apply()
    assert plan.waves == (("esx2",), ("esx1",), ("esx3",))
    for name in hosts.refs:
        assert hosts.vfs(name) == [8, 7, 0]
        assert hosts.options(name) == "drss=4 max_vfs=0,0,8,7"
        assert hosts.power(name) == "static"
        assert hosts.in_service(name)
        assert hosts.boot(name) != before[name]
    done = steps(state, "done")
    assert steps(state, "begin") == done
    assert [step for step in done if step.startswith("esx2: ")] == done[: len(done) // 3]
    assert done[0] == "esx2: enter maintenance mode (vSAN: ensureObjectAccessibility)"
    assert done[len(done) // 3 - 1] == "esx2: leave maintenance mode"
    assert applier(text, state).apply().empty
    assert steps(state, "done") == done

    tasks = [task.info for task in hosts.session.content.taskManager.recentTask]
    entered = [info for info in tasks if info.descriptionId == ENTER]
    asked = {info.description.message for info in entered}
    assert asked == {"ensureObjectAccessibility"}

    booted = {name: hosts.boot(name) for name in hosts.refs}
    rollback = Rollback(parse_hosts(text), Reach(), state, QUICK)
    assert sum(host.reboots for host in rollback.apply().hosts) == 3
    for name in hosts.refs:
        assert (hosts.vfs(name), hosts.options(name), hosts.power(name)) == (
            [0, 0, 0],
            "drss=4",
            "dynamic",
        )
        assert hosts.in_service(name)
        assert hosts.boot(name) != booted[name]
    assert Earlier(state).read() == {}
    assert not (state / MARKED).exists()


def test_functions_that_esxi_makes_go_through_the_pci_devices(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    text = hosts_file(vcenter, "esx1", "    adapters: [{model: X710, ports: [{vfs: 4}]}]\n")
    applier(text, tmp_path / "state").apply()
    assert hosts.vfs("esx1") == [0, 0, 4]
    assert hosts.options("esx1") == "drss=4"
    fewer = text.replace("vfs: 4", "vfs: 2")
    applier(fewer, tmp_path / "state").apply()
    assert hosts.vfs("esx1") == [0, 0, 2]
    Rollback(parse_hosts(fewer), Reach(), tmp_path / "state", QUICK).apply()
    assert hosts.vfs("esx1") == [0, 0, 0]


def test_a_card_that_machines_get_whole_is_given_away_with_the_reboot_of_the_others(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    state, card = tmp_path / "state", "0000:af:00.1"
    more = f"    passthrough: [{{device: '8086:1572', address: '{card}'}}]\n"
    text = hosts_file(vcenter, "esx1", PORTS + more)
    plan = applier(text, state).apply()
    assert [host.reboots for host in plan.hosts] == [1]
    assert hosts.vfs("esx1") == [8, 7, 0]
    assert hosts.directpath("esx1", card) == (True, True)
    assert applier(text, state).apply().empty
    Rollback(parse_hosts(text), Reach(), state, QUICK).apply()
    assert hosts.directpath("esx1", card) == (False, False)
    assert hosts.in_service("esx1")
    uplink = text.replace(f"'8086:1572', address: '{card}'", "'15b3:1015'")
    with pytest.raises(HostError, match=r"1a:00\.0 is in use by the host: uplink of vSwitch0"):
        applier(uplink, state).apply()


def test_drift_is_found_and_repaired(vcenter: Simulator, hosts: Hosts, tmp_path: Path) -> None:
    state, text = tmp_path / "state", hosts_file(vcenter, "esx1")
    applier(text, state).apply()
    hosts.set_options("esx1", "drss=4 max_vfs=0,0,1,1 pfctx=8")
    plan = applier(text, state).plan()
    assert [step.text for step in plan.hosts[0].steps][1:2] == [
        'nmlx5_core: max_vfs="0,0,8,7", keeping drss=4 pfctx=8'
    ]
    applier(text, state).apply()
    assert hosts.options("esx1") == "drss=4 max_vfs=0,0,8,7 pfctx=8"
    assert hosts.vfs("esx1") == [8, 7, 0]


@pytest.mark.parametrize(
    ("light", "moments"),
    [("at_records", 8), pytest.param("at_tasks", 6, marks=pytest.mark.full)],
)
def test_apply_killed_anywhere_is_taken_up(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path, light: str, moments: int
) -> None:
    text, killed = hosts_file(vcenter, "esx1"), 0
    session = hosts.session
    whole = tmp_path / "whole"
    applier(text, whole).apply()
    kept = Earlier(whole).read()
    while True:
        hosts.set_options("esx1", "drss=4")
        hosts.evict("esx1")
        session.wait("meddling", partial(hosts.refs["esx1"].RebootHost_Task, True))
        back_in_service(hosts, "esx1")
        before, state = hosts.boot("esx1"), tmp_path / f"state{killed}"
        if survives(lambda: applier(text, state).apply(), getattr(Fuse(killed), light)):  # noqa: B023 - called at once
            break
        killed += 1
        settle(session.content)
        answers(hosts, "esx1")
        applier(text, state).apply()
        assert hosts.vfs("esx1") == [8, 7, 0]
        assert hosts.options("esx1") == "drss=4 max_vfs=0,0,8,7"
        assert hosts.in_service("esx1")
        assert hosts.boot("esx1") != before
        assert Earlier(state).read() == kept
        assert not (state / MARKED).exists()
        assert applier(text, state).plan().empty
    assert killed == moments


def test_a_file_that_was_changed_after_a_reboot_is_another_wish(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    state, text = tmp_path / "state", hosts_file(vcenter, "esx1")
    assert not survives(lambda: applier(text, state).apply(), Fuse(5).at_records)
    settle(hosts.session.content)
    assert hosts.vfs("esx1") == [8, 7, 0]
    assert not hosts.in_service("esx1")
    applier(text.replace("vfs: 7", "vfs: 6"), state).apply()
    assert hosts.vfs("esx1") == [8, 6, 0]
    assert hosts.in_service("esx1")


def answers(hosts: Hosts, name: str) -> None:
    """Wait until a host is back."""
    ref, pause = hosts.refs[name], threading.Event()
    for _ in range(2000):
        if ref.runtime.connectionState == "connected":
            return
        pause.wait(0.02)
    pytest.fail(f"{name} is not back")


def back_in_service(hosts: Hosts, name: str) -> None:
    answers(hosts, name)
    task = partial(hosts.refs[name].ExitMaintenanceMode_Task, 60)
    hosts.session.wait("meddling", task)


def real(name: str) -> dict[str, str]:
    """The settings of a real card by its listing, with a second port like its first one."""
    [listing] = [found for found in listings("mlxconfig") if found.name == name]
    found = parse_mlxconfig(listing.text) or {}
    both = {"LINK_TYPE_P1": "2", "LINK_TYPE_P2": "2"}
    return {name: v.next for name, v in found.items() if "Array" not in v.next} | both


@pytest.mark.parametrize(("opens", "reboots"), [("set", 1), ("reset", 2)])
@pytest.mark.parametrize("card", ["connectx5-mcx555a", "connectx6-mcx653105a"])
def test_the_worked_example_with_the_firmware_over_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], card: str, opens: str, reboots: int
) -> None:
    del capsys
    running = simulator(tmp_path, "esx1", options="", num_of_vfs=0)
    vcenter = next(running)
    session = vcenter.session()
    hosts = Hosts(session)
    factory = real(card)
    shell = EsxiShell("esx1", tmp_path, hosts, factory, opens)
    text, state, reach = (
        hosts_file(vcenter, "esx1", ssh=True),
        tmp_path / "s",
        Shells({"esx1": shell}),
    )
    plan = applier(text, state, reach=reach).plan()
    [host] = plan.hosts
    assert host.reboots == 2
    assert 'nmlx5_core: max_vfs="0,0,8,7"' in [step.text for step in host.steps]
    assert any("NUM_OF_VFS 0 -> 16" in step.text for step in host.steps)
    more = applier(text.replace("vfs: 7", "vfs: 8"), state, reach=reach).plan()
    assert "8 + 8 VFs + 1 for the physical function = 17" in more.hosts[0].refusals[0].what
    applier(text, state, reach=reach).apply()
    assert len(shell.writes) == 6
    assert steps(state, "done").count("esx1: reboot") == reboots
    assert hosts.vfs("esx1") == [8, 7, 0]
    paper = {
        "LINK_TYPE_P1": "1",
        "LINK_TYPE_P2": "1",
        "ADVANCED_PCI_SETTINGS": "1",
        "FORCE_ETH_PCI_SUBCLASS": "1",
        "SRIOV_EN": "1",
        "NUM_OF_VFS": "16",
    }
    assert {name: shell.config()[name] for name in paper} == paper
    assert applier(text, state, reach=reach).apply().empty
    Rollback(parse_hosts(text), reach, state, QUICK).apply()
    assert hosts.vfs("esx1") == [0, 0, 0]
    assert shell.config() == {"FORCE_ETH_PCI_SUBCLASS": "0"} | factory
    session.close()
    running.close()


def test_the_worked_example_with_the_firmware_by_hand(tmp_path: Path) -> None:
    running = simulator(tmp_path, "esx1", options="", num_of_vfs=0)
    vcenter = next(running)
    session = vcenter.session()
    hosts = Hosts(session)
    text, state = hosts_file(vcenter, "esx1"), tmp_path / "state"
    with pytest.raises(HostError, match="a person comes first") as caught:
        applier(text, state).apply()
    assert "mlxconfig -d 3b:00.0 -y set NUM_OF_VFS=16" in caught.value.message
    assert not (state / "before.json").exists()
    done = Patience(reboot_s=60, look_s=0.02, by_hand_done=True)
    # Said, and not done: the host stays out of service, and does not reboot again and again.
    before = hosts.boot("esx1")
    with pytest.raises(HostError, match=r"esx1: after its reboot: .*offers 0 VFs, 16 are needed"):
        applier(text, state, done).apply()
    assert hosts.boot("esx1") != before
    assert not hosts.in_service("esx1")
    (tmp_path / "firmware").mkdir()
    (tmp_path / "firmware" / "esx1").write_text("16")
    applier(text, state, done).apply()
    assert hosts.vfs("esx1") == [8, 7, 0]
    assert hosts.in_service("esx1")
    session.close()
    running.close()


def test_a_host_that_does_not_come_back_is_named_and_no_other_begun(tmp_path: Path) -> None:
    running = simulator(tmp_path, "lost1", "esx2", options="")
    vcenter = next(running)
    session = vcenter.session()
    hosts = Hosts(session)
    text, state = hosts_file(vcenter, "lost1,esx2") + "canary: lost1\n", tmp_path / "state"
    with pytest.raises(HostError, match=r"lost1: did not come back within 0.2 s") as caught:
        applier(text, state, Patience(reboot_s=0.2, look_s=0.02)).apply()
    assert "not begun: esx2" in caught.value.message
    assert "console" in caught.value.hint
    assert steps(state, "failed") == ["lost1: reboot"]
    assert (hosts.vfs("esx2"), hosts.in_service("esx2")) == ([0, 0, 0], True)
    with pytest.raises(HostError, match="lost1: vCenter says it is notResponding"):
        applier(text, state).apply()
    session.wait("meddling", hosts.refs["lost1"].ReconnectHost_Task)
    with pytest.raises(HostError, match="nothing was written"):
        # Once more nothing of lost2, which the vCenter does not know.
        applier(text.replace("esx2", "lost2"), state).apply()
    applier(text, state).apply()
    assert [hosts.vfs(name) for name in ("lost1", "esx2")] == [[8, 7, 0]] * 2
    assert all(hosts.in_service(name) for name in hosts.refs)
    session.close()
    running.close()


def test_machines_move_away_and_those_that_cannot_are_named(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    state, text = tmp_path / "state", hosts_file(vcenter, "esx1")
    machine = hosts.machine("moving", "esx1")
    applier(text, state).apply()
    assert machine.runtime.powerState == "poweredOn"
    assert machine.runtime.host.name != "esx1"
    bound = hosts.machine("bound", "esx1", [sriov_card()])
    fewer = text.replace("vfs: 8", "vfs: 4")
    with pytest.raises(HostError, match=r"nothing was written:\n.*cannot move: bound"):
        applier(fewer, state).apply()
    assert hosts.options("esx1") == "drss=4 max_vfs=0,0,8,7"
    hosts.remove(bound)
    applier(fewer, state).apply()
    assert hosts.vfs("esx1") == [4, 7, 0]


def test_a_host_that_is_not_left_is_not_rebooted(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    state, text = tmp_path / "state", hosts_file(vcenter, "esx1")
    machine = hosts.machine("staying", "esx1")
    for other in ("esx2", "esx3"):
        hosts.evict(other)
    before = hosts.boot("esx1")
    with pytest.raises(HostError, match="esx1: entering maintenance mode: Timedout") as caught:
        applier(text, state).apply()
    assert "DRS" in caught.value.hint
    assert (hosts.boot("esx1"), hosts.options("esx1")) == (before, "drss=4")
    assert not (state / "before.json").exists()
    # Whoever is told so, and enters it by hand, keeps it.
    hosts.remove(machine)
    hosts.evict("esx1")
    applier(text, state).apply()
    assert hosts.vfs("esx1") == [8, 7, 0]
    assert not hosts.in_service("esx1")


def test_maintenance_mode_of_somebody_else_is_left_to_them(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    hosts.evict("esx1")
    applier(hosts_file(vcenter, "esx1"), tmp_path / "state").apply()
    assert hosts.vfs("esx1") == [8, 7, 0]
    assert not hosts.in_service("esx1")


def test_a_session_that_expired_in_the_middle_is_opened_again(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    manager = hosts.session.content.sessionManager
    mine = manager.currentSession.key
    ended: list[str] = []

    class Expiring(Reach):
        """Ends every other session whenever a host is asked for anew."""

        def redfish(self, name: str, group: object) -> None:
            assert name
            assert group
            keys = [s.key for s in manager.sessionList if s.key != mine]
            if keys:
                manager.TerminateSession(keys)
            ended.extend(keys)

    applier(hosts_file(vcenter, "esx1"), tmp_path / "state", reach=Expiring()).apply()
    assert len(ended) > 2
    assert hosts.vfs("esx1") == [8, 7, 0]
    assert hosts.in_service("esx1")


def test_what_the_vcenter_refuses_is_said_once(
    vcenter: Simulator,
    hosts: Hosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del hosts
    file = tmp_path / "hosts.yaml"
    file.write_text(hosts_file(vcenter))
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv(PASSWORD, "wrong-secret")
    for verb in ("plan", "apply", "status"):
        assert main(["host", verb, str(file)]) == 1
        said = "".join(capsys.readouterr())
        assert said.count("refuses user user") == 1
        assert "wrong-secret" not in said
    monkeypatch.delenv(PASSWORD)
    assert main(["host", "plan", str(file)]) == 1
    assert capsys.readouterr().err.count(PASSWORD) == 1
    monkeypatch.setenv(PASSWORD, "pass")
    file.write_text(hosts_file(vcenter).replace(vcenter.thumbprint, ":".join(["AB"] * 32)))
    assert main(["host", "plan", str(file)]) == 1
    assert capsys.readouterr().err.count("is not trusted") == 1


def test_the_command_line_from_plan_to_rollback(
    vcenter: Simulator,
    hosts: Hosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "hosts.yaml"
    file.write_text(hosts_file(vcenter, "esx1", POWER + "    adapters: [{model: X710}]\n"))
    assert main(["host", "plan", str(file)]) == 3
    assert "power policy: dynamic -> static" in capsys.readouterr().out
    assert main(["host", "status", str(file)]) == 4
    assert main(["host", "apply", str(file), "--yes"]) == 0
    assert main(["host", "status", str(file), "--json"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out[out.index("{") :])
    assert told["hosts"][0]["facts"]["esxi"]["power"] == "static"
    assert main(["host", "rollback", str(file), "--dry-run"]) == 3
    assert main(["host", "rollback", str(file), "--yes"]) == 0
    assert hosts.power("esx1") == "dynamic"


def test_two_at_once_are_one_too_many(vcenter: Simulator, hosts: Hosts, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with locked(state / "lock", "lab"), pytest.raises(LockedError, match="lab"):
        applier(hosts_file(vcenter), state).apply()
    assert [hosts.options(name) for name in hosts.refs] == ["drss=4"] * 3


def test_a_host_that_the_vcenter_does_not_know_is_refused(
    vcenter: Simulator, hosts: Hosts, tmp_path: Path
) -> None:
    with pytest.raises(HostError, match=r"nothing was written:\n  esx9: .* is not there") as caught:
        applier(hosts_file(vcenter, "esx1,esx9"), tmp_path / "state").apply()
    assert "the names that vCenter shows" in caught.value.hint
    assert hosts.options("esx1") == "drss=4"


# The simulator refuses what a vCenter refuses


def test_a_reboot_wants_maintenance_mode(hosts: Hosts) -> None:
    with pytest.raises(BackendError, match="InvalidState"):
        hosts.session.wait("x", partial(hosts.refs["esx1"].RebootHost_Task, False))
    hosts.evict("esx1")
    with pytest.raises(BackendError, match="InvalidState"):
        hosts.evict("esx1")


def test_more_functions_than_a_card_offers_are_refused(hosts: Hosts) -> None:
    system = hosts.refs["esx1"].configManager.pciPassthruSystem
    for address, count, fault in (
        ("0000:af:00.0", 33, vmodl.fault.InvalidArgument),
        ("0000:1a:00.0", 1, vim.fault.HostConfigFault),
        ("0000:99:00.0", 1, vim.fault.NotFound),
    ):
        config = vim.host.SriovConfig(
            id=address, passthruEnabled=False, sriovEnabled=True, numVirtualFunction=count
        )
        with pytest.raises(fault):
            system.UpdatePassthruConfig([config])
    with pytest.raises(vim.fault.NotFound):
        hosts.refs["esx1"].configManager.kernelModuleSystem.UpdateModuleOptionString("none", "a=1")


def test_machines_get_no_function_that_is_not_there(hosts: Hosts) -> None:
    with pytest.raises(BackendError, match=r"0000:3b:00.0 has no free virtual function"):
        hosts.machine("early", "esx1", [sriov_card()])
    hosts.set_options("esx2", "max_vfs=0,0,1,0")
    hosts.evict("esx2")
    hosts.session.wait("x", partial(hosts.refs["esx2"].RebootHost_Task, False))
    back_in_service(hosts, "esx2")
    first = hosts.machine("first", "esx2", [sriov_card()])
    with pytest.raises(BackendError, match="no free virtual function, 1 are in use"):
        hosts.machine("second", "esx2", [sriov_card()])
    hosts.remove(first)


def test_the_config_target_tells_functions_that_are_there(
    vcenter: Simulator, tmp_path: Path
) -> None:
    session = vcenter.session()
    hosts = Hosts(session)
    content = session.content
    compute = next(iter(fetch(content, content.rootFolder, vim.ClusterComputeResource, ["name"])))
    browser = compute.environmentBrowser
    assert not browser.QueryConfigTarget(hosts.refs["esx1"]).sriov
    applier(hosts_file(vcenter, "esx1"), tmp_path / "state").apply()
    found = browser.QueryConfigTarget(hosts.refs["esx1"]).sriov
    assert {(s.pnic, s.pciDevice.id) for s in found} == {
        ("vmnic2", "0000:3b:00.0"),
        ("vmnic3", "0000:3b:00.1"),
    }
    modules = hosts.refs["esx1"].configManager.kernelModuleSystem.QueryModules()
    assert {m.name: m.optionString for m in modules}["nmlx5_core"] == "drss=4 max_vfs=0,0,8,7"
    session.close()
