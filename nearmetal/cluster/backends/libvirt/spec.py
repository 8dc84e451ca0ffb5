# SPDX-License-Identifier: Apache-2.0
"""The spec of `backend: libvirt`: virtual machines on hosts that libvirt manages."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from nearmetal.cluster.model import Cpus, Finding, Host, Network, NetworkedSpec, Node, too_small
from nearmetal.config.model import MAX_NODES, AbsolutePath, Model, Size
from nearmetal.host.vf.request import VfRequest

GIB = 1 << 30
MAX_MMIO = 16384 * GIB
"""The largest 64-bit MMIO window that OVMF takes."""

MIN_PART = 2 << 20
MIN_MEMORY = 256 << 20
MAX_DEVICES = 16

SegmentDevice = Literal["auto", "ivshmem", "virtio-pmem", "nvdimm", "none"]
Accel = Literal["auto", "kvm", "tcg"]


def _part(value: int) -> int:
    if value < MIN_PART or value & (value - 1):
        raise ValueError("is not a power of two from 2 MiB on|use for example 64 MiB")
    return value


def _memory(value: int) -> int:
    if value < MIN_MEMORY or value % (1 << 20):
        raise ValueError("is not a multiple of 1 MiB from 256 MiB on|use for example 1 GiB")
    return value


def _mmio(value: int) -> int:
    if not 0 < value <= MAX_MMIO or value % GIB:
        raise ValueError("is not a whole number of GiB up to 16 TiB|use for example 64 GiB")
    return value


def _address(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", value):
        raise ValueError("is not a PCI address|use for example '0000:3b:00.0'")
    return value


_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]"
_LOGIN = re.compile(rf"([A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}@)?({_HOST})(:[0-9]{{1,5}})?")
_PARAMETER = re.compile(r"(socket|keyfile|known_hosts|mode|sshauth)=/?[A-Za-z0-9_][A-Za-z0-9_./-]*")
"""Parameters of a URI without a program to run: `command` and `netcat` name one."""


def _uri(value: str) -> str:
    if any(c.isspace() or c in "'\"<>\\`$;" for c in value):
        raise ValueError("is not a libvirt URI|use for example qemu:///system")
    scheme, _, rest = value.partition("://")
    if scheme not in ("qemu", "qemu+unix", "qemu+ssh") or "/" not in rest:
        raise ValueError(
            "is not a URI of libvirt's QEMU driver|use qemu:///system or qemu+ssh://root@host/system"
        )
    if (scheme == "qemu+ssh") == (rest.startswith("/")):
        raise ValueError(
            "has a host without ssh, or ssh without a host|use qemu+ssh://root@host/system"
        )
    if ":" in rest.partition("@")[0] and "@" in rest:
        raise ValueError("contains a password|use an ssh key with its agent")
    login, _, path = rest.partition("/")
    if login and not _LOGIN.fullmatch(login):
        raise ValueError("has a host that is not valid|use qemu+ssh://root@host/system")
    _, _, query = path.partition("?")
    wrong = [word for word in query.split("&") if query and not _PARAMETER.fullmatch(word)]
    if wrong:
        raise ValueError(
            f"has the parameter {wrong[0][:40]!r}|"
            "use only socket, keyfile, known_hosts, mode and sshauth"
        )
    return value


HostAddress = Annotated[str, Field(pattern=rf"^({_HOST})$")]
"""A name, an IPv4 address, or an IPv6 address in brackets."""


class LibvirtNode(Node):
    """One virtual machine."""

    memory: Annotated[Size, AfterValidator(_memory)] = Field(
        default=1 << 30,
        description="main memory; the segment is additional",
        json_schema_extra={"default": "1 GiB"},
    )
    cpus: Literal["auto", "none"] | Cpus = Field(
        default="auto",
        description="cores of the host for its processors; none: the kernel of the host chooses",
    )
    emulator_cpus: Literal["auto", "none"] | Cpus = Field(
        default="none",
        description="cores for the threads of QEMU itself; auto: cores without a pinned node",
    )
    numa: Literal["auto", "none"] = Field(
        default="auto", description="auto: the memory comes from the NUMA nodes of the cores"
    )
    hugepages: Literal["none", "2 MiB", "1 GiB"] = Field(
        default="none", description="size of the pages of its memory"
    )
    locked: bool = Field(default=False, description="whether its memory is never swapped out")
    viommu: bool = Field(default=False, description="whether it has an emulated Intel IOMMU")
    soft_roce: bool = Field(
        default=False, description="whether its interface has a soft-RoCE device"
    )
    vf: VfRequest | None = Field(default=None, description="virtual function of an adapter")
    passthrough: Annotated[
        list[Annotated[str, AfterValidator(_address)]], Field(max_length=MAX_DEVICES)
    ] = Field(
        default_factory=list,
        description="whole devices of the host, by PCI address, that have the driver vfio-pci",
    )
    firmware: Literal["bios", "efi"] = Field(
        default="bios", description="firmware of the machine; efi: OVMF of the host"
    )
    mmio: Literal["auto"] | Annotated[Size, AfterValidator(_mmio)] = Field(
        default="auto",
        description="64-bit MMIO space under EFI; auto: for the memory regions of its devices",
    )


class SegmentSpec(Model):
    """The memory that the virtual machines of one host share."""

    device: SegmentDevice = Field(
        default="auto",
        description="device of the machines; auto: `plan` chooses and gives the reason",
    )
    part: Literal["auto"] | Annotated[Size, AfterValidator(_part)] = Field(
        default="auto",
        description="size of the part of each machine, a power of two; auto: by their slots",
    )
    parts: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = Field(
        default="auto", description="number of parts; auto: at least the number of nodes"
    )


class LibvirtHost(Host):
    """Virtual machines on one hypervisor."""

    uri: Annotated[str, Field(max_length=256), AfterValidator(_uri)] = Field(
        default="qemu:///system", description="libvirt URI of the hypervisor"
    )
    directory: Literal["auto"] | AbsolutePath = Field(
        default="auto",
        description="directory on the host for segment, seeds, overlays and consoles",
    )
    migration_address: HostAddress | None = Field(
        default=None,
        description="address at which other hosts send machines to it; default: host of the URI",
    )
    segment: SegmentSpec = Field(default_factory=SegmentSpec)
    nodes: Annotated[list[LibvirtNode], Field(max_length=MAX_NODES)] = Field(
        description="its virtual machines; [] for a host that only takes machines of others"
    )


class LibvirtNetwork(Network):
    """The network of the virtual machines."""

    bridge: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,14}$")] | None = Field(
        default=None,
        description="existing bridge, with this name on every host; default: libvirt makes one",
    )


class LibvirtSpec(NetworkedSpec):
    """A virtual cluster of virtual machines."""

    backend: Literal["libvirt"] = Field(description="libvirt: virtual machines on QEMU")
    network: LibvirtNetwork = Field(default_factory=LibvirtNetwork)
    image: Literal["default"] | AbsolutePath = Field(
        default="default", description="default: the built image; or the path of a cloud image"
    )
    accel: Accel = Field(default="auto", description="auto: KVM if a probe boot succeeds, else TCG")
    hosts: Annotated[list[LibvirtHost], Field(min_length=1, max_length=64)]

    mixed: ClassVar = {
        "part": "is not a power of two from 2 MiB on|use auto, or for example 64 MiB",
        "parts": "is not a number of parts|use auto, or for example 4",
        "directory": "is not a directory|use auto, or an absolute path",
        "image": "is not an image|use default, or the absolute path of a cloud image",
        "mmio": "is not a whole number of GiB up to 16 TiB|use auto, or for example 64 GiB",
        "create": "is not a number of VFs|use auto, or for example 7",
        "guid": "is not a pair of GUIDs|use derived, or a node and a port",
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
        """Return the broken rules that concern several keys."""
        found = too_small(self)
        if not self.nodes:
            why = "none of its hosts has one"
            found.append(
                Finding(("hosts",), "the cluster has no node", why, "add a node to a host")
            )
        if len(self.uris) > 1 and self.network.bridge is None:
            why = (
                f"the hosts have {len(self.uris)} hypervisors, and libvirt's own bridge reaches one"
            )
            hint = "add a bridge that exists on every host"
            found.append(Finding(("network",), "network.bridge is missing", why, hint))
        found += self._device_findings()
        for i, host in enumerate(self.hosts):
            parts = host.segment.parts
            if parts != "auto" and parts < len(host.nodes):
                path = ("hosts", i, "segment", "parts")
                why = f"the host has {len(host.nodes)} nodes"
                found.append(Finding(path, f"{parts} parts", why, "use at least one for each node"))
        return found

    def _device_findings(self) -> list[Finding]:
        found: list[Finding] = []
        users: dict[tuple[str, str], str] = {}
        places = ((i, j) for i, host in enumerate(self.hosts) for j, _ in enumerate(host.nodes))
        for i, j in places:
            host, node, path = self.hosts[i], self.hosts[i].nodes[j], ("hosts", i, "nodes", j)
            if node.mmio != "auto" and node.firmware != "efi":
                why = "it is a setting of EFI firmware; BIOS makes its own 64-bit MMIO space"
                hint = "add firmware: efi, or remove mmio"
                found.append(Finding((*path, "mmio"), f"node {node.name} boots by BIOS", why, hint))
            for k, address in enumerate(node.passthrough):
                other = users.setdefault((host.uri, address), node.name)
                if other != node.name or address in node.passthrough[:k]:
                    why, hint = f"node {other} has it already", "give a device to one node, once"
                    found.append(Finding((*path, "passthrough", k), address, why, hint))
        return found
