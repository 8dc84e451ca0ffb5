# SPDX-License-Identifier: Apache-2.0
"""ESXi hosts under a vCenter: facts in, steps out, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.core.errors import HostError, SpecError
from nearmetal.host.apply import Applier, Patience
from nearmetal.host.esxi_marks import Marks
from nearmetal.host.facts import Reach
from nearmetal.host.facts_esxi import with_shell
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.model import CardFacts, EsxiFacts, PlatformFacts, PortFacts
from nearmetal.host.plan import HostPlan, plan_host, plan_hosts, refuse
from nearmetal.host.rollback import Back, plan_back
from nearmetal.host.shell import take
from nearmetal.host.show import status_lines
from nearmetal.host.stages.esxi import install_command, parse_options
from nearmetal.host.steps import (
    ByHand,
    EnterMaintenance,
    Install,
    LeaveMaintenance,
    SetConfig,
    SetOptions,
    SetPassthru,
    SetPower,
    Stage,
    Step,
    Wait,
)
from tests.python.provision_host import FACTORY, esxi, settings
from tests.python.provision_lab import HostTree

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.host.hosts_file import HostGroup

HEAD = """\
version: 1
name: paper
hosts:
  - nodes: esx1
    platform: esxi
    vcenter: {server: vc.example.org, user: admin}
"""
PORTS = """\
    adapters:
      - model: ConnectX-5
        num_of_vfs: 16
        ports: [{link: infiniband, vfs: 8}, {link: infiniband, vfs: 7}]
"""
POLICIES = ("static", "dynamic", "low", "custom")


def port(address: str, driver: str, **more: Any) -> PortFacts:
    return PortFacts(address, driver, **more)


def facts(
    options: str = "", vfs: tuple[int, int] = (0, 0), offers: int = 16, **more: Any
) -> PlatformFacts:
    """The paper's host as its vCenter tells it, and a card whose VFs ESXi makes by itself."""
    cards = (
        CardFacts(
            "0000:1a:00",
            "ConnectX-4LX",
            tuple(port(f"0000:1a:00.{n}", "nmlx5_core", state="Up") for n in (0, 1)),
        ),
        CardFacts(
            "0000:3b:00",
            "ConnectX-5",
            tuple(
                port(
                    f"0000:3b:00.{n}",
                    "nmlx5_core",
                    netdev=f"vmnic{n + 2}",
                    total_vfs=offers,
                    vfs=vfs[n],
                    state="Down",
                )
                for n in (0, 1)
            ),
        ),
        CardFacts(
            "0000:5e:00",
            "X710",
            (port("0000:5e:00.0", "i40en", netdev="vmnic4", total_vfs=32, state="Up"),),
        ),
    )
    told: dict[str, Any] = {"power": "dynamic", "policies": POLICIES, "vsan": True} | more
    return PlatformFacts(
        "esx1",
        "esxi",
        boot="1",
        cards=cards,
        esxi=EsxiFacts(**told),
        options={"nmlx5_core": options} if options else {},
    )


def plan(text: str, found: PlatformFacts) -> HostPlan:
    [(name, group)] = parse_hosts(text).each()
    return plan_host(name, group, found)


def refusals(found: HostPlan) -> str:
    return "\n".join(f"{refusal.what} | {refusal.hint}" for refusal in found.refusals)


def actions(found: HostPlan) -> list[str]:
    return [type(step.action).__name__ for step in found.steps]


def test_the_worked_example_of_the_paper_is_one_reboot_in_maintenance_mode() -> None:
    found = plan(HEAD + PORTS, facts())
    assert actions(found) == ["EnterMaintenance", "SetOptions", "LeaveMaintenance"]
    assert found.reboots == 1
    assert [bool(phase.forcing) for phase in found.phases] == [True, False]
    enter, options, leave = (step.action for step in found.steps)
    assert enter == EnterMaintenance("ensureObjectAccessibility")
    assert options == SetOptions("nmlx5_core", "max_vfs=0,0,8,7", "")
    assert leave == LeaveMaintenance()
    assert plan(HEAD + PORTS, facts("max_vfs=0,0,8,7", (8, 7))).steps == ()


def test_one_virtual_function_more_is_refused_with_the_sum() -> None:
    found = plan(HEAD + PORTS.replace("vfs: 7", "vfs: 8"), facts())
    assert "8 + 8 VFs + 1 for the physical function = 17, more than num_of_vfs: 16" in refusals(
        found
    )


def test_what_only_a_shell_can_do_is_stated_with_its_commands() -> None:
    found = plan(HEAD + PORTS, facts(offers=0))
    [step] = [step for step in found.steps if isinstance(step.action, ByHand)]
    assert isinstance(step.action, ByHand)
    assert step.action.commands == tuple(
        f"mlxconfig -d 3b:00.0 -y set {setting}"
        for setting in (
            "LINK_TYPE_P1=1",
            "LINK_TYPE_P2=1",
            "ADVANCED_PCI_SETTINGS=1",
            "FORCE_ETH_PCI_SUBCLASS=1",
            "SRIOV_EN=1",
            "NUM_OF_VFS=16",
        )
    )
    assert "offers 0 VFs, 16 are needed" in step.text
    assert found.reboots == 1
    file = parse_hosts(HEAD + PORTS)
    plans = plan_hosts(file, {"esx1": facts(offers=0)})
    with pytest.raises(
        HostError, match=r"because a person comes first:\n  esx1: .*NUM_OF_VFS=16"
    ) as caught:
        refuse(plans, file)
    assert "--by-hand-done" in caught.value.hint
    refuse(plans, file, by_hand_done=True)


def test_address_translation_by_the_card_is_set_by_hand_and_told_where_it_may_be_so() -> None:
    text = HEAD + PORTS.replace("num_of_vfs: 16", "num_of_vfs: 16\n        ats: true")
    [step] = [s for s in plan(text, facts(offers=0)).steps if isinstance(s.action, ByHand)]
    assert isinstance(step.action, ByHand)
    assert step.action.commands[-1] == "mlxconfig -d 3b:00.0 -y set ATS_ENABLED=1"
    alone = HEAD + "    adapters: [{model: ConnectX-5, ats: false}]\n"
    found = plan(alone, facts())
    assert found.steps == ()
    assert "`mlxconfig -d 3b:00.0 query` must show 0" in " ".join(r.text for r in found.remarks)


def test_a_shell_of_esxi_needs_no_place_for_a_lock(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").make()
    host.tool("mlxconfig", f'echo "$@" >>{tmp_path}/asked')
    (host.root / "run").rmdir()
    action = SetConfig("mt4119_pciconf1", "SRIOV_EN", "1", "0")
    step = Step(Stage.FIRMWARE, "sriov", "SRIOV_EN 0 -> 1", action)
    with pytest.raises(HostError, match=r"nearmetal-host\.lock"):
        take(host, step)
    take(host, step, alone=False)
    assert (tmp_path / "asked").read_text() == "-d mt4119_pciconf1 -y set SRIOV_EN=1\n"


def test_packages_are_installed_by_hand_before_the_firmware_is_set() -> None:
    text = (
        HEAD
        + PORTS
        + (
            "    packages: [{name: mft, version: 4.18.1, file: /vmfs/mft.vib},\n"
            "               {name: nmst, version: 4.18.1, file: /vmfs/nmst.zip}]\n"
        )
    )
    found = plan(text, facts(offers=0))
    commands = [c for s in found.steps if isinstance(s.action, ByHand) for c in s.action.commands]
    assert commands[:2] == [
        "esxcli software vib install -v /vmfs/mft.vib",
        "esxcli software vib install -d /vmfs/nmst.zip",
    ]
    assert found.reboots == 2
    there = replace(facts(offers=0), packages={"mft": "4.18.1.14-0", "nmst": "4.19-0"})
    assert plan(text, there).reboots == 1


def test_the_name_of_a_package_file_is_one_word_for_the_shell_of_the_host() -> None:
    depot = "/vmfs/volumes/data store/a;b.zip"
    command = install_command(Install("mft", depot))
    assert command == f"esxcli software vib install -d '{depot}'"


def test_over_ssh_the_firmware_is_set_and_not_stated() -> None:
    shell = esxi()
    both = with_shell(facts(offers=0), shell)
    text = HEAD.replace("user: admin}", "user: admin}\n    ssh: {}") + PORTS
    found = plan(text, both)
    assert actions(found) == [
        "EnterMaintenance",
        *["SetConfig"] * 5,
        "SetOptions",
        "SetConfig",
        "LeaveMaintenance",
    ]
    assert found.reboots == 2
    card = both.cards[1]
    assert (card.psid, card.device) == ("MT_0000000008", "mt4119_pciconf1")
    assert card.config == settings(FACTORY)
    assert card.ports[0].netdev == "vmnic2"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("drss=4", "drss=4 max_vfs=0,0,8,7"),
        ('max_vfs="0,0,1,1" pfctx=8 note="a b"', 'max_vfs=0,0,8,7 pfctx=8 note="a b"'),
        ("  max_vfs=1,0,1,1   drss=4 ", "max_vfs=1,0,8,7 drss=4"),
    ],
)
def test_other_options_and_ports_keep_what_they_have(before: str, after: str) -> None:
    [action] = [
        s.action
        for s in plan(HEAD + PORTS, facts(before)).steps
        if isinstance(s.action, SetOptions)
    ]
    assert (action.options, action.before) == (after, before)


@pytest.mark.parametrize(
    "text", ["max_vfs", "=4", 'note="a', "a=1,b =2", "a=b=c d", "a=\x1b[31m", 'a="\n"']
)
def test_options_that_would_be_lost_are_refused(text: str) -> None:
    assert parse_options(text) is None
    assert "not understood, and would be lost" in refusals(plan(HEAD + PORTS, facts(text)))


def test_what_is_set_and_not_in_force_waits_for_a_reboot() -> None:
    found = plan(HEAD + PORTS, facts("max_vfs=0,0,8,7", (8, 0)))
    assert actions(found) == ["EnterMaintenance", "Wait", "LeaveMaintenance"]
    assert "0000:3b:00.1 has 0 of 7" in found.steps[1].text
    assert found.reboots == 1


def test_a_port_that_no_driver_has_yet_counts_in_its_place() -> None:
    unclaimed = facts("max_vfs=0,0,8,7")
    card = unclaimed.cards[1]
    ports = tuple(replace(p, driver="", netdev="") for p in card.ports)
    cards = (unclaimed.cards[0], replace(card, ports=ports))
    found = plan(HEAD + PORTS, replace(unclaimed, cards=cards))
    assert actions(found) == ["EnterMaintenance", "Wait", "LeaveMaintenance"]
    assert "0000:3b:00.0 has 0 of 8" in found.steps[1].text


def test_no_virtual_functions_need_no_option() -> None:
    none = PORTS.replace("vfs: 8", "vfs: 0").replace("vfs: 7", "vfs: 0")
    assert plan(HEAD + none, facts("drss=4")).steps == ()
    [_, step, _] = plan(HEAD + none, facts("max_vfs=0,0,8,7", (8, 7))).steps
    assert isinstance(step.action, SetOptions)
    assert step.action.options == "max_vfs=0,0,0,0"


def test_virtual_functions_of_other_drivers_are_made_by_esxi() -> None:
    text = HEAD + "    adapters: [{model: X710, ports: [{vfs: 4}]}]\n"
    [_, step, _] = plan(text, facts()).steps
    assert step.action == SetPassthru("0000:5e:00.0", 4, 0)
    assert step.text == "vmnic4: 0 -> 4 VFs"
    [_, step, _] = plan(text, facts(requested={"0000:5e:00.0": 4})).steps
    assert isinstance(step.action, Wait)
    many = plan(text.replace("vfs: 4", "vfs: 33"), facts())
    assert "vmnic4 offers 32 VFs, not 33 | use at most 32" in refusals(many)


def test_the_power_policy_counts_at_once() -> None:
    text = HEAD + "    esxi: {power: high-performance}\n"
    found = plan(text, facts())
    assert [step.action for step in found.steps] == [SetPower("static", "dynamic")]
    assert found.reboots == 0
    assert plan(text, facts(power="static")).steps == ()
    assert "it has none: the BIOS" in refusals(plan(text, facts(policies=(), power="")))


def test_machines_that_cannot_move_are_named_where_the_host_must_reboot() -> None:
    found = plan(HEAD + PORTS, facts(machines=("a", "b", "c"), bound=("b",)))
    assert "cannot move: b | power them off" in refusals(found)
    found = plan(HEAD + PORTS, facts(machines=("a", "c")))
    assert found.steps[0].text == "enter maintenance mode (vSAN: ensureObjectAccessibility)"
    assert "2 machines move away for the reboot" in [r.text for r in found.remarks]
    text = HEAD + "    esxi: {power: low-power, vsan: evacuate}\n"
    assert actions(plan(text, facts(bound=("b",)))) == ["SetPower"]
    [enter] = [
        s.action
        for s in plan(text + PORTS, facts()).steps
        if isinstance(s.action, EnterMaintenance)
    ]
    assert enter.vsan == "evacuateAllData"
    [enter] = [
        s.action
        for s in plan(text + PORTS, facts(vsan=False)).steps
        if isinstance(s.action, EnterMaintenance)
    ]
    assert enter.vsan == ""


def test_maintenance_mode_of_somebody_else_stays() -> None:
    found = plan(HEAD + PORTS, facts(maintenance=True))
    assert actions(found) == ["SetOptions"]
    assert "it is in maintenance mode, and stays so" in [r.text for r in found.remarks]
    done = facts("max_vfs=0,0,8,7", (8, 7), maintenance=True)
    assert plan(HEAD + PORTS, done).steps == ()
    assert done.esxi is not None
    ours = replace(done, esxi=replace(done.esxi, ours=True))
    assert actions(plan(HEAD + PORTS, ours)) == ["LeaveMaintenance"]
    power = "    esxi: {power: high-performance}\n"
    assert actions(plan(HEAD + power + PORTS, ours)) == ["SetPower", "LeaveMaintenance"]


def test_status_says_that_an_uplink_of_infiniband_is_down_by_nature() -> None:
    file, found = parse_hosts(HEAD + PORTS), {"esx1": facts("max_vfs=0,0,8,7", (8, 7))}
    lines = "\n".join(status_lines(plan_hosts(file, found), found))
    assert "shows Down (vmnic2, vmnic3): this is normal" in lines
    assert "no cable" not in lines
    assert "vmnic2  nmlx5_core  Down  8 of 16 VFs" in lines
    assert "in service, power policy dynamic, vSAN, 0 machines on" in lines


def back(kept: dict[str, Any], found: PlatformFacts) -> Back:
    [(name, group)] = parse_hosts(HEAD + PORTS).each()
    return plan_back(name, group, found, kept)


def kept_options(before: str) -> dict[str, Any]:
    return {
        "options": {
            "action": "SetOptions",
            "module": "nmlx5_core",
            "options": "max_vfs=0,0,8,7",
            "before": before,
        }
    }


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        ("", "max_vfs=0,0,8,7", ""),
        ("drss=4", "drss=4 max_vfs=0,0,8,7 pfctx=8", "drss=4 pfctx=8"),
        ("max_vfs=0,0,1,1", "max_vfs=0,0,8,7", "max_vfs=0,0,1,1"),
    ],
)
def test_the_way_back_changes_only_max_vfs(before: str, now: str, after: str) -> None:
    found = back(kept_options(before), facts(now, (8, 7))).plan
    assert actions(found) == ["EnterMaintenance", "SetOptions", "LeaveMaintenance"]
    [action] = [s.action for s in found.steps if isinstance(s.action, SetOptions)]
    assert action.options == after
    assert actions(back(kept_options(before), facts(after, (8, 7))).plan)[1] == "Wait"
    vfs = (1, 1) if "1,1" in before else (0, 0)
    assert back(kept_options(before), facts(after, vfs)).plan.steps == ()


def test_the_way_back_of_power_and_of_other_drivers() -> None:
    kept: dict[str, dict[str, Any]] = {
        "power": {"action": "SetPower", "policy": "static", "before": "dynamic"},
        "vfs": {"action": "SetPassthru", "address": "0000:5e:00.0", "count": 4, "before": 0},
    }
    found = back(kept, facts(power="static", requested={"0000:5e:00.0": 4})).plan
    assert {type(s.action): s.action for s in found.steps} == {
        EnterMaintenance: EnterMaintenance("ensureObjectAccessibility"),
        SetPassthru: SetPassthru("0000:5e:00.0", 0, 4),
        SetPower: SetPower("dynamic", "static"),
        LeaveMaintenance: LeaveMaintenance(),
    }
    gone = back({"vfs": kept["vfs"] | {"address": "0000:9a:00.0"}}, facts()).plan
    assert "had 0 VFs, and is not there any more" in refusals(gone)


def test_marks_are_of_one_host_and_outlive_the_process(tmp_path: Path) -> None:
    marks = Marks(tmp_path)
    marks.enter("esx1")
    marks.reboot("esx1", {"options": "max_vfs"}, "boot 1")
    marks.enter("esx2")
    later = Marks(tmp_path)
    found = later.on("esx1", facts()).esxi
    assert found is not None
    assert found.ours
    assert later.tried("esx1", "boot 1") == {}
    assert later.tried("esx1", "boot 2") == {"options": "max_vfs"}
    later.retry("esx1")
    assert later.tried("esx1", "boot 2") == {}
    later.forget(["esx1", "esx3"])
    assert marks.names() == {"esx2"}
    later.forget(["esx2"])
    assert not marks.path.exists()
    marks.path.write_text("[]")
    with pytest.raises(HostError, match=r"esxi\.json is damaged"):
        marks.on("esx1", facts())


BOOT = "2026-03-01 08:00:00+00:00"


@pytest.mark.parametrize(
    ("now", "rebooted"),
    [
        (BOOT, False),
        ("2026-03-01 08:00:01.250000+00:00", False),
        ("2026-03-01 07:59:31+00:00", False),
        ("2026-03-01 09:00:00+01:00", False),
        ("2026-03-01 08:01:00+00:00", True),
        ("2026-03-01 07:59:00+00:00", True),
        ("2026-03-01 08:00:00", True),
        ("", True),
    ],
)
def test_a_clock_that_is_corrected_is_no_reboot(
    tmp_path: Path, now: str, *, rebooted: bool
) -> None:
    marks = Marks(tmp_path)
    marks.reboot("esx1", {"options": "max_vfs"}, BOOT)
    assert bool(marks.tried("esx1", now)) == rebooted


class Evacuating:
    """A host of a vCenter that does not get into maintenance mode; by its last task, perhaps later."""

    def __init__(self, cause: Exception | None, *, goes_on: bool) -> None:
        self.cause = cause
        self.goes_on = goes_on

    def read(self, *, packages: bool) -> PlatformFacts:
        assert not packages
        return facts()

    def enter_maintenance(self, vsan: str) -> None:
        raise HostError(f"esx1: entering maintenance mode ({vsan})") from self.cause

    def in_maintenance(self) -> bool:
        return False

    def is_entering(self) -> bool:
        return self.goes_on


class Center(Reach):
    """A vCenter with that host alone."""

    def __init__(self, host: Evacuating) -> None:
        super().__init__()
        self.host = host

    def vsphere(self, name: str, group: HostGroup) -> Any:
        assert (name, group.platform) == ("esx1", "esxi")
        return self.host

    def redfish(self, name: str, group: HostGroup) -> None:
        assert (name, group.bmc) == ("esx1", None)

    def shell(self, name: str, group: HostGroup) -> Any:
        raise HostError(f"{name} has no shell, and its group {group.nodes} says so")

    def scheduler(self) -> Any:
        raise HostError("it is no node of Slurm")


@pytest.mark.parametrize(
    ("before", "cause", "goes_on", "ours"),
    [
        (False, None, False, False),  # it failed
        (False, None, True, False),  # somebody else is at it
        (False, ConnectionResetError(), True, True),  # ours goes on without us
        (False, ConnectionResetError(), False, False),
        (True, None, True, True),  # that of a run that was killed does
        (True, None, False, False),
    ],
)
def test_whose_maintenance_mode_it_becomes_is_known_after_a_failure(
    tmp_path: Path, before: bool, cause: Exception | None, goes_on: bool, ours: bool
) -> None:
    marks = Marks(tmp_path)
    if before:
        marks.enter("esx1")
    center = Center(Evacuating(cause, goes_on=goes_on))
    patience = Patience(by_hand_done=True)
    with pytest.raises(HostError, match="entering maintenance mode"):
        Applier(parse_hosts(HEAD + PORTS), center, tmp_path, patience).apply()
    assert marks.is_ours("esx1") is ours


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("platform: esxi", "platform: linux", "is for esxi, and the platform is linux"),
        (
            "    vcenter: {server: vc.example.org, user: admin}\n",
            "    esxi: {power: balanced}\n",
            "needs a vCenter",
        ),
        ("user: admin", "user: admin, password: secret", "would hold a secret"),
    ],
)
def test_what_a_file_may_not_say_is_told(old: str, new: str, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hosts((HEAD + PORTS).replace(old, new))
    assert why in str(caught.value)
