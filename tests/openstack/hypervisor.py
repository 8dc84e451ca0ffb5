# SPDX-License-Identifier: Apache-2.0
"""A real hypervisor beside the services: libvirtd with QEMU's emulation, and taps on a bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TAPS = "taps"
"""Directory of the names of all taps, below that of Neutron."""

LIBVIRTD = "/usr/sbin/libvirtd"
CONFIG = "libvirtd.conf"
VOLATILE = Path("/run/libvirt")
"""Where libvirt keeps what it knows of machines that run: a reboot clears it."""

_WRITTEN = ("/etc", "/var/lib", "/var/cache", "/var/log")
"""Where libvirt writes: an overlay in memory, in this namespace alone."""

DAEMON_CONF = """
unix_sock_dir = "{directory}"
unix_sock_rw_perms = "0700"
auth_unix_rw = "none"
log_outputs = "3:file:{directory}/libvirtd.log"
"""

QEMU_CONF = """
user = "{user}"
group = "{user}"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
"""

# Named in the defaults of the daemon, which it looks up before it reads its configuration.
_USER = """
id libvirt-qemu >/dev/null 2>&1 || {
	echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin' >>/etc/passwd
	echo 'libvirt-qemu:x:64055:' >>/etc/group
}
"""


def socket_of(state: Path) -> Path:
    """Return the socket of libvirtd."""
    return state / "libvirt" / "libvirt-sock"


def prepare(state: Path) -> None:
    """Prepare this namespace for libvirtd."""
    directory = socket_of(state).parent
    directory.mkdir()
    for number, place in enumerate(_WRITTEN):
        upper, work = (directory / f"{kind}{number}" for kind in ("upper", "work"))
        upper.mkdir()
        work.mkdir()
        # For other users, too: the umask of the services is strict.
        upper.chmod(0o755)
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", place], check=True)
    subprocess.run(["sh", "-c", _USER], check=True)
    Path("/etc/libvirt").mkdir(exist_ok=True)
    Path("/run/lock").mkdir(exist_ok=True)
    Path("/etc/libvirt/qemu.conf").write_text(QEMU_CONF.format(user="root"))
    (directory / CONFIG).write_text(DAEMON_CONF.format(directory=directory))


def daemon(state: Path) -> list[str]:
    """Return the command of libvirtd."""
    directory = socket_of(state).parent
    config = directory / CONFIG
    reaper = [sys.executable, "-I", str(HERE / "reaper.py")]
    return [*reaper, LIBVIRTD, "--config", str(config), "--pid-file", str(directory / "pid")]


def _running() -> Iterator[int]:
    """Yield libvirtd and all QEMUs of this PID namespace."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                program = str((entry / "exe").readlink())
                if program == LIBVIRTD or "/qemu-system" in program:
                    yield int(entry.name)


def power_off(state: Path) -> None:
    """End the hypervisor at once, as without power; what its memory had is gone, its disks stay."""
    while pids := list(_running()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(VOLATILE)
    for path in (socket_of(state), socket_of(state).parent / "pid"):
        path.unlink()
    for tap in (state / "neutron" / TAPS).glob("tap*"):
        if (Path("/sys/class/net") / tap.name).exists():
            subprocess.run(["ip", "link", "del", tap.name], check=True)


def keep_bridged(state: Path, bridge: str) -> None:
    """Put each tap of a bound port on the bridge, in place of Neutron's agent."""
    threading.Thread(target=_bridge, args=(state / "neutron" / TAPS, bridge), daemon=True).start()


def _bridge(taps: Path, bridge: str) -> None:
    while True:
        for tap in taps.glob("tap*"):
            there = Path("/sys/class/net") / tap.name
            if there.exists() and not (there / "master").exists():
                argv = ["ip", "link", "set", tap.name, "master", bridge, "up"]
                subprocess.run(argv, check=False, stderr=subprocess.DEVNULL)
        time.sleep(0.2)
