# SPDX-License-Identifier: Apache-2.0
"""Real libvirt daemons for tests, without systemd: each in mount and network namespaces of its own.

    with bridged() as (first, second):      two hosts, their bridges joined by a wire
        first.uri, second.uri

Nothing of the machine is touched: what libvirt writes lies in an overlay in memory that ends with
the daemon, and everything that a test makes has its own directory and interface names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.openstack import hypervisor
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBVIRTD = Path("/usr/sbin/libvirtd")

START = """
set -e
mkdir -p "$1/private"
mount -t tmpfs private "$1/private"
for place in etc var/lib var/cache var/log; do
	name=$(echo $place | tr / -)
	mkdir "$1/private/$name" "$1/private/$name.work"
	mount -t overlay -o "lowerdir=/$place,upperdir=$1/private/$name,workdir=$1/private/$name.work" \
		private "/$place"
done
mount -t tmpfs run /run
mkdir -p /etc/libvirt /run/lock /var/lib/libvirt/dnsmasq
if ! id libvirt-qemu >/dev/null 2>&1; then
	# Named in the daemon's defaults, which it looks up before it reads its configuration.
	echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin' >>/etc/passwd
	echo 'libvirt-qemu:x:64055:' >>/etc/group
fi
mkdir /run/huge
mount -t hugetlbfs huge /run/huge
cp "$1/qemu.conf" /etc/libvirt/
exec python3 -I "$2" /usr/sbin/libvirtd --config "$1/libvirtd.conf" --pid-file "$1/pid"
"""

REAPER = Path(__file__).parents[1] / "openstack" / "reaper.py"

QEMU_CONF = hypervisor.QEMU_CONF + 'hugetlbfs_mount = "/run/huge"\n'


@dataclass
class Hypervisor:
    """One libvirt daemon. `name` tells its directory and interfaces from others'."""

    directory: Path
    name: str
    user: str = "root"
    netns: str = ""
    qemu_conf: str = ""
    """More lines of qemu.conf."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _mounts: set[str] = field(default_factory=set, repr=False)

    @property
    def uri(self) -> str:
        return f"qemu+unix:///system?socket={self.directory}/libvirt-sock"

    @property
    def pid(self) -> int:
        """The daemon, in whose namespaces its host is."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.directory.mkdir(exist_ok=True)
        conf = hypervisor.DAEMON_CONF.format(directory=self.directory)
        (self.directory / "libvirtd.conf").write_text(conf)
        (self.directory / "qemu.conf").write_text(QEMU_CONF.format(user=self.user) + self.qemu_conf)
        argv = [
            "unshare",
            "-m",
            "--propagation",
            "slave",
            "sh",
            "-c",
            START,
            "sh",
            str(self.directory),
            str(REAPER),
        ]
        if self.netns:
            argv = ["ip", "netns", "exec", self.netns, *argv]
        with (self.directory / "out").open("wb") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while not (self.directory / "libvirt-sock").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"libvirtd does not start: {self.words()}")
            time.sleep(0.05)
        # Its machines are started in the same namespace, and stay there when it has gone.
        self._mounts.add(str(Path(f"/proc/{self._process.pid}/ns/mnt").readlink()))

    def words(self) -> str:
        texts = [self.directory / name for name in ("out", "libvirtd.log")]
        return "".join(p.read_text(errors="replace") for p in texts if p.exists())[-2000:]

    def stop(self) -> None:
        """End the daemon; machines it started live on, as after a crash of a real one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        for name in ("libvirt-sock", "libvirt-sock-ro", "libvirt-admin-sock", "pid"):
            (self.directory / name).unlink(missing_ok=True)

    def machines(self) -> list[int]:
        """Process ids of the QEMUs that this daemon started."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (
                    entry.name.isdigit()
                    and str((entry / "ns/mnt").readlink()) in self._mounts
                    and (entry / "cmdline").read_bytes().startswith(b"/usr/bin/qemu-system")
                ):
                    found.append(int(entry.name))
        return found


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


@contextlib.contextmanager
def one(user: str = "root") -> Iterator[Hypervisor]:
    """One hypervisor in the machine's own network."""
    top = Path(tempfile.mkdtemp(prefix="nm-hv-"))
    top.chmod(0o755)
    host = Hypervisor(top / "h1", "h1", user)
    try:
        host.start()
        yield host
    finally:
        end(host)
        shutil.rmtree(top, ignore_errors=True)


def end(host: Hypervisor) -> None:
    host.stop()
    for pid in host.machines():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def bridge(address: str) -> Iterator[str]:
    """Yield the name of a bridge of the machine with this address."""
    name = f"nmb{secrets.token_hex(3)}"
    try:
        ip("link", "add", name, "type", "bridge")
        ip("addr", "add", address, "dev", name)
        ip("link", "set", name, "up")
        yield name
    finally:
        ip("link", "del", name, check=False)


@contextlib.contextmanager
def bridged(
    address: str = "10.83.0.1/24", qemu_conf: str = ""
) -> Iterator[tuple[Hypervisor, Hypervisor, str]]:
    """Two hypervisors on two "hosts": the second has a network of its own, joined by a wire."""
    top = Path(tempfile.mkdtemp(prefix="nm-hv-"))
    top.chmod(0o755)
    tag = secrets.token_hex(3)
    bridge, wire, netns = f"nmb{tag}", f"nmw{tag}", f"nm-{tag}"
    first = Hypervisor(top / "h1", "h1", qemu_conf=qemu_conf)
    second = Hypervisor(top / "h2", "h2", netns=netns, qemu_conf=qemu_conf)
    try:
        ip("netns", "add", netns)
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "add", wire, "type", "veth", "peer", "name", "wire", "netns", netns)
        ip("link", "set", wire, "master", bridge, "up")
        ip("addr", "add", address, "dev", bridge)
        ip("link", "set", bridge, "up")
        ip("-n", netns, "link", "set", "lo", "up")
        ip("-n", netns, "link", "add", bridge, "type", "bridge")
        ip("-n", netns, "link", "set", "wire", "master", bridge, "up")
        ip("-n", netns, "link", "set", bridge, "up")
        first.start()
        second.start()
        yield first, second, bridge
    finally:
        end(first)
        end(second)
        ip("netns", "del", netns, check=False)
        ip("link", "del", wire, check=False)
        ip("link", "del", bridge, check=False)
        shutil.rmtree(top, ignore_errors=True)


DROP = """\
table inet nearmetal_cut {{
  chain from {{ type filter hook output priority 0; tcp sport {port} drop; }}
  chain to {{ type filter hook input priority 0; tcp dport {port} drop; }}
}}
"""


@contextlib.contextmanager
def cut_off(host: Hypervisor, port: int = 22) -> Iterator[None]:
    """Drop each packet of a TCP port of a host that has its own network, without an answer."""
    nft = ["ip", "netns", "exec", host.netns, "nft"]
    rules = DROP.format(port=port).encode()
    subprocess.run([*nft, "-f", "-"], input=rules, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*nft, "delete", "table", "inet", "nearmetal_cut"], check=True)


def need() -> None:
    """Leave the test or module unless this machine has what virtual machines need."""
    if os.geteuid() != 0:
        reason = "needs root: libvirt daemons in namespaces of their own"
        pytest.skip(reason, allow_module_level=True)
    for program in (str(LIBVIRTD), "/usr/bin/qemu-system-x86_64", "ssh-keygen"):
        if shutil.which(program) is None:
            lacking(f"no {program}: `make setup-vm` installs it")
    if importlib.util.find_spec("libvirt") is None:
        lacking("no Python module libvirt: `make setup-vm` installs it")


def traces(cluster: str, before: set[str], state: Path) -> list[str]:
    """What a cluster left behind: segments, bridges, its state."""
    left = sorted(machine_things(cluster) - before)
    return [*left, *([str(state)] if state.exists() else [])]


def machine_things(cluster: str) -> set[str]:
    """Segments of a cluster's name, and interfaces that clusters and tests make."""
    shm = {str(p) for p in Path("/dev/shm").glob(f"nearmetal-{cluster}-*")}
    return shm | {str(p) for p in Path("/sys/class/net").iterdir() if p.name.startswith("nm")}
