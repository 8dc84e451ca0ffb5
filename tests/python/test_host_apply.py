# SPDX-License-Identifier: Apache-2.0
"""Hosts become what their file says, and a run that dies anywhere is taken up."""

import contextlib
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nearmetal.core.errors import HostError, LockedError
from nearmetal.core.journal import Journal
from nearmetal.core.lock import locked
from nearmetal.host.apply import Applier, Earlier, Patience
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.places import GRUB, RULES
from nearmetal.host.plan import plan_hosts, refuse
from nearmetal.host.rollback import Rollback
from nearmetal.host.shell import Answer
from tests.python.fake_mlxconfig import reset
from tests.python.provision_host import esxi
from tests.python.provision_lab import FACTORY, HostTree, LabReach
from tests.python.sriov_tree import Killed
from tests.python.test_host_plan import PAPER

FILE = """\
version: 1
name: lab
hosts:
  - nodes: "kvm[1-3]"
    platform: linux
    adapters: [{model: ConnectX-5, ports: [{link: infiniband, vfs: 4}, {vfs: 2}]}]
    kernel: {iommu: passthrough}
limits: {reboots: 2, per_domain: 2}
"""

ONE = FILE.replace('"kvm[1-3]"', "kvm1")
QUICK = Patience(reboot_s=20, look_s=0)


class Rebooting(HostTree):
    """A host that really forgets at a reboot. Dies as told: before or after a script that writes."""

    kill_before = kill_after = 0
    writes = 0
    reboots = 0
    comes_back = True
    fail_on = ""

    def make(self, *, loader: bool = True) -> "Rebooting":
        super().make(loader=loader)
        self.tool("nohup", f"touch {self.root}/reboot")
        self.connectx()
        return self

    def script(self, text: str, *, timeout_s: float) -> Answer:
        if (self.root / "reboot").exists():
            if not self.comes_back:
                raise HostError("no answer")
            self._reboot()
        if self.fail_on and self.fail_on in text:
            return Answer(3, "-E- the card does not answer\n")
        writing = "set -e" in text or "nohup" in text
        self.writes += writing
        if writing and self.writes == self.kill_before:
            raise Killed
        answer = super().script(text, timeout_s=timeout_s)
        if writing and self.writes == self.kill_after:
            raise Killed
        return answer

    def _reboot(self) -> None:
        (self.root / "reboot").unlink()
        self.reboots += 1
        boot = self.root / "proc/sys/kernel/random/boot_id"
        boot.write_text(f"boot-{self.reboots}\n")
        reset(self.state)
        grub = self.root / "grub.cfg"
        if grub.exists():
            words = grub.read_text().partition("$GRUB_CMDLINE_LINUX ")[2].rstrip('"\n')
            (self.root / "proc/cmdline").write_text(f"quiet {words}\n")
        total = self.config()["NUM_OF_VFS"]
        kind = {"1": "32", "2": "1"}
        for number in range(2):
            device = self.root / "sys/bus/pci/devices" / f"0000:3b:00.{number}"
            (device / "sriov_totalvfs").write_text(f"{total}\n")
            (device / "sriov_numvfs").write_text("0\n")
            link = kind[self.config()[f"LINK_TYPE_P{number + 1}"]]
            (device / "net" / f"ens{number}" / "type").write_text(f"{link}\n")
        for line in self._rules():
            address = line.partition('KERNEL=="')[2].partition('"')[0]
            count = line.rpartition('="')[2].rstrip('"')
            (self.root / "sys/bus/pci/devices" / address / "sriov_numvfs").write_text(f"{count}\n")

    def _rules(self) -> list[str]:
        file = self.root / RULES[1:]
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith("ACTION")]

    def vfs(self) -> list[str]:
        devices = self.root / "sys/bus/pci/devices"
        return [(devices / f"0000:3b:00.{n}" / "sriov_numvfs").read_text().strip() for n in (0, 1)]


@pytest.fixture
def lab(tmp_path: Path) -> dict[str, Rebooting]:
    return {f"kvm{n}": Rebooting(tmp_path / f"kvm{n}").make() for n in (1, 2, 3)}


def applier(
    text: str, lab: dict[str, Rebooting], state: Path, patience: Patience = QUICK
) -> Applier:
    return Applier(parse_hosts(text), LabReach(dict(lab)), state, patience)


def steps(state: Path, event: str) -> list[str]:
    return [record.step for record in Journal(state).read() if record.event == event]


def test_hosts_go_from_the_factory_to_vfs_with_one_reboot_each(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    plan = applier(FILE, lab, state).apply()
    assert [host.reboots for host in plan.hosts] == [1, 1, 1]
    for host in lab.values():
        assert host.reboots == 1
        assert host.vfs() == ["4", "2"]
        assert host.config() == FACTORY | {"SRIOV_EN": "1", "NUM_OF_VFS": "4", "LINK_TYPE_P1": "1"}
        assert "intel_iommu=on iommu=pt" in (host.root / "proc/cmdline").read_text()
    again = applier(FILE, lab, state).apply()
    assert again.empty
    assert sorted(steps(state, "begin")) == sorted(steps(state, "done"))


def test_the_canary_is_ready_before_another_host_is_touched(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    applier(FILE + "canary: kvm2\n", lab, tmp_path / "state").apply()
    records = Journal(tmp_path / "state").read()
    of_canary = [n for n, record in enumerate(records) if record.step.startswith("kvm2: ")]
    assert of_canary == list(range(len(of_canary)))
    assert records[of_canary[-1]].step == "kvm2: reboot"


def test_a_canary_that_fails_leaves_the_others_alone(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    lab["kvm1"].fail_on = "NUM_OF_VFS=4"
    with pytest.raises(HostError, match=r"not begun: kvm\[2-3\]") as caught:
        applier(FILE, lab, tmp_path / "state").apply()
    assert "kvm1: " in caught.value.message
    assert "-E- the card does not answer" in caught.value.message
    assert [host.writes for host in lab.values()][1:] == [0, 0]
    assert lab["kvm1"].reboots == 0
    lab["kvm1"].fail_on = ""
    applier(FILE, lab, tmp_path / "state").apply()
    assert [host.vfs() for host in lab.values()] == [["4", "2"]] * 3


def test_a_host_that_does_not_come_back_is_named_with_its_console(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    lab["kvm1"].comes_back = False
    with pytest.raises(HostError, match="kvm1: did not come back within 0 s") as caught:
        applier(FILE, lab, tmp_path / "state", Patience(reboot_s=0, look_s=0)).apply()
    assert "console" in caught.value.hint
    assert [host.writes for host in lab.values()][1:] == [0, 0]
    assert steps(tmp_path / "state", "failed") == ["kvm1: reboot"]


@pytest.mark.parametrize("where", ["kill_before", "kill_after"])
def test_it_may_die_at_every_step_and_is_taken_up(tmp_path: Path, where: str) -> None:
    whole = Rebooting(tmp_path / "whole").make()
    applier(ONE, {"kvm1": whole}, tmp_path / "s0").apply()
    assert whole.writes == 6
    for number in range(1, whole.writes + 1):
        host = Rebooting(tmp_path / f"h{number}").make()
        setattr(host, where, number)
        state = tmp_path / f"s{number}"
        with pytest.raises(Killed):
            applier(ONE, {"kvm1": host}, state).apply()
        last = Journal(state).unfinished()
        assert last is not None
        setattr(host, where, 0)
        applier(ONE, {"kvm1": host}, state).apply()
        assert host.vfs() == ["4", "2"]
        assert host.reboots == 1
        assert Earlier(state).read() == Earlier(tmp_path / "s0").read()


def test_an_interrupt_does_not_wait_for_reboots(lab: dict[str, Rebooting], tmp_path: Path) -> None:
    lab["kvm2"].kill_before = 3
    lab["kvm3"].comes_back = False
    endless = Patience(reboot_s=1e6, look_s=0.01)
    with pytest.raises(Killed):
        applier(FILE, lab, tmp_path / "state", endless).apply()
    assert lab["kvm1"].vfs() == ["4", "2"]
    assert lab["kvm3"].reboots == 0


def test_what_was_there_before_is_kept_once(lab: dict[str, Rebooting], tmp_path: Path) -> None:
    applier(ONE, lab, tmp_path / "state").apply()
    found = Earlier(tmp_path / "state").read()["kvm1"]
    assert found["config 0000:3b:00 NUM_OF_VFS"] == {
        "action": "SetConfig",
        "device": "0000:3b:00.0",
        "setting": "NUM_OF_VFS",
        "value": "4",
        "before": "0",
    }
    assert found["config 0000:3b:00 LINK_TYPE_P1"]["before"] == "2"
    assert found["rules"]["before"] is None
    applier(ONE.replace("vfs: 4", "vfs: 6"), lab, tmp_path / "state").apply()
    assert lab["kvm1"].vfs() == ["6", "2"]
    assert Earlier(tmp_path / "state").read()["kvm1"] == found


def test_fewer_vfs_need_no_reboot(lab: dict[str, Rebooting], tmp_path: Path) -> None:
    applier(ONE, lab, tmp_path / "state").apply()
    applier(ONE.replace("vfs: 4", "vfs: 3"), lab, tmp_path / "state").apply()
    assert lab["kvm1"].vfs() == ["3", "2"]
    assert lab["kvm1"].reboots == 1


def test_a_refusal_of_one_host_keeps_all_from_being_written(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    (lab["kvm3"].bin / "mlxconfig").unlink()
    with pytest.raises(HostError, match=r"nothing was written:\n  kvm3: the firmware settings"):
        applier(FILE, lab, tmp_path / "state").apply()
    assert [host.writes for host in lab.values()] == [0, 0, 0]


def test_a_host_with_machines_is_not_rebooted(lab: dict[str, Rebooting], tmp_path: Path) -> None:
    lab["kvm1"].tree.put("proc/4711/comm", "qemu-system-x86")
    with pytest.raises(HostError, match="kvm1: 1 virtual machines run on it"):
        applier(ONE, lab, tmp_path / "state").apply()
    assert lab["kvm1"].writes == 0


def test_esxi_without_a_vcenter_is_planned_and_not_applied() -> None:
    file = parse_hosts(PAPER)
    with pytest.raises(HostError, match="esx1 run ESXi, which apply changes through a vCenter"):
        refuse(plan_hosts(file, {"esx1": esxi()}), file)


def test_two_at_once_are_one_too_many(lab: dict[str, Rebooting], tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with locked(state / "lock", "lab"), pytest.raises(LockedError, match="lab"):
        applier(ONE, lab, state).apply()
    assert lab["kvm1"].writes == 0


def test_a_damaged_record_of_earlier_values_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text("{")
    with pytest.raises(HostError, match="is damaged"):
        Earlier(tmp_path).keep("kvm1", "rules", None)
    assert (tmp_path / "before.json").read_text() == "{"


def test_earlier_values_of_hosts_that_go_together_are_all_kept(tmp_path: Path) -> None:
    earlier = Earlier(tmp_path)
    threads = [
        threading.Thread(target=earlier.keep, args=(f"h{n % 5}", f"k{n}", n)) for n in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = json.loads((tmp_path / "before.json").read_text())
    assert sum(len(values) for values in found.values()) == 40


def test_files_are_replaced_whole_and_removed(lab: dict[str, Rebooting], tmp_path: Path) -> None:
    applier(ONE, lab, tmp_path / "state").apply()
    root = lab["kvm1"].root
    assert 'KERNEL=="0000:3b:00.0"' in (root / RULES[1:]).read_text()
    assert [path.name for path in (root / "etc/udev/rules.d").iterdir()] == [Path(RULES).name]
    assert (root / GRUB[1:]).read_text().endswith('intel_iommu=on iommu=pt"\n')
    text = ONE.replace("vfs: 4", "vfs: 0").replace("vfs: 2", "vfs: 0")
    applier(text, lab, tmp_path / "state").apply()
    assert lab["kvm1"].vfs() == ["0", "0"]
    assert not (root / RULES[1:]).exists()


def test_a_host_that_dies_between_a_file_and_its_effect_does_both_again(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    host = lab["kvm1"]
    whole = (host.bin / "update-grub").read_text()
    host.tool("update-grub", "kill -KILL $PPID")
    with pytest.raises(HostError, match="kernel arguments"):
        applier(ONE, lab, tmp_path / "state").apply()
    assert (host.root / GRUB[1:]).exists()
    assert not (host.root / "grub.cfg").exists()
    (host.bin / "update-grub").write_text(whole)
    applier(ONE, lab, tmp_path / "state").apply()
    assert "intel_iommu=on iommu=pt" in (host.root / "proc/cmdline").read_text()
    assert host.reboots == 1
    assert [path.name for path in (host.root / GRUB[1:]).parent.iterdir()] == [Path(GRUB).name]
    assert Earlier(tmp_path / "state").read()["kvm1"]["kernel"]["before"] is None


def test_a_setting_that_another_has_staged_is_taken_back_without_a_reboot(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    applier(ONE, lab, tmp_path / "state").apply()
    host = lab["kvm1"]
    found = json.loads(host.state.read_text())
    found["0000:3b:00.0"]["NUM_OF_VFS"][2] = "1"
    host.state.write_text(json.dumps(found))
    applier(ONE, lab, tmp_path / "state").apply()
    assert host.config()["NUM_OF_VFS"] == "4"
    assert host.reboots == 1


def test_a_step_waits_for_an_earlier_one_that_lost_its_ssh(
    lab: dict[str, Rebooting], tmp_path: Path
) -> None:
    host = lab["kvm1"]
    lock = host.root / "run/nearmetal-host.lock"
    done = tmp_path / "earlier-is-done"
    grub = (host.bin / "update-grub").read_text()
    host.tool("update-grub", f"[ -e {done} ] || exit 9\n{grub}")
    with subprocess.Popen(
        ["flock", lock, "sh", "-c", f"echo; read end; touch {done}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as earlier:
        assert earlier.stdout is not None
        earlier.stdout.readline()
        with ThreadPoolExecutor(1) as pool:
            applied = pool.submit(applier(ONE, lab, tmp_path / "state").apply)
            while not steps(tmp_path / "state", "begin"):
                assert not applied.done()
            earlier.communicate(b"\n", timeout=60)
            applied.result(timeout=60)
    assert host.vfs() == ["4", "2"]


GPUDIRECT = """\
version: 1
name: lab
hosts:
  - nodes: kvm1
    platform: linux
    adapters:
      - model: ConnectX-5
        settings: {MAX_ACC_OUT_READ: 44}
        ports: [{vfs: 2}, {vfs: 2}]
"""


@pytest.mark.parametrize(("opens", "reboots"), [("set", 1), ("reset", 2)])
def test_a_setting_that_another_one_opens_joins_its_reboot_where_the_tool_lists_it(
    tmp_path: Path, opens: str, reboots: int
) -> None:
    host = Rebooting(tmp_path / "kvm1").make().hides("MAX_ACC_OUT_READ", opens)
    state = tmp_path / "state"
    plan = applier(GPUDIRECT, {"kvm1": host}, state).apply()
    assert [h.reboots for h in plan.hosts] == [2]
    assert host.reboots == reboots
    assert host.config()["MAX_ACC_OUT_READ"] == "44"
    assert host.vfs() == ["2", "2"]
    assert applier(GPUDIRECT, {"kvm1": host}, state).apply().empty
    before = Earlier(state).read()["kvm1"]
    assert before["config 0000:3b:00 MAX_ACC_OUT_READ"]["before"] == "0"
    back = Rollback(parse_hosts(GPUDIRECT), LabReach({"kvm1": host}), state, QUICK)
    back.apply()
    assert back.left == {"kvm1": ()}
    assert host.config() == FACTORY | {"MAX_ACC_OUT_READ": "0"}


@pytest.mark.parametrize("opens", ["set", "reset"])
@pytest.mark.parametrize("where", ["kill_before", "kill_after"])
def test_it_may_die_between_a_setting_and_the_one_that_opens_it(
    tmp_path: Path, where: str, opens: str
) -> None:
    for number in range(1, 9):
        host = Rebooting(tmp_path / f"h{number}").make().hides("MAX_ACC_OUT_READ", opens)
        setattr(host, where, number)
        state = tmp_path / f"s{number}"
        with contextlib.suppress(Killed):
            applier(GPUDIRECT, {"kvm1": host}, state).apply()
        setattr(host, where, 0)
        applier(GPUDIRECT, {"kvm1": host}, state).apply()
        assert host.config()["MAX_ACC_OUT_READ"] == "44"
        assert host.vfs() == ["2", "2"]
        assert host.reboots <= 2
