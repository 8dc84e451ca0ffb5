# SPDX-License-Identifier: Apache-2.0
"""The attribute registry of a BIOS (Redfish, AttributeRegistry): values, and what locks them. Pure.

Sources of the forms: DMTF's schema AttributeRegistry, and the trees in tests/data/hosts. A registry
has two names of a value. Redfish sets the first, `ValueName`; Supermicro sets the second,
`ValueDisplayName`, and numbers the first. A dependency makes an attribute read-only (HPE) or grey
(Lenovo, Supermicro) while another one has a value, or has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nearmetal.host.model import BiosValue, Lock

MAX_ENTRIES = 8192
MAX_VALUES = 64
_LOCKING = ("ReadOnly", "GrayOut", "Hidden")
_CONDITIONS = {"EQU": True, "NEQ": False}


def parse_registry(
    document: Any, attributes: Mapping[str, BiosValue]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[Lock, ...]]]:
    """Return the values and the locks of attributes; both are empty for another document."""
    entries = document.get("RegistryEntries") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        return {}, {}
    allowed: dict[str, tuple[str, ...]] = {}
    for entry in _items(entries, "Attributes"):
        name = str(entry.get("AttributeName"))[:128]
        if name in attributes and entry.get("Type") == "Enumeration":
            values = _values(entry, attributes[name])
            allowed |= {name: values} if values else {}
    locks: dict[str, list[Lock]] = {}
    for entry in _items(entries, "Dependencies"):
        name, lock = _lock(entry)
        if lock is not None and name in attributes:
            locks.setdefault(name, []).append(lock)
    return allowed, {name: tuple(found) for name, found in locks.items()}


def _items(entries: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    found = entries.get(key)
    for entry in found[:MAX_ENTRIES] if isinstance(found, list) else ():
        if isinstance(entry, dict):
            yield entry


def _values(entry: dict[str, Any], now: BiosValue) -> tuple[str, ...]:
    """Return the values by the names that the machine uses for the present one."""
    found = [value for _, value in zip(range(MAX_VALUES), _items(entry, "Value"), strict=False)]
    names, shown = (
        tuple(str(value[key])[:256] for value in found if key in value)
        for key in ("ValueName", "ValueDisplayName")
    )
    return shown if now not in names and now in shown else names


def _lock(entry: dict[str, Any]) -> tuple[str, Lock | None]:
    """Return the attribute of a dependency, and its lock; None for another kind of dependency."""
    inner = entry.get("Dependency")
    if not isinstance(inner, dict):
        return "", None
    conditions = list(_items(inner, "MapFrom"))
    name = str(inner.get("MapToAttribute"))[:128]
    locking = inner.get("MapToProperty") in _LOCKING and inner.get("MapToValue") is True
    if not locking or len(conditions) != 1:
        return name, None
    [condition] = conditions
    equal = _CONDITIONS.get(str(condition.get("MapFromCondition")))
    if equal is None or condition.get("MapFromProperty", "CurrentValue") != "CurrentValue":
        return name, None
    other, value = (str(condition.get(f"MapFrom{key}"))[:256] for key in ("Attribute", "Value"))
    return name, Lock(other, value, equal)
