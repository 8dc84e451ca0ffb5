# SPDX-License-Identifier: Apache-2.0
"""What a cluster should be made of, whatever its backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.cluster.spec import Key, Resource


@dataclass(frozen=True)
class Desired:
    """The resources, and what a person should know before agreeing to them.

    `in_place`: attributes that change without making anew what has them, or what stands on it.
    `whys`: why a resource that is there is made anew, where the difference alone does not say it.
    """

    resources: tuple[Resource, ...]
    notes: tuple[str, ...] = ()
    in_place: frozenset[str] = frozenset()
    whys: Mapping[Key, str] = field(default_factory=dict)


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
