# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order of their families. A new family is a file here and a line below."""

from __future__ import annotations

from nearmetal.check.families import (
    base,
    fabric,
    memory,
    own,
    processor,
    software,
    storage,
    uniformity,
    virtual,
)
from nearmetal.check.model import HealthCheck

FAMILIES = (base, processor, memory, fabric, virtual, storage, software, uniformity, own)

CHECKS: dict[str, HealthCheck] = {
    check.name: check for family in FAMILIES for check in family.CHECKS
}
"""Every check by its name."""
