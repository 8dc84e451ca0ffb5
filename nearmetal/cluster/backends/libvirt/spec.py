# SPDX-License-Identifier: Apache-2.0
"""What a spec of `backend: libvirt` may say: virtual machines on hosts that libvirt manages."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from nearmetal.cluster.model import ClusterSpec, Cpus, Finding, Host, Network, Node, too_small
from nearmetal.config.model import MAX_NODES, AbsolutePath, Model, Size
from nearmetal.host.vf.request import VfRequest

MIN_PART = 2 << 20
MIN_MEMORY = 256 << 20

SegmentDevice = Literal["auto", "ivshmem", "virtio-pmem", "nvdimm", "none"]
Accel = Literal["auto", "kvm", "tcg"]


def _part(value: int) -> int:
    if value < MIN_PART or value & (value - 1):
        msg = "is no power of two of at least 2 MiB|write for example 64 MiB"
        raise ValueError(msg)
    return value


def _memory(value: int) -> int:
    if value < MIN_MEMORY or value % (1 << 20):
        msg = "is not a multiple of 1 MiB, of at least 256 MiB|write for example 1 GiB"
        raise ValueError(msg)
    return value


def _uri(value: str) -> str:
    if any(c.isspace() or c in "'\"<>\\`$;" for c in value):
        msg = "is not a libvirt URI|write for example qemu:///system"
        raise ValueError(msg)
    scheme, _, rest = value.partition("://")
    if scheme not in ("qemu", "qemu+unix", "qemu+ssh") or "/" not in rest:
        msg = "is not a URI of libvirt's QEMU driver|qemu:///system, qemu+ssh://root@host/system"
        raise ValueError(msg)
    if (scheme == "qemu+ssh") == (rest.startswith("/")):
        msg = "names a host without ssh, or ssh without a host|qemu+ssh://root@host/system"
        raise ValueError(msg)
    if ":" in rest.partition("@")[0] and "@" in rest:
        msg = "holds a password|use an ssh key, and its agent"
        raise ValueError(msg)
    return value


class LibvirtNode(Node):
    """One virtual machine."""

    memory: Annotated[Size, AfterValidator(_memory)] = Field(
        default=1 << 30,
        description="its main memory, without the segment",
        json_schema_extra={"default": "1 GiB"},
    )
    cpus: Literal["auto", "none"] | Cpus = Field(
        default="auto",
        description="cores of the host its processors are pinned to; none: the kernel's choice",
    )
    emulator_cpus: Literal["auto", "none"] | Cpus = Field(
        default="none",
        description="cores for QEMU's own threads; auto: those that no processor is pinned to",
    )
    numa: Literal["auto", "none"] = Field(
        default="auto", description="auto: its memory lies where its processors run"
    )
    hugepages: Literal["none", "2 MiB", "1 GiB"] = Field(
        default="none", description="pages its memory is made of"
    )
    locked: bool = Field(default=False, description="its memory is never swapped out")
    viommu: bool = Field(default=False, description="an emulated Intel IOMMU")
    soft_roce: bool = Field(default=False, description="a soft-RoCE device on its interface")
    vf: VfRequest | None = Field(default=None, description="a virtual function of an adapter")


class SegmentSpec(Model):
    """The memory through which the virtual machines of one host meet."""

    device: SegmentDevice = Field(
        default="auto", description="how the machines see it; auto: plan chooses, and says why"
    )
    part: Annotated[Size, AfterValidator(_part)] = Field(
        default=64 << 20,
        description="bytes for each machine, a power of two",
        json_schema_extra={"default": "64 MiB"},
    )
    parts: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = Field(
        default="auto", description="for how many machines; auto: as many as there are nodes"
    )


class LibvirtHost(Host):
    """Virtual machines on one hypervisor."""

    uri: Annotated[str, Field(max_length=256), AfterValidator(_uri)] = Field(
        default="qemu:///system", description="its libvirt"
    )
    directory: Literal["auto"] | AbsolutePath = Field(
        default="auto", description="where segments, seeds, overlays and consoles lie on the host"
    )
    segment: SegmentSpec = Field(default_factory=SegmentSpec)
    nodes: Annotated[list[LibvirtNode], Field(min_length=1, max_length=MAX_NODES)]


class LibvirtNetwork(Network):
    """The network of the virtual machines."""

    bridge: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,14}$")] | None = Field(
        default=None,
        description="an existing bridge, of that name on every host; without it libvirt makes one",
    )


class LibvirtSpec(ClusterSpec):
    """A virtual cluster of virtual machines."""

    backend: Literal["libvirt"] = Field(description="libvirt: virtual machines on QEMU")
    network: LibvirtNetwork = Field(default_factory=LibvirtNetwork)
    image: Literal["default"] | AbsolutePath = Field(
        default="default", description="default: the built image; or the path of a cloud image"
    )
    accel: Accel = Field(
        default="auto", description="auto: KVM where a probe boot proves it works, else TCG"
    )
    hosts: Annotated[list[LibvirtHost], Field(min_length=1, max_length=64)]

    mixed: ClassVar = {
        "parts": "is no number of parts|write auto, or for example 4",
        "directory": "is no directory|write auto, or an absolute path",
        "image": "is no image|write default, or the absolute path of a cloud image",
        "create": "is no number of VFs|write auto, or for example 7",
        "guid": "are no GUIDs|write derived, or a node and a port",
    }

    @property
    def nodes(self) -> list[tuple[LibvirtHost, LibvirtNode]]:
        """All nodes with their hosts, in the order of the spec."""
        return [(host, node) for host in self.hosts for node in host.nodes]

    @property
    def uris(self) -> list[str]:
        """The hypervisors, each once, in the order of the spec."""
        return list(dict.fromkeys(host.uri for host in self.hosts))

    def first_host(self, uri: str) -> str:
        """Return the name of the first host on a hypervisor, which names its network."""
        return next(host.name for host in self.hosts if host.uri == uri)

    def findings(self) -> list[Finding]:
        """Return what only the whole spec of virtual machines shows."""
        found = too_small(self)
        if len(self.uris) > 1 and self.network.bridge is None:
            why = f"the hosts have {len(self.uris)} hypervisors, and what libvirt makes reaches one"
            hint = "name a bridge that exists on every host"
            found.append(Finding(("network",), "network.bridge is missing", why, hint))
        for i, host in enumerate(self.hosts):
            parts = host.segment.parts
            if parts != "auto" and parts < len(host.nodes):
                path = ("hosts", i, "segment", "parts")
                why = f"the host has {len(host.nodes)} nodes"
                found.append(Finding(path, f"{parts} parts", why, "each node needs one"))
        return found
