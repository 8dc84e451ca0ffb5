# SPDX-License-Identifier: Apache-2.0
"""The hosts file: the desired state of machines that carry virtual clusters, from BIOS to VFs.

Pure: a file in, a checked model out, or every problem with its line.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Literal

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from pydantic import AfterValidator, Field

from nearmetal.config.explain import load_yaml, parse_yaml
from nearmetal.config.model import AbsolutePath, Model, Name, shaped
from nearmetal.config.password import PasswordSource
from nearmetal.host.vcenter.spec import Vcenter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.config.document import Document, Key

    _Fault = tuple[tuple[Key, ...], str, str]

MAX_HOSTS = 4096
MAX_PORT_VFS = 512

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SET = re.compile(r"[A-Za-z0-9.,/\[\]-]{1,1024}")
_RANGE = re.compile(r"\[([0-9,/-]*)\]")
_URL = r"https?://(?!-)([A-Za-z0-9.:\[\]_-]|\{host\}){1,253}(/[A-Za-z0-9._/-]{0,200})?"
_NAMES = "use for example kvm[01-16]"


def _size_of(text: str) -> int:
    """Return the maximum number of hosts in a node set, before it is expanded."""
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


def node_set(value: str) -> str:
    """Return a node set that names at most MAX_HOSTS hosts; raises ValueError: `why|hint`."""
    if not _SET.fullmatch(value):
        raise ValueError(f"is not a valid node set|{_NAMES}")
    if _size_of(value) > MAX_HOSTS:
        raise ValueError(f"names more than {MAX_HOSTS} hosts|split the file")
    try:
        names = expand(value)
    except NodeSetException as error:
        raise ValueError(f"is not a valid node set: {error}|{_NAMES}") from None
    wrong = next((name for name in names if not _HOST.fullmatch(name)), None)
    if wrong is not None or not names:
        why = "does not name a host" if wrong is None else f"{wrong[:40]!r} is not a host name"
        raise ValueError(f"{why}|{_NAMES}")
    return value


def expand(text: str) -> tuple[str, ...]:
    """Return the names in a node set, in its order."""
    return tuple(str(name) for name in NodeSet(text, resolver=RESOLVER_NOGROUP))


def fold(names: list[str]) -> str:
    """Return names as the shortest node set."""
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


Version = Annotated[
    str,
    shaped(
        r"[0-9]{1,4}(\.[0-9]{1,6}){1,3}", "is not a version|use for example '16.32.1010', in quotes"
    ),
]
Argument = Annotated[
    str,
    shaped(
        r"(?!-)[A-Za-z0-9_.-]{1,64}(=[A-Za-z0-9_.,:@/+-]{1,256})?",
        "is not a kernel argument|use for example iommu=pt",
    ),
]
Cores = Annotated[
    str,
    shaped(
        r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,255}",
        "is not a core list|use for example 2-15",
    ),
]
CardModel = Annotated[
    str, shaped(r"[A-Za-z0-9][A-Za-z0-9 _./-]{0,63}", "is not a model|use for example ConnectX-5")
]
Psid = Annotated[str, shaped(r"[A-Z0-9_]{4,16}", "is not a PSID|use for example MT_0000000008")]
Profile = Annotated[
    str,
    shaped(
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "is not a profile of tuned|use for example virtual-host"
    ),
]
SlurmNode = Annotated[
    str,
    shaped(
        r"(?=.)(?!-)[A-Za-z0-9_.-]{0,64}(\{host\})?[A-Za-z0-9_.-]{0,64}",
        "is not a node name|use for example n-{host}",
    ),
]
BmcUrl = Annotated[
    str, shaped(_URL, "is not the URL of a BMC|use for example https://bmc-{host}.example.com")
]
SettingName = Annotated[
    str,
    shaped(
        r"[A-Z][A-Z0-9_x]{0,63}", "is not a setting of mlxconfig|use for example MAX_ACC_OUT_READ"
    ),
]
AttributeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][ -~]{0,127}$")]


class Bmc(Model):
    """The management controller of a host, by Redfish."""

    address: BmcUrl = Field(description="its URL; `{host}` stands for the name of the host")
    user: str = Field(
        default="root", min_length=1, max_length=64, description="user name for the login"
    )
    password: PasswordSource | None = Field(default=None, description="source of the password")
    vendor: Literal["auto", "dell", "hpe", "lenovo", "supermicro"] = Field(
        default="auto", description="vendor of the BIOS names; auto: as the BMC reports it"
    )
    ca: AbsolutePath | None = Field(
        default=None, description="authorities to verify its certificate; none: the system's"
    )
    system: str | None = Field(
        default=None, max_length=128, description="name of the system, if it manages several"
    )


class Ssh(Model):
    """Access to a host; all other options belong into ssh_config(5)."""

    user: str = Field(
        default="root", pattern=r"^[a-z_][a-z0-9_-]{0,31}$", description="user name for the login"
    )
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=22, description="TCP port")
    config: AbsolutePath | None = Field(default=None, description="a file of ssh_config(5)")


class Bios(Model):
    """BIOS settings by neutral names. Settings that are not named stay unchanged."""

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
        default=None, description="link type; none: unchanged"
    )
    vfs: Annotated[int, Field(ge=0, le=MAX_PORT_VFS)] = Field(
        default=0, description="number of virtual functions"
    )
    mtu: Annotated[int, Field(ge=576, le=65520)] | None = Field(
        default=None, description="MTU of its network device and of its VFs'; none: unchanged"
    )


class FirmwareImage(Model):
    """A file of firmware on the host."""

    file: AbsolutePath = Field(description="path on the host")
    version: Version = Field(description="version of this firmware")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="checksum of the file")


class Adapter(Model):
    """One card, selected by model or PSID, and by its address if there are several."""

    model: CardModel | None = Field(
        default=None, description="name in the card's own tools, for example ConnectX-5"
    )
    psid: Psid | None = Field(default=None, description="identity of its board")
    address: str | None = Field(
        default=None,
        pattern=r"^([0-9a-f]{4}:)?[0-9a-f]{2}:[01][0-9a-f]$",
        description="PCI address without the function, if two cards are alike: '0000:3b:00'",
    )
    firmware: Version | None = Field(default=None, description="the oldest acceptable firmware")
    image: FirmwareImage | None = Field(
        default=None, description="firmware to burn if the present one is older"
    )
    num_of_vfs: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto",
        description="NUM_OF_VFS of its firmware; auto: the need of the ports, at least as now",
    )
    ats: bool | None = Field(
        default=None, description="address translation by the card (ATS_ENABLED), for GPUDirect"
    )
    settings: dict[SettingName, Annotated[int, Field(ge=0, le=0xFFFFFFFF)]] = Field(
        default_factory=dict,
        max_length=64,
        description="further settings of its firmware, by the names of mlxconfig, as numbers",
    )
    ports: list[Port] = Field(
        default_factory=list, max_length=4, description="its ports, in order; []: unchanged"
    )

    @property
    def text(self) -> str:
        """Its name in messages."""
        return self.psid or self.model or self.address or "adapter"


class Hugepages(Model):
    """Huge pages reserved at boot."""

    size: Literal["2 MiB", "1 GiB"] = Field(default="1 GiB", description="size of one page")
    count: Annotated[int, Field(ge=0, le=1 << 20)] = Field(description="number of pages")


class KernelSettings(Model):
    """Kernel arguments of a Linux host. Settings that are not named stay unchanged."""

    iommu: Literal["on", "passthrough"] | None = Field(
        default=None, description="on; passthrough: on, and devices of the host bypass it"
    )
    hugepages: Hugepages | None = Field(default=None, description="huge pages reserved at boot")
    isolate: Cores | None = Field(
        default=None, description="cores that the scheduler does not use (isolcpus)"
    )
    arguments: list[Argument] = Field(
        default_factory=list, max_length=64, description="further arguments of the kernel"
    )


class Passthrough(Model):
    """Adapters or GPUs that virtual machines get whole."""

    device: str = Field(
        pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$", description="vendor and device: '10de:20b0'"
    )
    address: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$",
        description="PCI address with the function: '0000:3b:00.0'; none: all of these devices",
    )


class Power(Model):
    """The clock of a Linux host. One of the two."""

    governor: (
        Literal["performance", "schedutil", "ondemand", "conservative", "powersave"] | None
    ) = Field(default=None, description="governor of cpufreq, for every core")
    profile: Profile | None = Field(
        default=None, description="profile of tuned, for example virtual-host"
    )


class Slurm(Model):
    """The host as a node of Slurm. scontrol and squeue run on the machine of nearmetal."""

    node: SlurmNode = Field(
        default="{host}", description="its name in Slurm; `{host}` stands for the name of the host"
    )
    drain: Annotated[int, Field(ge=0, le=30 * 86400)] = Field(
        default=3600, description="seconds for its jobs to end before a reboot"
    )


class EsxiPackage(Model):
    """A VIB or an offline bundle for ESXi, on a datastore that the host can read."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name in the list of esxcli"
    )
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9._-]{0,63}$")] = Field(
        description="the oldest acceptable version"
    )
    file: AbsolutePath = Field(description="path of the .vib or .zip")


class Esxi(Model):
    """Settings through vCenter."""

    power: Literal["high-performance", "balanced", "low-power"] | None = Field(
        default=None, description="power policy; none: unchanged"
    )
    vsan: Literal["accessible", "evacuate", "none"] = Field(
        default="accessible",
        description="before a reboot, vSAN keeps objects accessible, moves all data away, or neither",
    )


class HostGroup(Model):
    """Hosts with the same desired state."""

    nodes: Annotated[str, AfterValidator(node_set)] = Field(
        description="names of the hosts, as a ClusterShell node set: kvm[01-16]"
    )
    platform: Literal["linux", "esxi"] = Field(description="operating system of the hosts")
    domain: Name | None = Field(
        default=None, description="unit that fails together: a rack, a power feed"
    )
    ssh: Ssh = Field(default_factory=Ssh, description="access by ssh")
    bmc: Bmc | None = Field(default=None, description="the management controllers")
    bios: Bios = Field(default_factory=Bios, description="settings of the BIOS")
    adapters: list[Adapter] = Field(default_factory=list, max_length=16, description="the cards")
    passthrough: list[Passthrough] = Field(
        default_factory=list,
        max_length=64,
        description="adapters and GPUs that virtual machines get whole; []: unchanged",
    )
    gpudirect: bool = Field(
        default=False, description="GPUs of `passthrough` and adapters with `ats` are peers"
    )
    kernel: KernelSettings | None = Field(default=None, description="Linux: kernel arguments")
    power: Power | None = Field(default=None, description="Linux: the clock of the processors")
    slurm: Slurm | None = Field(
        default=None, description="Linux: drained in Slurm before a reboot; none: not in Slurm"
    )
    packages: list[EsxiPackage] = Field(
        default_factory=list, max_length=16, description="ESXi: tools and drivers of the adapters"
    )
    vcenter: Vcenter | None = Field(
        default=None, description="ESXi: the vCenter of the hosts, with the names of `nodes`"
    )
    esxi: Esxi = Field(default_factory=Esxi, description="ESXi: settings through vCenter")

    @property
    def has_shell(self) -> bool:
        """Whether ssh may be used: always without a vCenter, otherwise if the file has `ssh`."""
        return self.vcenter is None or "ssh" in self.model_fields_set


class RebootLimits(Model):
    """Limits for reboots at the same time."""

    reboots: Annotated[int, Field(ge=1, le=MAX_HOSTS)] = Field(
        default=1, description="hosts that reboot at the same time"
    )
    per_domain: Annotated[int, Field(ge=1, le=MAX_HOSTS)] = Field(
        default=1, description="maximum of these hosts in one domain"
    )


class HostsFile(Model):
    """The whole file."""

    version: Literal[1] = Field(description="version of this format")
    name: Name = Field(description="name of this set of hosts")
    hosts: Annotated[list[HostGroup], Field(min_length=1, max_length=256)] = Field(
        description="sets of hosts"
    )
    canary: str | None = Field(
        default=None, description="host that goes first, alone; none: the first host"
    )
    limits: RebootLimits = Field(
        default_factory=RebootLimits, description="limits for reboots at the same time"
    )

    def each(self) -> list[tuple[str, HostGroup]]:
        """Return every host with its desired state, in the order of the file."""
        return [(name, group) for group in self.hosts for name in expand(group.nodes)]


def load_hosts(path: Path) -> HostsFile:
    """Read a hosts file; raises NearmetalError or SpecError with every problem."""
    return _checked(*load_yaml(path, HostsFile, "a hosts file"))


def parse_hosts(text: str, file: str = "<hosts>") -> HostsFile:
    """Check a text as a hosts file; raises SpecError with every problem."""
    return _checked(*parse_yaml(text, file, HostsFile, "a hosts file"))


def hosts_schema() -> str:
    """Return the JSON Schema of hosts files."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | HostsFile.model_json_schema(), indent=1, sort_keys=True)


def _checked(file: HostsFile, document: Document) -> HostsFile:
    """Check what only the whole file shows."""
    seen: dict[str, int] = {}
    for i, group in enumerate(file.hosts):
        nodes = ("hosts", i, "nodes")
        line = document.where(nodes)[0]
        for name in expand(group.nodes):
            if name in seen:
                why = f"is already in line {seen[name]}"
                document.refuse(nodes, why, "name it once", what=f"host {name}")
            seen.setdefault(name, line)
        for path, why, hint in _contradictions(group):
            document.refuse(("hosts", i, *path), why, hint)
    if file.canary is not None and file.canary not in seen:
        what = f"canary {file.canary[:40]!r}"
        document.refuse(("canary",), "is not a host of this file", "name one of them", what=what)
    if len(seen) > MAX_HOSTS:
        document.complain((1, 1), f"{len(seen)} hosts", f"a file has at most {MAX_HOSTS}")
    document.refuse_problems()
    return file


_FOREIGN = {
    "esxi": (("kernel", "power", "slurm"), "linux"),
    "linux": (("packages", "vcenter"), "esxi"),
}
"""By platform: keys of the other platform."""


_OWN_KEYS = {
    "LINK_TYPE_P": "ports.link",
    "SRIOV_EN": "ports.vfs",
    "NUM_OF_VFS": "num_of_vfs",
    "ATS_ENABLED": "ats",
}
"""By the beginning of a firmware setting: the key of the file for it."""


def _contradictions(group: HostGroup) -> Iterator[_Fault]:
    """Yield the settings of a group that contradict each other."""
    power, slurm = group.power, group.slurm
    keys, other = _FOREIGN[group.platform]
    for key in keys:
        if getattr(group, key):
            yield (key,), f"is for {other}, and the platform is {group.platform}", "remove it"
    if slurm is not None and "{host}" not in slurm.node and len(expand(group.nodes)) > 1:
        yield ("slurm", "node"), "is one node for several hosts", "use {host} in it"
    if power is not None and (power.governor is None) == (power.profile is None):
        hint = "a profile of tuned also sets the governor, so use one of them"
        yield ("power",), "needs one of governor and profile", hint
    if group.vcenter is None and group.esxi != Esxi():
        yield ("esxi",), "needs a vCenter", "add vcenter: {server: ..., user: ...}"
    if group.bmc is None and group.bios != Bios():
        yield ("bios",), "needs a BMC", "add bmc: {address: ...}"
    if group.gpudirect and not group.passthrough:
        yield ("gpudirect",), "needs a GPU", "add its device to passthrough"
    if group.gpudirect and not any(adapter.ats for adapter in group.adapters):
        yield ("gpudirect",), "needs an adapter that translates addresses", "add ats: true to it"
    for k, adapter in enumerate(group.adapters):
        yield from _adapter_faults(("adapters", k), adapter, group.platform)


def _adapter_faults(place: tuple[Key, ...], adapter: Adapter, platform: str) -> Iterator[_Fault]:
    if adapter.model is None and adapter.psid is None and adapter.address is None:
        yield place, "does not name a card", "add model, psid or address"
    if platform == "esxi" and any(port.mtu is not None for port in adapter.ports):
        yield (*place, "ports"), "have an MTU, and on ESXi the switch has it", "remove mtu"
    for name, key in _OWN_KEYS.items():
        found = next((setting for setting in adapter.settings if setting.startswith(name)), None)
        if found is not None:
            yield (*place, "settings", found), f"has its own key {key}", f"use {key}"
    if adapter.image is not None and adapter.firmware is None:
        hint = "add firmware, the oldest acceptable version"
        yield (*place, "image"), "needs a version to compare with", hint
