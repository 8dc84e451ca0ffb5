# SPDX-License-Identifier: Apache-2.0
"""MTU, clock, ATS, who makes VFs at boot, and whether VFs are apart: planned, done and put back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.core.errors import SpecError
from nearmetal.host.apply import Earlier
from nearmetal.host.facts_linux import read_linux
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.model import PlatformFacts, PortFacts, VfGuids
from nearmetal.host.places import (
    GRUB,
    HEAD,
    POWER,
    RULES,
    link_file,
    link_text,
    mtu_in,
    refresh,
    vfs_in,
)
from nearmetal.host.plan import HostPlan, plan_host, plan_hosts
from nearmetal.host.rollback import Kept, Rollback, plan_back
from nearmetal.host.show import status_lines
from nearmetal.host.stages.outside import NO_GUID
from nearmetal.host.steps import SetConfig, SetGovernor, SetMtu, SetProfile, SetVfs, WriteFile
from tests.python.provision_host import linux, settings
from tests.python.provision_lab import FACTORY, HostTree, LabReach
from tests.python.test_host_apply import ONE, QUICK, Rebooting, applier

FILE = """\
version: 1
name: lab
hosts:
  - nodes: kvm1
    platform: linux
    adapters: [{model: ConnectX-5, ports: [PORT]}]
"""
ADDRESS = "0000:3b:00.0"
LINK = link_file(ADDRESS)
OWN = "/usr/lib/systemd/network/99-default.link"
READY = settings(FACTORY | {"SRIOV_EN": "1", "NUM_OF_VFS": "4"})


def facts(port: PortFacts, **more: object) -> PlatformFacts:
    """A host whose firmware is ready; its card has one port."""
    found = linux(**more)
    card = replace(found.cards[0], ports=(port,), config=READY)
    return replace(found, cards=(card,))


def port(**more: object) -> PortFacts:
    found = PortFacts(ADDRESS, "mlx5_core", "ens1", "ethernet", total_vfs=4, mtu=1500)
    return replace(found, **more)  # type: ignore[arg-type]


def plan(text: str, found: PlatformFacts) -> HostPlan:
    [(name, group)] = parse_hosts(text).each()
    return plan_host(name, group, found)


def asked(wanted: str, more: str = "") -> str:
    return FILE.replace("PORT", wanted) + more


def actions(found: HostPlan) -> list[object]:
    assert found.refusals == ()
    return [step.action for step in found.steps]


def test_an_mtu_is_set_at_every_boot_and_now() -> None:
    file, now = actions(plan(asked("{mtu: 9000}"), facts(port())))
    assert isinstance(file, WriteFile)
    assert (file.path, now) == (RULES, SetMtu(ADDRESS, 9000, 1500))
    assert file.content is not None
    assert mtu_in(RULES, file.content) == {ADDRESS: 9000}
    assert vfs_in(RULES, file.content) == {}
    done = facts(port(mtu=9000), files={RULES: file.content, GRUB: None})
    assert actions(plan(asked("{mtu: 9000}"), done)) == []


def test_a_vf_with_another_mtu_is_a_difference() -> None:
    found = facts(port(vfs=4, mtu=9000, vf_mtus={"0000:3b:00.2": 1500}))
    steps = plan(asked("{vfs: 4, mtu: 9000}"), found).steps
    assert steps[-1].action == SetMtu(ADDRESS, 9000, 9000, vfs_before={"0000:3b:00.2": 1500})
    assert steps[-1].text == "ens1: MTU of its VFs 1500 -> 9000"


def test_an_mtu_of_no_device_is_refused_unless_a_reboot_brings_it() -> None:
    found = plan(asked("{mtu: 9000}"), facts(port(netdev="", mtu=0)))
    assert "has no network device" in found.refusals[0].what
    after = asked("{mtu: 9000}", "    kernel: {arguments: [nosmt]}\n")
    assert plan(after, facts(port(netdev="", mtu=0))).refusals == ()


def test_systemd_makes_the_vfs_where_it_has_the_network() -> None:
    found = facts(port(link_file=OWN), networkd=257)
    file, now = actions(plan(asked("{vfs: 4}"), found))
    assert file == WriteFile(LINK, link_text(ADDRESS, 4), None, ("udevadm", "control", "--reload"))
    assert now == SetVfs(ADDRESS, 4, 0)
    files = {RULES: None, GRUB: None, LINK: link_text(ADDRESS, 4)}
    assert (
        actions(
            plan(
                asked("{vfs: 4}"),
                replace(facts(port(vfs=4, link_file=LINK), networkd=257), files=files),
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "found",
    [
        facts(port(link_file=OWN)),
        facts(port(link_file=OWN), networkd=250),
        facts(port(link_file="/etc/systemd/network/10-names.link"), networkd=257),
        facts(port(link_file="", netdev=""), networkd=257),
    ],
)
def test_udev_makes_them_elsewhere_and_where_a_link_file_is_somebody_elses(
    found: PlatformFacts,
) -> None:
    file = actions(plan(asked("{vfs: 4}"), found))[0]
    assert isinstance(file, WriteFile)
    assert vfs_in(file.path, file.content) == {ADDRESS: 4}
    assert file.path == RULES


def test_who_makes_vfs_may_change_and_one_of_two_is_left() -> None:
    rules = actions(plan(asked("{vfs: 4}"), facts(port())))[0]
    assert isinstance(rules, WriteFile)
    now = facts(port(vfs=4, link_file=OWN), networkd=257, files={RULES: rules.content, GRUB: None})
    changed = {
        a.path: a.content for a in actions(plan(asked("{vfs: 4}"), now)) if isinstance(a, WriteFile)
    }
    assert changed == {RULES: None, LINK: link_text(ADDRESS, 4)}
    back = facts(port(vfs=4), files={RULES: None, GRUB: None, LINK: link_text(ADDRESS, 4)})
    changed = {
        a.path: a.content
        for a in actions(plan(asked("{vfs: 4}"), back))
        if isinstance(a, WriteFile)
    }
    assert changed == {RULES: rules.content, LINK: None}


@pytest.mark.parametrize("text", ["", link_text(ADDRESS, 4)])
def test_a_link_file_whose_removal_was_cut_short_goes(text: str) -> None:
    found = facts(port(link_file=OWN), networkd=257, files={RULES: None, GRUB: None, LINK: text})
    assert actions(plan(asked("{vfs: 0}"), found)) == [
        WriteFile(LINK, None, text, ("udevadm", "control", "--reload"))
    ]


def test_only_files_of_ours_are_taken_for_such() -> None:
    assert refresh(LINK) == ("udevadm", "control", "--reload")
    for path in ("/etc/systemd/network/60-nearmetal-../../x.link", LINK + "/x", "/etc/passwd"):
        assert refresh(path) is None
        assert vfs_in(path, link_text(ADDRESS, 4)) == {}


def test_a_governor_is_set_at_every_boot_and_now() -> None:
    more = "    power: {governor: performance}\n"
    found = facts(port(), governors=("powersave", "schedutil"))
    file, now = actions(plan(asked("{}", more), found))
    assert isinstance(file, WriteFile)
    assert file.path == POWER
    assert file.content is not None
    assert file.content.endswith("/cpufreq/scaling_governor - - - - performance\n")
    assert now == SetGovernor("performance", "powersave")
    done = facts(
        port(), governors=("performance",), files={RULES: None, GRUB: None, POWER: file.content}
    )
    assert actions(plan(asked("{}", more), done)) == []


def test_a_machine_without_cpufreq_is_told_so() -> None:
    found = plan(asked("{}", "    power: {governor: performance}\n"), facts(port()))
    assert (found.steps, found.refusals) == ((), ())
    assert "is not offered here: the host has no cpufreq" in found.remarks[0].text


def test_a_profile_is_for_tuned_and_a_governor_is_not() -> None:
    profile = "    power: {profile: virtual-host}\n"
    assert actions(plan(asked("{}", profile), facts(port(), tuned="balanced"))) == [
        SetProfile("virtual-host", "balanced")
    ]
    assert actions(plan(asked("{}", profile), facts(port(), tuned="virtual-host"))) == []
    assert "tuned does not run" in plan(asked("{}", profile), facts(port())).refusals[0].what
    [step] = plan(asked("{}", profile), facts(port(), tuned="")).steps
    assert (step.action, step.text) == (
        SetProfile("virtual-host", ""),
        "tuned: no profile -> profile virtual-host",
    )
    assert actions(plan(asked("{}", profile), facts(port(), tuned="virtual-host mine"))) == [
        SetProfile("virtual-host", "virtual-host mine")
    ]
    found = facts(port(), tuned="balanced", governors=("schedutil",))
    refused = plan(asked("{}", "    power: {governor: performance}\n"), found).refusals[0]
    assert "tuned runs here (profile balanced)" in refused.what
    # Without a profile it leaves the governor alone.
    idle = facts(port(), tuned="", governors=("schedutil",))
    assert actions(plan(asked("{}", "    power: {governor: performance}\n"), idle))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("    power: {}\n", "one of governor and profile"),
        ("    power: {governor: performance, profile: x}\n", "one of governor and profile"),
        ("    power: {profile: '-x'}\n", "is not a profile"),
        ("    slurm: {node: 'n[1-2]'}\n", "is not a node name"),
        (
            "  - nodes: kvm[2-3]\n    platform: linux\n    slurm: {node: n1}\n",
            "one node for several",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(more: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        parse_hosts(asked("{}", more))


def test_what_is_for_linux_is_refused_on_esxi() -> None:
    text = asked("{mtu: 9000}", "    power: {governor: performance}\n    slurm: {}\n")
    with pytest.raises(SpecError) as caught:
        parse_hosts(text.replace("linux", "esxi"))
    assert len(caught.value.problems) == 3


def test_ats_is_a_setting_of_the_firmware_like_others() -> None:
    found = linux()
    card = replace(found.cards[0], config=settings(FACTORY | {"ATS_ENABLED": "0"}))
    found = replace(found, cards=(card,))
    text = asked("{}").replace("ports: [{}]", "ats: true")
    planned = plan(text, found)
    assert actions(planned) == [SetConfig(ADDRESS, "ATS_ENABLED", "1", "0")]
    assert planned.reboots == 1
    assert "has no ATS_ENABLED" in plan(text, linux()).refusals[0].what


KERNEL = "    kernel: {iommu: passthrough}\n"


def checked(more: str = KERNEL, **changed: object) -> str:
    rules = actions(plan(asked("{vfs: 4}"), facts(port(vfs=4))))[0]
    assert isinstance(rules, WriteFile)
    groups = changed.pop("iommu_groups", 9)
    line = f'{HEAD}GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt"\n'
    found = facts(
        port(vfs=4, **changed),
        files={RULES: rules.content, GRUB: line},
        cmdline=("intel_iommu=on", "iommu=pt"),
        iommu_groups=groups,
    )
    result = plan(asked("{vfs: 4}", more), found)
    assert more != KERNEL or result.steps == ()
    return " ".join(refusal.what for refusal in result.refusals)


def test_a_host_is_ready_only_when_its_vfs_are_apart() -> None:
    assert checked() == ""
    assert "the IOMMU is off, although" in checked(iommu_groups=0)
    assert "2 of 4 VFs of 0000:3b:00.0 share IOMMU groups" in checked(shared_vfs=2)
    # Containers of one host may share them.
    assert checked("", shared_vfs=2) == ""


def test_what_is_read_of_ports_is_what_the_kernel_says(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "kvm1").make()
    host.connectx()
    device = host.root / "sys/bus/pci/devices" / ADDRESS
    (device / "net/ens0/mtu").write_text("9000\n")
    vf = host.tree.device("0000:3b:00.2")
    (device / "virtfn0").symlink_to(vf)
    (vf / "net/ens0v0").mkdir(parents=True)
    (vf / "net/ens0v0/mtu").write_text("1500\n")
    (vf / "iommu_group/devices/0000:3b:00.3").symlink_to(vf)
    guid, none = "00:11:22:33:44:55:66:77", "00:00:00:00:00:00:00:00"
    for name, text in (("node", none), ("port", guid), ("policy", "Follow")):
        (device / "sriov/0").mkdir(parents=True, exist_ok=True)
        (device / "sriov/0" / name).write_text(f"{text}\n")
    for number, governor in enumerate(("schedutil", "performance", "schedutil")):
        host.tree.put(f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", governor)
    host.tool("tuned-adm", "echo 'Current active profile: virtual-host'")
    host.tool("systemctl", "case $1 in -q) exit 0;; esac; echo 'systemd 257 (257.8-1)'")
    host.tool("udevadm", f"echo E=x; echo ID_NET_LINK_FILE={OWN}")
    (host.root / LINK[1:]).parent.mkdir(parents=True)
    (host.root / LINK[1:]).write_text(link_text(ADDRESS, 4))
    facts = read_linux("kvm1", host)
    first = facts.cards[0].ports[0]
    assert (first.mtu, first.shared_vfs) == (9000, 1)
    assert first.vf_mtus == {"0000:3b:00.2": 1500}
    assert first.link_file == OWN
    assert first.guids == (VfGuids(0, none, guid, "Follow"),)
    assert facts.governors == ("performance", "schedutil")
    assert (facts.tuned, facts.networkd) == ("virtual-host", 257)
    assert facts.files[LINK] == link_text(ADDRESS, 4)
    (host.root / (LINK[1:] + ".begun")).touch()
    assert read_linux("kvm1", host).files[LINK] == ""


def test_status_shows_guids_and_says_which_vfs_have_none() -> None:
    some = "00:11:22:33:44:55:66:77"
    guids = (VfGuids(0, some, some, "Follow"), VfGuids(1, NO_GUID, NO_GUID, "Down"))
    found = facts(port(vfs=4, link="infiniband", state="ACTIVE", guids=guids))
    text = asked("{vfs: 4}")
    file = parse_hosts(text)
    shown = status_lines(plan_hosts(file, {"kvm1": found}), {"kvm1": found})
    assert f"      vf 0  node {some}  port {some}  Follow" in shown
    told = [line for line in shown if "no port GUID yet" in line]
    assert told[0].startswith(f"  note: fabric: 1 VFs of {ADDRESS}")
    assert "  power     no cpufreq here" in shown


def test_mtu_and_clock_are_set_on_the_host_and_put_back(tmp_path: Path) -> None:
    host = Rebooting(tmp_path / "kvm1").make()
    (host.root / "etc/tmpfiles.d").mkdir()
    governors = [
        host.root / f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor" for n in range(2)
    ]
    for file in governors:
        file.parent.mkdir(parents=True)
        file.write_text("schedutil\n")
    mtus = [host.root / f"sys/bus/pci/devices/0000:3b:00.{n}/net/ens{n}/mtu" for n in range(2)]
    for file in mtus:
        file.write_text("1500\n")
    lab, state = {"kvm1": host}, tmp_path / "state"
    text = ONE.replace("{vfs: 2}", "{vfs: 2, mtu: 4200}").replace(
        "    kernel:", "    power: {governor: performance}\n    kernel:"
    )
    applier(text, lab, state).apply()
    # A reboot came anyway: no step of its own for what the rules do then.
    mtus[1].write_text("4200\n")
    assert [f.read_text() for f in governors] == ["performance\n"] * 2
    assert applier(text, lab, state).apply().empty
    mtus[1].write_text("1500\n")
    applier(text, lab, state).apply()
    assert [f.read_text() for f in mtus] == ["1500\n", "4200\n"]
    kept = json.loads((state / "before.json").read_text())["kvm1"]
    assert kept["governor"]["before"] == "schedutil"
    assert kept["mtu 0000:3b:00.1"]["before"] == 1500
    Rollback(parse_hosts(text), LabReach(dict(lab)), state, QUICK).apply()
    assert [f.read_text() for f in governors] == ["schedutil\n"] * 2
    assert [f.read_text() for f in mtus] == ["1500\n"] * 2
    assert not (host.root / POWER[1:]).exists()


def test_each_vf_gets_back_the_mtu_that_it_had(tmp_path: Path) -> None:
    host = Rebooting(tmp_path / "kvm1").make()
    devices = host.root / "sys/bus/pci/devices"
    (devices / "0000:3b:00.0/sriov_numvfs").write_text("3\n")
    (devices / "0000:3b:00.0/sriov_totalvfs").write_text("3\n")
    places = {"0000:3b:00.0": "ens0"}
    for number in range(3):
        vf = f"0000:3b:01.{number}"
        host.tree.device(vf)
        (devices / "0000:3b:00.0" / f"virtfn{number}").symlink_to(devices / vf)
        if number != 1:  # that one is a machine's
            places[vf] = f"ens0v{number}"
            (devices / vf / "net" / places[vf]).mkdir(parents=True)
    files = [devices / address / "net" / name / "mtu" for address, name in places.items()]
    earlier = ["1500\n", "9000\n", "1400\n"]
    for file, mtu in zip(files, earlier, strict=True):
        file.write_text(mtu)
    lab, state = {"kvm1": host}, tmp_path / "state"
    text = asked("{vfs: 3, mtu: 4200}")
    applier(text.replace("vfs: 3, ", ""), lab, state).apply()
    assert [file.read_text() for file in files] == ["4200\n"] * 3
    kept = json.loads((state / "before.json").read_text())["kvm1"]["mtu 0000:3b:00.0"]
    assert (kept["before"], kept["vfs_before"]) == (
        1500,
        {"0000:3b:01.0": 9000, "0000:3b:01.2": 1400},
    )
    # The function's own is back by another's hand: those of its VFs are still to be put back.
    files[0].write_text("1500\n")
    Rollback(parse_hosts(text), LabReach(dict(lab)), state, QUICK).apply()
    assert [file.read_text() for file in files] == earlier


@pytest.mark.parametrize("odd", [7, ["x"], {"0000:3b:00.2": "9000"}])
def test_odd_mtus_of_before_are_refused(odd: object) -> None:
    kept: Kept = {
        "mtu": {
            "action": "SetMtu",
            "address": ADDRESS,
            "mtu": 9000,
            "before": 1500,
            "vfs_before": odd,
        }
    }
    back = plan_back("kvm1", parse_hosts(asked("{}")).hosts[0], facts(port(mtu=9000)), kept)
    assert "is not understood" in back.plan.refusals[0].what


def test_the_profile_of_before_is_put_back() -> None:
    kept: Kept = {
        "profile": {"action": "SetProfile", "profile": "virtual-host", "before": "balanced"}
    }
    group = parse_hosts(asked("{}")).hosts[0]
    back = plan_back("kvm1", group, facts(port(), tuned="virtual-host"), kept)
    assert [step.action for step in back.plan.steps] == [SetProfile("balanced", "virtual-host")]
    assert plan_back("kvm1", group, facts(port(), tuned="balanced"), kept).plan.steps == ()
    gone = plan_back("kvm1", group, facts(port()), kept).plan
    assert "tuned does not run here, and profile balanced" in gone.refusals[0].what


# As TuneD does: `active` prints profiles in one line, `off` leaves none.
TUNED_ADM = """
case $1 in
active) if [ -s "$state" ]; then echo "Current active profile: $(cat "$state")"
        else echo "No current active profile."; exit 1; fi ;;
profile) shift; echo "$*" >"$state" ;;
off) : >"$state" ;;
*) exit 2 ;;
esac
"""


@pytest.mark.parametrize("before", ["", "balanced", "balanced my-own.2"])
def test_the_profiles_of_before_are_put_back_several_and_none(tmp_path: Path, before: str) -> None:
    host = Rebooting(tmp_path / "kvm1").make()
    state = host.root / "profiles"
    state.write_text(before)
    host.tool("tuned-adm", f"state={state}\n{TUNED_ADM}")
    lab, directory = {"kvm1": host}, tmp_path / "state"
    text = asked("{}", "    power: {profile: virtual-host}\n")
    applier(text, lab, directory).apply()
    assert state.read_text().split() == ["virtual-host"]
    Rollback(parse_hosts(text), LabReach(dict(lab)), directory, QUICK).apply()
    assert state.read_text().strip() == before
    assert Earlier(directory).read() == {}


def test_vfs_of_a_link_file_are_put_back() -> None:
    kept: Kept = {
        f"link {LINK}": {
            "action": "WriteFile",
            "path": LINK,
            "content": link_text(ADDRESS, 4),
            "before": None,
            "refresh": [],
        }
    }
    group = parse_hosts(asked("{}")).hosts[0]
    files = {RULES: None, GRUB: None, LINK: link_text(ADDRESS, 4)}
    back = plan_back("kvm1", group, facts(port(vfs=4), files=files), kept)
    assert [step.action for step in back.plan.steps] == [
        WriteFile(LINK, None, link_text(ADDRESS, 4), ("udevadm", "control", "--reload")),
        SetVfs(ADDRESS, 0, 4),
    ]
