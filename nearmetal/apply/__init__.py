# SPDX-License-Identifier: Apache-2.0
"""Executes plans on a backend, journalled, so that a kill at any moment can be taken up."""

from nearmetal.apply.engine import (
    Cluster,
    Progress,
    Silent,
    describe,
    down,
    plan_down,
    plan_up,
    up,
)
from nearmetal.apply.lock import locked
from nearmetal.journal import Event, Journal, Record

__all__ = [
    "Cluster",
    "Event",
    "Journal",
    "Progress",
    "Record",
    "Silent",
    "describe",
    "down",
    "locked",
    "plan_down",
    "plan_up",
    "up",
]
