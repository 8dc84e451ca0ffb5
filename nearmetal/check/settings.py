# SPDX-License-Identifier: Apache-2.0
"""Settings of virtual machines that their guests cannot see: the backend of a cluster knows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nearmetal.check.snapshot import load_bounded
from nearmetal.core.errors import BackendError, LogError, PasswordError, StateError

if TYPE_CHECKING:
    from nearmetal.cluster.backend import Backend

_KNOWN = ("mmio", "p2p", "memory_reservation", "cpu_reservation", "latency")
_NODE = "node"
"""The value of Kind.NODE, which a quick check has no time to load."""

Settings = Mapping[str, Mapping[str, str]]
"""By node: the names of a spec, with their values as plans show them."""


def settings_of(backend: Backend) -> tuple[Settings, str]:
    """Return the settings of the machines of a cluster; none, and why, if it cannot be asked."""
    try:
        resources = backend.details().resources
    except (BackendError, PasswordError, StateError) as error:
        return {}, error.message
    nodes = {r.key.name: dict(r.attributes) for r in resources if r.key.kind.value == _NODE}
    found = {
        name: {key: text for key, text in texts.items() if key in _KNOWN}
        for name, texts in nodes.items()
    }
    return {name: texts for name, texts in found.items() if texts}, ""


def with_facts(content: bytes, family: str, name: str, facts: Mapping[str, Any]) -> bytes:
    """Return a snapshot, which was checked, with facts that its node cannot see."""
    data = json.loads(content)
    table = data["facts"].setdefault(family, {})
    if not isinstance(table, dict):
        return content
    table[name] = dict(facts)
    more = (json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n").encode()
    try:
        load_bounded(more, "")
    except LogError:
        return content  # a snapshot that is full stays as the agent wrote it
    return more
