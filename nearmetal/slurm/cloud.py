# SPDX-License-Identifier: Apache-2.0
"""Servers of a cloud as the machines of a job: the settings of the site, and their cluster.

The settings are a file that only root may read, because they lead to the credentials. They are what
users cannot choose. A user chooses one of the images by its name, and the number of servers.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from nearmetal.cluster.apply import Cluster
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.backends.openstack.spec import (
    CloudAccess,
    CloudHost,
    CloudName,
    CloudNetwork,
    CloudNode,
    OpenstackSpec,
    Reservation,
    is_file,
)
from nearmetal.cluster.registration import from_canonical
from nearmetal.cluster.store import Store
from nearmetal.config.explain import first_problem, load_yaml
from nearmetal.config.model import AbsolutePath, Model, Name
from nearmetal.core.errors import SlurmError
from nearmetal.core.files import check_private
from nearmetal.core.process import LocalRunner, Runner
from nearmetal.image.seed import SeedUser
from nearmetal.slurm.container import ContainerRequest, RefusedError
from nearmetal.slurm.machines import clean
from nearmetal.slurm.place import account_of
from nearmetal.slurm.queue import expand
from nearmetal.slurm.records import SERVERS, locked, write
from nearmetal.slurm.servers import JobServers, ServerStore

NAMES = "machines"
"""A record, as for virtual machines: the servers, one per line; the plugin spreads tasks over them."""

END_S = 90
"""Seconds that an epilog waits for servers to go; the watchdog waits again."""

WHAT = "settings of servers for jobs"


class CloudForJobs(Model):
    """What the servers of jobs are, and how many there may be."""

    version: Literal[1] = Field(description="version of this format")
    cloud: CloudName = Field(description="name of the cloud in clouds.yaml")
    clouds: AbsolutePath = Field(
        default="/etc/nearmetal/clouds.yaml",
        description="path of clouds.yaml, which only root may read",
    )
    images: Annotated[dict[Name, CloudName], Field(min_length=1, max_length=64)] = Field(
        description="names or IDs of images, by the names of --nm-image; one of them is `default`"
    )
    flavor: CloudName = Field(description="name or ID of the flavor of all servers")
    slots: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1, description="ranks that mpirun starts in each server"
    )
    networks: Annotated[list[CloudNetwork], Field(min_length=1, max_length=16)] = Field(
        description="networks of the servers, as in a cluster spec"
    )
    outside: CloudName | None = Field(
        default=None, description="external network of the router and of floating addresses"
    )
    floating: bool = Field(
        default=False,
        description="whether the first server gets a floating address, and forwards to the others",
    )
    reservation: Reservation | None = Field(
        default=None, description="ID of a reservation of Blazar, on whose hosts all servers are"
    )
    group: Literal["affinity", "anti-affinity", "none"] = Field(
        default="affinity", description="policy of the server group of each job"
    )
    max_servers: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="servers that all jobs of one Slurm node have at most"
    )
    timeout: Annotated[int, Field(ge=10, le=86400)] = Field(
        default=600, description="seconds that Nova has to make a server"
    )
    boot_timeout: Annotated[int, Field(ge=10, le=86400)] = Field(
        default=900, description="seconds that the guests have until they answer"
    )


def _check_root_only(path: Path) -> None:
    """Raise SlurmError unless a regular file is there that only root may read or change."""
    manual = "spank_nearmetal(8), SERVERS OF A CLOUD"
    check_private(path, SlurmError, others="others than root", manual=manual)


def settings_of(path: Path) -> CloudForJobs:
    """Read the settings; raises SlurmError or SpecError."""
    _check_root_only(path)
    found, _ = load_yaml(path, CloudForJobs, WHAT)
    if "default" not in found.images:
        raise SlurmError(f"{path}: images: there is no `default`", "add default: NAME")
    files = [name for name, image in found.images.items() if is_file(image)]
    if files:
        raise SlurmError(
            f"{path}: image {files[0]} is a path, and each job would upload it",
            "upload it once, and write its name",
        )
    _check_root_only(Path(found.clouds))
    return found


def spec_of(settings: CloudForJobs, name: str, wish: ContainerRequest, image: str) -> OpenstackSpec:
    """Return the spec of a job's servers. Raises SlurmError if the settings contradict each other."""
    assert wish.servers is not None  # noqa: S101 - else there is no spec
    place, apart = clean(wish.node), settings.group == "anti-affinity"
    nodes = [
        CloudNode(name=one, slots=settings.slots, floating=settings.floating and i == 0)
        for i, one in enumerate(names_of(wish.job, wish.servers.nr))
    ]
    hosts = [CloudHost(name=place, nodes=nodes)]
    if settings.group != "affinity":
        hosts = [CloudHost(name=f"{place}-{i}", nodes=[node]) for i, node in enumerate(nodes)]
    try:
        spec = OpenstackSpec(
            version=1,
            name=name,
            backend="openstack",
            cloud=settings.cloud,
            hosts=hosts,
            image=image,
            flavor=settings.flavor,
            networks=settings.networks,
            outside=settings.outside,
            reservation=settings.reservation,
            ssh=CloudAccess(timeout=settings.boot_timeout),
            apart=apart,
            timeout=settings.timeout,
        )
    except ValidationError as error:
        raise SlurmError(f"{WHAT}: {first_problem(error)}") from error
    if findings := spec.findings():
        raise SlurmError(f"{WHAT}: {findings[0].sentence}")
    return spec


def names_of(job: int, nr: int) -> tuple[str, ...]:
    """Return the names of a job's servers. Pure."""
    return tuple(f"job-{job}-{i}" for i in range(nr))


def prepare(
    wish: ContainerRequest, records: Path, runner: Runner, store: ServerStore
) -> tuple[JobServers, SeedUser]:
    """Check a request, and record its servers; nothing is asked of the cloud.

    `records`: the job's. Raises RefusedError for an impossible request; SlurmError or SpecError for
    settings that are wrong.
    """
    asked = wish.servers
    assert asked is not None  # noqa: S101 - else nothing is prepared
    if not asked.nodes:
        raise SlurmError(f"job {wish.job}: slurmd does not name its nodes")
    if len(expand(runner, asked.nodes)) > 1:
        raise RefusedError(
            f"--nm-node=openstack: the servers of a job belong to one Slurm node, and this job has "
            f"{asked.nodes}: give -N1, and --nm-vms-per-node for more servers"
        )
    settings = settings_of(asked.settings)
    image = settings.images.get(asked.image)
    if image is None:
        raise RefusedError(
            f"--nm-image={asked.image}: no such image for servers; there are: "
            f"{' '.join(sorted(settings.images))}"
        )
    user = account_of(wish.uid)
    name = f"job-{wish.job}-{secrets.token_hex(4)}"
    spec = spec_of(settings, name, wish, image)
    one = JobServers(
        job=wish.job,
        uid=wish.uid,
        node=wish.node,
        since=time.time(),
        request=wish.request,
        name=name,
        nr=asked.nr,
        clouds=settings.clouds,
        spec=spec.canonical(),
    )
    # Of a job with this number that a reboot of the node has ended.
    store.abandon(store.every(wish.job))
    with locked(records.parent, SERVERS):
        _check_room(one, settings.max_servers, store)
        store.keep(one)
    write(records / NAMES, "".join(f"{each}\n" for each in names_of(wish.job, asked.nr)))
    return one, user


def _check_room(wanted: JobServers, most: int, store: ServerStore) -> None:
    """Raise RefusedError if this node would have more servers than it may."""
    # Of those that wait for a last look, nothing is known to be there.
    taken = sum(one.nr for one in store.every() if not one.ended or one.fault)
    if taken + wanted.nr > most:
        raise RefusedError(
            f"--nm-node=openstack: jobs of node {wanted.node} have {most} servers at most, of which "
            f"{taken} are in use, and this job wants {wanted.nr}"
        )


def spec_on_record(one: JobServers) -> OpenstackSpec:
    """Return the spec of a record. Raises SlurmError if it is damaged, or of another cluster."""
    damaged = SlurmError(f"servers {one.name}: the record of their spec is damaged")
    try:
        spec = from_canonical(one.spec)
    except (ValueError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
        raise damaged from error
    if not isinstance(spec, OpenstackSpec) or spec.name != one.name:
        raise damaged
    return spec


def opened(one: JobServers, root: Path, user: SeedUser | None = None) -> Cluster:
    """Return the cluster of a job's servers. `user`: who runs jobs there; None: to remove them."""
    _check_root_only(Path(one.clouds))
    # `up` and `down` pass no path of clouds.yaml to openstacksdk. It also reads secure.yaml and
    # clouds-public.yaml in the current directory, which may be a user's.
    os.environ["OS_CLIENT_CONFIG_FILE"] = one.clouds
    os.chdir("/")
    spec, store, runner = spec_on_record(one), Store(root), LocalRunner()
    if user is None:
        short = spec.model_copy(update={"timeout": min(spec.timeout, END_S)})
        return Cluster(one.name, open_backend(short, store, runner), store)
    # Slow to import, and only the keeper needs it.
    from nearmetal.cluster.backends.openstack.driver import OpenstackBackend  # noqa: PLC0415

    return Cluster(one.name, OpenstackBackend(spec, store, runner, user), store)
