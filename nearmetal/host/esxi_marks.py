# SPDX-License-Identifier: Apache-2.0
"""Marks of ESXi hosts: the owner of a maintenance mode, and the steps that a reboot was for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from nearmetal.core.files import read_tables, remove_file, replace_tables
from nearmetal.host.facts_esxi import same_boot
from nearmetal.host.model import PlatformFacts

NAME = "esxi.json"
_OURS = "maintenance"
_TRIED = "rebooted for"


class Marks:
    """Marks of all hosts of one file. A mark is on disk before its action begins."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._lock = Lock()

    def on(self, name: str, facts: PlatformFacts) -> PlatformFacts:
        """Return facts with the owner of the maintenance mode."""
        if facts.esxi is None:
            return facts
        return replace(facts, esxi=replace(facts.esxi, ours=self.is_ours(name)))

    def is_ours(self, name: str) -> bool:
        """Return whether we entered maintenance mode, or were about to."""
        return self._read().get(name, {}).get(_OURS) is True

    def on_all(self, facts: Mapping[str, PlatformFacts]) -> dict[str, PlatformFacts]:
        """Return `on` for several hosts."""
        return {name: self.on(name, found) for name, found in facts.items()}

    def enter(self, name: str) -> None:
        """Mark that we are about to enter maintenance mode."""
        self._change(name, {_OURS: True})

    def not_entered(self, name: str) -> None:
        """Remove that mark."""
        self._change(name, {_OURS: False})

    def reboot(self, name: str, steps: Mapping[str, str], boot: str) -> None:
        """Mark the steps, by key with their text, of a reboot that is about to end this boot."""
        self._change(name, {_TRIED: {key: [boot, text] for key, text in steps.items()}})

    def tried(self, name: str, boot: str) -> dict[str, str]:
        """Return the steps of reboots before this boot, by key with their text."""
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
        """Remove the marks of a reboot, so that another one may follow."""
        self._change(name, {_TRIED: {}})

    def names(self) -> set[str]:
        """Return the hosts with marks."""
        return set(self._read())

    def forget(self, names: Iterable[str]) -> None:
        """Remove all marks of hosts that need nothing more."""
        done = set(names)
        with self._lock:
            left = {name: values for name, values in self._read().items() if name not in done}
            if left:
                replace_tables(self.path, left)
            else:
                remove_file(self.path)

    def _change(self, name: str, values: dict[str, Any]) -> None:
        with self._lock:
            found = self._read()
            found.setdefault(name, {}).update(values)
            replace_tables(self.path, found)

    def _read(self) -> dict[str, dict[str, Any]]:
        hint = "move it away; hosts in our maintenance mode must leave it by hand"
        return read_tables(self.path, hint)
