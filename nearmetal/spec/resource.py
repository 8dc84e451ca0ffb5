# SPDX-License-Identifier: Apache-2.0
"""The parts of a cluster: what planning compares, and what a backend makes and observes."""

from __future__ import annotations

from dataclasses import dataclass
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
    """What there is. `broken`: begun but not finished, or dead; to be made again."""

    resources: tuple[Resource, ...] = ()
    broken: frozenset[Key] = frozenset()

    def by_key(self) -> dict[Key, Resource]:
        """Index the sound resources."""
        return {resource.key: resource for resource in self.resources}


@dataclass(frozen=True)
class Facts:
    """What planning must know about the infrastructure: the cores that may be used, ascending."""

    cpus: tuple[int, ...]


def resource(kind: Kind, name: str, attributes: Mapping[str, object]) -> Resource:
    """Build a Resource; every value becomes text."""
    pairs = tuple(sorted((key, str(value)) for key, value in attributes.items()))
    return Resource(Key(kind, name), pairs)


def in_order(resources: Iterable[Resource]) -> list[Resource]:
    """Sort by the order of making; the order within a kind stays."""
    return sorted(resources, key=lambda item: item.key.kind.rank)
