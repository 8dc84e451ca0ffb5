# SPDX-License-Identifier: Apache-2.0
"""Published figures of adapters in micro-benchmarks: what small and large messages cost."""

from __future__ import annotations

from dataclasses import dataclass

from nearmetal.advise.needs import Fabric, Messages
from nearmetal.evidence.published import Number, numbers

_ADAPTERS = {
    ("vmw-adapter", "PVRDMA"): ("pvrdma", "roce"),
    ("vmw-adapter", "VMXNET3"): ("vmxnet3", ""),
    ("sdsc", "SR-IOV IB"): ("vfio-vf", "ib"),
}
"""Adapter and fabric of the arms of studies."""

_BASES = ("SR-IOV", "native IB")
_LARGE = ("64 KiB to 4 MiB", "above 128 B", "all but the smallest")
_ALL = "all sizes"


@dataclass(frozen=True)
class Figure:
    """One published comparison of an adapter with another, or with the machine itself."""

    adapter: str
    fabric: str
    messages: frozenset[Messages]
    """The sizes of messages that it concerns."""
    text: str
    source: str


def _concerns(number: Number) -> frozenset[Messages]:
    if number.scale == _ALL:
        size = Messages.SMALL if number.test == "osu_latency" else Messages.LARGE
    else:
        size = Messages.LARGE if number.scale in _LARGE else Messages.SMALL
    return frozenset({size, Messages.MIXED})


def _said(number: Number) -> str:
    """Return the comparison in words."""
    bound = f"{number.bound} " if number.bound else ""
    value = f"{bound}{number.value:g}"
    if number.metric == "faster":
        what = f"{number.arm} has {value} times the bandwidth"
    elif number.unit == "x":
        what = f"{value} times the latency of {number.base}"
    else:
        what = f"{value} % {number.metric} against {number.base}"
    return f"{number.test}, {number.scale}: {what}"


def _figures() -> tuple[Figure, ...]:
    found = []
    for (study, runs), (adapter, fabric) in _ADAPTERS.items():
        for number in numbers(study):
            here = (number.arm == runs and number.base in _BASES) or (
                number.base == runs and number.arm in _BASES
            )
            if here and number.test.startswith("osu_") and number.scale[:1].isalnum():
                source = f'{study.upper()}:{number.line} "{number.printed}"'
                text = _said(number)
                found.append(Figure(adapter, fabric, _concerns(number), text, source))
    return tuple(found)


FIGURES = _figures()


def figures_of(adapter: str, fabric: Fabric, messages: Messages | None) -> tuple[Figure, ...]:
    """Return what is published about an adapter for these messages; None: any messages."""
    return tuple(
        figure
        for figure in FIGURES
        if figure.adapter == adapter
        and (messages is None or messages in figure.messages)
        and (fabric not in (Fabric.IB, Fabric.ROCE) or figure.fabric in ("", fabric))
    )
