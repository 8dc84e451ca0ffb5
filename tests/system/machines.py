# SPDX-License-Identifier: Apache-2.0
"""Virtual machines by QEMU alone, without any of our own control plane: a yard for the guest."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.image.seed import FAILED_MARK, READY_MARK, Seed
from tests.ports import free_ports
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "image-cache"
GUEST_UID = 1000
"""Of the user mpi in the built image."""
IVSHMEM, VIRTIO_PMEM = "ivshmem", "virtio-pmem"
BOOT_TIMEOUT_S = 1800.0
"""Ends a test that hangs; asserts nothing about speed."""


def built_image(*extras: str, appliance: str = "") -> dict[str, str]:
    """Return the image of this checkout, built if need be, as `nearmetal image build` tells it."""
    wanted = [word for extra in extras for word in ("--with", extra)]
    wanted += ["--appliance", appliance] if appliance else []
    for program in ("qemu-system-x86_64", "mmdebstrap", "tar2sqfs"):
        if shutil.which(program) is None:
            lacking(f"no {program}: run `make setup-vm`")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nearmetal",
            "image",
            "build",
            "--json",
            "--cache",
            str(CACHE),
            *wanted,
        ],
        stdout=subprocess.PIPE,
        timeout=1800,
        check=True,
        cwd=ROOT,
        text=True,
    )
    image: dict[str, str] = json.loads(done.stdout)["image"]
    return image


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def new_hub() -> str:
    """Return a network of any number of machines, as QEMU's -netdev has it, without the id.

    Another one of this machine has another group, unless luck is very bad.
    """
    low, high = secrets.randbelow(256), secrets.randbelow(256)
    return (
        f"type=dgram,remote.type=inet,remote.host=239.255.{low}.{high},remote.port={free_port()},"
        "local.type=inet,local.host=127.0.0.1,local.port=0"
    )


@dataclass(frozen=True)
class Key:
    """An ssh key pair in files."""

    private: Path

    @classmethod
    def make(cls, path: Path) -> Key:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)],
            check=True,
            timeout=60,
        )
        return cls(path)

    @property
    def public(self) -> str:
        return " ".join(self.private.with_suffix(".pub").read_text().split()[:2])


@dataclass
class Machine:
    """A running virtual machine."""

    name: str
    console: Path
    process: subprocess.Popen[bytes]
    port: int
    key: Key
    folder: Path

    def said(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def wait_for(self, *marks: str) -> str:
        """Wait until the console shows a line with one of the marks; returns that line."""
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while time.monotonic() < deadline:
            for line in self.said().splitlines(keepends=True):
                # What has no end yet is still being written.
                if line.endswith("\n") and any(mark in line for mark in marks):
                    return line.strip()
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"{self.name} said no {marks}:\n{self.said()[-3000:]}")

    def ready(self) -> Machine:
        line = self.wait_for(READY_MARK, FAILED_MARK)
        # Others may write to the same console.
        assert f"{READY_MARK} {self.name} " in line, line
        return self

    def _options(self) -> list[str]:
        known = self.folder / "known_hosts"
        return [
            "-i",
            str(self.key.private),
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            f"UserKnownHostsFile={known}",
            "-o",
            f"HostKeyAlias={self.name}",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "ConnectTimeout=120",
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=60",
            "-o",
            f"ControlPath={self.folder}/%r-{self.name}",
        ]

    def run(
        self, command: str, user: str = "mpi", stdin: bytes = b"", timeout_s: float = 300
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a shell command in the machine."""
        argv = ["ssh", *self._options(), "-p", str(self.port), f"{user}@127.0.0.1", command]
        return subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout_s, check=False
        )

    def reachable(self) -> Machine:
        """Wait until one can log in, ready or not."""
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while self.run("true").returncode != 0:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.5)
        return self

    def tell(self, command: str, user: str = "mpi", stdin: bytes = b"") -> str:
        """Run a command that must succeed; returns what it printed."""
        done = self.run(command, user, stdin)
        told = done.stdout.decode(errors="replace")
        assert done.returncode == 0, f"{self.name}: {command}\n{told}\n{done.stderr.decode()}"
        return told.strip()

    def mount_share(self) -> Machine:
        """Show the yard's directory, whose device the machine was started with, as /share."""
        self.tell(
            "modprobe -a 9pnet_virtio 9p && mkdir -p /share &&"
            " mount -t 9p -o trans=virtio,version=9p2000.L,cache=none share /share",
            "root",
        )
        return self

    def put(self, source: Path, target: str) -> None:
        """Copy a program into the machine."""
        self.tell(f"cat >{target} && chmod 755 {target}", stdin=source.read_bytes())


@dataclass
class Yard:
    """Where machines run: their files, keys and network. Everything ends with it."""

    folder: Path
    image: dict[str, str]
    machines: list[Machine] = field(default_factory=list)
    keys: dict[str, Key] = field(default_factory=dict)
    hub: bool = False
    """A network of any number of machines, in place of the cable between two."""

    def __post_init__(self) -> None:
        self._hub = new_hub() if self.hub else ""
        self._memory: Path | None = None

    def memory(self, name: str) -> Path:
        """Return a path in memory: on a disk, guests wait for pages that are being written."""
        if self._memory is None:
            self._memory = Path(tempfile.mkdtemp(prefix="nearmetal-yard-", dir="/dev/shm"))
        return self._memory / name

    @property
    def share(self) -> Path:
        """A directory that machines see as /share after `Machine.mount_share`."""
        path = self.folder / "share"
        if not path.exists():
            path.mkdir()
            path.chmod(0o777)
        return path

    def share_folder(self, name: str) -> Path:
        """Make a folder there that belongs to the users of the machines."""
        path = self.share / name
        path.mkdir()
        path.chmod(0o777)
        if os.geteuid() == 0:
            os.chown(path, GUEST_UID, GUEST_UID)
        return path

    def share_device(self) -> list[str]:
        return [
            "-fsdev",
            f"local,id=share,path={self.share},security_model=none",
            "-device",
            "virtio-9p-pci,fsdev=share,mount_tag=share",
        ]

    def key(self, name: str) -> Key:
        if name not in self.keys:
            self.keys[name] = Key.make(self.folder / f"key-{name}")
        return self.keys[name]

    def seed(self, name: str, names: Sequence[str], **more: Any) -> dict[str, Any]:
        """Return the seed of one of the machines as plain data."""
        number = list(names).index(name) + 1
        nodes = [
            {
                "name": node,
                "address": f"10.9.0.{10 + i}",
                "slots": 1,
                "host": "yard",
                "ssh_host_key": self.key(node).public,
            }
            for i, node in enumerate(names, 1)
        ]
        lan = {
            "mac": f"52:54:00:09:00:{number:02x}",
            "address": f"10.9.0.{10 + number}/24",
            "mtu": 4200,
        }
        admin = {"mac": f"52:54:00:0a:00:{number:02x}", "address": "10.0.2.15/24"}
        return {
            "version": 1,
            "cluster": "yard",
            "name": name,
            "nodes": nodes,
            "interfaces": [lan, admin],
            "ssh": {
                "authorized_keys": [self.key("person").public],
                "host_key": self.key(name).private.read_text(),
                "node_key": self.key("nodes").private.read_text(),
                "node_key_public": self.key("nodes").public,
            },
            **more,
        }

    def start(
        self,
        name: str,
        seed: dict[str, Any] | None,
        devices: Sequence[str] = (),
        *,
        append: str = "",
        serial: str = "nearmetal-root",
        memory_mib: int = 1024,
        cloud: bool = False,
        cpus: int = 1,
    ) -> Machine:
        """Start a machine. `seed` None: without one; `devices`: further arguments for QEMU.

        `cloud`: the root is written to, for this start only, and a disc brings the seed.
        """
        number = len(self.machines) + 1
        use = "snapshot=on" if cloud else "readonly=on"
        how = f"format=raw,{use},file.locking=off"
        port, console = free_port(), self.folder / f"console-{number}"
        argv = [
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-M",
            "q35",
            "-cpu",
            "max",
            "-m",
            str(memory_mib),
            "-smp",
            str(cpus),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            f"file:{console}",
            "-kernel",
            self.image["kernel"],
            "-initrd",
            self.image["initrd"],
            "-append",
            f"{self.image['append']} {append}",
            "-drive",
            f"file={self.image['root']},if=none,id=root,{how}",
            "-device",
            f"virtio-blk-pci,drive=root,serial={serial}",
            *devices,
        ]
        if seed is not None:
            path = self.folder / f"seed-{number}.json"
            path.touch(0o600)
            path.write_text(Seed.model_validate(seed).secret_json())
            lan, admin = (interface["mac"] for interface in seed["interfaces"])
            argv += [] if cloud else ["-fw_cfg", f"name=opt/nearmetal/seed,file={path}"]
            argv += self._network(number, lan, admin, port)
            with (self.folder / "known_hosts").open("a") as known:
                known.write(f"{name} {self.key(name).public}\n")
        log = self.folder / f"qemu-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        machine = Machine(name, console, process, port, self.key("person"), self.folder)
        self.machines.append(machine)
        return machine

    def _network(self, number: int, lan: str, admin: str, port: int) -> list[str]:
        """Return two adapters: a cable or hub to the other machines, and a way in from here."""
        if self.hub:
            lan_to = f"id=lan,{self._hub}"
        else:
            role = "on" if number % 2 else "off,reconnect-ms=200"
            lan_to = f"stream,id=lan,server={role},addr.type=unix,addr.path={self.folder}/cable"
        way_in = f"user,id=admin,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22"
        return [
            "-netdev",
            lan_to,
            "-device",
            f"virtio-net-pci,netdev=lan,mac={lan},romfile=,host_mtu=9000",
            "-netdev",
            way_in,
            "-device",
            f"virtio-net-pci,netdev=admin,mac={admin},romfile=",
        ]

    def end(self) -> None:
        """End every machine."""
        for machine in self.machines:
            machine.process.kill()
        for machine in self.machines:
            machine.process.wait()
        if self._memory is not None:
            shutil.rmtree(self._memory)


@dataclass(frozen=True)
class Shared:
    """A segment file of a host, and the devices by which a machine sees it.

    ivshmem: one with its own part, one with the whole. Else one virtio-pmem region for everybody.
    """

    path: Path
    ivshmem: bool
    nr_parts: int
    part_size: int
    part_off: int
    size: int
    token: str

    @classmethod
    def create(cls, path: Path, nr_parts: int, part_size: int, device: str = IVSHMEM) -> Shared:
        # A DAX namespace describes itself in the first 2 MiB.
        lead = 0 if device == IVSHMEM else 2 << 20
        tool = ROOT / "build/c/src/tools/nearmetal-segment"
        token = secrets.token_hex(16)
        subprocess.run(
            [
                tool,
                "create",
                path,
                "--parts",
                str(nr_parts),
                "--part-size",
                str(part_size),
                "--token",
                "-",
                "--lead",
                str(lead),
            ],
            check=True,
            timeout=60,
            input=token.encode(),
            stdout=subprocess.DEVNULL,
        )
        shown = subprocess.run(
            [tool, "show", "--json", path], check=True, timeout=60, stdout=subprocess.PIPE
        )
        host = json.loads(shown.stdout)
        size = path.stat().st_size
        assert size & (size - 1) == 0
        return cls(path, device == IVSHMEM, nr_parts, part_size, host["part_off"], size, token)

    def seed(self, part: int) -> dict[str, Any]:
        return {
            "device": "ivshmem" if self.ivshmem else "dax",
            "token": self.token,
            "nr_parts": self.nr_parts,
            "part": part,
            "part_size": self.part_size,
            "size": self.size,
            "vcpu_numa": part,
            "distances": self.distances(part),
        }

    def distances(self, part: int) -> list[int]:
        """As if each machine were pinned to a NUMA node of its own."""
        return [10 if node == part else 21 for node in range(self.nr_parts)]

    def offset(self, part: int) -> int:
        return self.part_off + part * self.part_size

    def devices(self, part: int) -> list[str]:
        file = f"mem-path={self.path},share=on"
        if not self.ivshmem:
            return [
                "-m",
                "slots=2,maxmem=4G",
                "-object",
                f"memory-backend-file,id=pmem,{file},size={self.size}",
                "-device",
                "virtio-pmem-pci,memdev=pmem",
            ]
        place = f"size={self.part_size},offset={self.offset(part)}"
        return [
            "-object",
            f"memory-backend-file,id=own,{file},{place}",
            "-device",
            "ivshmem-plain,memdev=own",
            "-object",
            f"memory-backend-file,id=all,{file},size={self.size},readonly=on,rom=on",
            "-device",
            "ivshmem-plain,memdev=all",
        ]

    def word(self, offset: int) -> int:
        with self.path.open("rb") as stream:
            stream.seek(offset)
            return int.from_bytes(stream.read(8), "little")
