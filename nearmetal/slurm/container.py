# SPDX-License-Identifier: Apache-2.0
"""The launcher: makes the container of a job on this node, and leaves its process 1 behind.

A container has its own PID, IPC, UTS and mount namespace. Private are /tmp, /dev/shm and
/run/nearmetal, which holds the job's segment directory; everything else is the node's, the
network too, so that srun, PMI and a user's files work inside as outside. All of it is mounted
inside only: it is gone with the last process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import SlurmError
from nearmetal.mpi import Provider, Request, pick, settings_for
from nearmetal.mpi.provider import provider_library
from nearmetal.slurm import holder
from nearmetal.slurm.reclaim import remove
from nearmetal.slurm.records import STATE, directory_of, locked, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOME = "/run/nearmetal"
SEGMENT = f"{HOME}/job"
PROVIDERS = f"{HOME}/providers"
_HOME_SIZE = "1m"
"""Directories and links only."""

MIN_BYTES = 1 << 20


@dataclass(frozen=True)
class Wish:
    """What a job gets on this node, as the plugin has checked it."""

    job: int
    uid: int
    segment_bytes: int
    scratch_bytes: int
    request: str
    node: str = ""
    partition: str = ""
    mpi: str = ""
    channels: str = ""


def environment(wish: Wish) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the tasks' environment and the providers to link; pure but for finding the MPI."""
    env = {"NEARMETAL_SEGMENT_DIR": SEGMENT}
    if wish.channels:
        env["NEARMETAL_CHANNELS"] = wish.channels
    if not wish.mpi:
        return env, ()
    asked = Request(Provider.NEARMETAL, provider_library(), Path(PROVIDERS))
    settings = settings_for(pick(wish.mpi), asked)
    env |= {k: v for k, v in settings.env.items() if "ALLOW_RUN_AS_ROOT" not in k}
    env |= as_variables(settings.options)
    return env, settings.providers


def as_variables(options: Sequence[str]) -> dict[str, str]:
    """Return Open MPI's `--mca NAME VALUE` as variables: srun takes no options of an MPI."""
    words = list(options)
    return {
        f"OMPI_MCA_{words[i + 1]}": words[i + 2]
        for i, word in enumerate(words)
        if word == "--mca" and i + 2 < len(words)
    }


def launch(wish: Wish, state: Path = STATE) -> int:
    """Make the container of a job; return its process 1. One left by an earlier job goes first.

    Raises SlurmError or LaunchError: then there is none, and this node is to blame.
    """
    _check(wish)
    env, providers = environment(wish)
    directory = directory_of(state, wish.job)
    with locked(state):
        remove(wish.job, state)
        directory.mkdir(mode=0o755)
        records = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            about = {"uid": wish.uid, "node": wish.node, "request": wish.request,
                     "since": time.time()}  # fmt: skip
            write(directory / "about", json.dumps(about) + "\n")
            write(directory / "request", wish.request + "\n")
            write(directory / "partition", wish.partition + "\n")
            write(directory / "environment", _lines(env))
            place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return holder.hold(lambda: _make(wish, providers, place))
            finally:
                os.close(place)
        except OSError as error:
            # By descriptor: the path may be hidden from us by the container's own directory.
            with contextlib.suppress(OSError):
                shutil.rmtree(directory.name, dir_fd=records)
            raise SlurmError(
                f"job {wish.job}: no container: {error.strerror or error}", "run this as root"
            ) from error
        finally:
            os.close(records)


def _check(wish: Wish) -> None:
    """Refuse what the plugin would never say: this may be called by hand."""
    if wish.uid < 0:
        raise SlurmError(f"job {wish.job}: no user has the number {wish.uid}")
    for name, size in (("segment", wish.segment_bytes), ("scratch", wish.scratch_bytes)):
        if size < MIN_BYTES:
            raise SlurmError(f"job {wish.job}: {name} of {size} bytes", "give at least 1 MiB")
    if not (wish.request + wish.partition).isprintable():
        raise SlurmError(f"job {wish.job}: a request or partition with control characters")


def _lines(env: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(env.items()))


def _make(wish: Wish, providers: Sequence[Path], directory: int) -> None:
    """Set up the container from within, then record its process 1 as the last step."""
    pid = holder.own_pid()
    begin = holder.start_ticks(pid)
    # What the node mounts or unmounts later, such as home directories, shows inside too.
    holder.mount(None, "/", holder.MS_REC | holder.MS_SLAVE)
    safe = holder.MS_NOSUID | holder.MS_NODEV
    holder.mount("proc", "/proc", safe | holder.MS_NOEXEC)
    for place in ("/tmp", "/dev/shm"):  # noqa: S108 - mount points, not files of ours
        holder.mount("tmpfs", place, safe, f"mode=1777,size={wish.scratch_bytes}")
    holder.mount("tmpfs", HOME, safe, f"mode=755,size={_HOME_SIZE}")
    Path(SEGMENT).mkdir()
    holder.mount("tmpfs", SEGMENT, safe, f"mode=700,uid={wish.uid},size={wish.segment_bytes}")
    Path(PROVIDERS).mkdir()
    for path in providers:
        (Path(PROVIDERS) / path.name).symlink_to(path)
    os.fchdir(directory)
    write(Path("holder"), f"{pid} {begin}\n")
