# SPDX-License-Identifier: Apache-2.0
"""First boots of a cloud image with a config drive of Nova's form: real systemd and cloud-init.

They are in namespaces and not in machines, so that a boot takes seconds. Their network is in
another one, whose rules stand for a router of Neutron: only the floating address leads there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.cloud_images import cloud_image
from tests.system.need import lacking, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent
FLOATING = "198.51.100.5"
"""The floating address of guest 1."""

_WAIT_S = 600
"""Ends a test that hangs; asserts nothing about speed."""


def mac(number: int, *, fast: bool = False) -> str:
    """Return the address of a card of a guest."""
    return f"fa:16:3e:5a:{int(fast):02x}:{number:02x}"


def address(number: int, *, fast: bool = False) -> str:
    """Return the address of a guest in its network, or in the fast one."""
    return f"10.{88 if fast else 87}.0.{10 + number}"


@contextlib.contextmanager
def lan() -> Iterator[str]:
    """Make the network of guests; yields the namespace where it is."""
    need_root()
    if shutil.which("nft", path="/usr/sbin:/usr/bin") is None:
        lacking("no nft: run `make setup-slurm`")
    name = f"nml{secrets.token_hex(3)}"
    rules = f"""table ip nat {{
        chain before {{
            type nat hook prerouting priority dstnat
            ip daddr {FLOATING} dnat to {address(1)}
        }}
        chain after {{
            type nat hook postrouting priority srcnat
            ip saddr 10.87.0.0/24 oifname out snat to {FLOATING}
        }}
    }}"""
    there = ("ip", "netns", "exec", name)
    ip = ("ip", "-n", name)
    try:
        for argv in (
            ("ip", "netns", "add", name),
            ("ip", "link", "add", name, "type", "veth", "peer", "name", "out", "netns", name),
            ("ip", "address", "add", "198.51.100.1/24", "dev", name),
            ("ip", "link", "set", name, "up"),
            (*ip, "address", "add", f"{FLOATING}/24", "dev", "out"),
            (*ip, "link", "set", "out", "up"),
            (*ip, "link", "add", "lan", "type", "bridge"),
            (*ip, "address", "add", "10.87.0.1/24", "dev", "lan"),
            (*ip, "link", "set", "lan", "up"),
            (*ip, "link", "add", "fast", "type", "bridge"),
            (*ip, "link", "set", "fast", "up"),
            (*there, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"),
            (*there, "nft", rules),
        ):
            subprocess.run(argv, check=True, timeout=60)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, timeout=60)


def _card(number: int, *, fast: bool) -> tuple[dict[str, object], dict[str, object]]:
    """Return a link of a config drive, and its network."""
    zero = str(ipaddress.IPv4Address(0))
    route = {"network": zero, "netmask": zero, "gateway": "10.87.0.1"}
    tap = f"tap5a00000{1 + fast}-00"
    link: dict[str, object] = {
        "id": tap,
        "vif_id": f"5a00000{1 + fast}-0000-4000-8000-000000000001",
        "type": "ovs",
        "mtu": 1500,
        "ethernet_mac_address": mac(number, fast=fast),
    }
    network: dict[str, object] = {
        "id": f"network{int(fast)}",
        "type": "ipv4",
        "link": tap,
        "ip_address": address(number, fast=fast),
        "netmask": "255.255.255.0",
        "routes": [] if fast else [route],
        "network_id": f"5a00000{2 + 3 * fast}-0000-4000-8000-000000000001",
        "services": [],
    }
    return link, network


def drive(
    folder: Path, number: int, user_data: bytes, meta: Mapping[str, str], key: str, *, fast: bool
) -> None:
    """Write a config drive, as Nova's version `latest` has it; `key`: that of a key pair."""
    name = f"n{number}"
    cards = [_card(number, fast=which) for which in (False, True)[: 1 + fast]]
    network = {
        "links": [link for link, _ in cards],
        "networks": [there for _, there in cards],
        "services": [],
    }
    about: dict[str, object] = {
        "uuid": f"5a000003-0000-4000-8000-{number:012x}",
        "name": name,
        "hostname": name,
        "launch_index": 0,
        "availability_zone": "nova",
        "project_id": "5a000004000040008000000000000001",
        "random_seed": "c2VlZA==",
        "devices": [],
        "dedicated_cpus": [],
    }
    if meta:
        about["meta"] = dict(meta)
    if key:
        about["public_keys"] = {"me": key}
        about["keys"] = [{"name": "me", "type": "ssh", "data": key}]
    place = folder / "drive" / "openstack" / "latest"
    place.mkdir(parents=True)
    (place / "meta_data.json").write_text(json.dumps(about))
    (place / "network_data.json").write_text(json.dumps(network))
    (place / "vendor_data.json").write_text("{}")
    (place / "vendor_data2.json").write_text("{}")
    (place / "user_data").write_bytes(user_data)


@dataclass
class CloudGuest:
    """A cloud image that boots. `said`: what its console has shown."""

    folder: Path
    process: subprocess.Popen[bytes]
    said: bytearray = field(default_factory=bytearray)

    @property
    def console(self) -> str:
        return self.said.decode(errors="replace")

    def first(self) -> int:
        """Wait for its systemd; returns the process ID."""
        pid, end = self.process.pid, time.monotonic() + _WAIT_S
        while True:
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return int(child)
            log = (self.folder / "log").read_text(errors="replace")
            assert self.process.poll() is None, log
            assert time.monotonic() < end, log
            time.sleep(0.1)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it as root."""
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd")
        return subprocess.run(
            ["nsenter", f"--target={self.first()}", *spaces, "sh", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            timeout=_WAIT_S,
        )

    def tell(self, command: str) -> str:
        """Run a command that must succeed; returns what it printed."""
        done = self.run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{self.console}"
        return done.stdout.strip()

    def booted(self) -> str:
        """Wait until cloud-init has done all of its stages; returns how they ended."""
        end = time.monotonic() + _WAIT_S
        result = "/run/cloud-init/result.json"
        while (done := self.run(f"cat {result}")).returncode != 0:
            assert time.monotonic() < end, self.console
            time.sleep(0.5)
        return done.stdout


@contextlib.contextmanager
def cloud_guest(
    folder: Path,
    network: str,
    number: int,
    user_data: bytes,
    *,
    meta: Mapping[str, str] | None = None,
    key: str = "",
    layer: Path | None = None,
    fast: bool = False,
) -> Iterator[CloudGuest]:
    """Boot the image in a network that `lan` made.

    `layer`: what the image has in addition. `fast`: the guest has a card in the fast network, too.
    """
    if " - cgroup2 " not in Path("/proc/self/mountinfo").read_text():
        lacking("systemd needs control groups of version 2, and none are mounted")
    (folder / "root.ext4").symlink_to(cloud_image() / "root.ext4")
    if layer is not None:
        (folder / "layer").symlink_to(layer)
    drive(folder, number, user_data, meta or {}, key, fast=fast)
    name = f"nmc{secrets.token_hex(3)}"
    master, slave = os.openpty()
    (folder / "console").symlink_to(os.ttyname(slave))
    argv = ["sh", str(HERE / "cloud_guest.sh"), str(folder), name, mac(number), network]
    argv += [mac(number, fast=True)] if fast else []
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    guest = CloudGuest(folder, process)
    reader = threading.Thread(target=_read, args=(master, guest.said), daemon=True)
    reader.start()
    try:
        yield guest
    finally:
        process.kill()
        process.wait(60)
        os.close(slave)
        reader.join(60)
        os.close(master)
        _remove_groups(name)


def _read(master: int, said: bytearray) -> None:
    with contextlib.suppress(OSError):
        while block := os.read(master, 4096):
            said += block


def _remove_groups(name: str) -> None:
    """Remove the control groups of a guest, whose processes are ending."""
    end = time.monotonic() + 60
    while found := [*Path("/sys/fs/cgroup").glob(f"**/{name}")]:
        assert time.monotonic() < end, found
        time.sleep(0.1)
        for groups in found:
            below = (path for path in groups.rglob("*") if path.is_dir())
            for path in (*sorted(below, reverse=True), groups):
                with contextlib.suppress(OSError):
                    path.rmdir()
