# SPDX-License-Identifier: Apache-2.0
"""What a container of this machine must be given: the answer of `nearmetal-guest container`.

Both verbs print the lines of one shell function, share/guest/unit/container.sh. A host gives it
other facts than a virtual machine, whose unit has no Python.
"""

from __future__ import annotations

import os
from pathlib import Path

from nearmetal.core.errors import LaunchError, UsageError
from nearmetal.core.process import Command, Runner
from nearmetal.core.resources import find_tool, provider_library, share
from nearmetal.image import GUEST_PROVIDER
from nearmetal.job.mpi import Installation, Mpi, Provider, Request, Ucx
from nearmetal.job.site.exported import selecting

ENGINES = ("podman", "docker", "charliecloud", "apptainer")
"""As container.sh knows them."""

_MPIS = (Mpi.OPENMPI5, Mpi.OPENMPI4, Mpi.MPICH5)
_RUN = "/run/nearmetal"
_HOME = str(Path(GUEST_PROVIDER).parent)
_UCX_PLACES = {"charliecloud": Ucx(Path("/srv"), Path("/mnt"))}
"""Where a container sees UCX and the transport; Charliecloud mounts over what an image has."""
_ANSWER_S = 20.0


def container_words(
    engine: str, mpi: str, directory: Path | None, runner: Runner, ucx: Ucx | None = None
) -> list[str]:
    """Return the options of an engine; `mpi`: the one in the image. Makes the directory.

    `ucx`: what the MPI uses in place of libfabric, as this machine sees it. Raises UsageError or
    LaunchError.
    """
    if mpi not in (known.value for known in _MPIS):
        names = ", ".join(known.value for known in _MPIS)
        raise UsageError(
            f"--mpi {mpi}: not known in a container",
            f"known: {names}; for Intel MPI, run `nearmetal env` in the container",
        )
    request, library = Request(Provider.NEARMETAL, Path(GUEST_PROVIDER)), {}
    if ucx is None:
        library["provider"] = str(provider_library())
    else:
        seen = _UCX_PLACES.get(engine, Ucx(Path(_HOME, "libucx"), Path(_HOME, "ucx")))
        request = Request(Provider.NEARMETAL, ucx=seen)
        places = ((ucx.libraries, seen.libraries), (ucx.plugin, seen.plugin))
        library["directories"] = "\n".join(f"{source}:{at}" for source, at in places)
    lists = {"LD_LIBRARY_PATH": str(request.ucx.libraries)} if request.ucx else {}
    values = selecting(Installation(Mpi(mpi), Path("/usr")), request, {}, lists=tuple(lists))
    tools = [
        found for name in ("nearmetal-info", "nearmetal-segment") if (found := find_tool(name))
    ]
    # Rootless Podman shows the caller as root; Docker's daemon would make it the real root.
    user = f"{os.getuid()}:{os.getgid()}" if engine == "docker" and os.getuid() else ""
    facts = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "program": "nearmetal container",
        "tools": " ".join(map(str, tools)),
        "values": "\n".join(f"{name}={value}" for name, value in (lists | values).items()),
        "run": _RUN,
        "user": user,
        "group": "",
        "owner": "",
        **library,
    }
    script = share("guest", "unit", "container.sh")
    words = ["sh", "-c", '. "$1"; shift; container_options "$@"', "sh", str(script)]
    words += [f"--engine={engine}", *([] if directory is None else [str(directory)])]
    done = runner.run(Command(tuple(words), env=facts), timeout_s=_ANSWER_S)
    if done.code != 0:
        raise LaunchError(done.error_tail or f"exit code {done.code}", "use other paths")
    return done.text.splitlines()
