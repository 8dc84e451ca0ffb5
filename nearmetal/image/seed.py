# SPDX-License-Identifier: Apache-2.0
"""What a host tells a virtual machine at its first boot: the seed. Pure data.

docs/design/guest.md says how it travels, what the guest makes of it, and which of it is secret.
The guest unit checks it again: a value here that could end a line or a shell word is refused.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nearmetal.config.model import MAX_NODES, Name

FW_CFG_NAME = "opt/nearmetal/seed"
"""Name of the firmware configuration item that carries the seed."""

READY_MARK = "nearmetal: ready"
FAILED_MARK = "nearmetal: failed"
"""How the lines begin by which the guest unit ends, on the console; the node's name follows."""

GUEST_USER = "mpi"
"""The user of the cluster in every guest: runs the jobs, owns nothing else; root administers."""

_MIN_PART = 2 << 20
_MAX_SEED_BYTES = 1 << 20


def _interface_address(value: str) -> str:
    return str(ipaddress.IPv4Interface(value))


def _address(value: str) -> str:
    return str(ipaddress.IPv4Address(value))


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        msg = "is no power of two"
        raise ValueError(msg)
    return value


def _plain_path(value: str) -> str:
    if ".." in value.split("/") or "." in value.split("/"):
        msg = "leads elsewhere"
        raise ValueError(msg)
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


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, strict=True)


class SeedNode(_Model):
    """One node of the cluster, as every node knows it; the list is in the order of the spec."""

    name: Name
    address: Address = Field(description="where its sshd listens and MPI launchers reach it")
    slots: Annotated[int, Field(ge=1, le=4096)]
    host: Name = Field(description="the physical host it runs on, for people and logs only")
    ssh_host_key: PublicKey = Field(description="its sshd's public key, for known_hosts")


class SeedVf(_Model):
    """What the host knows of a virtual function that it handed to this node."""

    pf: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")]
    index: Annotated[int, Field(ge=0, le=4095)]
    host_numa: Annotated[int, Field(ge=-1, le=4095)] = -1
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = None
    node_guid: Guid | None = None
    port_guid: Guid | None = None


class SeedInterface(_Model):
    """One network interface, recognized by its MAC address."""

    mac: Mac
    address: InterfaceAddress | None = Field(default=None, description="address/prefix length")
    mtu: Annotated[int, Field(ge=576, le=65535)] | None = None
    gateway: Address | None = None
    soft_roce: bool = Field(default=False, description="put a soft-RoCE device on it")
    vf: SeedVf | None = None


class SeedSsh(_Model):
    """Keys. The two private ones are secret: they travel in files of mode 0600 only."""

    authorized_keys: list[PublicKey] = Field(
        description="who may log in from outside, as root and as the user of the cluster"
    )
    host_key: PrivateKey = Field(description="this node's own sshd key")
    node_key: PrivateKey = Field(description="the cluster's key, by which its nodes reach another")
    node_key_public: PublicKey


class SeedSegment(_Model):
    """This node's part of the inter-VM segment of its host."""

    device: Literal["ivshmem", "dax"]
    token: Token = Field(description="the segment's UUID; must stand in the host page")
    nr_parts: Annotated[int, Field(ge=1, le=4096)]
    part: Annotated[int, Field(ge=0, le=4095)]
    part_size: PartSize = Field(description="size of the BAR through which the part is written")
    size: PartSize = Field(description="size of the BAR that shows everything, padding included")
    own_pci: PciAddress | None = Field(
        default=None, description="where in the guest, if that is certain; else found by its size"
    )
    all_pci: PciAddress | None = None
    numa: Annotated[int, Field(ge=-1, le=4095)] = Field(
        default=-1, description="the host's NUMA node of the memory; -1: unknown"
    )
    vcpu_numa: Annotated[int, Field(ge=-1, le=4095)] = Field(
        default=-1, description="the host's NUMA node of the virtual processors; -1: unknown"
    )
    distances: Annotated[list[Distance], Field(max_length=64)] = Field(
        default_factory=list,
        description="from that node to each one of the host; empty: unknown",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.part >= self.nr_parts:
            msg = f"part {self.part} of {self.nr_parts}"
            raise ValueError(msg)
        if self.size <= self.nr_parts * self.part_size:
            msg = f"{self.nr_parts} parts of {self.part_size} bytes do not fit in {self.size}"
            raise ValueError(msg)
        return self


class SeedUser(_Model):
    """Who runs jobs in the guest instead of GUEST_USER, with the numbers that files carry."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")]
    uid: Annotated[int, Field(ge=0, le=(1 << 32) - 2)]
    gid: Annotated[int, Field(ge=0, le=(1 << 32) - 2)]
    home: GuestPath


class SeedShare(_Model):
    """A directory of the host, seen at this path by 9p."""

    tag: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,31}$")]
    readonly: bool = Field(
        default=False, description="nobody there writes; it stands before `path`"
    )
    path: GuestPath


class Seed(_Model):
    """Everything one node is told. `secret` JSON for the guest, `public` for records and logs."""

    version: Literal[1] = 1
    cluster: Name
    name: Name = Field(description="this node; one of `nodes`")
    nodes: Annotated[list[SeedNode], Field(min_length=1, max_length=MAX_NODES)]
    interfaces: Annotated[list[SeedInterface], Field(min_length=1, max_length=16)]
    ssh: SeedSsh
    segment: SeedSegment | None = None
    user: SeedUser | None = None
    shares: Annotated[list[SeedShare], Field(max_length=16)] = []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [node.name for node in self.nodes]
        if self.name not in names:
            msg = f"{self.name} is none of the nodes"
            raise ValueError(msg)
        if len(set(names)) != len(names):
            msg = "two nodes have the same name"
            raise ValueError(msg)
        own = next(node.address for node in self.nodes if node.name == self.name)
        if own not in [str(i.address).partition("/")[0] for i in self.interfaces]:
            msg = f"none of the interfaces has the node's address {own}"
            raise ValueError(msg)
        macs = [interface.mac for interface in self.interfaces]
        if len(set(macs)) != len(macs):
            msg = "two interfaces have the same MAC address"
            raise ValueError(msg)
        return self

    def secret_json(self) -> str:
        """Return what the guest reads: it holds private keys, so write it to 0600 files only."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"

    def public_json(self) -> str:
        """Return the same without the private keys."""
        data = self.model_dump(mode="json", exclude={"ssh": {"host_key", "node_key"}})
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a seed back; raises pydantic's ValidationError, or ValueError when too long."""
        if len(text) > _MAX_SEED_BYTES:
            msg = "a seed is never larger than 1 MiB"
            raise ValueError(msg)
        return cls.model_validate_json(text)


def ready_line(name: str) -> str:
    """Return how the console line begins that says the node is ready for jobs."""
    return f"{READY_MARK} {name}"


def failed_line(name: str) -> str:
    """Return how the console line begins that says why the node is not; the reason follows."""
    return f"{FAILED_MARK} {name}: "
