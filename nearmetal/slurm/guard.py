# SPDX-License-Identifier: Apache-2.0
"""The guard of the tunnel port: what it lets in comes from the job's other nodes, and from no user there.

VXLAN authenticates nobody, and the kernel takes what comes to its port from anyone. So a node that is
in a tunnel drops, in a table of nftables of its own, all that does not come from the address of one of
the job's other nodes, for the network of that job, and from the port that only root can send from.

The table is written anew, as a whole and at once, from what is on record: nothing is added or taken
away that a crash could leave undone. What was left of a job without a tunnel lets nobody in anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import CommandError, SlurmError
from nearmetal.core.process import Command
from nearmetal.slurm.records import containers, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nearmetal.core.process import Runner

PORT = 252
"""UDP port of the tunnel, at both ends: reserved by IANA, and no ordinary user can take it before us
or send from it."""

TABLE = "inet nearmetal_slurm"
RECORD = "tunnel"
"""Of a job with machines on other nodes: the number of its network, and the addresses of those."""

_UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_STEP_S = 30.0


def admit(records: Path, identity: int, others: Sequence[str], runner: Runner) -> None:
    """Let the other nodes of a job in, and from now on nobody else. Its tunnel is made afterwards.

    `records`: the job's. Raises SlurmError when this node cannot: then there must be no tunnel.
    """
    lowest = int(_UNPRIVILEGED.read_text(encoding="ascii"))
    if lowest <= PORT:
        raise SlurmError(
            f"any user of this node may send from UDP port {PORT}, by which nodes know each other",
            f"sysctl net.ipv4.ip_unprivileged_port_start={PORT + 1} or more; it is {lowest}",
        )
    write(records / RECORD, f"{identity} {' '.join(others)}\n")
    renew(records.parent, runner)


def has_tunnel(records: Path, dir_fd: int | None = None) -> bool:
    """Whether a job has been let through. `dir_fd`: what a relative path begins at."""
    return os.access(records / RECORD, os.F_OK, dir_fd=dir_fd)


def renew(state: Path, runner: Runner) -> None:
    """Make the table what the records say; without any there is none. Raises SlurmError."""
    with _one_at_a_time(state):
        found = {c.job: read for c in containers(state) if (read := _read(c.directory / RECORD))}
        try:
            runner.check(
                Command(("nft", "-f", "-"), stdin=rules(found).encode()), timeout_s=_STEP_S
            )
        except CommandError as error:
            raise SlurmError(
                f"UDP port {PORT} is not guarded against this cluster's users: "
                f"{error.hint or error.message}",
                "virtual machines across nodes need nft (package nftables) and a kernel with nf_tables",
            ) from error


def rules(tunnels: Mapping[int, tuple[int, Sequence[str]]]) -> str:
    """Return what `nft -f` does: by job, the number of its network and its other nodes. Pure."""
    # Added first, so that it can be deleted: all of this happens at once or not at all.
    lines = [f"add table {TABLE}", f"delete table {TABLE}"]
    if tunnels:
        lines += [f"table {TABLE} {{", "\tchain input {", "\t\ttype filter hook input priority -10"]
        for job, (identity, others) in sorted(tunnels.items()):
            # After 8 bytes of UDP and 4 of flags there are the 24 bits of the network's number.
            lines.append(
                f"\t\tudp dport {PORT} udp sport {PORT} @th,96,24 {identity} "
                f'ip saddr {{ {", ".join(others)} }} accept comment "job {job}"'
            )
        lines += [f"\t\tudp dport {PORT} drop", "\t}", "}"]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> tuple[int, tuple[str, ...]] | None:
    """Return a record; None when there is none, or it is no more than half."""
    with contextlib.suppress(OSError, ValueError):
        identity, *others = path.read_text(encoding="ascii").split()
        addresses = tuple(str(ipaddress.IPv4Address(other)) for other in others)
        return (int(identity), addresses) if addresses else None
    return None


@contextlib.contextmanager
def _one_at_a_time(state: Path) -> Iterator[None]:
    """Whoever reads the records last also writes the table last."""
    descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
