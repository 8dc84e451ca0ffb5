# SPDX-License-Identifier: Apache-2.0
"""The keys that a virtual machine on vSphere has, said for all of a cluster or for one node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nearmetal.cluster.backends.vsphere.spec.adapters import Adapter
from nearmetal.cluster.backends.vsphere.spec.guest import GuestSettings
from nearmetal.cluster.backends.vsphere.spec.names import Inventory, InventoryPath
from nearmetal.config.model import Model, Size

MIN_MEMORY = 4 << 20

Clone = Literal["full", "linked", "instant"]
Shares = Literal["low", "normal", "high"] | Annotated[int, Field(ge=1, le=4_000_000)]
Reservation = Literal["none", "full"]
Processors = Annotated[list[Annotated[int, Field(ge=0, le=4095)]], Field(min_length=1)]
NumaNodes = Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(min_length=1)]


def _memory(value: int) -> int:
    if value < MIN_MEMORY or value % MIN_MEMORY:
        msg = "is not a multiple of 4 MiB|write for example 16 GiB"
        raise ValueError(msg)
    return value


class Machine(Model):
    """All keys may be left out: a node takes the cluster's, and the cluster the default."""

    template: Inventory | None = Field(default=None, description="the template it is cloned from")
    clone: Clone | None = Field(
        default=None, description="full (default), linked, or instant: how it is cloned"
    )
    vcpus: Annotated[int, Field(ge=1, le=768)] | None = Field(
        default=None, description="virtual processors; the template's by default"
    )
    cores_per_socket: Annotated[int, Field(ge=1, le=768)] | None = Field(
        default=None, description="how they are shown to the guest; the template's by default"
    )
    memory: Annotated[Size, AfterValidator(_memory)] | None = Field(
        default=None, description="main memory; the template's by default"
    )
    cpu_reservation: Reservation | None = Field(
        default=None, description="none (default), or full: all cycles of its processors"
    )
    memory_reservation: Reservation | None = Field(
        default=None, description="none (default), or full: all of it, whatever its size"
    )
    cpu_shares: Shares | None = Field(
        default=None, description="low, normal (default), high, or a number"
    )
    memory_shares: Shares | None = Field(
        default=None, description="low, normal (default), high, or a number"
    )
    latency: Literal["normal", "high"] | None = Field(
        default=None, description="latency sensitivity: normal (default) or high"
    )
    affinity: Processors | None = Field(
        default=None, description="logical processors of the host it may run on"
    )
    numa: NumaNodes | None = Field(default=None, description="NUMA nodes of the host it may run on")
    hardware: Annotated[int, Field(ge=8, le=99)] | None = Field(
        default=None, description="virtual hardware version; the template's by default"
    )
    mmio: Size | None = Field(
        default=None, description="64-bit MMIO space, for devices with large memory regions"
    )
    p2p: bool | None = Field(default=None, description="whether devices may reach each other")
    datastore: Inventory | None = Field(
        default=None, description="where its files lie; the template's by default"
    )
    resource_pool: InventoryPath | None = Field(
        default=None, description="its resource pool; the cluster's root by default"
    )
    adapters: Annotated[list[Adapter], Field(max_length=26)] | None = Field(
        default=None, description="its adapters, instead of the template's network cards"
    )
    guest: GuestSettings | None = Field(
        default=None, description="guest customization; none by default"
    )
    power: Literal["on", "off"] | None = Field(default=None, description="on (default) or off")


DEFAULTS = Machine(
    clone="full",
    cpu_reservation="none",
    memory_reservation="none",
    cpu_shares="normal",
    memory_shares="normal",
    latency="normal",
    power="on",
    p2p=False,
)
"""What holds where neither the node nor the cluster says anything."""


def _said(model: Model) -> dict[str, object]:
    pairs = ((name, getattr(model, name)) for name in type(model).model_fields)
    return {name: value for name, value in pairs if value is not None}


def merged(common: Machine, own: Machine) -> Machine:
    """Return what holds for one machine: its own word, the cluster's, the default."""
    values: dict[str, object] = {}
    for model in (DEFAULTS, common, own):
        values.update({n: v for n, v in _said(model).items() if n in Machine.model_fields})
    if common.guest is not None and own.guest is not None:
        values["guest"] = common.guest.model_copy(update=_said(own.guest))
    return Machine.model_construct(**values)  # type: ignore[arg-type]
