# SPDX-License-Identifier: Apache-2.0
"""Facts of all hosts of a file, several at a time; one that is gone does not hold up the others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from nearmetal.core.errors import BackendError, CommandError, HostError, PasswordError
from nearmetal.host.facts_esxi import read_esxi, with_shell
from nearmetal.host.facts_linux import read_linux
from nearmetal.host.redfish import Redfish
from nearmetal.host.shell import SshShell
from nearmetal.host.slurm import SlurmTools

if TYPE_CHECKING:
    from nearmetal.host.hosts_file import HostGroup, HostsFile
    from nearmetal.host.model import HostFacts
    from nearmetal.host.shell import Shell
    from nearmetal.host.slurm import Scheduler
    from nearmetal.host.vsphere_host import Datacenters, VsphereHost

AT_ONCE = 16


class Reach(Protocol):
    """How hosts are reached."""

    def shell(self, name: str, group: HostGroup) -> Shell:
        """Return a host's shell."""

    def redfish(self, name: str, group: HostGroup) -> Redfish | None:
        """Return a host's management controller; None where the file names none."""

    def vsphere(self, name: str, group: HostGroup) -> VsphereHost | None:
        """Return a host through its vCenter; None where the file names none."""

    def scheduler(self) -> Scheduler:
        """Return Slurm's controller."""


class Network:
    """Hosts over ssh, Redfish and the vSphere API, with one session for each vCenter.

    Slurm by the tools of this machine.
    """

    def __init__(self) -> None:
        """Nothing is connected yet."""
        self._lock = threading.Lock()
        self._vcenters: dict[str, Datacenters] = {}

    def shell(self, name: str, group: HostGroup) -> Shell:
        """Return a host's shell."""
        return SshShell(name, group.ssh)

    def redfish(self, name: str, group: HostGroup) -> Redfish | None:
        """Return a host's management controller; None where the file names none."""
        return None if group.bmc is None else Redfish(name, group.bmc)

    def vsphere(self, name: str, group: HostGroup) -> VsphereHost | None:
        """Return a host through its vCenter; None where the file names none."""
        if group.vcenter is None:
            return None
        try:
            from nearmetal.host.vsphere_host import Datacenters  # noqa: PLC0415 - needs the SDK
        except ImportError as error:
            raise BackendError(
                f"hosts under a vCenter need pyVmomi: {error}", "install nearmetal[vsphere]"
            ) from error
        with self._lock:
            key = group.vcenter.model_dump_json()
            vcenter = self._vcenters.setdefault(key, Datacenters(group.vcenter))
        return vcenter.host(name)

    def scheduler(self) -> Scheduler:
        """Return Slurm's controller."""
        return SlurmTools()


@dataclass
class Found:
    """Facts by host, and those that could not be reached, with reason and hint."""

    facts: dict[str, HostFacts] = field(default_factory=dict)
    unreached: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_host(name: str, group: HostGroup, reach: Reach) -> HostFacts:
    """Return a host's facts; raises HostError or CommandError where it cannot be reached."""
    facts = _read(name, group, reach)
    redfish = reach.redfish(name, group)
    if redfish is None:
        return facts
    try:
        return replace(facts, bios=redfish.read())
    except (HostError, PasswordError) as error:
        hint = f" ({error.hint})" if error.hint else ""
        return replace(facts, unread=(*facts.unread, f"BIOS: {error.message}{hint}"))


def _read(name: str, group: HostGroup, reach: Reach) -> HostFacts:
    if group.platform == "linux":
        return read_linux(name, reach.shell(name, group))
    vsphere = reach.vsphere(name, group)
    if vsphere is None:
        return read_esxi(name, reach.shell(name, group))
    facts = vsphere.read(packages=bool(group.packages) and not group.has_shell)
    return (
        with_shell(facts, read_esxi(name, reach.shell(name, group))) if group.has_shell else facts
    )


def read_hosts(file: HostsFile, reach: Reach) -> Found:
    """Read every host of a file."""
    found = Found()

    def one(entry: tuple[str, HostGroup]) -> tuple[str, HostFacts | tuple[str, str]]:
        name, group = entry
        try:
            return name, read_host(name, group, reach)
        except (HostError, CommandError) as error:
            return name, (error.message, error.hint)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, answer in pool.map(one, file.each()):
            if isinstance(answer, tuple):
                found.unreached[name] = answer
            else:
                found.facts[name] = answer
    return found
