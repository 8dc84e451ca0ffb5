# SPDX-License-Identifier: Apache-2.0
"""`nearmetal doctor`: all diagnoses of this machine and one MPI, in their order."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nearmetal.core.errors import NearmetalError
from nearmetal.core.process import Command, Runner
from nearmetal.core.resources import provider_library, ucx_transport
from nearmetal.core.text import printable
from nearmetal.evidence.counters import NETWORK, SELF
from nearmetal.job.mpi import Family, Library
from nearmetal.job.site import diagnoses as say
from nearmetal.job.site import doctor_ucx as about_ucx
from nearmetal.job.site.diagnoses import Diagnosis, Rating
from nearmetal.job.site.exported import Exported, exported
from nearmetal.job.site.found import FoundMpi, Libfabric, find_mpi, look_again, look_for_ucx
from nearmetal.job.site.hello import RANKS
from nearmetal.job.site.machine import MachineFacts, read_machine
from nearmetal.job.stats import JobVerdict, judge, read_stats
from nearmetal.job.ucx import VERSION, find_ucx

_T = TypeVar("_T")

_HELLO = Path(__file__).with_name("hello.py")
_HELLO_S = 120.0
_SCHEDULERS = ("SLURM_", "PBS_", "LSB_", "PMI_", "PMIX_", "SGE_", "COBALT_")
"""Variables by which a launcher joins an allocation: the trial stays on this machine."""


@dataclass(frozen=True)
class Examination:
    """The diagnoses in order, and the MPI that they are about (None: not found)."""

    mpi: FoundMpi | None
    found: tuple[Diagnosis, ...]

    @property
    def good(self) -> bool:
        """Whether the MPI will use the provider: nothing failed."""
        return all(one.grade is not Rating.FAIL for one in self.found)


def examine(
    text: str | None, runner: Runner, *, run: bool = True, fabric: Library = Library.OFI
) -> Examination:
    """Examine this machine and the MPI that a name or a path means.

    `run`: start two ranks. `fabric`: the library by which the MPI would reach nearmetal.
    """
    env = dict(os.environ)
    ucx = fabric is Library.UCX
    option = " --fabric ucx" if ucx else ""
    again = option if text is None else f"{option} {shlex.quote(text)}"
    found: list[Diagnosis] = []
    mpi = _or_say(found, "mpi", lambda: find_mpi(text, runner))
    if mpi is not None:
        found.append(say.of_mpi(mpi))
    settings, seen = (_by_ucx if ucx else _by_libfabric)(found, mpi, runner)
    if settings is not None:
        env = settings.applied(env)
        found.append(say.of_environment(settings, os.environ, again))
    facts = read_machine(env, runner)
    found += _of_machine(facts, seen)
    if run and mpi is not None and mpi.launcher is not None and settings is not None:
        found.append(say_hello(mpi, settings, runner, option))
    return Examination(mpi, tuple(found))


def _by_libfabric(
    found: list[Diagnosis], mpi: FoundMpi | None, runner: Runner
) -> tuple[Exported | None, Libfabric | None]:
    """Examine provider and libfabric; return the variables, and what libfabric then offers."""
    library = _or_say(found, "provider", provider_library)
    if library is not None:
        found.append(say.of_provider(library, everyone=_everyone_reads(library)))
    if mpi is None:
        return None, None
    found += [say.of_ofi(mpi, "nearmetal doctor DIR"), say.of_libfabric(mpi.libfabric)]
    if not mpi.ofi or library is None:
        return None, None
    settings = _or_say(found, "environment", lambda: exported(mpi, library, os.environ))
    if settings is None:
        return None, None
    seen, said = look_again(mpi, settings.applied(os.environ), runner)
    found.append(say.of_loading(seen, said, library))
    return settings, seen


def _by_ucx(
    found: list[Diagnosis], mpi: FoundMpi | None, runner: Runner
) -> tuple[Exported | None, None]:
    """Examine the transport and UCX; return the variables. UCX's own networks are not examined."""
    plugin = _or_say(found, "transport", ucx_transport)
    if plugin is not None:
        found.append(about_ucx.of_transport(plugin, [path.name for path in plugin.iterdir()]))
    ucx = _or_say(found, "transport-loads", lambda: find_ucx(runner))
    if ucx is not None:
        words = f"UCX {'.'.join(map(str, VERSION))} in {ucx.libraries} loads the transport"
        found.append(Diagnosis("transport-loads", Rating.OK, words))
    if mpi is None:
        return None, None
    found.append(about_ucx.of_way(mpi))
    if not mpi.ucx or ucx is None:
        return None, None
    settings = _or_say(found, "environment", lambda: exported(mpi, ucx, os.environ))
    if settings is None:
        return None, None
    env = settings.applied(os.environ)
    loaded = _or_say(found, "ucx", lambda: about_ucx.of_loaded(look_for_ucx(mpi, env, runner), ucx))
    found += [one for one in (loaded, about_ucx.of_choice(env)) if one is not None]
    return settings, None


def _or_say(found: list[Diagnosis], name: str, get: Callable[[], _T]) -> _T | None:
    try:
        return get()
    except NearmetalError as error:
        found.append(Diagnosis(name, Rating.FAIL, error.message, error.hint))
        return None


def _everyone_reads(path: Path) -> bool:
    parents = all(parent.stat().st_mode & 0o001 for parent in path.parents)
    return parents and bool(path.stat().st_mode & 0o004)


def _of_machine(facts: MachineFacts, seen: Libfabric | None) -> list[Diagnosis]:
    if not facts.told:
        return [say.of_info(), say.of_shm(facts), say.of_user_namespaces(facts)]
    found = [
        say.of_rundir(facts),
        say.of_window(facts),
        say.of_shm(facts),
        say.of_cma(facts),
        say.of_segment(facts),
        say.of_memlock(facts),
        say.of_user_namespaces(facts),
        say.of_tuning(facts),
    ]
    if seen is not None:
        found += [say.of_network(seen, facts), say.of_meeting(facts, seen)]
    return found


def hello_command(mpi: FoundMpi, env: Mapping[str, str], stats: Path) -> Command:
    """Return the command that starts two ranks on this machine, with the exported variables."""
    options: tuple[str, ...] = ()
    if mpi.installation.mpi.family is Family.OPENMPI:
        options = ("--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none")
    argv = (str(mpi.launcher), *options, "-n", str(RANKS), sys.executable, "-I", str(_HELLO))
    ours = {name: value for name, value in env.items() if not name.startswith(_SCHEDULERS)}
    ours["NEARMETAL_STATS_DIR"] = str(stats)
    if os.geteuid() == 0:
        for name in ("OMPI", "PRTE"):
            ours |= {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
    return Command((*argv, str(mpi.library)), env=ours, most=1 << 20)


def say_hello(mpi: FoundMpi, settings: Exported, runner: Runner, option: str = "") -> Diagnosis:
    """Let two ranks exchange messages, and report the channel that their counters show.

    `option`: what `wrap` needs for these settings.
    """
    with tempfile.TemporaryDirectory(prefix="nearmetal-") as place:
        command = hello_command(mpi, settings.applied(os.environ), Path(place))
        try:
            done = runner.run(command, timeout_s=_HELLO_S)
        except NearmetalError as error:
            return Diagnosis("hello", Rating.FAIL, error.message, error.hint)
        stats = read_stats(Path(place))
    wrap = f"nearmetal wrap{option} --mpi {shlex.quote(str(mpi.launcher))}"
    retry = f"NEARMETAL_LOG=info {wrap} -- {command}"
    if done.timed_out or done.code != 0:
        how = f"did not end in {_HELLO_S:.0f} s" if done.timed_out else f"failed ({done.code})"
        last = printable(done.error_tail.strip().rpartition("\n")[2])
        return Diagnosis("hello", Rating.FAIL, f"two ranks {how}: {last or 'no message'}", retry)
    return _of_channels(stats, retry)


def _of_channels(stats: Sequence[dict[str, Any]], retry: str) -> Diagnosis:
    proof = judge(stats, RANKS)
    if proof.verdict is not JobVerdict.PROVEN:
        return Diagnosis("hello", Rating.FAIL, f"two ranks ran, but {proof.reason}", retry)
    between = {name: count for name, count in proof.messages.items() if name != SELF}
    words = ", ".join(f"{name} {count} messages" for name, count in sorted(between.items()))
    if set(between) <= {NETWORK}:
        reasons = {str(p.get("reason")) for one in stats for p in one["peers"]} - {""}
        why = f": {printable(min(reasons))}" if reasons else ""
        words = f"two ranks of this machine used the network ({words or 'no messages'}){why}"
        return Diagnosis("hello", Rating.WARN, words, retry)
    return Diagnosis("hello", Rating.OK, f"two ranks exchanged data by nearmetal: {words}")
