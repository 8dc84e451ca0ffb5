# SPDX-License-Identifier: Apache-2.0
"""Facts of an ESXi host out of what its vCenter answers. Pure: answers in, facts out."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nearmetal.host.cards import ESXI_DRIVER
from nearmetal.host.facts_linux import MODELS
from nearmetal.host.model import CardFacts, EsxiFacts, HostFacts, PortFacts
from nearmetal.host.stages.outside import DOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROPERTIES = (
    "runtime.bootTime",
    "runtime.inMaintenanceMode",
    "hardware.pciDevice",
    "config.network",
    "config.pciPassthruInfo",
    "config.powerSystemInfo",
    "config.powerSystemCapability",
    "config.vsanHostConfig",
    "configManager",
    "vm",
)
"""What is read of a host."""

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_DRIVER = re.compile(r"[A-Za-z0-9_]{1,64}")
_NVIDIA = "15b3"
MAX_DEVICES = 4096

SAME_BOOT_S = 30.0
"""How far apart two answers may be of when a host booted, and mean one boot.

It is a time of the host's clock, which is corrected while it runs. We take it that no host is down and
up again so soon.
"""


def same_boot(one: str, other: str) -> bool:
    """Return whether two times at which a host booted, as `HostFacts.boot` has them, are one boot."""
    try:
        apart = datetime.fromisoformat(one) - datetime.fromisoformat(other)
    except (ValueError, TypeError):  # no times, or only one of them with a time zone
        return one == other
    return abs(apart.total_seconds()) <= SAME_BOOT_S


def host_facts(
    name: str,
    found: Mapping[str, Any],
    machines: Iterable[Mapping[str, Any]],
    options: str,
    packages: Mapping[str, str],
) -> HostFacts:
    """Return facts from properties of the host and of its machines that are on."""
    functions = {str(info.id): info for info in found.get("config.pciPassthruInfo") or []}
    power, policies = found.get("config.powerSystemInfo"), found.get("config.powerSystemCapability")
    vsan = found.get("config.vsanHostConfig")
    on = list(machines)
    esxi = EsxiFacts(
        maintenance=bool(found.get("runtime.inMaintenanceMode")),
        machines=tuple(sorted(_plain(vm["name"]) for vm in on)),
        bound=tuple(sorted(_plain(vm["name"]) for vm in on if _has_devices(vm))),
        power=_plain(power.currentPolicy.shortName) if power else "",
        policies=tuple(_plain(p.shortName) for p in policies.availablePolicy) if policies else (),
        vsan=bool(vsan is not None and vsan.enabled),
        requested={
            a: int(info.numVirtualFunctionRequested)
            for a, info in functions.items()
            if hasattr(info, "numVirtualFunctionRequested")
        },
    )
    return HostFacts(
        name,
        "esxi",
        boot=str(found.get("runtime.bootTime") or ""),
        cards=_cards(found, functions),
        options={ESXI_DRIVER: options} if options else {},
        packages=packages,
        esxi=esxi,
    )


def with_shell(facts: HostFacts, shell: HostFacts) -> HostFacts:
    """Add what only the host's own tools tell: firmware, its settings, and its packages."""
    told = {card.address: card for card in shell.cards}
    cards = [
        replace(
            card,
            psid=own.psid,
            firmware=own.firmware,
            stored=own.stored,
            device=own.device,
            config=own.config,
        )
        if (own := told.get(card.address))
        else card
        for card in facts.cards
    ]
    return replace(
        facts,
        cards=tuple(cards),
        packages={**facts.packages, **shell.packages},
        unread=(*facts.unread, *shell.unread),
        esxi=replace(facts.esxi or EsxiFacts(), has_shell=True),
    )


def _plain(text: object) -> str:
    """Return a name as a terminal may have it."""
    return "".join(c if c.isprintable() else "?" for c in str(text))[:80]


def _has_devices(machine: Mapping[str, Any]) -> bool:
    kinds = ("VirtualPCIPassthrough", "VirtualSriovEthernetCard")
    devices = machine.get("config.hardware.device") or []
    return any(type(device).__name__.rpartition(".")[2] in kinds for device in devices)


def _cards(found: Mapping[str, Any], functions: Mapping[str, Any]) -> tuple[CardFacts, ...]:
    """Return the cards of uplinks, and those of NVIDIA that are no uplink yet."""
    network = found.get("config.network")
    nics = {str(nic.pci): nic for nic in getattr(network, "pnic", None) or []}
    places: dict[str, list[PortFacts]] = {}
    models: dict[str, str] = {}
    devices = list(found.get("hardware.pciDevice") or [])[:MAX_DEVICES]
    for device in sorted(devices, key=lambda device: str(device.id)):
        address = str(device.id)
        # The API has them as numbers of 16 bits with a sign.
        identity = f"{int(device.vendorId) & 0xFFFF:04x}:{int(device.deviceId) & 0xFFFF:04x}"
        known = identity in MODELS and identity.startswith(_NVIDIA)
        if not _ADDRESS.fullmatch(address) or not (known or address in nics):
            continue
        place = address.rpartition(".")[0]
        models.setdefault(place, MODELS.get(identity, _plain(device.deviceName)))
        places.setdefault(place, []).append(
            _port(address, nics.get(address), functions.get(address))
        )
    return tuple(CardFacts(p, models[p], tuple(ports)) for p, ports in places.items())


def _port(address: str, nic: Any, function: Any) -> PortFacts:
    driver = str(getattr(nic, "driver", None) or "")
    up = getattr(nic, "linkSpeed", None) is not None
    return PortFacts(
        address,
        driver if _DRIVER.fullmatch(driver) else "",
        _plain(nic.device) if nic else "",
        total_vfs=int(getattr(function, "maxVirtualFunctionSupported", 0)),
        vfs=int(getattr(function, "numVirtualFunction", 0)),
        state="" if nic is None else "Up" if up else DOWN,
    )
