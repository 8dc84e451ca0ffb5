# SPDX-License-Identifier: Apache-2.0
"""Leases of Blazar, the reservation service: room for servers, held for some time.

A lease for servers makes a flavor. A server of this flavor gets its place on the hypervisors that
the lease holds. Several leases may have one name, so a request whose answer is lost may lead to two.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from openstack.exceptions import HttpException

from nearmetal.cluster.backends.openstack.session import (
    BusyError,
    CloudSession,
    GoneError,
    accepted,
    reason_line,
)
from nearmetal.core.errors import BackendError

_SERVICE = "reservation"
_STARTS = ("CREATING", "PENDING", "STARTING", "UPDATING")
"""States that become ACTIVE by themselves."""

_CHANGES = ("CREATING", "STARTING", "UPDATING", "TERMINATING", "DELETING")
"""States that end by themselves. In some of them Blazar removes no lease, and answers 500."""

_LOOK_S, _START_S = 2.0, 300.0
_FULL = "Not enough hosts available"
"""What Blazar says without room. It has no code of its own for this, and answers 500."""

_LOG_IN = "Blazar may need a log-in with a password, not with an application credential"
_DATE = "%Y-%m-%d %H:%M"
_LIST = "openstack reservation lease list"


@dataclass(frozen=True)
class LeasedRoom:
    """What a lease holds: servers of one size, on one hypervisor or each on another."""

    servers: int
    vcpus: int
    memory: int
    disk: int
    together: bool

    @classmethod
    def of(cls, servers: int, flavor: Any, *, together: bool) -> LeasedRoom:
        """Return the room of some servers of a flavor."""
        return cls(servers, flavor.vcpus, flavor.ram, flavor.disk or 0, together)

    def reservation(self) -> dict[str, Any]:
        """Return the reservation in a request."""
        return {
            "resource_type": "virtual:instance",
            "amount": self.servers,
            "vcpus": self.vcpus,
            "memory_mb": self.memory,
            "disk_gb": self.disk,
            "affinity": self.together,
            "resource_properties": "",
        }


@dataclass(frozen=True)
class Lease:
    """A lease as Blazar reports it. `flavor`: that of its servers, "" if there is none yet."""

    identity: str
    status: str
    flavor: str


def _uuid(value: object) -> str:
    return str(uuid.UUID(value if isinstance(value, str) else ""))


def read_lease(data: Any) -> Lease:
    """Return a lease of an answer; raises ValueError, TypeError or LookupError. Pure."""
    made = [r for r in data["reservations"] if r["resource_type"] == "virtual:instance"]
    flavor = made[0].get("flavor_id") if made else None
    status = data["status"]
    if not isinstance(status, str):
        raise TypeError("the state of a lease is no text")
    return Lease(_uuid(data["id"]), status, _uuid(flavor) if flavor else "")


def _refusal(answer: Any) -> str:
    """Return the reason of a refusal, "" for none."""
    try:
        return str(answer.json()["error_message"]) if answer.content else ""
    except (LookupError, RecursionError, TypeError, ValueError):
        return ""


def _remedy(message: str, room: LeasedRoom) -> str:
    """Return what helps if Blazar refuses a lease. Pure."""
    if _FULL in message:
        apart = ", with --apart" if room.together else ""
        return (
            f"the hypervisors for leases may be full: try later{apart}, or with a smaller --flavor"
        )
    if room.together and "affinity" in message:
        return "this Blazar leases no room on one hypervisor: use --apart"
    return "the operator of the cloud decides which leases there are"


@contextmanager
def _refusals(remedy: Callable[[str], str]) -> Iterator[None]:
    """Give each refusal of Blazar a remedy. A service that is only busy keeps its own."""
    try:
        yield
    except BackendError as error:
        busy = isinstance(error, BusyError) and _FULL not in error.message
        if busy or not isinstance(error.__cause__, HttpException):
            raise
        raise BackendError(error.message, remedy(error.message)) from error


class Leases:
    """The leases of a project."""

    def __init__(
        self,
        session: CloudSession,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session, self._now, self._sleep = session, now, sleep

    def offered(self) -> bool:
        """Whether the catalogue of the cloud has a reservation service."""
        with self._session.asking("reading the catalogue"):
            return bool(self._session.sdk.config.get_session_endpoint(_SERVICE))

    def _ask(self, what: str, method: str, path: str = "", **body: Any) -> Any:
        """Return the document of an answer, None for an answer without one."""
        with self._session.asking(what):
            sdk = self._session.sdk
            address = str(sdk.config.get_session_endpoint(_SERVICE)).rstrip("/")
            # Some catalogues have the version in the address.
            version = "" if address.endswith("/v1") else "/v1"
            # With a path alone, openstacksdk asks version 2, which Blazar lists as well.
            url = f"{address}{version}/leases{path}"
            answer = getattr(sdk.reservation, method)(url, **body)
            if reason := _refusal(answer):
                # openstacksdk does not look where Blazar gives the reason.
                answer.reason = reason
            accepted(answer)
            return answer.json() if answer.content else None

    def find(self, name: str) -> list[Lease]:
        """Return the leases of a name."""
        found = self._ask("reading the leases", "get")
        with self._session.asking("reading a lease"):
            return [read_lease(one) for one in found["leases"] if one["name"] == name]

    def take(self, name: str, room: LeasedRoom, minutes: int, clock: datetime) -> Lease:
        """Return a lease that holds the room for these minutes: the one of this name, or a new one.

        `clock`: the time in UTC. Raises BackendError if Blazar has no room, or does not start it.
        """
        end = (clock + timedelta(minutes=minutes)).strftime(_DATE)
        again = f"nearmetal demo --cloud {self._session.cloud} --remove"
        for old in self.find(name):
            if old.status == "ACTIVE" or old.status in _STARTS:
                lease = self._started(name, old)
                # Else it may end amid the work, and Blazar then deletes the servers.
                with _refusals(lambda _: f"end it with `{again}`, and repeat the command"):
                    body = {"end_date": end}
                    self._ask("prolonging a lease", "put", f"/{lease.identity}", json=body)
                return lease
            self._remove(name, old)
        wanted = {
            "name": name,
            "start_date": "now",
            "end_date": end,
            "reservations": [room.reservation()],
            "events": [],
        }
        try:
            with _refusals(lambda message: _remedy(message, room)):
                made = self._ask("making a lease", "post", json=wanted)
        except BusyError as error:
            if not self._session.by_application:
                raise
            # Keystone refuses the trust for Blazar, which then answers 500 without the reason.
            raise BusyError(error.message, f"{error.hint}; {_LOG_IN}") from error
        with self._session.asking("reading a lease"):
            lease = read_lease(made["lease"])
        return self._started(name, lease)

    def _started(self, name: str, lease: Lease) -> Lease:
        """Wait until a lease is active and has its flavor."""
        end = self._now() + _START_S
        while lease.status in _STARTS:
            if self._now() > end:
                raise BackendError(
                    f"lease {name} is still {lease.status} after {_START_S:g} s",
                    f"look at it with `{_LIST}`, and repeat the command",
                )
            self._sleep(_LOOK_S)
            found = self._seen(name, lease)
            if found is None:
                raise BackendError(f"lease {name} was removed meanwhile", "repeat the command")
            lease = found
        if lease.status != "ACTIVE" or not lease.flavor:
            state = reason_line(lease.status)
            raise BackendError(
                f"lease {name} is {state}, and has no servers",
                f"look at it with `{_LIST}`, and repeat the command",
            )
        return lease

    def _seen(self, name: str, lease: Lease) -> Lease | None:
        """Return what a lease is now, None if it is gone."""
        return next((one for one in self.find(name) if one.identity == lease.identity), None)

    def _remove(self, name: str, lease: Lease) -> None:
        """Remove a lease, after the change that Blazar may be making to it."""
        end = self._now() + _START_S
        while True:
            try:
                self._ask("removing a lease", "delete", f"/{lease.identity}")
            except GoneError:
                return
            except BusyError:
                found = self._seen(name, lease)
                if found is None:
                    return
                rests = found.status == lease.status and found.status not in _CHANGES
                if rests or self._now() > end:
                    raise
                lease = found
            else:
                return
            self._sleep(_LOOK_S)

    def remove(self, name: str) -> int:
        """Remove the leases of a name; returns how many there were."""
        found = self.find(name)
        for lease in found:
            self._remove(name, lease)
        return len(found)
