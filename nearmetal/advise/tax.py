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

from nearmetal.advise.adapters import ADAPTERS, Source
from nearmetal.errors import NearmetalError

if TYPE_CHECKING:
    from pathlib import Path


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
_SCALE = "44 of 48 cores, 16 nodes"
_APPS = ("GROMACS", "NAMD", "LAMMPS", "WRF", "OpenFOAM")
_TOTALS = {
    # 16 nodes, 768 cores; a negative loss is a gain.
    ("sriov", "ib", 162): (8.4, 9.4, 7.9, 4.0, -0.4),
    ("directpath", "ib", 162): (8.1, 6.6, 8.3, 4.0, 0.7),
    ("sriov", "roce", 170): (8.5, 9.7, 7.6, 4.0, -1.1),
    ("directpath", "roce", 170): (8.1, 6.3, 7.9, 3.5, 1.1),
}
_BEHIND_SRIOV = {"GROMACS": 27.0, "WRF": 14.0}
"""VMXNET3 against SR-IOV on 16 nodes, VMW-ADAPTER:142: so much less performance, "up to"."""


def _vmware() -> list[Tax]:
    taxes = []
    for (adapter, fabric, line), totals in _TOTALS.items():
        source = str(Source("VMW-ADAPTER", line))
        names = ("directpath", "dynamic-directpath") if adapter == "directpath" else (adapter,)
        for app, total in zip(_APPS, totals, strict=True):
            share = total / 100
            taxes += [
                Tax(name, fabric, app, share, share, _CORE_LOSS, "published", source, _SCALE)
                for name in names
            ]
    for app, behind in _BEHIND_SRIOV.items():
        sriov = _TOTALS["sriov", "roce", 170][_APPS.index(app)] / 100
        high = 1 - (1 - behind / 100) * (1 - sriov)
        source = "VMW-ADAPTER:142,170"
        note = f"up to {behind:g} % behind SR-IOV over 25 GbE, joined to SR-IOV's own over 100 GbE"
        taxes.append(Tax("vmxnet3", "", app, sriov, high, _CORE_LOSS, "published", source, note))
    return taxes


def _kvm() -> list[Tax]:
    def vf(app: str, low: float, high: float, source: str, note: str) -> Tax:
        return Tax("vfio-vf", "ib", app, low, high, 0.0, "published", source, note)

    def longer(app: str, slowdown: float, line: int) -> Tax:
        share = slowdown_share(slowdown)
        return vf(app, share, share, f"SDSC:{line}", f"{slowdown:.0%} longer, QDR InfiniBand")

    segment = "with shared memory between the machines of a host"
    return [
        longer("WRF", 0.15, 177),
        longer("Quantum ESPRESSO", 0.28, 188),
        vf("Graph500", 0.02, 0.05, "OSU:446", segment),
        vf("SPEC MPI2007", 0.01, 0.095, "OSU:447", segment),
    ]


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
