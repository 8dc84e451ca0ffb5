# SPDX-License-Identifier: Apache-2.0
"""What a demo has in a cloud: its cluster, its lease and the disk that it uploads, with a record.

The record is on the disk before the first of them is made, and it is removed as the last one. So the
next demo, or `demo --remove`, finds what an interrupted demo has left.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from nearmetal.cluster.apply import Cluster, down
from nearmetal.cluster.backends.openstack.driver import open_backend
from nearmetal.cluster.backends.openstack.leases import LeasedRoom, Leases
from nearmetal.cluster.backends.openstack.offer import SERVERS, DemoChoice
from nearmetal.cluster.backends.openstack.session import BusyError, CloudSession
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.registration import from_canonical
from nearmetal.cluster.store import Store
from nearmetal.config.model import Model
from nearmetal.core.errors import Interrupted, NearmetalError, StateError
from nearmetal.core.files import MAX_STATE, read_regular, remove_file, replace_file
from nearmetal.core.process import Runner

NAME = "cloud-demo"
"""Name of the cluster."""

LEASE_MINUTES = 120

_SETTLE_S = 5.0
"""Seconds in which a request without an answer may still make something."""


class VisitRecord(Model):
    """The record of a demo.

    `asked`: its spec before a lease, and `spec` the one that is made. `leased`: a lease was asked for.
    """

    version: Literal[1] = 1
    cloud: str
    home: str
    lease: Annotated[str, Field(pattern=r"^nearmetal-demo-[0-9a-f]{16}$")]
    asked: str
    spec: str
    disk: str | None = None
    leased: bool = False


class Visit:
    """The demo on one cloud."""

    def __init__(
        self,
        cloud: str,
        store: Store,
        runner: Runner,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.cloud, self.store, self._runner, self._sleep = cloud, store, runner, sleep
        self.session = CloudSession(cloud)
        self.leases = Leases(self.session)

    @property
    def _path(self) -> Path:
        return self.store.root / "cloud-demo.json"

    @property
    def command(self) -> str:
        """The command that removes everything."""
        return f"nearmetal demo --cloud {self.cloud} --remove"

    def record(self) -> VisitRecord | None:
        """Return the record; None: no demo has left anything. Raises StateError for another cloud."""
        try:
            text = read_regular(self._path, MAX_STATE)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"cannot read {self._path}: {error.strerror}") from error
        try:
            found = VisitRecord.model_validate_json(text)
        except ValidationError as error:
            raise self._damage() from error
        if found.cloud != self.cloud:
            raise StateError(
                f"an earlier demo has left servers on cloud {found.cloud}",
                f"remove them: nearmetal demo --cloud {found.cloud} --remove",
            )
        return found

    def _damage(self) -> StateError:
        return StateError(
            f"{self._path} is damaged",
            f"remove the cluster with `nearmetal down {NAME}`, then this file; its lease "
            "ends by itself",
        )

    def _write(self, record: VisitRecord) -> None:
        replace_file(self._path, record.model_dump_json() + "\n")

    def refuse_foreign(self) -> None:
        """Raise StateError if the cluster of this name is not of a demo."""
        if self.record() is None and NAME in self.store.names():
            raise StateError(
                f"there is a cluster {NAME!r} that no demo has made",
                f"look at it with `nearmetal status {NAME}`; `nearmetal down {NAME}` removes it",
            )

    def cluster(self, spec: OpenstackSpec) -> Cluster:
        """Return the cluster of a spec."""
        return Cluster(NAME, open_backend(spec, self.store, self._runner), self.store)

    def remove_cluster(self, spec: OpenstackSpec) -> bool:
        """Remove the cluster; returns whether there was one."""
        return not down(self.cluster(spec)).empty

    def continues(self, choice: DemoChoice) -> bool:
        """Whether an interrupted demo wanted the same, in the same project."""
        old = self.record()
        if old is None:
            return False
        return old.asked == choice.spec.canonical() and old.home == self.session.home

    def begin(self, choice: DemoChoice, disk: Path | None) -> None:
        """Write the record, unless the demo of the record is continued."""
        if self.continues(choice):
            return
        text = choice.spec.canonical()
        self._write(
            VisitRecord(
                cloud=self.cloud,
                home=self.session.home,
                lease=f"nearmetal-demo-{secrets.token_hex(8)}",
                asked=text,
                spec=text,
                disk=None if disk is None else str(disk),
            )
        )

    def leased(self, choice: DemoChoice) -> OpenstackSpec:
        """Take a lease; returns the spec whose servers are in it."""
        record = self._known()
        self._write(record.model_copy(update={"leased": True}))
        room = LeasedRoom.of(SERVERS, choice.flavor, together=not choice.spec.apart)
        lease = self.leases.take(record.lease, room, LEASE_MINUTES, datetime.now(UTC))
        return choice.spec.model_copy(update={"flavor": lease.flavor})

    def settle(self, spec: OpenstackSpec) -> None:
        """Write the spec that is made now. What an earlier lease has left is removed first."""
        record, text = self._known(), spec.canonical()
        if record.spec != text:
            self.remove_cluster(self._spec_of(record))
            self._write(record.model_copy(update={"spec": text}))

    def _spec_of(self, record: VisitRecord) -> OpenstackSpec:
        try:
            spec = from_canonical(record.spec)
        except ValueError as error:
            raise self._damage() from error
        if not isinstance(spec, OpenstackSpec) or spec.name != NAME:
            raise self._damage()
        return spec

    def _known(self) -> VisitRecord:
        record = self.record()
        if record is None:
            raise StateError("the record of the demo was removed meanwhile", "repeat the command")
        return record

    def remove(
        self,
        step: Callable[[str], None],
        say: Callable[[str, str], None],
        keep: Path | None = None,
    ) -> list[str]:
        """Remove everything that a demo has made, and the record last; returns what there was.

        `say` takes a warning. `keep`: the disk that the next demo uploads.
        """
        record = self.record()
        if record is None:
            return []
        if record.home != self.session.home:
            raise StateError(
                f"the demo is in {record.home}, and cloud {self.cloud} is {self.session.home}",
                "correct clouds.yaml, and repeat the command",
            )
        gone = []
        step("remove the servers")
        if self.remove_cluster(self._spec_of(record)):
            gone.append(f"cluster {NAME}")
        if self.leases.offered():
            step("remove the lease")
            if self.leases.remove(record.lease):
                gone.append(f"lease {record.lease}")
        elif record.leased:
            say(
                f"the catalogue of cloud {self.cloud} has no reservation service any more: lease "
                f"{record.lease} may last up to {LEASE_MINUTES // 60} hours",
                "when the service is back, `openstack reservation lease delete` removes it",
            )
        disk = Path(record.disk) if record.disk is not None else None
        if disk is not None and disk != keep and disk.exists():
            step("remove the disk")
            remove_file(disk)
            gone.append(str(disk))
        remove_file(self._path)
        return gone

    @contextmanager
    def cleared(
        self, step: Callable[[str], None], say: Callable[[str, str], None]
    ) -> Iterator[None]:
        """Remove everything at the end of the block. If that fails, say what removes it."""
        try:
            yield
        except BaseException as error:
            # The error of the block is the one that counts.
            with suppress(NearmetalError):
                self._removed(step, say, wait=isinstance(error, (Interrupted, BusyError)))
            raise
        self._removed(step, say)

    def _removed(
        self, step: Callable[[str], None], say: Callable[[str, str], None], *, wait: bool = False
    ) -> None:
        try:
            if wait:
                step("wait for the last request")
                self._sleep(_SETTLE_S)
            self.remove(step, say)
        except NearmetalError as error:
            say(f"the demo left things in the cloud: {error.message}", f"remove: {self.command}")
            raise
