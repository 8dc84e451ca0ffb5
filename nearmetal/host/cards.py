# SPDX-License-Identifier: Apache-2.0
"""Cards of a host for the adapters of the file, and the arithmetic of VFs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nearmetal.host.hosts_file import Adapter, HostGroup, Port
from nearmetal.host.model import CardFacts, PlatformFacts, PortFacts
from nearmetal.host.steps import Outcome, Stage

MAX_FIRMWARE_VFS = 127
"""Maximum of VFs of one ConnectX card in its firmware (VMware and NVIDIA: "up to 127 VFs")."""

MLX5 = ("mlx5_core", "nmlx5_core")
ESXI_DRIVER = "nmlx5_core"

_STAGE = Stage.FIRMWARE


@dataclass(frozen=True)
class Pair:
    """A card, and the adapter of the file that it must become."""

    wanted: Adapter
    card: CardFacts

    def ports(self) -> list[tuple[int, Port, PortFacts]]:
        """Return the ports in the file: number from 1, wanted, found."""
        found = zip(self.wanted.ports, self.card.ports, strict=False)
        return [(number, port, facts) for number, (port, facts) in enumerate(found, 1)]

    @property
    def vfs(self) -> list[int]:
        """Wanted VFs by port; ports that are not in the file have none."""
        return [port.vfs for port in self.wanted.ports]


def _plain(model: str) -> str:
    """Return a model for comparison. The card's own tools call a ConnectX-5 Ex a ConnectX5."""
    return re.sub(r"[^a-z0-9]", "", model.lower()).removesuffix("ex")


def _is(adapter: Adapter, card: CardFacts) -> bool:
    return (
        adapter.psid in (None, card.psid)
        and (adapter.model is None or _plain(adapter.model) == _plain(card.model))
        and (adapter.address is None or card.address.endswith(adapter.address))
    )


def pair(group: HostGroup, facts: PlatformFacts, outcome: Outcome) -> list[Pair]:
    """Return the card of each adapter in the file; refuses missing and ambiguous cards."""
    pairs: list[Pair] = []
    listed = (f"{c.model or '?'} ({c.psid or 'no PSID'}) at {c.address}" for c in facts.cards)
    have = ", ".join(listed) or "none"
    for adapter in group.adapters:
        found = [card for card in facts.cards if _is(adapter, card)]
        if not found:
            outcome.refuse(_STAGE, f"no adapter {adapter.text}", f"it has: {have}")
        elif len(found) > 1:
            outcome.refuse(
                _STAGE, f"{len(found)} adapters are {adapter.text}", f"add an address: {have}"
            )
        elif any(p.card == found[0] for p in pairs):
            outcome.refuse(_STAGE, f"{found[0].text} is named twice", "name it once")
        elif len(adapter.ports) > len(found[0].ports):
            outcome.refuse(
                _STAGE,
                f"{len(adapter.ports)} ports are requested of "
                f"{found[0].text}, it has {len(found[0].ports)}",
                "remove the last ones",
            )
        else:
            pairs.append(Pair(adapter, found[0]))
    return pairs


def num_of_vfs(pairing: Pair, platform: str, outcome: Outcome) -> int | None:
    """Return NUM_OF_VFS for a card, by the rule of its platform; None if it is not possible.

    ESXi: one more than all VFs of the card, because one is reserved for the physical function.
    Linux: the maximum of one port, because the limit is per physical function.
    """
    wanted, card = pairing.wanted, pairing.card
    if platform == "esxi":
        needed = sum(pairing.vfs) + 1
        sum_ = f"{' + '.join(map(str, pairing.vfs))} VFs + 1 for the physical function = {needed}"
    else:
        needed = max(pairing.vfs)
        sum_ = f"{needed} VFs on one port"
    if wanted.num_of_vfs != "auto":
        if needed > wanted.num_of_vfs:
            outcome.refuse(
                _STAGE,
                f"{card.text}: {sum_}, more than num_of_vfs: {wanted.num_of_vfs}",
                f"request fewer VFs, or num_of_vfs: {needed}",
            )
            return None
        needed = wanted.num_of_vfs
    if needed > MAX_FIRMWARE_VFS:
        outcome.refuse(
            _STAGE,
            f"{card.text}: {sum_}, and its firmware offers {MAX_FIRMWARE_VFS}",
            "request fewer VFs",
        )
        return None
    now = (card.config or {}).get("NUM_OF_VFS")
    if wanted.num_of_vfs == "auto" and now is not None and now.next.isdigit():
        return max(needed, int(now.next))
    return needed


def driver_ports(pairs: list[Pair], facts: PlatformFacts) -> list[PortFacts]:
    """Return the ports in max_vfs of the ESXi driver, in the order of the bus."""
    wanted = {port.address for pairing in pairs for _, _, port in pairing.ports()}
    return [
        port
        for card in sorted(facts.cards, key=lambda card: card.address)
        for port in card.ports
        # An InfiniBand port has no driver until FORCE_ETH_PCI_SUBCLASS is in force.
        if port.driver == ESXI_DRIVER or (port.address in wanted and not port.driver)
    ]


def max_vfs(pairs: list[Pair], facts: PlatformFacts, options: Mapping[str, str]) -> str:
    """Return max_vfs of the ESXi driver: a number per port of each of its cards, in bus order.

    Ports that are not in the file keep their present number.
    """
    wanted = {port.address: want.vfs for pairing in pairs for _, want, port in pairing.ports()}
    ports = driver_ports(pairs, facts)
    now = options.get("max_vfs", "").strip('"').split(",")
    kept = now if len(now) == len(ports) and all(n.isdigit() for n in now) else ["0"] * len(ports)
    numbers = [
        str(wanted.get(port.address, int(old))) for port, old in zip(ports, kept, strict=True)
    ]
    return ",".join(numbers)
