# SPDX-License-Identifier: Apache-2.0
"""One MPI job in a cluster: prepared, started, ended, its counters collected, nothing left."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.evidence.counters import NETWORK, SELF
from nearmetal.image import GUEST_PROVIDER
from nearmetal.job.carried import carried, guest_mpi, is_local
from nearmetal.job.locality import known_channels
from nearmetal.job.mpi import (
    Installation,
    MapBy,
    Placement,
    Provider,
    Request,
    Settings,
    Stack,
    launcher_argv,
    pick,
    settings_for,
)
from nearmetal.job.mpi.installed import Family, Mpi
from nearmetal.job.mpi.launcher import place
from nearmetal.job.mpi.provider import provider_library
from nearmetal.job.mpi.settings import unset_for
from nearmetal.job.places import Places, Wanted, end_stale, places_for
from nearmetal.job.stale import MARKER, new_name, surely
from nearmetal.job.stats import Proof, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.core.process import Runner

_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TERM", "MV2_VIRT_USE_IVSHMEM")
_PASSED_PREFIXES = (
    "NEARMETAL_",
    "OMPI_MCA_",
    "PRTE_MCA_",
    "PMIX_MCA_",
    "MPIR_CVAR_",
    "I_MPI_",
    "FI_",
    "UCX_",
)
_NOT_PASSED = ("NEARMETAL_STATE_DIR", "NEARMETAL_MPI_PATH", "NEARMETAL_PROVIDER_LIB")
_CHECK_S = 20.0


@dataclass(frozen=True)
class JobRequest:
    """What to run and how. `ranks` None: one per slot. `mpi` None: the first that fits."""

    program: str
    args: tuple[str, ...] = ()
    mpi: str | None = None
    ranks: int | None = None
    map_by: MapBy = MapBy.SLOT
    env: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[str, ...] | None = None
    provider: Provider = Provider.NEARMETAL
    timeout_s: float | None = None
    idle_s: float | None = None
    """End it when it has written nothing for so long."""
    options: tuple[str, ...] = ()
    """Further options for the MPI's launcher, before the program."""
    nodes: tuple[str, ...] = ()
    """Only these nodes take ranks; empty: all."""
    stack: Stack | None = None
    """One of the MPI's own ways, with the stock provider."""


@dataclass(frozen=True)
class Output:
    """Where a job's streams go; None: to ours (input: nothing)."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None


@dataclass(frozen=True)
class JobResult:
    """How a job ended. `exit_code`: of the rank that failed first; 128 + signal for a signal."""

    job: str
    mpi: str
    provider: str
    exit_code: int
    timed_out: bool
    seconds: float
    ranks: tuple[tuple[str, int], ...]
    argv: tuple[str, ...]
    env: dict[str, str]
    stats: tuple[dict[str, Any], ...]
    proof: Proof


def find_job_program(program: str) -> Path:
    """Return the program's absolute path; raises LaunchError that says where it looked."""
    if "/" in program:
        path = Path(program).absolute()
        if not path.exists():
            raise LaunchError(f"no program {program}: {path} does not exist", "check the path")
        if not os.access(path, os.X_OK) or path.is_dir():
            raise LaunchError(f"{path} is no executable program", f"chmod +x {path}?")
        return path
    found = shutil.which(program)
    if found is None:
        looked = os.environ.get("PATH", "")
        raise LaunchError(
            f"no program {program}: looked in {looked}", f"give a path, as ./{program}"
        )
    return Path(found).absolute()


def _job_environment(
    installation: Installation,
    extra: Mapping[str, str],
    defaults: Mapping[str, str],
    given: Mapping[str, str],
    *,
    passed: tuple[str, ...] = _PASSED,
) -> dict[str, str]:
    """Return the whole environment of a job: little of ours, the settings, the caller's wish."""
    unset = (*unset_for(installation), *_NOT_PASSED)
    env = dict(defaults) | {
        name: value
        for name, value in os.environ.items()
        if (name in passed or name.startswith(_PASSED_PREFIXES)) and name not in unset
    }
    env.setdefault("PATH", "/usr/bin:/bin")
    env |= extra
    env |= given
    return env


def _check_channels(channels: Sequence[str] | None, runner: Runner) -> None:
    """Refuse an unknown channel early; without a list, the provider refuses it."""
    known = known_channels(runner) if channels else None
    for channel in channels or ():
        if known is not None and channel not in known:
            raise UsageError(f"unknown channel {channel!r}", f"use a list of {','.join(known)}")


def _check_visible(backend: Backend, runner: Runner, node: str, path: Path, what: str) -> None:
    probe = backend.on_node(node, ["test", "-r", str(path)], env={"PATH": "/usr/bin:/bin"})
    if runner.run(probe, timeout_s=_CHECK_S).code != 0:
        raise LaunchError(
            f"{what} {path} cannot be seen in node {node}: /tmp, /run and /dev/shm are its own",
            "put it elsewhere, or list its directory under `show:` in the spec",
        )


def crowded(spec: ClusterSpec, backend: Backend, placement: Placement) -> bool:
    """Whether ranks share cores, so that waiting ones must yield."""
    ranks = dict(placement.ranks)
    load: dict[int, int] = {}
    for node in backend.status():
        count = ranks.get(node.name, 0)
        if count > len(node.cpus):
            return True
        for cpu in node.cpus if count else ():
            load[cpu] = load.get(cpu, 0) + 1
    return any(users > 1 for users in load.values()) or placement.total > spec.slots


def _meets_in_memory(
    spec: ClusterSpec, placement: Placement, channels: Sequence[str] | None
) -> bool:
    """Whether all ranks share a host and may use its memory, as containers or as machines."""
    nodes = dict(placement.ranks)
    used = {host.name for host, node in spec.nodes if node.name in nodes}
    return len(used) == 1 and (channels is None or not {SELF, NETWORK}.issuperset(channels))


@dataclass(frozen=True)
class _Prepared:
    """A job that can be started: everything has been checked, nothing has been made."""

    job: str
    installation: Installation
    placement: Placement
    settings: Settings
    directories: Places
    env: dict[str, str]
    argv: tuple[str, ...]
    shown_env: dict[str, str]
    wanted: Wanted


def _prepare(backend: Backend, spec: ClusterSpec, request: JobRequest, runner: Runner) -> _Prepared:
    """Check all that can be wrong before the start; raises UsageError or LaunchError."""
    _check_channels(request.channels, runner)
    shared = backend.shares_files
    local = shared or is_local(request.program)
    program = find_job_program(request.program) if local else Path(request.program)
    if shared:
        installation = pick(request.mpi, program)
    else:
        installation = guest_mpi(request.mpi, program if local else None)
    slots = [
        (n.name, n.slots) for _, n in spec.nodes if n.name in request.nodes or not request.nodes
    ]
    placement = place(slots, request.ranks, request.map_by)
    nodes = dict(placement.ranks)
    dead = [n for n in backend.status() if n.name in nodes and not n.healthy]
    if dead:
        raise LaunchError(f"node {dead[0].name}: {dead[0].health}")
    first = placement.ranks[0][0]
    job = new_name("job")
    directories = places_for(backend, spec, tuple(nodes), job, runner)
    wanted = Wanted()
    library = None
    if request.provider is Provider.NEARMETAL:
        library = provider_library() if shared else Path(GUEST_PROVIDER)
    if shared:
        _check_visible(backend, runner, first, program, "program")
        if library is not None:
            _check_visible(backend, runner, first, library, "provider")
    else:
        found = program if local else None
        taken = carried(backend.job_root(), job, found, request.program, installation)
        program, installation = taken.program, taken.installation
        seen = [path for path in (None if local else program, library) if path is not None]
        wanted = Wanted(files=taken.files, seen=tuple(seen))
    root = backend.job_root()
    asked = Request(
        provider=request.provider,
        library=library,
        provider_directory=root / f"{job}.providers",
        channels=request.channels,
        crowded=crowded(spec, backend, placement),
        one_host=_meets_in_memory(spec, placement, request.channels),
        stack=request.stack,
        interface="br0" if shared else "eth0",
    )
    settings = settings_for(installation, asked)
    own = {
        MARKER: job,
        "NEARMETAL_RUNDIR": str(root / job),
        "NEARMETAL_STATS_DIR": str(root / f"{job}.stats"),
    }
    passed = _PASSED if shared else ("LANG", "LC_ALL", "TERM", "MV2_VIRT_USE_IVSHMEM")
    env = _job_environment(
        installation, settings.env | own, settings.defaults, request.env, passed=passed
    )
    options = (*settings.options, *request.options)
    if not shared and installation.mpi.family is Family.OPENMPI:
        # Its daemons start over ssh, which takes nothing of the launcher's environment along.
        options += tuple(word for name in env if name != "PATH" for word in ("-x", name))
    command = (str(program), *request.args)
    argv = launcher_argv(installation, placement, backend.remote_shell(), options, command)
    return _Prepared(
        job,
        installation,
        placement,
        settings,
        directories,
        env,
        tuple(argv),
        {name: env[name] for name in (*settings.defaults, *settings.env, *own, *request.env)},
        replace(wanted, providers=tuple(settings.providers)),
    )


def run_job(
    backend: Backend,
    spec: ClusterSpec,
    request: JobRequest,
    runner: Runner,
    output: Output | None = None,
) -> JobResult:
    """Run one job to its end, whatever ends it, and leave nothing of it behind.

    Raises UsageError or LaunchError when it cannot be started. A job that fails is a result.
    """
    end_stale(backend, spec, runner)
    prepared = _prepare(backend, spec, request, runner)
    command = backend.on_launcher(prepared.argv, env=prepared.env, workdir=Path.cwd())
    streams = output or Output()
    directories = prepared.directories
    try:
        directories.make(prepared.wanted)
        completed = runner.attach(
            command,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            timeout_s=request.timeout_s,
            idle_s=request.idle_s,
        )
        stats, failure = directories.stats(), directories.first_failure()
    finally:
        surely(directories.end)
    code = completed.code if completed.code >= 0 else 128 - completed.code
    if code != 0 and failure is not None and not completed.timed_out:
        code = failure
    return JobResult(
        job=prepared.job,
        mpi=prepared.installation.mpi.value,
        provider=request.provider.value,
        exit_code=code,
        timed_out=completed.timed_out,
        seconds=completed.seconds,
        ranks=prepared.placement.ranks,
        argv=prepared.argv,
        env=prepared.shown_env,
        stats=tuple(stats),
        proof=_prove(request, prepared.placement, code, stats),
    )


def _prove(
    request: JobRequest, placement: Placement, code: int, stats: Sequence[dict[str, Any]]
) -> Proof:
    if request.provider is Provider.STOCK:
        return Proof(Verdict.NOT_ASKED, "the MPI's own stack was asked for")
    if code != 0:
        return Proof(Verdict.NOT_ASKED, "the job did not end well")
    return judge(stats, placement.total)


def known_names() -> tuple[str, ...]:
    """Return the names `--mpi` takes."""
    return tuple(mpi.value for mpi in Mpi)
