# SPDX-License-Identifier: Apache-2.0
"""Facts of all hosts of a file, several at a time; one that is gone does not hold up the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from nearmetal.errors import CommandError, HostError, PasswordError
from nearmetal.provision.read_esxi import read_esxi
from nearmetal.provision.read_linux import read_linux
from nearmetal.provision.redfish import Redfish
from nearmetal.provision.shell import SshShell

if TYPE_CHECKING:
    from nearmetal.provision.model import HostFacts
    from nearmetal.provision.shell import Shell
    from nearmetal.spec.hosts import HostGroup, HostsFile

AT_ONCE = 16


class Reach(Protocol):
    """How hosts are reached."""

    def shell(self, name: str, group: HostGroup) -> Shell:
        """Return a host's shell."""

    def redfish(self, name: str, group: HostGroup) -> Redfish | None:
        """Return a host's management controller; None where the file names none."""


class Network:
    """Hosts over ssh and Redfish."""

    def shell(self, name: str, group: HostGroup) -> Shell:
        """Return a host's shell."""
        return SshShell(name, group.ssh)

    def redfish(self, name: str, group: HostGroup) -> Redfish | None:
        """Return a host's management controller; None where the file names none."""
        return None if group.bmc is None else Redfish(name, group.bmc)


@dataclass
class Found:
    """Facts by host, and those that could not be reached, with reason and hint."""

    facts: dict[str, HostFacts] = field(default_factory=dict)
    unreached: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_host(name: str, group: HostGroup, reach: Reach) -> HostFacts:
    """Return a host's facts; raises HostError or CommandError where it cannot be reached."""
    read = read_esxi if group.platform == "esxi" else read_linux
    facts = read(name, reach.shell(name, group))
    redfish = reach.redfish(name, group)
    if redfish is None:
        return facts
    try:
        return replace(facts, bios=redfish.read())
    except (HostError, PasswordError) as error:
        hint = f" ({error.hint})" if error.hint else ""
        return replace(facts, unread=(*facts.unread, f"BIOS: {error.message}{hint}"))


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
