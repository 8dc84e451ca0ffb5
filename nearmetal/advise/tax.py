# SPDX-License-Identifier: Apache-2.0
"""What an adapter costs: shares of performance lost against bare metal, each with its origin.

A total holds for the cores that its source reserved for the hypervisor. With another number of
reserved cores it lies between two ends: the program never missed the cores (the total stays), or it
missed them fully (total = 1 - (1 - core loss) x (1 - the rest)). Both ends are given.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.advise.adapters import ADAPTERS
from nearmetal.core.errors import NearmetalError
from nearmetal.evidence.published import find

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.evidence.published import Number


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
    """Share of the cores that was reserved meanwhile; None: as on the reader's own cluster."""
    origin: str
    """"published" or "measured"."""
    source: str
    note: str = ""

    def with_core_loss(self, core_loss: float) -> tuple[float, float]:
        """Return the range of the loss when that share of the cores is reserved."""
        if self.core_loss is None:
            return self.low, self.high
        ratio = (1 - core_loss) / (1 - self.core_loss)
        ends = [end for share in (self.low, self.high) for end in (share, 1 - (1 - share) * ratio)]
        return min(ends), max(ends)


def slowdown_share(slowdown: float) -> float:
    """Return the share of performance lost when a run takes `slowdown` longer (0.15: 15 %)."""
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
            )
            for number in find("vmw-adapter", arm=arm, base="bare metal", scale=_SCALE)
            if number.metric in ("loss", "gain")
            for name in names
        ]
    for behind in find("vmw-adapter", arm="VMXNET3", base="SR-IOV", metric="loss", scale=_SCALE):
        known = find("vmw-adapter", test=behind.test, arm="SR-IOV RoCE", metric="loss")
        for sriov in known:
            low = sriov.value / 100
            high = 1 - (1 - behind.value / 100) * (1 - low)
            source = f"VMW-ADAPTER:{behind.line},{sriov.line}"
            joined = f"{behind.printed} behind SR-IOV over 25 GbE, joined to SR-IOV's own loss"
            taxes.append(
                Tax("vmxnet3", "", behind.test, low, high, _CORE_LOSS, "published", source, joined)
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
        )
    return list(taxes.values())


PUBLISHED = (*_vmware(), *_kvm())

COLUMNS = ["adapter", "workload", "tax_low_percent", "tax_high_percent", "source"]
_MAX_BYTES = 1 << 20


def load_measured(path: Path) -> tuple[Tax, ...]:
    """Read taxes that were measured here, with the cores reserved that are, from a CSV file.

    Raises NearmetalError with file and line.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise NearmetalError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NearmetalError(f"{path}: not UTF-8 text", "save it as CSV in UTF-8") from error
    if len(raw) > _MAX_BYTES:
        raise NearmetalError(f"{path}: larger than 1 MiB", "a line per adapter and workload")
    wanted = f"the first line is {','.join(COLUMNS)}"
    rows = csv.reader(text.splitlines())
    if next(rows, None) != COLUMNS:
        raise NearmetalError(f"{path}:1: not the columns of measured taxes", wanted)
    return tuple(_measured(row, f"{path}:{rows.line_num}") for row in rows if row)


def _measured(row: list[str], where: str) -> Tax:
    if len(row) != len(COLUMNS):
        msg = f"{where}: {len(row)} columns, not {len(COLUMNS)}"
        raise NearmetalError(msg, f"columns: {', '.join(COLUMNS)}")
    adapter, workload, low_text, high_text, source = (cell.strip() for cell in row)
    names = [known.name for known in ADAPTERS]
    if adapter not in names:
        raise NearmetalError(f"{where}: no adapter {adapter!r}", f"known: {', '.join(names)}")
    try:
        low, high = float(low_text) / 100, float(high_text) / 100
    except ValueError as error:
        msg = f"{where}: {low_text!r} to {high_text!r} is no range in percent"
        raise NearmetalError(msg, "write for example 1.5,4.2") from error
    if not -1 <= low <= high < 1:
        msg = f"{where}: from {low_text} to {high_text} % is no range of a loss"
        raise NearmetalError(msg, "low first, both from -100 to below 100")
    return Tax(adapter, "", workload, low, high, None, "measured", source)
