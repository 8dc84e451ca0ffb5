# SPDX-License-Identifier: Apache-2.0
"""Abilities of each kind of adapter, with the first version and the source of each.

A source is a work, a place in its text, and words that stand there: `VMW-ADAPTER:98 "Yes"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from nearmetal.advise.needs import Platform


@dataclass(frozen=True)
class Gate:
    """A condition on a version: `product` is the name of a field of Needs."""

    product: str
    least: str
    source: str


@dataclass(frozen=True)
class Ability:
    """An ability that an adapter has or lacks, with its conditions."""

    can: bool
    source: str
    gates: tuple[Gate, ...] = ()
    card: str = ""
    """Name of a field of CardModel that must hold; empty: any card."""
    only: str = ""
    """A condition other than a version, in words, for the user to check."""
    instead: str = ""
    """The change that would add the ability, or an alternative."""


class Sharing(StrEnum):
    """Number of virtual machines that can run on one physical adapter."""

    MANY = "many"
    ONE = "one"


@dataclass(frozen=True)
class AdapterKind:
    """One kind of adapter on one platform."""

    name: str
    title: str
    platform: Platform
    platform_source: str
    rdma: frozenset[str]
    """Subset of ib and roce that the guest sees; empty: TCP only."""
    rdma_source: str
    sharing: Sharing
    sharing_source: str
    migration: Ability
    snapshots: Ability
    ha: Ability
    drs: Ability
    requires: tuple[Gate, ...] = ()
    """Conditions of the adapter itself."""
    card: str = ""
    """Name of a field of CardModel that must hold; empty: any card."""
    setup: tuple[str, ...] = ()
    """Further parts that it needs, in words."""
    rare: str = ""
    """A part that few installations have, in words; adapters without such a part rank first."""
    rare_source: str = ""
    most_ranks: int | None = None
    """Most ranks per node that its source calls good."""
    most_ranks_source: str = ""

    @property
    def abilities(self) -> dict[str, Ability]:
        """The features of virtualization by the fields of Needs that ask for them."""
        return {
            "live_migration": self.migration,
            "snapshots": self.snapshots,
            "ha": self.ha,
            "drs": self.drs,
        }


_TABLE = yaml.safe_load(Path(__file__).with_name("adapters.yaml").read_text(encoding="utf-8"))
ADAPTERS = TypeAdapter(tuple[AdapterKind, ...]).validate_python(_TABLE["adapters"])
