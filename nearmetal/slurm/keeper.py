# SPDX-License-Identifier: Apache-2.0
"""The keeper of a job's servers: a process of root in the container of the job, which makes them.

It writes what a virtual machine of the node would leave there, so that tasks wait and enter in the
same way: a console with the line of a machine that is ready or has failed, the keys, and the
configuration of ssh. Then it holds no credentials any more and sleeps: its process id stands for
the servers. Its end, with the container, is not theirs: the reclaimer removes them.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nearmetal.cluster.apply import Cluster, up
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.keys import KeyRing
from nearmetal.cluster.ssh_nodes import Nodes, SshBackend
from nearmetal.core.errors import NearmetalError
from nearmetal.core.process import LocalRunner, Runner, become
from nearmetal.core.text import printable
from nearmetal.image.seed import SeedUser, failed_line, ready_line
from nearmetal.slurm import holder
from nearmetal.slurm.cloud import opened, spec_on_record
from nearmetal.slurm.machines import JOB, PLACE, ssh_config
from nearmetal.slurm.place import give
from nearmetal.slurm.queue import comment
from nearmetal.slurm.records import write
from nearmetal.slurm.servers import FAULT, JobServers

_TMPFS = holder.MS_NOSUID | holder.MS_NODEV | holder.MS_NOEXEC
_SIZE = "4m"
_WIDTH = 120
"""Of a line of a console: the plugin shows the first characters of each."""

_MAX_LINES = 8
_MAX_COMMENT = 500

_ALIVE = {"ServerAliveInterval": "15", "ServerAliveCountMax": "4"}
"""A server that is removed answers nothing, and no process here ends with it."""

Say = Callable[[str], None]


def start(one: JobServers, user: SeedUser, root: Path, records: int) -> None:
    """Fork the keeper, from within the container. `records`: a descriptor of the job's."""
    spec = spec_on_record(one)
    consoles = Consoles([node.name for _, node in spec.nodes])
    Path(PLACE).mkdir()
    # The job's user may read it, and not change what it says.
    holder.mount("tmpfs", PLACE, _TMPFS, f"mode=755,size={_SIZE}")
    consoles.say()
    pid = os.fork()
    if pid == 0:
        try:
            holder.detach(records)
            fault = keep(
                lambda say: bring(opened(one, root, user), spec, user, say), consoles, records
            )
            explain(LocalRunner(), one.job, fault)
            become(("sleep", "infinity"), {"PATH": "/usr/bin:/bin"})
        finally:
            os._exit(1)
    for name in consoles.names:
        give(f"{name}.pid", f"{pid}\n", user.uid)


@dataclass(frozen=True)
class Consoles:
    """What the tasks of a job read of its servers, as of virtual machines."""

    names: Sequence[str]
    place: Path = Path(PLACE)

    def say(self, *lines: str) -> None:
        """Write lines for all servers."""
        for name in self.names:
            self.say_of(name, *lines)

    def say_of(self, name: str, *lines: str) -> None:
        """Write lines for one server."""
        with (self.place / f"{name}.console").open("a", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines)


def explain(runner: Runner, job: int, fault: str) -> None:
    """Show a fault in Slurm: the script of a job may never look at its servers."""
    if fault:
        # The reason is on the consoles and in the log of slurmd as well.
        with suppress(NearmetalError):
            comment(runner, job, fault[:_MAX_COMMENT])


def keep(work: Callable[[Say], None], consoles: Consoles, records: int) -> str:
    """Make the servers, and say how that ended: on the consoles, and in a record.

    Returns the fault, or "".
    """
    fault = why_not(lambda: work(consoles.say))
    if fault:
        with suppress(OSError):
            # The container hides the path.
            os.fchdir(records)
            write(Path(FAULT), fault + "\n")
        os.chdir("/")
        consoles.say(*(f"nearmetal: {line}" for line in textwrap.wrap(fault, _WIDTH)[:_MAX_LINES]))
    for name in consoles.names:
        last = f"{failed_line(name)}{fault[:_WIDTH]}" if fault else f"{ready_line(name)} "
        consoles.say_of(name, last)
    return fault


def why_not(work: Callable[[], object]) -> str:
    """Return why work failed, in one line; "": it did not."""
    try:
        work()
    except NearmetalError as error:
        # Its hint is for who runs `up` by hand.
        return printable(" ".join(error.message.split()))
    except Exception as error:  # noqa: BLE001 - the user sees no other trace
        return printable(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return ""


@dataclass(frozen=True)
class _Steps:
    """Shows each step of `up` as a line of the consoles."""

    say: Say

    def begin(self, total: int) -> None:
        """The number of steps is not shown."""

    def step(self, text: str) -> None:
        """Show a step."""
        self.say(text)


def bring(
    cluster: Cluster,
    spec: OpenstackSpec,
    user: SeedUser,
    say: Say,
    place: Path = Path(PLACE),
) -> None:
    """Make the servers, and what tasks need to enter them."""
    up(cluster, spec, progress=_Steps(say))
    backend = cluster.backend
    assert isinstance(backend, SshBackend)  # noqa: S101 - servers are entered by ssh
    nodes = backend.nodes()
    made = ["install", "-d", "-m", "0700", "-o", str(user.uid), "-g", str(user.gid), JOB]
    commands = {name: nodes.command(name, made, root=True) for name in nodes.where}
    nodes.run_all(commands, "cannot make the place for tasks")
    nodes.close()
    own = KeyRing(nodes.directory / "keys", LocalRunner()).pair("node")
    give("key", own.private, user.uid, place)
    give("known_hosts", nodes.known_hosts.read_text(encoding="ascii"), user.uid, place)
    give("ssh_config", ssh_config(user.name, entries(nodes)), user.uid, place)


def entries(nodes: Nodes) -> dict[str, dict[str, str]]:
    """Return how ssh reaches each server, as the job's user."""
    found = {}
    for name, (address, jump) in nodes.where.items():
        found[name] = {"HostName": address, "HostKeyAlias": name, **_ALIVE}
        if jump is not None:
            # The first server forwards, where the user may log in as well.
            found[name]["ProxyJump"] = jump.options["HostKeyAlias"]
    return found
