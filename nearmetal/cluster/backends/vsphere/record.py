# SPDX-License-Identifier: Apache-2.0
"""The standard switches that are a cluster's own: ESXi has no place for a mark on them.

A file beside the spec has the port groups by switch and host, and the vCenter: another vCenter may
have hosts and switches of the same names. An entry is on the disk before its switch is made, and
until the switch is removed. Distributed switches have a mark instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from nearmetal.config.model import Model
from nearmetal.core.errors import BackendError
from nearmetal.core.files import MAX_STATE, read_regular, remove_file, replace_file

NAME = "switches.json"

Owned = dict[str, dict[str, list[str]]]
"""Port groups by switch and host."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Center:
    """A vCenter: its address in the spec, and `uuid`, which no other vCenter has."""

    server: str
    uuid: str

    def __str__(self) -> str:
        return f"{self.server} (instance {self.uuid})"


class _RecordFile(Model):
    vcenter: Center
    switches: Owned


class SwitchRecord:
    """The record of one cluster. Every change is on the disk when a method returns."""

    def __init__(self, directory: Path, center: Center) -> None:
        self._path, self._center = directory / NAME, center

    def read(self) -> Owned:
        """Return the record; raises BackendError for a damaged one, or one of another vCenter."""
        try:
            record = _RecordFile.model_validate_json(read_regular(self._path, MAX_STATE))
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:
            why = "it is not a record" if isinstance(error, ValidationError) else str(error)
            hint = "remove the standard switches of the cluster in vCenter, then this file"
            raise BackendError(f"{self._path} cannot be read: {why}", hint) from None
        if record.vcenter.uuid == self._center.uuid:
            return record.switches
        msg = f"{self._path} is of vCenter {record.vcenter}, and the spec's is {self._center}"
        hint = (
            f"write {record.vcenter.server} under vcenter again, and `nearmetal down` first; if that "
            "vCenter does not exist any more, remove the standard switches of the cluster from its "
            "hosts, then this file"
        )
        raise BackendError(msg, hint)

    def _write(self, owned: Owned) -> None:
        kept = {switch: hosts for switch, hosts in owned.items() if hosts}
        if not kept:
            remove_file(self._path)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = _RecordFile(vcenter=self._center, switches=kept)
        replace_file(self._path, record.model_dump_json())

    def groups(self, switch: str, host: str) -> list[str] | None:
        """Return our port groups of a switch on a host; None for a switch that is not ours."""
        return self.read().get(switch, {}).get(host)

    def claim(self, switch: str, host: str, groups: Iterable[str]) -> None:
        """Add a switch of a host as ours, with these port groups."""
        owned = self.read()
        known = owned.setdefault(switch, {}).get(host, [])
        wanted = sorted({*known, *groups})
        if owned[switch].get(host) != wanted:
            owned[switch][host] = wanted
            self._write(owned)

    def release(self, switch: str, host: str, group: str | None = None) -> None:
        """Remove a switch of a host, or one of its port groups, from the record."""
        owned = self.read()
        hosts = owned.get(switch, {})
        if host not in hosts:
            return
        if group is None:
            del hosts[host]
        else:
            hosts[host] = [name for name in hosts[host] if name != group]
        self._write(owned)
