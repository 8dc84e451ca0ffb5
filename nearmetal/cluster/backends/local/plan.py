# SPDX-License-Identifier: Apache-2.0
"""The resources of a cluster of containers on this machine. Pure."""

from __future__ import annotations

from typing import Literal

from nearmetal.cluster.backends.local.spec import LocalNode, LocalSpec
from nearmetal.cluster.model import addresses
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import (
    Bytes,
    Desired,
    Facts,
    Key,
    Kind,
    Numbers,
    Observed,
    Resource,
    Values,
    Words,
    cores_note,
)
from nearmetal.core.errors import StateError

BRIDGE = Key(Kind.NETWORK, "bridge")


class ContainerCluster(Values):
    """The outer namespaces."""

    backend: str
    show: Words


class ContainerNetwork(Values):
    """The bridge."""

    subnet: str
    mtu: int
    launcher: str


class ContainerHost(Values):
    """The directory in which the nodes of a host meet."""

    segments: Bytes


class ContainerNode(Values):
    """One container."""

    host: str
    hostname: str
    pids: Literal["own", "cluster"]
    address: str
    slots: int
    cpus: Numbers
    shm: Bytes


MODELS: dict[Kind, type[Values]] = {
    Kind.CLUSTER: ContainerCluster,
    Kind.NETWORK: ContainerNetwork,
    Kind.HOST: ContainerHost,
    Kind.NODE: ContainerNode,
}


def part(cluster: str, key: Key, values: Values) -> Resource:
    """Return a resource of a cluster with its needs."""
    needs: tuple[Key, ...] = ()
    match values:
        case ContainerNetwork():
            needs = (Key(Kind.CLUSTER, cluster),)
        case ContainerHost():
            needs = (BRIDGE,)
        case ContainerNode(host=host):
            needs = (Key(Kind.HOST, host),)
    return Resource(key, values, needs)


def _assign(node: LocalNode, facts: Facts, begin: int) -> tuple[int, ...]:
    """Return the cores of one node; `begin` counts the slots of the automatic nodes before."""
    if node.cpus == "auto":
        total = len(facts.cpus)
        return tuple(sorted({facts.cpus[(begin + i) % total] for i in range(node.slots)}))
    foreign = [cpu for cpu in node.cpus if cpu not in facts.cpus]
    if foreign:
        listed = ", ".join(map(str, facts.cpus))
        raise StateError(
            f"node {node.name}: this machine has no core {foreign[0]}",
            f"use cores out of {listed}, or cpus: auto",
        )
    return tuple(sorted(node.cpus))


def containers(spec: LocalSpec, facts: Facts, _observed: Observed) -> Desired:
    """Return the resources of `spec` on a machine with these facts; StateError if it cannot be."""
    launcher, node_addresses = addresses(spec)
    made: list[tuple[Key, Values]] = [
        (
            Key(Kind.CLUSTER, spec.name),
            ContainerCluster(backend=spec.backend, show=tuple(spec.show)),
        ),
        (
            BRIDGE,
            ContainerNetwork(subnet=spec.network.subnet, mtu=spec.network.mtu, launcher=launcher),
        ),
    ]
    made += [
        (Key(Kind.HOST, host.name), ContainerHost(segments=host.segments)) for host in spec.hosts
    ]
    users: dict[int, list[str]] = {}
    begin = 0
    for host, node in spec.nodes:
        cpus = _assign(node, facts, begin)
        begin += node.slots if node.cpus == "auto" else 0
        for cpu in cpus:
            users.setdefault(cpu, []).append(node.name)
        values = ContainerNode(
            host=host.name,
            hostname=node.hostname or node.name,
            pids=node.pids,
            address=node_addresses[node.name],
            slots=node.slots,
            cpus=cpus,
            shm=node.shm,
        )
        made.append((Key(Kind.NODE, node.name), values))
    parts = tuple(part(spec.name, key, values) for key, values in made)
    return Desired(parts, _notes(spec, facts, users))


def _notes(spec: LocalSpec, facts: Facts, users: dict[int, list[str]]) -> tuple[str, ...]:
    notes = []
    note = cores_note(spec.slots, len(facts.cpus), users)
    notes += [note] if note else []
    notes += facts.cautions
    names = [node.hostname or node.name for _, node in spec.nodes]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        notes.append(
            f"host name {', '.join(repeated)} is used by several nodes, so the collectives of Open "
            "MPI 5 hang (use --env OMPI_MCA_coll=basic,libnbc,self,inter,sync)."
        )
    return tuple(notes)


REGISTRATION = Registration(LocalSpec, containers)
