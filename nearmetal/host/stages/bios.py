# SPDX-License-Identifier: Apache-2.0
"""The BIOS stage: from settings by neutral names to attributes of this vendor. Pure."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from nearmetal.host.bios_names import Alternative, Vendor, Wanted, vendor_of
from nearmetal.host.steps import Outcome, SetBios, Stage, Step, Wait

if TYPE_CHECKING:
    from nearmetal.host.hosts_file import Bios
    from nearmetal.host.model import BiosFacts, BiosValue, HostFacts

_STAGE = Stage.BIOS
_WHY = "the BIOS reads its settings at boot"
_SUFFIX = re.compile(r"[_#][0-9A-Fa-f]{4}$")
_NEUTRAL = ("virtualization", "iommu", "sriov", "smt", "numa_per_socket", "power")


def plan_bios(wanted: Bios, facts: HostFacts, outcome: Outcome) -> None:
    """Add what the BIOS still needs."""
    chosen = {name: value for name in _NEUTRAL if (value := getattr(wanted, name)) is not None}
    if not chosen and not wanted.attributes:
        return
    bios = facts.bios
    if bios is None:
        outcome.refuse(_STAGE, "the BIOS could not be read", "see what could not be read, above")
        return
    targets: dict[str, BiosValue] = {}
    vendor = vendor_of(bios.vendor)
    if vendor is None and chosen:
        outcome.refuse(
            _STAGE,
            f"no table of BIOS names for {bios.vendor[:40]!r}",
            "name its own attributes under bios.attributes",
        )
    elif vendor is not None:
        for setting, value in chosen.items():
            _translate(vendor, bios, (setting, value), targets, outcome)
    for name, raw in wanted.attributes.items():
        if name not in bios.attributes:
            outcome.refuse(
                _STAGE, f"this {bios.vendor} BIOS has no attribute {name!r}", _close(name, bios)
            )
        elif name in targets and targets[name] != raw:
            outcome.refuse(
                _STAGE,
                f"bios.attributes sets {name} to {raw!r}, and another setting "
                f"of the file to {targets[name]!r}",
                "remove one of them",
            )
        else:
            targets[name] = raw
    for name, target in targets.items():
        plan_attribute(bios, name, target, outcome)


def _translate(
    vendor: Vendor,
    bios: BiosFacts,
    want: tuple[str, Wanted],
    targets: dict[str, BiosValue],
    outcome: Outcome,
) -> None:
    setting, value = want
    alternatives = vendor.settings.get(setting, ())
    if not alternatives:
        outcome.refuse(
            _STAGE,
            f"the table for {vendor.name} has no {setting}",
            "name its attribute under bios.attributes",
        )
        return
    for alternative in alternatives:
        name = _find(alternative.name, bios, suffixed=vendor.suffixed)
        if name is None:
            continue
        target = _value(alternative, name, value, bios)
        if target is None:
            known = bios.allowed.get(name) or (str(bios.attributes[name]),)
            outcome.refuse(
                _STAGE,
                f"no known value of {name} means {setting}: {_word(value)} on this {vendor.name} "
                f"(it has {', '.join(known[:8])})",
                "name attribute and value under bios.attributes",
            )
        elif name in targets and targets[name] != target:
            outcome.refuse(
                _STAGE,
                f"{setting}: {_word(value)} needs {name} {target}, and another setting of the "
                f"file needs {targets[name]}: this {vendor.name} has one switch for both",
                "ask for the same of both",
            )
        else:
            targets[name] = target
        return
    names = " or ".join(alternative.name for alternative in alternatives)
    outcome.refuse(
        _STAGE,
        f"this {vendor.name} BIOS has no attribute for {setting} ({names})",
        _close(alternatives[0].name, bios),
    )


def _find(name: str, bios: BiosFacts, *, suffixed: bool) -> str | None:
    if name in bios.attributes:
        return name
    if suffixed:
        return next((a for a in sorted(bios.attributes) if _SUFFIX.sub("", a) == name), None)
    return None


def _value(alternative: Alternative, name: str, wanted: Wanted, bios: BiosFacts) -> str | None:
    """Return the value that this machine's spelling has for what is wanted."""
    groups = [group for group in alternative.groups if wanted in group]
    allowed = bios.allowed.get(name)
    if allowed:
        return next((g[wanted] for g in groups if g[wanted] in allowed), None)
    now = bios.attributes[name]
    fitting = [g for g in groups if now in g.values()]
    if not fitting and alternative.free:
        fitting = groups
    return fitting[0][wanted] if fitting else None


def _close(name: str, bios: BiosFacts) -> str:
    near = difflib.get_close_matches(name, list(bios.attributes), 3, 0.5)
    return (
        f"it has {', '.join(near)}; name one under bios.attributes"
        if near
        else ("list them with Redfish, and name one under bios.attributes")
    )


def _word(value: BiosValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan_attribute(bios: BiosFacts, name: str, target: BiosValue, outcome: Outcome) -> None:
    """Add what makes an attribute that this BIOS has so."""
    now = bios.attributes[name]
    staged = bios.pending.get(name, now)
    if now == target and staged == target:
        return
    if staged == target:
        text, action = f"{name}: {_word(target)} is staged, {_word(now)} is in force", Wait()
        outcome.steps.append(Step(_STAGE, f"bios {name}", text, action, _WHY))
        return
    text = f"{name}: {_word(staged)} -> {_word(target)}"
    action_ = SetBios(name, target, now)
    why = "" if now == target else _WHY
    outcome.steps.append(Step(_STAGE, f"bios {name}", text, action_, why))
