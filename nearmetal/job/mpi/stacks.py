# SPDX-License-Identifier: Apache-2.0
"""How MPIs carry messages within a node by themselves: what nearmetal is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearmetal.job.mpi.installed import Mpi

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Stack:
    """One of an MPI's own ways. `one_copy`: the kernel copies between processes (CMA)."""

    name: str
    mpi: Mpi
    title: str
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    one_copy: bool = False


def _ob1(btl: str, *more: str) -> tuple[str, ...]:
    return ("--mca", "pml", "ob1", "--mca", "btl", f"self,{btl}", *more)


def _mpich(netmod: str, **more: str) -> dict[str, str]:
    # NOLOCAL hands the traffic within a node to the netmod.
    return {"MPIR_CVAR_CH4_NETMOD": netmod, "MPIR_CVAR_NOLOCAL": "1", **more}


STACKS = (
    Stack("sm", Mpi.OPENMPI5, "Open MPI sm, CMA", options=_ob1("sm"), one_copy=True),
    Stack(
        "sm-copy",
        Mpi.OPENMPI5,
        "Open MPI sm, two copies",
        options=_ob1("sm", "--mca", "smsc", "^cma,xpmem,knem"),
    ),
    Stack("tcp", Mpi.OPENMPI5, "Open MPI TCP", options=_ob1("tcp")),
    Stack(
        "posix",
        Mpi.MPICH5,
        "MPICH posix, CMA",
        {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"},
        one_copy=True,
    ),
    Stack(
        "ucx", Mpi.MPICH5, "MPICH UCX, CMA", _mpich("ucx", UCX_TLS="posix,cma,self"), one_copy=True
    ),
    Stack(
        "ofi-shm",
        Mpi.MPICH5,
        "MPICH over libfabric shm, CMA",
        _mpich("ofi", FI_PROVIDER="shm"),
        one_copy=True,
    ),
    Stack("tcp", Mpi.MPICH5, "MPICH TCP", _mpich("ofi", FI_PROVIDER="tcp")),
    Stack("shm", Mpi.IMPI, "Intel MPI shm", {"I_MPI_FABRICS": "shm"}),
)
