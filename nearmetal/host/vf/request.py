# SPDX-License-Identifier: Apache-2.0
"""The request of a node for a virtual function (VF), and the addresses that the VF gets. Pure.

Addresses are derived from the names of cluster and node. So a virtual machine that is recreated on
any VF keeps its MAC address and its GUIDs, and leases, subnet managers and switches recognize it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nearmetal.config.model import Model

FULL_MEMBER = 0x8000
"""The bit of a partition key for a full member."""

MAX_VFS = 65535

_LOCAL, _GROUP = 0x02, 0x01


def _derived(kind: str, names: tuple[str, ...], size: int) -> str:
    digest = bytearray(hashlib.sha256("\0".join(["nearmetal", kind, *names]).encode()).digest())
    # Locally administered (IEEE 802, 8.2.2), not a group address, and so never zero.
    digest[0] = (digest[0] | _LOCAL) & ~_GROUP
    return ":".join(f"{byte:02x}" for byte in digest[:size])


def derive_mac(*names: str) -> str:
    """Return the MAC address of the VF of a virtual machine."""
    return _derived("mac", names, 6)


def derive_guids(*names: str) -> tuple[str, str]:
    """Return the node GUID and the port GUID of a VF; they differ and are not zero."""
    return _derived("node guid", names, 8), _derived("port guid", names, 8)


def _pf(value: str) -> str:
    if not re.fullmatch(r"(?!-)[A-Za-z0-9_.:-]{1,64}", value):
        raise ValueError(
            "is not the name of an adapter|"
            "use auto, a network device, an RDMA device or a PCI address"
        )
    return value


def _pkey(value: str) -> str:
    if not re.fullmatch(r"0x[0-9a-f]{1,4}", value) or int(value, 16) & ~FULL_MEMBER == 0:
        raise ValueError("is not a partition key|use four hexadecimal digits, for example '0x8012'")
    return f"0x{int(value, 16):04x}"


def _guid(value: str) -> str:
    if not re.fullmatch(r"([0-9a-f]{2}:){7}[0-9a-f]{2}", value) or not value.strip("0:"):
        raise ValueError(
            "is not a GUID|use eight bytes, not all zero, for example 02:11:22:33:44:55:66:77"
        )
    return value


PfName = Annotated[str, AfterValidator(_pf)]
Guid = Annotated[str, AfterValidator(_guid)]


class Guids(Model):
    """The GUIDs of a VF on InfiniBand, if the site assigns them."""

    node: Guid = Field(description="GUID of the VF as a node")
    port: Guid = Field(description="GUID of its port, which the subnet manager uses")


class VfRequest(Model):
    """A virtual function (VF) of an SR-IOV adapter, for one node."""

    pf: PfName | Annotated[list[PfName], Field(min_length=1)] = Field(
        default="auto",
        description="physical functions that may provide it: network device, RDMA device or "
        "PCI address; auto: any, nearest first",
    )
    create: Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_VFS)] = Field(
        default="auto",
        description="VFs to create if the adapter has none; auto: the adapter's maximum",
    )
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = Field(
        default=None, description="Ethernet: VLAN id"
    )
    trust: bool = Field(
        default=False, description="Ethernet: allow the guest to change its MAC address"
    )
    spoof_check: bool = Field(
        default=True, description="Ethernet: drop packets from other addresses than its own"
    )
    rate: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Ethernet: maximum rate of sent data in Mbit/s"
    )
    pkey: Annotated[str, AfterValidator(_pkey)] | None = Field(
        default=None, description="InfiniBand: partition key"
    )
    guid: Literal["derived"] | Guids = Field(
        default="derived",
        description="InfiniBand: derived from the names of cluster and node, or given",
    )

    @property
    def pfs(self) -> tuple[str, ...]:
        """The named adapters; () for any."""
        named = (self.pf,) if isinstance(self.pf, str) else tuple(self.pf)
        return () if "auto" in named else named
