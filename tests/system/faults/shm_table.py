# SPDX-License-Identifier: Apache-2.0
"""The table of attacks on the channel shm: a name, what the attack does, and what it may gain."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.system.faults.shm_scene import Scene

QUICK_MS = 1000
"""Silence costs a caller twice this time at most, whatever the number of silent listeners.

So does a limit for descriptors in flight that stays used up.
"""

Function = Callable[[Scene], None]


@dataclass(frozen=True)
class Attack:
    """One attack.

    `moves`: it can move pairs of ranks to the network, and nothing more; else it gains nothing.
    `wildcards`: the job also receives from any source. `alone`: no other attack runs beside it.
    `harms`: MPIs that it harms, whatever the provider does; SECURITY.md has these among its limits.
    `slow`: it runs in the full suite only.
    """

    name: str
    purpose: str
    run: Function
    moves: bool
    wildcards: bool
    alone: bool
    connect_ms: int
    proof: str
    harms: tuple[str, ...]
    slow: bool


ATTACKS: dict[str, Attack] = {}


def attack(
    name: str,
    purpose: str,
    *,
    moves: bool = False,
    wildcards: bool = False,
    alone: bool = False,
    proof: str = "done",
    connect_ms: int = 0,
    harms: tuple[str, ...] = (),
    slow: bool = False,
) -> Callable[[Function], Function]:
    """Add an attack. PROOF: the count that shows that it happened. CONNECT_MS: the job's limit."""

    def add(run: Function) -> Function:
        assert name not in ATTACKS
        ATTACKS[name] = Attack(
            name,
            purpose,
            run,
            moves,
            wildcards,
            alone or moves,
            connect_ms,
            proof,
            harms,
            slow,
        )
        return run

    return add
