# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order of their families. A new family is a file here and a line below."""

from __future__ import annotations

from nearmetal.check.families import (
    base,
    fabric,
    gpudirect,
    memory,
    own,
    processor,
    software,
    storage,
    uniformity,
    virtual,
)
from nearmetal.check.model import HealthCheck

FAMILIES = (
    *(base, processor, memory, fabric, virtual, gpudirect),
    *(storage, software, uniformity, own),
)

CHECKS: dict[str, HealthCheck] = {
    check.name: check for family in FAMILIES for check in family.CHECKS
}
"""Every check by its name."""

RUNGS: dict[str, int] = {check.name: rung for rung, check in enumerate(gpudirect.CHECKS, 1)}
"""Checks that build on each other: the first one that fails is shown first."""
