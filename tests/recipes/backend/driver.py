# SPDX-License-Identifier: Apache-2.0
"""The driver of the empty backend. It does nothing, and there are no nodes to run commands on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from nearmetal.cluster.resource import Facts, Observed
from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from nearmetal.cluster.backend import Backend, NodeStatus
    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Runner


class EmptyBackend:
    """Implements Backend; see there for the contracts."""

    shares_files = True
    interface = apart = ""

    def facts(self) -> Facts:
        return Facts()

    def observe(self) -> Observed:
        return Observed()

    details = observe

    def status(self) -> list[NodeStatus]:
        return []

    def _nothing(self, *_args: object, **_more: object) -> None:
        """There is nothing to make, to wait for or to remove."""

    def _refuse(self, *_args: object, **_more: object) -> NoReturn:
        raise BackendError("an empty cluster has no nodes")

    prepare = finish = leave = check = create = change = delete = _nothing
    on_node = on_launcher = remote_shell = job_root = _refuse
    staged = meeting_directory = supervisor = end_marked = incarnations = why_apart = _refuse


def open_backend(_spec: ClusterSpec, _store: Store, _runner: Runner) -> Backend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    return EmptyBackend()
