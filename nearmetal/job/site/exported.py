# SPDX-License-Identifier: Apache-2.0
"""The variables by which an MPI uses nearmetal under any launcher, and their written forms."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.job.mpi import Installation, Mpi, Provider, Request, Ucx, settings_for
from nearmetal.job.mpi.settings import as_variables
from nearmetal.job.site.found import FoundMpi

_OF_RUN = ("LD_LIBRARY_PATH", "OPAL_PREFIX", "I_MPI_PIN")
"""Settings that `nearmetal run` makes for its own nodes; a site has its own."""

_LIST = "OMPI_MCA_mca_base_env_list"
"""Open MPI forwards its own variables to other hosts by itself, others only if this names them."""

_OWN_PREFIXES = ("OMPI_", "PRTE_", "PMIX_")
_PATHS = "LD_LIBRARY_PATH"


class Form(Enum):
    """A way to write variables. The value is the name in words."""

    SH = "sh"
    LMOD = "Lmod"
    DOCKER = "an env-file"


@dataclass(frozen=True)
class Exported:
    """Variables to set, directories to put in front of a list, variables to unset, and notes."""

    set: Mapping[str, str]
    prepend: Mapping[str, str]
    unset: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def applied(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with these changes."""
        made = {name: value for name, value in env.items() if name not in self.unset}
        for name, place in self.prepend.items():
            rest = [word for word in made.get(name, "").split(":") if word and word != place]
            made[name] = ":".join([place, *rest])
        return made | dict(self.set)


def exported(
    mpi: FoundMpi,
    library: Path | Ucx,
    env: Mapping[str, str],
    *,
    own: Mapping[str, str] | None = None,
    listed: bool = False,
) -> Exported:
    """Return what a launcher must export for an MPI, in a shell with the environment `env`.

    `library`: the provider, or UCX with its transport. `own`: further variables, for example
    NEARMETAL_RUNDIR. `listed`: no `mpirun -x` will be used, so Open MPI 4 also gets the list of
    variables to forward. Raises LaunchError for an MPI that cannot use libfabric, or UCX.
    """
    prepend = {}
    if isinstance(library, Ucx):
        _check_way(mpi, "UCX", "Open MPI with pml/ucx, or MPICH with ch4:ucx", can=mpi.ucx)
        request = Request(Provider.NEARMETAL, interface="", ucx=library)
        prepend[_PATHS] = str(library.libraries)
    else:
        ways = "Open MPI with mtl/ofi, MPICH with ch4:ofi, or Intel MPI"
        ways += "; this MPI can use UCX: add --fabric ucx" if mpi.ucx else ""
        _check_way(mpi, "libfabric", ways, can=mpi.ofi)
        request = Request(
            Provider.NEARMETAL,
            library,
            interface="",
            libfabric=None if mpi.libfabric is None else mpi.libfabric.version,
            fabric_providers=mpi.fabric_providers,
        )
        # Intel's libmpi looks for its libfabric in the list of the loader.
        if mpi.installation.mpi is Mpi.IMPI and mpi.libfabric is not None and mpi.libfabric.own:
            prepend[_PATHS] = str(mpi.libfabric.path.parent)
    found = selecting(mpi.installation, request, env, own=own, listed=listed, lists=tuple(prepend))
    notes = list(mpi.unknown)
    if mpi.installation.mpi is Mpi.OPENMPI4 and _LIST not in found:
        words = " ".join(f"-x {name}" for name in _foreign((*found, *prepend)))
        notes.append(f"if a job has several hosts, add to mpirun: {words}")
    unset = ("FI_PROVIDER",) if mpi.installation.mpi is Mpi.IMPI else ()
    return Exported(found, prepend, unset, tuple(notes))


def _check_way(mpi: FoundMpi, way: str, others: str, *, can: bool) -> None:
    if not can:
        device = f" (device {mpi.device})" if mpi.device else ""
        raise LaunchError(f"{mpi.title} cannot use {way}{device}", f"use an MPI with it: {others}")


def for_launcher(
    mpi: FoundMpi,
    library: Path | Ucx,
    args: Sequence[str],
    env: Mapping[str, str],
    *,
    own: Mapping[str, str] | None = None,
) -> tuple[Exported, list[str]]:
    """Return what a launcher with these arguments must export, and its arguments for that.

    Open MPI 4 refuses to start if its list of variables and `-x` are used together. An `-x` may be
    the program's own, and only mpirun's parser knows. With any, mpirun gets an `-x` for each
    variable, which is right in both cases; it counts up to the next colon.
    """
    named = _LIST.removeprefix("OMPI_MCA_") in args
    crossed = mpi.installation.mpi is Mpi.OPENMPI4 and not {"-x", "--x"}.isdisjoint(args)
    by_option = crossed and not named and _LIST not in env
    found = exported(mpi, library, env, own=own, listed=not by_option)
    if named and _LIST in found.set:
        words = ";".join(_foreign((*found.set, *found.prepend)))
        note = f"if a job has several hosts, add to its mca_base_env_list: {words}"
        found = replace(found, notes=(*found.notes, note))
    if not by_option:
        return found, list(args)
    options = [word for name in _foreign((*found.set, *found.prepend)) for word in ("-x", name)]
    given = list(options)
    for arg in args:
        given += [arg, *options] if arg == ":" else [arg]
    return replace(found, notes=mpi.unknown), given


def _foreign(names: Iterable[str]) -> list[str]:
    """Return the variables that Open MPI does not forward by itself."""
    return sorted(name for name in names if not name.startswith(_OWN_PREFIXES))


def selecting(
    installation: Installation,
    request: Request,
    env: Mapping[str, str],
    *,
    own: Mapping[str, str] | None = None,
    listed: bool = False,
    lists: tuple[str, ...] = (),
) -> dict[str, str]:
    """Return the variables to set for an installation, sorted; arguments as `exported`.

    `lists`: the variables that get a directory in addition. Variables that `nearmetal run` sets
    unless the caller does so keep the value in `env`.
    """
    settings = settings_for(installation, request)
    found = {name: env.get(name, value) for name, value in settings.defaults.items()}
    found |= {
        name: value
        for name, value in settings.env.items()
        if name not in _OF_RUN and "ALLOW_RUN_AS_ROOT" not in name
    }
    found |= as_variables(settings.options) | dict(own or {})
    # Open MPI 4 refuses to start if the list and its option -x are used together.
    if installation.mpi is Mpi.OPENMPI5 or (installation.mpi is Mpi.OPENMPI4 and listed):
        given = [name for name in env.get(_LIST, "").split(";") if name]
        found[_LIST] = ";".join(dict.fromkeys((*given, *_foreign((*found, *lists)))))
    return dict(sorted(found.items()))


def written(found: Exported, form: Form) -> list[str]:
    """Return the lines of a form; raises UsageError for a value that it cannot hold."""
    for name, value in _all(found):
        _check(name, value, form)
    makers = {Form.SH: _sh, Form.LMOD: _lmod, Form.DOCKER: _docker}
    return makers[form](found)


def _all(found: Exported) -> list[tuple[str, str]]:
    return [*found.set.items(), *found.prepend.items()]


def _check(name: str, value: str, form: Form) -> None:
    why = ""
    if not value.isprintable():
        why = "a control or undecodable character"
    elif form is Form.DOCKER and value != value.strip():
        why = "a space at its begin or end, which engines remove"
    elif name == _PATHS and ":" in value:
        why = "a colon, which separates the directories of a list"
    if why:
        raise UsageError(
            f"{name} cannot be written for {form.value}: {value!r} has {why}",
            "move the files to a path without it",
        )


def _sh(found: Exported) -> list[str]:
    lines = [f"unset {name}" for name in found.unset]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in found.set.items()]
    lines += [
        f'export {name}={shlex.quote(value)}"${{{name}:+:${name}}}"'
        for name, value in found.prepend.items()
    ]
    return lines


def _lua(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _lmod(found: Exported) -> list[str]:
    lines = [f"unsetenv({_lua(name)})" for name in found.unset]
    lines += [f"setenv({_lua(name)}, {_lua(value)})" for name, value in found.set.items()]
    lines += [f"prepend_path({_lua(n)}, {_lua(value)})" for n, value in found.prepend.items()]
    return lines


def _docker(found: Exported) -> list[str]:
    # An env-file has neither quotes nor a way to unset: a value is the rest of its line.
    lines = [f"# {name} must not be set" for name in found.unset]
    return [*lines, *(f"{name}={value}" for name, value in _all(found))]
