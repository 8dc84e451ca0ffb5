# SPDX-License-Identifier: Apache-2.0
"""The diagnoses of `nearmetal doctor`: facts in, one sentence and one command out. Pure.

The identifier of a diagnosis never changes: scripts of sites refer to it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nearmetal.job.mpi import Mpi
from nearmetal.job.site.exported import Exported
from nearmetal.job.site.found import FoundMpi, Libfabric
from nearmetal.job.site.machine import SHM, MachineFacts

_OLDEST, _NEWEST = (1, 17), (2, 5)
"""The versions of libfabric that the provider runs with."""

_ENDPOINT_LOCKED = 9 << 20
_PEER_LOCKED = 2 << 20
"""Locked memory over verbs, see fi_nearmetal(7)."""

_SHM_ENOUGH = 64 << 20
_NODE_PEERS = 64


class Rating(Enum):
    """How good it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Diagnosis:
    """One finding: its identifier, grade, sentence, and a command that helps ("" for none)."""

    id: str
    grade: Rating
    words: str
    remedy: str = ""


def _ok(name: str, words: str) -> Diagnosis:
    return Diagnosis(name, Rating.OK, words)


def of_mpi(mpi: FoundMpi) -> Diagnosis:
    """Say which MPI is examined."""
    if mpi.launcher is None:
        words = f"{mpi.title}, by {mpi.source}; {'; '.join(mpi.unknown)}"
        prefix = shlex.quote(str(mpi.installation.prefix))
        return Diagnosis("mpi", Rating.WARN, words, f"nearmetal doctor {prefix}")
    return _ok("mpi", f"{mpi.title}, by {mpi.source}")


def of_ofi(mpi: FoundMpi, again: str) -> Diagnosis:
    """Say whether the MPI is built with libfabric. `again`: the command line with another MPI."""
    name = "mpi-ofi"
    if mpi.installation.mpi is Mpi.IMPI:
        return _ok(name, "Intel MPI always uses libfabric")
    if mpi.device:
        kind = f"MPICH's device is {mpi.device}"
        fix = f"use an MPICH that is configured with --with-device=ch4:ofi: {again}"
    else:
        kind = f"its component mtl/ofi is {'there' if mpi.ofi else 'missing'}"
        fix = f"use an Open MPI that is configured with --with-ofi: {again}"
    if mpi.ucx:
        fix = f"nearmetal doctor --fabric ucx: it can use UCX; or {fix}"
    if mpi.ofi:
        return _ok(name, f"{mpi.title} can use libfabric: {kind}")
    return Diagnosis(name, Rating.FAIL, f"{mpi.title} cannot use libfabric: {kind}", fix)


def of_provider(library: Path, *, everyone: bool) -> Diagnosis:
    """Say which provider is used, and whether other users can read it."""
    if everyone:
        return _ok("provider", f"{library}")
    words = f"{library} is not readable for other users, so their jobs cannot load it"
    return Diagnosis("provider", Rating.WARN, words, f"chmod o+r {shlex.quote(str(library))}")


def of_libfabric(libfabric: Libfabric | None) -> Diagnosis:
    """Say which libfabric the MPI loads."""
    name = "libfabric"
    if libfabric is None:
        words = "the libfabric that this MPI loads was not found"
        return Diagnosis(name, Rating.FAIL, words, "ldd LIBMPI; load the module of libfabric")
    whose = "the MPI's own" if libfabric.own else "the system's"
    words = f"{libfabric.title}, {whose}: {libfabric.path}"
    if libfabric.version < _OLDEST:
        words = f"{words}: it is too old, the provider needs 1.17"
        return Diagnosis(name, Rating.FAIL, words, "use an MPI with libfabric 1.17 or newer")
    if libfabric.version > _NEWEST:
        words = f"{words}: newer than 2.5, which the provider was not tried with"
        return Diagnosis(name, Rating.WARN, words, "nearmetal doctor (without --no-run)")
    return _ok(name, words)


def of_loading(seen: Libfabric | None, said: str, library: Path) -> Diagnosis:
    """Say whether this libfabric offers the provider with the exported variables."""
    name = "provider-loads"
    if seen is None or not seen.nearmetal:
        words = "libfabric does not load the provider" + (f": {said}" if said else "")
        return Diagnosis(name, Rating.FAIL, words, "FI_LOG_LEVEL=info nearmetal doctor --no-run")
    if "nearmetal" not in seen.providers:
        words = "libfabric loads the provider, which offers no endpoints" + (
            f": {said}" if said else ""
        )
        return Diagnosis(name, Rating.FAIL, words, "NEARMETAL_LOG=info nearmetal doctor --no-run")
    if Path(seen.nearmetal).resolve() != library.resolve():
        words = f"libfabric loads another provider: {seen.nearmetal}"
        fix = f"export NEARMETAL_PROVIDER_LIB={shlex.quote(seen.nearmetal)}"
        return Diagnosis(name, Rating.WARN, words, fix)
    return _ok(name, f"{seen.title} offers nearmetal with the variables of `nearmetal env`")


def of_environment(found: Exported, env: Mapping[str, str], again: str) -> Diagnosis:
    """Say whether this shell already selects the provider. `again`: arguments for `env`."""
    name = "environment"
    wanted = found.applied(env)
    lacking = [key for key in sorted(wanted) if wanted[key] != env.get(key)]
    wrong = [key for key in found.unset if key in env]
    if not lacking and not wrong:
        return _ok(name, "this shell has the variables that select the provider")
    parts = [f"without {', '.join(lacking)}"] if lacking else []
    parts += [f"with {', '.join(wrong)}, which must not be set"] if wrong else []
    words = f"this shell is {' and '.join(parts)}: the MPI selects another way by itself"
    return Diagnosis(name, Rating.WARN, words, f'eval "$(nearmetal env{again})"')


def of_info() -> Diagnosis:
    """Say that the machine could not be examined."""
    words = "nearmetal-info is missing or does not answer, so this machine is not examined"
    return Diagnosis(
        "machine", Rating.FAIL, words, "nearmetal-info; set NEARMETAL_INFO to its path"
    )


def of_rundir(facts: MachineFacts) -> Diagnosis:
    """Say where ranks of this host meet."""
    words = f"{facts.rundir}: {facts.rundir_usable.reason}"
    if facts.rundir_usable.good:
        return _ok("rundir", words)
    fix = "export NEARMETAL_RUNDIR=DIR, with DIR of mode 0700, owned by the user of the ranks"
    return Diagnosis("rundir", Rating.FAIL, words, fix)


def of_window(facts: MachineFacts) -> Diagnosis:
    """Say whether shared memory can be made."""
    if facts.window.good:
        return _ok("window", facts.window.reason)
    return Diagnosis("window", Rating.FAIL, facts.window.reason, "ulimit -f unlimited -v unlimited")


def of_shm(facts: MachineFacts) -> Diagnosis:
    """Say whether /dev/shm has room: for the rundir, and for the MPI's own files."""
    name, fix = "shm", f"mount -o remount,size=1g {SHM}; for a container: --shm-size=1g"
    if facts.shm_free is None:
        return Diagnosis(name, Rating.FAIL, f"{SHM} is missing or not writable", fix)
    free = f"{SHM} has {facts.shm_free >> 20} MiB free"
    if facts.shm_free < _SHM_ENOUGH:
        words = f"{free}: MPIs keep their own files there, and stop if it is full"
        return Diagnosis(name, Rating.WARN, words, fix)
    return _ok(name, free)


def of_memlock(facts: MachineFacts) -> Diagnosis:
    """Say whether memory may be locked, which verbs needs."""
    name = "memlock"
    limit = "no limit" if facts.memlock is None else f"{facts.memlock >> 10} KiB"
    if not facts.rdma:
        return _ok(name, f"{limit} of locked memory; without an RDMA device, none is needed")
    if facts.memlock is None or facts.memlock >= _ENDPOINT_LOCKED + _NODE_PEERS * _PEER_LOCKED:
        return _ok(name, f"{limit} of locked memory for {', '.join(facts.rdma)}")
    peers = max(0, (facts.memlock - _ENDPOINT_LOCKED) // _PEER_LOCKED)
    words = f"{limit} of locked memory: over verbs, that is enough for {peers} peers of a rank"
    return Diagnosis(name, Rating.WARN, words, "ulimit -l unlimited")


def of_cma(facts: MachineFacts) -> Diagnosis:
    """Say whether the kernel copies between processes."""
    name = "cma"
    if facts.cma.good:
        return _ok(name, f"the kernel copies between processes: {facts.cma.reason}")
    words = f"large messages are copied twice, the kernel does not help: {facts.cma.reason}"
    fix = "for a container: --cap-add=SYS_PTRACE"
    if facts.yama:
        fix = "sysctl -w kernel.yama.ptrace_scope=0"
    return Diagnosis(name, Rating.WARN, words, fix)


def of_user_namespaces(facts: MachineFacts) -> Diagnosis:
    """Say whether users can make containers."""
    name = "user-namespaces"
    if facts.user_namespaces.good:
        return _ok(name, "processes may make user namespaces, so users can run containers")
    words = f"users cannot make containers without root: {facts.user_namespaces.reason}"
    fix = "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
    return Diagnosis(name, Rating.WARN, words, fix)


def of_segment(facts: MachineFacts) -> Diagnosis:
    """Say whether this virtual machine shares memory with others."""
    name = "segment"
    if facts.segment.good:
        return _ok(name, f"virtual machines of this host share memory: {facts.segment.reason}")
    if facts.shared_devices:
        words = f"{', '.join(facts.shared_devices)} may be shared memory: {facts.segment.reason}"
        return Diagnosis(name, Rating.WARN, words, "nearmetal-guest segment")
    return _ok(name, "no device for memory that virtual machines share")


def of_tuning(facts: MachineFacts) -> Diagnosis:
    """Say which rates the provider uses."""
    name = "tuning"
    if facts.tuning_file and not facts.tuning.good:
        words = f"{facts.tuning_file} is refused: {facts.tuning.reason}"
        return Diagnosis(name, Rating.WARN, words, "nearmetal tune")
    return _ok(name, ": ".join(filter(None, (facts.tuning_file, facts.tuning.reason))))


def inner_network(seen: Libfabric | None) -> str:
    """Return the inner provider for peers on other hosts; "" for none."""
    names = seen.providers if seen is not None else ()
    return next((n for n in ("verbs;ofi_rxm", "tcp", "tcp;ofi_rxm") if n in names), "")


def of_network(seen: Libfabric | None, facts: MachineFacts) -> Diagnosis:
    """Say how messages reach other hosts."""
    name, inner = "network", inner_network(seen)
    if not inner:
        words = "libfabric offers neither tcp nor verbs: ranks on other hosts cannot be reached"
        return Diagnosis(name, Rating.FAIL, words, "fi_info; add tcp to FI_PROVIDER")
    if facts.rdma and not inner.startswith("verbs"):
        words = f"other hosts are reached by {inner}, although there is {', '.join(facts.rdma)}"
        fix = "ibv_devinfo; for verbs add it to FI_PROVIDER: FI_PROVIDER=nearmetal,verbs,tcp"
        return Diagnosis(name, Rating.WARN, words, fix)
    return _ok(name, f"other hosts are reached by {inner}")


def of_meeting(facts: MachineFacts, seen: Libfabric | None) -> Diagnosis:
    """Say which ranks would meet which, and by what."""
    name = "meeting"
    inner = inner_network(seen) or "nothing"
    if not (facts.rundir_usable.good and facts.window.good):
        words = f"ranks of this host do not meet in memory; all messages go by {inner}"
        return Diagnosis(name, Rating.FAIL, words, "nearmetal-info")
    segment = "meet in the segment" if facts.segment.good else f"are reached by {inner}"
    words = (
        f"ranks of user {facts.uid} that see {facts.rundir} meet in shared memory; "
        f"containers with another {facts.rundir} are reached by {inner}; "
        f"virtual machines of this host {segment}; other hosts are reached by {inner}"
    )
    return _ok(name, words)
