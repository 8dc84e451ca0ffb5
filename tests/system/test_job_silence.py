# SPDX-License-Identifier: Apache-2.0
"""A machine stands still under a job: its sshd, a real one, is stopped and continued."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import pytest

from nearmetal.cluster.ssh_nodes import Nodes, machine_agent
from nearmetal.core.process import Command, LocalRunner
from nearmetal.job.guards import guarded, lost_words
from nearmetal.job.places import MARKER, NodePlaces, Wanted, new_name
from tests.python.fake_backend import FakeBackend
from tests.system.need import lacking, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nearmetal.cluster.backend import NodeEntry

pytestmark = [pytest.mark.system, pytest.mark.root]

need_root()
for needed in ("dropbear", "dropbearkey", "ssh", "ssh-keygen"):
    if shutil.which(needed) is None:
        lacking(f"no {needed}: run `make setup-vm`")

PATIENCE_S = 3.0
LIMIT_S = 5.0

SERVE = """
set -e
home=~root
mount -t tmpfs -o mode=0700 home "$home"
mkdir -m 0700 "$home/.ssh"
cat "$1/client.pub" >"$home/.ssh/authorized_keys"
exec dropbear -F -E -s -r "$1/server" -p "$2:22" -P "$1/pid"
"""


# What ssh knows in a node: seen in a namespace of the agent's alone.
AGENT = 'mount --bind "$1" /etc/ssh/ssh_config.d && shift && exec "$@"'

CONFIG = """\
Host n2
    HostName {address}
    HostKeyAlias n1
    IdentityFile {top}/keys/client
    IdentitiesOnly yes
    UserKnownHostsFile {top}/known_hosts
    StrictHostKeyChecking yes
"""


@dataclass
class Machine(FakeBackend):
    """Its one node is an sshd of this machine."""

    top: Path = Path("/nowhere")
    address: str = field(default_factory=lambda: f"127.85.{secrets.randbelow(256)}.1")

    shares_files = False

    def __post_init__(self) -> None:
        keys = self.top / "keys"
        keys.mkdir()
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "client")
        shutil.copy(keys / "client.pub", self.top)
        run("dropbearkey", "-t", "ed25519", "-f", self.top / "server")
        told = run("dropbearkey", "-y", "-f", self.top / "server")
        public = next(line for line in told.splitlines() if line.startswith("ssh-"))
        (self.top / "known_hosts").write_text(f"n1 {' '.join(public.split()[:2])}\n")
        (self.top / "m").mkdir()
        (self.top / "jobs" / "files").mkdir(parents=True)
        self.nodes = Nodes(self.top, {"n1": (self.address, None)}, LocalRunner())

    def on_node(self, node: str, argv: Sequence[str], **entry: Unpack[NodeEntry]) -> Command:
        return self.nodes.command(node, argv, **entry)

    def job_root(self) -> Path:
        return self.top / "jobs"

    def connections(self) -> list[int]:
        """The sshd's process of each connection."""
        sshd = (self.top / "pid").read_text().strip()
        return [int(pid) for pid in run("pgrep", "-P", sshd).split()]

    def stand_still(self, seconds: float) -> None:
        pids = self.connections()
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def run(*argv: str | Path) -> str:
    return subprocess.run([*map(str, argv)], check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(top=tmp_path)
    argv = ["unshare", "-m", "sh", "-c", SERVE, "sh", str(tmp_path), made.address]
    with (tmp_path / "log").open("ab") as log:
        sshd = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert sshd.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield made
    made.nodes.close()
    sshd.terminate()
    sshd.wait(10)


@pytest.mark.parametrize(("still_s", "ends"), [(2.0, False), (LIMIT_S + 4, True)])
def test_a_job_ends_with_the_connection_to_a_node_after_the_limit_alone(
    machine: Machine, tmp_path: Path, still_s: float, ends: bool
) -> None:
    for name in ("tmp", "shm"):
        (tmp_path / name).mkdir()
    job = new_name("job")
    made = NodePlaces(
        machine,
        ("n1",),
        job,
        LocalRunner(),
        user="root",
        tmp=tmp_path / "tmp",
        shm=tmp_path / "shm",
    )
    made.make(Wanted())
    rank = subprocess.Popen(["sleep", "600"], env={MARKER: job})
    try:
        with guarded(made.guards(None, PATIENCE_S), LocalRunner(), sys.stderr.buffer) as gone:
            machine.stand_still(still_s)
            if ends:
                assert rank.wait(30) == -signal.SIGKILL
            else:
                time.sleep(LIMIT_S)
                assert rank.poll() is None
        assert gone == ([0] if ends else [])
    finally:
        made.end()
        rank.kill()
        rank.wait()


@pytest.mark.parametrize(("still_s", "ends"), [(2.0, False), (LIMIT_S + 4, True)])
def test_the_shell_of_a_launcher_waits_as_long_and_says_why_it_ends(
    machine: Machine, tmp_path: Path, still_s: float, ends: bool
) -> None:
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "n2.conf").write_text(
        CONFIG.format(address=machine.address, top=tmp_path)
    )
    (tmp_path / "agent").write_bytes(machine_agent())
    command = f"touch {tmp_path}/begun; sleep 6"
    # The agent ends the launcher that started it: a shell with more to do.
    launcher = f"sh {tmp_path}/agent n2 '{command}'; exit $?"
    env = {"PATH": os.environ["PATH"], "NEARMETAL_NET_TIMEOUT_MS": f"{PATIENCE_S * 1000:.0f}"}
    words = ["unshare", "-m", "sh", "-c", AGENT, "sh", str(tmp_path / "config.d")]
    with subprocess.Popen(
        [*words, "sh", "-c", launcher], env=env, stderr=subprocess.PIPE, text=True
    ) as job:
        while not (tmp_path / "begun").exists():
            assert job.poll() is None
            time.sleep(0.05)
        machine.stand_still(still_s)
        _, said = job.communicate(timeout=60)
    assert job.returncode == (255 if ends else 0), said
    assert (f"nearmetal: {lost_words(['n2'], PATIENCE_S)}\n" in said) == ends
