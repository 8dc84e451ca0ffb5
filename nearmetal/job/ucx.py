# SPDX-License-Identifier: Apache-2.0
"""UCX for jobs: the libraries that the ranks load, and nearmetal's transport for them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, Runner
from nearmetal.core.resources import REPOSITORY, ucx_transport
from nearmetal.core.text import printable
from nearmetal.job.mpi import Ucx

VERSION = (1, 22)
"""The version of UCX that the transport runs with (src/ucx/abi.h)."""

_REMEDY = (
    "install UCX 1.22, for example `pip install libucx-cu12==1.22.0`, and set NEARMETAL_UCX to the "
    "directory of its libucp.so.0"
)
_PROBE = Path(__file__).with_name("ucx_probe.py")
_PROBE_S = 60.0


def find_ucx(runner: Runner) -> Ucx:
    """Return the UCX for a job, after a process has loaded it together with the transport.

    Its place is $NEARMETAL_UCX, build/ucx of the checkout, or a wheel of this Python. Raises
    LaunchError with the version that was found and what to do.
    """
    found = Ucx(_libraries(), ucx_transport())
    check_ucx(found, runner)
    return found


def _libraries() -> Path:
    given = os.environ.get("NEARMETAL_UCX")
    places = [REPOSITORY / "build/ucx/libucx/lib"]
    places += [Path(directory) / "libucx/lib" for directory in sys.path if directory]
    for path in [Path(given)] if given else places:
        if (path / "libucp.so.0").is_file():
            return path.resolve()
    if given:
        raise LaunchError(f"NEARMETAL_UCX={given}: no libucp.so.0 there", _REMEDY)
    raise LaunchError("no UCX for --fabric ucx: NEARMETAL_UCX is not set", _REMEDY)


def check_ucx(ucx: Ucx, runner: Runner) -> None:
    """Raise LaunchError if this UCX is of another version or does not load the transport."""
    env = {
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(ucx.libraries),
        "UCX_PLUGIN_PATH": str(ucx.plugin),
    }
    done = runner.run(Command((sys.executable, "-I", str(_PROBE)), env=env), timeout_s=_PROBE_S)
    said = printable(done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2])
    try:
        report = json.loads(done.text.strip().rpartition("\n")[2])
        version = tuple(int(number) for number in report["version"])
        components = list(report["components"])
    except (ValueError, TypeError, KeyError):
        why = said or "no answer"
        raise LaunchError(f"the UCX in {ucx.libraries} cannot be loaded: {why}", _REMEDY) from None
    words = ".".join(map(str, version))
    if version[:2] != VERSION:
        needed = ".".join(map(str, VERSION))
        raise LaunchError(
            f"the UCX in {ucx.libraries} is {words}: nearmetal's transport is for UCX {needed}",
            _REMEDY,
        )
    if "nearmetal" not in components:
        raise LaunchError(
            f"UCX {words} does not load {ucx.plugin}: {said or 'it gives no reason'}",
            "UCX_LOG_LEVEL=debug ucx_info -d shows what it looks for",
        )
