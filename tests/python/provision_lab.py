# SPDX-License-Identifier: Apache-2.0
"""A Linux host in a directory: the real scripts run in a real shell, on its tree and its tools."""

import json
import re
import sys
from pathlib import Path
from typing import Any, Self

from nearmetal.core.process import Command, LocalRunner
from nearmetal.host.facts import Reach
from nearmetal.host.hosts_file import HostGroup
from nearmetal.host.redfish import Redfish
from nearmetal.host.shell import Answer
from nearmetal.host.slurm import SlurmTools
from tests.python.sriov_tree import Tree

FACTORY = {
    "NUM_OF_VFS": "0",
    "SRIOV_EN": "0",
    "LINK_TYPE_P1": "2",
    "LINK_TYPE_P2": "2",
    "ADVANCED_PCI_SETTINGS": "0",
    "FORCE_ETH_PCI_SUBCLASS": "0",
}


class HostTree:
    """The host: `script` runs on its files instead of this machine's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.state = root / "mlxconfig.json"
        self.levels: Path | None = None
        self.scripts: list[str] = []
        self.tree = Tree(root)

    def make(self, *, loader: bool = True) -> "HostTree":
        self.root.mkdir(exist_ok=True)
        self.tree.make()
        self.bin.mkdir()
        (self.root / "etc/udev/rules.d").mkdir(parents=True)
        (self.root / "run").mkdir()
        self.tool("devlink", "exit 1")
        self.tool("udevadm", "exit 0")
        if loader:
            (self.root / "etc/default/grub.d").mkdir(parents=True)
            self.tool(
                "update-grub",
                f"find {self.root}/etc/default/grub.d -type f -exec cat {{}} + "
                f"> {self.root}/grub.cfg",
            )
        return self

    def tool(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def hides(self, setting: str, opens: str) -> Self:
        """Give each card a setting that mlxconfig lists only with ADVANCED_PCI_SETTINGS.

        `opens`: when, at the "set" of that one or at its "reset".
        """
        cards = json.loads(self.state.read_text())
        for card in cards.values():
            card[setting] = ["0", "0", "0"]
        self.state.write_text(json.dumps(cards))
        tool = self.bin / "mlxconfig"
        text = tool.read_text().replace(
            "MLXCONFIG_STATE", f"MLXCONFIG_OPENS={opens} MLXCONFIG_STATE"
        )
        tool.write_text(text)
        return self

    def connectx(self, place: str = "0000:3b:00") -> None:
        """A ConnectX-5 as it leaves the factory, and mlxconfig for it."""
        for number in range(2):
            self.tree.pf(f"{place}.{number}", f"ens{number}", driver="mlx5_core", total=0)
            device = self.root / "sys/bus/pci/devices" / f"{place}.{number}"
            for name, text in (
                ("vendor", "0x15b3"),
                ("device", "0x1017"),
                ("sriov_totalvfs", "0"),
                ("sriov_numvfs", "0"),
            ):
                (device / name).write_text(text + "\n")
        self.state.write_text(
            json.dumps({f"{place}.0": {n: [v, v, v] for n, v in FACTORY.items()}})
        )
        program = Path(__file__).with_name("fake_mlxconfig.py")
        self.tool(
            "mlxconfig", f'MLXCONFIG_STATE={self.state} exec {sys.executable} -I -S {program} "$@"'
        )
        entry = {
            "driver": "mlx5_core",
            "versions": {
                "fixed": {"fw.psid": "MT_0000000008"},
                "running": {"fw.version": "16.32.1010"},
            },
        }
        document = json.dumps({"info": {f"pci/{place}.{n}": entry for n in range(2)}})
        (self.root / "devlink.json").write_text(document)
        self.tool("devlink", f"cat {self.root}/devlink.json")

    def flash(self, *, running: str, stored: str) -> None:
        """Have flint and mlxfwmanager for the cards, which have this firmware."""
        self.levels = self.root / "firmware.json"
        cards = json.loads(self.state.read_text())
        self.levels.write_text(json.dumps({card: [running, stored, 0] for card in cards}))
        program = Path(__file__).with_name("fake_flint.py")
        for tool in ("flint", "mlxfwmanager"):
            self.tool(
                tool, f'FLINT_STATE={self.levels} exec {sys.executable} -I -S {program} {tool} "$@"'
            )

    def script(self, text: str, *, timeout_s: float) -> Answer:
        self.scripts.append(text)
        there = re.sub(r"(?<![\w/])(?<!\nw )/(sys|proc|etc|run)/", rf"{self.root}/\1/", text)
        there = there.replace("PATH=", f"PATH={self.bin}:", 1)
        done = LocalRunner().run(Command(("sh", "-s"), stdin=there.encode()), timeout_s=timeout_s)
        return Answer(done.code, done.text)

    def config(self) -> dict[str, Any]:
        found = json.loads(self.state.read_text())
        return {name: values[2] for name, values in next(iter(found.values())).items()}


class LabReach(Reach):
    """Hosts of a lab by name; those that are not there are unreachable."""

    def __init__(self, hosts: dict[str, HostTree], slurm: SlurmTools | None = None) -> None:
        super().__init__()
        self.hosts = hosts
        self.slurm = slurm or SlurmTools()

    def shell(self, name: str, group: HostGroup) -> HostTree:
        assert group.platform == "linux"
        return self.hosts[name]

    def redfish(self, name: str, group: HostGroup) -> Redfish | None:
        assert name in self.hosts
        return None if group.bmc is None else Redfish(name, group.bmc)

    def vsphere(self, name: str, group: HostGroup) -> None:
        assert name in self.hosts
        assert group.vcenter is None

    def scheduler(self) -> SlurmTools:
        return self.slurm
