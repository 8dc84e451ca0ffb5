# SPDX-License-Identifier: Apache-2.0
"""The virtual machines of a job: names, seeds and QEMU's arguments. Pure.

Every node of a job computes all of it for all nodes, with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from nearmetal.cluster.backends.libvirt.build import Layout
from nearmetal.cluster.backends.libvirt.machine import ALL_PCI, OWN_PCI, ivshmem_words
from nearmetal.config.model import MAX_NODES
from nearmetal.core import ssh
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
from nearmetal.slurm.container import MachineRequest, RefusedError
from nearmetal.slurm.network import NETWORK, Member, member, tap
from nearmetal.slurm.queue import Allocated

PLACE = "/run/nearmetal/vm"
"""The directory of a job's machines, in its mount namespace; as in src/spank/guest.h."""

SEGMENT_PLACE = "/run/nearmetal/segment"
JOB = "/run/nearmetal/job"

MIN_PART = 2 << 20
OVERHEAD_BYTES = 96 << 20
"""About the memory of a QEMU without its guest's memory."""

TCG_MIB = 64
"""Its cache of translated code under emulation, which has up to 1 GiB by default."""

ROOT_SERIAL = "nearmetal-root"
"""The first program of the built image finds its root disk by this serial number."""


@dataclass(frozen=True)
class JobKey:
    """A private key as ssh reads it, and its public half."""

    private: str = field(repr=False)
    public: str


@dataclass(frozen=True)
class BootFiles:
    """The files that all machines boot from, and the arguments of the kernel."""

    kernel: str
    initrd: str
    root: str
    arguments: str


def members(nodes: Sequence[str], nr: int) -> tuple[Member, ...]:
    """Return every machine of a job, node by node. Raises RefusedError if there are too many."""
    if len(nodes) * nr > MAX_NODES:
        raise RefusedError(
            f"{len(nodes)} nodes with {nr} virtual machines each: {MAX_NODES} machines are the most"
        )
    names = [f"{clean(node)}-vm{i}" for node in nodes for i in range(nr)]
    if len(set(names)) != len(names):
        names = [f"vm{i}" for i in range(len(names))]
    return tuple(member(name, nodes[i // nr], i) for i, name in enumerate(names))


def clean(name: str) -> str:
    """Return a node's name as a host name within the limits of a seed."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:24]
    return plain if plain[:1].isalpha() else f"n{plain}"


def user_of(name: str, uid: int, gid: int, home: str) -> SeedUser:
    """Return the user of the machines; raises RefusedError, for example for one without a home."""
    given = {"name": name, "uid": uid, "gid": gid, "home": home}
    try:
        return SeedUser.model_validate(given)
    except ValidationError as error:
        what = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        raise RefusedError(
            f"no virtual machines for user {name}: {what} {given[what]!r} cannot exist in one"
        ) from error


def _needs(wanted: MachineRequest) -> int:
    """Return the memory of a node's machines."""
    each = wanted.memory_bytes + OVERHEAD_BYTES + ((TCG_MIB << 20) if _emulates(wanted) else 0)
    return wanted.nr * each + (wanted.segment_bytes if wanted.nr > 1 else 0)


def _emulates(wanted: MachineRequest) -> bool:
    return wanted.accel == "tcg"


def check_node(wanted: MachineRequest, memory_bytes: int, node: str) -> None:
    """Raise RefusedError if they are larger than the node: Slurm may not count memory."""
    needs = _needs(wanted)
    if needs > memory_bytes:
        raise RefusedError(
            f"{wanted.nr} virtual machines of {wanted.memory_bytes >> 20}M need {needs >> 20}M, "
            f"and node {node} has {memory_bytes >> 20}M: give a smaller --nm-memory"
        )


def check_allocated(wanted: MachineRequest, allocated: Allocated, node: str) -> None:
    """Raise RefusedError if a node's machines are larger than the allocation of the job there."""
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


def part_size(wanted: MachineRequest) -> int:
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
    """The input for the seeds of a job's machines."""

    number: int
    members: tuple[Member, ...]
    wanted: MachineRequest
    user: SeedUser
    host: JobKey
    node: JobKey
    mtu: int

    @property
    def shared(self) -> tuple[str, ...]:
        """The directories of the node that its machines see."""
        return (JOB, *self.wanted.shares)


def seed_of(job: Job, one: Member, number: int, layout: Layout | None) -> Seed:
    """Return the seed of one machine; `number`: its place among those of its node."""
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
    address = f"{one.address}/{NETWORK.prefixlen}"
    return Seed(
        cluster=f"job-{job.number}",
        name=one.name,
        nodes=[
            SeedNode(
                name=m.name,
                address=m.address,
                slots=job.wanted.vcpus,
                host=clean(m.node),
                ssh_host_key=job.host.public,
            )
            for m in job.members
        ],
        interfaces=[SeedInterface(mac=one.mac, address=address, mtu=job.mtu)],
        # No key from outside opens it, and none opens root: the job's own key opens its user.
        ssh=SeedSsh(
            authorized_keys=[],
            host_key=job.host.private,
            node_key=job.node.private,
            node_key_public=job.node.public,
        ),
        segment=segment,
        user=job.user,
        shares=[SeedShare(tag=f"nm{i}", path=path) for i, path in enumerate(job.shared)],
    )


def qemu_words(
    job: Job, one: Member, number: int, boot: BootFiles, layout: Layout | None
) -> tuple[str, ...]:
    """Return QEMU and its arguments for one machine. QEMU detaches itself when it runs."""
    wanted = job.wanted
    memory = wanted.memory_bytes >> 20
    cpu = "max" if _emulates(wanted) else "host"
    accel = f"tcg,tb-size={TCG_MIB}" if _emulates(wanted) else wanted.accel
    at = f"{PLACE}/{one.name}"
    options = [
        "-nodefaults",
        "-no-user-config",
        "-daemonize",
        "-no-reboot",
        "-display none",
        f"-name job-{job.number}-{one.name}",
        # Main memory is the first memory object: migration of a machine with ivshmem needs it.
        f"-object memory-backend-memfd,id=ram,size={memory}M,share=on",
        "-machine q35,memory-backend=ram,usb=off",
        f"-accel {accel}",
        f"-cpu {cpu}",
        f"-smp {wanted.vcpus}",
        f"-m {memory}M",
        f"-kernel {boot.kernel}",
        f"-initrd {boot.initrd}",
        f"-append {boot.arguments}",
        f"-drive if=none,id=root,format=raw,readonly=on,file={boot.root}",
        f"-device virtio-blk-pci,drive=root,serial={ROOT_SERIAL}",
        f"-fw_cfg name={FW_CFG_NAME},file={at}.seed",
        f"-chardev file,id=console,path={at}.console",
        "-serial chardev:console",
        f"-netdev tap,id=net,ifname={tap(number)},script=no,downscript=no",
        f"-device virtio-net-pci,netdev=net,mac={one.mac},host_mtu={job.mtu},romfile=",
        "-object rng-random,id=rng,filename=/dev/urandom",
        "-device virtio-rng-pci,rng=rng",
        f"-pidfile {at}.pid",
        # -daemonize itself needs to make processes. QEMU already runs as the user.
        "-sandbox on,obsolete=deny,resourcecontrol=deny",
    ]
    for i, path in enumerate(job.shared):
        options += [
            f"-fsdev local,id=fs{i},path={path},security_model=none,multidevs=remap",
            f"-device virtio-9p-pci,fsdev=fs{i},mount_tag=nm{i}",
        ]
    words = [word for option in options for word in option.split(" ", 1)]
    if layout is not None:
        offset = layout.part_off + number * layout.part_size
        words += ivshmem_words(f"{SEGMENT_PLACE}/file", layout.size, offset, layout.part_size)
    return ("qemu-system-x86_64", *words)


def ssh_config(user: str, entries: Mapping[str, Mapping[str, str]]) -> str:
    """Return the configuration of ssh for a job's user. `entries`: options for each machine."""
    options = ssh.own_keys(f"{PLACE}/key", f"{PLACE}/known_hosts") | {
        "User": user,
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "PreferredAuthentications": "publickey",
        "ForwardX11": "no",
        "EscapeChar": "none",
        "ConnectTimeout": "120",
        "ServerAliveInterval": "30",
        "ServerAliveCountMax": "10",
        "TCPKeepAlive": "no",
    }
    # ssh takes the first value that it finds.
    sections: dict[str, Mapping[str, str]] = {**entries, "*": options}
    return "".join(f"{ssh.ssh_config(host, words)}\n" for host, words in sections.items())


def known_hosts(job: Job) -> str:
    """Return the public keys of the job's machines."""
    return "".join(f"{m.name} {job.host.public}\n" for m in job.members)
