# SPDX-License-Identifier: Apache-2.0
"""ESXi hosts of the simulated vCenter for `nearmetal host`, and a shell of theirs with the tools' grammars."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from nearmetal.core.process import Command, LocalRunner
from nearmetal.host.apply import Applier, Patience
from nearmetal.host.facts import Reach
from nearmetal.host.hosts_file import parse_hosts
from nearmetal.host.shell import Answer
from nearmetal.host.vcenter.session import fetch
from tests.python import fake_mlxconfig
from tests.python.provision_host import FACTORY
from tests.system.vcenter import PASSWORD, Simulator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.host.hosts_file import HostGroup
    from nearmetal.host.shell import Shell
    from nearmetal.host.vcenter.session import Session

QUICK = Patience(reboot_s=60, look_s=0.02)

PORTS = """\
    adapters:
      - model: ConnectX-5
        num_of_vfs: 16
        ports: [{link: infiniband, vfs: 8}, {link: infiniband, vfs: 7}]
"""

MST = "PCI devices:\nDEVICE_TYPE MST PCI\nConnectX5(rev:0)  mt4119_pciconf0  3b:00.0\n"
MLXFWMANAGER = """
Device #1:
----------
  Device Type:      ConnectX5
  PSID:             MT_0000000008
  PCI Device Name:  3b:00.0
  Versions:         Current        Available
     FW             16.32.1010     N/A
"""
VIBS = """
Name        Version          Vendor  Acceptance Level  Install Date
----------  ---------------  ------  ----------------  ------------
nmlx5-core  4.21.71.101-1    MEL     VMwareCertified   2022-03-01
"""
PCI = "".join(
    f"0000:3b:00.{n}\n   VMkernel Name: vmnic{n + 2}\n   Vendor ID: 0x15b3\n   Device ID: 0x1017\n"
    "   Module Name: nmlx5_core\n"
    for n in (0, 1)
)


def hosts_file(
    vcenter: Simulator, nodes: str = "esx[1-3]", more: str = PORTS, *, ssh: bool = False
) -> str:
    """Return a hosts file for hosts of the simulated vCenter."""
    return (
        f'version: 1\nname: lab\nhosts:\n  - nodes: "{nodes}"\n    platform: esxi\n'
        f"    vcenter: {{server: 127.0.0.1, port: {vcenter.port}, user: user, "
        f"password: {{env: {PASSWORD}}}, thumbprint: '{vcenter.thumbprint}'}}\n"
        + ("    ssh: {}\n" if ssh else "")
        + more
    )


def applier(
    text: str, state: Path, patience: Patience = QUICK, reach: Reach | None = None
) -> Applier:
    """Return an `apply` of a file that looks often."""
    return Applier(parse_hosts(text), reach or Reach(), state, patience)


class Hosts:
    """The simulated hosts, looked at by a session of our own."""

    def __init__(self, session: Session) -> None:
        self.session = session
        content = session.content
        self.refs = {
            str(v["name"]): ref
            for ref, v in fetch(content, content.rootFolder, vim.HostSystem, ["name"]).items()
        }

    def vfs(self, name: str) -> list[int]:
        """Return the VFs of the card for MPI, then of the first port of the card of ESXi."""
        infos = {i.id: i for i in self.refs[name].config.pciPassthruInfo}
        ports = ("0000:3b:00.0", "0000:3b:00.1", "0000:af:00.0")
        return [infos[port].numVirtualFunction for port in ports]

    def directpath(self, name: str, address: str) -> tuple[bool, bool]:
        """Return whether DirectPath I/O of a device is set, and in force."""
        [info] = [i for i in self.refs[name].config.pciPassthruInfo if i.id == address]
        return info.passthruEnabled, info.passthruActive

    def options(self, name: str) -> str:
        """Return the options of the driver for the next boot."""
        system = self.refs[name].configManager.kernelModuleSystem
        return str(system.QueryConfiguredModuleOptionString("nmlx5_core"))

    def set_options(self, name: str, options: str) -> None:
        """Change them by hand."""
        self.refs[name].configManager.kernelModuleSystem.UpdateModuleOptionString(
            "nmlx5_core", options
        )

    def power(self, name: str) -> str:
        """Return the power policy."""
        return str(self.refs[name].config.powerSystemInfo.currentPolicy.shortName)

    def in_service(self, name: str) -> bool:
        """Whether it takes machines."""
        runtime = self.refs[name].runtime
        return runtime.connectionState == "connected" and not runtime.inMaintenanceMode

    def boot(self, name: str) -> str:
        """Return when it booted, to the hour: what its clock is corrected by since is left out."""
        return f"{self.refs[name].runtime.bootTime:%Y-%m-%dT%H}"

    def machine(self, name: str, host: str, devices: list[Any] | None = None) -> Any:
        """Make a machine at a host, and switch it on."""
        center = self.session.content.rootFolder.childEntity[0]
        compute = center.hostFolder.childEntity[0]
        template = next(v for v in center.vmFolder.childEntity if v.name == "DC0_C0_RP0_VM0")
        place = vim.vm.RelocateSpec(pool=compute.resourcePool, host=self.refs[host])
        spec = vim.vm.CloneSpec(location=place, powerOn=False, template=False)
        made = self.session.wait(
            "cloning", lambda: template.CloneVM_Task(center.vmFolder, name, spec)
        )
        if devices:
            change = vim.vm.ConfigSpec(
                memoryReservationLockedToMax=True,
                deviceChange=[
                    vim.vm.device.VirtualDeviceSpec(operation="add", device=d) for d in devices
                ],
            )
            self.session.wait("preparing", lambda: made.ReconfigVM_Task(change))
        self.session.wait("switching on", made.PowerOnVM_Task)
        return made

    def remove(self, machine: Any) -> None:
        """Switch a machine off, and remove it."""
        self.session.wait("switching off", machine.PowerOffVM_Task)
        self.session.wait("removing", machine.Destroy_Task)

    def evict(self, name: str) -> None:
        """Put it into maintenance mode, as somebody else."""
        ref = self.refs[name]
        self.session.wait("meddling", partial(ref.EnterMaintenanceMode_Task, 60, False))


def sriov_card(address: str = "0000:3b:00.0") -> Any:
    """Return an SR-IOV adapter on a physical function, on the standard switch."""
    backing = vim.vm.device.VirtualPCIPassthrough.DeviceBackingInfo(
        id=address, deviceId="1017", systemId="", vendorId=0x15B3, deviceName=""
    )
    card = vim.vm.device.VirtualSriovEthernetCard
    return card(
        key=-1,
        backing=vim.vm.device.VirtualEthernetCard.NetworkBackingInfo(deviceName="VM Network"),
        sriovBacking=card.SriovBackingInfo(physicalFunctionBacking=backing),
    )


class EsxiShell:
    """The shell of a host: real sh, and its tools as their documentation has them.

    What mlxconfig sets lies in a file until the host boots; the simulated vCenter reads NUM_OF_VFS
    there. A boot resets the card. `settings`: of its firmware, also those that mlxconfig hides;
    `opens`: when it lists a hidden one, at the "set" of the other one or at its "reset".
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        hosts: Hosts,
        settings: Mapping[str, str] = FACTORY,
        opens: str = "set",
    ) -> None:
        self._name, self._hosts = name, hosts
        self._bin = directory / "bin" / name
        self._bin.mkdir(parents=True)
        self._state = directory / f"{name}.mlxconfig.json"
        self._firmware = directory / "firmware" / name
        self._firmware.parent.mkdir(exist_ok=True)
        self._boot = hosts.boot(name)
        hidden = {"FORCE_ETH_PCI_SUBCLASS": "0"}
        card = {setting: [v, v, v] for setting, v in (hidden | dict(settings)).items()}
        self._state.write_text(json.dumps({"mt4119_pciconf0": card}))
        for tool, output in (("mst", MST), ("mlxfwmanager", MLXFWMANAGER)):
            self._tool(tool, f"cat <<'EOF'\n{output}\nEOF")
        self._tool(
            "esxcli",
            f"case $* in *vib*list) cat <<'EOF'\n{VIBS}\nEOF\n;; *pci*list) cat "
            f"<<'EOF'\n{PCI}\nEOF\n;; *) exit 1 ;; esac",
        )
        program = Path(fake_mlxconfig.__file__)
        self._tool(
            "mlxconfig",
            f"MLXCONFIG_STATE={self._state} MLXCONFIG_OPENS={opens} "
            f'exec {sys.executable} -I -S {program} "$@"',
        )
        self.writes: list[str] = []

    def _tool(self, name: str, text: str) -> None:
        (self._bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self._bin / name).chmod(0o755)

    def script(self, text: str, *, timeout_s: float) -> Answer:
        boot = self._hosts.boot(self._name)
        if boot != self._boot:
            self._boot = boot
            fake_mlxconfig.reset(self._state)
        if "set -e" in text:
            self.writes.append(text)
        there = text.replace("PATH=", f"PATH={self._bin}:", 1)
        done = LocalRunner().run(Command(("sh", "-s"), stdin=there.encode()), timeout_s=timeout_s)
        comes = {name: values[2] for name, values in self._card().items()}
        offered = comes["NUM_OF_VFS"] if comes["SRIOV_EN"] == "1" else "0"
        self._firmware.write_text(offered)
        return Answer(done.code, done.text)

    def _card(self) -> dict[str, list[str]]:
        found: dict[str, dict[str, list[str]]] = json.loads(self._state.read_text())
        return found["mt4119_pciconf0"]

    def config(self) -> dict[str, str]:
        """Return the settings that the card runs with."""
        return {name: values[1] for name, values in self._card().items()}


class Shells(Reach):
    """Hosts through their vCenter and, in place of ssh, shells of theirs."""

    def __init__(self, shells: dict[str, EsxiShell]) -> None:
        super().__init__()
        self._shells = shells

    def shell(self, name: str, group: HostGroup) -> Shell:
        assert group.has_shell
        return self._shells[name]
