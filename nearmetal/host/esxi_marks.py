# SPDX-License-Identifier: Apache-2.0
"""What an ESXi host does not show: whose maintenance mode it is, and what a reboot was begun for."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from nearmetal.core.files import read_tables, replace_tables
from nearmetal.host.facts_vsphere import same_boot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from nearmetal.host.model import HostFacts

NAME = "esxi.json"
_OURS = "maintenance"
_TRIED = "rebooted for"


class Marks:
    """Marks of all hosts of one file, on disk before what they are about is begun."""

    def __init__(self, directory: Path) -> None:
        """Remember the place."""
        self.path = directory / NAME
        self._lock = Lock()

    def on(self, name: str, facts: HostFacts) -> HostFacts:
        """Return facts that say whether maintenance mode is ours."""
        if facts.esxi is None:
            return facts
        return replace(facts, esxi=replace(facts.esxi, ours=self.is_ours(name)))

    def is_ours(self, name: str) -> bool:
        """Return whether maintenance mode was entered by us, or was about to be."""
        return self._read().get(name, {}).get(_OURS) is True

    def on_all(self, facts: Mapping[str, HostFacts]) -> dict[str, HostFacts]:
        """As `on`, for several hosts."""
        return {name: self.on(name, found) for name, found in facts.items()}

    def enter(self, name: str) -> None:
        """Note that maintenance mode is about to be entered by us."""
        self._change(name, {_OURS: True})

    def not_entered(self, name: str) -> None:
        """Take that back: it was not entered."""
        self._change(name, {_OURS: False})

    def reboot(self, name: str, steps: Mapping[str, str], boot: str) -> None:
        """Note for which steps, by key with their text, a reboot is about to begin that ends a boot."""
        self._change(name, {_TRIED: {key: [boot, text] for key, text in steps.items()}})

    def tried(self, name: str, boot: str) -> dict[str, str]:
        """Return the steps for which it has rebooted since, by key with their text."""
        found = self._read().get(name, {}).get(_TRIED)
        entries = found.items() if isinstance(found, dict) else ()
        return {
            key: entry[1]
            for key, entry in entries
            if isinstance(entry, list)
            and len(entry) == 2  # noqa: PLR2004 - a pair
            and not same_boot(str(entry[0]), boot)
        }

    def retry(self, name: str) -> None:
        """Drop what a reboot was begun for: one more may be."""
        self._change(name, {_TRIED: {}})

    def names(self) -> set[str]:
        """Return the hosts of which something is marked."""
        return set(self._read())

    def forget(self, names: Iterable[str]) -> None:
        """Drop all of hosts that are as they shall be."""
        done = set(names)
        with self._lock:
            found = self._read()
            left = {name: values for name, values in found.items() if name not in done}
            if left:
                self._write(left)
            elif found:
                self.path.unlink(missing_ok=True)

    def _change(self, name: str, values: dict[str, Any]) -> None:
        with self._lock:
            found = self._read()
            found.setdefault(name, {}).update(values)
            self._write(found)

    def _read(self) -> dict[str, dict[str, Any]]:
        hint = (
            "move it away, and put hosts that it left in maintenance mode back into service by hand"
        )
        return read_tables(self.path, hint)

    def _write(self, found: dict[str, dict[str, Any]]) -> None:
        replace_tables(self.path, found)
