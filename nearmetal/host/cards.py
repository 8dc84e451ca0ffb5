# SPDX-License-Identifier: Apache-2.0
"""Which card of a host the file means, and the arithmetic of VFs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.host.steps import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.host.hosts_file import Adapter, HostGroup, Port
    from nearmetal.host.model import CardFacts, HostFacts, PortFacts
    from nearmetal.host.steps import Outcome

MAX_FIRMWARE_VFS = 127
"""VFs that ConnectX firmware offers at most on one card (VMware and NVIDIA: "up to 127 VFs")."""

MLX5 = ("mlx5_core", "nmlx5_core")
ESXI_DRIVER = "nmlx5_core"


@dataclass(frozen=True)
class Pair:
    """A card, and what the file wants of it."""

    wanted: Adapter
    card: CardFacts

    def ports(self) -> list[tuple[int, Port, PortFacts]]:
        """Return the ports that the file speaks of: number from 1, wanted, found."""
        found = zip(self.wanted.ports, self.card.ports, strict=False)
        return [(number, port, facts) for number, (port, facts) in enumerate(found, 1)]

    @property
    def vfs(self) -> list[int]:
        """VFs by port, as wanted; ports that the file leaves out have none."""
        return [port.vfs for port in self.wanted.ports]


def _plain(model: str) -> str:
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _is(adapter: Adapter, card: CardFacts) -> bool:
    if adapter.psid is not None and adapter.psid != card.psid:
        return False
    if adapter.model is not None and _plain(adapter.model) != _plain(card.model):
        return False
    return adapter.address is None or card.address.endswith(adapter.address)


def pair(group: HostGroup, facts: HostFacts, outcome: Outcome) -> list[Pair]:
    """Return each wanted card with what was found; refuses what is missing or ambiguous."""
    pairs: list[Pair] = []
    for adapter in group.adapters:
        found = [card for card in facts.cards if _is(adapter, card)]
        have = (
            ", ".join(
                f"{c.model or '?'} ({c.psid or 'no PSID'}) at {c.address}" for c in facts.cards
            )
            or "none"
        )
        if not found:
            outcome.refuse(Stage.FIRMWARE, f"no adapter {adapter.text}", f"it has: {have}")
        elif len(found) > 1:
            outcome.refuse(
                Stage.FIRMWARE,
                f"{len(found)} adapters are {adapter.text}",
                f"add the address of the one that is meant: {have}",
            )
        elif any(p.card == found[0] for p in pairs):
            outcome.refuse(Stage.FIRMWARE, f"{found[0].text} is named twice", "name it once")
        elif len(adapter.ports) > len(found[0].ports):
            outcome.refuse(
                Stage.FIRMWARE,
                f"{len(adapter.ports)} ports are asked of "
                f"{found[0].text}, it has {len(found[0].ports)}",
                "remove the last ones",
            )
        else:
            pairs.append(Pair(adapter, found[0]))
    return pairs


def num_of_vfs(pairing: Pair, platform: str, outcome: Outcome) -> int | None:
    """Return NUM_OF_VFS for a card, by the rule of its platform; None where it cannot be.

    ESXi: one more than all VFs of the card, as one is reserved for the physical function. Linux:
    the most that one port wants, as the limit is per physical function.
    """
    wanted, card = pairing.wanted, pairing.card
    if platform == "esxi":
        needed = sum(pairing.vfs) + 1
        sum_ = f"{' + '.join(map(str, pairing.vfs))} VFs + 1 for the physical function = {needed}"
    else:
        needed = max(pairing.vfs)
        sum_ = f"{needed} VFs on one port"
    limit = MAX_FIRMWARE_VFS
    if wanted.num_of_vfs != "auto":
        if needed > wanted.num_of_vfs:
            outcome.refuse(
                Stage.FIRMWARE,
                f"{card.text}: {sum_}, more than num_of_vfs: {wanted.num_of_vfs}",
                f"ask for fewer VFs, or for num_of_vfs: {needed}",
            )
            return None
        needed = wanted.num_of_vfs
    if needed > limit:
        outcome.refuse(
            Stage.FIRMWARE,
            f"{card.text}: {sum_}, and its firmware offers {limit}",
            "ask for fewer VFs",
        )
        return None
    if wanted.num_of_vfs == "auto" and card.config is not None:
        now = card.config["NUM_OF_VFS"].next if "NUM_OF_VFS" in card.config else "0"
        needed = max(needed, int(now)) if now.isdigit() else needed
    return needed


def driver_ports(pairs: list[Pair], facts: HostFacts) -> list[PortFacts]:
    """Return the ports that max_vfs of the ESXi driver counts, in the order of the bus."""
    wanted = {port.address for pairing in pairs for _, _, port in pairing.ports()}
    return [
        port
        for card in sorted(facts.cards, key=lambda card: card.address)
        for port in card.ports
        # An InfiniBand port has no driver until FORCE_ETH_PCI_SUBCLASS is in force.
        if port.driver == ESXI_DRIVER or (port.address in wanted and not port.driver)
    ]


def max_vfs(pairs: list[Pair], facts: HostFacts, options: Mapping[str, str]) -> str:
    """Return max_vfs of the ESXi driver: a number per port of each of its cards, in bus order.

    Ports that the file does not speak of keep what they have now.
    """
    wanted = {port.address: want.vfs for pairing in pairs for _, want, port in pairing.ports()}
    ports = driver_ports(pairs, facts)
    now = options.get("max_vfs", "").strip('"').split(",")
    kept = now if len(now) == len(ports) and all(n.isdigit() for n in now) else ["0"] * len(ports)
    numbers = [
        str(wanted.get(port.address, int(old))) for port, old in zip(ports, kept, strict=True)
    ]
    return ",".join(numbers)
