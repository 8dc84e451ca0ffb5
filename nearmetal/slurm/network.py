# SPDX-License-Identifier: Apache-2.0
"""The network of a job's virtual machines: one Ethernet across its nodes, and no way out of it.

    node's network namespace          the job's network namespace
                                      nm0 (bridge) ── vm0, vm1, ... (taps of QEMU)
    UDP to the job's other nodes ─────── nmx (VXLAN)

The VXLAN interface is made in the node's namespace, where its packets leave, and is in the job's from
the first moment. Everything goes with the last process of the job's namespace, whatever that died of.
Who is where is told and not learnt: a forged packet changes nobody's way.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.core.errors import CommandError, SlurmError
from nearmetal.core.process import Command
from nearmetal.slurm import guard, holder
from nearmetal.slurm.guard import PORT
from nearmetal.slurm.machines import NETWORK, Member, node_address, node_mac, tap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nearmetal.core.process import Runner

BRIDGE, TUNNEL = "nm0", "nmx"

_TUNNEL_BYTES = 50
_ALONE_MTU = 1500
_IDENTITIES = 1 << 24
_STEP_S = 30.0
_GONE_S = 20.0
"""How long the kernel may take to remove a network whose processes have ended."""

_PAUSE_S = 0.2


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
        """The number that the packets of the job's tunnel bear."""
        return self.job % _IDENTITIES


def make(wires: Wires, records: Path, runner: Runner) -> int:
    """Make the network of a job and go into it; return the MTU of its machines.

    `records`: the job's. Raises SlurmError; then nothing is left of it but what they say.
    """
    fresh = holder.fresh_network()
    try:
        mtu = _ALONE_MTU
        if wires.others:
            device, mtu = _way_out(wires, runner)
            guard.admit(records, wires.identity, wires.others, runner)
            _tunnel(wires, f"/proc/{os.getpid()}/fd/{fresh}", device, runner)
        holder.enter_network(fresh)
    finally:
        os.close(fresh)
    _run(runner, ("ip", "-batch", "-"), links(wires, mtu))
    if wires.others:
        _run(runner, ("bridge", "-batch", "-"), forwarding(wires))
    return mtu


def links(wires: Wires, mtu: int) -> str:
    """Return what `ip -batch` does inside. Pure."""
    number = list(wires.addresses).index(wires.node)
    lines = [
        "link set lo up",
        f"link add {BRIDGE} address {node_mac(number)} type bridge stp_state 0 mcast_snooping 0",
        f"link set {BRIDGE} mtu {mtu}",
        f"address add {node_address(number)}/{NETWORK.prefixlen} dev {BRIDGE}",
    ]
    ports = [TUNNEL] if wires.others else []
    for i in range(sum(m.node == wires.node for m in wires.members)):
        lines.append(f"tuntap add dev {tap(i)} mode tap user {wires.uid} vnet_hdr")
        ports.append(tap(i))
    lines += [f"link set {port} mtu {mtu} master {BRIDGE} up" for port in ports]
    lines.append(f"link set {BRIDGE} up")
    return "\n".join(lines) + "\n"


def forwarding(wires: Wires) -> str:
    """Return what `bridge -batch` does inside: which machine is behind which node. Pure."""
    nodes = list(wires.addresses)
    behind = [(m.mac, m.node) for m in wires.members]
    behind += [(node_mac(i), node) for i, node in enumerate(nodes)]
    lines = [
        f"fdb add {mac} dev {TUNNEL} dst {wires.addresses[node]} self permanent"
        for mac, node in behind
        if node != wires.node
    ]
    # Broadcasts, such as the question who has an address, go to every node.
    lines += [
        f"fdb append 00:00:00:00:00:00 dev {TUNNEL} dst {a} self permanent" for a in wires.others
    ]
    return "\n".join(lines) + "\n"


def _way_out(wires: Wires, runner: Runner) -> tuple[str, int]:
    """Return the node's interface that has its address, and the MTU that is left inside."""
    own = wires.addresses[wires.node]
    told = _run(runner, ("ip", "-j", "-4", "address", "show"))
    try:
        for entry in json.loads(told):
            if any(a.get("local") == own for a in entry.get("addr_info", ())):
                return str(entry["ifname"]), int(entry["mtu"]) - _TUNNEL_BYTES
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlurmError("ip does not tell what interfaces there are") from error
    raise SlurmError(
        f"node {wires.node}: no interface has its address {own}", "is NodeAddr in slurm.conf right?"
    )


def _tunnel(wires: Wires, namespace: str, device: str, runner: Runner) -> None:
    argv = (
        "ip",
        "link",
        "add",
        TUNNEL,
        "netns",
        namespace,
        "type",
        "vxlan",
        "id",
        str(wires.identity),
        "dstport",
        str(PORT),
        "srcport",
        str(PORT),
        str(PORT + 1),
        "local",
        wires.addresses[wires.node],
        "dev",
        device,
        "nolearning",
    )
    deadline = time.monotonic() + _GONE_S
    while True:
        done = runner.run(Command(argv), timeout_s=_STEP_S)
        if done.code == 0:
            return
        # The same job was here a moment ago, and its network is still being removed.
        if "File exists" not in done.error_tail or time.monotonic() > deadline:
            raise SlurmError(
                f"job {wires.job}: no network for its machines: {done.error_tail}",
                "does the kernel have VXLAN, and is UDP port 252 free?",
            )
        time.sleep(_PAUSE_S)


def _run(runner: Runner, argv: Sequence[str], script: str = "") -> str:
    try:
        return runner.check(Command(tuple(argv), stdin=script.encode()), timeout_s=_STEP_S).text
    except CommandError as error:
        msg = f"no network for virtual machines: {error.hint or error.message}"
        raise SlurmError(msg) from error
