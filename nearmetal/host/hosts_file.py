# SPDX-License-Identifier: Apache-2.0
"""The hosts file: what machines that carry virtual clusters shall be like, from BIOS to VFs.

Pure: a file in, a checked model out, or every problem with its line.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Literal

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from pydantic import AfterValidator, Field

from nearmetal.config.explain import load_yaml, parse_yaml
from nearmetal.config.model import AbsolutePath, Model, Name
from nearmetal.config.password import PasswordSource
from nearmetal.core.errors import SpecError
from nearmetal.host.vcenter.spec import Vcenter

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.config.document import Document

MAX_HOSTS = 4096
MAX_PORT_VFS = 512

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SET = re.compile(r"[A-Za-z0-9.,/\[\]-]{1,1024}")
_RANGE = re.compile(r"\[([0-9,/-]*)\]")
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6}){1,3}")
_PSID = re.compile(r"[A-Z0-9_]{4,16}")
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}(=[A-Za-z0-9_.,:@/+-]{1,256})?")
_CPULIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,255}")
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NODE = re.compile(r"(?=.)[A-Za-z0-9_.-]{0,64}(\{host\})?[A-Za-z0-9_.-]{0,64}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./-]{0,63}")


def _size_of(text: str) -> int:
    """Return how many hosts a node set may have at most, before it is expanded."""
    total = 0
    for part in re.split(r",(?![^\[]*\])", text):
        product = 1
        for body in _RANGE.findall(part):
            items = [item.partition("/")[0].partition("-") for item in body.split(",")]
            product *= sum(
                max(1, int(high[:18] or 0) - int(low[:18] or 0) + 1) if dash else 1
                for low, dash, high in items
            )
        total += product
    return total


def _node_set(value: str) -> str:
    if not _SET.fullmatch(value):
        msg = "is no node set; write for example kvm[01-16]"
        raise ValueError(msg)
    if _size_of(value) > MAX_HOSTS:
        msg = f"names more than {MAX_HOSTS} hosts; split the file"
        raise ValueError(msg)
    try:
        names = list(NodeSet(value, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        msg = f"is no node set: {error}; write for example kvm[01-16]"
        raise ValueError(msg) from None
    for name in names:
        if not _HOST.fullmatch(name):
            msg = f"holds {name[:40]!r}, which is no host name"
            raise ValueError(msg)
    if not names:
        msg = "names no host"
        raise ValueError(msg)
    return value


def expand(text: str) -> tuple[str, ...]:
    """Return the names in a checked node set, in its order."""
    return tuple(str(name) for name in NodeSet(text, resolver=RESOLVER_NOGROUP))


def fold(names: list[str]) -> str:
    """Return names as the shortest node set."""
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            msg = f"is {what}"
            raise ValueError(msg)
        return value

    return AfterValidator(check)


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]{}_-]{1,253}(/[A-Za-z0-9._/-]{0,200})?", value):
        msg = "is no address of a BMC; write for example https://bmc-{host}.example.com"
        raise ValueError(msg)
    if re.sub(r"\{host\}", "", value).count("{") or "}" in value.replace("{host}", ""):
        msg = "has a placeholder other than {host}"
        raise ValueError(msg)
    return value


Version = Annotated[str, _matching(_VERSION, "no version; write it in quotes, as '16.32.1010'")]
Argument = Annotated[
    str, _matching(_ARGUMENT, "no argument of a kernel; write for example iommu=pt")
]

AttributeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][ -~]{0,127}$")]


class Bmc(Model):
    """The management controller of a host, which speaks Redfish."""

    address: Annotated[str, AfterValidator(_url)] = Field(
        description="its URL; `{host}` stands for the name of the host"
    )
    user: str = Field(default="root", min_length=1, max_length=64, description="who logs in")
    password: PasswordSource | None = Field(default=None, description="where the password is")
    vendor: Literal["auto", "dell", "hpe", "lenovo", "supermicro"] = Field(
        default="auto", description="whose names the BIOS settings have; auto: as it says itself"
    )
    ca: AbsolutePath | None = Field(
        default=None, description="certificates to check its own against; none: the system's"
    )
    system: str | None = Field(
        default=None, max_length=128, description="which system, where it manages more than one"
    )


class Ssh(Model):
    """How a host is reached; everything else is in ssh_config(5)."""

    user: str = Field(
        default="root", pattern=r"^[a-z_][a-z0-9_-]{0,31}$", description="who logs in"
    )
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=22, description="the port")
    config: AbsolutePath | None = Field(default=None, description="a file of ssh_config(5) to use")


class Bios(Model):
    """BIOS settings by names that no vendor has. What is not named is left as it is."""

    virtualization: bool | None = Field(default=None, description="VT-x, AMD-V")
    iommu: bool | None = Field(default=None, description="VT-d, AMD IOMMU")
    sriov: bool | None = Field(default=None, description="SR-IOV, for the whole machine")
    smt: bool | None = Field(default=None, description="more than one thread per core")
    numa_per_socket: Literal[1, 2, 4] | None = Field(
        default=None, description="NUMA nodes per socket (sub-NUMA clustering above 1)"
    )
    power: Literal["performance", "os"] | None = Field(
        default=None,
        description="performance: the firmware's maximum; os: per watt, controlled by the system",
    )
    attributes: dict[AttributeName, bool | int | Annotated[str, Field(max_length=256)]] = Field(
        default_factory=dict,
        max_length=256,
        description="further attributes, by the vendor's own names",
    )


class Port(Model):
    """One port of an adapter."""

    link: Literal["infiniband", "ethernet"] | None = Field(
        default=None, description="its link type; none: as it is"
    )
    vfs: Annotated[int, Field(ge=0, le=MAX_PORT_VFS)] = Field(
        default=0, description="number of virtual functions"
    )
    mtu: Annotated[int, Field(ge=576, le=65520)] | None = Field(
        default=None, description="MTU of its network device and of its VFs'; none: as it is"
    )


class Image(Model):
    """A file of firmware on the host."""

    file: AbsolutePath = Field(description="where it lies on the host")
    version: Version = Field(description="which firmware it is")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="its checksum")


class Adapter(Model):
    """One card, found by model or PSID, and by its place where there are several."""

    model: Annotated[str, _matching(_MODEL, "no model")] | None = Field(
        default=None, description="as its tools call it, for example ConnectX-5"
    )
    psid: Annotated[str, _matching(_PSID, "no PSID; write for example MT_0000000008")] | None = (
        Field(default=None, description="the identity of its board")
    )
    address: str | None = Field(
        default=None,
        pattern=r"^([0-9a-f]{4}:)?[0-9a-f]{2}:[01][0-9a-f]$",
        description="its PCI address without the function, where two cards are alike: '0000:3b:00'",
    )
    firmware: Version | None = Field(default=None, description="the oldest firmware it may have")
    image: Image | None = Field(default=None, description="what to burn where it is older")
    num_of_vfs: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto",
        description="NUM_OF_VFS of its firmware; auto: what the ports need, and never less than now",
    )
    ats: bool | None = Field(
        default=None, description="address translation by the card (ATS_ENABLED), for GPUDirect"
    )
    ports: list[Port] = Field(
        default_factory=list, max_length=4, description="its ports, in order; [] leaves them alone"
    )

    @property
    def text(self) -> str:
        """What a person calls it."""
        return self.psid or self.model or self.address or "adapter"


class Hugepages(Model):
    """Huge pages reserved at boot."""

    size: Literal["2 MiB", "1 GiB"] = Field(default="1 GiB", description="of one page")
    count: Annotated[int, Field(ge=0, le=1 << 20)] = Field(description="how many")


class Kernel(Model):
    """What a Linux host is booted with. What is not named is left as it is."""

    iommu: Literal["on", "passthrough"] | None = Field(
        default=None, description="on; passthrough: on, and devices of the host bypass it"
    )
    hugepages: Hugepages | None = Field(default=None, description="huge pages reserved at boot")
    isolate: Annotated[str, _matching(_CPULIST, "no list of cores; write '2-15'")] | None = Field(
        default=None, description="cores that the scheduler leaves alone (isolcpus)"
    )
    arguments: list[Argument] = Field(
        default_factory=list, max_length=64, description="further arguments of the kernel"
    )


class Power(Model):
    """What a Linux host does about its clock. One of the two."""

    governor: (
        Literal["performance", "schedutil", "ondemand", "conservative", "powersave"] | None
    ) = Field(default=None, description="of cpufreq, for every core")
    profile: Annotated[str, _matching(_PROFILE, "no profile of tuned")] | None = Field(
        default=None, description="of tuned, for example virtual-host"
    )


class Slurm(Model):
    """The host as a node of Slurm. scontrol and squeue are run where nearmetal runs."""

    node: Annotated[str, _matching(_NODE, "no node name; `{host}` stands for the host's")] = Field(
        default="{host}", description="its name there; `{host}` stands for the name of the host"
    )
    drain: Annotated[int, Field(ge=0, le=30 * 86400)] = Field(
        default=3600, description="seconds that its jobs have to end before a reboot"
    )


class Package(Model):
    """A VIB or an offline bundle for ESXi, on a datastore that the host sees."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="as esxcli lists it"
    )
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9._-]{0,63}$")] = Field(
        description="the oldest acceptable version"
    )
    file: AbsolutePath = Field(description="the .vib or the .zip")


class Esxi(Model):
    """What is set through vCenter."""

    power: Literal["high-performance", "balanced", "low-power"] | None = Field(
        default=None, description="the power policy; none: as it is"
    )
    vsan: Literal["accessible", "evacuate", "none"] = Field(
        default="accessible",
        description="before a reboot, vSAN keeps objects accessible, moves all data away, or neither",
    )


class HostGroup(Model):
    """Hosts that shall be alike."""

    nodes: Annotated[str, AfterValidator(_node_set)] = Field(
        description="their names, as a ClusterShell node set: kvm[01-16]"
    )
    platform: Literal["linux", "esxi"] = Field(description="what they run")
    domain: Name | None = Field(
        default=None, description="what fails together: a rack, a power feed"
    )
    ssh: Ssh = Field(default_factory=Ssh, description="how they are reached")
    bmc: Bmc | None = Field(default=None, description="their management controllers")
    bios: Bios = Field(default_factory=Bios, description="settings of the BIOS")
    adapters: list[Adapter] = Field(default_factory=list, max_length=16, description="their cards")
    kernel: Kernel | None = Field(default=None, description="Linux: how they boot")
    power: Power | None = Field(default=None, description="Linux: what they do about their clock")
    slurm: Slurm | None = Field(
        default=None, description="Linux: drained in Slurm before a reboot; none: not in Slurm"
    )
    packages: list[Package] = Field(
        default_factory=list, max_length=16, description="ESXi: tools and drivers of the adapters"
    )
    vcenter: Vcenter | None = Field(
        default=None, description="ESXi: the vCenter that they are under, with the names of `nodes`"
    )
    esxi: Esxi = Field(default_factory=Esxi, description="ESXi: what is set through vCenter")

    @property
    def has_shell(self) -> bool:
        """Whether ssh may be used: always without a vCenter, else where the file speaks of it."""
        return self.vcenter is None or "ssh" in self.model_fields_set


class Limits(Model):
    """How many hosts may be away at once."""

    reboots: Annotated[int, Field(ge=1, le=MAX_HOSTS)] = Field(
        default=1, description="hosts that reboot at the same time"
    )
    per_domain: Annotated[int, Field(ge=1, le=MAX_HOSTS)] = Field(
        default=1, description="of them in one domain"
    )


class HostsFile(Model):
    """The whole file."""

    version: Literal[1] = Field(description="the version of this format")
    name: Name = Field(description="what this set of hosts is called")
    hosts: Annotated[list[HostGroup], Field(min_length=1, max_length=256)]
    canary: str | None = Field(
        default=None, description="the host that goes first, alone; none: the first one"
    )
    limits: Limits = Field(default_factory=Limits, description="how many at once")

    def each(self) -> list[tuple[str, HostGroup]]:
        """Return every host with what it shall be like, in the order of the file."""
        return [(name, group) for group in self.hosts for name in expand(group.nodes)]


def load_hosts(path: Path) -> HostsFile:
    """Read a hosts file; raises NearmetalError or SpecError with every problem."""
    return _checked(*load_yaml(path, HostsFile, "a hosts file"))


def parse_hosts(text: str, file: str = "<hosts>") -> HostsFile:
    """As `load_hosts`, for a text."""
    return _checked(*parse_yaml(text, file, HostsFile, "a hosts file"))


def hosts_schema() -> str:
    """Return the JSON Schema of hosts files."""
    return json.dumps(HostsFile.model_json_schema(), indent=1, sort_keys=True)


def _checked(file: HostsFile, document: Document) -> HostsFile:
    """What only the whole file shows."""
    seen: dict[str, int] = {}
    for i, group in enumerate(file.hosts):
        path = ("hosts", i)
        line = document.where((*path, "nodes"))[0]
        for name in expand(group.nodes):
            if name in seen:
                document.complain(
                    document.where((*path, "nodes")),
                    f"host {name}",
                    f"line {seen[name]} names it already",
                    "name it once",
                )
            seen.setdefault(name, line)
        _check_group(document, i, group)
    if file.canary is not None and file.canary not in seen:
        document.complain(
            document.where(("canary",)),
            f"canary {file.canary[:40]!r}",
            "is none of the hosts",
            "name one of them",
        )
    if len(seen) > MAX_HOSTS:
        document.complain((1, 1), f"{len(seen)} hosts", f"at most {MAX_HOSTS} in one file")
    if document.problems:
        raise SpecError(document.problems)
    return file


def _check_service(document: Document, i: int, group: HostGroup) -> None:
    path = ("hosts", i)
    where = document.where
    for key in ("power", "slurm"):
        if group.platform == "esxi" and getattr(group, key) is not None:
            document.complain(
                where((*path, key)),
                f"hosts[{i}].{key}",
                "is for Linux, and this is ESXi",
                "remove it",
            )
    if (
        group.slurm is not None
        and "{host}" not in group.slurm.node
        and len(expand(group.nodes)) > 1
    ):
        document.complain(
            where((*path, "slurm")),
            f"hosts[{i}].slurm.node",
            "is one node for several hosts",
            "write {host} into it",
        )
    if group.power is not None and (group.power.governor is None) == (group.power.profile is None):
        document.complain(
            where((*path, "power")),
            f"hosts[{i}].power",
            "needs one of governor and profile",
            "tuned sets the governor by its profile, so both would be at odds",
        )


def _check_group(document: Document, i: int, group: HostGroup) -> None:
    path = ("hosts", i)
    where = document.where
    if group.platform == "esxi" and group.kernel is not None:
        document.complain(
            where((*path, "kernel")),
            f"hosts[{i}].kernel",
            "is for Linux, and this is ESXi",
            "remove it",
        )
    _check_service(document, i, group)
    if group.platform == "linux" and group.packages:
        document.complain(
            where((*path, "packages")),
            f"hosts[{i}].packages",
            "are for ESXi, and this is Linux",
            "use the distribution's",
        )
    if group.platform == "linux" and group.vcenter is not None:
        document.complain(
            where((*path, "vcenter")),
            f"hosts[{i}].vcenter",
            "is for ESXi, and this is Linux",
            "remove it",
        )
    if group.vcenter is None and group.esxi != Esxi():
        document.complain(
            where((*path, "esxi")),
            f"hosts[{i}].esxi",
            "is set through a vCenter",
            "add vcenter: {server: ..., user: ...}",
        )
    if group.bmc is None and group.bios != Bios():
        document.complain(
            where((*path, "bios")),
            f"hosts[{i}].bios",
            "needs a BMC to set it through",
            "add bmc: {address: ...}",
        )
    for k, adapter in enumerate(group.adapters):
        place = (*path, "adapters", k)
        if adapter.model is None and adapter.psid is None and adapter.address is None:
            document.complain(
                where(place),
                f"hosts[{i}].adapters[{k}]",
                "names no card",
                "give model, psid or address",
            )
        if group.platform == "esxi" and any(port.mtu is not None for port in adapter.ports):
            document.complain(
                where((*place, "ports")),
                f"hosts[{i}].adapters[{k}].ports",
                "have an MTU, and on ESXi the switch has it",
                "remove mtu",
            )
        if adapter.image is not None and adapter.firmware is None:
            document.complain(
                where((*place, "image")),
                f"hosts[{i}].adapters[{k}].image",
                "has no firmware to compare with",
                "give firmware, the oldest that is enough",
            )
