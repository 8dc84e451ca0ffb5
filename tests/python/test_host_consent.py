# SPDX-License-Identifier: Apache-2.0
"""Nothing is written to hosts without a yes; a saved plan holds only while the hosts stay as seen."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cli.host import apply_hosts, roll_back, show_plan, show_status
from nearmetal.cli.main import main
from nearmetal.cli.view import View
from nearmetal.config import plan_file
from nearmetal.config.plan_file import PlanFileError
from nearmetal.core.errors import HostError, UsageError
from nearmetal.core.journal import Journal
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.names import grouped, limited
from nearmetal.host.plan import HostPlan, HostsPlan, Phase
from nearmetal.host.rollback import Rollback
from nearmetal.host.saved import Begun, facts_digests, open_plan
from nearmetal.host.show import question
from nearmetal.host.steps import Burn, SetGovernor, Stage, Step
from tests.python.provision_host import linux
from tests.python.provision_lab import LabReach
from tests.python.sriov_tree import Killed
from tests.python.test_host_apply import FILE, QUICK, Rebooting, applier

ROOT = Path(__file__).parents[2]
VIEW = View(as_json=False)


class Lab:
    """Three hosts, their file, and the command line on them."""

    def __init__(self, directory: Path) -> None:
        self.hosts = {f"kvm{n}": Rebooting(directory / f"kvm{n}").make() for n in (1, 2, 3)}
        self.file = directory / "hosts.yaml"
        self.file.write_text(FILE)
        self.saved = directory / "plan.json"
        self.state = directory / "state" / "hosts" / "lab"

    @property
    def reach(self) -> LabReach:
        return LabReach(dict(self.hosts))

    @property
    def writes(self) -> list[int]:
        return [host.writes for host in self.hosts.values()]

    def plan(self, **options: Any) -> int:
        return show_plan(self.file, self.reach, VIEW, **options)

    def apply(self, file: Path | None = None, *, yes: bool = True, limit: str | None = None) -> int:
        words = {"file": file or self.file, "yes": yes, "limit": limit}
        args = Namespace(**words, reboot_timeout=20, by_hand_done=False)
        return apply_hosts(args, self.reach, VIEW)

    def begun(self, file: Path) -> set[str]:
        saved = open_plan(file)
        assert saved is not None
        return Begun(self.state).of(saved)

    def ready(self) -> list[bool]:
        return [host.vfs() == ["4", "2"] for host in self.hosts.values()]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    return Lab(tmp_path)


def test_without_a_yes_and_a_terminal_nothing_is_written(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"would reboot kvm\[1-3\]") as caught:
        lab.apply(yes=False)
    assert "--yes" in caught.value.hint
    assert lab.writes == [0, 0, 0]
    assert Journal(lab.state).read() == []
    assert "hosts kvm[1-3] (linux): " in capsys.readouterr().err
    assert lab.apply(yes=True) == 0
    assert lab.ready() == [True] * 3
    written = lab.writes
    assert lab.apply(yes=False) == 0, "where nothing is to do, nothing is asked"
    assert lab.writes == written
    back = Rollback(parse_hosts(FILE), lab.reach, lab.state, QUICK)
    with pytest.raises(UsageError, match=r"would reboot kvm\[1-3\]"):
        roll_back(back, VIEW, dry_run=False)
    assert lab.writes == written


@pytest.mark.parametrize(
    ("answer", "agreed"),
    [("yes", True), ("Y", True), ("no", False), ("", False), ("yes, no", False), ("\x04", False)],
)
def test_a_terminal_is_asked_with_the_plan_in_view(answer: str, agreed: bool) -> None:
    ours, theirs = os.openpty()
    code = (
        "from nearmetal.cli.view import View\n"
        "from nearmetal.core.errors import NearmetalError\n"
        "try:\n"
        "    View(as_json=True).ask('reboot kvm1', ['host kvm1: 1 step'], yes=False)\n"
        "    print('agreed')\n"
        "except NearmetalError as error:\n"
        "    print(error.message)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    ) as asking:
        os.close(theirs)
        shown = b""
        while b"[yes/no]" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, answer.encode() + (b"" if answer == "\x04" else b"\n"))
        said, _ = asking.communicate(timeout=60)
    os.close(ours)
    assert shown.decode().replace("\r", "") == "host kvm1: 1 step\nreboot kvm1? [yes/no] "
    refusal = b"nothing was changed: the answer was not yes\n"
    assert said == (b"agreed\n" if agreed else refusal)


def step(key: str, action: Any, reboot: str = "") -> Step:
    return Step(Stage.FIRMWARE, key, key, action, reboot)


def test_the_question_names_what_is_rebooted_and_burnt() -> None:
    burn = step("burn", Burn("d", "/f", "0", "2", "1"), "new firmware")
    calm = step("governor", SetGovernor("performance", "powersave"))
    plans = {"kvm1": [burn], "kvm2": [burn], "kvm3": [calm]}
    hosts = [HostPlan(n, "linux", "", (Phase(tuple(steps)),)) for n, steps in plans.items()]
    asked = question(HostsPlan("lab", tuple(hosts), ()))
    assert asked == "reboot kvm[1-2] and burn firmware of kvm[1-2]"
    asked = question(HostsPlan("lab", (hosts[2],), ()))
    assert asked == "change settings of kvm3"


def test_a_reboot_that_a_run_did_not_plan_is_not_made(lab: Lab) -> None:
    first = applier(FILE, lab.hosts, lab.state)
    first.apply()
    boot = lab.hosts["kvm1"].root / "proc/cmdline"
    text = FILE.replace("vfs: 4", "vfs: 3")

    def agree(plan: HostsPlan) -> None:
        assert [host.reboots for host in plan.hosts] == [0, 0, 0]
        boot.write_text("quiet\n")

    with pytest.raises(HostError, match="kvm1: not in the plan of this run: kernel arguments"):
        applier(text, lab.hosts, lab.state).apply(agree)
    assert [host.reboots for host in lab.hosts.values()] == [1, 1, 1]


def test_a_saved_plan_is_carried_out(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.plan(out=lab.saved) == 3
    assert f"written: {lab.saved}" in capsys.readouterr().out
    assert stat.S_IMODE(lab.saved.stat().st_mode) == 0o600
    lab.file.unlink()
    with pytest.raises(UsageError, match=r"would reboot kvm\[1-3\]"):
        lab.apply(lab.saved, yes=False)
    assert lab.writes == [0, 0, 0]
    assert lab.apply(lab.saved) == 0
    assert lab.ready() == [True] * 3
    assert not Begun(lab.state).path.exists()
    written = lab.writes
    assert lab.apply(lab.saved) == 0, "where nothing is to do, no plan is out of date"
    assert lab.writes == written


def test_a_plan_is_written_once_and_not_for_a_refused_host(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.saved.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        lab.plan(out=lab.saved)
    assert lab.saved.read_text() == "mine"
    lab.saved.unlink()
    (lab.hosts["kvm3"].bin / "mlxconfig").unlink()
    assert lab.plan(out=lab.saved) == 1
    assert "is not written: a host is refused" in capsys.readouterr().err
    assert not lab.saved.exists()


CHANGES = {
    "kernel arguments": lambda host: (host.root / "proc/cmdline").write_text("quiet nosmt\n"),
    "it has booted": lambda host: (host.root / "proc/sys/kernel/random/boot_id").write_text("b\n"),
    "cards": lambda host: (
        host.root / "sys/bus/pci/devices/0000:3b:00.0/sriov_totalvfs"
    ).write_text("8\n"),
    "files of nearmetal": lambda host: (
        host.root / "etc/udev/rules.d/90-nearmetal-sriov.rules"
    ).write_text("# by hand\n"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_plan_of_hosts_that_have_changed_is_refused(lab: Lab, what: str) -> None:
    assert lab.plan(out=lab.saved) == 3
    CHANGES[what](lab.hosts["kvm2"])
    with pytest.raises(HostError, match=f"kvm2: changed since the plan: .*{what}") as caught:
        lab.apply(lab.saved)
    assert "kvm1" not in caught.value.message
    assert "host plan" in caught.value.hint
    assert lab.writes == [0, 0, 0]


def test_what_comes_and_goes_does_not_end_a_plan() -> None:
    facts = linux()
    before = facts_digests(facts)
    ports = tuple(type(port)(**{**vars(port), "state": "Active"}) for port in facts.cards[0].ports)
    card = type(facts.cards[0])(**{**vars(facts.cards[0]), "ports": ports})
    assert facts_digests(linux(cards=(card,), unread=("BIOS: no answer",))) == before
    assert facts_digests(linux(cards=())) != before


@pytest.mark.parametrize("where", ["kill_before", "kill_after"])
def test_a_saved_plan_is_taken_up_after_a_kill_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    number = 0
    killed = True
    while killed:
        number += 1
        folder = tmp_path / f"{number}"
        folder.mkdir()
        monkeypatch.setenv("NEARMETAL_STATE_DIR", str(folder / "state"))
        lab = Lab(folder)
        lab.plan(out=lab.saved, limit="kvm1")
        setattr(lab.hosts["kvm1"], where, number)
        try:
            lab.apply(lab.saved)
            killed = False
        except Killed:
            assert lab.begun(lab.saved) == {"kvm1"}
            setattr(lab.hosts["kvm1"], where, 0)
            assert lab.apply(lab.saved) == 0
        assert lab.ready() == [True, False, False]
        assert [host.reboots for host in lab.hosts.values()] == [1, 0, 0]
    assert number == 7


def test_after_a_kill_hosts_that_were_not_begun_must_still_be_as_planned(lab: Lab) -> None:
    lab.plan(out=lab.saved)
    lab.hosts["kvm1"].kill_before = 3
    with pytest.raises(Killed):
        lab.apply(lab.saved)
    lab.hosts["kvm1"].kill_before = 0
    CHANGES["kernel arguments"](lab.hosts["kvm3"])
    written = lab.writes
    with pytest.raises(HostError, match="kvm3: changed since the plan") as caught:
        lab.apply(lab.saved)
    assert "kvm1" not in caught.value.message
    assert lab.writes == written
    other = lab.saved.with_name("other.json")
    lab.plan(out=other, limit="kvm2")
    assert lab.begun(other) == set()


def edited(path: Path, edit: Any, *, signed: bool = True) -> None:
    document = json.loads(path.read_text())
    edit(document)
    if signed:
        document["sha256"] = plan_file.digest(document["content"])
    path.write_text(json.dumps(document))


def set_in(*keys: Any) -> Any:
    *path, last, value = keys

    def edit(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path:
            place = place[key]
        place[last] = value

    return edit


HOSTILE = [
    (set_in("nearmetal-plan", 2), "made by release"),
    (set_in("release", "9.9"), "made by release '9.9'"),
    (set_in("kind", "cluster"), "it is for `nearmetal up`"),
    (set_in("kind", ["x"]), "it is for `another release`"),
    (set_in("more", 1), "damaged"),
    (set_in("content", []), "damaged"),
    (set_in("content", {}), "a part is missing"),
    (set_in("content", "hosts", []), "its hosts and its hosts file differ"),
    (set_in("content", "hosts", "kvm1", {}), "a part is missing"),
    (set_in("content", "hosts", "kvm1", "phases", [{"steps": 1}]), "a part is missing"),
    (
        set_in("content", "hosts", "kvm1", "phases", [{"steps": [{"step": ["a"], "text": "b"}]}]),
        "a part is missing",
    ),
    (set_in("content", "hosts", "evil", {"facts": {}, "phases": []}), "differ"),
    (set_in("content", "file", "name", "../../etc"), "name"),
    (set_in("content", "file", "hosts", 0, "nodes", "-oProxyCommand=x"), "node set"),
    (set_in("content", "file", {}), "damaged"),
]


@pytest.mark.parametrize(("edit", "words"), HOSTILE)
def test_a_hostile_plan_file_is_an_error(lab: Lab, edit: Any, words: str) -> None:
    lab.plan(out=lab.saved)
    edited(lab.saved, edit)
    with pytest.raises(PlanFileError) as caught:
        lab.apply(lab.saved)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert lab.writes == [0, 0, 0]


@pytest.mark.parametrize(
    "text",
    [
        '{"nearmetal-plan": 1',
        '{"nearmetal-plan": 1, "content": NaN}',
        '{"nearmetal-plan": 1, "content": ' + "[" * 100_000,
        '{"nearmetal-plan": ' + "9" * 10_000 + "}",
        '{"nearmetal-plan": 1, "x": "\udcff"}',
    ],
)
def test_a_damaged_plan_file_is_an_error(lab: Lab, text: str) -> None:
    lab.saved.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PlanFileError, match="damaged"):
        lab.apply(lab.saved)


def test_a_plan_in_place_of_its_hosts_file_is_told(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.plan(out=lab.saved)
    for verb in ("plan", "status", "rollback"):
        assert main(["host", verb, str(lab.saved)]) == 1
        assert "a saved plan\n  hint: it is for `nearmetal host apply`" in capsys.readouterr().err


def test_an_edit_by_hand_is_found(lab: Lab) -> None:
    lab.plan(out=lab.saved)
    edited(lab.saved, set_in("content", "source", "/other"), signed=False)
    with pytest.raises(PlanFileError, match="its content and its checksum differ"):
        lab.apply(lab.saved)


def test_texts_of_a_plan_file_forge_no_line_and_no_command(lab: Lab) -> None:
    lab.plan(out=lab.saved)
    edited(lab.saved, set_in("content", "source", "a; rm -r b\nc"))
    CHANGES["it has booted"](lab.hosts["kvm1"])
    with pytest.raises(HostError) as caught:
        lab.apply(lab.saved)
    assert caught.value.hint.endswith("nearmetal host plan 'a; rm -r b\\nc' --out FILE")


def test_steps_in_a_plan_file_are_compared_and_never_executed(lab: Lab) -> None:
    lab.plan(out=lab.saved)
    phase = {"steps": [{"step": "x", "text": "x", "action": "WriteFile"}], "reboot": False}
    edited(lab.saved, set_in("content", "hosts", "kvm1", "phases", [phase]))
    with pytest.raises(HostError, match="kvm1: needs other steps now"):
        lab.apply(lab.saved)
    assert lab.writes == [0, 0, 0]


def test_a_plan_file_holds_no_secret(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMC_PASSWORD", "hunter2-hunter2")
    lab.file.write_text(
        FILE.replace(
            "    adapters:",
            "    bmc: {address: 'https://127.0.0.1:1', password: {env: BMC_PASSWORD}}\n    adapters:",
        )
    )
    lab.plan(out=lab.saved)
    text = lab.saved.read_text()
    assert "hunter2" not in text
    assert "BMC_PASSWORD" in text


def test_only_the_hosts_of_limit_are_read_and_written(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.apply(limit="kvm[2-3]") == 0
    assert lab.ready() == [False, True, True]
    assert lab.hosts["kvm1"].scripts == []
    assert show_status(lab.file, lab.reach, VIEW, limit="kvm2,kvm3") == 0
    assert lab.plan(limit="*1") == 3
    shown = capsys.readouterr().out
    assert "host kvm1 (linux): " in shown
    lab.plan(out=lab.saved, limit="kvm1")
    with pytest.raises(UsageError, match="for a hosts file"):
        lab.apply(lab.saved, limit="kvm1")
    file = limited(parse_hosts(FILE), "kvm3")
    back = Rollback(file, lab.reach, lab.state, QUICK)
    assert roll_back(back, VIEW, dry_run=True) == 3
    assert "kept values: kvm2" in capsys.readouterr().out
    assert roll_back(back, VIEW, dry_run=False, yes=True) == 0
    assert lab.ready() == [False, True, False]


BIG = """\
version: 1
name: lab
canary: kvm3
hosts:
  - {nodes: "kvm[01-16],kvm3", platform: linux}
  - {nodes: "gpu[1-2].example.org", platform: linux}
"""


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        ("kvm[01-03]", "kvm[01-03]"),
        ("kvm0?", "kvm[01-09]"),
        ("*.example.org,kvm3", "gpu[1-2].example.org,kvm3"),
        ("kvm[14-16],gpu1.example.org", "gpu1.example.org,kvm[14-16]"),
    ],
)
def test_limit_takes_names_ranges_and_patterns(limit: str, names: str) -> None:
    file = limited(parse_hosts(BIG), limit)
    found = {name for name, _ in file.each()}
    expected = limited(parse_hosts(BIG), names)
    assert found == {name for name, _ in expected.each()}
    assert file.canary == ("kvm3" if "kvm3" in found else None)


@pytest.mark.parametrize(
    "limit",
    ["", "kvm99", "kvm[01-17]", "x*", "kvm*[1-3]", "kvm[1-", ",", "kvm[0-99999999999]", "a" * 2000],
)
def test_a_limit_that_names_no_host_is_refused(limit: str) -> None:
    with pytest.raises(UsageError, match="--limit"):
        limited(parse_hosts(BIG), limit)


def test_errors_of_many_hosts_are_told_together(lab: Lab) -> None:
    for name in ("kvm1", "kvm2", "kvm3"):
        lab.hosts[name].comes_back = False
        (lab.hosts[name].root / "reboot").touch()
    with pytest.raises(HostError) as caught:
        lab.apply()
    assert caught.value.message == "nothing was written:\n  kvm[1-3]: no answer"


def test_hosts_with_the_same_text_but_for_their_name_are_one_line() -> None:
    told = [
        ("kvm1", "ssh: connect to host kvm1 port 22: refused"),
        ("kvm2", "ssh: connect to host kvm2 port 22: refused"),
        ("kvm10", "no answer"),
        ("kvm3", "ssh: connect to host kvm3 port 22: refused"),
    ]
    assert grouped(told) == [
        ("kvm[1-3]", "ssh: connect to host {host} port 22: refused"),
        ("kvm10", "no answer"),
    ]
    assert grouped([("kvm1", "kvm1 and kvm10 and xkvm1")]) == [("kvm1", "kvm1 and kvm10 and xkvm1")]


def test_each_step_is_told_as_it_happens(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.hosts["kvm2"].fail_on = "NUM_OF_VFS=4"
    with pytest.raises(HostError, match="kvm2: "):
        lab.apply(limit="kvm[1-2]")
    told = [line.split(" s  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    begun = [r.step for r in Journal(lab.state).read() if r.event == "begin"]
    assert [line for line in told if line in begun] == begun
    assert "kvm1: as the file says" in told
    assert re.match(r"kvm2: failed: .*NUM_OF_VFS.*-E- the card does not answer", told[-1])


def test_the_command_line_refuses_shortened_options_and_knows_the_new_ones(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["host", "apply", str(lab.file), "--ye"]) == 2
    assert main(["host", "apply", str(lab.file), "--limit", "kvm9"]) == 2
    assert "kvm9" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["-5", "0", "86401", "9" * 5000, "1e3", "nan", "²"])
def test_a_limit_of_a_reboot_that_no_host_can_keep_is_refused(
    lab: Lab, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("apply", "rollback"):
        assert main(["host", verb, str(lab.file), "--yes", f"--reboot-timeout={limit}"]) == 2
        assert "is not a number of seconds from 1 to 86400" in capsys.readouterr().err
    assert lab.writes == [0, 0, 0]
