# SPDX-License-Identifier: Apache-2.0
"""Output of benchmarks as typed facts: every value knows the raw line it comes from.

A run directory holds `manifest.json` and the unchanged output of every launch below `raw/`. All
else is derived from these files. No module here starts a process.
"""

from nearmetal.evidence.manifest import (
    ChannelProof,
    Environment,
    Launch,
    Manifest,
    NodePair,
    NodePlace,
    RunFacts,
    load_run,
    read_manifest,
    write_manifest,
)
from nearmetal.evidence.model import WARM_UP, Fact, Log, Row, Table, Unit
from nearmetal.evidence.parse import parse_log

__all__ = [
    "WARM_UP",
    "ChannelProof",
    "Environment",
    "Fact",
    "Launch",
    "Log",
    "Manifest",
    "NodePair",
    "NodePlace",
    "Row",
    "RunFacts",
    "Table",
    "Unit",
    "load_run",
    "parse_log",
    "read_manifest",
    "write_manifest",
]
