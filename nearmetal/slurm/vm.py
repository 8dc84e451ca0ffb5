# SPDX-License-Identifier: Apache-2.0
"""Starts the virtual machines of a job on this node: QEMUs of its user, in its container.

They are not waited for: a task does that, in its user's terminal, while other nodes boot theirs.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nearmetal.core import resources
from nearmetal.core.errors import CommandError, ImageError, SlurmError
from nearmetal.core.process import Command
from nearmetal.image import Cache, cache_directory, find_image, load_image, parts_here
from nearmetal.slurm import holder, limits, network
from nearmetal.slurm.keys import derive, pair, read_site_key
from nearmetal.slurm.machines import (
    JOB,
    PLACE,
    SEGMENT_PLACE,
    Account,
    Boot,
    Job,
    Layout,
    Member,
    check_account,
    check_allocated,
    check_node,
    known_hosts,
    members,
    part_size,
    qemu_words,
    seed_of,
    ssh_config,
)
from nearmetal.slurm.queue import allocated, configuration, expand, node_addresses
from nearmetal.slurm.records import write
from nearmetal.slurm.wanted import RefusedError, Wanted

if TYPE_CHECKING:
    from nearmetal.core.process import Runner

_STEP_S = 60.0
_PLACE_SIZE = "64m"
"""Seeds, and what guests write to their consoles: a loud one fills this and nothing else."""

_SEGMENT_LEAD = 16 << 20
_KVM = Path("/dev/kvm")
EVENTS = "events"
"""In PLACE: what counts machines that were killed for their memory; as in src/spank/guest.h."""

_WITHIN = (
    "sh",
    "-c",
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit; shift; done; shift; exec "$@"',
    "sh",
)
"""Goes into control groups, then starts what follows."""

NAMES = "machines"
"""On record: the machines of this node, a line each, for the plugin to deal out tasks."""

_KEY = re.compile(r"^[0-9a-f]{16}$")


@dataclass(frozen=True)
class Order:
    """What the launcher was told. `nodes`: all of the job's, as Slurm writes them; `records`: its."""

    job: int
    uid: int
    node: str
    nodes: str
    key: Path
    wanted: Wanted
    records: Path


@dataclass(frozen=True)
class Crew:
    """The machines of a job, and which of them are here."""

    job: Job
    here: tuple[Member, ...]
    boot: Boot
    part_size: int
    groups: limits.Groups


def prepare(order: Order, runner: Runner) -> Crew:
    """Look at everything that may be wrong, and make the network, in which we are afterwards.

    Raises RefusedError when the job asks for what cannot be had; SlurmError and ImageError when
    this node is to blame.
    """
    wanted = order.wanted
    if not order.nodes:
        raise SlurmError(f"job {order.job}: slurmd does not name its nodes")
    nodes = expand(runner, order.nodes)
    if order.node not in nodes:
        raise SlurmError(f"job {order.job}: node {order.node!r} is none of its nodes {order.nodes}")
    everyone = members(nodes, wanted.nr)
    size = part_size(wanted)
    account = account_of(order.uid)
    check_account(account)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    check_node(wanted, memory, order.node)
    has = allocated(runner, order.job, order.node)
    check_allocated(wanted, has, order.node)
    config = configuration(runner)
    site_key = read_site_key(order.key)
    boot = boot_of(wanted.image, Cache(cache_directory()))
    for share in wanted.shares:
        if not Path(share).is_dir():
            raise SlurmError(f"{share}: not a directory", "look at shares in slurm.toml")
    host, node = (
        pair(derive(site_key, purpose, order.job, order.uid, order.nodes), purpose, runner)
        for purpose in ("host", "node")
    )
    alone = len(nodes) == 1
    addresses = dict.fromkeys(nodes, "") if alone else node_addresses(runner, nodes)
    wires = network.Wires(order.job, order.uid, order.node, addresses, everyone)
    mtu = network.make(wires, order.records, runner)
    job = Job(order.job, everyone, wanted, account, host, node, mtu)
    here = tuple(m for m in everyone if m.node == order.node)
    write(order.records / NAMES, "".join(f"{member.name}\n" for member in here))
    mount = Path(config.get("CgroupMountpoint", "/sys/fs/cgroup"))
    # Last: who calls us removes them when anything fails from here on.
    groups = limits.make(
        order.records, f"job-{order.job}.{order.node}", mount, limits.limits_of(config, has)
    )
    return Crew(job, here, boot, size, groups)


def account_of(uid: int) -> Account:
    """Return a user as this node knows them."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError as error:
        raise SlurmError(f"no user has the number {uid} on this node") from error
    return Account(entry.pw_name, uid, entry.pw_gid, entry.pw_dir)


def boot_of(name: str, cache: Cache) -> Boot:
    """Return what an image boots; every byte of it is looked at. See `prepare` for errors."""
    if name == "default":
        image = find_image(cache, parts_here())
        if image is None:
            raise ImageError(
                f"the image of this release is not in {cache.root}",
                "run `nearmetal image build` on this node as root",
            )
    else:
        image = load_image(cache, name) if _KEY.match(name) else None
        if image is None:
            raise RefusedError(
                f"--nm-image={name}: no such image on this node; there are: "
                f"{' '.join(['default', *_known(cache)])}"
            )
    return Boot(str(image.kernel), str(image.initrd), str(image.root), image.append)


def _known(cache: Cache) -> list[str]:
    return [entry.key for entry in cache.entries() if not entry.problem]


def start(crew: Crew, runner: Runner) -> None:
    """Start the machines of this node, from within the container. Raises OSError or SlurmError."""
    uid = crew.job.account.uid
    safe = holder.MS_NOSUID | holder.MS_NODEV | holder.MS_NOEXEC
    Path(PLACE).mkdir()
    holder.mount("tmpfs", PLACE, safe, f"mode=700,uid={uid},size={_PLACE_SIZE}")
    layout = _segment(crew, runner) if crew.part_size else None
    if crew.groups.events is not None:
        Path(PLACE, EVENTS).symlink_to(crew.groups.events)
    _give("key", crew.job.node.private, uid)
    _give("known_hosts", known_hosts(crew.job), uid)
    _give("ssh_config", ssh_config(crew.job, crew.here), uid)
    for number, member in enumerate(crew.here):
        try:
            seed = seed_of(crew.job, member, number, layout).secret_json()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise SlurmError(f"machine {member.name}: {where}: {first['msg']}") from error
        _give(f"{member.name}.seed", seed, uid)
        _give(f"{member.name}.console", "", uid)
        words = qemu_words(crew.job, member, number, crew.boot, layout)
        inside = (*_WITHIN, *crew.groups.doors, "--", *_as_user(crew.job))
        _run(runner, (*inside, *words), f"machine {member.name} does not start")


def _segment(crew: Crew, runner: Runner) -> Layout:
    """Make the memory that the machines of this node share."""
    wanted, uid = crew.job.wanted, crew.job.account.uid
    Path(SEGMENT_PLACE).mkdir()
    safe = holder.MS_NOSUID | holder.MS_NODEV | holder.MS_NOEXEC
    room = wanted.segment_bytes + _SEGMENT_LEAD
    holder.mount("tmpfs", SEGMENT_PLACE, safe, f"mode=700,uid={uid},size={room}")
    token, path = os.urandom(16).hex(), Path(SEGMENT_PLACE, "file")
    tool = str(resources.tool("nearmetal-segment"))
    argv = (
        tool,
        "create",
        str(path),
        "--parts",
        str(wanted.nr),
        "--part-size",
        str(crew.part_size),
        "--token",
        "-",
    )
    _run(runner, argv, "no segment", f"{token}\n".encode())
    os.chown(path, uid, -1)
    told = _run(runner, (tool, "show", str(path), "--json"), "no segment")
    found = re.search(r'"part_off":\s*(\d+)', told)
    if found is None:
        raise SlurmError("nearmetal-segment does not tell where the parts are")
    return Layout(token, wanted.nr, crew.part_size, int(found[1]), path.stat().st_size)


def _as_user(job: Job) -> tuple[str, ...]:
    """Return what makes QEMU a process of the job's user, who may do nothing else."""
    account = job.account
    groups = set(os.getgrouplist(account.name, account.gid))
    if job.wanted.accel == "kvm":
        groups.add(_KVM.stat().st_gid)
    return (
        "setpriv",
        f"--reuid={account.uid}",
        f"--regid={account.gid}",
        f"--groups={','.join(map(str, sorted(groups)))}",
        "--no-new-privs",
        "--inh-caps=-all",
        "--bounding-set=-all",
    )


def _give(name: str, text: str, uid: int) -> None:
    """Write a file that the job's user alone may read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(Path(PLACE, name), flags, 0o600), "w", encoding="utf-8") as stream:
        os.fchown(stream.fileno(), uid, -1)
        stream.write(text)


def _run(runner: Runner, argv: tuple[str, ...], what: str, stdin: bytes = b"") -> str:
    try:
        return runner.check(Command(argv, stdin=stdin), timeout_s=_STEP_S).text
    except CommandError as error:
        raise SlurmError(f"{what}: {error.hint or error.message}") from error


__all__ = ["JOB", "Crew", "Order", "prepare", "start"]
