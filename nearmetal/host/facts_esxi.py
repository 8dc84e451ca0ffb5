# SPDX-License-Identifier: Apache-2.0
"""What an ESXi host is like, over its SSH service: VIBs, options of modules, cards and firmware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.host.cards import ESXI_DRIVER
from nearmetal.host.facts_linux import CONFIG_S, MODELS
from nearmetal.host.model import CardFacts, HostFacts, PortFacts
from nearmetal.host.parse.esxcli import parse_module_parameters, parse_pci, parse_vibs
from nearmetal.host.parse.tools import parse_mlxconfig, parse_mlxfwmanager, parse_mst_status
from nearmetal.host.shell import Answer, Shell, ask, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.host.parse.tools import MstDevice

_NVIDIA = "0x15b3"


def read_esxi(name: str, shell: Shell) -> HostFacts:
    """Return a host's facts, without its BIOS; raises HostError where it cannot be reached."""
    answers = ask(
        shell,
        {
            "vibs": "esxcli software vib list",
            "pci": "esxcli hardware pci list",
            "options": f"esxcli system module parameters list -m {ESXI_DRIVER}",
            "mst": "mst start >/dev/null; mst status -vv",
            "mlxfwmanager": "mlxfwmanager --query",
        },
        timeout_s=CONFIG_S,
    )
    unread = [
        f"{what}: {command} failed"
        for key, what, command in (
            ("vibs", "packages", "esxcli software vib list"),
            ("pci", "PCI devices", "esxcli hardware pci list"),
        )
        if answers[key].code
    ]
    functions = [d for d in parse_mst_status(answers["mst"].text) if d.name.find(".") < 0]
    config = _configs(shell, functions)
    options = parse_module_parameters(answers["options"].text)
    return HostFacts(
        name=name,
        platform="esxi",
        cards=_cards(answers, functions, config),
        options={ESXI_DRIVER: options} if options else {},
        packages=parse_vibs(answers["vibs"].text),
        unread=tuple(unread),
    )


def _configs(shell: Shell, devices: list[MstDevice]) -> dict[str, Answer]:
    if not devices:
        return {}
    questions = {d.name: quoted(["mlxconfig", "-d", d.name, "-e", "query"]) for d in devices}
    return ask(shell, questions, timeout_s=CONFIG_S)


def _full(pci: str) -> str:
    return pci if pci.count(":") > 1 else f"0000:{pci}"


def _cards(
    answers: Mapping[str, Answer], devices: list[MstDevice], config: Mapping[str, Answer]
) -> tuple[CardFacts, ...]:
    found = parse_pci(answers["pci"].text)
    nvidia = {a: entry for a, entry in found.items() if entry.get("Vendor ID") == _NVIDIA}
    boards = {
        _full(b.pci).rpartition(".")[0]: b for b in parse_mlxfwmanager(answers["mlxfwmanager"].text)
    }
    names = {_full(d.pci).rpartition(".")[0]: d for d in devices}
    places: dict[str, list[PortFacts]] = {}
    ids: dict[str, str] = {}
    for address, entry in sorted(nvidia.items()):
        device = entry.get("Device ID", "")[2:]
        if f"15b3:{device}" not in MODELS:
            continue  # a virtual function, or no network adapter
        module = entry.get("Module Name", "")
        place = address.rpartition(".")[0]
        ids[place] = device
        vmnic = entry.get("VMkernel Name", "")
        driver = module if module not in ("None", "") else ""
        places.setdefault(place, []).append(PortFacts(address, driver, vmnic))
    cards = []
    for place, ports in places.items():
        board, mst = boards.get(place), names.get(place)
        answer = config.get(mst.name) if mst else None
        cards.append(
            CardFacts(
                address=place,
                model=board.type if board and board.type else MODELS[f"15b3:{ids[place]}"],
                ports=tuple(ports),
                psid=board.psid if board else "",
                firmware=board.firmware if board else "",
                stored=board.stored if board else "",
                device=mst.name if mst else "",
                config=parse_mlxconfig(answer.text) if answer else None,
            )
        )
    return tuple(cards)
