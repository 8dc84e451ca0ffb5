# SPDX-License-Identifier: Apache-2.0
"""Facts of a Linux host: its boot, its cards, their VFs and their firmware."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nearmetal.host.cards import MLX5
from nearmetal.host.model import CardFacts, DeviceFacts, PlatformFacts, PortFacts, VfGuids
from nearmetal.host.parse.regions import regions_of
from nearmetal.host.parse.tools import (
    boards_by_card,
    parse_devlink,
    parse_mlxconfig,
    parse_mlxfwmanager,
    parse_mst_status,
    parse_tuned,
    place,
)
from nearmetal.host.places import GRUB, LINKS, POWER, RULES, VFIO, refresh
from nearmetal.host.shell import BEGUN, Answer, Shell, ask, quoted

MAX_CARDS = 64
MAX_DEVICES = 256
CONFIG_S = 120.0

# One line per physical function, with fields of sysfs without spaces, or `-`.
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
  used=0; shared=0; mtu=0; vf_mtus=; file=
  [ -n "$net" ] && mtu=$(cat "$d/net/$net/mtu" 2>/dev/null)
  [ -n "$net" ] && file=$(udevadm info -q property -p "/sys/class/net/$net" 2>/dev/null |
    sed -n 's/^ID_NET_LINK_FILE=//p')
  for v in "$d"/virtfn*; do
    [ -e "$v" ] || continue
    [ "$(basename "$(readlink "$v/driver" 2>/dev/null)" 2>/dev/null)" = vfio-pci ] && used=$((used+1))
    [ "$(ls "$v/iommu_group/devices" 2>/dev/null | wc -l)" -gt 1 ] && shared=$((shared+1))
    m=$(cat "$v"/net/*/mtu 2>/dev/null | head -n 1); a=$(readlink "$v")
    [ -n "$m" ] && vf_mtus=${vf_mtus:+$vf_mtus,}${a##*/}=$m
  done
  echo "$d ${driver##*/} ${net:--} ${link:--} ${state##* }" \
    "$(cat "$d/sriov_totalvfs" 2>/dev/null || echo 0)" \
    "$(cat "$d/sriov_numvfs" 2>/dev/null || echo 0)" "$used" \
    "$(cat "$d/vendor")" "$(cat "$d/device")" "$shared" "${mtu:-0}" "${vf_mtus:--}" "${file:--}" | sed 's/  */ /g'
done"""

# One line per adapter (02), display (03) or accelerator (12), which is not a VF. Others of its IOMMU
# group have their ids if they can be companions: sound (04), USB (0c03) and serial buses (0c80).
_DEVICES = r"""
cd /sys/bus/pci/devices || exit 1
for d in *; do
  [ -e "$d/physfn" ] && continue
  case $(cat "$d/class" 2>/dev/null) in 0x02*|0x03*|0x12*) ;; *) continue ;; esac
  driver=$(readlink "$d/driver"); used=; mates=
  for n in "$d"/net/*; do
    [ "$(cat "$n/operstate" 2>/dev/null)" = up ] && used=${used:+$used,}${n##*/}
  done
  for m in "$d"/iommu_group/devices/*; do
    m=${m##*/}
    ids=
    case $(cat "$m/class" 2>/dev/null) in
    0x06*|'') continue ;;
    0x04*|0x0c03*|0x0c80*) ids="=$(cat "$m/vendor")-$(cat "$m/device")" ;;
    esac
    [ "$m" = "$d" ] || mates=${mates:+$mates,}$m$ids
  done
  real=$(readlink -f "$d"); above=${real##*/sys/devices/}
  bars=$(head -n 6 "$d/resource" 2>/dev/null | tr ' ' - | tr '\n' ,)
  echo "$d $(cat "$d/vendor") $(cat "$d/device") ${driver##*/}@ ${used}@ ${mates}@ ${bars}@ ${above}@"
done"""

# One line per bridge with ACS: its capability and its control.
_ACS = r"""
cd /sys/bus/pci/devices || exit 1
for d in *; do
  case $(cat "$d/class" 2>/dev/null) in 0x0604*) ;; *) continue ;; esac
  acs=$(setpci -s "$d" ECAP_ACS+4.w ECAP_ACS+6.w 2>/dev/null) && echo "$d" $acs
done; true"""

_BRIDGE = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]) ([0-9a-f]{4}) ([0-9a-f]{4})")

_DEVICE = re.compile(
    r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]) "
    r"0x(?P<vendor>[0-9a-f]{4}) 0x(?P<device>[0-9a-f]{4}) (?P<driver>[\w-]{0,32})@ "
    r"(?P<used>[^ @]{0,256})@ (?P<mates>[0-9a-fx:.,=-]{0,4096})@ (?P<bars>[0-9a-fx,-]{0,512})@ "
    r"(?P<above>[0-9a-fpci:./]{0,1024})@"
)
_FUNCTION = re.compile(
    r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]) (?:(?P<driver>[\w-]{1,32}) )?"
    r"(?P<net>[\w.@:-]{1,32}) (?P<link>[\w-]{1,16}) (?:(?P<state>[A-Z_]{1,16}) )?"
    r"(?P<total>[0-9]{1,5}) (?P<vfs>[0-9]{1,5}) (?P<used>[0-9]{1,5}) "
    r"0x(?P<vendor>[0-9a-f]{4}) 0x(?P<device>[0-9a-f]{4}) "
    r"(?P<shared>[0-9]{1,5}) (?P<mtu>[0-9]{1,5}) (?P<vf_mtus>[0-9a-f:.=,-]{1,16384}) "
    r"(?P<file>[A-Za-z0-9@%_+:./-]{1,255})"
)

_VF_MTU = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])=([0-9]{1,5})(?:,|$)")

_LINKS = {"InfiniBand": "infiniband", "32": "infiniband", "Ethernet": "ethernet", "1": "ethernet"}

MODELS = {
    "15b3:1013": "ConnectX-4",
    "15b3:1015": "ConnectX-4LX",
    "15b3:1017": "ConnectX-5",
    "15b3:1019": "ConnectX-5EX",
    "15b3:101b": "ConnectX-6",
    "15b3:101d": "ConnectX-6DX",
    "15b3:101f": "ConnectX-6LX",
    "15b3:1021": "ConnectX-7",
    "15b3:1023": "ConnectX-8",
    "15b3:a2d2": "BlueField",
    "15b3:a2d6": "BlueField-2",
    "15b3:a2dc": "BlueField-3",
    "8086:10c9": "82576",
    "8086:1521": "I350",
    "8086:10fb": "82599",
    "8086:1572": "X710",
    "8086:158b": "XXV710",
    "8086:1592": "E810-C",
    "8086:1593": "E810-C",
    "8086:159b": "E810-XXV",
}
"""Models by vendor and device, as pci.ids has them."""

_KEPT = {"rules": RULES, "vfio": VFIO, "grub": GRUB, "power": POWER}

# One line per InfiniBand VF of mlx5: the function, its number, its GUIDs, its link policy.
_GUIDS = r"""
for d in /sys/bus/pci/devices/*/sriov/*; do
  [ -e "$d/node" ] || continue
  p=${d%/sriov/*}
  echo "${p##*/} ${d##*/} $(cat "$d/node") $(cat "$d/port") $(cat "$d/policy")"
done"""

_GUID = re.compile(
    r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]) (?P<number>[0-9]{1,4}) "
    r"(?P<node>(?:[0-9a-f]{2}:){7}[0-9a-f]{2}) (?P<port>(?:[0-9a-f]{2}:){7}[0-9a-f]{2}) "
    r"(?P<policy>Up|Down|Follow)"
)

_LINK_PATHS = rf"""
for f in {LINKS} {LINKS}{BEGUN}; do [ -e "$f" ] && echo "${{f##*/}}"; done; true"""

_HALF = 45
"""Exit code for a file with an interrupted change: neither the old nor the new state."""

_WORD = re.compile(r"[a-z_]{1,32}")
_SYSTEMD = re.compile(r"^systemd ([0-9]{1,4})\b", re.MULTILINE)

_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}


def read_linux(name: str, shell: Shell) -> PlatformFacts:
    """Return a host's facts, without its BIOS; raises HostError if it cannot be reached."""
    answers = ask(
        shell,
        {
            "boot": "cat /proc/sys/kernel/random/boot_id",
            "cmdline": "cat /proc/cmdline",
            "cpu": "sed -n 's/^vendor_id[^:]*: //p' /proc/cpuinfo | head -n 1",
            "groups": "ls /sys/kernel/iommu_groups | wc -l",
            "loader": "if [ -d /etc/default/grub.d ] && command -v update-grub; then echo grub.d;"
            " elif command -v grubby; then echo grubby; fi",
            "functions": _FUNCTIONS,
            "devices": _DEVICES,
            "acs": _ACS,
            "devlink": "devlink -j dev info",
            "mlxfwmanager": "mlxfwmanager --query || mstfwmanager --query",
            "mst": "mst status -v",
            "tool": "command -v mlxconfig || command -v mstconfig",
            "guids": _GUIDS,
            "governors": "sort -u /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            # The message for a missing daemon is on stderr.
            "tuned": "tuned-adm active 2>&1",
            "networkd": "systemctl -q is-active systemd-networkd && systemctl --version",
            "links": _LINK_PATHS,
            **{name: _text_of(path) for name, path in _KEPT.items()},
        },
    )
    unread = [] if answers["functions"].code == 0 else ["its PCI devices: /sys is not there"]
    functions = _functions(answers["functions"].text)
    names = {name.removesuffix(BEGUN) for name in answers["links"].text.split()}
    links = sorted(filter(refresh, (f"{LINKS.rpartition('/')[0]}/{n}" for n in names)))[:MAX_CARDS]
    texts = ask(shell, {str(n): _text_of(p) for n, p in enumerate(links)}) if links else {}
    tool = answers["tool"].text.strip().rpartition("/")[2]
    config = _configs(shell, functions, tool, unread)
    groups = answers["groups"].text.strip()
    return PlatformFacts(
        name=name,
        platform="linux",
        boot=answers["boot"].text.strip()[:64],
        cards=_cards(functions, answers, config),
        cpu=_VENDORS.get(answers["cpu"].text.strip(), ""),
        # Arguments after `--` are for init.
        cmdline=tuple(answers["cmdline"].text.partition(" -- ")[0].split()),
        iommu_groups=int(groups) if groups.isdigit() else 0,
        loader=(answers["loader"].text.split() or [""])[-1],
        files={path: _file(answers[name]) for name, path in _KEPT.items()}
        | {path: _file(texts[str(n)]) for n, path in enumerate(links)},
        unread=tuple(unread),
        governors=tuple(w for w in answers["governors"].text.split() if _WORD.fullmatch(w)),
        tuned=parse_tuned(answers["tuned"].text),
        networkd=int(_found(_SYSTEMD, answers["networkd"]) or 0),
        devices=_devices(answers["devices"].text),
        acs={
            found[1]: (int(found[2], 16), int(found[3], 16))
            for line in answers["acs"].text.splitlines()
            if (found := _BRIDGE.fullmatch(line.strip()))
        },
    )


def _devices(text: str) -> tuple[DeviceFacts, ...]:
    """Return the adapters and GPUs as whole devices."""
    lines = filter(None, (_DEVICE.fullmatch(line.strip()) for line in text.splitlines()))
    return tuple(_device(match) for match in list(lines)[:MAX_DEVICES])


def _device(match: re.Match[str]) -> DeviceFacts:
    bars = regions_of(match["bars"].replace("-", " ").replace(",", "\n"))
    slot = match["address"].rpartition(".")[0]
    mates = [mate.partition("=") for mate in match["mates"].split(",") if mate]
    return DeviceFacts(
        match["address"],
        f"{match['vendor']}:{match['device']}",
        match["driver"],
        f"{match['used']} is up" if match["used"] else "",
        tuple(mate for mate, _, _ in mates),
        tuple(match["above"].split("/")[:-1]),
        tuple(size for size, _ in bars),
        sum(size for size, unset in bars if unset),
        companions=tuple(
            (mate, ids.replace("0x", "").replace("-", ":"))
            for mate, _, ids in mates
            if ids and mate.startswith(f"{slot}.")
        ),
    )


def _found(pattern: re.Pattern[str], answer: Answer) -> str:
    match = pattern.search(answer.text) if answer.code == 0 else None
    return match[1] if match else ""


def _text_of(path: str) -> str:
    return f"[ -e {path}{BEGUN} ] && exit {_HALF}; [ -e {path} ] || exit 44; cat {path}"


def _file(answer: Answer) -> str | None:
    if answer.code == _HALF:
        return ""
    return answer.text if answer.code == 0 else None


def _functions(text: str) -> dict[str, list[re.Match[str]]]:
    """Return the physical functions of each card, by its address."""
    lines = (_FUNCTION.fullmatch(line.strip()) for line in text.splitlines())
    places: dict[str, list[re.Match[str]]] = {}
    for match in sorted(filter(None, lines), key=lambda match: match["address"]):
        places.setdefault(place(match["address"]), []).append(match)
    return places


def _configs(
    shell: Shell, places: dict[str, list[re.Match[str]]], tool: str, unread: list[str]
) -> dict[str, Answer]:
    """Return the answers of the firmware's own tool for each NVIDIA card."""
    firsts = {card: f[0]["address"] for card, f in places.items() if f[0]["vendor"] == "15b3"}
    if firsts and not tool:
        unread.append("firmware settings: neither mlxconfig nor mstconfig is installed")
    if not firsts or not tool:
        return {}
    questions = {
        card: quoted([tool, "-d", address, "-e", "query"])
        for card, address in list(firsts.items())[:MAX_CARDS]
    }
    return ask(shell, questions, timeout_s=CONFIG_S)


def _cards(
    places: dict[str, list[re.Match[str]]],
    answers: Mapping[str, Answer],
    config: Mapping[str, Answer],
) -> tuple[CardFacts, ...]:
    devices = parse_devlink(answers["devlink"].text)
    boards = boards_by_card(
        parse_mlxfwmanager(answers["mlxfwmanager"].text), parse_mst_status(answers["mst"].text)
    )
    guids: dict[str, list[VfGuids]] = {}
    for line in answers["guids"].text.splitlines():
        if match := _GUID.fullmatch(line):
            vf = VfGuids(int(match["number"]), match["node"], match["port"], match["policy"])
            guids.setdefault(match["address"], []).append(vf)
    cards = []
    for address, functions in places.items():
        board = boards.get(address) or devices.get(functions[0]["address"])
        ids = f"{functions[0]['vendor']}:{functions[0]['device']}"
        answer = config.get(address)
        cards.append(
            CardFacts(
                address=address,
                model=board.type if board and board.type else MODELS.get(ids, ids),
                ports=tuple(_port(match, guids.get(match["address"], [])) for match in functions),
                psid=board.psid if board else "",
                firmware=board.firmware if board else "",
                stored=board.stored if board else "",
                device=functions[0]["address"],
                config=parse_mlxconfig(answer.text) if answer else None,
            )
        )
    return tuple(cards)


def _port(match: re.Match[str], guids: list[VfGuids]) -> PortFacts:
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
        shared_vfs=int(match["shared"]),
        mtu=int(match["mtu"]),
        vf_mtus={vf: int(mtu) for vf, mtu in _VF_MTU.findall(match["vf_mtus"])},
        link_file="" if match["file"] == "-" else match["file"],
        guids=tuple(sorted(guids, key=lambda vf: vf.number)),
    )
