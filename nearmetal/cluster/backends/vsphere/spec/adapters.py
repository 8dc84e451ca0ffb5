# SPDX-License-Identifier: Apache-2.0
"""Adapters of a virtual machine on vSphere, and what each kind must and must not say."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.cluster.backends.vsphere.spec.names import Inventory, PciAddress, shaped
from nearmetal.config.model import Model

AdapterKind = Literal["vmxnet3", "pvrdma", "sriov", "passthrough", "dynamic", "vgpu"]

NETWORK_KINDS = ("vmxnet3", "pvrdma", "sriov")
"""Those that are network cards to vCenter: they hang on a port group."""

FIXED_KINDS = ("sriov", "passthrough", "dynamic", "vgpu")
"""Those by which a device reaches into the guest's memory, so that all of it must be reserved."""

MIN_HARDWARE = {"sriov": 10, "vgpu": 11, "pvrdma": 13, "dynamic": 17}
"""The first virtual hardware version that has the kind: of ESXi 5.5 for SR-IOV adapters (vSphere
Networking, "Upgrading from vSphere 5.1"), of 6.0 and 7.0 where the API first has the backings of
vGPUs and of dynamic devices, and for PVRDMA as VMW-ADAPTER says."""

_NEEDED = {
    "vmxnet3": ("port_group",),
    "pvrdma": ("port_group",),
    "sriov": ("port_group", "pf"),
    "passthrough": ("device",),
    "dynamic": ("models",),
    "vgpu": ("profile",),
}
_ALLOWED = {
    "vmxnet3": ("switch",),
    "pvrdma": ("switch", "protocol"),
    "sriov": ("switch", "guest_mtu"),
    "passthrough": (),
    "dynamic": ("label",),
    "vgpu": (),
}


def _model_id(value: str) -> str:
    vendor, _, device = value.partition(":")
    if not (len(vendor) == len(device) == 4 and set(value) <= set("0123456789abcdefABCDEF:")):  # noqa: PLR2004 - hexadecimal digits
        msg = "is no vendor and device|write four hexadecimal digits each, for example '15b3:1019'"
        raise ValueError(msg)
    return value.lower()


_PROFILE = shaped(r"[A-Za-z0-9_.-]{1,80}", "is no vGPU profile|write for example grid_v100-4q")
ModelIds = Annotated[list[Annotated[str, AfterValidator(_model_id)]], Field(min_length=1)]


class Adapter(Model):
    """One adapter. `kind` decides which of the other keys it takes."""

    kind: AdapterKind = Field(
        description="vmxnet3, pvrdma, sriov; passthrough, dynamic (DirectPath I/O), vgpu"
    )
    port_group: Inventory | None = Field(
        default=None, description="vmxnet3, pvrdma, sriov: the port group it hangs on"
    )
    switch: Inventory | None = Field(
        default=None, description="the distributed switch, where several have a group of that name"
    )
    pf: PciAddress | None = Field(
        default=None, description="sriov: PCI address of the physical function on the host"
    )
    guest_mtu: bool | None = Field(
        default=None, description="sriov: whether the guest may change the MTU"
    )
    protocol: Literal["rocev1", "rocev2"] | None = Field(
        default=None, description="pvrdma: the protocol; the template's or vCenter's by default"
    )
    device: PciAddress | None = Field(
        default=None, description="passthrough: PCI address of the device on the host"
    )
    models: ModelIds | None = Field(
        default=None, description="dynamic: vendor:device of what may be given, any host's"
    )
    label: Inventory | None = Field(
        default=None, description="dynamic: the hardware label that devices must have"
    )
    profile: Annotated[str, _PROFILE] | None = Field(
        default=None, description="vgpu: the vGPU profile"
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        needed = _NEEDED[self.kind]
        given = {n for n in type(self).model_fields if n != "kind" and getattr(self, n) is not None}
        missing = [name for name in needed if name not in given]
        if missing:
            msg = f"has no {missing[0]}|an adapter of kind {self.kind} needs {' and '.join(needed)}"
            raise ValueError(msg)
        foreign = sorted(given - {*needed, *_ALLOWED[self.kind]})
        if foreign:
            known = ", ".join((*needed, *_ALLOWED[self.kind]))
            msg = f"has {foreign[0]}, which kind {self.kind} does not take|it takes {known}"
            raise ValueError(msg)
        return self

    def __str__(self) -> str:
        """Return everything it says, as `sriov port_group=pg pf=0000:3b:00.0`."""
        words: list[str] = [self.kind]
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "kind" or value is None:
                continue
            text = "+".join(value) if isinstance(value, list) else str(value).lower()
            words.append(f"{name}={value if isinstance(value, str) else text}")
        return " ".join(words)
