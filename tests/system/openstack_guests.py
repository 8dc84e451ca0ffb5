# SPDX-License-Identifier: Apache-2.0
"""Real guests of Nova's libvirt driver: their bridge, QEMUs and consoles, and nearmetal-computed."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nearmetal.computed.holdings import Holdings
from nearmetal.computed.segment_files import PREFIX
from tests.openstack import hypervisor
from tests.openstack.settings import HOSTS
from tests.python.computed_world import states
from tests.system import hypervisors
from tests.system.need import lacking
from tests.system.openstack_cloud import ROOT, SERVICES, RealCloud

if TYPE_CHECKING:
    from collections.abc import Iterator


WORDS = b"nearmetal guest is up"
# cld; cli; ds = 0; si = the words; dx = COM1; until 0: lodsb, out dx; then hlt for ever.
_CODE = "fc fa 31c0 8ed8 be177c baf803 ac 84c0 7403 ee ebf8 f4 ebfd"
_PARTITION = b"\x80\0\0\0\x83\0\0\0" + struct.pack("<II", 1, 2000)


def _disk(code: str) -> bytes:
    sector = (bytes.fromhex(code) + WORDS + b"\r\n\0").ljust(446, b"\0")
    return sector + _PARTITION + bytes(48) + b"\x55\xaa"


DISK = _disk(_CODE)

# The same, and at each tick of its clock it lets go what ACPI's ports of PCI hotplug ask back:
# sti; hlt; for each bus ecx: out 0xcd0, in 0xcc4, and what is set there out 0xcc8.
_EJECTS = "fb f4 6631c9 bad00c 6689c8 66ef bac40c 66ed 6685c0 7405 bac80c 66ef 41 83f920 75e3 ebdd"
EJECTING_DISK = _disk(_CODE.replace("be177c", "be387c").removesuffix("f4 ebfd") + _EJECTS)


@contextlib.contextmanager
def guest_bridge(address: str) -> Iterator[str]:
    """Yield the bridge of the ports of all guests; this machine has an address there."""
    hypervisors.need()
    if not [*(SERVICES / "venv").glob("lib/python3*/site-packages/libvirt.py")]:
        lacking("no libvirt for the services: run `make setup-vm setup-openstack`")
    with hypervisors.bridge(address) as name:
        try:
            yield name
        finally:
            for port in ports_of(name):
                hypervisors.ip("link", "del", port, check=False)


def ports_of(bridge: str) -> list[str]:
    """Return the names of the taps on a bridge."""
    return sorted(path.name for path in Path(f"/sys/class/net/{bridge}/brif").glob("*"))


def machine_of(server: str) -> list[int]:
    """Return the process IDs of the QEMU of a server."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes()
                if words.startswith(b"/usr/bin/qemu-system") and server.encode() in words:
                    found.append(int(entry.name))
    return found


def console(cloud: RealCloud, server: Any) -> str:
    """Return what the console of a server shows."""
    said = cloud.connected().compute.get_server_console_output(server, length=100)
    return str(said.get("output", said))


@dataclass(frozen=True)
class Tenant:
    """A project that starts servers of one image."""

    sdk: Any
    image: str

    def server(self, name: str, flavor: str, group: str = "", **more: str) -> Any:
        return self.sdk.compute.create_server(
            name=name,
            image_id=self.image,
            flavor_id=flavor,
            networks="none",
            scheduler_hints={"group": group} if group else {},
            **more,
        )

    def delete(self, server: Any) -> None:
        self.sdk.compute.delete_server(server.id)
        self.sdk.compute.wait_for_delete(server)

    def group(self, policy: str = "affinity") -> str:
        return str(self.sdk.compute.create_server_group(name="near", policy=policy).id)

    def running(self, flavor: str, *names: str) -> tuple[str, list[Any]]:
        """Return a group and its servers, which run."""
        group = self.group()
        servers = [self.server(name, flavor, group) for name in names]
        for server in servers:
            self.sdk.compute.wait_for_server(server, wait=120)
        return group, servers


SPACES = (("mount", "mnt"), ("pid", "pid"))


@dataclass
class Segments:
    """The service on the hypervisor of the cloud, in its namespaces."""

    cloud: RealCloud
    folder: Path
    host: str = HOSTS[0]
    process: subprocess.Popen[bytes] | None = None

    @functools.cached_property
    def pid(self) -> int:
        """A process in the namespaces of the hypervisor."""
        cloud, name = self.cloud.pid, b"\0" + self.host.encode() + b"\0"
        if self.host == HOSTS[0]:
            return cloud
        children = Path(f"/proc/{cloud}/task/{cloud}/children").read_text().split()
        (found,) = (
            int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(name)
        )
        return found

    def command(self, *words: str) -> list[str]:
        spaces = [f"--{name}=/proc/{self.pid}/ns/{kind}" for name, kind in SPACES]
        return ["nsenter", *spaces, *words]

    def start(self) -> None:
        clouds, settings = self.folder / "clouds.yaml", self.folder / "computed.yaml"
        clouds.touch(0o600)
        clouds.write_text(yaml.safe_dump({"clouds": {"c": self.cloud.content["admin"]}}))
        socket = hypervisor.socket_of(Path("/run/nearmetal-openstack"), self.host)
        uri = f"qemu+unix:///system?socket={socket}"
        settings.write_text(f"version: 1\ncloud: c\nclouds: {clouds}\nparts: 2\nlibvirt: {uri}\n")
        with (self.folder / "log").open("ab") as log:
            words = ("computed", "serve", "--settings", str(settings), "--state", str(self.state))
            argv = self.command(sys.executable, "-m", "nearmetal", *words)
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=ROOT)

    def kill(self) -> None:
        """Kill the service, which nsenter has started and waits for."""
        if self.process is not None and self.process.poll() is None:
            pid = self.process.pid
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            self.process.wait(60)

    def lose_power(self) -> None:
        """End all that runs on the first hypervisor; what is in memory is gone."""
        self.kill()
        self.cloud.power("off")
        for path in self.files():
            path.unlink()
        shutil.rmtree(self.state)

    def kill_amid(self, phase: str) -> None:
        """Kill the service as soon as its records have a part in this phase."""
        records, end = self.state / "segments.json", time.monotonic() + 120
        while not (records.exists() and f'"{phase}"' in records.read_text()):
            assert time.monotonic() < end, (phase, records)
            time.sleep(0.002)
        self.kill()

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def until(self, wanted: dict[str, str]) -> None:
        for _ in self.cloud.waiting(f"{wanted}: {self.folder / 'log'}"):
            if states(self.state) == wanted:
                return

    def files(self) -> list[Path]:
        top = "" if self.host == HOSTS[0] else f"/proc/{self.pid}/root"
        return sorted(Path(f"{top}/dev/shm").glob(PREFIX + "*"))

    def parts(self) -> list[int]:
        """Return the parts of all servers that run, as recorded."""
        return [held.part for segment in Holdings(self.state) for held in segment.live]

    def defined(self) -> list[str]:
        """Return the servers whose domains libvirt keeps on the disk of the hypervisor."""
        folder = Path(f"/proc/{self.pid}/root/etc/libvirt/qemu")
        found = (re.search("<uuid>(.+)</uuid>", path.read_text()) for path in folder.glob("*.xml"))
        return sorted(match[1] for match in found if match)

    def mapped(self, server: str) -> dict[str, set[str]]:
        """Return the segments that the QEMU of a server has mapped, each with the rights."""
        (pid,) = machine_of(server)
        found: dict[str, set[str]] = {}
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if PREFIX in line:
                found.setdefault(line.split()[5], set()).add(line.split()[1])
        return found


@contextlib.contextmanager
def segment_service(cloud: RealCloud, folder: Path, host: str = HOSTS[0]) -> Iterator[Segments]:
    """Yield the service, which the test starts; nothing is left of it."""
    made = Segments(cloud, folder, host)
    assert made.files() == []
    try:
        yield made
    finally:
        made.kill()
        for path in made.files():
            path.unlink()
