# SPDX-License-Identifier: Apache-2.0
"""What a Linux host is like: how it booted, its cards, their VFs and their firmware."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearmetal.provision.cards import MLX5
from nearmetal.provision.model import CardFacts, HostFacts, PortFacts
from nearmetal.provision.parse.devlink import parse_devlink
from nearmetal.provision.parse.mellanox import parse_mlxconfig, parse_mlxfwmanager
from nearmetal.provision.shell import Answer, Shell, ask, quoted
from nearmetal.provision.stage_driver import GRUB, RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.provision.parse.mellanox import Inventory

MAX_CARDS = 64
CONFIG_S = 120.0

# One line per physical function: what sysfs says of it, each field without spaces or `-`.
_FUNCTIONS = r"""
cd /sys/bus/pci/devices || exit 1
for d in *; do
  [ -e "$d/sriov_totalvfs" ] || [ -d "$d/infiniband" ] || continue
  [ -e "$d/physfn" ] && continue
  driver=$(readlink "$d/driver"); net=$(ls "$d/net" 2>/dev/null | head -n 1)
  rdma=$(ls "$d/infiniband" 2>/dev/null | head -n 1)
  link=$(cat "$d/infiniband/$rdma/ports/1/link_layer" 2>/dev/null)
  [ -n "$link" ] || link=$(cat "$d/net/$net/type" 2>/dev/null)
  state=$(cat "$d/infiniband/$rdma/ports/1/state" 2>/dev/null)
  used=0
  for v in "$d"/virtfn*; do
    [ "$(basename "$(readlink "$v/driver" 2>/dev/null)" 2>/dev/null)" = vfio-pci ] && used=$((used+1))
  done
  echo "$d ${driver##*/} ${net:--} ${link:--} ${state##* }" \
    "$(cat "$d/sriov_totalvfs" 2>/dev/null || echo 0)" \
    "$(cat "$d/sriov_numvfs" 2>/dev/null || echo 0)" "$used" \
    "$(cat "$d/vendor")" "$(cat "$d/device")" | sed 's/  */ /g'
done"""

_FUNCTION = re.compile(
    r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]) (?:(?P<driver>[\w-]{1,32}) )?"
    r"(?P<net>[\w.@:-]{1,32}) (?P<link>[\w-]{1,16}) (?:(?P<state>[A-Z_]{1,16}) )?"
    r"(?P<total>[0-9]{1,5}) (?P<vfs>[0-9]{1,5}) (?P<used>[0-9]{1,5}) "
    r"0x(?P<vendor>[0-9a-f]{4}) 0x(?P<device>[0-9a-f]{4})"
)

_LINKS = {"InfiniBand": "infiniband", "32": "infiniband", "Ethernet": "ethernet", "1": "ethernet"}

MODELS = {
    "15b3:1013": "ConnectX-4", "15b3:1015": "ConnectX-4LX", "15b3:1017": "ConnectX-5",
    "15b3:1019": "ConnectX-5EX", "15b3:101b": "ConnectX-6", "15b3:101d": "ConnectX-6DX",
    "15b3:101f": "ConnectX-6LX", "15b3:1021": "ConnectX-7", "15b3:1023": "ConnectX-8",
    "8086:10c9": "82576", "8086:1521": "I350", "8086:10fb": "82599", "8086:1572": "X710",
    "8086:158b": "XXV710", "8086:1592": "E810-C", "8086:1593": "E810-C", "8086:159b": "E810-XXV",
}  # fmt: skip
"""Models by vendor and device, as pci.ids has them."""

_KEPT = {"rules": RULES, "grub": GRUB}

_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}


def read_linux(name: str, shell: Shell) -> HostFacts:
    """Return a host's facts, without its BIOS; raises HostError where it cannot be reached."""
    answers = ask(shell, {
        "boot": "cat /proc/sys/kernel/random/boot_id",
        "cmdline": "cat /proc/cmdline",
        "cpu": "sed -n 's/^vendor_id[^:]*: //p' /proc/cpuinfo | head -n 1",
        "groups": "ls /sys/kernel/iommu_groups | wc -l",
        "loader": "if [ -d /etc/default/grub.d ] && command -v update-grub; then echo grub.d;"
                  " elif command -v grubby; then echo grubby; fi",
        "functions": _FUNCTIONS,
        "devlink": "devlink -j dev info",
        "mlxfwmanager": "mlxfwmanager --query || mstfwmanager --query",
        "tool": "command -v mlxconfig || command -v mstconfig",
        **{name: f"[ -e {path} ] || exit 44; cat {path}" for name, path in _KEPT.items()},
    })  # fmt: skip
    unread = [] if answers["functions"].code == 0 else ["its PCI devices: /sys is not there"]
    functions = _functions(answers["functions"].text)
    tool = answers["tool"].text.strip().rpartition("/")[2]
    config = _configs(shell, functions, tool, unread)
    groups = answers["groups"].text.strip()
    return HostFacts(
        name=name,
        platform="linux",
        boot=answers["boot"].text.strip()[:64],
        cards=_cards(functions, answers, config),
        cpu=_VENDORS.get(answers["cpu"].text.strip(), ""),
        # What follows `--` is for init.
        cmdline=tuple(answers["cmdline"].text.partition(" -- ")[0].split()),
        iommu_groups=int(groups) if groups.isdigit() else 0,
        loader=(answers["loader"].text.split() or [""])[-1],
        files={path: _file(answers[name]) for name, path in _KEPT.items()},
        unread=tuple(unread),
    )


def _file(answer: Answer) -> str | None:
    return answer.text if answer.code == 0 else None


def _functions(text: str) -> list[re.Match[str]]:
    found = [match for line in text.splitlines() if (match := _FUNCTION.fullmatch(line.strip()))]
    return sorted(found, key=lambda match: match["address"])


def _configs(
    shell: Shell, functions: list[re.Match[str]], tool: str, unread: list[str]
) -> dict[str, Answer]:
    """Return what the firmware's own tool says of each NVIDIA card, by its first function."""
    firsts: dict[str, str] = {}
    for match in functions:
        if match["vendor"] == "15b3":
            firsts.setdefault(_place(match["address"]), match["address"])
    if not firsts:
        return {}
    if not tool:
        unread.append("firmware settings: neither mlxconfig nor mstconfig is installed")
        return {}
    questions = {place: quoted([tool, "-d", address, "-e", "query"])
                 for place, address in list(firsts.items())[:MAX_CARDS]}  # fmt: skip
    return ask(shell, questions, timeout_s=CONFIG_S)


def _place(address: str) -> str:
    return address.rpartition(".")[0]


def _cards(
    functions: list[re.Match[str]],
    answers: Mapping[str, Answer],
    config: Mapping[str, Answer],
) -> tuple[CardFacts, ...]:
    devices = parse_devlink(answers["devlink"].text)
    boards: dict[str, Inventory] = {}
    for board in parse_mlxfwmanager(answers["mlxfwmanager"].text):
        pci = board.pci if board.pci.count(":") > 1 else f"0000:{board.pci}"
        boards[_place(pci)] = board
    places: dict[str, list[re.Match[str]]] = {}
    for match in functions:
        places.setdefault(_place(match["address"]), []).append(match)
    cards = []
    for place, found in places.items():
        board_, device = boards.get(place), devices.get(found[0]["address"])
        ids = f"{found[0]['vendor']}:{found[0]['device']}"
        answer = config.get(place)
        cards.append(
            CardFacts(
                address=place,
                model=board_.type if board_ and board_.type else MODELS.get(ids, ids),
                ports=tuple(_port(match) for match in found),
                psid=board_.psid if board_ else device.psid if device else "",
                firmware=board_.firmware if board_ else device.firmware if device else "",
                device=found[0]["address"],
                config=parse_mlxconfig(answer.text) if answer else None,
            )
        )
    return tuple(cards)


def _port(match: re.Match[str]) -> PortFacts:
    driver = match["driver"] or ""
    return PortFacts(
        address=match["address"],
        driver="" if driver == "-" else driver,
        netdev="" if match["net"] == "-" else match["net"],
        link=_LINKS.get(match["link"], ""),
        total_vfs=int(match["total"]),
        vfs=int(match["vfs"]),
        used_vfs=int(match["used"]),
        state=(match["state"] or "") if driver in MLX5 else "",
    )
