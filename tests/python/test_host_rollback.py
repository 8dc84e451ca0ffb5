# SPDX-License-Identifier: Apache-2.0
"""Hosts become what they were before the first apply, as far as that can be."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cli.host import roll_back
from nearmetal.cli.view import View
from nearmetal.core.errors import HostError
from nearmetal.core.journal import Journal
from nearmetal.host.apply import Earlier
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.model import BiosFacts
from nearmetal.host.places import GRUB, RULES
from nearmetal.host.rollback import Back, Rollback, plan_back
from nearmetal.host.shell import script_of
from nearmetal.host.steps import SetArguments, SetBios, SetConfig, SetVfs, Step, Wait
from tests.python.provision_host import linux
from tests.python.provision_lab import FACTORY, LabReach
from tests.python.sriov_tree import Killed
from tests.python.test_host_apply import FILE, ONE, QUICK, Rebooting, applier

GROUP = parse_hosts(ONE).hosts[0]


def back(kept: dict[str, Any], **changed: object) -> Back:
    return plan_back("kvm1", GROUP, linux(**changed), kept)


def rollback(text: str, lab: dict[str, Rebooting], state: Path) -> Rollback:
    return Rollback(parse_hosts(text), LabReach(dict(lab)), state, QUICK)


def is_factory(host: Rebooting) -> bool:
    words = (host.root / "proc/cmdline").read_text().split()
    files = [path for path in (RULES, GRUB) if (host.root / path[1:]).exists()]
    return (host.config(), host.vfs(), files, words) == (FACTORY, ["0", "0"], [], ["quiet"])


@pytest.fixture
def lab(tmp_path: Path) -> dict[str, Rebooting]:
    return {f"kvm{n}": Rebooting(tmp_path / f"kvm{n}").make() for n in (1, 2, 3)}


def test_hosts_are_as_they_left_the_factory_after_one_reboot_each(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    applier(FILE, lab, state).apply()
    assert not any(is_factory(host) for host in lab.values())
    plan = rollback(FILE, lab, state).apply()
    assert [host.reboots for host in plan.hosts] == [1, 1, 1]
    assert all(is_factory(host) and host.reboots == 2 for host in lab.values())
    assert Earlier(state).read() == {}
    assert {record.verb for record in Journal(state).read()} == {"host apply", "host rollback"}
    writes = [host.writes for host in lab.values()]
    assert rollback(FILE, lab, state).apply().hosts == ()
    assert [host.writes for host in lab.values()] == writes


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    lab: dict[str, Rebooting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, view = tmp_path / "state", View(as_json=False)
    assert roll_back(rollback(FILE, lab, state), view, dry_run=True) == 0
    assert "no earlier state of the hosts of this file is recorded" in capsys.readouterr().out
    assert not state.exists()
    applier(ONE, lab, state).apply()
    before = lab["kvm1"].writes, (state / "before.json").read_bytes()
    assert roll_back(rollback(FILE, lab, state), view, dry_run=True) == 3
    shown = capsys.readouterr().out
    assert "NUM_OF_VFS 4 -> 0" in shown
    assert f"remove {GRUB}" in shown
    assert "1 reboot" in shown
    assert "kvm2" not in shown
    assert (lab["kvm1"].writes, (state / "before.json").read_bytes()) == before
    other = FILE.replace("kvm[1-3]", "kvm[2-3]")
    assert roll_back(rollback(other, lab, state), view, dry_run=True) == 0
    assert "not among these hosts, and with kept values: kvm1" in capsys.readouterr().out
    assert roll_back(rollback(FILE, lab, state), view, dry_run=False, yes=True) == 0
    assert is_factory(lab["kvm1"])


@pytest.mark.parametrize("where", ["kill_before", "kill_after"])
def test_it_may_die_at_every_step_and_is_taken_up(tmp_path: Path, where: str) -> None:
    whole = Rebooting(tmp_path / "whole").make()
    applier(ONE, {"kvm1": whole}, tmp_path / "s0").apply()
    first = whole.writes
    rollback(ONE, {"kvm1": whole}, tmp_path / "s0").apply()
    assert whole.writes > first
    for number in range(first + 1, whole.writes + 1):
        host, state = Rebooting(tmp_path / f"h{number}").make(), tmp_path / f"s{number}"
        applier(ONE, {"kvm1": host}, state).apply()
        setattr(host, where, number)
        with pytest.raises(Killed):
            rollback(ONE, {"kvm1": host}, state).apply()
        setattr(host, where, 0)
        rollback(ONE, {"kvm1": host}, state).apply()
        assert is_factory(host)
        assert host.reboots == 2
        assert Earlier(state).read() == {}


def test_a_rollback_cut_short_may_be_followed_by_an_apply(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    applier(ONE, lab, state).apply()
    kept = Earlier(state).read()
    lab["kvm1"].kill_after = lab["kvm1"].writes + 2
    with pytest.raises(Killed):
        rollback(ONE, lab, state).apply()
    lab["kvm1"].kill_after = 0
    applier(ONE, lab, state).apply()
    again = Earlier(state).read()
    again["kvm1"]["kernel"].pop("restored", None)
    assert again == kept
    rollback(ONE, lab, state).apply()
    assert is_factory(lab["kvm1"])


KERNEL = """\
version: 1
name: lab
hosts: [{nodes: kvm1, platform: linux, kernel: {iommu: passthrough}}]
"""


def test_arguments_that_a_rollback_took_away_are_seen_before_the_host_has_booted(
    tmp_path: Path,
) -> None:
    host, state = Rebooting(tmp_path / "kvm1").make(), tmp_path / "state"
    applier(KERNEL, {"kvm1": host}, state).apply()
    host.kill_after = host.writes + 1
    with pytest.raises(Killed):
        rollback(KERNEL, {"kvm1": host}, state).apply()
    host.kill_after = 0
    assert not (host.root / GRUB[1:]).exists()
    assert applier(KERNEL, {"kvm1": host}, state).apply().hosts[0].reboots == 1
    assert (host.root / GRUB[1:]).exists()
    assert "iommu=pt" in (host.root / "proc/cmdline").read_text()
    assert applier(KERNEL, {"kvm1": host}, state).apply().empty
    rollback(KERNEL, {"kvm1": host}, state).apply()
    assert is_factory(host)


# Takes arguments off, or puts them in the place of those of the same name, for the next boot.
GRUBBY = """
touch "$next"
for option; do
  case $option in
  --args=*) for word in ${option#*=}; do
      sed -i "/^${word%%=*}\\(=.*\\)\\{0,1\\}$/d" "$next"; echo "$word" >>"$next"; done ;;
  --remove-args=*) for word in ${option#*=}; do sed -i "/^$word$/d" "$next"; done ;;
  esac
done
echo "\\$GRUB_CMDLINE_LINUX $(tr '\\n' ' ' <"$next")" >"$cfg"
"""


def test_what_several_applies_gave_to_grubby_goes_back_whole(tmp_path: Path) -> None:
    host, state = Rebooting(tmp_path / "kvm1").make(loader=False), tmp_path / "state"
    host.tool("grubby", f"next={host.root}/next cfg={host.root}/grub.cfg\n{GRUBBY}")
    applier(KERNEL, {"kvm1": host}, state).apply()
    for isolated in ("1-3", "1-7"):
        more = KERNEL.replace(
            "passthrough", f"passthrough, isolate: {isolated}, arguments: [nosmt]"
        )
        applier(more, {"kvm1": host}, state).apply()
        words = (host.root / "proc/cmdline").read_text().split()
        assert {"iommu=pt", f"isolcpus={isolated}", "nosmt"} <= set(words)
    rollback(KERNEL, {"kvm1": host}, state).apply()
    assert is_factory(host)
    assert Earlier(state).read() == {}


@pytest.mark.parametrize("later", [4, 6])
def test_vfs_that_were_there_before_stay(tmp_path: Path, later: int) -> None:
    host, state = Rebooting(tmp_path / "kvm1").make(), tmp_path / "state"
    text = KERNEL.replace(
        "kernel: {iommu: passthrough}",
        f"adapters: [{{model: ConnectX-5, ports: [{{vfs: {later}}}]}}]",
    )
    config = json.loads(host.state.read_text())
    for name, value in (("SRIOV_EN", "1"), ("NUM_OF_VFS", "8")):
        config["0000:3b:00.0"][name] = [value] * 3
    host.state.write_text(json.dumps(config))
    device = host.root / "sys/bus/pci/devices/0000:3b:00.0"
    (device / "sriov_totalvfs").write_text("8\n")
    (device / "sriov_numvfs").write_text("4\n")
    applier(text, {"kvm1": host}, state).apply()
    assert host.vfs()[0] == str(later)
    rollback(text, {"kvm1": host}, state).apply()
    assert host.vfs()[0] == "4"
    assert Earlier(state).read() == {}


def test_vfs_in_use_and_running_machines_stand_in_the_way(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    applier(ONE, lab, tmp_path / "state").apply()
    writes = lab["kvm1"].writes
    lab["kvm1"].tree.put("proc/4711/comm", "qemu-system-x86")
    with pytest.raises(HostError, match="1 virtual machines run on it"):
        rollback(ONE, lab, tmp_path / "state").apply()
    assert lab["kvm1"].writes == writes


def test_a_host_that_is_gone_is_named_and_nothing_is_written(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    applier(FILE, lab, tmp_path / "state").apply()
    writes = [host.writes for host in lab.values()]
    (lab["kvm2"].bin / "mlxconfig").unlink()
    with pytest.raises(
        HostError, match=r"nothing was written:\n  kvm2: .* cannot be read any more"
    ):
        rollback(FILE, lab, tmp_path / "state").apply()
    assert [host.writes for host in lab.values()] == writes


def burnt(before: str) -> dict[str, Any]:
    return {
        "action": "Burn",
        "device": "0000:3b:00.0",
        "file": "/f",
        "sha256": "0" * 64,
        "version": "16.32.1010",
        "before": before,
    }


def test_burnt_firmware_stays_and_is_told_until_it_is_back(
    lab: dict[str, Rebooting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, view = tmp_path / "state", View(as_json=False)
    applier(ONE, lab, state).apply()
    Earlier(state).keep("kvm1", "burn 0000:3b:00", burnt("16.28.4000"))
    for _ in range(2):
        assert roll_back(rollback(ONE, lab, state), view, dry_run=False, yes=True) == 4
        assert "kvm1: left: " in (shown := capsys.readouterr().out)
        assert "firmware stays 16.32.1010, it was 16.28.4000" in shown
        assert is_factory(lab["kvm1"])
        assert list(Earlier(state).read()["kvm1"]) == ["burn 0000:3b:00"]
    found = json.loads((state / "before.json").read_text())
    found["kvm1"]["burn 0000:3b:00"]["before"] = "16.32.1010"
    (state / "before.json").write_text(json.dumps(found))
    assert roll_back(rollback(ONE, lab, state), view, dry_run=False, yes=True) == 0
    assert Earlier(state).read() == {}


def config(before: str | None, device: str = "0000:3b:00.0") -> dict[str, Any]:
    return {
        "action": "SetConfig",
        "device": device,
        "setting": "SRIOV_EN",
        "value": "2",
        "before": before,
    }


def bios(name: str, before: object) -> dict[str, Any]:
    return {"action": "SetBios", "attribute": name, "value": "x", "before": before}


def test_bios_and_settings_go_back_last_change_first() -> None:
    found = back(
        {"a": bios("LogicalProc", "Disabled"), "b": config("1"), "c": bios("BootMode", "Bios")}
    )
    assert [step.action for step in found.plan.steps] == [
        SetBios("BootMode", "Bios", "Uefi"),
        SetBios("LogicalProc", "Disabled", "Enabled"),
        SetConfig("0000:3b:00.0", "SRIOV_EN", "1", "0"),
    ]
    assert found.plan.reboots == 1
    assert not back({"a": bios("LogicalProc", "Enabled"), "b": config("0")}).plan.steps


def test_what_was_not_known_before_stays() -> None:
    found = back({"config 0000:3b:00 SRIOV_EN": config(None)})
    assert (found.plan.steps, found.left) == ((), ("config 0000:3b:00 SRIOV_EN",))
    assert "is left unchanged" in found.plan.remarks[0].text
    gone = {"config 0000:3b:00 NEW": config(None) | {"setting": "NEW"}}
    assert (back(gone).left, back(gone).plan.remarks) == ((), ())


@pytest.mark.parametrize(
    ("entry", "changed", "why"),
    [
        (bios("Gone", "x"), {}, "this BIOS has no such attribute now"),
        (bios("BootMode", "Bios"), {"bios": None}, "the BIOS could not be read"),
        (config("1", "0000:5e:00.0"), {}, "0000:5e:00.0 cannot be read any more"),
        (config("1"), {"cards": ()}, "cannot be read any more"),
        ({"action": "WriteFile", "path": "/etc/passwd", "before": "x"}, {}, "not understood"),
        ({"action": "SetConfig", "device": 7}, {}, "not understood"),
        ({"action": "SetArguments", "arguments": [1], "before": []}, {}, "not understood"),
        ({"action": "Install", "name": "mft", "file": "/x"}, {}, "not understood"),
        ({}, {}, "not understood"),
        ("text", {}, "not understood"),
    ],
)
def test_what_cannot_be_put_back_is_refused(entry: Any, changed: dict[str, Any], why: str) -> None:
    found = back({"key": entry}, **changed)
    assert why in found.plan.refusals[0].what
    assert not found.plan.steps


def test_arguments_of_grubby_go_until_the_host_has_booted() -> None:
    entry = {"action": "SetArguments", "arguments": ["iommu=pt", "quiet"], "before": ["quiet"]}
    cmdline = ("quiet", "iommu=pt")
    (step,) = back({"kernel": entry}, loader="grubby", cmdline=cmdline).plan.steps
    assert step.action == SetArguments(("quiet",), cmdline, ("iommu=pt", "quiet"))
    assert step.reboot
    assert script_of(step) == (
        "grubby --update-kernel=ALL '--remove-args=iommu=pt quiet'\n"
        "grubby --update-kernel=ALL --args=quiet\n"
    )
    assert back({"kernel": entry | {"restored": "1"}}, cmdline=cmdline).plan.steps == (step,)
    assert not back({"kernel": entry | {"restored": "0"}}, cmdline=cmdline).plan.steps


def test_a_file_that_is_back_waits_for_its_reboot() -> None:
    entry = {"action": "WriteFile", "path": GRUB, "content": "x", "before": None}
    (step,) = back({"kernel": entry | {"restored": "1"}}).plan.steps
    assert (step.action, bool(step.reboot)) == (Wait(), True)
    assert not back({"kernel": entry | {"restored": "0"}}).plan.steps
    assert not back({"kernel": entry}).plan.steps


def with_vfs(vfs: int, used: int = 0) -> dict[str, Any]:
    card = linux().cards[0]
    first = replace(card.ports[0], vfs=vfs, total_vfs=8, used_vfs=used)
    return {"cards": (replace(card, ports=(first, *card.ports[1:])),)}


def vfs(before: int) -> dict[str, Any]:
    return {"action": "SetVfs", "address": "0000:3b:00.0", "count": 4, "before": before}


def test_vfs_go_back_at_once_where_no_reboot_is_needed() -> None:
    (step,) = back({"vfs": vfs(2)}, **with_vfs(4)).plan.steps
    assert isinstance(step, Step)
    assert (step.action, step.reboot) == (SetVfs("0000:3b:00.0", 2, 4), "")
    assert not back({"vfs": vfs(4)}, **with_vfs(4)).plan.steps
    refused = back({"vfs": vfs(2)}, **with_vfs(4, used=1)).plan.refusals
    assert "virtual machines have 1 of them" in refused[0].what
    bios_too = back(
        {"vfs": vfs(2), "b": bios("BootMode", "Bios")},
        **with_vfs(4),
        bios=BiosFacts("Dell", {"BootMode": "Uefi"}),
    )
    assert [type(s.action) for s in bios_too.plan.steps] == [SetBios]
