# SPDX-License-Identifier: Apache-2.0
"""The servers that jobs of this node have in a cloud. They outlive a reboot, so records are on disk.

    jobs/NAME.json       what the servers are for; written before anything is made in the cloud, and
                         removed when nothing of it is left there
    clusters/, locks/    the state directory of the cluster NAME; `up` and `down` keep it

Only root may read any of it. A prolog reads this module, so it imports little.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError, NearmetalError, SlurmError
from nearmetal.core.files import check_private, read_json, remove_file, replace_file
from nearmetal.core.text import printable
from nearmetal.slurm.records import Instance

if TYPE_CHECKING:
    from nearmetal.cluster.apply import Cluster

    Opener = Callable[["JobServers", Path], Cluster]

STORE = Path("/var/lib/nearmetal/slurm")

FAULT = "fault"
"""A record beside a container: why its job has no servers, for the log of slurmd."""

AGAIN_S = 300.0
"""A request that had no answer when its sender died may still succeed: seconds from when the cloud
last failed, or the end began, until a last look."""

UNASKED = "their removal has not begun"
"""The fault of servers whose end is on record, while the cloud has not been asked yet."""

MOST_S = 120
"""Seconds that a removal may take; an epilog waits for it."""

_MAX_FAULT = 500
_MAX_SERVERS = 1000
"""As `max_servers` of the settings has at most."""

_NAME = re.compile(r"job-([1-9][0-9]{0,9})-[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class JobServers(Instance):
    """The servers of a job. `name`: of their cluster; `spec`: its spec; `clouds`: its clouds.yaml.

    `ended`: when their end began or the cloud last failed, 0 before that. `doubtful`: a request to
    make something had no answer when it began. `mark`: the mark of their objects, for a second look.
    `fault`: why they stay.
    """

    name: str
    nr: int
    clouds: str
    spec: str
    ended: float = 0.0
    doubtful: bool = False
    mark: str = ""
    fault: str = ""

    def lives(self) -> bool:
        """Whether there may be servers."""
        return True

    def is_leak(self, *, known: bool) -> bool:
        """Whether they are to be removed: also if their job runs again, with other servers."""
        if not self.ended:
            return not known
        return bool(self.fault) or not self.waits()

    def waits(self) -> bool:
        """Whether a last look is due later. A clock that was set back delays it once at most."""
        return self.doubtful and abs(time.time() - self.ended) < AGAIN_S

    @property
    def blames_node(self) -> bool:
        """The cloud keeps them, and the node is sound."""
        return False


@dataclass(frozen=True, kw_only=True)
class DamagedServers(Instance):
    """A record that cannot be trusted: its servers are unknown. `job`: by its name; 0: none."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the record, which is that of the cluster."""
        return self.path.stem

    @property
    def fault(self) -> str:
        """What the record needs."""
        return f"{self.path} is damaged: {self.error.hint}"

    @property
    def error(self) -> SlurmError:
        """The error with the fix."""
        return SlurmError(
            f"{self.path} is damaged",
            f"remove the servers {self.name} in the cloud by hand, then this file and "
            f"{self.path.parents[1] / 'clusters' / self.name}",
        )

    def lives(self) -> bool:
        """Whether there may be servers."""
        return True

    def is_leak(self, *, known: bool) -> bool:
        """Whether a person is needed."""
        del known
        return True

    @property
    def blames_node(self) -> bool:
        """The node is sound."""
        return False


def open_cluster(one: JobServers, root: Path) -> Cluster:
    """Open the cluster of a job's servers, with its state in `root`. Nothing is asked yet.

    Slow to import, so only where a job has servers.
    """
    from nearmetal.slurm.cloud import opened  # noqa: PLC0415

    return opened(one, root)


@dataclass(frozen=True)
class ServerStore:
    """The records of this node, and the removal of what they say. `most_s`: how long it may take."""

    root: Path = STORE
    opening: Opener = open_cluster
    most_s: float = MOST_S

    def path_of(self, one: JobServers) -> Path:
        """Return the path of a record."""
        return self.root / "jobs" / f"{one.name}.json"

    def keep(self, one: JobServers) -> None:
        """Write a record, on disk when this returns. Raises SlurmError."""
        try:
            for directory in (self.root, self.root / "jobs"):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path_of(one), json.dumps(asdict(one), indent=1) + "\n")
        except OSError as error:
            raise SlurmError(f"job {one.job}: {error.filename}: {error.strerror}") from error

    def forget(self, one: JobServers) -> None:
        """Remove a record. The directories stay: another job may be about to write there."""
        remove_file(self.path_of(one))

    def every(self, job: int | None = None) -> tuple[JobServers, ...]:
        """Return all sound records, or those of a job, by job; none for a user who may not read."""
        return tuple(one for one in self._read(job) if isinstance(one, JobServers))

    def damaged(self, job: int | None = None) -> tuple[DamagedServers, ...]:
        """Return all damaged records, or those of a job: without them, servers are unknown."""
        return tuple(one for one in self._read(job) if isinstance(one, DamagedServers))

    def _read(self, job: int | None) -> list[JobServers | DamagedServers]:
        begin, place = "" if job is None else f"job-{job}-", self.root / "jobs"
        try:
            names = sorted(os.listdir(place))  # noqa: PTH208 - names, no paths
        except OSError:
            return []
        paths = [place / n for n in names if n.startswith(begin) and n.endswith(".json")]
        found = [one for one in map(_read, paths) if one is not None]
        return sorted(found, key=lambda one: (one.job, one.name))

    def left_behind(self, with_container: Iterable[int]) -> tuple[JobServers, ...]:
        """Return those that no container's end will remove. `with_container`: jobs that have one.

        Their end has begun already, or the node has started again since.
        """
        jobs = set(with_container)
        return tuple(one for one in self.every() if one.ended or one.job not in jobs)

    def end_job(self, job: int) -> tuple[str, ...]:
        """Remove the servers of a job; return why some stay. They are on record as ended then."""
        said = [self.end(one) for one in self.every(job) if not one.ended]
        return (*filter(None, said), *(one.fault for one in self.damaged(job)))

    def abandon(self, found: Iterable[JobServers]) -> None:
        """Record the end of servers without asking the cloud: the watchdog removes them."""
        for one in found:
            if not one.ended:
                self.keep(replace(self._ending(one), fault=UNASKED))

    def end(self, one: JobServers) -> str:
        """Remove servers; return why they stay, or "". Can be repeated after any interruption."""
        if not one.ended:
            one = self._ending(one)
            self.keep(one)
        try:
            with _at_most(self.most_s):
                self._remove(one)
        except Exception as error:  # noqa: BLE001 - a cloud may answer anything
            kind = "" if isinstance(error, NearmetalError) else f"{type(error).__name__}: "
            fault = printable(" ".join(f"{kind}{error}".split()))[:_MAX_FAULT]
            # A cloud that fails may hold a request, and answer it when it works again.
            self.keep(replace(one, fault=fault, ended=time.time()))
            return fault
        if one.waits():
            if one.fault:
                self.keep(replace(one, fault=""))
        else:
            self.forget(one)
        return ""

    def _remove(self, one: JobServers) -> None:
        """Remove everything with the mark of servers; asks nothing where there never was one."""
        from nearmetal.cluster.apply import down  # noqa: PLC0415 - slow, and few jobs have servers
        from nearmetal.cluster.backends.openstack.marks import (  # noqa: PLC0415
            keep_mark,
            mark_of,
            read_mark,
        )
        from nearmetal.cluster.store import Store  # noqa: PLC0415

        directory = Store(self.root).cluster(one.name)
        if read_mark(directory) is None:
            if not one.doubtful:
                shutil.rmtree(directory, ignore_errors=True)
                return
            # An earlier removal took it, and a late object may carry it.
            mark = mark_of(one.mark)
            if mark is None:
                raise _damaged(self.path_of(one)).error
            keep_mark(directory, mark)
        down(self.opening(one, self.root))

    def _ending(self, one: JobServers) -> JobServers:
        """Return the record of servers whose end begins: with all that their removal takes away."""
        from nearmetal.cluster.apply import MAKING  # noqa: PLC0415
        from nearmetal.cluster.backends.openstack.marks import read_mark  # noqa: PLC0415
        from nearmetal.cluster.store import Store  # noqa: PLC0415
        from nearmetal.core.journal import Event, Journal  # noqa: PLC0415

        directory, text, doubtful = Store(self.root).cluster(one.name), "", False
        # Of a damaged file, the removal says more.
        with contextlib.suppress(NearmetalError):
            mark, steps = read_mark(directory), Journal(directory).read()[-1:]
            if mark is not None:
                text = f"{mark.token}\n{mark.home}"
                # A step that failed is no sound end: its request may have had no answer.
                open_steps = (one.step for one in steps if one.event != Event.DONE.value)
                doubtful = any(step.startswith(MAKING) for step in open_steps)
        return replace(one, ended=time.time(), mark=text, doubtful=doubtful)


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise BackendError when the block has taken this time, from within any request.

    Each answer of a service has a limit, but there are many, and Slurm drains a node whose epilog
    takes too long. Only the main thread can be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(signum: int, frame: object) -> None:
        del signum, frame
        raise BackendError(f"they are not removed after {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, late)
    # Again, if a library has caught it.
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _read(path: Path) -> JobServers | DamagedServers | None:
    """Return what a record says; None: it was removed meanwhile."""
    with contextlib.suppress(SlurmError):
        check_private(path, SlurmError, others="others than root", manual="spank_nearmetal(8)")
        found = _checked(read_json(path), path.stem)
        if found is not None:
            return found
    if not os.path.lexists(path):
        return None
    return _damaged(path)


def _damaged(path: Path) -> DamagedServers:
    named = _NAME.fullmatch(path.stem)
    job = int(named[1]) if named else 0
    return DamagedServers(job=job, uid=-1, node="", since=0.0, request="", path=path)


def _checked(read: object, name: str) -> JobServers | None:
    """Return the record of a name, if each value can be what was written. Pure."""
    if not isinstance(read, dict):
        return None
    kinds = {field.name: _KINDS[str(field.type)] for field in fields(JobServers)}
    known = {key: value for key, value in read.items() if key in kinds}
    if not all(type(value) in kinds[key] for key, value in known.items()):
        return None
    try:
        one = JobServers(**known)
    except TypeError:  # a value is missing
        return None
    named = _NAME.fullmatch(name)
    sound = (
        named is not None
        and (one.name, one.job) == (name, int(named[1]))
        and 0 < one.nr <= _MAX_SERVERS
        and all(0 <= moment < math.inf for moment in (one.since, one.ended))
        and f"{one.clouds}{one.node}{one.request}{one.fault}".isprintable()
        and one.clouds.startswith("/")
        and (bool(one.mark) or not one.doubtful)
    )
    return one if sound else None


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}
"""The types of values by that of a field."""
