# SPDX-License-Identifier: Apache-2.0
"""What a cluster of containers on this machine is made of. Pure."""

from __future__ import annotations

from nearmetal.cluster.backends.local.spec import LocalNode, LocalSpec
from nearmetal.cluster.spec import Facts, Kind, Observed, addresses, resource
from nearmetal.cluster.wanted import Desired, cores_note
from nearmetal.config.size import format_size
from nearmetal.core.errors import StateError


def _assign(node: LocalNode, facts: Facts, begin: int) -> tuple[int, ...]:
    """Return the cores of one node; `begin` counts the slots of the automatic nodes before."""
    if node.cpus == "auto":
        total = len(facts.cpus)
        return tuple(sorted({facts.cpus[(begin + i) % total] for i in range(node.slots)}))
    foreign = [cpu for cpu in node.cpus if cpu not in facts.cpus]
    if foreign:
        listed = ", ".join(map(str, facts.cpus))
        msg = f"node {node.name}: this machine has no core {foreign[0]} to give"
        raise StateError(msg, f"use cores out of {listed}, or cpus: auto")
    return tuple(sorted(node.cpus))


def containers(spec: LocalSpec, facts: Facts, _observed: Observed) -> Desired:
    """Return what `spec` asks for on a machine with these facts; StateError if it cannot be."""
    launcher, node_addresses = addresses(spec)
    made = [
        resource(Kind.CLUSTER, spec.name, {"backend": spec.backend, "show": " ".join(spec.show)}),
        resource(
            Kind.NETWORK,
            "bridge",
            {"subnet": spec.network.subnet, "mtu": spec.network.mtu, "launcher": launcher},
        ),
    ]
    made += [
        resource(Kind.HOST, host.name, {"segments": format_size(host.segments)})
        for host in spec.hosts
    ]
    users: dict[int, list[str]] = {}
    begin = 0
    for host, node in spec.nodes:
        cpus = _assign(node, facts, begin)
        begin += node.slots if node.cpus == "auto" else 0
        for cpu in cpus:
            users.setdefault(cpu, []).append(node.name)
        attributes = {
            "host": host.name,
            "hostname": node.hostname or node.name,
            "pids": node.pids,
            "address": node_addresses[node.name],
            "slots": node.slots,
            "cpus": ",".join(map(str, cpus)),
            "shm": format_size(node.shm),
        }
        made.append(resource(Kind.NODE, node.name, attributes))
    return Desired(tuple(made), _notes(spec, facts, users))


def _notes(spec: LocalSpec, facts: Facts, users: dict[int, list[str]]) -> tuple[str, ...]:
    notes = []
    note = cores_note(spec.slots, len(facts.cpus), users)
    notes += [note] if note else []
    names = [node.hostname or node.name for _, node in spec.nodes]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        notes.append(
            f"host name {', '.join(repeated)} is used by several nodes: Open MPI 5 hangs on that "
            "in its collectives (pass --env OMPI_MCA_coll=basic,libnbc,self,inter,sync)."
        )
    return tuple(notes)
