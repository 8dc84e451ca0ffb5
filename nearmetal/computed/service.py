# SPDX-License-Identifier: Apache-2.0
"""The service: turns of the keeper after each event, and its status in files that root reads."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nearmetal.computed.domains import is_id
from nearmetal.computed.holdings import Holdings, PartHolding
from nearmetal.computed.keeper import GroupSource, PartKeeper, ServerPlace
from nearmetal.computed.segment_files import SegmentFiles
from nearmetal.computed.servers import ServerHypervisor
from nearmetal.computed.settings import ComputedSettings
from nearmetal.core.deadline import Deadline
from nearmetal.core.errors import BackendError, LockedError, StateError
from nearmetal.core.files import read_json, replace_file
from nearmetal.core.lock import locked

DIRECTORY = Path("/run/nearmetal-computed")
WHAT = "nearmetal-computed"

LIMIT_S = 20.0
"""For each question to a QEMU, and to Nova."""


def _directory(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StateError(f"{path} belongs to another user, or others may write to it")
    return path


def withheld(directory: Path) -> frozenset[str]:
    """Return the servers that an administrator wants to have no segment."""
    return frozenset(path.name for path in (directory / "withheld").glob("*") if is_id(path.name))


def withhold(directory: Path, server: str) -> None:
    """Let a server have no segment until `give`, or until it leaves this hypervisor."""
    place = _directory(directory) / "withheld"
    place.mkdir(mode=0o700, exist_ok=True)
    (place / server).touch(mode=0o600)


def give(directory: Path, server: str) -> None:
    """End `withhold`."""
    (directory / "withheld" / server).unlink(missing_ok=True)


def holder_state(directory: Path, server: str) -> str:
    """Return the phase of a server's part as recorded; "" if it has none."""
    found = Holdings(directory).holder(server)
    return "" if found is None else found[1].phase.value


def is_withheld(directory: Path, server: str) -> bool:
    """Whether a turn of the service has seen the mark: a turn that began before it may still give.

    Raises StateError if the service has dropped the mark.
    """
    if server not in withheld(directory):
        raise StateError(
            f"no server {server} runs on this hypervisor", "see `openstack server show`"
        )
    status = read_json(directory / "status.json")
    return isinstance(status, dict) and server in status.get("withheld", ())


def is_served(directory: Path) -> bool:
    """Whether the service runs."""
    if not (directory / "lock").exists():
        return False
    try:
        with locked(directory / "lock", WHAT):
            return False
    except LockedError:
        return True


class WatchedPlace(ServerPlace, Protocol):
    """A connection to the hypervisor."""

    @property
    def alive(self) -> bool:
        """Whether the connection still stands."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` after each event."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True)
class ComputedService:
    """The service of one hypervisor. `stop` ends it in tests; else a signal does."""

    settings: ComputedSettings
    nova: GroupSource
    files: SegmentFiles
    log: Callable[[str], None]
    directory: Path = DIRECTORY
    stop: threading.Event = field(default_factory=threading.Event)
    connect: Callable[[str], WatchedPlace] = ServerHypervisor
    pause_s: float = 5.0
    """Between two turns without an event: for parts that rest, and servers that wait."""
    deadline: Deadline = field(default_factory=lambda: Deadline(LIMIT_S))
    """Of all connections: a QEMU that hangs has one thread, also when libvirt starts again."""

    def serve(self) -> None:
        """Serve until a signal; raises LockedError beside another one."""
        with locked(_directory(self.directory) / "lock", WHAT):
            holdings = Holdings(self.directory)
            while not self.stop.is_set():
                try:
                    self._connected(holdings)
                except BackendError as error:
                    # Servers that run keep what they have; libvirt may only be starting.
                    self.log(error.message)
                    _report(self.directory, holdings, {}, error.message)
                    self.stop.wait(self.pause_s)

    def _connected(self, holdings: Holdings) -> None:
        """Serve as long as the connection to libvirt stands."""
        place, woken = self.connect(self.settings.libvirt), threading.Event()
        try:
            place.watch(woken.set)
            keeper = PartKeeper(
                self.settings, place, self.nova, holdings, self.files, self.log, self.deadline
            )
            while place.alive and not self.stop.is_set():
                woken.clear()
                marks = withheld(self.directory)
                for server in marks - keeper.turn(marks):
                    give(self.directory, server)
                _report(self.directory, holdings, keeper.refusals, "", marks)
                woken.wait(self.pause_s)
        finally:
            place.close()


def _report(
    directory: Path,
    holdings: Holdings,
    refusals: Mapping[str, str],
    trouble: str,
    marks: frozenset[str] = frozenset(),
) -> None:
    data = {
        "trouble": trouble,
        "withheld": sorted(marks),
        "segments": [
            {**one.model_dump(mode="json", exclude={"holdings"}), "parts": _parts(one.holdings)}
            for one in holdings
        ],
        "refusals": [{"server": server, "why": why} for server, why in sorted(refusals.items())],
    }
    replace_file(directory / "status.json", json.dumps(data), sync=False)


def _parts(holdings: Iterable[PartHolding]) -> list[dict[str, Any]]:
    return [{"part": h.part, "server": h.server, "state": h.phase.value} for h in holdings]


def read_status(directory: Path) -> dict[str, Any]:
    """Return what the service last wrote; raises StateError if it never ran since the boot."""
    data = read_json(directory / "status.json")
    if not isinstance(data, dict):
        raise StateError(
            f"cannot read a status in {directory}",
            "as root, start the service: systemctl start nearmetal-computed",
        )
    return data
