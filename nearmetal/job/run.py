# SPDX-License-Identifier: Apache-2.0
"""One MPI job in a cluster: prepare it, run it, collect its counters, leave nothing behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from nearmetal.cluster.backend import Backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.process import Runner
from nearmetal.core.resources import heap_library, provider_library
from nearmetal.core.ssh import NO_CONNECTION
from nearmetal.evidence.counters import NETWORK, SELF
from nearmetal.image import GUEST_PROVIDER
from nearmetal.job.collectives import read_rules
from nearmetal.job.copies import carried, guest_mpi, is_local, with_ucx
from nearmetal.job.guards import guarded, later, lost_words, patience
from nearmetal.job.locality import known_channels
from nearmetal.job.mpi import (
    Installation,
    Library,
    MapBy,
    Placement,
    Provider,
    Request,
    Stack,
    Ucx,
    launcher_argv,
    pick,
    settings_for,
)
from nearmetal.job.mpi.installed import Family
from nearmetal.job.mpi.launcher import place
from nearmetal.job.mpi.settings import unset_for
from nearmetal.job.places import (
    MARKER,
    Places,
    Wanted,
    end_stale,
    new_name,
    places_for,
    surely,
)
from nearmetal.job.scripts import LINKS
from nearmetal.job.stats import JobVerdict, Proof, judge
from nearmetal.job.ucx import find_ucx

_GUEST_PASSED = ("LANG", "LC_ALL", "TERM", "MV2_VIRT_USE_IVSHMEM")
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", *_GUEST_PASSED)
_MCA = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
_PASSED_PREFIXES = ("NEARMETAL_", *_MCA, "MPIR_CVAR_", "I_MPI_", "FI_", "UCX_")
_NOT_PASSED = ("NEARMETAL_STATE_DIR", "NEARMETAL_MPI_PATH", "NEARMETAL_PROVIDER_LIB")
_CHECK_S = 20.0


@dataclass(frozen=True)
class JobRequest:
    """A program and its options. `ranks` None: one per slot. `mpi` None: the first that fits."""

    program: str
    args: tuple[str, ...] = ()
    mpi: str | None = None
    ranks: int | None = None
    map_by: MapBy = MapBy.SLOT
    env: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[str, ...] | None = None
    provider: Provider = Provider.NEARMETAL
    heap: bool = False
    """Large allocations of the ranks lie in memory that their neighbours read."""
    fabric: Library = Library.OFI
    timeout_s: float | None = None
    idle_s: float | None = None
    """End the job after it has written nothing for this time."""
    options: tuple[str, ...] = ()
    """Further options for the MPI's launcher, before the program."""
    nodes: tuple[str, ...] = ()
    """Only these nodes take ranks; empty: all."""
    stack: Stack | None = None
    """A way of the MPI itself, with the stock provider."""
    collectives: Path | None = None
    """A directory of `nearmetal tune collectives` with the rules of the MPI."""


@dataclass(frozen=True)
class Output:
    """The streams of a job; None: ours (input: nothing)."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None


@dataclass(frozen=True)
class JobResult:
    """The end of a job. `exit_code`: of the rank that failed first; 128 + signal for a signal.

    `lost`: what ended without a report to the launcher, which then does not speak of it.
    """

    job: str
    mpi: str
    provider: str
    exit_code: int
    lost: str
    timed_out: bool
    seconds: float
    ranks: tuple[tuple[str, int], ...]
    argv: tuple[str, ...]
    env: dict[str, str]
    stats: tuple[dict[str, Any], ...]
    proof: Proof


def find_job_program(program: str) -> Path:
    """Return the program's absolute path; raises LaunchError with the places that it looked in."""
    if "/" in program:
        path = Path(program).absolute()
        if not path.exists():
            raise LaunchError(f"no program {program}: {path} does not exist", "check the path")
        if not os.access(path, os.X_OK) or path.is_dir():
            raise LaunchError(f"{path} is not an executable program", f"run `chmod +x {path}`")
        return path
    found = shutil.which(program)
    if found is None:
        looked = os.environ.get("PATH", "")
        raise LaunchError(
            f"no program {program}: looked in {looked}", f"give a path, for example ./{program}"
        )
    return Path(found).absolute()


def _inherited(installation: Installation, names: Sequence[str]) -> dict[str, str]:
    """Return the variables of this process that a job gets: few, and none that selects an MPI."""
    unset = (*unset_for(installation), *_NOT_PASSED)
    return {
        name: value
        for name, value in os.environ.items()
        if (name in names or name.startswith(_PASSED_PREFIXES)) and name not in unset
    }


def check_channels(channels: Sequence[str] | None, runner: Runner) -> None:
    """Refuse an unknown channel early; without a list, the provider refuses it."""
    known = known_channels(runner) if channels else None
    for channel in channels or ():
        if known is not None and channel not in known:
            raise UsageError(f"unknown channel {channel!r}", f"use a list of {','.join(known)}")


def check_visible(backend: Backend, runner: Runner, node: str, path: Path, what: str) -> None:
    """Raise LaunchError if a node does not see a file; `what` names it."""
    probe = backend.on_node(node, ["test", "-r", str(path)], env={"PATH": "/usr/bin:/bin"})
    if runner.run(probe, timeout_s=_CHECK_S).code != 0:
        raise LaunchError(
            f"{what} {path} is not visible in node {node}: /tmp, /run and /dev/shm are its own",
            "move it to another place, or list its directory under `show:` in the spec",
        )


def _ucx(request: JobRequest, runner: Runner) -> Ucx | None:
    """Return UCX for a job over it; raises UsageError or LaunchError."""
    if request.fabric is Library.OFI:
        return None
    if request.provider is Provider.STOCK:
        raise UsageError("--fabric ucx and --provider stock exclude each other", "leave one out")
    if request.heap:
        raise UsageError(
            "--heap serves libfabric only: UCX does not read the heap",
            "leave out --heap or --fabric ucx",
        )
    return find_ucx(runner)


def crowded(spec: ClusterSpec, backend: Backend, placement: Placement) -> bool:
    """Whether ranks share cores, so that waiting ones must yield."""
    ranks = dict(placement.ranks)
    load: dict[int, int] = {}
    for node in backend.status():
        count = ranks.get(node.name, 0)
        if count > max(len(node.cpus), node.own_cpus):
            return True
        for cpu in node.cpus if count else ():
            load[cpu] = load.get(cpu, 0) + 1
    return any(users > 1 for users in load.values()) or placement.total > spec.slots


def meets_in_memory(
    spec: ClusterSpec, placement: Placement, channels: Sequence[str] | None, *, apart: bool
) -> bool:
    """Whether all ranks share a host and may use its memory, as containers or as machines.

    `apart`: the infrastructure gives nodes of one host no common memory.
    """
    nodes = dict(placement.ranks)
    if apart and len(nodes) > 1:
        return False
    used = {host.name for host, node in spec.nodes if node.name in nodes}
    return len(used) == 1 and (channels is None or not {SELF, NETWORK}.issuperset(channels))


def _preload(
    backend: Backend, request: JobRequest, runner: Runner, node: str, others: str
) -> dict[str, str]:
    """Return the environment that gives the ranks a heap, before the OTHERS that they preload."""
    if not request.heap:
        return {}
    if request.provider is not Provider.NEARMETAL:
        raise UsageError("--heap serves nearmetal only", "leave out --heap or --provider stock")
    if not backend.shares_files:
        raise UsageError(
            "--heap serves containers of one kernel, and these nodes are virtual machines",
            "leave out --heap",
        )
    library = heap_library()
    check_visible(backend, runner, node, library, "library")
    return {"LD_PRELOAD": ":".join(word for word in (str(library), others) if word)}


def _rules(
    backend: Backend,
    request: JobRequest,
    installation: Installation,
    runner: Runner,
    placement: Placement,
) -> dict[str, str]:
    """Return the variables of the rules for collectives; raises UsageError or LaunchError."""
    if request.collectives is None:
        return {}
    if not backend.shares_files:
        raise UsageError(
            "--collectives serves containers, and these nodes are virtual machines with an MPI of "
            "their own",
            "leave out --collectives",
        )
    saved = read_rules(request.collectives, installation)
    if saved.ranks not in (None, placement.total):
        raise UsageError(
            f"{request.collectives} has rules of {installation.mpi.title} for {saved.ranks} ranks, "
            f"and they would serve these {placement.total} as well",
            f"run with -n {saved.ranks}, or leave out --collectives",
        )
    if saved.file is not None:
        check_visible(backend, runner, placement.ranks[0][0], saved.file, "the rules")
    return saved.variables


@dataclass(frozen=True)
class _Prepared:
    """A job that can be started: all checks are done, nothing is made yet."""

    job: str
    installation: Installation
    placement: Placement
    directories: Places
    wanted: Wanted
    env: dict[str, str]
    argv: tuple[str, ...]
    shown_env: dict[str, str]


def _prepare(backend: Backend, spec: ClusterSpec, request: JobRequest, runner: Runner) -> _Prepared:
    """Check everything that can be wrong before the start; raises UsageError or LaunchError."""
    check_channels(request.channels, runner)
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
    root = backend.job_root()
    wanted = Wanted()
    library, provider_names = None, installation.provider_names
    ucx = _ucx(request, runner)
    if request.provider is Provider.NEARMETAL and ucx is None:
        library = provider_library() if shared else Path(GUEST_PROVIDER)
    if shared:
        check_visible(backend, runner, first, program, "program")
        if library is not None:
            check_visible(backend, runner, first, library, "provider")
        if ucx is not None:
            check_visible(backend, runner, first, ucx.libraries, "UCX")
            check_visible(backend, runner, first, ucx.plugin, "the transport for UCX")
    else:
        found = program if local else None
        taken = with_ucx(root, carried(root, job, found, request.program, installation), ucx)
        program, installation, ucx = taken.program, taken.installation, taken.ucx
        seen = (None if local else program, library)
        wanted = Wanted(files=taken.files, seen=tuple(path for path in seen if path is not None))
    asked = Request(
        provider=request.provider,
        library=library,
        provider_directory=None if shared else root / f"{job}{LINKS}",
        provider_names=provider_names,
        channels=request.channels,
        crowded=crowded(spec, backend, placement),
        one_host=meets_in_memory(spec, placement, request.channels, apart=bool(backend.apart)),
        stack=request.stack,
        interface=backend.interface,
        ucx=ucx,
    )
    settings = settings_for(installation, asked)
    own = {
        MARKER: job,
        "NEARMETAL_RUNDIR": str(root / job),
        "NEARMETAL_STATS_DIR": str(root / f"{job}.stats"),
        "TMPDIR": str(directories.tmp),
    }
    env = {"PATH": "/usr/bin:/bin"} | settings.defaults
    env |= _inherited(installation, _PASSED if shared else _GUEST_PASSED)
    rules = _rules(backend, request, installation, runner, placement)
    preload = _preload(backend, request, runner, first, request.env.get("LD_PRELOAD", ""))
    env |= settings.env | rules | own | dict(request.env) | preload
    options = (*settings.options, *request.options)
    if not shared and installation.mpi.family is Family.OPENMPI:
        # Its daemons start over ssh, which does not pass on the launcher's environment.
        options += tuple(word for name in env if name != "PATH" for word in ("-x", name))
    command = (str(program), *request.args)
    argv = launcher_argv(installation, placement, backend.remote_shell(), options, command)
    return _Prepared(
        job,
        installation,
        placement,
        directories,
        replace(wanted, providers=settings.providers),
        env,
        tuple(argv),
        {
            name: env[name]
            for name in (*settings.defaults, *settings.env, *rules, *own, *request.env, *preload)
        },
    )


def run_job(
    backend: Backend,
    spec: ClusterSpec,
    request: JobRequest,
    runner: Runner,
    output: Output | None = None,
) -> JobResult:
    """Run one job to its end, for any cause of the end, and leave nothing of it behind.

    Raises UsageError or LaunchError if it cannot be started. A failed job is a result.
    """
    end_stale(backend, spec, runner)
    prepared = _prepare(backend, spec, request, runner)
    patience_s = patience(prepared.env)
    command = backend.on_launcher(
        prepared.argv, env=prepared.env, workdir=Path.cwd(), patience_s=patience_s
    )
    streams = output or Output()
    directories = prepared.directories
    try:
        guards = directories.guards(later(request.timeout_s), patience_s)
        with guarded(guards, runner, streams.stderr) as gone:
            directories.make(prepared.wanted)
            completed = runner.attach(
                command,
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                timeout_s=request.timeout_s,
                idle_s=request.idle_s,
            )
            # A node that died and so failed the job has no counters: that is no second failure.
            stats = directories.stats(required=completed.code == 0)
            failure = directories.first_failure()
    finally:
        surely(directories.end)
    code = completed.code if completed.code >= 0 else 128 - completed.code
    if completed.code < 0 and not (failure and failure.node):
        failure = None  # the launcher was killed, and the ranks ended after it
    # Open MPI may report success although a daemon was killed together with its ranks.
    lost = ""
    if failure is not None and (code != 0 or failure.lost) and not completed.timed_out:
        code, lost = failure.code, failure.lost
    if code != 0 and not completed.timed_out and not backend.shares_files:
        nodes = list(dict(prepared.placement.ranks))
        silent = [nodes[number] for number in gone]
        if not silent and failure is None and code == NO_CONNECTION:
            silent = [spec.nodes[0][1].name]  # the launcher's
        lost = lost_words(silent, patience_s) or lost
    return JobResult(
        job=prepared.job,
        mpi=prepared.installation.mpi.value,
        provider=request.provider.value,
        exit_code=code,
        lost=lost,
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
        return Proof(JobVerdict.NOT_ASKED, "the MPI's own stack was requested")
    if code != 0:
        return Proof(JobVerdict.NOT_ASKED, "the job failed")
    if "NEARMETAL_STATS_DIR" in request.env:
        kept = request.env["NEARMETAL_STATS_DIR"]
        return Proof(JobVerdict.NOT_ASKED, f"--env puts the statistics into {kept}")
    return judge(stats, placement.total)
