# SPDX-License-Identifier: Apache-2.0
"""What somebody needs of an adapter: the model of a needs file, and of the command line."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nearmetal.advise.version import parse_version


class Platform(StrEnum):
    """Whose virtual machines."""

    VSPHERE = "vsphere"
    KVM = "kvm"
    ANY = "any"


class Fabric(StrEnum):
    """What the network speaks to the guest."""

    IB = "ib"
    ROCE = "roce"
    RDMA = "rdma"
    """Either of the two."""
    TCP = "tcp"
    ANY = "any"


class Messages(StrEnum):
    """What the program's messages are like."""

    SMALL = "small"
    """Many messages of at most a kibibyte: latency and message rate decide."""
    MIXED = "mixed"
    LARGE = "large"
    """Nearly all bytes in messages of 64 KiB and more: bandwidth decides."""


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Version = Annotated[str, Field(min_length=1, max_length=40)]


class Needs(BaseModel):
    """Needs, as hard conditions and as context. Nothing that is unknown is assumed."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    platform: Platform = Platform.ANY
    vsphere: Version | None = None
    kernel: Version | None = None
    """Of the KVM host."""
    qemu: Version | None = None
    libvirt: Version | None = None
    guest_kernel: Version | None = None
    hardware_version: Count | None = None
    """Of the virtual machine, on vSphere."""
    adapter: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}$")] | None = None
    """Model of the card, for example ConnectX-6."""
    fabric: Fabric = Fabric.ANY
    live_migration: bool = False
    snapshots: bool = False
    """Snapshot, suspend and resume with the adapter attached."""
    ha: bool = False
    """Restart on another host after a host failed."""
    drs: bool = False
    """Placed by the cluster at power-on; live balancing is `live_migration`."""
    vms_per_adapter: Count = 1
    ranks_per_node: Count | None = None
    messages: Messages | None = None
    cores: Count | None = None
    """Cores of a node."""
    reserved_cores: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Of them kept for the hypervisor."""

    @field_validator("vsphere", "kernel", "qemu", "libvirt", "guest_kernel")
    @classmethod
    def _is_version(cls, text: str | None) -> str | None:
        if text is not None:
            parse_version(text)
        return text

    @model_validator(mode="after")
    def _fits(self) -> Needs:
        if self.platform is Platform.KVM and (self.vsphere or self.hardware_version):
            msg = "vsphere and hardware_version mean nothing on kvm|drop them, or the platform"
            raise ValueError(msg)
        if self.platform is Platform.VSPHERE and (self.kernel or self.qemu or self.libvirt):
            msg = "kernel, qemu and libvirt mean nothing on vsphere|drop them, or the platform"
            raise ValueError(msg)
        if self.reserved_cores is not None and (
            self.cores is None or self.reserved_cores >= self.cores
        ):
            msg = "reserved_cores needs cores, and must be less|44 of 48: cores 48, reserved 4"
            raise ValueError(msg)
        return self

    @property
    def core_loss(self) -> float | None:
        """Share of a node's cores that programs lose to the hypervisor; None: not said."""
        if self.cores is None or self.reserved_cores is None:
            return None
        return self.reserved_cores / self.cores
