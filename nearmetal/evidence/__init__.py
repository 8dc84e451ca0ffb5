# SPDX-License-Identifier: Apache-2.0
"""What benchmarks printed, as typed facts: every value knows the raw line it comes from.

A run directory holds `manifest.json` and the untouched output of every launch below `raw/`.
Everything else is derived from it by reading it again. No module here starts anything.
"""

from nearmetal.evidence.manifest import (
    Environment,
    Launch,
    Manifest,
    NodePlace,
    Pair,
    Proof,
    read_manifest,
    write_manifest,
)
from nearmetal.evidence.model import WARM_UP, Fact, Log, Row, Table, Unit
from nearmetal.evidence.parse import parse_log
from nearmetal.evidence.run import RunFacts, load_run

__all__ = [
    "WARM_UP",
    "Environment",
    "Fact",
    "Launch",
    "Log",
    "Manifest",
    "NodePlace",
    "Pair",
    "Proof",
    "Row",
    "RunFacts",
    "Table",
    "Unit",
    "load_run",
    "parse_log",
    "read_manifest",
    "write_manifest",
]
