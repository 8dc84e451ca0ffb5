# SPDX-License-Identifier: Apache-2.0
"""The parts of a cluster: what planning compares, and what a backend makes and observes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Attributes = tuple[tuple[str, str], ...]
"""Sorted (name, value) pairs: comparable, hashable, printable."""


class Kind(Enum):
    """Kinds of resources, in the order in which they are made."""

    CLUSTER = "cluster"
    NETWORK = "network"
    HOST = "host"
    DISK = "disk"
    NODE = "node"

    @property
    def rank(self) -> int:
        """Position in the order of making; deletion goes the other way."""
        return list(Kind).index(self)


@dataclass(frozen=True)
class Key:
    """What identifies a resource within a cluster."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """As `node n1`."""
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True)
class Resource:
    """One part of a cluster with everything that matters about it."""

    key: Key
    attributes: Attributes = ()

    def get(self, name: str) -> str:
        """Return one attribute; raises KeyError."""
        return dict(self.attributes)[name]


@dataclass(frozen=True)
class Observed:
    """What there is. `broken`: begun but not finished, or dead; to be made again.

    `notes`: what a person should know of it, and no plan says.
    """

    resources: tuple[Resource, ...] = ()
    broken: frozenset[Key] = frozenset()
    notes: tuple[str, ...] = ()

    def by_key(self) -> dict[Key, Resource]:
        """Index the sound resources."""
        return {resource.key: resource for resource in self.resources}


@dataclass(frozen=True)
class HostFacts:
    """One hypervisor as found. `devices`: names that its QEMU knows, of those that matter here."""

    uri: str
    libvirt: str
    qemu: str
    emulator: str
    devices: frozenset[str]
    kvm: bool
    kvm_reason: str
    numa: tuple[tuple[int, ...], ...]
    """The host's cores by NUMA node."""
    cpu_vendor: str = ""
    directory: str = ""
    """Where our files lie there; from the spec, or chosen by the backend."""
    vfs: tuple[str, ...] = ()
    """Where the virtual functions that its nodes ask for will come from, and why."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every core, ascending."""
        return tuple(sorted(cpu for cell in self.numa for cpu in cell))

    def cell_of(self, cpu: int) -> int:
        """Return the NUMA node of a core; raises StopIteration when there is none."""
        return next(i for i, cell in enumerate(self.numa) if cpu in cell)


@dataclass(frozen=True)
class Facts:
    """What planning must know about the infrastructure.

    `cpus`: cores of this machine that may be used, ascending. For virtual machines also the
    hypervisors by the name of the spec's host, and a digest of the image.
    """

    cpus: tuple[int, ...] = ()
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    image: str = ""


def resource(kind: Kind, name: str, attributes: Mapping[str, object]) -> Resource:
    """Build a Resource; every value becomes text."""
    pairs = tuple(sorted((key, str(value)) for key, value in attributes.items()))
    return Resource(Key(kind, name), pairs)


def in_order(resources: Iterable[Resource]) -> list[Resource]:
    """Sort by the order of making; the order within a kind stays."""
    return sorted(resources, key=lambda item: item.key.kind.rank)
