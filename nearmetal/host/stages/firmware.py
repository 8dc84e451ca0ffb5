# SPDX-License-Identifier: Apache-2.0
"""The firmware stage: level, link types, SR-IOV and the number of VFs of each card. Pure.

The tool lists some settings only while another one has a value. mstflint's tables of parameters
name them (mlxconfig/mlxconfig_dbs/mlxconfig_host.db, `dependency`), and its source evaluates them
with the values of the next boot. Other firmware lists them only after a reset. So such a setting is
planned after a reset; `apply` sets it before the reset if the tool lists it by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearmetal.host.cards import MLX5, Pair, num_of_vfs
from nearmetal.host.hosts_file import HostGroup
from nearmetal.host.model import CardFacts, PlatformFacts
from nearmetal.host.steps import Burn, Install, Outcome, SetConfig, Stage, Step, Wait

_STAGE = Stage.FIRMWARE
_RESET = "the firmware reads its settings when it starts"
_LISTED = "the tool may list a setting only after a reset; there is none if it lists it before"
_START = "new firmware starts with the card"
_LINKS = {"infiniband": "1", "ethernet": "2"}
_SHOWN = {"1": "1 (IB)", "2": "2 (ETH)"}
TOOLS = ("mft", "nmst")

OPENERS = {
    "FORCE_ETH_PCI_SUBCLASS": ("ADVANCED_PCI_SETTINGS", "1"),
    "IBM_CAPI_EN": ("ADVANCED_PCI_SETTINGS", "1"),
    "MAX_ACC_OUT_READ": ("ADVANCED_PCI_SETTINGS", "1"),
    "DISABLE_SLOT_POWER_LIMITER": ("ADVANCED_POWER_SETTINGS", "1"),
    "USER_PROGRAMMABLE_CC": ("ROCE_CC_LEGACY_DCQCN", "0"),
    "INTERNAL_CPU_PAGE_SUPPLIER": ("INTERNAL_CPU_MODEL", "1"),
    "INTERNAL_CPU_ESWITCH_MANAGER": ("INTERNAL_CPU_MODEL", "1"),
    "INTERNAL_CPU_IB_VPORT0": ("INTERNAL_CPU_MODEL", "1"),
    "INTERNAL_CPU_OFFLOAD_ENGINE": ("INTERNAL_CPU_MODEL", "1"),
    "NUM_OF_VFS": ("SRIOV_EN", "1"),
}
"""By setting: the setting and its value under which it is listed."""


def opens_more(steps: Sequence[Step]) -> bool:
    """Whether a step sets, or has set, a setting with which the tool lists others."""
    names = {opener for opener, _ in OPENERS.values()}
    return any(
        step.key.startswith("config ") and step.key.rpartition(" ")[2] in names for step in steps
    )


def is_hidden(name: str, card: CardFacts) -> bool:
    """Whether the tool does not list a setting because of the value of another one."""
    config = card.config or {}
    opener, needed = OPENERS.get(name, ("", ""))
    return name not in config and opener in config and config[opener].next != needed


def version_key(version: str) -> tuple[int, ...]:
    """Return a version as numbers for comparison; other parts count as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def plan_packages(group: HostGroup, facts: PlatformFacts, outcome: Outcome) -> None:
    """Add the packages of ESXi that are missing or too old."""
    for package in group.packages:
        now = facts.packages.get(package.name, "")
        have, least = (version_key(v.partition("-")[0]) for v in (now, package.version))
        if now and have >= least:
            continue
        outcome.step(
            _STAGE if package.name in TOOLS else Stage.DRIVER,
            f"package {package.name}",
            f"{package.name}: {now or 'not installed'} -> {package.version}",
            Install(package.name, package.file),
            "ESXi loads drivers and the modules of the tools at boot",
        )


def plan_firmware(
    group: HostGroup, facts: PlatformFacts, pairs: list[Pair], outcome: Outcome
) -> None:
    """Add the missing steps for the firmware of each card in the file."""
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
            listed = ", ".join(sorted(versions, key=version_key))
            outcome.remark(_STAGE, f"cards {psid} have different firmware: {listed}")


def _level(pairing: Pair, outcome: Outcome) -> tuple[str, ...]:
    """Add the step to the wanted firmware level; returns the keys that later steps wait for."""
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
    # The running firmware may be new enough although an older image is stored.
    runs = version_key(card.firmware) >= least
    if version_key(card.coming) >= least:
        if runs:
            return ()
        text = f"{card.text}: firmware {card.coming} is stored, {card.firmware} runs"
        outcome.step(_STAGE, key, text, Wait(), _START)
        return (key,)
    image = wanted.image
    if image is None or version_key(image.version) < least:
        have = "no image is named" if image is None else f"the image is {image.version}"
        outcome.refuse(
            _STAGE,
            f"{card.text} has firmware {card.coming}, older than {wanted.firmware}, and {have}",
            "name a newer one under image",
        )
        return ()
    text = f"{card.text}: firmware {card.coming} -> {image.version}"
    action = Burn(
        card.device or card.address, image.file, image.sha256, image.version, card.firmware
    )
    outcome.step(_STAGE, key, text, action, "" if runs else _START)
    return () if runs else (key,)


def settings_of(pairing: Pair, platform: str, outcome: Outcome) -> dict[str, str]:
    """Return the wanted settings of the card's firmware, in the order of setting them."""
    settings = _port_settings(pairing, platform, outcome)
    if pairing.wanted.ats is not None:
        settings["ATS_ENABLED"] = str(int(pairing.wanted.ats))
    settings |= {name: str(value) for name, value in pairing.wanted.settings.items()}
    return _opened(settings, pairing.card, outcome)


def _opened(settings: dict[str, str], card: CardFacts, outcome: Outcome) -> dict[str, str]:
    """Return settings in an order in which those that open others come first."""
    opened: dict[str, str] = {}
    for name, value in settings.items():
        opener, needed = OPENERS.get(name, ("", ""))
        listed = card.config is None or name in card.config
        if opener and (not listed or opener in settings):
            wanted = settings.get(opener, opened.get(opener, needed))
            if wanted != needed:
                what = f"{card.text}: {name} needs {opener} = {needed}, and the file has {wanted}"
                outcome.refuse(_STAGE, what, f"remove {opener}, or {name}")
            opened.setdefault(opener, wanted)
        opened[name] = value
    return opened


def _port_settings(pairing: Pair, platform: str, outcome: Outcome) -> dict[str, str]:
    card = pairing.card
    settings: dict[str, str] = {}
    ports = pairing.ports()
    for number, port, found in ports:
        name = f"LINK_TYPE_P{number}"
        known = card.config is None or name in card.config
        if port.link is None or (port.link == found.link and (card.config is None or not known)):
            continue
        if known:
            settings[name] = _LINKS[port.link]
        else:
            outcome.refuse(
                _STAGE,
                f"port {number} of {card.text} cannot be {port.link}: its firmware has no {name}",
                "its link type is fixed; a VPI card has both",
            )
    if platform == "esxi" and any(port.link == "infiniband" for _, port, _ in ports):
        # The native driver accepts Ethernet devices only; the fabric stays InfiniBand.
        settings |= {"ADVANCED_PCI_SETTINGS": "1", "FORCE_ETH_PCI_SUBCLASS": "1"}
    if any(pairing.vfs):
        if card.config is not None and "SRIOV_EN" not in card.config:
            outcome.refuse(
                _STAGE,
                f"{card.text} has no SR-IOV: its firmware has no SRIOV_EN",
                "request no VFs on it",
            )
            return {}
        vfs = num_of_vfs(pairing, platform, outcome)
        if vfs is not None:
            settings |= {"SRIOV_EN": "1", "NUM_OF_VFS": str(vfs)}
        each = (card.config or {}).get("PF_NUM_OF_VF_VALID")
        if vfs is not None and each is not None and each.next != "0":
            # With it, the firmware reads a number for each function in place of NUM_OF_VFS.
            settings["PF_NUM_OF_VF_VALID"] = "0"
    return settings


def _shown(name: str, value: str) -> str:
    return _SHOWN.get(value, value) if name.startswith("LINK_TYPE") else value


def configure(
    card: CardFacts, settings: dict[str, str], burnt: tuple[str, ...], outcome: Outcome
) -> None:
    """Add the steps for settings of a card; `burnt`: keys of burns that they wait for."""
    tools = tuple(
        s.key for s in outcome.steps if isinstance(s.action, Install) and s.action.name in TOOLS
    )
    if card.config is None and not tools:
        if _needs_tool(card, settings):
            outcome.refuse(
                _STAGE,
                f"the firmware settings of {card.text} cannot be read",
                "install mstflint (Linux) or MFT and NMST (ESXi) on the host",
            )
        return
    device, unknown = card.device or card.address, card.config is None
    for name, value in settings.items():
        found = (card.config or {}).get(name)
        key, what = f"config {card.address} {name}", f"{card.text}: {name}"
        waits = _waits_for(name, card, outcome)
        if found is not None and found.fixed and value not in (found.next, found.current):
            outcome.refuse(
                _STAGE,
                f"{what} is read-only, and {found.next}",
                "its owner sets it: the processor of a DPU, or another host of the card",
            )
        elif found is None and waits:
            opener, needed = OPENERS[name]
            text = f"{what} = {_shown(name, value)} (listed only with {opener} = {needed})"
            action = SetConfig(device, name, value, None)
            outcome.step(_STAGE, key, text, action, _LISTED, after=(*burnt, waits))
        elif found is None and not unknown and not burnt:
            outcome.refuse(
                _STAGE,
                f"the firmware of {card.text} has no {name}",
                "newer firmware may have it: name an image",
            )
        elif found is None:
            later = "unknown until the tools run" if unknown else "the new firmware may have it"
            action = SetConfig(device, name, value, None)
            after = (*burnt, *tools) if unknown else burnt
            text = f"{what} = {_shown(name, value)} ({later})"
            outcome.step(_STAGE, key, text, action, _RESET, after=after)
        elif found.next != value:
            text = f"{what} {_shown(name, found.next)} -> {_shown(name, value)}"
            action = SetConfig(device, name, value, found.next)
            # A reset is not necessary if this restores the setting in force.
            outcome.step(_STAGE, key, text, action, "" if found.current == value else _RESET)
        elif found.current != value:
            text = f"{what} = {_shown(name, value)} is set, {found.current} runs"
            outcome.step(_STAGE, key, text, Wait(), _RESET)


def _waits_for(name: str, card: CardFacts, outcome: Outcome) -> str:
    """Return the key of the step after whose reset the tool lists a setting; "" for none."""
    opener = OPENERS.get(name, ("", ""))[0]
    if card.config is None and name == "NUM_OF_VFS":
        return ""  # no known firmware hides it
    key = f"config {card.address} {opener}"
    return key if any(step.key == key and step.reboot for step in outcome.steps) else ""


def _needs_tool(card: CardFacts, settings: dict[str, str]) -> bool:
    """Whether a setting requires the card's own tools."""
    offered = min((port.total_vfs for port in card.ports), default=0)
    settable = any(port.driver in (*MLX5, "") for port in card.ports)
    more = settable and int(settings.get("NUM_OF_VFS", "0")) > offered
    # The numbers of VFs also show without the tools.
    return more or bool(settings.keys() - {"NUM_OF_VFS", "SRIOV_EN", "PF_NUM_OF_VF_VALID"})
