# SPDX-License-Identifier: Apache-2.0
"""The settings of a virtual machine on vSphere: names, adapters, guest, and the machine's own."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.config.model import Model, Size, shaped

MAX_NAME = 80
"""The limit of vCenter."""

MAX_RANGE = 4096
MIN_MEMORY = 4 << 20
DHCP = "dhcp"


def _optional(description: str) -> Any:
    """Return the field of a key that a spec may omit."""
    return Field(default=None, description=description)


# Names and addresses


def _inventory(value: str) -> str:
    if not value or len(value) > MAX_NAME or value != value.strip() or not value.isprintable():
        raise ValueError(f"is not a name of vCenter|write 1 to {MAX_NAME} visible characters")
    if any(c in value for c in "/\\%"):
        raise ValueError("has a character that vCenter escapes|use no / \\ or % in a name")
    return value


def _path(value: str) -> str:
    return "/".join(_inventory(part) for part in value.split("/"))


def _ipv4(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ValueError("is not an IPv4 address|write for example 10.1.0.1") from None


def address_range(value: str) -> list[ipaddress.IPv4Interface]:
    """Return the addresses in `10.1.0.11/24` or `10.1.0.11-10.1.0.18/24`; raises ValueError."""
    span, slash, prefix = value.partition("/")
    first, _, last = span.partition("-")
    try:
        begin = ipaddress.IPv4Interface(f"{first}{slash}{prefix}")
        end = ipaddress.IPv4Interface(f"{last or first}{slash}{prefix}")
    except ValueError as error:
        hint = "write dhcp, 10.1.0.11/24, or 10.1.0.11-10.1.0.18/24"
        raise ValueError(f"is not an address: {error}|{hint}") from None
    if not slash:
        raise ValueError("has no prefix length|write for example 10.1.0.11/24")
    if begin.network != end.network or begin.ip > end.ip:
        raise ValueError("is not a range within one subnet|write the lower address first")
    numbers = range(int(begin.ip), int(end.ip) + 1)
    if len(numbers) > MAX_RANGE:
        raise ValueError(f"has {len(numbers)} addresses|a range has at most {MAX_RANGE}")
    return [ipaddress.IPv4Interface((number, begin.network.prefixlen)) for number in numbers]


def _address(value: str) -> str:
    if value != DHCP:
        address_range(value)
    return value


def _memory(value: int) -> int:
    if value < MIN_MEMORY or value % MIN_MEMORY:
        raise ValueError("is not a multiple of 4 MiB|write for example 16 GiB")
    return value


_HEX = "[0-9a-fA-F]"
_PCI = rf"{_HEX}{{4}}:{_HEX}{{2}}:[01]{_HEX}\.[0-7]"
_WORD = "[A-Za-z0-9]([A-Za-z0-9{}]{{0,{}}}[A-Za-z0-9])?"

Inventory = Annotated[str, AfterValidator(_inventory)]
InventoryPath = Annotated[str, AfterValidator(_path)]
PciAddress = Annotated[
    str,
    shaped(_PCI, "is not a PCI address|write the form of ESXi, for example 0000:3b:00.0"),
    AfterValidator(str.lower),
]
ModelId = Annotated[
    str,
    shaped(
        rf"{_HEX}{{4}}:{_HEX}{{4}}",
        "is not a vendor and a device|write four hexadecimal digits each, for example '15b3:1019'",
    ),
    AfterValidator(str.lower),
]
Profile = Annotated[
    str,
    shaped(r"[A-Za-z0-9_.-]{1,80}", "is not a vGPU profile|write for example grid_v100-4q"),
]
HOST_KEY_PATTERN = r"(ssh-ed25519|ecdsa-sha2-nistp256|ssh-rsa) [A-Za-z0-9+/]{16,4096}={0,2}"
"""A public key of sshd without its comment."""

HostKey = Annotated[
    str,
    shaped(
        HOST_KEY_PATTERN, "is not a public key|write its type and its text: ssh-ed25519 AAAA..."
    ),
]
IPv4 = Annotated[str, AfterValidator(_ipv4)]
HostName = Annotated[
    str,
    shaped(_WORD.format("-", 61), "is not a host name|use letters, digits and -, without domain"),
]
Domain = Annotated[
    str,
    shaped(_WORD.format(".-", 251), "is not a domain|write for example cluster.example.org"),
]

# Adapters

AdapterKind = Literal["vmxnet3", "pvrdma", "sriov", "passthrough", "dynamic", "vgpu"]

NETWORK_KINDS = ("vmxnet3", "pvrdma", "sriov")
"""Kinds that are network cards to vCenter: each needs a port group."""

FIXED_KINDS = ("sriov", "passthrough", "dynamic", "vgpu")
"""Kinds by which a device accesses the guest's memory, so that all of it must be reserved."""

MIN_HARDWARE = {"sriov": 10, "vgpu": 11, "pvrdma": 13, "dynamic": 17}
"""The first virtual hardware version that has the kind: of ESXi 5.5 for SR-IOV adapters (vSphere
Networking, "Upgrading from vSphere 5.1"), of 6.0 and 7.0 where the API first has the backings of
vGPUs and of dynamic devices, and for PVRDMA as VMW-ADAPTER says."""

_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vmxnet3": (("port_group",), ("switch",)),
    "pvrdma": (("port_group",), ("switch", "protocol")),
    "sriov": (("port_group", "pf"), ("switch", "guest_mtu")),
    "passthrough": (("device",), ()),
    "dynamic": (("models",), ("label",)),
    "vgpu": (("profile",), ()),
}
"""By kind: the keys that it needs, and the keys that it may have."""


def adapter_text(values: Mapping[str, Any]) -> str:
    """Return an adapter as plans show it, for example `sriov port_group=pg guest_mtu=true`."""
    words = []
    for name, value in values.items():
        if value in (None, ""):
            continue
        text = "+".join(value) if isinstance(value, list) else value
        words.append(f"{name}={str(text).lower() if isinstance(text, bool) else text}")
    return " ".join(words).removeprefix("kind=")


class VmAdapter(Model):
    """One adapter. `kind` decides about the other keys."""

    kind: AdapterKind = Field(
        description="vmxnet3, pvrdma, sriov; passthrough, dynamic (DirectPath I/O), vgpu"
    )
    port_group: Inventory | None = _optional("vmxnet3, pvrdma, sriov: port group of the adapter")
    switch: Inventory | None = _optional(
        "distributed switch of the port group, if several switches have one of this name"
    )
    pf: PciAddress | None = _optional("sriov: PCI address of the physical function on the host")
    guest_mtu: bool | None = _optional("sriov: whether the guest may change the MTU")
    protocol: Literal["rocev1", "rocev2"] | None = _optional(
        "pvrdma: the protocol; default: that of the template or of vCenter"
    )
    device: PciAddress | None = _optional("passthrough: PCI address of the device on the host")
    models: Annotated[list[ModelId], Field(min_length=1)] | None = _optional(
        "dynamic: models that vCenter may assign, as vendor:device"
    )
    label: Inventory | None = _optional("dynamic: required hardware label of the device")
    profile: Profile | None = _optional("vgpu: the vGPU profile")

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        needed, allowed = _KEYS[self.kind]
        given = {n for n in type(self).model_fields if n != "kind" and getattr(self, n) is not None}
        missing = [name for name in needed if name not in given]
        if missing:
            hint = f"an adapter of kind {self.kind} needs {' and '.join(needed)}"
            raise ValueError(f"has no {missing[0]}|{hint}")
        foreign = sorted(given - {*needed, *allowed})
        if foreign:
            hint = f"use only {', '.join((*needed, *allowed))}"
            raise ValueError(f"has {foreign[0]}, which kind {self.kind} does not take|{hint}")
        return self

    def __str__(self) -> str:
        return adapter_text(self.model_dump())


# Guest and machine


class GuestSettings(Model):
    """Guest customization. A key that a node omits comes from the cluster's `machine`."""

    address: Annotated[str, AfterValidator(_address)] | None = _optional(
        "dhcp, an address with prefix length, or a range that nodes take in order"
    )
    gateway: IPv4 | None = _optional("default gateway")
    dns: list[IPv4] | None = _optional("name servers")
    domain: Domain | None = _optional("domain name")
    hostname: HostName | None = _optional("host name of the guest; default: the name of the node")


Clone = Literal["full", "linked", "instant"]
INSTANT = "instant"
TAKEN_OVER = ("cpu_reservation", "memory_reservation", "latency", "affinity", "numa", "p2p")
"""Settings with defaults that an instant clone has from its source: both must be the same."""

OF_THE_SOURCE = (
    *("vcpus", "cores_per_socket", "memory", "hardware", "mmio", "secure_boot", "adapters"),
    "guest",
)
"""Settings that an instant clone does not take."""
Shares = Literal["low", "normal", "high"] | Annotated[int, Field(ge=1, le=4_000_000)]
Reservation = Literal["none", "full"]
Count = Annotated[int, Field(ge=1, le=768)]
Processors = Annotated[list[Annotated[int, Field(ge=0, le=4095)]], Field(min_length=1)]
NumaNodes = Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(min_length=1)]


class MachineSettings(Model):
    """Every key is optional: the cluster's value replaces a missing one, then the default."""

    template: Inventory | None = _optional(
        "template of the clone; of an instant clone: a running machine"
    )
    clone: Clone | None = _optional("kind of clone: full (default), linked, or instant")
    vcpus: Count | None = _optional("virtual processors; default: those of the template")
    cores_per_socket: Count | None = _optional(
        "cores of each socket that the guest sees; default: those of the template"
    )
    memory: Annotated[Size, AfterValidator(_memory)] | None = _optional(
        "main memory; default: that of the template"
    )
    cpu_reservation: Reservation | None = _optional(
        "none (default), or full: all cycles of its processors"
    )
    memory_reservation: Reservation | None = _optional(
        "none (default), or full: all its memory, at any size"
    )
    cpu_shares: Shares | None = _optional("low, normal (default), high, or a number")
    memory_shares: Shares | None = _optional("low, normal (default), high, or a number")
    latency: Literal["normal", "high"] | None = _optional(
        "latency sensitivity: normal (default) or high"
    )
    affinity: Processors | None = _optional("logical processors of the host that it may use")
    numa: NumaNodes | None = _optional("NUMA nodes of the host that it may use")
    hardware: Annotated[int, Field(ge=8, le=99)] | None = _optional(
        "least virtual hardware version; default: that of the template"
    )
    mmio: Size | None = _optional("64-bit MMIO space, for devices with large memory regions")
    secure_boot: bool | None = _optional(
        "whether EFI boots signed code only; default: that of the template"
    )
    p2p: bool | None = _optional("whether devices may reach each other's memory")
    datastore: Inventory | None = _optional("datastore of its files; default: the template's")
    resource_pool: InventoryPath | None = _optional(
        "its resource pool; default: the root of the cluster of hosts"
    )
    adapters: Annotated[list[VmAdapter], Field(max_length=26)] | None = _optional(
        "its adapters, instead of the template's network cards"
    )
    guest: GuestSettings | None = _optional("guest customization; default: none")
    power: Literal["on", "off"] | None = _optional("on (default) or off")


DEFAULTS = MachineSettings(
    clone="full",
    cpu_reservation="none",
    memory_reservation="none",
    cpu_shares="normal",
    memory_shares="normal",
    latency="normal",
    power="on",
    p2p=False,
)
"""Values of keys that neither the node nor the cluster has."""


def _given(model: Model) -> dict[str, Any]:
    pairs = ((name, getattr(model, name)) for name in type(model).model_fields)
    return {name: value for name, value in pairs if value is not None}


def merged(common: MachineSettings, own: MachineSettings) -> MachineSettings:
    """Return the settings of one machine: its own value, else the cluster's, else the default."""
    values: dict[str, Any] = {}
    for model in (DEFAULTS, common, own):
        values |= {n: v for n, v in _given(model).items() if n in MachineSettings.model_fields}
    if common.guest is not None and own.guest is not None:
        values["guest"] = common.guest.model_copy(update=_given(own.guest))
    return MachineSettings.model_construct(**values)
