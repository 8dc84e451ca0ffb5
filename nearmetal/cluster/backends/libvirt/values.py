# SPDX-License-Identifier: Apache-2.0
"""The resources of a cluster of virtual machines: typed values and needs. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import PlainSerializer

from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.resource import (
    Bytes,
    Key,
    Kind,
    Numbers,
    Resource,
    Values,
    Words,
    YesNo,
    from_text,
)
from nearmetal.config.size import format_size, parse_size
from nearmetal.host.vf.request import VfRequest

NONE = "none"
MADE = "(made)"
"""The bridge of a network that libvirt makes, in the network's values."""

Device = Literal["ivshmem", "virtio-pmem", "nvdimm", "none"]


class VirtualCluster(Values):
    """The records of the cluster on this machine."""

    backend: str


class Placed(Values):
    """A resource on one hypervisor."""

    uri: str


class VirtualNetwork(Placed):
    """The network of one hypervisor."""

    bridge: str
    subnet: str
    mtu: int
    address: str


class VirtualHost(Placed):
    """The directory and the segment of one host."""

    directory: str
    device: Device
    parts: int | None = None
    part_size: Bytes | None = None


class VirtualDisk(Placed):
    """The disk of one node."""

    host: str
    format: str
    image: str


class VirtualNode(Placed):
    """One virtual machine."""

    host: str
    slots: int
    memory: Bytes
    hugepages: Annotated[
        int,
        from_text(lambda text: 0 if text == NONE else parse_size(text)),
        PlainSerializer(lambda value: format_size(value) if value else NONE),
    ]
    locked: YesNo
    viommu: Literal["intel", "none"]
    soft_roce: YesNo
    accel: Literal["kvm", "tcg"]
    device: Device
    part: Annotated[
        int | None,
        from_text(lambda text: text or None),
        PlainSerializer(lambda value: "" if value is None else value),
    ]
    files: Literal["9p", "ssh"]
    """The way in which programs and MPIs come to the node."""
    address: str
    mac: str
    cpus: Numbers
    emulator_cpus: Numbers
    numa: Numbers
    image: str
    vf: (
        Annotated[
            VfRequest,
            from_text(VfRequest.model_validate_json),
            PlainSerializer(lambda value: value.model_dump_json(exclude_defaults=True)),
        ]
        | None
    ) = None
    passthrough: Words | None = None
    firmware: Literal["efi"] | None = None
    """None: BIOS, or no firmware at all for the built image."""
    mmio: Bytes | None = None
    """Size of the 64-bit MMIO window; None: that of the firmware."""
    home: str | None = None
    """The host of the spec from which it was moved to its present one; None: it was not."""


MODELS: dict[Kind, type[Values]] = {
    Kind.CLUSTER: VirtualCluster,
    Kind.NETWORK: VirtualNetwork,
    Kind.HOST: VirtualHost,
    Kind.DISK: VirtualDisk,
    Kind.NODE: VirtualNode,
}


def part_of(spec: LibvirtSpec, key: Key, values: Values) -> Resource:
    """Return a resource of the cluster of a spec with its needs."""
    if key.kind is Kind.CLUSTER:
        return Resource(key, values)
    needs = [Key(Kind.CLUSTER, spec.name)]
    match values:
        case VirtualHost(uri=uri) if uri in spec.uris:
            needs.append(Key(Kind.NETWORK, spec.first_host(uri)))
        case VirtualDisk(host=host):
            needs.append(Key(Kind.HOST, host))
        case VirtualNode(host=host):
            needs += [Key(Kind.HOST, host), Key(Kind.DISK, key.name)]
    return Resource(key, values, tuple(needs))
