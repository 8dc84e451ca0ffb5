# SPDX-License-Identifier: Apache-2.0
"""The seed: the data that a host gives a virtual machine for its first boot. Pure data.

docs/design/guest.md describes its way, its use in the guest, and its secrets. The guest unit checks
it again. A value that could end a line or a shell word is refused here.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.config.model import Model, Name

FW_CFG_NAME = "opt/nearmetal/seed"
"""Name of the firmware configuration item that carries the seed."""

READY_MARK = "nearmetal: ready"
FAILED_MARK = "nearmetal: failed"
"""The beginnings of the guest unit's last line on the console; the node's name follows."""

KEY_MARK = "nearmetal: key"
"""The beginning of the line on the console of a machine that waits for its seed: the key of its sshd
follows."""

SAY_KEY = (
    f"line=\"{KEY_MARK} $(cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub)\"; "
    'for pause in 2 0; do for place in /dev/console /dev/ttyS0; do echo "$line" >$place; done; '
    "sleep $pause; done; true"
)
"""The command by which cloud-init prints that line. The console of the machine may be a screen. It is
printed twice, because a message of the kernel may cut a line."""

FIRST_PATH = "/etc/nearmetal/first.json"
"""The file of user data that the built image looks for."""

GUEST_USER = "mpi"
"""The user of the cluster in every guest, who runs the jobs and owns nothing else."""

_MIN_PART = 2 << 20
_MAX_NODES = 1000
_MAX_SEED_BYTES = 1 << 20


def _interface_address(value: str) -> str:
    return str(ipaddress.IPv4Interface(value))


def _address(value: str) -> str:
    return str(ipaddress.IPv4Address(value))


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("is not a power of two")
    return value


def _plain_path(value: str) -> str:
    if ".." in value.split("/") or "." in value.split("/"):
        raise ValueError("contains . or ..")
    return value


_KEY_BODY = r"[A-Za-z0-9+/]{16,4096}={0,2}"
Mac = Annotated[str, Field(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
Address = Annotated[str, AfterValidator(_address)]
InterfaceAddress = Annotated[str, AfterValidator(_interface_address)]
PciAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Guid = Annotated[str, Field(pattern=r"^[0-9a-f]{4}(:[0-9a-f]{4}){3}$")]
PublicKey = Annotated[
    str,
    Field(pattern=rf"^(ssh-ed25519|ecdsa-sha2-nistp256|ssh-rsa) {_KEY_BODY}( [\w.@-]{{1,64}})?$"),
]
PrivateKey = Annotated[
    str,
    Field(
        repr=False,
        max_length=16384,
        pattern=r"^-----BEGIN OPENSSH PRIVATE KEY-----\n([A-Za-z0-9+/=]{1,76}\n)+"
        r"-----END OPENSSH PRIVATE KEY-----\n$",
    ),
]
Distance = Annotated[int, Field(ge=0, le=255)]
GuestPath = Annotated[
    str, Field(pattern=r"^(/[A-Za-z0-9_.-]+)+$", max_length=1023), AfterValidator(_plain_path)
]
PartSize = Annotated[int, Field(ge=_MIN_PART, le=1 << 40), AfterValidator(_power_of_two)]


class SeedNode(Model):
    """One node of the cluster, as every node knows it; the list is in the order of the spec."""

    name: Name
    address: Address = Field(description="address of its sshd, which MPI launchers use")
    slots: Annotated[int, Field(ge=1, le=4096)]
    host: Name = Field(description="its physical host, for people and logs only")
    ssh_host_key: PublicKey = Field(description="public key of its sshd, for known_hosts")


class SeedVf(Model):
    """The host's facts about a virtual function that it handed to this node."""

    pf: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")]
    index: Annotated[int, Field(ge=0, le=4095)]
    host_numa: Annotated[int, Field(ge=-1, le=4095)] = -1
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = None
    node_guid: Guid | None = None
    port_guid: Guid | None = None


class SeedInterface(Model):
    """One network interface, recognized by its MAC address."""

    mac: Mac
    address: InterfaceAddress | None = Field(default=None, description="address/prefix length")
    mtu: Annotated[int, Field(ge=576, le=65535)] | None = None
    gateway: Address | None = None
    soft_roce: bool = Field(default=False, description="put a soft-RoCE device on it")
    keep: bool = Field(
        default=False, description="the machine has given itself this address: nothing is set"
    )
    vf: SeedVf | None = None


class SeedSsh(Model):
    """Keys. The two private ones are secret: they travel in files of mode 0600 only."""

    authorized_keys: list[PublicKey] = Field(
        description="keys for logins from outside, as root and as the user of the cluster"
    )
    host_key: PrivateKey = Field(description="key of this node's sshd")
    node_key: PrivateKey = Field(description="key of the cluster for logins between its nodes")
    node_key_public: PublicKey


class SeedSegment(Model):
    """This node's part of the inter-VM segment of its host."""

    device: Literal["ivshmem", "dax"]
    token: Token = Field(description="UUID of the segment, which the host page must contain")
    nr_parts: Annotated[int, Field(ge=1, le=4096)]
    part: Annotated[int, Field(ge=0, le=4095)]
    part_size: PartSize = Field(description="size of the BAR through which the part is written")
    size: PartSize = Field(description="size of the BAR that shows the whole segment, with padding")
    own_pci: PciAddress | None = Field(
        default=None, description="its address in the guest if known; else found by its size"
    )
    all_pci: PciAddress | None = None
    numa: Annotated[int, Field(ge=-1, le=4095)] = Field(
        default=-1, description="NUMA node of the host with the memory; -1: unknown"
    )
    vcpu_numa: Annotated[int, Field(ge=-1, le=4095)] = Field(
        default=-1, description="NUMA node of the host with the processors; -1: unknown"
    )
    distances: Annotated[list[Distance], Field(max_length=64)] = Field(
        default_factory=list,
        description="distances from that node to each node of the host; empty: unknown",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.part >= self.nr_parts:
            raise ValueError(f"part {self.part} of {self.nr_parts} does not exist")
        if self.size <= self.nr_parts * self.part_size:
            raise ValueError(
                f"{self.nr_parts} parts of {self.part_size} bytes do not fit in {self.size}"
            )
        return self


class SeedUser(Model):
    """The user of jobs in the guest instead of GUEST_USER, with the numbers in files."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")]
    uid: Annotated[int, Field(ge=0, le=(1 << 32) - 2)]
    gid: Annotated[int, Field(ge=0, le=(1 << 32) - 2)]
    home: GuestPath


class SeedShare(Model):
    """A directory of the host that the guest sees at this path by 9p."""

    tag: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,31}$")]
    readonly: bool = Field(default=False, description="the guest cannot write to it")
    path: GuestPath


class Seed(Model):
    """All data for one node."""

    version: Literal[1] = 1
    cluster: Name
    name: Name = Field(description="this node; one of `nodes`")
    nodes: Annotated[list[SeedNode], Field(min_length=1, max_length=_MAX_NODES)]
    interfaces: Annotated[list[SeedInterface], Field(min_length=1, max_length=16)]
    ssh: SeedSsh
    segment: SeedSegment | None = None
    user: SeedUser | None = None
    shares: Annotated[list[SeedShare], Field(max_length=16)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [node.name for node in self.nodes]
        if self.name not in names:
            raise ValueError(f"{self.name} is not in the list of nodes")
        if len(set(names)) != len(names):
            raise ValueError("two nodes have the same name")
        own = next(node.address for node in self.nodes if node.name == self.name)
        if own not in [str(i.address).partition("/")[0] for i in self.interfaces]:
            raise ValueError(f"no interface has the node's address {own}")
        macs = [interface.mac for interface in self.interfaces]
        if len(set(macs)) != len(macs):
            raise ValueError("two interfaces have the same MAC address")
        return self

    def secret_json(self) -> str:
        """Return the JSON for the guest: it holds private keys, so write it to 0600 files only."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a seed; raises pydantic's ValidationError, or ValueError if it is too long."""
        if len(text) > _MAX_SEED_BYTES:
            raise ValueError("a seed is never larger than 1 MiB")
        return cls.model_validate_json(text)


class FirstSsh(Model):
    """Who may enter a machine that has no seed yet."""

    authorized_keys: list[PublicKey] = Field(description="keys for logins as root")


class FirstSeed(Model):
    """All data for a machine that gets its seed by ssh later. None of it is secret.

    The built image takes it from the user data; other images take what cloud-init gives them.
    """

    version: Literal[1] = 1
    cluster: Name
    name: Name
    interfaces: Annotated[list[SeedInterface], Field(min_length=1, max_length=16)]
    ssh: FirstSsh


def ready_line(name: str) -> str:
    """Return the beginning of the console line of a node that is ready for jobs."""
    return f"{READY_MARK} {name}"


def failed_line(name: str) -> str:
    """Return the beginning of the console line of a node that is not; the reason follows."""
    return f"{FAILED_MARK} {name}: "


def first_user_data(first: FirstSeed) -> bytes:
    """Return the user data of a machine that gets its seed by ssh, for any image."""
    file = {"path": FIRST_PATH, "permissions": "0644", "content": first.model_dump_json()}
    return cloud_config(first.ssh.authorized_keys, SAY_KEY, file)


def cloud_config(authorized_keys: Sequence[str], script: str, *files: Mapping[str, str]) -> bytes:
    """Return user data for cloud-init: root accepts these keys, and its last stage runs a script.

    JSON is YAML as well.
    """
    data: dict[str, object] = {
        "disable_root": False,
        "ssh_pwauth": False,
        # A node gets its key from the seed; an RSA key takes an emulated processor a minute.
        "ssh_genkeytypes": ["ed25519"],
        "ssh_authorized_keys": list(authorized_keys),
        "runcmd": [["sh", "-c", script]],
    }
    if files:
        data["write_files"] = list(files)
    return b"#cloud-config\n" + json.dumps(data, indent=1).encode() + b"\n"
