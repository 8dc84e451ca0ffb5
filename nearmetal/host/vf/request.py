# SPDX-License-Identifier: Apache-2.0
"""What a node may ask of a virtual function (VF) of an SR-IOV adapter."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nearmetal.config.model import Model

FULL_MEMBER = 0x8000
"""The bit of a partition key that says "full member"."""

MAX_VFS = 65535


def _pf(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", value):
        msg = "names no adapter|write a network device, an RDMA device or a PCI address, or auto"
        raise ValueError(msg)
    return value


def _pkey(value: str) -> str:
    if not re.fullmatch(r"0x[0-9a-f]{1,4}", value) or int(value, 16) & ~FULL_MEMBER == 0:
        msg = "is no partition key|write four hexadecimal digits, for example '0x8012'"
        raise ValueError(msg)
    return f"0x{int(value, 16):04x}"


def _guid(value: str) -> str:
    if not re.fullmatch(r"([0-9a-f]{2}:){7}[0-9a-f]{2}", value) or not value.strip("0:"):
        msg = "is no GUID|write eight bytes, not all zero, for example 02:11:22:33:44:55:66:77"
        raise ValueError(msg)
    return value


PfName = Annotated[str, AfterValidator(_pf)]
Guid = Annotated[str, AfterValidator(_guid)]


class Guids(Model):
    """The GUIDs of a VF on InfiniBand, where the site gives them out."""

    node: Guid = Field(description="of the VF as a node")
    port: Guid = Field(description="of its port: what the subnet manager knows it by")


class VfRequest(Model):
    """A virtual function (VF) of an SR-IOV adapter, for one node."""

    pf: PfName | Annotated[list[PfName], Field(min_length=1)] = Field(
        default="auto",
        description="the physical functions to take it from, by network device, RDMA device or "
        "PCI address; auto: any, nearest first",
    )
    create: Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_VFS)] = Field(
        default="auto",
        description="VFs to create where the adapter has none; auto: all that it offers",
    )
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = Field(
        default=None, description="VLAN id, Ethernet"
    )
    trust: bool = Field(
        default=False, description="whether the guest may change its MAC address, Ethernet"
    )
    spoof_check: bool = Field(
        default=True, description="whether what it sends from other addresses is dropped, Ethernet"
    )
    rate: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="what it may send at most, in Mbit/s, Ethernet"
    )
    pkey: Annotated[str, AfterValidator(_pkey)] | None = Field(
        default=None, description="partition key, InfiniBand"
    )
    guid: Literal["derived"] | Guids = Field(
        default="derived",
        description="InfiniBand: derived from the names of cluster and node, or given",
    )

    @property
    def pfs(self) -> tuple[str, ...]:
        """The adapters that are named; () for any."""
        named = (self.pf,) if isinstance(self.pf, str) else tuple(self.pf)
        return () if "auto" in named else named
