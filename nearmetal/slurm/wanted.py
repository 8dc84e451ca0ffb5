# SPDX-License-Identifier: Apache-2.0
"""What a job wants of virtual machines and has for them; no more, as every prolog reads this."""

from __future__ import annotations

from dataclasses import dataclass

from nearmetal.core.errors import SlurmError


class RefusedError(SlurmError):
    """What a user asked for cannot be had; the node is well."""


@dataclass(frozen=True)
class Wanted:
    """What a job asked for, each of `nr` machines on each node alike."""

    image: str
    nr: int
    vcpus: int
    memory_bytes: int
    segment_bytes: int
    shares: tuple[str, ...] = ()
    accel: str = "kvm"


@dataclass(frozen=True)
class Allocated:
    """What Slurm gave the job on a node; 0: it does not count that."""

    cpus: int = 0
    memory_bytes: int = 0
