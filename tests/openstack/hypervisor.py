# SPDX-License-Identifier: Apache-2.0
"""Real hypervisors beside the services: libvirtd with QEMU's emulation, and taps on a bridge.

    unshare --mount --uts PYTHON -m tests.openstack.hypervisor STATE HOST

is a second one in namespaces of its own: its files, its name and its /dev/shm, for as long as it
runs. Both have the disks of servers in one directory, as on shared storage.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TAPS = "taps"
"""Directory of the names of all taps, below that of Neutron."""

LIBVIRTD = "/usr/sbin/libvirtd"
CONFIG = "libvirtd.conf"
READY = "ready"
"""A file beside it: the namespaces of a second hypervisor are ready."""

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

_PAIR_CONF = 'host_uuid = "{uuid}"\n'
_PAIR_QEMU_CONF = 'migration_host = "127.0.0.2"\n'
"""libvirt moves a machine only to another host, whose address is not 127.0.0.1."""

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


def socket_of(state: Path, host: str) -> Path:
    """Return the socket of a hypervisor's libvirtd."""
    return state / f"libvirt-{host}" / "libvirt-sock"


def prepare(state: Path, host: str) -> None:
    """Prepare this namespace for libvirtd."""
    directory = socket_of(state, host).parent
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
    Path("/etc/libvirt/qemu.conf").write_text(QEMU_CONF.format(user="root") + _PAIR_QEMU_CONF)
    words = DAEMON_CONF.format(directory=directory) + _PAIR_CONF.format(uuid=uuid.uuid4())
    (directory / CONFIG).write_text(words)


def daemon(state: Path, host: str) -> list[str]:
    """Return the command of libvirtd."""
    directory = socket_of(state, host).parent
    config = directory / CONFIG
    reaper = [sys.executable, "-I", str(HERE / "reaper.py")]
    return [*reaper, LIBVIRTD, "--config", str(config), "--pid-file", str(directory / "pid")]


def _running() -> Iterator[int]:
    """Yield libvirtd and all QEMUs of this hypervisor, whose files this process sees."""
    own = Path("/proc/self/ns/mnt").readlink()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/mnt").readlink() == own:
                program = str((entry / "exe").readlink())
                if program == LIBVIRTD or "/qemu-system" in program:
                    yield int(entry.name)


def power_off(state: Path, host: str) -> None:
    """End the hypervisor at once, as without power; what its memory had is gone, its disks stay."""
    while pids := list(_running()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    # The directory itself has the mount of another hypervisor, in its namespace.
    for path in VOLATILE.iterdir():
        shutil.rmtree(path)
    listens = socket_of(state, host)
    for path in (listens, listens.parent / "pid"):
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


def main() -> None:
    """Be a second hypervisor, until a signal."""
    state, host = Path(sys.argv[1]), sys.argv[2]
    socket.sethostname(host)
    VOLATILE.mkdir(exist_ok=True)
    for place in (VOLATILE, Path("/dev/shm")):
        argv = ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(place)]
        subprocess.run(argv, check=True)
    prepare(state, host)
    (socket_of(state, host).parent / READY).touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
