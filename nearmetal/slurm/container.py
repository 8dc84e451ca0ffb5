# SPDX-License-Identifier: Apache-2.0
"""The launcher: makes the container of a job on this node, and leaves its process 1 behind.

A container has its own PID, IPC, UTS and mount namespace. Private are /tmp, /dev/shm and
/run/nearmetal, which holds the job's rundir. Everything else is the node's, including the network,
so srun, PMI and a user's files work inside as outside. All mounts exist only inside and end with
the last process.

Virtual machines are processes in such a container, which then has a network of its own. So the end
of the container always ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import HostError, NearmetalError, NoVfError, SlurmError
from nearmetal.core.process import LocalRunner
from nearmetal.core.resources import provider_library
from nearmetal.host.vf import GrantedVf
from nearmetal.job.mpi import Provider, Request, pick, settings_for
from nearmetal.job.mpi.settings import as_variables
from nearmetal.slurm import holder, limits
from nearmetal.slurm.network import has_tunnel
from nearmetal.slurm.reclaim import SERVERS_HERE, THIS_MACHINE, remove
from nearmetal.slurm.records import STATE, VFS, directory_of, locked, write
from nearmetal.slurm.servers import JobServers, ServerStore
from nearmetal.slurm.vfs import JobVfs, variables

if TYPE_CHECKING:
    from nearmetal.image.seed import SeedUser

HOME = "/run/nearmetal"
SEGMENT = f"{HOME}/job"
PROVIDERS = f"{HOME}/providers"
_HOME_SIZE = "1m"
"""Directories and links only."""

_OUTSIDE_PMI = {"PMIX_MCA_gds": "hash"}
"""slurmstepd is PMIx's server and stays outside, so clients do not see its files (PMIx 5, shmem2):
with this setting it sends their content."""

MIN_BYTES = 1 << 20
MAX_REFUSAL = 190
"""The size of a reason in the plugin."""


class RefusedError(SlurmError):
    """The request of a user is impossible; the node is healthy."""


@dataclass(frozen=True)
class MachineRequest:
    """The request for virtual machines: `nr` equal ones on each node."""

    image: str
    nr: int
    vcpus: int
    memory_bytes: int
    segment_bytes: int
    shares: tuple[str, ...] = ()
    accel: str = "kvm"


@dataclass(frozen=True)
class Machines:
    """The virtual machines of a job. `nodes`: all of the job's, as Slurm writes them."""

    wanted: MachineRequest
    nodes: str
    key: Path


@dataclass(frozen=True)
class ServerRequest:
    """The request for servers of a cloud. `nodes`: all of the job's, as Slurm writes them.

    `settings`: the file of the site about them.
    """

    image: str
    nr: int
    nodes: str
    settings: Path


@dataclass(frozen=True)
class ContainerRequest:
    """The request of a job on this node, after the checks of the plugin."""

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
    servers: ServerRequest | None = None

    @property
    def enters_machines(self) -> bool:
        """Whether tasks run in machines, and not in the container itself."""
        return self.machines is not None or self.servers is not None


@dataclass(frozen=True)
class Launched:
    """The result of a launch: process 1 of the container, or the reason of a refusal."""

    pid: int
    refusal: str = ""


def environment(wish: ContainerRequest) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the tasks' environment and the providers to link; pure except for finding the MPI."""
    if wish.enters_machines:
        # Machines have their own rundir and their own PMI.
        return ({"NEARMETAL_CHANNELS": wish.channels} if wish.channels else {}), ()
    env, providers = mpi_environment(wish.mpi, wish.channels, PROVIDERS)
    return env | {"NEARMETAL_RUNDIR": SEGMENT}, providers


def mpi_environment(
    mpi: str, channels: str, directory: str
) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the variables of tasks, and the providers to link in `directory`. `mpi` "": none."""
    env = dict(_OUTSIDE_PMI)
    if channels:
        env["NEARMETAL_CHANNELS"] = channels
    if not mpi:
        return env, ()
    asked = Request(Provider.NEARMETAL, provider_library(), Path(directory))
    settings = settings_for(pick(mpi), asked)
    env |= {k: v for k, v in settings.env.items() if "ALLOW_RUN_AS_ROOT" not in k}
    return env | as_variables(settings.options), settings.providers


def launch(
    wish: ContainerRequest,
    state: Path = STATE,
    vfs: JobVfs = THIS_MACHINE,
    store: ServerStore = SERVERS_HERE,
) -> Launched:
    """Make the container of a job, after the removal of an earlier job's container.

    An impossible request is a refusal, and its record shows the reason to the tasks. Raises
    SlurmError, HostError or LaunchError for a fault of this node: then there is no container, and
    the reclaimer handles the remaining records.
    """
    _check(wish)
    env, providers = environment(wish)
    directory = directory_of(state, wish.job)
    with locked(state, wish.job):
        # A prolog does not wait for a cloud.
        remove(wish.job, state, vfs, store, asks=False)
        directory.mkdir(mode=0o755)
        records = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _on_failure(lambda: _return_vfs(vfs, wish)):
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
                env |= variables(_take(vfs, wish, node, state))
                lines = (f"{name}={value}\n" for name, value in sorted(env.items()))
                write(directory / "environment", "".join(lines))
                place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fill, undo = _machines(wish, directory, place, store)
                    with _on_failure(undo):
                        return Launched(holder.hold(lambda: _make(wish, providers, place, fill)))
                finally:
                    os.close(place)
        except (NoVfError, RefusedError) as refused:
            return refuse(directory, refused.message)
        except HostError:
            # Its records stay: they name the VFs and control groups that were not returned.
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


@contextlib.contextmanager
def _on_failure(undo: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        undo()
        raise


def _return_vfs(vfs: JobVfs, wish: ContainerRequest) -> None:
    """Return the VFs of a job; a VF that cannot be returned now stays recorded.

    Without VFs the adapters are not touched: from the network of machines, which this process may
    have entered, they look different.
    """
    if wish.vfs:
        with contextlib.suppress(Exception):
            vfs.give_back(wish.job)


def _forget(directory: Path, state: int) -> None:
    """Remove the records of a job that has nothing.

    The record of a tunnel stays: its removal needs a new guard, and this process may be in the
    job's network. By descriptor: the container's own directory may hide the path from us.
    """
    if not has_tunnel(Path(directory.name), dir_fd=state):
        shutil.rmtree(directory.name, dir_fd=state)


def _take(vfs: JobVfs, wish: ContainerRequest, node: str, state: Path) -> tuple[GrantedVf, ...]:
    """Take a job's VFs: of two jobs that want the last ones, one gets all that it wants."""
    if not wish.vfs:
        return ()
    with locked(state, VFS):
        return vfs.take(wish.job, wish.vfs, "host", node=node, state=state)


def refuse(directory: Path, why: str) -> Launched:
    """Record the reason of a refusal; the plugin shows it in the user's terminal."""
    words = " ".join("".join(c if " " <= c <= "~" else " " for c in why).split())
    cut = words if len(words) < MAX_REFUSAL else words[: MAX_REFUSAL - 4] + "..."
    write(directory / "refusal", cut + "\n")
    return Launched(0, cut)


def _check(wish: ContainerRequest) -> None:
    """Refuse requests that the plugin never sends: a person may call this by hand."""
    job = f"job {wish.job}: "
    if wish.uid < 0:
        raise SlurmError(f"{job}no user has the number {wish.uid}")
    check_sizes(wish.segment_bytes, wish.scratch_bytes, job)
    if wish.vfs < 0:
        raise SlurmError(f"{job}{wish.vfs} VFs", "give 0 or a positive number")
    if wish.machines is not None and wish.servers is not None:
        raise SlurmError(f"{job}virtual machines and servers", "omit --vms or --servers")
    if wish.vfs and wish.enters_machines:
        raise SlurmError(f"{job}VFs for virtual machines", "omit --vfs, or --vms and --servers")
    if not (wish.request + wish.partition).isprintable():
        raise SlurmError(f"{job}a request or partition with control characters")


def check_sizes(segment: int, scratch: int, job: str = "") -> None:
    """Raise SlurmError if a size is too small for a file system."""
    for name, size in (("segment", segment), ("scratch", scratch)):
        if size < MIN_BYTES:
            raise SlurmError(f"{job}{name} of {size} bytes", "give at least 1 MiB")


def _machines(
    wish: ContainerRequest, directory: Path, place: int, store: ServerStore
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Prepare the job's machines; return their start from within, and what undoes all of it.

    `place`: a descriptor of the directory, which the container hides.
    """
    if wish.servers is not None:
        # Slow to import, as what follows.
        from nearmetal.slurm import cloud  # noqa: PLC0415

        one, user = cloud.prepare(wish, directory, LocalRunner(), store)
        return lambda: _keep(one, user, store.root, place), lambda: store.abandon([one])
    if wish.machines is None:
        return lambda: None, lambda: None
    # Images and seeds are slow to import, and containers do not need them.
    from nearmetal.slurm import vm  # noqa: PLC0415

    crew = vm.prepare(wish, wish.machines, directory, LocalRunner())
    return lambda: vm.start(crew, LocalRunner()), lambda: limits.remove(crew.groups)


def _keep(one: JobServers, user: SeedUser, root: Path, place: int) -> None:
    from nearmetal.slurm import keeper  # noqa: PLC0415 - as above

    keeper.start(one, user, root, place)


def _make(
    wish: ContainerRequest, providers: Sequence[Path], directory: int, fill: Callable[[], None]
) -> None:
    """Set up the container from within, then record its process 1 as the last step."""
    pid = holder.own_pid()
    begin = holder.start_ticks(pid)
    # Later mounts of the node, for example home directories, appear inside too.
    holder.mount(None, "/", holder.MS_REC | holder.MS_SLAVE)
    safe = holder.MS_NOSUID | holder.MS_NODEV
    holder.mount("proc", "/proc", safe | holder.MS_NOEXEC)
    mount_scratch(wish.scratch_bytes)
    holder.mount("tmpfs", HOME, safe, f"mode=755,size={_HOME_SIZE}")
    Path(SEGMENT).mkdir()
    holder.mount("tmpfs", SEGMENT, safe, f"mode=700,uid={wish.uid},size={wish.segment_bytes}")
    Path(PROVIDERS).mkdir()
    for path in providers:
        (Path(PROVIDERS) / path.name).symlink_to(path)
    fill()
    os.fchdir(directory)
    write(Path("holder"), f"{pid} {begin}\n")


def mount_scratch(size: int) -> None:
    """Mount a private /tmp and /dev/shm."""
    for place in ("/tmp", "/dev/shm"):  # noqa: S108 - mount points, not files of ours
        holder.mount("tmpfs", place, holder.MS_NOSUID | holder.MS_NODEV, f"mode=1777,size={size}")
