# SPDX-License-Identifier: Apache-2.0
"""The launcher: makes the container of a job on this node, and leaves its process 1 behind.

A container has its own PID, IPC, UTS and mount namespace. Private are /tmp, /dev/shm and
/run/nearmetal, which holds the job's segment directory; everything else is the node's, the
network too, so that srun, PMI and a user's files work inside as outside. All of it is mounted
inside only: it is gone with the last process.

Virtual machines are processes in such a container, which then has a network of its own: whatever
ends the container ends them.
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

from nearmetal.core.errors import HostError, NearmetalError, NoVfError, SlurmError
from nearmetal.core.process import LocalRunner
from nearmetal.core.resources import provider_library
from nearmetal.job.mpi import Provider, Request, pick, settings_for
from nearmetal.slurm import guard, holder, limits
from nearmetal.slurm.reclaim import THIS_MACHINE, remove
from nearmetal.slurm.records import STATE, VFS, directory_of, locked, write
from nearmetal.slurm.vfs import returned_on_failure, variables
from nearmetal.slurm.wanted import RefusedError, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nearmetal.host.vf import GrantedVf
    from nearmetal.slurm.vfs import JobVfs

HOME = "/run/nearmetal"
SEGMENT = f"{HOME}/job"
PROVIDERS = f"{HOME}/providers"
_HOME_SIZE = "1m"
"""Directories and links only."""

OUTSIDE_PMI = {"PMIX_MCA_gds": "hash"}
"""slurmstepd is PMIx's server and stays outside: what it would show in files (PMIx 5, shmem2), it
sends instead."""

MIN_BYTES = 1 << 20
MAX_REFUSAL = 190
"""What fits into a reason of the plugin."""


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
    vfs: int = 0
    machines: Machines | None = None


@dataclass(frozen=True)
class Machines:
    """The virtual machines of a job. `nodes`: all of the job's, as Slurm writes them."""

    wanted: Wanted
    nodes: str
    key: Path


@dataclass(frozen=True)
class Launched:
    """What has become of it: process 1 of the container, or why the job cannot have what it asks."""

    pid: int
    refusal: str = ""


def environment(wish: Wish) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the tasks' environment and the providers to link; pure but for finding the MPI."""
    env = {"NEARMETAL_CHANNELS": wish.channels} if wish.channels else {}
    if wish.machines is not None:
        # Where tasks meet in a machine is the machine's own, and so is PMI.
        return env, ()
    env |= {"NEARMETAL_RUNDIR": SEGMENT, **OUTSIDE_PMI}
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


def launch(wish: Wish, state: Path = STATE, vfs: JobVfs = THIS_MACHINE) -> Launched:
    """Make the container of a job. One left by an earlier job goes first.

    What the job cannot have is a refusal, which is on record for its tasks to tell. Raises
    SlurmError, HostError or LaunchError: then there is none, this node is to blame, and what is still
    on record is for the reclaimer.
    """
    _check(wish)
    env, providers = environment(wish)
    directory = directory_of(state, wish.job)
    with locked(state, wish.job):
        remove(wish.job, state, vfs)
        directory.mkdir(mode=0o755)
        records = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Where there are none, nobody looks at adapters: from the network of machines, which
            # is entered by then, they would not be seen as they are.
            vfs_back = returned_on_failure(vfs, wish.job) if wish.vfs else contextlib.nullcontext()
            with vfs_back:
                about = {
                    "uid": wish.uid,
                    "node": wish.node,
                    "request": wish.request,
                    "since": time.time(),
                }
                write(directory / "about", json.dumps(about) + "\n")
                write(directory / "request", wish.request + "\n")
                write(directory / "partition", wish.partition + "\n")
                node = wish.node or os.uname().nodename.partition(".")[0]
                taken = _take(vfs, wish, node, state)
                write(directory / "environment", _lines(env | variables(taken)))
                place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fill, groups = _machines(wish, directory)
                    with limits.removed_on_failure(groups):
                        return Launched(holder.hold(lambda: _make(wish, providers, place, fill)))
                finally:
                    os.close(place)
        except (NoVfError, RefusedError) as refused:
            return refuse(directory, refused.message)
        except HostError:
            # Its records stay: by them VFs and control groups are known that did not go back.
            raise
        except NearmetalError:
            _forget(directory, records)
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                _forget(directory, records)
            raise SlurmError(
                f"job {wish.job}: no container: {error.strerror or error}", "run this as root"
            ) from error
        finally:
            os.close(records)


def _forget(directory: Path, state: int) -> None:
    """Remove what is on record of a job that has nothing.

    But that of a tunnel stays: the guard is renewed by who removes it, and we may be in the job's
    network. By descriptor: the path may be hidden from us by the container's own directory.
    """
    if not guard.has_tunnel(Path(directory.name), dir_fd=state):
        shutil.rmtree(directory.name, dir_fd=state)


def _take(vfs: JobVfs, wish: Wish, node: str, state: Path) -> tuple[GrantedVf, ...]:
    """Take a job's VFs: of two jobs that want the last ones, one gets all that it wants."""
    if not wish.vfs:
        return ()
    with locked(state, VFS):
        return vfs.take(wish.job, wish.vfs, "host", node=node, state=state)


def refuse(directory: Path, why: str) -> Launched:
    """Record why a job gets nothing here; the plugin tells it in the user's terminal."""
    words = " ".join("".join(c if " " <= c <= "~" else " " for c in why).split())
    cut = words if len(words) < MAX_REFUSAL else words[: MAX_REFUSAL - 4] + "..."
    write(directory / "refusal", cut + "\n")
    return Launched(0, cut)


def _check(wish: Wish) -> None:
    """Refuse what the plugin would never say: this may be called by hand."""
    if wish.uid < 0:
        raise SlurmError(f"job {wish.job}: no user has the number {wish.uid}")
    for name, size in (("segment", wish.segment_bytes), ("scratch", wish.scratch_bytes)):
        if size < MIN_BYTES:
            raise SlurmError(f"job {wish.job}: {name} of {size} bytes", "give at least 1 MiB")
    if wish.vfs < 0:
        raise SlurmError(f"job {wish.job}: {wish.vfs} VFs", "give a number from 0")
    if wish.vfs and wish.machines is not None:
        raise SlurmError(
            f"job {wish.job}: VFs for virtual machines", "leave --vfs out, or give --vms=0"
        )
    if not (wish.request + wish.partition).isprintable():
        raise SlurmError(f"job {wish.job}: a request or partition with control characters")


def _lines(env: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(env.items()))


def _machines(wish: Wish, directory: Path) -> tuple[Callable[[], None], limits.Groups]:
    """Prepare the job's virtual machines; return what starts them from within, and their groups."""
    if wish.machines is None:
        return lambda: None, limits.NONE
    # Images and seeds take a while to import, which containers need not wait for.
    from nearmetal.slurm import vm  # noqa: PLC0415

    crew = vm.prepare(
        vm.Order(
            wish.job,
            wish.uid,
            wish.node,
            wish.machines.nodes,
            wish.machines.key,
            wish.machines.wanted,
            directory,
        ),
        LocalRunner(),
    )
    return lambda: vm.start(crew, LocalRunner()), crew.groups


def _make(wish: Wish, providers: Sequence[Path], directory: int, fill: Callable[[], None]) -> None:
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
    fill()
    os.fchdir(directory)
    write(Path("holder"), f"{pid} {begin}\n")
