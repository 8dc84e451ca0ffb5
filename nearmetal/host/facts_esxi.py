# SPDX-License-Identifier: Apache-2.0
"""Facts of an ESXi host: from its own tools over ssh, and from the answers of its vCenter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from nearmetal.host.cards import ESXI_DRIVER
from nearmetal.host.facts_linux import CONFIG_S, MODELS
from nearmetal.host.model import CardFacts, DeviceFacts, EsxiFacts, PlatformFacts, PortFacts
from nearmetal.host.parse.esxcli import (
    PCI_ADDRESS,
    parse_module_parameters,
    parse_pci,
    parse_vibs,
    pci_id,
)
from nearmetal.host.parse.tools import (
    MstDevice,
    boards_by_card,
    parse_mlxconfig,
    parse_mlxfwmanager,
    parse_mst_status,
    place,
)
from nearmetal.host.shell import Answer, Shell, ask, quoted
from nearmetal.host.stages.outside import DOWN

_NVIDIA = "15b3"
_DRIVER = re.compile(r"[A-Za-z0-9_]{1,64}")
MAX_DEVICES = 4096
_CLASSES = (0x02, 0x03, 0x12)
"""PCI classes of adapters, displays and accelerators: disks of ESXi stay its own."""

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
"""Properties of a host that its facts need."""

SAME_BOOT_S = 30.0
"""Largest difference between two boot times of one boot.

The time comes from the host's clock, which is corrected while it runs. No host reboots so fast.
"""


def same_boot(one: str, other: str) -> bool:
    """Return whether two boot times, in the form of `PlatformFacts.boot`, are of one boot."""
    try:
        apart = datetime.fromisoformat(one) - datetime.fromisoformat(other)
    except (ValueError, TypeError):  # no times, or only one of them with a time zone
        return one == other
    return abs(apart.total_seconds()) <= SAME_BOOT_S


# Over ssh


def read_esxi(name: str, shell: Shell) -> PlatformFacts:
    """Return a host's facts without its BIOS; raises HostError for an unreachable host."""
    questions = {
        "vibs": "esxcli software vib list",
        "pci": "esxcli hardware pci list",
        "options": f"esxcli system module parameters list -m {ESXI_DRIVER}",
        "mst": "mst start >/dev/null; mst status -vv",
        "mlxfwmanager": "mlxfwmanager --query",
    }
    answers = ask(shell, questions, timeout_s=CONFIG_S)
    required = (("packages", "vibs"), ("PCI devices", "pci"))
    unread = [f"{what}: {questions[key]} failed" for what, key in required if answers[key].code]
    functions = [d for d in parse_mst_status(answers["mst"].text) if "." not in d.name]
    config = {d.name: quoted(["mlxconfig", "-d", d.name, "-e", "query"]) for d in functions}
    settings = ask(shell, config, timeout_s=CONFIG_S) if config else {}
    options = parse_module_parameters(answers["options"].text)
    return PlatformFacts(
        name=name,
        platform="esxi",
        cards=tuple(
            _own_cards(answers["pci"].text, answers["mlxfwmanager"].text, functions, settings)
        ),
        options={ESXI_DRIVER: options} if options else {},
        packages=parse_vibs(answers["vibs"].text),
        unread=tuple(unread),
    )


def _grouped(found: Iterable[tuple[str, PortFacts]]) -> dict[str, tuple[str, list[PortFacts]]]:
    """Return model and ports of each card, of the models of its functions."""
    cards: dict[str, tuple[str, list[PortFacts]]] = {}
    for model, port in found:
        cards.setdefault(port.address.rpartition(".")[0], (model, []))[1].append(port)
    return cards


def _own_ports(pci: str) -> Iterator[tuple[str, PortFacts]]:
    for address, entry in sorted(parse_pci(pci).items()):
        model = MODELS.get(f"{_NVIDIA}:{pci_id(entry.get('Device ID', ''))}")
        module = entry.get("Module Name", "")
        # Another device is a virtual function, or not a network adapter.
        if pci_id(entry.get("Vendor ID", "")) == _NVIDIA and model is not None:
            driver = "" if module == "None" else module
            yield model, PortFacts(address, driver, entry.get("VMkernel Name", ""))


def _own_cards(
    pci: str, firmware: str, devices: list[MstDevice], config: Mapping[str, Answer]
) -> Iterator[CardFacts]:
    boards = boards_by_card(parse_mlxfwmanager(firmware), devices)
    names = {place(device.pci): device.name for device in devices}
    for address, (model, ports) in _grouped(_own_ports(pci)).items():
        board, device = boards.get(address), names.get(address, "")
        answer = config.get(device)
        card = CardFacts(address, model, tuple(ports), device=device)
        if board is not None:
            card = replace(card, psid=board.psid, firmware=board.firmware, stored=board.stored)
            card = replace(card, model=board.type or model)
        yield replace(card, config=parse_mlxconfig(answer.text)) if answer else card


# From its vCenter


def host_facts(
    name: str, found: Mapping[str, Any], machines: Iterable[Mapping[str, Any]], options: str
) -> PlatformFacts:
    """Return facts from properties of the host and of its machines that are on."""
    functions = {str(info.id): info for info in found.get("config.pciPassthruInfo") or []}
    power, policies = found.get("config.powerSystemInfo"), found.get("config.powerSystemCapability")
    vsan = found.get("config.vsanHostConfig")
    on = list(machines)
    cards = _grouped(_ports(found, functions)).items()
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
    return PlatformFacts(
        name,
        "esxi",
        boot=str(found.get("runtime.bootTime") or ""),
        cards=tuple(CardFacts(address, model, tuple(ports)) for address, (model, ports) in cards),
        options={ESXI_DRIVER: options} if options else {},
        esxi=esxi,
        devices=tuple(_devices(found, functions)),
    )


def with_shell(facts: PlatformFacts, shell: PlatformFacts) -> PlatformFacts:
    """Add the facts that only the host's own tools have: firmware, its settings, and packages."""
    known = {card.address: card for card in shell.cards}
    names = ("psid", "firmware", "stored", "device", "config")
    cards = [
        replace(card, **{name: getattr(known[card.address], name) for name in names})
        if card.address in known
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
    """Return a name without control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text))[:80]


def _has_devices(machine: Mapping[str, Any]) -> bool:
    kinds = ("VirtualPCIPassthrough", "VirtualSriovEthernetCard")
    devices = machine.get("config.hardware.device") or []
    return any(type(device).__name__.rpartition(".")[2] in kinds for device in devices)


def _ports(
    found: Mapping[str, Any], functions: Mapping[str, Any]
) -> Iterator[tuple[str, PortFacts]]:
    """Yield model and port of uplinks, and of NVIDIA's functions that are not uplinks yet."""
    network = found.get("config.network")
    nics = {str(nic.pci): nic for nic in getattr(network, "pnic", None) or []}
    devices = list(found.get("hardware.pciDevice") or [])[:MAX_DEVICES]
    for device in sorted(devices, key=lambda device: str(device.id)):
        address = str(device.id)
        # The API has signed numbers of 16 bits.
        identity = f"{int(device.vendorId) & 0xFFFF:04x}:{int(device.deviceId) & 0xFFFF:04x}"
        known = identity in MODELS and identity.startswith(_NVIDIA)
        if PCI_ADDRESS.fullmatch(address) and (known or address in nics):
            model = MODELS.get(identity, _plain(device.deviceName))
            yield model, _port(address, nics.get(address), functions.get(address))


def _devices(found: Mapping[str, Any], functions: Mapping[str, Any]) -> Iterator[DeviceFacts]:
    """Yield adapters and GPUs, as whole devices."""
    network = found.get("config.network")
    keys = {str(nic.key): str(nic.pci) for nic in getattr(network, "pnic", None) or []}
    uplinks: dict[str, str] = {}
    for kind in ("vswitch", "proxySwitch"):
        for switch in getattr(network, kind, None) or []:
            name = str(getattr(switch, "name", None) or getattr(switch, "dvsName", ""))
            uplinks |= {keys.get(str(key), ""): name for key in switch.pnic or []}
    for device in list(found.get("hardware.pciDevice") or [])[:MAX_DEVICES]:
        address, info = str(device.id), functions.get(str(device.id))
        if PCI_ADDRESS.fullmatch(address) and (int(device.classId) >> 8) & 0xFF in _CLASSES:
            yield DeviceFacts(
                address,
                f"{int(device.vendorId) & 0xFFFF:04x}:{int(device.deviceId) & 0xFFFF:04x}",
                used=f"uplink of {_plain(uplinks[address])}" if address in uplinks else "",
                capable=bool(getattr(info, "passthruCapable", False)),
                enabled=bool(getattr(info, "passthruEnabled", False)),
                active=bool(getattr(info, "passthruActive", False)),
                parent=_plain(getattr(info, "dependentDevice", None) or ""),
            )


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
