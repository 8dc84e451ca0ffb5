# SPDX-License-Identifier: Apache-2.0
"""The firmware stage: level, link types, SR-IOV and the number of VFs of each card. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.host.cards import MLX5, num_of_vfs
from nearmetal.host.steps import Burn, Install, Outcome, SetConfig, Stage, Step, Wait

if TYPE_CHECKING:
    from nearmetal.host.cards import Pair
    from nearmetal.host.hosts_file import HostGroup
    from nearmetal.host.model import CardFacts, HostFacts

_STAGE = Stage.FIRMWARE
_RESET = "the firmware reads its settings when it starts"
_START = "new firmware starts with the card"
_LINKS = {"infiniband": "1", "ethernet": "2"}
_SHOWN = {"LINK_TYPE": {"1": "1 (IB)", "2": "2 (ETH)"}}
TOOLS = ("mft", "nmst")


def version_key(version: str) -> tuple[int, ...]:
    """Return a version as numbers to compare; parts that are no numbers count as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def plan_packages(group: HostGroup, facts: HostFacts, outcome: Outcome) -> None:
    """Add packages of ESXi that are missing or too old."""
    for package in group.packages:
        now = facts.packages.get(package.name, "")
        if now and version_key(now.partition("-")[0]) >= version_key(
            package.version.partition("-")[0]
        ):
            continue
        what = f"{package.name}: {now or 'not installed'} -> {package.version}"
        why = "ESXi loads drivers and the modules of the tools at boot"
        stage = _STAGE if package.name in TOOLS else Stage.DRIVER
        action = Install(package.name, package.file)
        outcome.steps.append(Step(stage, f"package {package.name}", what, action, why))


def plan_firmware(group: HostGroup, facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """Add what the firmware of each wanted card still needs."""
    for pairing in pairs:
        burnt = _level(pairing, outcome)
        settings = settings_of(pairing, group.platform, outcome)
        if settings:
            configure(pairing.card, settings, burnt, outcome)
    known: dict[str, set[str]] = {}
    for card in facts.cards:
        if card.psid and card.firmware:
            known.setdefault(card.psid, set()).add(card.firmware)
    for psid, versions in known.items():
        if len(versions) > 1:
            outcome.remark(
                _STAGE,
                f"cards {psid} have different firmware: "
                f"{', '.join(sorted(versions, key=version_key))}",
            )


def _level(pairing: Pair, outcome: Outcome) -> tuple[str, ...]:
    """Add what brings the firmware to its level; returns the keys that wait for it."""
    wanted, card = pairing.wanted, pairing.card
    if wanted.firmware is None:
        return ()
    if not card.firmware:
        outcome.refuse(
            _STAGE,
            f"the firmware level of {card.text} is unknown",
            "install mlxfwmanager or devlink on the host",
        )
        return ()
    key = f"burn {card.address}"
    least = version_key(wanted.firmware)
    # Of an older image that another has stored over it, what runs is none the worse.
    runs = version_key(card.firmware) >= least
    if version_key(card.coming) >= least:
        if runs:
            return ()
        text = f"{card.text}: firmware {card.coming} is stored, {card.firmware} runs"
        outcome.steps.append(Step(_STAGE, key, text, Wait(), _START))
        return (key,)
    image = wanted.image
    if image is None or version_key(image.version) < version_key(wanted.firmware):
        have = "no image is named" if image is None else f"the image is {image.version}"
        outcome.refuse(
            _STAGE,
            f"{card.text} has firmware {card.coming}, older than {wanted.firmware}, and {have}",
            "name one under image",
        )
        return ()
    text = f"{card.text}: firmware {card.coming} -> {image.version}"
    action = Burn(
        card.device or card.address, image.file, image.sha256, image.version, card.firmware
    )
    outcome.steps.append(Step(_STAGE, key, text, action, "" if runs else _START))
    return () if runs else (key,)


def settings_of(pairing: Pair, platform: str, outcome: Outcome) -> dict[str, str]:
    """Return the settings that the card's firmware shall have, in the order of setting them."""
    settings = _port_settings(pairing, platform, outcome)
    if pairing.wanted.ats is not None:
        settings["ATS_ENABLED"] = str(int(pairing.wanted.ats))
    return settings


def _port_settings(pairing: Pair, platform: str, outcome: Outcome) -> dict[str, str]:
    card = pairing.card
    settings: dict[str, str] = {}
    ports = pairing.ports()
    for number, port, found in ports:
        name = f"LINK_TYPE_P{number}"
        if port.link is None:
            continue
        if card.config is not None and name not in card.config:
            if port.link != found.link:
                outcome.refuse(
                    _STAGE,
                    f"port {number} of {card.text} cannot be {port.link}: its firmware has no {name}",
                    "its link type is fixed; a VPI card has both",
                )
        elif card.config is not None or port.link != found.link:
            settings[name] = _LINKS[port.link]
    if platform == "esxi" and any(port.link == "infiniband" for _, port, _ in ports):
        # The native driver takes Ethernet devices only; the fabric stays InfiniBand.
        settings["ADVANCED_PCI_SETTINGS"] = "1"
        settings["FORCE_ETH_PCI_SUBCLASS"] = "1"
    if any(pairing.vfs):
        if card.config is not None and "SRIOV_EN" not in card.config:
            outcome.refuse(
                _STAGE,
                f"{card.text} has no SR-IOV: its firmware has no SRIOV_EN",
                "ask for no VFs on it",
            )
            return {}
        number_ = num_of_vfs(pairing, platform, outcome)
        if number_ is not None:
            settings |= {"SRIOV_EN": "1", "NUM_OF_VFS": str(number_)}
    return settings


def _shown(name: str, value: str) -> str:
    return _SHOWN.get(name[:9], {}).get(value, value)


def configure(
    card: CardFacts, settings: dict[str, str], burnt: tuple[str, ...], outcome: Outcome
) -> None:
    """Add what makes settings of a card so; `burnt`: keys of burns that they wait for."""
    tools = tuple(
        s.key for s in outcome.steps if isinstance(s.action, Install) and s.action.name in TOOLS
    )
    if card.config is None:
        if tools:
            for name, value in settings.items():
                text = f"{card.text}: {name} = {_shown(name, value)} (unknown until the tools run)"
                action = SetConfig(card.device or card.address, name, value, None)
                outcome.steps.append(
                    Step(
                        _STAGE,
                        f"config {card.address} {name}",
                        text,
                        action,
                        _RESET,
                        (*burnt, *tools),
                    )
                )
        elif _needs_tool(card, settings):
            outcome.refuse(
                _STAGE,
                f"the firmware settings of {card.text} cannot be read",
                "install mstflint (Linux) or MFT and NMST (ESXi) on the host",
            )
        return
    for name, value in settings.items():
        found = card.config.get(name)
        key = f"config {card.address} {name}"
        if found is None:
            if not burnt:
                outcome.refuse(
                    _STAGE,
                    f"the firmware of {card.text} has no {name}",
                    "newer firmware may have it: name an image",
                )
                continue
            text = f"{card.text}: {name} = {_shown(name, value)} (the new firmware may have it)"
            action = SetConfig(card.device, name, value, None)
            outcome.steps.append(Step(_STAGE, key, text, action, _RESET, burnt))
        elif found.next != value:
            text = f"{card.text}: {name} {_shown(name, found.next)} -> {_shown(name, value)}"
            action = SetConfig(card.device, name, value, found.next)
            # What another has staged and this takes back needs no reset.
            why = "" if found.current == value else _RESET
            outcome.steps.append(Step(_STAGE, key, text, action, why))
        elif found.current != value:
            text = f"{card.text}: {name} = {_shown(name, value)} is set, {found.current} runs"
            outcome.steps.append(Step(_STAGE, key, text, Wait(), _RESET))


def _needs_tool(card: CardFacts, settings: dict[str, str]) -> bool:
    """Whether something must be set that only the card's own tools set."""
    offered = min((port.total_vfs for port in card.ports), default=0)
    settable = any(port.driver in (*MLX5, "") for port in card.ports)
    more = settable and int(settings.get("NUM_OF_VFS", "0")) > offered
    return more or any(name.startswith(("LINK_", "FORCE_", "ATS_")) for name in settings)
