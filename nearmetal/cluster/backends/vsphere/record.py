# SPDX-License-Identifier: Apache-2.0
"""Which standard switches are a cluster's own: ESXi has no place for a mark on them.

A file beside the spec says it, per switch and host with the port groups, and of which vCenter: another
one may have hosts and switches of the same names. It is on the disk before any of them is made, and
loses them after they are gone. Distributed switches carry a mark instead.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError
from nearmetal.core.files import remove_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME = "switches.json"

Owned = dict[str, dict[str, list[str]]]
"""Port groups by switch and host."""


@dataclass(frozen=True)
class Center:
    """A vCenter: where the spec says it is, and `uuid`, by which it is told from all others."""

    server: str
    uuid: str

    def __str__(self) -> str:
        """As errors say it."""
        return f"{self.server} (instance {self.uuid})"


def _is_center(data: object) -> bool:
    return (
        isinstance(data, dict)
        and data.keys() == {"server", "uuid"}
        and all(isinstance(value, str) for value in data.values())
    )


def _is_owned(data: object) -> bool:
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

    def __init__(self, directory: Path, center: Center) -> None:
        """Remember the place, and the vCenter that is talked to; nothing is read yet."""
        self._path, self._center = directory / NAME, center

    def read(self) -> Owned:
        """Return what is recorded; raises BackendError where that is unreadable or of another vCenter."""
        try:
            data = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from None
        if (
            not isinstance(data, dict)
            or data.keys() != {"vcenter", "switches"}
            or not _is_center(data["vcenter"])
            or not _is_owned(data["switches"])
        ):
            raise self._unreadable("it has another shape")
        center = Center(**data["vcenter"])
        if center.uuid != self._center.uuid:
            raise self._elsewhere(center)
        owned: Owned = data["switches"]
        return owned

    def _elsewhere(self, center: Center) -> BackendError:
        msg = f"{self._path} is of vCenter {center}, and the spec's vCenter is {self._center}"
        hint = (
            f"write {center.server} under vcenter again, and `nearmetal down` first; where that vCenter "
            "is no more, remove the standard switches of the cluster from its hosts, then this file"
        )
        return BackendError(msg, hint)

    def _unreadable(self, why: str) -> BackendError:
        msg = f"{self._path} cannot be read: {why}"
        hint = "remove the standard switches of the cluster in vCenter, then this file"
        return BackendError(msg, hint)

    def _write(self, owned: Owned) -> None:
        kept = {switch: hosts for switch, hosts in owned.items() if hosts}
        if not kept:
            remove_file(self._path)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = {"vcenter": asdict(self._center), "switches": kept}
        replace_file(self._path, json.dumps(data, sort_keys=True).encode())

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
