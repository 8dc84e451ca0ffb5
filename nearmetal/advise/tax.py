# SPDX-License-Identifier: Apache-2.0
"""The tax of an adapter: the share of bare-metal performance lost, with its origin.

A tax holds for the number of cores that its source reserved for the hypervisor. For another number
of reserved cores it has two limits: the program did not need the cores (the tax stays), or it needed
them fully (tax = 1 - (1 - core loss) x (1 - the rest)). Both limits are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nearmetal.advise.adapters import ADAPTERS
from nearmetal.advise.needs import read_rows
from nearmetal.core.errors import NearmetalError
from nearmetal.evidence.published import Number, find


@dataclass(frozen=True)
class Tax:
    """Share of bare-metal performance that is lost, as a range; a negative loss is a gain."""

    adapter: str
    fabric: str
    """ib, roce, or empty for all."""
    workload: str
    low: float
    high: float
    core_loss: float | None
    """Share of the cores that was reserved meanwhile; None: as on the user's cluster."""
    origin: str
    """"published" or "measured"."""
    source: str
    note: str = ""
    card: str = ""
    """Model of the card that it was measured with; empty: not known."""

    def with_core_loss(self, core_loss: float) -> tuple[float, float]:
        """Return the range of the loss if that share of the cores is reserved."""
        if self.core_loss is None:
            return self.low, self.high
        ratio = (1 - core_loss) / (1 - self.core_loss)
        ends = [end for share in (self.low, self.high) for end in (share, 1 - (1 - share) * ratio)]
        return min(ends), max(ends)


def slowdown_share(slowdown: float) -> float:
    """Return the share of performance lost if a run takes `slowdown` longer (0.15: 15 %)."""
    return 1 - 1 / (1 + slowdown)


_CORE_LOSS = 4 / 48
_SCALE = "16 nodes"
_ARMS = {
    "SR-IOV IB": (("sriov",), "ib"),
    "SR-IOV RoCE": (("sriov",), "roce"),
    "DirectPath IO IB": (("directpath", "dynamic-directpath"), "ib"),
    "DirectPath IO RoCE": (("directpath", "dynamic-directpath"), "roce"),
}
"""Arms of VMW-ADAPTER, by their names in its numbers."""


def _vmware() -> list[Tax]:
    taxes = []
    note = f"44 of 48 cores, {_SCALE}"
    for arm, (names, fabric) in _ARMS.items():
        taxes += [
            Tax(
                name,
                fabric,
                number.test,
                *_range(number),
                _CORE_LOSS,
                "published",
                f"VMW-ADAPTER:{number.line}",
                note,
                "ConnectX-5",
            )
            for number in find("vmw-adapter", arm=arm, base="bare metal", scale=_SCALE)
            if number.metric in ("loss", "gain")
            for name in names
        ]
    for lag in find("vmw-adapter", arm="VMXNET3", base="SR-IOV", metric="loss", scale=_SCALE):
        known = find("vmw-adapter", test=lag.test, arm="SR-IOV RoCE", metric="loss")
        for sriov in known:
            low = sriov.value / 100
            high = 1 - (1 - lag.value / 100) * (1 - low)
            source = f"VMW-ADAPTER:{lag.line},{sriov.line}"
            joined = f"{lag.printed} more than SR-IOV over 25 GbE, combined with the loss of SR-IOV"
            taxes.append(
                Tax(
                    "vmxnet3",
                    "",
                    lag.test,
                    low,
                    high,
                    _CORE_LOSS,
                    "published",
                    source,
                    joined,
                    "ConnectX-4 Lx",
                )
            )
    return taxes


def _range(number: Number) -> tuple[float, float]:
    share = number.value / 100 if number.metric == "loss" else -number.value / 100
    return share, share


def _kvm() -> list[Tax]:
    taxes = {}
    for number in find("sdsc", arm="SR-IOV IB", base="native IB", metric="more time"):
        share = slowdown_share(number.value / 100)
        taxes[number.test] = Tax(
            "vfio-vf",
            "ib",
            number.test,
            share,
            share,
            0.0,
            "published",
            f"SDSC:{number.line}",
            f"{number.value:g} % longer",
            "ConnectX-3",
        )
    return list(taxes.values())


PUBLISHED = (*_vmware(), *_kvm())

_MEASURED = ("adapter", "workload", "tax_low_percent", "tax_high_percent", "source")


def load_measured(path: Path) -> tuple[Tax, ...]:
    """Read taxes measured here, with the present number of reserved cores, from a CSV file.

    Raises NearmetalError with file and line.
    """
    return tuple(_measured(row, where) for row, where in read_rows(path, _MEASURED))


def _measured(row: list[str], where: str) -> Tax:
    adapter, workload, low_text, high_text, source = (cell.strip() for cell in row)
    names = [known.name for known in ADAPTERS]
    if adapter not in names:
        raise NearmetalError(f"{where}: no adapter {adapter!r}", f"known: {', '.join(names)}")
    try:
        low, high = float(low_text) / 100, float(high_text) / 100
    except ValueError as error:
        text = f"{where}: {low_text!r} to {high_text!r} is not a range in percent"
        raise NearmetalError(text, "use for example 1.5,4.2") from error
    if not -1 <= low <= high < 1:
        text = f"{where}: {low_text} to {high_text} % is not a range of a loss"
        raise NearmetalError(text, "low first, both from -100 to below 100")
    return Tax(adapter, "", workload, low, high, None, "measured", source)
