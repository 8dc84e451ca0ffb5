# SPDX-License-Identifier: Apache-2.0
"""The checks of performance, by name. They have no judge: a run is judged as a whole. Pure."""

from __future__ import annotations

from nearmetal.check.expect import OWN
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.performance.run import QUANTITIES

FoundOnNodes = tuple[HealthCheck, tuple[str, ...], Spotted]
"""What a check found, and on which nodes."""

_CLASS = "the other nodes of this run with the same hardware and the same kind of hop"

OF_QUANTITY: dict[str, HealthCheck] = {
    name: HealthCheck(
        f"performance.{name}", Gravity.WARNING, f"{quantity.title} as in its class", _CLASS
    )
    for name, quantity in QUANTITIES.items()
}
"""The check of each quantity."""

ANSWER = HealthCheck("performance.answer", Gravity.FAULT, "nodes can be measured", OWN)

LINE = HealthCheck(
    "performance.line_rate",
    Gravity.WARNING,
    "RDMA and MPI fill the line between hosts",
    "InfiniBand Trade Association; kernel, drivers/pci/pci.h; Intel AN 708",
)

ARITHMETIC = HealthCheck(
    "performance.arithmetic",
    Gravity.FAULT,
    "results of HPL pass its own check",
    "HPL, HPL_pdtest.c",
)

MISSING = HealthCheck(
    "performance.missing", Gravity.WARNING, "each quantity of the run is measured", OWN
)

CHECKS: dict[str, HealthCheck] = {
    check.name: check for check in (ANSWER, ARITHMETIC, MISSING, *OF_QUANTITY.values(), LINE)
}
"""Every check of performance by its name."""
