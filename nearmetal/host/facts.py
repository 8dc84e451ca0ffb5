# SPDX-License-Identifier: Apache-2.0
"""Facts of all hosts of a file, several at a time; an unreachable host does not delay the others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from nearmetal.core.errors import CommandError, HostError, PasswordError
from nearmetal.core.extras import ExtraError
from nearmetal.host.facts_esxi import read_esxi, with_shell
from nearmetal.host.facts_linux import read_linux
from nearmetal.host.hosts_file import HostGroup, HostsFile
from nearmetal.host.model import PlatformFacts
from nearmetal.host.redfish import Redfish
from nearmetal.host.shell import Shell, SshShell
from nearmetal.host.slurm import SlurmTools

if TYPE_CHECKING:
    from nearmetal.host.vsphere_host import Datacenters, VsphereHost

AT_ONCE = 16


class Reach:
    """The ways to hosts: ssh, Redfish, one session for each vCenter, and the tools of Slurm."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vcenters: dict[str, Datacenters] = {}

    def shell(self, name: str, group: HostGroup) -> Shell:
        """Return a host's shell."""
        return SshShell(name, group.ssh)

    def redfish(self, name: str, group: HostGroup) -> Redfish | None:
        """Return a host's management controller; None if the file has none."""
        return None if group.bmc is None else Redfish(name, group.bmc)

    def vsphere(self, name: str, group: HostGroup) -> VsphereHost | None:
        """Return a host in its vCenter; None if the file has none."""
        if group.vcenter is None:
            return None
        try:
            from nearmetal.host.vsphere_host import Datacenters  # noqa: PLC0415 - needs the SDK
        except ImportError as error:
            raise ExtraError("vsphere", "a host under a vCenter", error) from error
        with self._lock:
            key = group.vcenter.model_dump_json()
            vcenter = self._vcenters.setdefault(key, Datacenters(group.vcenter))
        return vcenter.host(name)

    def scheduler(self) -> SlurmTools:
        """Return Slurm's controller."""
        return SlurmTools()


def read_host(name: str, group: HostGroup, reach: Reach) -> PlatformFacts:
    """Return a host's facts; raises HostError or CommandError if it cannot be reached."""
    facts = _read(name, group, reach)
    redfish = reach.redfish(name, group)
    if redfish is None:
        return facts
    try:
        return replace(facts, bios=redfish.read())
    except (HostError, PasswordError) as error:
        hint = f" ({error.hint})" if error.hint else ""
        return replace(facts, unread=(*facts.unread, f"BIOS: {error.message}{hint}"))


def _read(name: str, group: HostGroup, reach: Reach) -> PlatformFacts:
    if group.platform == "linux":
        return read_linux(name, reach.shell(name, group))
    vsphere = reach.vsphere(name, group)
    if vsphere is None:
        return read_esxi(name, reach.shell(name, group))
    facts = vsphere.read(packages=bool(group.packages) and not group.has_shell)
    return (
        with_shell(facts, read_esxi(name, reach.shell(name, group))) if group.has_shell else facts
    )


def read_hosts(
    file: HostsFile, reach: Reach
) -> tuple[dict[str, PlatformFacts], dict[str, tuple[str, str]]]:
    """Return the facts of every host; for unreachable hosts, the reason and the hint."""
    facts: dict[str, PlatformFacts] = {}
    unreached: dict[str, tuple[str, str]] = {}

    def read(entry: tuple[str, HostGroup]) -> None:
        name, group = entry
        try:
            facts[name] = read_host(name, group, reach)
        except (HostError, CommandError) as error:
            unreached[name] = (error.message, error.hint)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(read, file.each()))
    return {name: facts[name] for name, _ in file.each() if name in facts}, unreached
