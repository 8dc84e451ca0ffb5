# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this machine: munge, a controller and three nodes, in namespaces of its own.

It is the Slurm of this machine, or that of a built image, whose root file system the namespaces
then stand on: another release, on the same kernel.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.local import ROOT
from tests.system.machines import built_image
from tests.system.need import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = ("n1", "n2", "n3")
USERS = {"ann": 64321, "bob": 64322}
PLUGIN = ROOT / "build/c/src/spank/spank_nearmetal.so"
PACKAGED = "/usr/lib/x86_64-linux-gnu/nearmetal/spank_nearmetal.so"
INSTALLED = "/usr/bin/nearmetal"
LAUNCHER = Path(sys.executable).parent / "nearmetal"
DEBIAN_13 = "debian-13"
"""The Slurm of Debian 13, out of the image that is built `--with slurm`."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "ip", "unshare", "nsenter", "setpriv")

SLURM_CONF = """\
ClusterName=test
SlurmctldHost=ctl(10.78.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
{plugins}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
PrologFlags=Alloc
SlurmdParameters=config_overrides
KillWait=2
PrologEpilogTimeout=60
SlurmctldPidFile={dir}/spool/slurmctld.pid
SlurmdPidFile={dir}/spool/slurmd.%n.pid
StateSaveLocation={dir}/spool/slurmctld
SlurmdSpoolDir={dir}/spool/%n
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd.%n.log
PlugStackConfig={dir}/etc/slurm/plugstack.conf
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=small Nodes=ALL MaxTime=INFINITE State=UP
"""

BY_PARENTS = "ProctrackType=proctrack/linuxproc"
PLUGINS = "TaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\nSwitchType=switch/none"
"""As 22.05 wants to be told; later releases know no such plugins, and have none of their own accord."""
LIMITED = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none"""
LIMITS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
"""
CONTROLLERS = ("memory", "cpuset", "freezer", "cpu")
HIERARCHIES = Path("/sys/fs/cgroup")
NO_CGROUPS = "CgroupPlugin=disabled\n"

EXAMPLE = ROOT / "nearmetal/share/examples/slurm/slurm.toml"
CHANGES = {
    'scratch = "4G"': 'scratch = "64M"',
    '[limits]\nsegment = "1G"': '[limits]\nsegment = "128M"\nvms-per-node = "2"\nmemory = "1G"\n'
    'vf = "2"',
}
MACHINES = """memory = "512M"
accel = "tcg"
shares = "{home}:{programs}"
"""
"""Of [defaults], at whose end this goes."""

PROGRAMS_HERE = ROOT / "build/programs"
HIDDEN = Path("/tmp")
CACHE = ROOT / "build/image-cache"
NEAR = """
[profiles.near]
node = "container"
segment = "32M"
channels = "self,shm"

[partitions.small]
forbid = "profile"
segment = "16M"
"""


def _settings(directory: Path, mpi: str) -> str:
    """The example of the manual, smaller, with emulated machines, and with a profile more."""
    more = MACHINES.format(home=directory / "home", programs=PROGRAMS_HERE)
    text = EXAMPLE.read_text().replace("\n[limits]\n", f"{more}\n[limits]\n")
    for old, new in (CHANGES | {'mpi = "openmpi4"': f'mpi = "{mpi}"'}).items():
        assert old in text
        text = text.replace(old, new)
    return text + NEAR


@dataclass
class SlurmSite:
    """A Slurm that is up. `pid`: process 1 of its namespaces, as this machine sees it."""

    directory: Path
    pid: int
    launcher: str
    """The nearmetal that its plugin starts."""
    mpi: str = "openmpi4"
    """The MPI that its tasks get."""
    pids: dict[str, int] = field(default_factory=dict)
    """A process that keeps the namespaces of each node, as this machine sees it."""

    def find_nodes(self) -> None:
        """Find those processes, which are there, by their pids inside."""
        spool = self.directory / "spool"
        own = {int((spool / f"{n}.pid").read_text()): n for n in NODES}
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == space:
                    inner = (entry / "status").read_text().split("NSpid:", 1)[1].split("\n", 1)[0]
                    name = own.get(int(inner.split()[-1]))
                    self.pids |= {name: int(entry.name)} if name else {}

    def home(self, user: str) -> Path:
        return self.directory / "home" / user

    def command(self, user: str, *argv: str) -> list[str]:
        """The command as somebody would type it on the machine where jobs are submitted."""
        enter = [
            "nsenter",
            "-t",
            str(self.pid),
            "-m",
            "-n",
            "-u",
            "-i",
            "-p",
            f"--wdns={self.home(user) if user in USERS else self.directory}",
        ]
        if user in USERS:
            uid = USERS[user]
            enter += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return [*enter, *argv]

    def environment(self, user: str, more: dict[str, str] | None = None) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home(user)),
            "USER": user,
            "LC_ALL": "C.UTF-8",
        } | (more or {})

    def start(
        self, user: str, *argv: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(user, *argv),
            env=self.environment(user, env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, user: str, *argv: str, env: dict[str, str] | None = None, timeout: float = 90
    ) -> subprocess.CompletedProcess[str]:
        with self.start(user, *argv, env=env) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def ok(
        self, user: str, *argv: str, env: dict[str, str] | None = None, timeout: float = 90
    ) -> str:
        done = self.run(user, *argv, env=env, timeout=timeout)
        said = f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, said + self.logs()
        return done.stdout

    def logs(self) -> str:
        """The last lines of every daemon."""
        return _logs(self.directory)

    def on_node(
        self, node: str, *argv: str, within_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root in the namespaces of a node."""
        enter = ["nsenter", "-t", str(self.pids[node]), "-m", "-n", "-u", "-i", "-p", "--wdns=/"]
        return subprocess.run(
            [*enter, *argv],
            check=False,
            capture_output=True,
            text=True,
            env=self.environment("root"),
            timeout=within_s,
        )

    def state(self, node: str) -> Path:
        """The records of a node, as this machine sees them."""
        return Path(f"/proc/{self.pids[node]}/root/run/nearmetal/slurm")

    def group(self, controller: str) -> Path:
        """The control group that the nodes of a site with limits take for the root."""
        return HIERARCHIES / controller / self.directory.name

    def left(self) -> list[str]:
        """What is left of containers on any node, and what keeps nodes from being idle."""
        found = []
        for node in NODES:
            with contextlib.suppress(FileNotFoundError):
                found += [str(p) for p in self.state(node).iterdir() if p.name != "lock"]
            mounts = Path(f"/proc/{self.pids[node]}/mountinfo").read_text()
            found += [line for line in mounts.splitlines() if "/run/nearmetal/" in line]
        found += [str(p) for c in CONTROLLERS for p in self.group(c).glob("nearmetal")]
        listing = self.run("root", "ps", "-eo", "pid,user,comm,args").stdout.splitlines()
        traces = ("nm-outside", "slurm launch", "slurmstepd", "qemu-system")
        running = [line for line in listing if "<defunct>" not in line]
        found += [
            line for line in running if any(t in line for t in traces) or line.split()[1] in USERS
        ]
        states = self.run("root", "sinfo", "-h", "-N", "-o", "%N %t %E").stdout
        found += [line for line in states.splitlines() if line.split()[1] != "idle"]
        return found

    def assert_clean(self, within_s: float = 120) -> None:
        """Nothing of any job is left; epilogs get time."""
        deadline = time.monotonic() + within_s
        left = self.left()
        while left and time.monotonic() < deadline:
            time.sleep(0.2)
            left = self.left()
        assert left == [], "\n".join([*left, self.logs()])


def need() -> None:
    """Leave the module unless this machine has what a Slurm needs."""
    if os.geteuid() != 0:
        pytest.skip("needs root: daemons in namespaces of their own", allow_module_level=True)
    if ROOT.is_relative_to(HIDDEN):
        pytest.skip(
            f"nodes have a {HIDDEN} of their own, and this checkout lies below it",
            allow_module_level=True,
        )
    absent = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin") is None]
    if absent:
        lacking(f"not installed: {' '.join(absent)} (make setup-slurm)")
    if not PLUGIN.exists():
        lacking(f"not built: {PLUGIN}")


def _logs(directory: Path) -> str:
    tails = [
        f"{p.name}:\n" + "\n".join(p.read_text(errors="replace").splitlines()[-15:])
        for p in sorted((directory / "log").iterdir())
    ]
    return "\n".join(tails)


def _mpi(release: str | None) -> str:
    """The system's own MPI, whose libmpi runs the same programs: Open MPI 4.1, or 5 on Debian 13."""
    return "openmpi5" if release else "openmpi4"


def _prepare(directory: Path, release: str | None, launcher: str, *, limits: bool) -> None:
    for name in ("etc/slurm", "log", "spool", "munge", "home", "programs"):
        (directory / name).mkdir(parents=True)
    (directory / "munge").chmod(0o700)
    key = directory / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    lines = [
        f"NodeName={n} NodeAddr=10.78.0.{i} CPUs=4 State=UNKNOWN"
        for i, n in enumerate(NODES, start=1)
    ]
    etc = directory / "etc"
    plugins = BY_PARENTS if release else LIMITED if limits else f"{BY_PARENTS}\n{PLUGINS}"
    text = SLURM_CONF.format(dir=directory, nodes="\n".join(lines), plugins=plugins)
    (etc / "slurm/slurm.conf").write_text(text)
    if limits:
        text = text.replace("CR_Core\n", "CR_Core_Memory\nDefMemPerNode=64\n")
        (etc / "slurm/slurm.conf").write_text(text.replace("CPUs=4", "CPUs=2 RealMemory=1024"))
        (etc / "slurm/cgroup.conf").write_text(LIMITS)
    if release:
        (etc / "slurm/cgroup.conf").write_text(NO_CGROUPS)
    config = f"config={etc}/slurm/nearmetal.toml"
    # The packaged plugin lies where it is said to lie, and starts what it starts by default.
    line = f"{PACKAGED} {config}" if release else f"{PLUGIN} {config} launcher={launcher}"
    (etc / "slurm/plugstack.conf").write_text(f"required {line}\n")
    settings = _settings(directory, _mpi(release))
    if limits:
        settings = settings.replace('[limits]\nsegment = "128M"', '[limits]\nsegment = "512M"')
    (etc / "slurm/nearmetal.toml").write_text(settings)
    site_key = etc / "slurm/slurm.key"
    site_key.write_bytes(os.urandom(64))
    site_key.chmod(0o600)
    hosts = [f"10.78.0.{i} {n}" for i, n in enumerate(NODES, start=1)]
    (etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", "10.78.0.254 ctl", *hosts, ""]))
    accounts = [f"{u}:x:{i}:{i}::{directory}/home/{u}:/bin/bash" for u, i in USERS.items()]
    groups = [f"{u}:x:{i}:" for u, i in USERS.items()]
    for name, more in (("passwd", accounts), ("group", groups)):
        (etc / f"{name}.more").write_text("\n".join([*more, ""]))
        (etc / name).touch()
    for user, uid in USERS.items():
        home = directory / "home" / user
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)


def _child_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return int(text.split()[0])


def _in_tree(root: str, directory: Path) -> list[str]:
    """Run what follows in the image, after its package of the plugin is built there and installed."""
    here = Path(__file__).parent / "slurm"
    build = (
        f'deb=$({ROOT}/tools/package/slurm.sh {directory}/package) && dpkg --install "$deb" && '
        'exec "$@"'
    )
    return [
        "bash",
        str(here / "tree.sh"),
        root,
        str(directory),
        str(ROOT),
        "bash",
        "-ec",
        build,
        "-",
    ]


@contextlib.contextmanager
def _control_groups(name: str) -> Iterator[None]:
    """Control groups of that name, which a site takes for the roots of their hierarchies."""
    groups = [HIERARCHIES / controller / name for controller in CONTROLLERS]
    try:
        for group in groups:
            group.mkdir()
        for file in ("cpuset.cpus", "cpuset.mems"):
            own = HIERARCHIES / "cpuset" / name / file
            own.write_text((HIERARCHIES / "cpuset" / file).read_text())
        yield
    finally:
        for group in groups:
            for path in sorted(group.rglob("*"), reverse=True):
                if path.is_dir():
                    path.rmdir()
            group.rmdir()


@contextlib.contextmanager
def slurm_site(
    release: str | None = None, *, limits: bool = False, vfs: bool = False, machines: bool = False
) -> Iterator[SlurmSite]:
    """A SlurmSite with idle nodes; whatever happens, it is ended and nothing of it is left.

    `release`: None is the Slurm of this machine, DEBIAN_13 that of Debian 13. `limits`: by control
    groups, of version 1, which this machine has. `vfs`: its jobs are started by what
    `slurm_vfs.model_nodes` has made by then in `vfs` of its directory. `machines`: what they boot is
    built before, if need be.
    """
    # Outside of the namespaces, where there is a network to build it.
    if machines:
        built_image()
    root = built_image("slurm")["root"] if release else ""
    # Not in /tmp: nodes and containers have one of their own.
    directory = Path(tempfile.mkdtemp(prefix="nearmetal-slurm-", dir="/var/tmp"))
    directory.chmod(0o755)
    launcher = INSTALLED if release else str(directory / "vfs/nearmetal") if vfs else str(LAUNCHER)
    _prepare(directory, release, launcher, limits=limits)
    script = Path(__file__).parent / "slurm" / "site.sh"
    for needed in (CACHE, PROGRAMS_HERE):
        needed.mkdir(parents=True, exist_ok=True)
    argv = [
        "unshare",
        "-m",
        "-n",
        "-u",
        "-i",
        "-p",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
        "--",
        *(_in_tree(root, directory) if release else []),
        "bash",
        str(script),
        str(directory),
        str(CACHE),
        *NODES,
    ]
    if limits:
        (directory / "groups").write_text("".join(f"{name}\n" for name in CONTROLLERS))
    groups = contextlib.ExitStack()
    with (directory / "log" / "site").open("wb") as log:
        if limits:
            groups.enter_context(_control_groups(directory.name))
        outer = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
    try:
        deadline = time.monotonic() + (600 if release else 60)
        while not (directory / "ready").exists():
            assert outer.poll() is None, f"no Slurm: {_logs(directory)}"
            assert time.monotonic() < deadline, f"no Slurm in time: {_logs(directory)}"
            time.sleep(0.05)
        deadline = time.monotonic() + 60
        place = SlurmSite(directory, _child_of(outer.pid), launcher)
        place.mpi = _mpi(release)
        while place.run("root", "sinfo", "-h", "-p", "debug", "-o", "%D %t").stdout.split() != [
            "3",
            "idle",
        ]:
            assert time.monotonic() < deadline, place.logs()
            time.sleep(0.1)
        place.find_nodes()
        yield place
    finally:
        with contextlib.suppress(OSError):
            os.kill(outer.pid, signal.SIGKILL)
        outer.wait()
        shutil.rmtree(directory, ignore_errors=True)
        groups.close()
