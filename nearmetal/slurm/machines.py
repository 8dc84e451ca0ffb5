# SPDX-License-Identifier: Apache-2.0
"""The virtual machines of a job: names, addresses, seeds and QEMU's words. Pure.

Every node of a job works all of it out by itself, for all nodes, and comes to the same.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nearmetal.cluster.backends.libvirt.machine import ALL_PCI, OWN_PCI, ivshmem_words
from nearmetal.config.model import MAX_NODES
from nearmetal.image.seed import (
    FW_CFG_NAME,
    Seed,
    SeedInterface,
    SeedNode,
    SeedSegment,
    SeedShare,
    SeedSsh,
    SeedUser,
)
from nearmetal.slurm.wanted import Allocated, RefusedError, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.slurm.keys import Pair

PLACE = "/run/nearmetal/vm"
"""Where a job's machines have their files, in its mount namespace; as in src/spank/guest.h."""

SEGMENT_PLACE = "/run/nearmetal/segment"
JOB = "/run/nearmetal/job"

NETWORK = ipaddress.IPv4Network("10.208.0.0/12")
"""Of every job: it is in a network namespace of its own, with no way to any other network."""

_NODES_FROM = 1 << 19
"""The machines' addresses come first, then those of their nodes."""

MIN_PART = 2 << 20
OVERHEAD_BYTES = 96 << 20
"""What a QEMU takes besides its guest's memory, about."""

TCG_MIB = 64
"""What it keeps of translated code besides, where it emulates: of its own accord, up to 1 GiB."""


@dataclass(frozen=True)
class Member:
    """One machine of the job, on this or another node."""

    name: str
    node: str
    address: str
    mac: str


@dataclass(frozen=True)
class Account:
    """The job's user as this node knows them."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True)
class Layout:
    """Where the bytes of a node's segment lie. The token is secret."""

    token: str
    nr_parts: int
    part_size: int
    part_off: int
    size: int


@dataclass(frozen=True)
class Boot:
    """What all machines boot."""

    kernel: str
    initrd: str
    root: str
    arguments: str


ROOT_SERIAL = "nearmetal-root"
"""By which the built image's first program finds its root disk."""


def members(nodes: Sequence[str], nr: int) -> tuple[Member, ...]:
    """Return every machine of a job, node by node. Raises RefusedError when they are too many."""
    if len(nodes) * nr > MAX_NODES:
        raise RefusedError(
            f"{len(nodes)} nodes with {nr} virtual machines each: {MAX_NODES} machines are the most"
        )
    names = [f"{_clean(node)}-vm{i}" for node in nodes for i in range(nr)]
    if len(set(names)) != len(names):
        names = [f"vm{i}" for i in range(len(names))]
    return tuple(
        Member(name, nodes[i // nr], str(NETWORK[1 + i]), _mac(0, i))
        for i, name in enumerate(names)
    )


def node_address(number: int) -> str:
    """Return the address of a node in the network of a job."""
    return str(NETWORK[_NODES_FROM + 1 + number])


def node_mac(number: int) -> str:
    """Return the address of a node's bridge."""
    return _mac(1, number)


def _mac(kind: int, number: int) -> str:
    return f"52:54:00:{kind:02x}:{number >> 8:02x}:{number & 0xFF:02x}"


def _clean(name: str) -> str:
    """Return a node's name as a host name within the limits of a seed."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:24]
    return plain if plain[:1].isalpha() else f"n{plain}"


def check_account(account: Account) -> None:
    """Raise RefusedError for a user whom no machine can be told of, such as one without a home."""
    try:
        SeedUser(name=account.name, uid=account.uid, gid=account.gid, home=account.home)
    except ValidationError as error:
        what = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        raise RefusedError(
            f"no virtual machines for user {account.name}: {what} "
            f"{getattr(account, what)!r} cannot be had in one"
        ) from error


def _needs(wanted: Wanted) -> int:
    """Return the memory that a node's machines take."""
    each = wanted.memory_bytes + OVERHEAD_BYTES + ((TCG_MIB << 20) if _emulates(wanted) else 0)
    return wanted.nr * each + (wanted.segment_bytes if wanted.nr > 1 else 0)


def _emulates(wanted: Wanted) -> bool:
    return wanted.accel == "tcg"


def check_node(wanted: Wanted, memory_bytes: int, node: str) -> None:
    """Raise RefusedError when they are larger than the node is: Slurm may not count memory."""
    needs = _needs(wanted)
    if needs > memory_bytes:
        raise RefusedError(
            f"{wanted.nr} virtual machines of {wanted.memory_bytes >> 20}M need {needs >> 20}M, "
            f"and node {node} has {memory_bytes >> 20}M: give a smaller --nm-memory"
        )


def check_allocated(wanted: Wanted, allocated: Allocated, node: str) -> None:
    """Raise RefusedError when a node's machines are larger than what the job has there."""
    needs = _needs(wanted)
    if allocated.memory_bytes and needs > allocated.memory_bytes:
        raise RefusedError(
            f"{wanted.nr} virtual machines of {wanted.memory_bytes >> 20}M need {needs >> 20}M on "
            f"node {node}, and the job has {allocated.memory_bytes >> 20}M: give --mem={needs >> 20}M"
        )
    cpus = wanted.nr * wanted.vcpus
    if allocated.cpus and cpus > allocated.cpus:
        raise RefusedError(
            f"{wanted.nr} virtual machines of {wanted.vcpus} need {cpus} processors on node {node}, "
            f"and the job has {allocated.cpus}: give more tasks or --cpus-per-task"
        )


def part_size(wanted: Wanted) -> int:
    """Return the size of a machine's part of the segment; 0: one machine needs none."""
    if wanted.nr == 1:
        return 0
    room = 1
    while room <= wanted.nr:
        room *= 2
    size = MIN_PART
    if wanted.segment_bytes < room * size:
        raise RefusedError(
            f"--nm-segment: {wanted.nr} virtual machines need {room * size >> 20}M at least"
        )
    while room * size * 2 <= wanted.segment_bytes:
        size *= 2
    return size


@dataclass(frozen=True)
class Job:
    """All that the seeds of a job's machines are made of."""

    number: int
    members: tuple[Member, ...]
    wanted: Wanted
    account: Account
    host: Pair
    node: Pair
    mtu: int


def seed_of(job: Job, member: Member, number: int, layout: Layout | None) -> Seed:
    """Return what one machine is told; `number`: its place among those of its node."""
    segment = None
    if layout is not None:
        segment = SeedSegment(
            device="ivshmem",
            token=layout.token,
            nr_parts=layout.nr_parts,
            part=number,
            part_size=layout.part_size,
            size=layout.size,
            own_pci=OWN_PCI,
            all_pci=ALL_PCI,
        )
    paths = (JOB, *job.wanted.shares)
    account = job.account
    return Seed(
        cluster=f"job-{job.number}",
        name=member.name,
        nodes=[
            SeedNode(
                name=m.name,
                address=m.address,
                slots=job.wanted.vcpus,
                host=_clean(m.node),
                ssh_host_key=job.host.public,
            )
            for m in job.members
        ],
        interfaces=[
            SeedInterface(
                mac=member.mac, address=f"{member.address}/{NETWORK.prefixlen}", mtu=job.mtu
            )
        ],
        # Nobody gets in from outside, and root not at all: the job's own key opens its user.
        ssh=SeedSsh(
            authorized_keys=[],
            host_key=job.host.private,
            node_key=job.node.private,
            node_key_public=job.node.public,
        ),
        segment=segment,
        user=SeedUser(name=account.name, uid=account.uid, gid=account.gid, home=account.home),
        shares=[SeedShare(tag=f"nm{i}", path=path) for i, path in enumerate(paths)],
    )


def qemu_words(
    job: Job, member: Member, number: int, boot: Boot, layout: Layout | None
) -> tuple[str, ...]:
    """Return QEMU and its arguments for one machine. It goes on by itself once it runs."""
    wanted = job.wanted
    memory = wanted.memory_bytes >> 20
    cpu = "max" if _emulates(wanted) else "host"
    accel = f"tcg,tb-size={TCG_MIB}" if _emulates(wanted) else wanted.accel
    at = f"{PLACE}/{member.name}"
    words = [
        "qemu-system-x86_64",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-daemonize",
        "-name",
        f"job-{job.number}-{member.name}",
        "-no-reboot",
        # Main memory is the first memory object: a machine with ivshmem is migrated only so.
        "-object",
        f"memory-backend-memfd,id=ram,size={memory}M,share=on",
        "-machine",
        "q35,memory-backend=ram,usb=off",
        "-accel",
        accel,
        "-cpu",
        cpu,
        "-smp",
        str(wanted.vcpus),
        "-m",
        f"{memory}M",
        "-kernel",
        boot.kernel,
        "-initrd",
        boot.initrd,
        "-append",
        boot.arguments,
        "-drive",
        f"if=none,id=root,format=raw,readonly=on,file={boot.root}",
        "-device",
        f"virtio-blk-pci,drive=root,serial={ROOT_SERIAL}",
        "-fw_cfg",
        f"name={FW_CFG_NAME},file={at}.seed",
        "-chardev",
        f"file,id=console,path={at}.console",
        "-serial",
        "chardev:console",
        "-netdev",
        f"tap,id=net,ifname={tap(number)},script=no,downscript=no",
        "-device",
        f"virtio-net-pci,netdev=net,mac={member.mac},host_mtu={job.mtu},romfile=",
        "-object",
        "rng-random,id=rng,filename=/dev/urandom",
        "-device",
        "virtio-rng-pci,rng=rng",
        "-pidfile",
        f"{at}.pid",
        # Not what -daemonize itself needs: to make processes. It is the user, and stays so.
        "-sandbox",
        "on,obsolete=deny,resourcecontrol=deny",
    ]
    for i, path in enumerate((JOB, *wanted.shares)):
        words += [
            "-fsdev",
            f"local,id=fs{i},path={path},security_model=none,multidevs=remap",
            "-device",
            f"virtio-9p-pci,fsdev=fs{i},mount_tag=nm{i}",
        ]
    if layout is not None:
        offset = layout.part_off + number * layout.part_size
        words += ivshmem_words(f"{SEGMENT_PLACE}/file", layout.size, offset, layout.part_size)
    return tuple(words)


def tap(number: int) -> str:
    """Return the interface of a machine on its node."""
    return f"vm{number}"


def ssh_config(job: Job, here: Sequence[Member]) -> str:
    """Return how ssh reaches the machines of a node as the job's user."""
    lines = [
        "Host *",
        f"  User {job.account.name}",
        f"  IdentityFile {PLACE}/key",
        f"  UserKnownHostsFile {PLACE}/known_hosts",
        "  GlobalKnownHostsFile /dev/null",
        "  IdentitiesOnly yes",
        "  StrictHostKeyChecking yes",
        "  CheckHostIP no",
        "  UpdateHostKeys no",
        "  PreferredAuthentications publickey",
        "  BatchMode yes",
        "  LogLevel ERROR",
        "  ForwardX11 no",
        "  EscapeChar none",
        "  ConnectTimeout 120",
        "  ServerAliveInterval 30",
        "  ServerAliveCountMax 10",
        "  TCPKeepAlive no",
    ]
    for member in here:
        lines += [
            f"Host {member.name}",
            f"  HostName {member.address}",
            f"  HostKeyAlias {member.name}",
        ]
    return "\n".join(lines) + "\n"


def known_hosts(job: Job) -> str:
    """Return the public keys of the job's machines."""
    return "".join(f"{m.name} {job.host.public}\n" for m in job.members)
