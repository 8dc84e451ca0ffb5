# SPDX-License-Identifier: Apache-2.0
"""`nearmetal-guest hotplug`: the real unit with a tree of devices made of files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from nearmetal.core.resources import share

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef0123456789abcdef"
OWN, ALL = "0000:06:00.0", "0000:07:00.0"
TOOL = f"""#!/bin/sh
echo "$@" >>"$0.calls"
case $1 in
find) [ ! -e "$0.foreign" ] || {{ echo 'nearmetal-segment: no segment' >&2; exit 1; }}
	printf 'segment.device=ivshmem\\nsegment.token={TOKEN}\\nsegment.nr_parts=2\\n'
	printf 'segment.part=1\\nsegment.part_size=4096\\nsegment.size=16384\\n' ;;
show) [ -e "$3" ] && echo '{{"token": "{TOKEN}"}}' ;;
esac
"""


@dataclass(frozen=True)
class PluggedGuest:
    """The guest unit with all its places below one directory."""

    folder: Path

    def device(self, address: str, size: int, ids: str = "0x1af4 0x1110") -> Path:
        """Plug in a device at a port of its own; `size` 0: its memory has no place."""
        port = self.folder / "sys" / "ports" / f"0000:00:{address[5:7]}.0"
        folder = port / address
        folder.mkdir(parents=True)
        (port / f"{port.name}:pcie001").mkdir()
        vendor, device = ids.split()
        end = hex(0x1000 + size - 1) if size else "0x" + "0" * 16
        bars = ["0x0 0x0 0x0", "0x0 0x0 0x0", f"0x1000 {end} 0x0"]
        for name, text in {"vendor": vendor, "device": device, "enable": "0"}.items():
            (folder / name).write_text(text + "\n")
        (folder / "resource").write_text("\n".join(bars) + "\n")
        (folder / "resource2").touch()
        (self.folder / "sys" / "devices" / address).symlink_to(folder)
        return port

    def unplug(self, *addresses: str) -> None:
        for address in addresses:
            (self.folder / "sys" / "devices" / address).unlink()

    def run(self, verb: str = "hotplug") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", self.folder / "nearmetal-guest", verb],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def conf(self) -> set[str]:
        path = self.folder / "run" / "segment.conf"
        return set(path.read_text().splitlines()) if path.exists() else set()

    def calls(self) -> list[str]:
        path = self.folder / "bin" / "nearmetal-segment.calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def guest(tmp_path: Path) -> PluggedGuest:
    if os.geteuid() != 0:
        pytest.skip("only root may give files to root, as the unit does")
    unit, programs, lib = share("guest", "unit"), tmp_path / "bin", tmp_path / "lib"
    places = {
        "lib=/usr/lib/nearmetal": f"lib={lib}",
        "etc=/etc/nearmetal": f"etc={tmp_path}/etc",
        "run=/run/nearmetal": f"run={tmp_path}/run",
        "pci=/sys/bus/pci": f"pci={tmp_path}/sys",
        "group=nearmetal": "group=root",
        "PATH=/usr/sbin:": f"PATH={programs}:/usr/sbin:",
        "/dev/console": f"{tmp_path}/console",
        "/dev/ttyS0": f"{tmp_path}/serial",
        "/dev/nearmetal": f"{tmp_path}/dev",
    }
    for folder in (lib, programs, tmp_path / "sys" / "devices"):
        folder.mkdir(parents=True)
    for path in unit.iterdir():
        if path.suffix == ".sh" or path.name == "nearmetal-guest":
            text = path.read_text()
            for fixed, ours in places.items():
                text = text.replace(fixed, ours)
            (lib / path.name).write_text(text)
    (lib / "nearmetal-guest").rename(tmp_path / "nearmetal-guest")
    tool = programs / "nearmetal-segment"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    return PluggedGuest(tmp_path)


def test_the_two_devices_are_found_in_any_order_and_once(guest: PluggedGuest) -> None:
    guest.device(ALL, 16384)
    guest.device(OWN, 4096)
    done = guest.run()
    assert done.returncode == 0, done.stderr
    assert {"part = 1", f"token = {TOKEN}", "integrity = enforced"} < guest.conf()
    assert f"endpoints = {min(len(os.sched_getaffinity(0)), 256)}" in guest.conf()
    links = {name: str((guest.folder / "dev" / name).readlink()) for name in ("own", "all")}
    assert OWN in links["own"]
    assert ALL in links["all"]
    assert guest.run().returncode == 0
    # Processes may use the segment now: no word of it is written again.
    assert [call.split()[0] for call in guest.calls()].count("find") == 1


def test_a_machine_of_many_processors_has_as_many_endpoints_as_a_part(
    guest: PluggedGuest,
) -> None:
    program = guest.folder / "bin" / "nproc"
    program.write_text("#!/bin/sh\necho 300\n")
    program.chmod(0o755)
    guest.device(OWN, 4096)
    guest.device(ALL, 16384)
    assert guest.run().returncode == 0
    assert "endpoints = 256" in guest.conf()


def test_other_slots_are_taken_over_and_no_more(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096)
    guest.device(ALL, 16384)
    guest.run()
    before = guest.conf()
    etc, nodes = guest.folder / "etc", guest.folder / "run" / "nodes"
    etc.mkdir(exist_ok=True)
    seed = {"version": 1, "name": "n1", "cluster": "c", "ssh": {}, "nodes": []}
    (etc / "seed.json").write_text(json.dumps(seed))
    for slots, verb in ((16, "segment"), (24, "hotplug")):
        nodes.write_text(f"n1 10.77.0.1 {slots} h1\n")
        done = guest.run(verb)
        assert done.returncode == 0, done.stderr
        assert guest.conf() - before == {f"endpoints = {slots}"}
        assert len(guest.conf()) == len(before)
    assert [call.split()[0] for call in guest.calls()].count("find") == 1


def test_other_devices_at_the_same_places_are_set_up_again(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096)
    guest.device(ALL, 16384)
    guest.run()
    # The host may take a part and give another one of the same segment before the unit looks.
    for address in (OWN, ALL):
        bar = guest.folder / "sys" / "devices" / address / "resource2"
        bar.unlink()
        bar.touch(mode=0o600)
    assert guest.run().returncode == 0
    assert [call.split()[0] for call in guest.calls()].count("find") == 2
    own = guest.folder / "sys" / "devices" / OWN / "resource2"
    assert own.stat().st_mode & 0o777 == 0o660


def test_without_devices_there_is_no_segment(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096)
    guest.device(ALL, 16384)
    guest.run()
    guest.unplug(OWN, ALL)
    done = guest.run()
    assert (done.returncode, guest.conf()) == (0, set())
    assert list((guest.folder / "dev").iterdir()) == []


def test_a_machine_that_has_left_does_not_return_by_an_event(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096)
    guest.device(ALL, 16384)
    guest.run()
    run = guest.folder / "run"
    (run / "segment.conf").rename(run / "segment.left")
    assert guest.run().returncode == 0
    assert guest.conf() == set()
    guest.unplug(OWN, ALL)
    guest.run()
    assert not (run / "segment.left").exists()


@pytest.mark.parametrize("sizes", [(4096,), (4096, 8192, 16384), (4096, 16384)])
def test_devices_that_are_no_segment_end_nothing(
    guest: PluggedGuest, sizes: tuple[int, ...]
) -> None:
    (guest.folder / "bin" / "nearmetal-segment.foreign").touch()
    for number, size in enumerate(sizes, 5):
        guest.device(f"0000:{number:02x}:00.0", size)
    done = guest.run()
    assert (done.returncode, guest.conf()) == (0, set())
    assert "nearmetal: warning" in done.stderr
    assert not (guest.folder / "run" / "failed").exists()


def test_other_devices_are_not_touched(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096, "0x1af4 0x1041")
    guest.device(ALL, 16384, "0x8086 0x1110")
    assert guest.run().returncode == 0
    assert guest.calls() == []


def test_a_device_without_memory_is_found_again_with_its_port(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096)
    port = guest.device(ALL, 0)
    done = guest.run()
    # Here no kernel gives it memory.
    assert f"the kernel has no room for the memory of {ALL}" in done.stderr
    assert (port / "remove").read_text() == "1\n"
    assert (guest.folder / "sys" / "rescan").read_text() == "1\n"
    assert not (guest.folder / "sys" / "ports" / "0000:00:06.0" / "remove").exists()


def test_a_port_with_another_device_is_not_removed(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096)
    port = guest.device(ALL, 0)
    (port / "0000:07:00.1").mkdir()
    assert "no room" in guest.run().stderr
    assert not (port / "remove").exists()


def test_the_segment_of_a_seed_is_left_to_the_seed(guest: PluggedGuest) -> None:
    guest.device(OWN, 4096)
    guest.device(ALL, 16384)
    etc = guest.folder / "etc"
    etc.mkdir()
    segment = {"device": "ivshmem", "token": TOKEN, "part": 0}
    seed = {"version": 1, "name": "n1", "cluster": "c", "ssh": {}, "segment": segment, "nodes": []}
    (etc / "seed.json").write_text(json.dumps(seed))
    done = guest.run()
    assert done.returncode == 0, done.stderr
    assert guest.calls() == []


@pytest.mark.parametrize(
    ("event", "looks"),
    [
        ({"ACTION": "add", "SUBSYSTEM": "pci", "PCI_ID": "1AF4:1110"}, True),
        ({"ACTION": "remove", "SUBSYSTEM": "pci", "PCI_ID": "1AF4:1110"}, True),
        ({"ACTION": "bind", "SUBSYSTEM": "pci", "PCI_ID": "1AF4:1110"}, False),
        ({"ACTION": "add", "SUBSYSTEM": "pci", "PCI_ID": "1AF4:1041"}, False),
        ({"ACTION": "add", "SUBSYSTEM": "virtio"}, False),
        ({}, False),
    ],
)
def test_without_udev_the_unit_looks_when_a_device_of_a_segment_comes_or_goes(
    event: dict[str, str], looks: bool, tmp_path: Path
) -> None:
    calls, lock = tmp_path / "calls", tmp_path / "flock"
    lock.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n')
    lock.chmod(0o755)
    text = share("guest", "unit", "plugged").read_text().replace("/var/log", str(tmp_path))
    script = tmp_path / "plugged"
    script.write_text(text)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", **event}
    subprocess.run(["sh", script], env=env, check=True, timeout=60)
    assert calls.exists() == looks
    if looks:
        word = "-o /run/nearmetal/guest.lock busybox sh /usr/lib/nearmetal/nearmetal-guest hotplug"
        assert calls.read_text() == f"{word}\n"


def test_a_device_that_comes_at_once_waits_until_the_machine_is_a_node(tmp_path: Path) -> None:
    """Before that, the guest unit does not know the slots of the machine."""
    calls, lock = tmp_path / "calls", tmp_path / "run" / "guest.lock"
    program = tmp_path / "lib" / "nearmetal-guest"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
case $1 in
watch) mkdir -p {lock.parent}
	flock -o {lock} sh -c 'echo hotplug >>{calls}' &
	flock -n {lock} true || exit 0
	wait ;;
*) echo "$1" >>{calls} ;;
esac
"""
    )
    program.chmod(0o755)
    text = share("guest", "unit", "become-node").read_text()
    for fixed, ours in {
        "/run/systemd/system": f"{tmp_path}/none",
        "/run/sshd.pid": f"{tmp_path}/none",
        "/etc/nearmetal": str(tmp_path),
        "/usr/lib/nearmetal": str(program.parent),
        "/run/nearmetal": str(lock.parent),
    }.items():
        text = text.replace(fixed, ours)
    subprocess.run(["sh", "-c", text], check=True, timeout=60)
    # It ends after that, at any time.
    subprocess.run(["flock", lock, "true"], check=True, timeout=60)
    assert calls.read_text().split()[0] == "configure"


def test_a_machine_that_cannot_watch_is_warned_of(guest: PluggedGuest) -> None:
    program = guest.folder / "bin" / "busybox"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    done = guest.run("watch")
    assert done.returncode == 0
    assert "only `nearmetal-guest hotplug` finds new devices" in done.stderr
    assert not (guest.folder / "run" / "watch.pid").exists()


def test_a_machine_watches_by_one_process(guest: PluggedGuest) -> None:
    program = guest.folder / "bin" / "busybox"
    started = guest.folder / "started"
    # As busybox: a socket of the kernel's events with the number of the process.
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, socket, sys, time\n"
        "link = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15)\n"
        f"open({str(started)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "link.bind((os.getpid(), 0))\n"
        "time.sleep(60)\n"
    )
    program.chmod(0o755)
    # The number of a watcher that has ended may be that of another process now.
    (guest.folder / "run").mkdir(exist_ok=True)
    (guest.folder / "run" / "watch.pid").write_text(f"{os.getpid()}\n")
    assert guest.run("watch").returncode == 0
    pid = int((guest.folder / "run" / "watch.pid").read_text())
    assert pid != os.getpid()
    try:
        assert guest.run("watch").returncode == 0
        assert started.read_text() == f"uevent {guest.folder}/lib/plugged\n"
    finally:
        os.kill(pid, signal.SIGKILL)
