# SPDX-License-Identifier: Apache-2.0
"""The environment and the options of each MPI. Pure: paths in, text out.

With the nearmetal provider the selection is forced, never left to priorities: Open MPI prefers
pml/ucx and MPICH's wheel netmod ucx as soon as they see an RDMA device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from nearmetal.core.errors import LaunchError
from nearmetal.job.mpi.installed import Family, Installation, Mpi


@dataclass(frozen=True)
class Stack:
    """A way in which an MPI itself carries messages within a node; nearmetal is compared with it.

    `one_copy`: the kernel copies between processes (CMA).
    """

    name: str
    mpi: Mpi
    title: str
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    one_copy: bool = False


def _ob1(btl: str, *more: str) -> tuple[str, ...]:
    return ("--mca", "pml", "ob1", "--mca", "btl", f"self,{btl}", *more)


_TWO_COPIES = ("--mca", "smsc", "^cma,xpmem,knem")

_NOLOCAL = {"MPIR_CVAR_NOLOCAL": "1"}
"""Hands the traffic within a node to the netmod of MPICH as well."""


def _netmod(name: str, **more: str) -> dict[str, str]:
    return {"MPIR_CVAR_CH4_NETMOD": name, **more}


_UCX = _netmod("ucx", UCX_TLS="posix,cma,self") | _NOLOCAL
_OFI_SHM = _netmod("ofi", FI_PROVIDER="shm") | _NOLOCAL
_OFI_TCP = _netmod("ofi", FI_PROVIDER="tcp")

STACKS = (
    Stack("sm", Mpi.OPENMPI5, "Open MPI sm, CMA", options=_ob1("sm"), one_copy=True),
    Stack("sm-copy", Mpi.OPENMPI5, "Open MPI sm, two copies", options=_ob1("sm", *_TWO_COPIES)),
    Stack("tcp", Mpi.OPENMPI5, "Open MPI TCP", options=_ob1("tcp")),
    Stack("posix", Mpi.MPICH5, "MPICH posix, CMA", _OFI_TCP, one_copy=True),
    Stack("ucx", Mpi.MPICH5, "MPICH UCX, CMA", _UCX, one_copy=True),
    Stack("ofi-shm", Mpi.MPICH5, "MPICH over libfabric shm, CMA", _OFI_SHM, one_copy=True),
    Stack("tcp", Mpi.MPICH5, "MPICH TCP", _OFI_TCP | _NOLOCAL),
    Stack("shm", Mpi.IMPI, "Intel MPI shm", {"I_MPI_FABRICS": "shm"}),
)


class Provider(Enum):
    """The carrier of the messages."""

    NEARMETAL = "nearmetal"
    STOCK = "stock"


class Library(Enum):
    """The library by which the MPI reaches nearmetal: libfabric or UCX."""

    OFI = "ofi"
    UCX = "ucx"


@dataclass(frozen=True)
class Ucx:
    """The directory of the libraries of UCX, and that of nearmetal's transport for it."""

    libraries: Path
    plugin: Path


@dataclass(frozen=True)
class Request:
    """The wishes of a job to its MPI. Paths are as the nodes see them.

    `provider_directory`: where the nodes have links to providers; None: they see the providers
    themselves. `provider_names`: files in the libraries of the MPI that are providers. `ucx`: the
    MPI uses nearmetal over UCX; None: over libfabric. `stack`: a way of the MPI itself, with the
    stock provider; None: the one over TCP. `one_host`: all nodes share a host, so they meet in
    memory. `libfabric`: the version that the MPI loads, for example (1, 17); None: the one that
    belongs to the MPI. `fabric_providers`: the directory of providers that this libfabric reads by
    itself, if there is one.
    """

    provider: Provider
    library: Path | None = None
    provider_directory: Path | None = None
    channels: tuple[str, ...] | None = None
    crowded: bool = False
    one_host: bool = False
    stack: Stack | None = None
    interface: str = "br0"
    """The network interface of the launcher on the cluster's network; "": by the host's name."""
    provider_names: tuple[str, ...] = ()
    libfabric: tuple[int, int] | None = None
    fabric_providers: Path | None = None
    ucx: Ucx | None = None


@dataclass(frozen=True)
class Settings:
    """Environment for launcher and ranks, and options for the launcher."""

    env: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    providers: tuple[Path, ...] = ()
    """Files that must be linked into `provider_directory`, if there is one; may be empty."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Environment that is set for speed only: the caller's own value comes first."""


def settings_for(installation: Installation, request: Request) -> Settings:
    """Return the settings of one job."""
    makers = {Mpi.MPICH5: _mpich, Mpi.IMPI: _impi}
    made = makers.get(installation.mpi, _openmpi)(installation, request)
    env = dict(made.env)
    if request.stack is not None:
        env |= request.stack.env
    directories = [request.ucx.libraries] if request.ucx else []
    if installation.library_directory is not None:
        directories.append(installation.library_directory)
    if directories:
        env["LD_LIBRARY_PATH"] = ":".join(map(str, directories))
    if request.provider is Provider.NEARMETAL and request.channels is not None:
        env["NEARMETAL_CHANNELS"] = ",".join(request.channels)
    return replace(made, env=env)


def _crowd(request: Request) -> dict[str, str]:
    """Return settings of the provider for ranks that share cores.

    An envelope and its answer each wait for a processor, so larger messages travel with theirs.
    The pools of all ranks of a core pass through its caches together, so each is small.
    """
    if not request.crowded:
        return {}
    return {"NEARMETAL_SHM_EAGER_MAX": "65536", "NEARMETAL_POOL_SIZE": "1048576"}


_NOT_SHARED = {"UCX_TLS": "^posix,sysv,xpmem"}
"""Leaves memory between processes to nearmetal; UCX chooses among its transports for networks."""


def _ucx(ucx: Ucx) -> dict[str, str]:
    """Return the variables of UCX; it separates directories by colons."""
    for path in (ucx.libraries, ucx.plugin):
        if ":" in str(path):
            raise LaunchError(f"{path} contains a colon", "move it to a path without a colon")
    return {"UCX_PLUGIN_PATH": str(ucx.plugin)}


def _openmpi(installation: Installation, request: Request) -> Settings:
    five = installation.mpi is Mpi.OPENMPI5
    # Users are root in their own namespace; Open MPI accepts root only if both are set.
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Windows over UCX would bypass both the provider and TCP, and fail between isolated nodes.
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
        return Settings(env, (*options, *_ob1("sm,tcp" if five else "vader,tcp")))
    if request.ucx is not None:
        # Without an RDMA device, Open MPI does not use UCX unless any transport will do.
        options += ("--mca", "pml", "ucx")
        options += ("--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any")
        if not five:
            # OpenSHMEM of 4.1 ends in a call of a hook whose component it has unloaded.
            options += ("--mca", "opal_common_ucx_opal_mem_hooks", "0")
        return Settings(env | _ucx(request.ucx), options, defaults=_NOT_SHARED)
    include = "opal_common_ofi_provider_include" if five else "mtl_ofi_provider_include"
    options += ("--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", include, "nearmetal")
    env |= _provider_path(installation, request) | {"FI_PROVIDER": "nearmetal,verbs,tcp"}
    defaults = _crowd(request)
    if five and request.one_host:
        # Its collectives for many hosts gather within each node first, to save network traffic.
        # Here all nodes are equally near, and it only adds a hop (docs/design/small-messages.md).
        defaults["OMPI_MCA_coll"] = "^han"
    return Settings(env, options, _providers(installation, request), defaults)


def _mpich(installation: Installation, request: Request) -> Settings:
    if request.provider is Provider.STOCK:
        return Settings(_OFI_TCP)
    if request.ucx is not None:
        # MPICH wants room for the longest message of a transport; its default is 16 KiB.
        env = _netmod("ucx", MPIR_CVAR_CH4_PACK_BUFFER_SIZE="65536") | _NOLOCAL
        return Settings(env | _ucx(request.ucx), defaults=_NOT_SHARED)
    env = _netmod("ofi", FI_PROVIDER="nearmetal,tcp") | _NOLOCAL
    return Settings(env | _provider_path(installation, request), defaults=_crowd(request))


def _impi(installation: Installation, request: Request) -> Settings:
    if request.ucx is not None:
        raise LaunchError(
            "Intel MPI has no transport over UCX of its own: it uses libfabric",
            "run with --fabric ofi, or with --mpi openmpi4, openmpi5 or mpich5",
        )
    env = {"I_MPI_ROOT": str(installation.prefix), "I_MPI_PIN": "0"}
    if request.interface:
        env["I_MPI_HYDRA_IFACE"] = request.interface
    defaults = {"I_MPI_THREAD_YIELD": "3"} if request.crowded else {}
    if request.provider is Provider.STOCK:
        env |= {"I_MPI_OFI_PROVIDER": "tcp", "FI_PROVIDER_PATH": str(installation.prefix / "lib")}
        return Settings(env, defaults=defaults)
    # FI_PROVIDER must be unset: Intel MPI wants it equal to I_MPI_OFI_PROVIDER.
    env |= {"I_MPI_OFI_PROVIDER": "nearmetal", "I_MPI_FABRICS": "ofi"}
    env |= _provider_path(installation, request)
    if request.crowded:
        # Its collectives within a node spin in its own memory and never yield: ranks that share a
        # core wait for the end of each other's time slices (docs/design/figures.md).
        defaults |= {"I_MPI_COLL_INTRANODE": "pt2pt"} | _crowd(request)
    return Settings(env, (), _providers(installation, request), defaults)


def _uses_directory(installation: Installation, request: Request) -> bool:
    """Whether this libfabric only takes a directory, which replaces its own providers."""
    if installation.mpi is Mpi.IMPI:
        return True
    if request.libfabric is not None:
        return request.libfabric < (2, 0)
    return installation.mpi is Mpi.OPENMPI4


def _provider_path(installation: Installation, request: Request) -> dict[str, str]:
    if request.library is None:
        return {}
    if not _uses_directory(installation, request):
        return _path([f"+{request.library}"])
    if request.provider_directory is not None:
        return {"FI_PROVIDER_PATH": str(request.provider_directory)}
    # A link in the rundir would be shorter, but other nodes could replace it. After a directory with
    # providers, Intel's libfabric only reads single libraries.
    if installation.mpi is Mpi.IMPI:
        own = request.fabric_providers or installation.prefix / "lib"
        return _path([str(own), f"+{request.library}"])
    own_places = [] if request.fabric_providers is None else [str(request.fabric_providers)]
    return _path([str(request.library.parent), *own_places])


def _path(places: Sequence[str]) -> dict[str, str]:
    if any(":" in place for place in places):
        raise LaunchError(
            f"{':'.join(places)}: the path of a provider contains a colon",
            "libfabric separates places by colons: move the file with the colon in its path",
        )
    return {"FI_PROVIDER_PATH": ":".join(places)}


def _providers(installation: Installation, request: Request) -> tuple[Path, ...]:
    """Return the files for the provider directory, if there is one: ours, and all of Intel's."""
    if not _uses_directory(installation, request) or request.library is None:
        return ()
    if request.provider_directory is None:
        return ()
    own: tuple[Path, ...] = ()
    if installation.mpi is Mpi.IMPI:
        own = tuple(installation.prefix / "lib" / name for name in request.provider_names)
    return (request.library, *own)


def as_variables(options: Sequence[str]) -> dict[str, str]:
    """Return Open MPI's `--mca NAME VALUE` as variables, for launchers that have no such option."""
    words = list(options)
    return {
        f"OMPI_MCA_{words[i + 1]}": words[i + 2]
        for i, word in enumerate(words)
        if word == "--mca" and i + 2 < len(words)
    }


def unset_for(installation: Installation) -> tuple[str, ...]:
    """Return the variables that must not reach a job of this MPI from outside."""
    names = ("FI_PROVIDER", "FI_PROVIDER_PATH", "LD_LIBRARY_PATH", "NEARMETAL_RUNDIR")
    if installation.mpi.family is Family.MPICH:
        return (*names, "I_MPI_OFI_PROVIDER", "I_MPI_FABRICS")
    return names
