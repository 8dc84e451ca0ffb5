# SPDX-License-Identifier: Apache-2.0
"""Facts are read by the real scripts in a real shell, and shown by the verbs."""

import json
from pathlib import Path

import pytest

from nearmetal.cli.host import show_plan, show_status
from nearmetal.cli.view import View
from nearmetal.core.errors import HostError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.host.facts_esxi import read_esxi
from nearmetal.host.facts_linux import read_linux
from nearmetal.host.hosts_file import Ssh
from nearmetal.host.model import ConfigValue, PortFacts
from nearmetal.host.places import GRUB, POWER, RULES, VFIO
from nearmetal.host.shell import Answer, SshShell, ask
from tests.python.provision_lab import FACTORY, HostTree, LabReach
from tests.python.test_host_parse import MLXCONFIG, MLXFWMANAGER, MST, PARAMETERS, VIBS

FILE = """\
version: 1
name: lab
hosts:
  - nodes: "kvm[1-2]"
    platform: linux
    adapters: [{model: ConnectX-5, firmware: 16.32.1010, ports: [{vfs: 4}, {vfs: 2}]}]
    kernel: {iommu: passthrough}
"""


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "kvm1").make()


def test_a_host_with_a_connectx_is_read(host: HostTree) -> None:
    host.connectx()
    facts = read_linux("kvm1", host)
    assert facts.unread == ()
    assert facts.cpu == "intel"
    assert facts.cmdline == ("quiet", "intel_iommu=on")
    assert facts.loader == "grub.d"
    assert facts.iommu_groups > 0
    assert facts.files == {RULES: None, GRUB: None, POWER: None, VFIO: None}
    [card] = facts.cards
    assert (card.address, card.model, card.psid) == ("0000:3b:00", "ConnectX-5", "MT_0000000008")
    assert (card.firmware, card.device) == ("16.32.1010", "0000:3b:00.0")
    listed = FACTORY.keys() - {"FORCE_ETH_PCI_SUBCLASS"}
    assert card.config == {name: ConfigValue(FACTORY[name], FACTORY[name]) for name in listed}
    assert card.ports == (
        PortFacts("0000:3b:00.0", "mlx5_core", "ens0"),
        PortFacts("0000:3b:00.1", "mlx5_core", "ens1"),
    )


def test_a_host_with_igb_needs_no_tools(host: HostTree) -> None:
    host.tree.pf("0000:01:00.0", "ens1")
    host.tree.create("0000:01:00.0", 3)
    vf = next((host.root / "sys/bus/pci/devices/0000:01:00.0").glob("virtfn0"))
    (vf / "driver").unlink()
    host.tree.bind(vf.resolve(), "vfio-pci")
    [card] = read_linux("kvm1", host).cards
    assert card.model == "82576"
    assert card.config is None
    assert card.ports == (PortFacts("0000:01:00.0", "igb", "ens1", total_vfs=7, vfs=3, used_vfs=1),)


def test_what_nearmetal_keeps_is_read_to_the_letter(host: HostTree) -> None:
    (host.root / RULES[1:]).write_text("a\n\nb")
    (host.root / GRUB[1:]).write_text("")
    assert read_linux("kvm1", host).files == {RULES: "a\n\nb", GRUB: "", POWER: None, VFIO: None}


def test_a_card_without_its_tool_is_said_to_be_unread(host: HostTree) -> None:
    host.connectx()
    (host.bin / "mlxconfig").unlink()
    facts = read_linux("kvm1", host)
    assert facts.unread == ("firmware settings: neither mlxconfig nor mstconfig is installed",)
    assert facts.cards[0].config is None


def test_an_esxi_host_is_read() -> None:
    answers = {
        "vibs": VIBS,
        "mst": MST,
        "mlxfwmanager": MLXFWMANAGER,
        "options": PARAMETERS,
        "mt4119_pciconf1": MLXCONFIG,
        "mt4117_pciconf0": "-E- no",
    }
    answers["pci"] = "".join(
        f"{a}\n   VMkernel Name: {n}\n   Vendor ID: 0x15b3\n   Device ID: {d}\n   Module Name: {m}\n"
        for a, n, d, m in (
            ("0000:3b:00.1", "", "0x1017", "None"),
            ("0000:3b:00.0", "", "0x1017", "None"),
            ("0000:1a:00.0", "vmnic0", "0x1015", "nmlx5_core"),
            ("0000:3b:00.2", "", "0x1018", "None"),
        )
    )

    class Esxi:
        def script(self, text: str, *, timeout_s: float) -> Answer:
            assert timeout_s > 0
            for name, output in answers.items():
                text = text.replace(f"echo {name}\n", "")
                if f" {name}\n" in text:
                    lines = text.split("\n")
                    place = next(i for i, line in enumerate(lines) if line.endswith(f" {name}"))
                    lines[place + 1] = (
                        "cat <<'EOF'\n"
                        + output
                        + "\nEOF\n"
                        + lines[place + 1].split("2>/dev/null;", 1)[1].replace("code=$?", "code=0")
                    )
                    text = "\n".join(lines)
            done = LocalRunner().run(Command(("sh", "-s"), stdin=text.encode()), timeout_s=30)
            return Answer(done.code, done.text)

    facts = read_esxi("esx1", Esxi())
    assert facts.options == {"nmlx5_core": "max_vfs=0,0,8,7 pfctx=8"}
    assert facts.packages["mft"] == "4.18.1.14-0"
    assert [card.address for card in facts.cards] == ["0000:1a:00", "0000:3b:00"]
    assert facts.cards[0].config is None
    fast = facts.cards[1]
    assert (fast.device, fast.psid, fast.firmware) == (
        "mt4119_pciconf1",
        "MT_0000000008",
        "16.32.1010",
    )
    assert [port.address for port in fast.ports] == ["0000:3b:00.0", "0000:3b:00.1"]
    assert fast.config is not None
    assert fast.config["NUM_OF_VFS"] == ConfigValue("0", "16")


def test_plan_and_status_speak_of_every_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = {name: HostTree(tmp_path / name).make() for name in ("kvm1", "kvm2")}
    for tree in hosts.values():
        tree.connectx()

    class Gone(HostTree):
        def script(self, text: str, *, timeout_s: float) -> Answer:
            raise HostError(f"kvm2: no answer after {timeout_s:g} s", text[:0])

    file = tmp_path / "hosts.yaml"
    file.write_text(FILE)
    reach = LabReach(hosts)
    assert show_plan(file, reach, View(as_json=False)) == 3
    out = capsys.readouterr().out
    assert "hosts kvm[1-2] (linux): 4 steps, 1 reboot" in out
    assert "order: kvm1, then kvm2" in out
    assert show_status(file, reach, View(as_json=False)) == 4
    out = capsys.readouterr().out
    assert "hosts kvm[1-2] (linux): 4 differences from the file" in out
    assert "  card      ConnectX-5 at 0000:3b:00 (MT_0000000008, firmware 16.32.1010)" in out
    reach.hosts["kvm2"] = Gone(tmp_path / "kvm2")
    assert show_plan(file, reach, View(as_json=True)) == 1
    data = json.loads(capsys.readouterr().out)
    assert [host["reboots"] for host in data["hosts"]] == [1, 0]
    assert data["hosts"][1]["refusals"][0]["what"] == "kvm2: no answer after 180 s"
    assert data["waves"] == [["kvm1"]]
    assert show_status(file, reach, View(as_json=True)) == 4
    assert json.loads(capsys.readouterr().out)["hosts"][1]["facts"] is None


class Recorder(LocalRunner):
    """Says what was started, and answers as told."""

    def __init__(
        self, code: int, stdout: bytes, stderr: bytes = b"", *, late: bool = False
    ) -> None:
        self.answer = (code, stdout, stderr, late)
        self.command = Command(())

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        self.command = command
        code, stdout, stderr, late = self.answer
        return Completed(command, code, stdout, stderr, timeout_s, late)


def test_ssh_is_started_so_that_it_never_asks() -> None:
    runner = Recorder(0, b"hello")
    shell = SshShell("kvm1", Ssh(user="admin", port=2222, config="/etc/my"), runner)
    assert shell.script("echo hello\n", timeout_s=5) == Answer(0, "hello")
    argv = runner.command.argv
    assert argv[:3] == ("ssh", "-F", "/etc/my")
    assert argv[-3:] == ("--", "kvm1", "sh -s")
    assert "BatchMode=yes" in argv
    assert argv[-7:-3] == ("-p", "2222", "-l", "admin")
    assert runner.command.stdin == b"echo hello\n"


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        (
            Recorder(255, b"", b"x\nssh: connect to host kvm1 port 22: No route to host\n"),
            "No route",
        ),
        (Recorder(255, b""), "no reason given"),
        (Recorder(-15, b"", late=True), "no answer after 5 s"),
    ],
)
def test_why_a_host_cannot_be_reached_is_said(runner: Recorder, said: str) -> None:
    with pytest.raises(HostError, match=f"kvm1: .*{said}"):
        SshShell("kvm1", Ssh(), runner).script("true", timeout_s=5)


def test_answers_are_told_apart_whatever_they_hold(tmp_path: Path) -> None:
    shell = HostTree(tmp_path / "h").make()
    found = ask(shell, {"a": "printf 'x\\n\\n'", "b b": "echo nearmetal-0 c; exit 7", "c": "false"})
    assert found == {
        "a": Answer(0, "x\n\n"),
        "b b": Answer(7, "nearmetal-0 c\n"),
        "c": Answer(1, ""),
    }


def test_a_shell_that_says_nothing_is_named() -> None:
    with pytest.raises(HostError, match="no answer to a"):
        ask(SshShell("kvm1", Ssh(), Recorder(0, b"Welcome!\n")), {"a": "true"})
