# SPDX-License-Identifier: Apache-2.0
"""Work on several machines at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from nearmetal.cluster.model import some
from nearmetal.core.errors import BackendError, Interrupted, NearmetalError
from nearmetal.host.vcenter.session import Session, TaskLeftError

_Failed = tuple[str, BaseException]


class Workers:
    """At most `parallel` threads, one machine each."""

    def __init__(self, session: Session, parallel: int) -> None:
        self._session, self._parallel = session, parallel
        self._pool: ThreadPoolExecutor | None = None
        self._work: list[tuple[str, Future[None]]] = []

    def begin(self, what: str, work: Callable[[], None]) -> None:
        """Begin work with a name for errors."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._parallel, thread_name_prefix="vsphere")
        self._work.append((what, self._pool.submit(work)))

    def leave(self, error: Interrupted) -> None:
        """Cancel the work that has not begun, and say in `error` which tasks continue in vCenter."""
        pool, work = self._pool, self._work
        self._pool, self._work = None, []
        if pool is None:
            return
        self._session.leave()
        pool.shutdown(wait=True, cancel_futures=True)
        left = [f"{w}: {e}" for w, e in _failed(work) if isinstance(e, TaskLeftError)]
        if left:
            rest = "the next `up` or `down` waits for them"
            error.hint = "\n  ".join([*left, rest])

    def drain(self) -> None:
        """Wait for all work; raises BackendError with all failures. After an interrupt: `leave`."""
        pool, work = self._pool, self._work
        if pool is None:
            return
        for _, future in work:
            future.exception()
        self._pool, self._work = None, []
        pool.shutdown(wait=True)
        failed = _failed(work)
        for _, fault in failed:
            if not isinstance(fault, NearmetalError):
                raise fault
        if failed:
            alike: dict[str, list[str]] = {}
            for what, fault in failed:
                alike.setdefault(str(fault), []).append(what)
            listed = "\n".join(f"  {some(whats)}: {fault}" for fault, whats in alike.items())
            hints = {e.hint for _, e in failed if isinstance(e, NearmetalError) and e.hint}
            msg = f"{len(failed)} of {len(work)} machines failed:\n{listed}"
            raise BackendError(msg, "; ".join(sorted(hints)) or "run `nearmetal up` again")


def _failed(work: list[tuple[str, Future[None]]]) -> list[_Failed]:
    ended = ((what, f.exception()) for what, f in work if f.done() and not f.cancelled())
    return [(what, fault) for what, fault in ended if fault is not None]
