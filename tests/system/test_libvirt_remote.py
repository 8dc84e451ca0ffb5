# SPDX-License-Identifier: Apache-2.0
"""A hypervisor that only ssh reaches, beside one of this machine: up, used by an MPI, lost, down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system import hypervisors
from tests.system.virtual_clusters import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(1800),
]

hypervisors.need()

ADDRESS = "10.85.0.2"
GUESTS = "/var/lib/nearmetal/guests"

SPEC = """\
version: 1
name: far
backend: libvirt
accel: tcg
network: {{subnet: 10.85.0.0/24, bridge: {bridge}}}
hosts:
  - name: there
    uri: qemu+ssh://root@{address}/system
    segment: {{part: 16 MiB, parts: 4}}
    nodes:
      - {{name: n1, memory: 768 MiB, cpus: none}}
      - {{name: n2, memory: 768 MiB, cpus: none}}
  - name: here
    uri: {here}
    nodes:
      - {{name: n3, memory: 768 MiB, cpus: none}}
"""

# Where libvirt is looked for, and who may come: seen in its namespace alone.
SETTLE = """
set -e
mkdir -p /run/libvirt
ln -s "$1" /run/libvirt/libvirt-sock
home=~root
mount -t tmpfs -o mode=0700 home "$home"
mkdir -m 0700 "$home/.ssh"
cat >"$home/.ssh/authorized_keys"
chmod 0600 "$home/.ssh/authorized_keys"
"""

CONFIG = """\
Host {address}
    IdentityFile {folder}/client
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
"""

AS_CLIENT = 'mount --bind "$1" /etc/ssh/ssh_config.d && shift && exec "$@"'


def run(*argv: str | Path, stdin: bytes = b"") -> str:
    done = subprocess.run([*map(str, argv)], check=True, input=stdin, stdout=subprocess.PIPE)
    return done.stdout.decode()


@dataclass
class Far:
    """The machine of a hypervisor, with an sshd of its own; and who knows it."""

    host: hypervisors.Hypervisor
    bridge: str
    folder: Path
    _sshd: subprocess.Popen[bytes] | None = None

    def settle(self) -> None:
        hypervisors.ip("-n", self.host.netns, "addr", "add", f"{ADDRESS}/24", "dev", self.bridge)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "client")
        run("dropbearkey", "-t", "ed25519", "-f", self.folder / "server")
        told = run("dropbearkey", "-y", "-f", self.folder / "server")
        public = next(line for line in told.splitlines() if line.startswith("ssh-"))
        (self.folder / "known_hosts").write_text(f"{ADDRESS} {' '.join(public.split()[:2])}\n")
        config = self.folder / "config.d" / "far.conf"
        config.parent.mkdir()
        config.write_text(CONFIG.format(address=ADDRESS, folder=self.folder))
        self.tell(
            "sh",
            "-c",
            SETTLE,
            "sh",
            str(self.host.directory / "libvirt-sock"),
            stdin=(self.folder / "client.pub").read_bytes(),
        )

    def _inside(self, *argv: str) -> list[str]:
        return ["nsenter", "-t", str(self.host.pid), "-m", "-n", "--", *argv]

    def tell(self, *argv: str, stdin: bytes = b"") -> str:
        return run(*self._inside(*argv), stdin=stdin)

    def listen(self) -> None:
        argv = (
            "dropbear",
            "-F",
            "-E",
            "-s",
            "-r",
            str(self.folder / "server"),
            "-p",
            f"{ADDRESS}:22",
            "-P",
            str(self.folder / "pid"),
        )
        with (self.folder / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen(
                self._inside(*argv), stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while not (self.folder / "pid").exists():
            assert time.monotonic() < deadline, (self.folder / "sshd.log").read_text()
            time.sleep(0.05)

    def hang_up(self) -> None:
        """End sshd and every connection, as a host that is cut off."""
        if self._sshd is not None:
            os.killpg(self._sshd.pid, signal.SIGKILL)
            self._sshd.wait()
        # Each connection has a process with a session of its own.
        for pid in run("ip", "netns", "pids", self.host.netns).split():
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"dropbear"):
                    os.kill(int(pid), signal.SIGKILL)
        (self.folder / "pid").unlink(missing_ok=True)


@dataclass
class Site:
    """A cluster that is up, and the command line on it."""

    far: Far
    spec: Path
    state: Path

    def run(self, *args: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                "unshare",
                "-m",
                "--propagation",
                "slave",
                "sh",
                "-c",
                AS_CLIENT,
                "sh",
                str(self.far.folder / "config.d"),
                sys.executable,
                "-m",
                "nearmetal",
                *args,
            ],
            env=environment(self.state),
            cwd=ROOT,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@contextmanager
def far_host(folder: Path) -> Iterator[tuple[Far, hypervisors.Hypervisor]]:
    with hypervisors.bridged("10.85.0.1/24") as (here, there, bridge):
        far = Far(there, bridge, folder)
        far.settle()
        far.listen()
        try:
            yield far, here
        finally:
            far.hang_up()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of three machines, two of them far; after it nothing may be left."""
    before = hypervisors.machine_things("far")
    folder = tmp_path_factory.mktemp("far")
    with far_host(folder) as (far, here):
        spec = folder / "far.yaml"
        spec.write_text(SPEC.format(bridge=far.bridge, address=ADDRESS, here=here.uri))
        place = Site(far, spec, folder / "state")
        try:
            place.ok("up", str(spec))
            yield place
        finally:
            done = place.run("down", "--yes", str(spec))
        assert done.returncode == 0, done.stderr
        assert here.machines() == far.host.machines() == []
        assert far.tell("find", GUESTS, "-mindepth", "2") == ""
    assert hypervisors.traces("far", before, place.state) == []


def test_a_far_host_is_no_other_than_a_near_one(site: Site) -> None:
    assert "nothing to do" in site.ok("plan", str(site.spec))
    assert len(site.far.host.machines()) == 2
    told = json.loads(site.ok("status", "--json", str(site.spec)))
    assert [(n["name"], n["host"], n["healthy"]) for n in told["nodes"]] == [
        ("n1", "there", True),
        ("n2", "there", True),
        ("n3", "here", True),
    ]
    # Its files are its own: nothing of them is on this machine.
    assert not Path(GUESTS, "far").exists()
    assert site.far.tell("ls", f"{GUESTS}/far/there")


def test_an_mpi_finds_the_segment_there_and_the_network_between(site: Site) -> None:
    pairs = json.loads(site.ok("locality", "--json", str(site.spec)))["pairs"]
    channel = {(p["node"], p["peer"]): p["channel"] for p in pairs}
    assert channel["n1", "n2"] == channel["n2", "n1"] == "segment"
    assert channel["n1", "n3"] == channel["n3", "n2"] == "net"
    program = str(ROOT / "build/programs/openmpi5/mpi_traffic")
    out = site.ok(
        "run",
        str(site.spec),
        "-n",
        "3",
        "--",
        program,
        "-n",
        "100",
        "-s",
        "7",
        "-b",
        "20M",
        "-w",
        "300",
    )
    assert "carried by nearmetal: 3 endpoints" in out


def test_a_host_that_ssh_does_not_reach_is_named_and_taken_up_again(site: Site) -> None:
    site.far.hang_up()
    lost = site.run("plan", str(site.spec))
    assert lost.returncode != 0
    assert ADDRESS in lost.stderr
    assert "ssh" in lost.stderr
    site.far.listen()
    assert "nothing to do" in site.ok("plan", str(site.spec))
