# SPDX-License-Identifier: Apache-2.0
"""Starts the virtual machines of a job on this node: QEMUs of its user, in its container.

Their boot is not awaited here: a task does that, in its user's terminal, while other nodes boot
theirs.

The ssh keys of a job are the same on all of its nodes without any communication: they are derived
from a file that only root reads and that all nodes have. Without it no process can compute the keys
of a job, and the keys of one job say nothing about those of another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from nearmetal.cluster.backends.libvirt.build import Layout
from nearmetal.config.explain import first_problem
from nearmetal.core import resources
from nearmetal.core.errors import CommandError, ImageError, SlurmError
from nearmetal.core.process import Command, Runner
from nearmetal.image import Cache, cache_directory, find_image, load_image, parts_here
from nearmetal.slurm import holder, limits, network
from nearmetal.slurm.container import ContainerRequest, Machines, RefusedError
from nearmetal.slurm.machines import (
    PLACE,
    SEGMENT_PLACE,
    BootFiles,
    Job,
    JobKey,
    check_allocated,
    check_node,
    known_hosts,
    members,
    part_size,
    qemu_words,
    seed_of,
    ssh_config,
)
from nearmetal.slurm.network import Member
from nearmetal.slurm.place import account_of, give
from nearmetal.slurm.queue import allocated, configuration, expand, node_addresses
from nearmetal.slurm.records import write

EVENTS = "events"
"""In PLACE: counts machines that were killed for lack of memory; as in src/spank/guest.h."""

NAMES = "machines"
"""A record: the machines of this node, one per line; the plugin spreads tasks over them."""

MIN_KEY_BYTES = 32
_MAX_KEY_BYTES = 4096
_KIND = b"ssh-ed25519"
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
"""The bytes before the 32 bytes of an Ed25519 key in its PKCS#8 form (RFC 8410)."""

_SPKI = bytes.fromhex("302a300506032b6570032100")
"""The bytes before the 32 bytes of the public key."""

_BLOCK = 8
_WIDTH = 70
_STEP_S = 60.0
_PLACE_SIZE = "64m"
"""For seeds and consoles: a guest that writes much fills only this."""

_SEGMENT_LEAD = 16 << 20
_KVM = Path("/dev/kvm")
_TMPFS = holder.MS_NOSUID | holder.MS_NODEV | holder.MS_NOEXEC
_WITHIN = (
    "sh",
    "-c",
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit; shift; done; shift; exec "$@"',
    "sh",
)
"""Enters control groups, then starts the program that follows."""

_KEY = re.compile(r"^[0-9a-f]{16}$")


@dataclass(frozen=True)
class Crew:
    """The machines of a job, and those of them on this node."""

    job: Job
    here: tuple[Member, ...]
    boot: BootFiles
    part_size: int
    groups: limits.Groups


def prepare(wish: ContainerRequest, machines: Machines, records: Path, runner: Runner) -> Crew:
    """Check everything that may be wrong, then make the network and enter it.

    `records`: the job's. Raises RefusedError for an impossible request; SlurmError and ImageError
    for a fault of this node.
    """
    wanted = machines.wanted
    if not machines.nodes:
        raise SlurmError(f"job {wish.job}: slurmd does not name its nodes")
    nodes = expand(runner, machines.nodes)
    if wish.node not in nodes:
        raise SlurmError(f"job {wish.job}: node {wish.node!r} is not in its nodes {machines.nodes}")
    everyone = members(nodes, wanted.nr)
    size = part_size(wanted)
    user = account_of(wish.uid)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    check_node(wanted, memory, wish.node)
    has = allocated(runner, wish.job, wish.node)
    check_allocated(wanted, has, wish.node)
    config = configuration(runner)
    site_key = read_site_key(machines.key)
    boot = boot_of(wanted.image, Cache(cache_directory()))
    for share in wanted.shares:
        if not Path(share).is_dir():
            raise SlurmError(f"{share}: not a directory", "check `shares` in slurm.toml")
    host, node = (
        pair(derive(site_key, purpose, wish.job, wish.uid, machines.nodes), purpose, runner)
        for purpose in ("host", "node")
    )
    alone = len(nodes) == 1
    addresses = dict.fromkeys(nodes, "") if alone else node_addresses(runner, nodes)
    wires = network.Wires(wish.job, wish.uid, wish.node, addresses, everyone)
    mtu = network.make(wires, records, runner)
    job = Job(wish.job, everyone, wanted, user, host, node, mtu)
    here = tuple(m for m in everyone if m.node == wish.node)
    write(records / NAMES, "".join(f"{one.name}\n" for one in here))
    mount = Path(config.get("CgroupMountpoint", "/sys/fs/cgroup"))
    # Last: the caller removes them if anything fails from here on.
    groups = limits.make(
        records, f"job-{wish.job}.{wish.node}", mount, limits.limits_of(config, has)
    )
    return Crew(job, here, boot, size, groups)


def boot_of(name: str, cache: Cache) -> BootFiles:
    """Return the files of an image after a check of every byte. See `prepare` for errors."""
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
            known = [entry.key for entry in cache.entries() if not entry.problem]
            raise RefusedError(
                f"--nm-image={name}: no such image on this node; there are: "
                f"{' '.join(['default', *known])}"
            )
    return BootFiles(str(image.kernel), str(image.initrd), str(image.root), image.append)


def start(crew: Crew, runner: Runner) -> None:
    """Start the machines of this node, from within the container. Raises OSError or SlurmError."""
    uid = crew.job.user.uid
    Path(PLACE).mkdir()
    holder.mount("tmpfs", PLACE, _TMPFS, f"mode=700,uid={uid},size={_PLACE_SIZE}")
    layout = _segment(crew, runner) if crew.part_size else None
    if crew.groups.events is not None:
        Path(PLACE, EVENTS).symlink_to(crew.groups.events)
    give("key", crew.job.node.private, uid)
    give("known_hosts", known_hosts(crew.job), uid)
    entries = {m.name: {"HostName": m.address, "HostKeyAlias": m.name} for m in crew.here}
    give("ssh_config", ssh_config(crew.job.user.name, entries), uid)
    for number, one in enumerate(crew.here):
        try:
            seed = seed_of(crew.job, one, number, layout).secret_json()
        except ValidationError as error:
            raise SlurmError(f"machine {one.name}: {first_problem(error)}") from error
        give(f"{one.name}.seed", seed, uid)
        give(f"{one.name}.console", "", uid)
        words = qemu_words(crew.job, one, number, crew.boot, layout)
        inside = (*_WITHIN, *crew.groups.doors, "--", *_as_user(crew.job))
        _run(runner, (*inside, *words), f"machine {one.name} does not start")


def _segment(crew: Crew, runner: Runner) -> Layout:
    """Make the memory that the machines of this node share."""
    wanted, uid = crew.job.wanted, crew.job.user.uid
    Path(SEGMENT_PLACE).mkdir()
    room = wanted.segment_bytes + _SEGMENT_LEAD
    holder.mount("tmpfs", SEGMENT_PLACE, _TMPFS, f"mode=700,uid={uid},size={room}")
    token, path = os.urandom(16).hex(), Path(SEGMENT_PLACE, "file")
    tool = str(resources.tool("nearmetal-segment"))
    sizes = ("--parts", str(wanted.nr), "--part-size", str(crew.part_size))
    argv = (tool, "create", str(path), *sizes, "--token", "-")
    _run(runner, argv, "no segment", f"{token}\n".encode())
    os.chown(path, uid, -1)
    text = _run(runner, (tool, "show", str(path), "--json"), "no segment")
    found = re.search(r'"part_off":\s*(\d+)', text)
    if found is None:
        raise SlurmError("nearmetal-segment does not show the offset of the parts")
    return Layout(token, wanted.nr, crew.part_size, int(found[1]), path.stat().st_size)


def _as_user(job: Job) -> tuple[str, ...]:
    """Return the words that run QEMU as the job's user, without any capability."""
    user = job.user
    groups = set(os.getgrouplist(user.name, user.gid))
    if job.wanted.accel == "kvm":
        groups.add(_KVM.stat().st_gid)
    return (
        "setpriv",
        f"--reuid={user.uid}",
        f"--regid={user.gid}",
        f"--groups={','.join(map(str, sorted(groups)))}",
        "--no-new-privs",
        "--inh-caps=-all",
        "--bounding-set=-all",
    )


def _run(runner: Runner, argv: tuple[str, ...], what: str, stdin: bytes = b"") -> str:
    try:
        return runner.check(Command(argv, stdin=stdin), timeout_s=_STEP_S).text
    except CommandError as error:
        raise SlurmError(f"{what}: {error.hint or error.message}") from error


def read_site_key(path: Path) -> bytes:
    """Return the file's bytes; raises SlurmError if it is missing, short or readable for others."""
    hint = (
        f"make it on one node and copy it to all: install -m 600 <(head -c 64 /dev/urandom) {path}"
    )
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            key = stream.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise SlurmError(f"{path}: {error.strerror}: no keys for virtual machines", hint) from error
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
        raise SlurmError(f"{path}: others than its owner may read it", f"run `chmod 600 {path}`")
    if len(key) < MIN_KEY_BYTES:
        raise SlurmError(
            f"{path}: {len(key)} bytes are not enough for a key, which needs {MIN_KEY_BYTES}", hint
        )
    return key


def derive(site_key: bytes, purpose: str, job: int, uid: int, nodes: str) -> bytes:
    """Return 32 bytes for one purpose in one job. Pure."""
    message = f"nearmetal slurm 1 {purpose} job={job} uid={uid} nodes={nodes}"
    return hmac.new(site_key, message.encode(), hashlib.sha256).digest()


def pair(seed: bytes, comment: str, runner: Runner) -> JobKey:
    """Return the Ed25519 pair of a 32-byte seed. openssl computes the public half."""
    argv = ("openssl", "pkey", "-inform", "DER", "-pubout", "-outform", "DER")
    try:
        made = runner.check(Command(argv, stdin=_PKCS8 + seed), timeout_s=_STEP_S).stdout
    except CommandError as error:
        raise SlurmError(
            f"no key for virtual machines: {error.message}", error.hint or "install openssl"
        ) from error
    if not made.startswith(_SPKI) or len(made) != len(_SPKI) + len(seed):
        raise SlurmError("the output of openssl is not an Ed25519 key")
    return encode(seed, made[len(_SPKI) :], comment)


def encode(seed: bytes, public: bytes, comment: str) -> JobKey:
    """Return a pair in OpenSSH's own format, without a passphrase. Pure."""
    blob = _text(_KIND) + _text(public)
    # The same number twice shows a reader that it has deciphered the rest.
    check = hashlib.sha256(seed + b"check").digest()[:4]
    secret = check + check + blob + _text(seed + public) + _text(comment.encode())
    secret += bytes(range(1, 1 + -len(secret) % _BLOCK))
    plain = _text(b"none") + _text(b"none") + _text(b"")
    whole = b"openssh-key-v1\0" + plain + (1).to_bytes(4, "big") + _text(blob) + _text(secret)
    body = base64.b64encode(whole).decode()
    lines = [body[i : i + _WIDTH] for i in range(0, len(body), _WIDTH)]
    private = "\n".join(
        ["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""]
    )
    return JobKey(private, f"ssh-ed25519 {base64.b64encode(blob).decode()} {comment}")


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
