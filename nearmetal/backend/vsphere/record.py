# SPDX-License-Identifier: Apache-2.0
"""Which standard switches are a cluster's own: ESXi has no place for a mark on them.

A file beside the spec says it, per switch and host with the port groups. It is on the disk before any
of them is made, and loses them after they are gone. Distributed switches carry a mark instead.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from nearmetal.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME = "switches.json"

Owned = dict[str, dict[str, list[str]]]
"""Port groups by switch and host."""


def _is_record(data: object) -> bool:
    return isinstance(data, dict) and all(
        isinstance(hosts, dict)
        and all(
            isinstance(groups, list) and all(isinstance(group, str) for group in groups)
            for groups in hosts.values()
        )
        for hosts in data.values()
    )


class SwitchRecord:
    """The record of one cluster. Every change is on the disk when a method returns."""

    def __init__(self, directory: Path) -> None:
        """Remember the place; nothing is read yet."""
        self._path = directory / NAME

    def read(self) -> Owned:
        """Return what is recorded; raises BackendError where that cannot be read."""
        try:
            data = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from None
        if not _is_record(data):
            raise self._unreadable("it has another shape")
        owned: Owned = data
        return owned

    def _unreadable(self, why: str) -> BackendError:
        msg = f"{self._path} cannot be read: {why}"
        hint = "remove the standard switches of the cluster in vCenter, then this file"
        return BackendError(msg, hint)

    def _write(self, owned: Owned) -> None:
        kept = {switch: hosts for switch, hosts in owned.items() if hosts}
        if not kept:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_name(NAME + ".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(kept, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self._path)

    def groups(self, switch: str, host: str) -> list[str] | None:
        """Return the port groups of a switch on a host that are ours; None: it is not ours."""
        return self.read().get(switch, {}).get(host)

    def claim(self, switch: str, host: str, groups: Iterable[str]) -> None:
        """Record a switch of a host as ours, with these port groups beside those known."""
        owned = self.read()
        known = owned.setdefault(switch, {}).get(host, [])
        wanted = sorted({*known, *groups})
        if owned[switch].get(host) != wanted:
            owned[switch][host] = wanted
            self._write(owned)

    def release(self, switch: str, host: str, group: str | None = None) -> None:
        """Forget a switch of a host, or one of its port groups."""
        owned = self.read()
        hosts = owned.get(switch, {})
        if host not in hosts:
            return
        if group is None:
            del hosts[host]
        else:
            hosts[host] = [name for name in hosts[host] if name != group]
        self._write(owned)
