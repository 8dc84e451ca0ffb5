# SPDX-License-Identifier: Apache-2.0
"""Adapters by needs: hard conditions first, then an order, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nearmetal.advise.adapters import ADAPTERS, Ability, AdapterKind, Gate, Sharing
from nearmetal.advise.cards import CARDS
from nearmetal.advise.figures import Figure, figures_of
from nearmetal.advise.needs import Fabric, Messages, Needs, Platform, parse_version
from nearmetal.advise.tax import PUBLISHED, Tax

SAME_BAND = 0.02
"""Measured taxes within this band count as equal."""

_FEATURES = {
    "live_migration": "live migration",
    "snapshots": "snapshots",
    "ha": "restart on another host",
    "drs": "placement by the cluster",
}
_ALIKE = 'VMW-ADAPTER:132 "SRIOV and PVRDMA exhibit similar bandwidth"'
_CARD_NEEDS = {
    "vf_migration": "a card whose virtual functions migrate",
    "vdpa": "a card whose driver offers vDPA devices",
}

_NAMES = {
    "vsphere": "vSphere",
    "kernel": "host kernel",
    "qemu": "QEMU",
    "libvirt": "libvirt",
    "guest_kernel": "guest kernel",
    "hardware_version": "virtual hardware version",
}


@dataclass(frozen=True)
class Objection:
    """A reason against an adapter, its source, and the change that would remove it."""

    why: str
    source: str
    unless: str


@dataclass(frozen=True)
class Option:
    """An adapter that meets the needs."""

    adapter: AdapterKind
    why: str
    """Reason for its rank."""
    taxes: tuple[Tax, ...]
    figures: tuple[Figure, ...]
    """Published comparisons in micro-benchmarks, for the sizes of the messages."""
    checks: tuple[str, ...]
    """Conditions that the needs do not mention, to be checked before the purchase."""
    cautions: tuple[str, ...]
    overturn: str
    """The measurement that would change its rank."""


@dataclass(frozen=True)
class Advice:
    """The options, best first, and the refused adapters."""

    options: tuple[Option, ...]
    refused: tuple[tuple[AdapterKind, tuple[Objection, ...]], ...]


def advise(needs: Needs, measured: Sequence[Tax] = ()) -> Advice:
    """Judge every adapter; `measured` taxes replace published taxes."""
    fits: list[AdapterKind] = []
    refused = []
    for adapter in ADAPTERS:
        reasons = tuple(_refusals(needs, adapter))
        if reasons:
            refused.append((adapter, reasons))
        else:
            fits.append(adapter)
    taxes = {adapter.name: _taxes(needs, adapter, measured) for adapter in fits}
    by_measurement = len(fits) > 1 and all(
        taxes[adapter.name] and taxes[adapter.name][0].origin == "measured" for adapter in fits
    )
    best = min((_worst(taxes[adapter.name]) for adapter in fits), default=0.0)

    def key(adapter: AdapterKind) -> tuple[object, ...]:
        worst = _worst(taxes[adapter.name])
        place = int((worst - best) / SAME_BAND) if by_measurement else _class(needs, adapter)
        unsure = bool(adapter.rare), bool(_open(needs, adapter))
        return *unsure, place, -len(_kept(needs, adapter)), adapter.name

    options = [
        Option(
            adapter=adapter,
            why=_why(needs, adapter, taxes[adapter.name], by_measurement=by_measurement),
            taxes=taxes[adapter.name],
            figures=figures_of(adapter.name, needs.fabric, needs.messages),
            checks=tuple(_checks(needs, adapter)),
            cautions=tuple(_cautions(needs, adapter)),
            overturn=_overturn(needs, adapter, taxes[adapter.name]),
        )
        for adapter in sorted(fits, key=key)
    ]
    return Advice(tuple(options), tuple(refused))


def _worst(taxes: Sequence[Tax]) -> float:
    return max((tax.high for tax in taxes), default=1.0)


def _taxes(needs: Needs, adapter: AdapterKind, measured: Sequence[Tax]) -> tuple[Tax, ...]:
    own = tuple(tax for tax in measured if tax.adapter == adapter.name)
    if own:
        return own
    fabrics = {"", *_reach(needs, adapter)}
    return tuple(tax for tax in PUBLISHED if tax.adapter == adapter.name and tax.fabric in fabrics)


def _reach(needs: Needs, adapter: AdapterKind) -> frozenset[str]:
    """Return the RDMA fabrics that adapter and card carry, and that the needs accept."""
    wanted = _WANTED.get(needs.fabric, _RDMA)
    return adapter.rdma & wanted & (needs.card.rdma if needs.card else _RDMA)


def _class(needs: Needs, adapter: AdapterKind) -> int:
    """Return the class of performance (VMW-ADAPTER:94): pass-through, paravirtual RDMA, TCP.

    With large messages paravirtual RDMA is in the first class (VMW-ADAPTER:132).
    """
    if not adapter.rdma:
        return 2
    return 1 if adapter.most_ranks is not None and needs.messages is not Messages.LARGE else 0


def _said(needs: Needs, gate: Gate) -> str | None:
    value = getattr(needs, gate.product)
    return None if value is None else str(value)


def _fails(needs: Needs, gate: Gate) -> bool:
    said = _said(needs, gate)
    return said is not None and parse_version(said) < parse_version(gate.least)


def _asked(needs: Needs, adapter: AdapterKind) -> Iterator[tuple[str, Ability]]:
    for name, ability in adapter.abilities.items():
        if getattr(needs, name):
            yield _FEATURES[name], ability


def _lacks(needs: Needs, card_field: str) -> bool:
    return bool(card_field) and needs.card is not None and not getattr(needs.card, card_field)


def _open(needs: Needs, adapter: AdapterKind) -> list[str]:
    """Return the conditions of the asked features that the needs leave open."""
    asked = [ability for _, ability in _asked(needs, adapter)]
    gates = [gate for ability in asked for gate in ability.gates]
    unknown = [_NAMES[gate.product] for gate in gates if _said(needs, gate) is None]
    if needs.card is None and any(ability.card for ability in asked):
        unknown.append("card")
    return unknown


def _gate_refusal(needs: Needs, gate: Gate, what: str) -> Objection:
    product = _NAMES[gate.product]
    return Objection(
        f"{what} needs {product} {gate.least}, not {_said(needs, gate)}",
        gate.source,
        f"{product} {gate.least} or later",
    )


def _card_refusal(needs: Needs, card_field: str, what: str) -> Objection:
    assert needs.card is not None  # noqa: S101 - a card that is not known lacks nothing
    able = ", ".join(card.name for card in CARDS if getattr(card, card_field))
    return Objection(
        f"{what} needs {_CARD_NEEDS[card_field]}, which {needs.card.name} is not",
        getattr(needs.card, f"{card_field}_source"),
        able,
    )


def _refusals(needs: Needs, adapter: AdapterKind) -> Iterator[Objection]:
    if needs.platform not in (Platform.ANY, adapter.platform):
        yield Objection(
            f"it is for {adapter.platform}", adapter.platform_source, f"a {adapter.platform} host"
        )
        return
    for gate in adapter.requires:
        if _fails(needs, gate):
            yield _gate_refusal(needs, gate, "it")
    if _lacks(needs, adapter.card):
        yield _card_refusal(needs, adapter.card, "it")
    yield from _fabric_refusals(needs, adapter)
    if needs.vms_per_adapter > 1 and adapter.sharing is Sharing.ONE:
        yield Objection(
            "one running machine owns the whole adapter",
            adapter.sharing_source,
            "one machine per adapter, or SR-IOV",
        )
    yield from _ability_refusals(needs, adapter)
    if _too_many_ranks(needs, adapter) and needs.messages is Messages.SMALL:
        yield Objection(
            f"its message rate is weak: good up to about {adapter.most_ranks} ranks a node, "
            f"not {needs.ranks_per_node} with small messages",
            adapter.most_ranks_source,
            f"{adapter.most_ranks} ranks a node, or a measured message rate that is enough",
        )


def _ability_refusals(needs: Needs, adapter: AdapterKind) -> Iterator[Objection]:
    for name, ability in _asked(needs, adapter):
        if not ability.can:
            yield Objection(f"no {name}", ability.source, ability.instead)
        for gate in ability.gates:
            if _fails(needs, gate):
                yield _gate_refusal(needs, gate, name)
        if ability.can and _lacks(needs, ability.card):
            yield _card_refusal(needs, ability.card, name)
        if name == "live migration" and _has_infiniband(needs, ability):
            yield Objection(f"{name} only with {ability.only}", ability.source, ability.instead)


_RDMA = frozenset({"ib", "roce"})
_WANTED = {Fabric.IB: frozenset({"ib"}), Fabric.ROCE: frozenset({"roce"}), Fabric.RDMA: _RDMA}


def _fabric_refusals(needs: Needs, adapter: AdapterKind) -> Iterator[Objection]:
    wanted = _WANTED.get(needs.fabric)
    if not wanted:
        return
    if not adapter.rdma & wanted:
        can = " or ".join(sorted(adapter.rdma)) or "TCP only"
        yield Objection(
            f"it carries {can}, not {needs.fabric}",
            adapter.rdma_source,
            f"a fabric of {can}" if adapter.rdma else "a program for which TCP suffices",
        )
    elif needs.card and not _reach(needs, adapter):
        can = " or ".join(sorted(needs.card.rdma))
        yield Objection(
            f"{needs.card.name} carries {can}, not {needs.fabric}",
            needs.card.rdma_source,
            f"a card that carries {needs.fabric}",
        )


def _has_infiniband(needs: Needs, ability: Ability) -> bool:
    return needs.fabric is Fabric.IB and ability.card == "vf_migration"


def _too_many_ranks(needs: Needs, adapter: AdapterKind) -> bool:
    return (
        adapter.most_ranks is not None
        and needs.ranks_per_node is not None
        and needs.ranks_per_node > adapter.most_ranks
    )


def _kept(needs: Needs, adapter: AdapterKind) -> list[str]:
    """Return the features of virtualization that work with this adapter in the known versions."""
    kept = [
        _FEATURES[name]
        for name, ability in adapter.abilities.items()
        if ability.can
        and not any(_fails(needs, gate) for gate in ability.gates)
        and not _lacks(needs, ability.card)
        and not (name == "live_migration" and _has_infiniband(needs, ability))
    ]
    return [*kept, "sharing"] if adapter.sharing is Sharing.MANY else kept


def _why(needs: Needs, adapter: AdapterKind, taxes: Sequence[Tax], *, by_measurement: bool) -> str:
    kept = ", ".join(_kept(needs, adapter)) or "no feature of virtualization"
    if by_measurement:
        return f"at most {_worst(taxes):.1%} measured here; keeps {kept}"
    speed = ("passes the device through", "RDMA by a paravirtual device", "TCP only")
    if adapter.most_ranks is not None and needs.messages is Messages.LARGE:
        return f"{speed[1]}, as fast as SR-IOV with large messages ({_ALIKE}); keeps {kept}"
    return f"{speed[_class(needs, adapter)]}; keeps {kept}"


def _checks(needs: Needs, adapter: AdapterKind) -> Iterator[str]:
    if adapter.rare:
        yield f"{adapter.rare} ({adapter.rare_source})"
    yield from adapter.setup
    gates = list(adapter.requires)
    for name, ability in _asked(needs, adapter):
        gates += ability.gates
        if ability.only:
            yield f"{name}: {ability.only} ({ability.source})"
    for gate in gates:
        if _said(needs, gate) is None:
            yield f"{_NAMES[gate.product]} {gate.least} or later ({gate.source})"
    if needs.messages is None and adapter.most_ranks is not None:
        yield f"size of most messages: its place depends on it ({_ALIKE})"


def _cautions(needs: Needs, adapter: AdapterKind) -> Iterator[str]:
    if _too_many_ranks(needs, adapter):
        yield (
            f"its source calls it good up to about {adapter.most_ranks} ranks a node "
            f"({adapter.most_ranks_source}); you have {needs.ranks_per_node}"
        )
    if (
        needs.fabric is Fabric.ANY
        and "ib" in _reach(needs, adapter)
        and adapter.migration.card
        and needs.live_migration
    ):
        yield "with live migration the fabric must be Ethernet (RoCE)"
    for card in dict.fromkeys(tax.card for tax in _taxes(needs, adapter, ()) if tax.card):
        if needs.card and needs.card.name != card:
            yield f"the published taxes are of {card}, not of {needs.card.name}"


def _overturn(needs: Needs, adapter: AdapterKind, taxes: Sequence[Tax]) -> str:
    if not taxes:
        known = figures_of(adapter.name, needs.fabric, None)
        none = "no tax of it against bare metal" if known else "no figure of it"
        return (
            f"{none} is published: a study of two arms, bare metal and {adapter.title}, "
            "with your program"
        )
    if taxes[0].origin == "measured":
        return f"a tax above {_worst(taxes):.1%} in a later study"
    return (
        f"a study of two arms, bare metal and {adapter.title}, with your program: another "
        f"answer if it costs clearly more than {_worst(taxes):.1%}"
    )
