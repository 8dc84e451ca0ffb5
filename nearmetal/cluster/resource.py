# SPDX-License-Identifier: Apache-2.0
"""The parts of a cluster: what planning compares, and what a backend makes and observes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from nearmetal.config.size import format_size, parse_size
from nearmetal.core.errors import StateError

Attributes = tuple[tuple[str, str], ...]
"""Values as plans and records show them: sorted (name, text) pairs."""


class Kind(Enum):
    """Kinds of resources."""

    CLUSTER = "cluster"
    NETWORK = "network"
    HOST = "host"
    DISK = "disk"
    NODE = "node"


@dataclass(frozen=True)
class Key:
    """The identity of a resource within a cluster."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """As `node n1`."""
        return f"{self.kind.value} {self.name}"


class Values(BaseModel):
    """The typed values of a resource: everything that matters of it.

    Each backend has a child per kind of resource. A field that is None is not an attribute.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @property
    def attributes(self) -> Attributes:
        """The values as text."""
        shown = self.model_dump()
        return tuple(sorted((name, str(v)) for name, v in shown.items() if v is not None))

    @classmethod
    def read(cls, attributes: Mapping[str, str]) -> Values:
        """Return the values of a record; TextValues where another release wrote it."""
        try:
            return cls.model_validate(attributes)
        except ValidationError:
            return TextValues(texts=tuple(sorted(attributes.items())))


class TextValues(Values):
    """Values of which only the texts are known."""

    texts: Attributes

    @property
    def attributes(self) -> Attributes:
        """The texts."""
        return self.texts


def from_text(read: Any) -> BeforeValidator:
    """Return a validator that reads text of records, and leaves other values alone."""
    return BeforeValidator(lambda value: read(value) if isinstance(value, str) else value)


Bytes = Annotated[int, from_text(parse_size), PlainSerializer(format_size)]
"""Shown as `64 MiB`."""

YesNo = Annotated[bool, PlainSerializer(lambda value: "yes" if value else "no")]

Numbers = Annotated[
    tuple[int, ...],
    from_text(lambda text: text.split(",") if text else ()),
    PlainSerializer(lambda value: ",".join(map(str, value))),
]
"""Shown as `0,2`."""

Words = Annotated[tuple[str, ...], from_text(str.split), PlainSerializer(" ".join)]
"""Shown as `/a /b`."""

V = TypeVar("V", bound=Values)


@dataclass(frozen=True)
class Resource:
    """One part of a cluster. `needs`: the resources below it, which are made before it."""

    key: Key
    values: Values = field(default_factory=Values)
    needs: tuple[Key, ...] = ()

    @cached_property
    def attributes(self) -> Attributes:
        """The values as text."""
        return self.values.attributes

    def of(self, model: type[V]) -> V:
        """Return the values; raises StateError where another release of nearmetal wrote them."""
        if not isinstance(self.values, model):
            raise StateError(
                f"{self.key} was made by another release of nearmetal, whose record is not readable",
                "remove the cluster with that release, then run `nearmetal up` again",
            )
        return self.values


@dataclass(frozen=True)
class Observed:
    """The resources that exist. `broken`: unfinished or dead ones, which are to be recreated.

    `unfinished`: resources that are completed in place, each with the reason. `notes`: facts for
    the user that no plan shows. `advice`: such facts that do not matter when the cluster is removed.
    `halted`: sound resources that stand still, each with the reason; they are recreated, which is a
    loss.
    """

    resources: tuple[Resource, ...] = ()
    broken: frozenset[Key] = frozenset()
    notes: tuple[str, ...] = ()
    unfinished: Mapping[Key, str] = field(default_factory=dict)
    halted: Mapping[Key, str] = field(default_factory=dict)
    advice: tuple[str, ...] = ()

    def by_key(self) -> dict[Key, Resource]:
        """Index the sound resources."""
        return {resource.key: resource for resource in self.resources}

    def named(self, model: type[V]) -> dict[str, V]:
        """Return the values of one model, by the names of their resources."""
        found = ((item.key.name, item.values) for item in self.resources)
        return {name: values for name, values in found if isinstance(values, model)}


@dataclass(frozen=True)
class Desired:
    """The resources that a cluster should have, and notes for the user.

    `in_place`: attributes that change without recreating a resource.
    `whys`: why a resource is recreated, or what its change in place costs, where the difference
    alone does not say it. `outages`: resources that do not work during their change in place.
    """

    resources: tuple[Resource, ...]
    notes: tuple[str, ...] = ()
    in_place: frozenset[str] = frozenset()
    whys: Mapping[Key, str] = field(default_factory=dict)
    outages: frozenset[Key] = frozenset()


def depths(resources: Iterable[Resource]) -> dict[Key, int]:
    """Return how many resources lie below each, along the longest chain of needs."""
    needs = {item.key: item.needs for item in resources}

    @cache
    def depth(key: Key) -> int:
        return 1 + max((depth(need) for need in needs.get(key, ())), default=-1)

    return {key: depth(key) for key in needs}


def in_order(resources: Iterable[Resource]) -> list[Resource]:
    """Sort by the order of making: each resource after all that it needs."""
    items = list(resources)
    depth = depths(items)
    return sorted(items, key=lambda item: depth[item.key])


def cores_note(nr_slots: int, nr_cores: int, users: Mapping[int, Sequence[str]]) -> str:
    """Say that ranks take turns on cores, given each core's nodes; "" when they do not."""
    shared = {cpu: names for cpu, names in users.items() if len(names) > 1}
    if nr_slots <= nr_cores and not shared:
        return ""
    cores = "; ".join(f"core {cpu}: {', '.join(names)}" for cpu, names in shared.items())
    return (
        f"{nr_slots} slots on {nr_cores} cores: ranks take turns "
        f"({cores or 'within a node'}). Right for correctness, worthless for figures."
    )


@dataclass(frozen=True)
class Region:
    """Memory regions of a device that a machine maps: the device's name, and their sizes."""

    name: str
    sizes: tuple[int, ...]


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
    """Path of the cluster's files there; from the spec, or chosen by the backend."""
    vfs: tuple[str, ...] = ()
    """For each node with a virtual function: its adapter, and the reason for this adapter."""
    efi: bool = False
    """Whether it has EFI firmware for machines; asked for only if a node needs it."""
    regions: Mapping[str, tuple[Region, ...]] = field(default_factory=dict)
    """By node: the regions of the devices of the host that it gets."""
    pins: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By machine of others: the cores to which its processors are pinned."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every core, ascending."""
        return tuple(sorted(cpu for cell in self.numa for cpu in cell))

    def cell_of(self, cpu: int) -> int:
        """Return the NUMA node of a core; raises StopIteration when there is none."""
        return next(i for i, cell in enumerate(self.numa) if cpu in cell)


@dataclass(frozen=True)
class Facts:
    """Facts of the infrastructure that planning needs.

    `cpus`: cores of this machine that may be used, ascending. For virtual machines also the
    hypervisors by the name of the spec's host, and a digest of the image, or the SHA-256 of each
    image by its path. `cautions`: what the user must know of this machine before making anything
    on it.
    """

    cpus: tuple[int, ...] = ()
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    image: str = ""
    images: Mapping[str, str] = field(default_factory=dict)
    cautions: tuple[str, ...] = ()
