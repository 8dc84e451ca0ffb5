# SPDX-License-Identifier: Apache-2.0
"""What each MPI must be told, as environment and options. Pure: paths in, text out.

With the nearmetal provider the selection is forced, never left to priorities: Open MPI prefers
pml/ucx and MPICH's wheel netmod ucx as soon as they see an RDMA device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from nearmetal.job.mpi.installed import Family, Installation, Mpi
from nearmetal.job.mpi.stacks import Stack


class Provider(Enum):
    """What carries the messages."""

    NEARMETAL = "nearmetal"
    STOCK = "stock"


@dataclass(frozen=True)
class Request:
    """What a job asks of its MPI. Paths are as the nodes see them.

    `stack`: one of the MPI's own ways, with the stock provider; None: the one over TCP.
    `one_host`: all its nodes share a host, so that they meet in memory.
    """

    provider: Provider
    library: Path | None = None
    provider_directory: Path | None = None
    channels: tuple[str, ...] | None = None
    crowded: bool = False
    one_host: bool = False
    stack: Stack | None = None
    interface: str = "br0"
    """The network interface of the launcher on the cluster's network."""


@dataclass(frozen=True)
class Settings:
    """Environment for launcher and ranks, and options for the launcher."""

    env: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    providers: tuple[Path, ...] = ()
    """Files that must be linked into `provider_directory` on every host; may be empty."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Environment too, for the sake of speed only: the caller's own, if he has the variable."""


def settings_for(installation: Installation, request: Request) -> Settings:
    """Return the settings of one job."""
    makers = {
        Mpi.OPENMPI5: _openmpi,
        Mpi.OPENMPI4: _openmpi,
        Mpi.MPICH5: _mpich,
        Mpi.IMPI: _impi,
    }
    made = makers[installation.mpi](installation, request)
    env = dict(made.env)
    if request.stack is not None:
        env |= request.stack.env
    library = installation.library_directory
    if library is not None:
        env["LD_LIBRARY_PATH"] = str(library)
    if request.provider is Provider.NEARMETAL and request.channels is not None:
        env["NEARMETAL_CHANNELS"] = ",".join(request.channels)
    return Settings(env, made.options, made.providers, made.defaults)


def _crowd(request: Request) -> dict[str, str]:
    """Return what the provider itself is told of ranks that share cores.

    An envelope and its answer each wait for a processor, so larger messages go along with theirs.
    The pools of all ranks of a core pass through its caches together: each is as small as may be.
    """
    if not request.crowded:
        return {}
    return {"NEARMETAL_SHM_EAGER_MAX": "65536", "NEARMETAL_POOL_SIZE": "1048576"}


def _openmpi(installation: Installation, request: Request) -> Settings:
    five = installation.mpi is Mpi.OPENMPI5
    # Users are root in their own namespace, and Open MPI refuses root unless told twice.
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Windows over UCX would pass by both the provider and TCP, and fail between isolated nodes.
    env["OMPI_MCA_osc"] = "^ucx"
    options: tuple[str, ...] = ()
    if five:
        env |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if installation.library_directory is not None:
            env["OPAL_PREFIX"] = str(installation.prefix)
    if request.crowded:
        options += ("--mca", "mpi_yield_when_idle", "1")
    if request.stack is not None:
        return Settings(env, (*options, *request.stack.options))
    if request.provider is Provider.STOCK:
        memory = "sm" if five else "vader"
        return Settings(
            env, (*options, "--mca", "pml", "ob1", "--mca", "btl", f"self,{memory},tcp")
        )
    include = "opal_common_ofi_provider_include" if five else "mtl_ofi_provider_include"
    options += ("--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", include, "nearmetal")
    env |= _provider_path(installation, request) | {"FI_PROVIDER": "nearmetal,verbs,tcp"}
    defaults = _crowd(request)
    if five and request.one_host:
        # Its collectives for many hosts gather within each node first, to spare the network. Here
        # all nodes are equally near, and that only adds a hop (docs/design/small-messages.md).
        defaults["OMPI_MCA_coll"] = "^han"
    return Settings(env, options, _providers(installation, request), defaults)


def _mpich(installation: Installation, request: Request) -> Settings:
    env = {"MPIR_CVAR_CH4_NETMOD": "ofi"}
    if request.provider is Provider.STOCK:
        return Settings(env | {"FI_PROVIDER": "tcp"})
    # NOLOCAL hands the traffic within a node to the provider as well.
    env |= {"MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "nearmetal,tcp"}
    return Settings(env | _provider_path(installation, request), defaults=_crowd(request))


def _impi(installation: Installation, request: Request) -> Settings:
    env = {
        "I_MPI_ROOT": str(installation.prefix),
        "I_MPI_PIN": "0",
        "I_MPI_HYDRA_IFACE": request.interface,
    }
    defaults = {"I_MPI_THREAD_YIELD": "3"} if request.crowded else {}
    if request.provider is Provider.STOCK:
        env |= {"I_MPI_OFI_PROVIDER": "tcp", "FI_PROVIDER_PATH": str(installation.prefix / "lib")}
        return Settings(env, defaults=defaults)
    # FI_PROVIDER must be unset: Intel MPI wants it equal to I_MPI_OFI_PROVIDER.
    env |= {"I_MPI_OFI_PROVIDER": "nearmetal", "I_MPI_FABRICS": "ofi"}
    env |= _provider_path(installation, request)
    if request.crowded:
        # Its collectives within a node spin in its own memory, where nobody yields: ranks that
        # share a core wait out each other's time slices (docs/design/figures.md).
        defaults |= {"I_MPI_COLL_INTRANODE": "pt2pt"} | _crowd(request)
    return Settings(env, (), _providers(installation, request), defaults)


def _uses_directory(installation: Installation) -> bool:
    """Whether this libfabric only takes a directory, which replaces its own providers."""
    return installation.mpi in (Mpi.OPENMPI4, Mpi.IMPI)


def _provider_path(installation: Installation, request: Request) -> dict[str, str]:
    if _uses_directory(installation):
        return {"FI_PROVIDER_PATH": str(request.provider_directory)}
    return {"FI_PROVIDER_PATH": f"+{request.library}"}


def _providers(installation: Installation, request: Request) -> tuple[Path, ...]:
    """Return what the provider directory must hold: ours, and Intel's, all of them loadable."""
    if not _uses_directory(installation) or request.library is None:
        return ()
    own: tuple[Path, ...] = ()
    if installation.mpi is Mpi.IMPI:
        own = tuple(sorted((installation.prefix / "lib").glob("*-fi.so")))
    return (request.library, *own)


def unset_for(installation: Installation) -> tuple[str, ...]:
    """Return the variables that must not reach a job of this MPI from outside."""
    names = ("FI_PROVIDER", "FI_PROVIDER_PATH", "LD_LIBRARY_PATH", "NEARMETAL_RUNDIR")
    if installation.mpi.family is Family.MPICH:
        return (*names, "I_MPI_OFI_PROVIDER", "I_MPI_FABRICS")
    return names
