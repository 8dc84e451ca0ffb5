# SPDX-License-Identifier: Apache-2.0
"""What the guest is told by vSphere's customization: its name and its address."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field

from nearmetal.cluster.backends.vsphere.spec.names import shaped
from nearmetal.config.model import Model

DHCP = "dhcp"


def address_range(value: str) -> list[ipaddress.IPv4Interface]:
    """Return the addresses in `10.1.0.11/24` or `10.1.0.11-10.1.0.18/24`; raises ValueError."""
    span, slash, prefix = value.partition("/")
    first, _, last = span.partition("-")
    try:
        begin = ipaddress.IPv4Interface(f"{first}{slash}{prefix}")
        end = ipaddress.IPv4Interface(f"{last or first}{slash}{prefix}")
    except ValueError as error:
        msg = f"is no address: {error}|write dhcp, 10.1.0.11/24, or 10.1.0.11-10.1.0.18/24"
        raise ValueError(msg) from None
    if not slash:
        msg = "has no prefix length|write for example 10.1.0.11/24"
        raise ValueError(msg)
    if begin.network != end.network or begin.ip > end.ip:
        msg = "is no range within one subnet|write the lower address first"
        raise ValueError(msg)
    numbers = range(int(begin.ip), int(end.ip) + 1)
    if len(numbers) > MAX_RANGE:
        msg = f"has {len(numbers)} addresses|a range has at most {MAX_RANGE}"
        raise ValueError(msg)
    return [ipaddress.IPv4Interface((number, begin.network.prefixlen)) for number in numbers]


MAX_RANGE = 4096


def _address(value: str) -> str:
    if value != DHCP:
        address_range(value)
    return value


def _ipv4(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        msg = "is no IPv4 address|write for example 10.1.0.1"
        raise ValueError(msg) from None


IPv4 = Annotated[str, AfterValidator(_ipv4)]
HostName = Annotated[
    str,
    shaped(
        r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?",
        "is no host name|use letters, digits and -, without the domain",
    ),
]
Domain = Annotated[
    str,
    shaped(
        r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?",
        "is no domain|write for example cluster.example.org",
    ),
]


class GuestSettings(Model):
    """Guest customization. What is not said comes from the cluster's `machine`, key by key."""

    address: Annotated[str, AfterValidator(_address)] | None = Field(
        default=None,
        description="dhcp, an address with prefix length, or a range that nodes take in turn",
    )
    gateway: IPv4 | None = Field(default=None, description="default gateway")
    dns: list[IPv4] | None = Field(default=None, description="name servers")
    domain: Domain | None = Field(default=None, description="domain name")
    hostname: HostName | None = Field(
        default=None, description="what the guest calls itself; the node's name by default"
    )
