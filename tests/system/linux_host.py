# SPDX-License-Identifier: Apache-2.0
"""Hosts for `nearmetal host`: machines with a disk, a boot loader and a BMC of their own.

A host is a QEMU machine on an overlay of the factory's disk, with an igb behind a root port. When it
restarts, what its BMC holds staged comes into force, and with it the IOMMU that the machine has.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.core.journal import Journal, Record
from tests.system.bmc import Bmc
from tests.system.linux_disk import ROOT, factory_disk
from tests.system.machines import Key, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FACTORY_BIOS = {
    "ProcVirtualization": "Disabled",
    "SriovGlobalEnable": "Disabled",
    "LogicalProc": "Enabled",
}
PF = "0000:01:00.0"
DEVICE = f"/sys/bus/pci/devices/{PF}"
HANG_S = 900.0
"""Ends what hangs; asserts nothing about speed."""


class LinuxHost:
    """One host. Restarts are real: QEMU ends and begins again, as the power does."""

    def __init__(self, name: str, folder: Path, key: Key) -> None:
        """Switch it on, as the factory left it."""
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.key = key
        self.port = free_port()
        self.starts = 0
        self.comes_back = True
        self.bmc = Bmc(self.folder / "bmc", FACTORY_BIOS)
        self._ending = threading.Event()
        self._power = threading.Thread(target=self._run)
        self._process: subprocess.Popen[bytes] | None = None
        self._disk = self.folder / "disk.qcow2"
        subprocess.run(
            [
                "qemu-img",
                "create",
                "-q",
                "-f",
                "qcow2",
                "-F",
                "raw",
                "-b",
                factory_disk(),
                self._disk,
            ],
            check=True,
            timeout=60,
        )
        self.switch_on()

    @property
    def console(self) -> Path:
        return self.folder / "console"

    def _argv(self) -> list[str]:
        iommu = self.bmc.now["ProcVirtualization"] == "Enabled"
        return [
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-M",
            "q35",
            # Of Intel, as is the IOMMU, and without what makes udev load drivers by the dozen.
            "-cpu",
            "Nehalem,+rdrand",
            "-m",
            "768",
            "-smp",
            "2",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-chardev",
            f"file,id=console,path={self.console},append=on",
            "-serial",
            "chardev:console",
            "-qmp",
            f"unix:{self.folder}/qmp,server=on,wait=off",
            "-fw_cfg",
            f"name=opt/lab/key,file={self.key.private.with_suffix('.pub')}",
            "-drive",
            f"file={self._disk},if=none,id=root,cache=unsafe",
            "-device",
            "virtio-blk-pci,drive=root",
            "-netdev",
            f"user,id=admin,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-10.0.2.15:22",
            "-device",
            "virtio-net-pci,netdev=admin,id=way-in,romfile=",
            *(["-device", "intel-iommu,intremap=on,caching-mode=on"] if iommu else []),
            "-device",
            "pcie-root-port,id=rp1,chassis=1,slot=1",
            "-netdev",
            "user,id=uplink,restrict=on",
            "-device",
            "igb,netdev=uplink,bus=rp1,mac=52:54:00:00:01:01,romfile=",
        ]

    def _run(self) -> None:
        """Be the power supply: start the machine whenever it goes down, until the end."""
        with (self.folder / "qemu.log").open("ab") as log:
            while not self._ending.is_set():
                self.starts += 1
                self._process = subprocess.Popen(
                    self._argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                while self._process.poll() is None:
                    if self._ending.wait(0.1):
                        self._process.kill()
                if self._ending.is_set() or not self.comes_back:
                    return
                self.bmc.restart()
                assert self.starts < 100, (self.folder / "qemu.log").read_text()

    def switch_on(self) -> None:
        """Start it, once more where it did not come back."""
        if self.starts:
            self._power.join()
            self.bmc.restart()
            self.comes_back = True
            self._power = threading.Thread(target=self._run)
        self._power.start()

    def cut_power(self) -> None:
        """As a failing power supply does; it starts again at once."""
        assert self._process is not None
        self._process.kill()

    def end(self) -> None:
        self._ending.set()
        self._power.join()
        self.bmc.end()

    def cable(self, *, plugged: bool) -> None:
        """Plug or pull the network that ssh comes by."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(f"{self.folder}/qmp")
            stream = channel.makefile("rw")
            stream.readline()
            for command in (
                {"execute": "qmp_capabilities"},
                {"execute": "set_link", "arguments": {"name": "way-in", "up": plugged}},
            ):
                stream.write(json.dumps(command) + "\n")
                stream.flush()
                while "return" not in (answer := json.loads(stream.readline())):
                    assert "error" not in answer, answer

    @property
    def ssh_config(self) -> Path:
        """How ssh gets in: as a person's own configuration would say."""
        path = self.folder / "ssh_config"
        path.write_text(
            f"Host {self.name}\n  HostName 127.0.0.1\n  IdentityFile {self.key.private}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.folder}/known_hosts\n"
            "  StrictHostKeyChecking accept-new\n"
        )
        return path

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        argv = [
            "ssh",
            "-F",
            str(self.ssh_config),
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=20",
            "-p",
            str(self.port),
            "-l",
            "root",
            self.name,
            command,
        ]
        return subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False)

    def tell(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def reachable(self) -> LinuxHost:
        """Wait until one can log in."""
        deadline = time.monotonic() + HANG_S
        while self.run("true").returncode != 0:
            assert time.monotonic() < deadline, self.said()[-3000:]
            time.sleep(1)
        return self

    def settled(self) -> LinuxHost:
        """Wait until what a killed run left behind has ended, a reboot too, and one can log in."""
        deadline = time.monotonic() + HANG_S
        # The ssh of a killed run lives on, and does what it was told.
        while (
            subprocess.run(
                ["pgrep", "-f", str(self.ssh_config)], check=False, stdout=subprocess.DEVNULL
            ).returncode
            == 0
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        quiet = (
            "flock /run/nearmetal-host.lock udevadm settle; "
            '[ "$(systemctl is-system-running)" != stopping ] && '
            "! pgrep -f '[s]ystemctl reboot'"
        )
        while self.run(quiet).returncode != 0:
            assert time.monotonic() < deadline, self.said()[-3000:]
            time.sleep(1)
        return self

    def said(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def vfs(self) -> list[str]:
        """Return the VFs that the kernel has, by their addresses."""
        return self.tell(
            f"for v in {DEVICE}/virtfn*; do [ -e $v ] && basename $(readlink $v); done | sort"
        ).splitlines()

    def state(self) -> dict[str, Any]:
        """Return what apply is to change and rollback to put back, as the host has it."""
        card = json.loads(self.tell("cat /var/lib/lab/mlxconfig.json"))[PF]
        return {
            "bios": self.bmc.now,
            "config": {name: values[1:] for name, values in card.items()},
            "firmware": self.tell("cat /var/lib/lab/firmware.json"),
            "cmdline": [
                w
                for w in self.tell("cat /proc/cmdline").split()
                if "root" not in w and "BOOT_IMAGE" not in w
            ],
            "vfs": self.vfs(),
            "mtu": self.tell(f"cat {DEVICE}/net/*/mtu"),
            "iommu": self.tell("[ -e /sys/class/iommu/dmar0 ] && echo on || echo off"),
            "files": self.tell(
                "find /etc/udev/rules.d /etc/systemd/network /etc/default/grub.d"
                " -type f -exec sha256sum {} + | sort"
            ),
        }


@dataclass
class Site:
    """Hosts, the file that says what they shall be, and the command line on it."""

    folder: Path
    body: str
    """What the file says of each host, after its name and how it is reached."""
    hosts: list[LinuxHost] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key = Key.make(self.folder / "key")

    @property
    def file(self) -> Path:
        path = self.folder / "hosts.yaml"
        entries = "".join(
            f"  - nodes: {host.name}\n    platform: linux\n"
            f"    ssh: {{port: {host.port}, config: {host.ssh_config}}}\n"
            f"    bmc: {host.bmc.spec}\n{self.body}"
            for host in self.hosts
        )
        path.write_text(f"version: 1\nname: lab\nhosts:\n{entries}")
        return path

    @property
    def directory(self) -> Path:
        return self.folder / "state" / "hosts" / "lab"

    def add(self, name: str) -> LinuxHost:
        host = LinuxHost(name, self.folder, self._key)
        self.hosts.append(host)
        return host

    def records(self) -> list[Record]:
        return Journal(self.directory).read()

    def kept(self) -> Any:
        return json.loads((self.directory / "before.json").read_text())

    def _argv(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("NEARMETAL_")}
        env |= {"NEARMETAL_STATE_DIR": str(self.folder / "state"), "PYTHONPATH": str(ROOT)}
        verb, *options = words
        return [sys.executable, "-m", "nearmetal", "host", verb, str(self.file), *options], env

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv, env = self._argv(words)
        return subprocess.run(
            argv,
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=HANG_S * 2,
            check=False,
        )

    def ok(self, *words: str, code: int = 0) -> str:
        done = self.run(*words)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def watched(
        self, *words: str, moment: Callable[[list[Record]], bool], act: Callable[[int], None]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, and act once when the journal has come to a moment.

        `moment`: of the records that are new, `act`: takes the process.
        """
        before = len(self.records())
        argv, env = self._argv(words)
        with subprocess.Popen(
            argv,
            env=env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.PIPE,
        ) as process:
            done = False
            deadline = time.monotonic() + HANG_S * 2
            while process.poll() is None and time.monotonic() < deadline:
                if not done and moment(self.records()[before:]):
                    act(process.pid)
                    done = True
                time.sleep(0.002)
            if process.poll() is None:
                process.kill()
            out, err = process.communicate()
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def end(self) -> None:
        for host in self.hosts:
            host.end()


def kill(pid: int) -> None:
    """End a process as a failing machine does: at once, with nothing put in order."""
    os.kill(pid, signal.SIGKILL)
