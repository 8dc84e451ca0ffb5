# SPDX-License-Identifier: Apache-2.0
"""The network of a job's virtual machines: one Ethernet across its nodes, and no way out of it.

    node's network namespace          the job's network namespace
                                      nm0 (bridge) ── vm0, vm1, ... (taps of QEMU)
    UDP to the job's other nodes ─────── nmx (VXLAN)

The VXLAN interface is made in the node's namespace, where its packets leave, and belongs to the
job's namespace from the first moment. Everything ends with the last process of the job's namespace,
for any cause of its death. Addresses are configured and never learnt: a forged packet changes no
route.

VXLAN authenticates no sender, and the kernel accepts packets for its port from any host. So a node
in a tunnel guards the port with a table of nftables. It drops everything that does not come from
the address of one of the job's other nodes, for the network of that job, and from the port that
only root can send from. The table is always written as a whole, in one step, from the records: a
crash leaves nothing half done. A leftover entry of a job without a tunnel admits nothing to any
network.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal.core.errors import CommandError, SlurmError
from nearmetal.core.process import Command, Runner
from nearmetal.slurm import holder
from nearmetal.slurm.records import GUARD, containers, locked, write

BRIDGE, TUNNEL = "nm0", "nmx"

NETWORK = ipaddress.IPv4Network("10.208.0.0/12")
"""Of every job: it is in a network namespace of its own, with no way to any other network."""

PORT = 252
"""UDP port of the tunnel, at both ends: IANA reserves it, and ordinary users can neither take it
nor send from it."""

TABLE = "inet nearmetal_slurm"
RECORD = "tunnel"
"""Of a job with machines on other nodes: the number of its network, and their addresses."""

_NODES_FROM = 1 << 19
"""The addresses of machines come first, then those of their nodes."""

_TUNNEL_BYTES = 50
_ALONE_MTU = 1500
_IDENTITIES = 1 << 24
_STEP_S = 30.0
_GONE_S = 20.0
"""The longest time for the kernel to remove a network whose processes have ended."""

_PAUSE_S = 0.2
_UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


@dataclass(frozen=True)
class Member:
    """One machine of the job, on this or another node."""

    name: str
    node: str
    address: str
    mac: str


@dataclass(frozen=True)
class Wires:
    """A job's network as one node makes it. `addresses`: of all its nodes, in their order."""

    job: int
    uid: int
    node: str
    addresses: Mapping[str, str]
    members: tuple[Member, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """The addresses of the job's other nodes."""
        return tuple(a for node, a in self.addresses.items() if node != self.node)

    @property
    def identity(self) -> int:
        """The number of the job's tunnel in its packets."""
        return self.job % _IDENTITIES


def member(name: str, node: str, number: int) -> Member:
    """Return a machine; `number`: its place among all machines of the job."""
    return Member(name, node, str(NETWORK[1 + number]), _mac(0, number))


def _node_address(number: int) -> str:
    return str(NETWORK[_NODES_FROM + 1 + number])


def _mac(kind: int, number: int) -> str:
    """Return the MAC address of a machine (kind 0), or of a node's bridge (1)."""
    return f"52:54:00:{kind:02x}:{number >> 8:02x}:{number & 0xFF:02x}"


def tap(number: int) -> str:
    """Return the interface of a machine on its node."""
    return f"vm{number}"


def make(wires: Wires, records: Path, runner: Runner) -> int:
    """Make the network of a job and enter it; return the MTU of its machines.

    `records`: the job's. Raises SlurmError; then nothing is left of it but the records.
    """
    fresh = holder.fresh_network()
    try:
        mtu = _ALONE_MTU
        if wires.others:
            device, mtu = _way_out(wires, runner)
            admit(records, wires.identity, wires.others, runner)
            _tunnel(wires, f"/proc/{os.getpid()}/fd/{fresh}", device, runner)
        holder.enter_network(fresh)
    finally:
        os.close(fresh)
    _run(runner, ("ip", "-batch", "-"), links(wires, mtu))
    if wires.others:
        _run(runner, ("bridge", "-batch", "-"), forwarding(wires))
    return mtu


def links(wires: Wires, mtu: int) -> str:
    """Return the commands for `ip -batch` inside. Pure."""
    number = list(wires.addresses).index(wires.node)
    lines = [
        "link set lo up",
        f"link add {BRIDGE} address {_mac(1, number)} type bridge stp_state 0 mcast_snooping 0",
        f"link set {BRIDGE} mtu {mtu}",
        f"address add {_node_address(number)}/{NETWORK.prefixlen} dev {BRIDGE}",
    ]
    ports = [TUNNEL] if wires.others else []
    for i in range(sum(m.node == wires.node for m in wires.members)):
        lines.append(f"tuntap add dev {tap(i)} mode tap user {wires.uid} vnet_hdr")
        ports.append(tap(i))
    lines += [f"link set {port} mtu {mtu} master {BRIDGE} up" for port in ports]
    lines.append(f"link set {BRIDGE} up")
    return "\n".join(lines) + "\n"


def forwarding(wires: Wires) -> str:
    """Return the commands for `bridge -batch` inside: the node of each machine. Pure."""
    nodes = list(wires.addresses)
    behind = [(m.mac, m.node) for m in wires.members]
    behind += [(_mac(1, i), node) for i, node in enumerate(nodes)]
    lines = [
        f"fdb add {mac} dev {TUNNEL} dst {wires.addresses[node]} self permanent"
        for mac, node in behind
        if node != wires.node
    ]
    # Broadcasts, for example ARP requests, go to every node.
    lines += [
        f"fdb append 00:00:00:00:00:00 dev {TUNNEL} dst {a} self permanent" for a in wires.others
    ]
    return "\n".join(lines) + "\n"


def _way_out(wires: Wires, runner: Runner) -> tuple[str, int]:
    """Return the node's interface with its address, and the MTU that is left inside."""
    own = wires.addresses[wires.node]
    text = _run(runner, ("ip", "-j", "-4", "address", "show"))
    try:
        for entry in json.loads(text):
            if any(a.get("local") == own for a in entry.get("addr_info", ())):
                return str(entry["ifname"]), int(entry["mtu"]) - _TUNNEL_BYTES
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlurmError("ip: the list of interfaces is not valid JSON") from error
    raise SlurmError(
        f"node {wires.node}: no interface has its address {own}", "check NodeAddr in slurm.conf"
    )


def _tunnel(wires: Wires, namespace: str, device: str, runner: Runner) -> None:
    text = (
        f"ip link add {TUNNEL} netns {namespace} type vxlan id {wires.identity} "
        f"dstport {PORT} srcport {PORT} {PORT + 1} local {wires.addresses[wires.node]} "
        f"dev {device} nolearning"
    )
    deadline = time.monotonic() + _GONE_S
    while True:
        done = runner.run(Command(tuple(text.split())), timeout_s=_STEP_S)
        if done.code == 0:
            return
        # The same job was here a moment ago, and the kernel still removes its network.
        if "File exists" not in done.error_tail or time.monotonic() > deadline:
            raise SlurmError(
                f"job {wires.job}: no network for its machines: {done.error_tail}",
                f"check that the kernel has VXLAN and that UDP port {PORT} is free",
            )
        time.sleep(_PAUSE_S)


def _run(runner: Runner, argv: Sequence[str], script: str = "") -> str:
    try:
        return runner.check(Command(tuple(argv), stdin=script.encode()), timeout_s=_STEP_S).text
    except CommandError as error:
        raise SlurmError(
            f"no network for virtual machines: {error.hint or error.message}"
        ) from error


def admit(records: Path, identity: int, others: Sequence[str], runner: Runner) -> None:
    """Admit the other nodes of a job, and no other sender from now on. Its tunnel is made later.

    `records`: the job's. Raises SlurmError if this node cannot: then there must be no tunnel.
    """
    lowest = int(_UNPRIVILEGED.read_text(encoding="ascii"))
    if lowest <= PORT:
        raise SlurmError(
            f"any user of this node may send from UDP port {PORT}, by which nodes know each other",
            f"sysctl net.ipv4.ip_unprivileged_port_start={PORT + 1} or more; it is {lowest}",
        )
    write(records / RECORD, f"{identity} {' '.join(others)}\n")
    guard(records.parent, runner)


def has_tunnel(records: Path, dir_fd: int | None = None) -> bool:
    """Whether a job was admitted. `dir_fd`: the directory at which a relative path begins."""
    return os.access(records / RECORD, os.F_OK, dir_fd=dir_fd)


def guard(state: Path, runner: Runner) -> None:
    """Make the table match the records; without any there is none. Raises SlurmError.

    The lock makes the last reader of the records also the last writer of the table.
    """
    with locked(state, GUARD):
        found = {c.job: read for c in containers(state) if (read := _read(c.directory / RECORD))}
        command = Command(("nft", "-f", "-"), stdin=rules(found).encode())
        try:
            runner.check(command, timeout_s=_STEP_S)
        except CommandError as error:
            raise SlurmError(
                f"UDP port {PORT} is not guarded against this cluster's users: "
                f"{error.hint or error.message}",
                "machines across nodes need nft (package nftables) and a kernel with nf_tables",
            ) from error


def rules(tunnels: Mapping[int, tuple[int, Sequence[str]]]) -> str:
    """Return the commands for `nft -f`: by job, its network's number and its other nodes. Pure."""
    # Added first, so that it can be deleted: all of this happens in one step or not at all.
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
    """Return a record; None if it is missing or incomplete."""
    with contextlib.suppress(OSError, ValueError):
        identity, *others = path.read_text(encoding="ascii").split()
        addresses = tuple(str(ipaddress.IPv4Address(other)) for other in others)
        return (int(identity), addresses) if addresses else None
    return None
