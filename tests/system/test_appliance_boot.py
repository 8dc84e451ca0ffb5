# SPDX-License-Identifier: Apache-2.0
"""Machines of the appliances boot: what a login says can be run runs at once."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.system.machines import Machine, Yard, built_image

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(2400)]

NAMES = ("vm1", "vm2")
CONSOLE = "/run/inner.console"
WORDS = b"the inner machine runs"
# cld; cli; ds = cs; si = the words; dx = COM1; until 0: lodsb, out dx; then hlt for ever.
_CODE = bytes.fromhex("fc fa 8cc8 8ed8 be1800 baf803 ac 84c0 7403 ee ebf8 f4 ebfd")
FIRMWARE = (_CODE.ljust(24, b"\x90") + WORDS + b"\n\0").ljust(0xFFF0, b"\0") + (
    b"\xea\0\0\0\xf0".ljust(16, b"\0")
)
"""A firmware that only writes the words. The processor starts at its end: a far jump to its begin.

A usual one would take minutes in a machine in an emulated machine.
"""
DOMAIN = f"""\
<domain type='kvm'>
  <name>inner</name>
  <memory unit='MiB'>32</memory>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <loader type='rom' readonly='yes'>/run/inner.rom</loader>
  </os>
  <devices>
    <serial type='file'><source path='{CONSOLE}'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yard = Yard(tmp_path_factory.mktemp("appliance"), built_image(appliance="mpi"))
    try:
        one, other = (yard.start(name, yard.seed(name, NAMES)) for name in NAMES)
        other.ready()
        yield one.ready()
    finally:
        yard.end()


def greeted(machine: Machine, user: str, begin: str) -> None:
    """Check that an interactive login shows the greeting, and another one does not."""
    argv = ["ssh", "-tt", *machine._options(), "-p", str(machine.port), f"{user}@127.0.0.1"]
    done = subprocess.run(argv, input=b"exit\n", capture_output=True, timeout=300, check=False)
    greeting = machine.tell("cat /etc/motd").splitlines()
    assert greeting[0].startswith(begin)
    assert greeting[0].encode() in done.stdout
    assert greeting[0] not in machine.tell("true")


def test_an_interactive_login_shows_the_greeting(first: Machine) -> None:
    greeted(first, "mpi", "A node with Open MPI")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("mpirun mpi_hello", "hello from 2 ranks"),
        ("mpirun -n 2 --map-by node mpi_patterns -p pingpong,uniband -M 64 -t 0.01", "pingpong"),
        ("mpirun mpi_patterns -p bcast,allreduce,alltoall -M 64 -t 0.01", "alltoall"),
    ],
)
def test_the_commands_of_the_greeting_run(first: Machine, command: str, words: str) -> None:
    said = first.tell("cat /etc/motd")
    assert command.partition(" -M ")[0] in said
    assert words in first.tell(f"bash -lc '{command}'")


def test_other_commands_of_the_greeting_are_there(first: Machine) -> None:
    for program in ("mpi_window", "nearmetal-info", "ibv_devices", "ip"):
        first.tell(f"bash -lc 'command -v {program}'")


# The host of virtual machines


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yard = Yard(tmp_path_factory.mktemp("host"), built_image(appliance="kvm-host"))
    try:
        yield yard.start("vm1", yard.seed("vm1", ["vm1"]), memory_mib=1536).ready()
    finally:
        yard.end()


def until(host: Machine, command: str) -> None:
    """Wait until a command of root succeeds."""
    deadline = time.monotonic() + 600
    while (done := host.run(command, "root")).returncode != 0:
        assert time.monotonic() < deadline, f"{command}: {done.stdout!r} {done.stderr!r}"
        time.sleep(1)


def test_a_host_greets_with_commands_that_run(host: Machine) -> None:
    greeted(host, "root", "A host for virtual machines")
    until(host, "virsh list --all")
    said = host.tell("cat /etc/motd")
    # It also judges what an emulated processor lacks, for example an IOMMU.
    judged = host.run("virt-host-validate qemu", "root").stdout.decode()
    found = [line.split(":")[-1].strip() for line in judged.splitlines() if "/dev/kvm" in line]
    assert found, judged
    assert set(found) == {"PASS"}, judged
    for command in ("virsh list --all", "ls /sys/kernel/iommu_groups", "ibv_devices"):
        assert command in said
        host.tell(command, "root")


def test_a_machine_of_the_host_runs_under_kvm_also_while_libvirtd_starts_again(
    host: Machine,
) -> None:
    until(host, "virsh list --all")
    host.tell("cat >/run/inner.rom", "root", FIRMWARE)
    host.tell("virsh define /dev/stdin && virsh start inner", "root", DOMAIN.encode())
    until(host, f"grep -q {shlex.quote(WORDS.decode())} {CONSOLE}")
    qemu = host.tell("pgrep -f guest=inner", "root")
    assert "libvirt-qemu" in host.tell(f"ps -o user:20= -p {qemu}", "root")

    daemon = host.tell("pgrep -x libvirtd", "root")
    host.tell(f"kill -KILL {daemon}", "root")
    until(host, "virsh domstate inner | grep -q running")
    assert host.tell("pgrep -x libvirtd", "root") != daemon
    assert host.tell("pgrep -f guest=inner", "root") == qemu
    host.tell("virsh destroy inner && virsh undefine inner", "root")


def test_libvirt_of_the_host_is_reached_by_ssh(host: Machine, tmp_path: Path) -> None:
    libvirt = pytest.importorskip("libvirt")
    until(host, "virsh list --all")
    login = tmp_path / "login"
    login.write_text(f'#!/bin/sh\nexec ssh {shlex.join(host._options())} "$@"\n')
    login.chmod(0o755)
    uri = f"qemu+ssh://root@127.0.0.1:{host.port}/system?command={login}"
    connection = libvirt.open(uri)
    try:
        assert connection.getHostname() == "vm1"
        known = ET.fromstring(connection.getCapabilities())  # noqa: S314 - libvirt's own
        assert known.findall("guest/arch/domain[@type='kvm']")
    finally:
        connection.close()
