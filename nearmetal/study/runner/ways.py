# SPDX-License-Identifier: Apache-2.0
"""Which way the messages of an arm go, who starts its programs, and what is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.core.errors import UsageError
from nearmetal.job.mpi import STACKS, Mpi, Provider, Stack
from nearmetal.study.runner.suite import ARMS

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.study.runner.suite import Program
    from nearmetal.study.runner.workloads import Module

OWN = "own"
"""The way an MPI takes within a node if nobody says anything: the first of its own."""

_OPENMPI4 = Stack(
    "vader",
    Mpi.OPENMPI4,
    "Open MPI vader, CMA",
    options=("--mca", "pml", "ob1", "--mca", "btl", "self,vader"),
)
"""The one stack that only studies use: the benchmarks of memory compare with newer ones."""


@dataclass(frozen=True)
class Way:
    """Where an arm's jobs run, and by which way their messages go."""

    backend: Backend
    spec: ClusterSpec
    provider: Provider
    channels: tuple[str, ...] | None = None
    stack: Stack | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Starter:
    """A launcher of the site, as `srun -n @ranks@`; what it does with the ranks is its own."""

    argv: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """What is launched, by which MPI, on how many ranks."""

    name: str
    module: Module
    mpi: Mpi | None
    ranks: int
    path: Path | None = None
    """Where the program lies, when it is none of ours."""
    given: Path | None = None
    """The input directory that the study names."""
    timeout_s: float = 300.0

    @property
    def program(self) -> Program:
        """The program of the module."""
        return self.module.program


def way_of(name: str, mpi: Mpi, backend: Backend, spec: ClusterSpec, nodes: tuple[str, ...]) -> Way:
    """Return a way by its name: an arm of nearmetal-bench(1), or one of the MPI's own ways."""
    if name in ARMS:
        arm = ARMS[name]
        return Way(backend, spec, arm.provider, arm.channels, None, nodes)
    stacks = [stack for stack in (*STACKS, _OPENMPI4) if stack.mpi is mpi]
    own = [stack for stack in stacks if name in (stack.name, OWN)]
    if not own:
        known = [*ARMS, OWN, *(stack.name for stack in stacks)]
        raise UsageError(f"{mpi.value} has no way {name!r}", f"known: {', '.join(known)}")
    return Way(backend, spec, Provider.STOCK, None, own[0], nodes)
