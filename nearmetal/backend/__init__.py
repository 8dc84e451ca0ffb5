# SPDX-License-Identifier: Apache-2.0
"""Backends by name. Each is one module, imported only when a spec names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.backend.base import Backend, NodeStatus
from nearmetal.backend.store import Store, state_directory
from nearmetal.errors import StateError

if TYPE_CHECKING:
    from nearmetal.run import Runner

__all__ = ["Backend", "NodeStatus", "Store", "open_backend", "state_directory"]


def open_backend(kind: str, cluster: str, store: Store, runner: Runner) -> Backend:
    """Return the backend of one cluster; nothing is touched yet."""
    if kind == "local":
        from nearmetal.backend.local import LocalBackend  # noqa: PLC0415 - only when named

        return LocalBackend(cluster, store, runner)
    msg = f"no backend {kind!r}"
    raise StateError(msg, "this release has: local")
