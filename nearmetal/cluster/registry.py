# SPDX-License-Identifier: Apache-2.0
"""The drivers of backends. Each is imported only when a spec names its backend."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from nearmetal.cluster import backends

if TYPE_CHECKING:
    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Runner


class Driver(Protocol):
    """The module `driver` of a backend."""

    def open_backend(self, spec: ClusterSpec, store: Store, runner: Runner) -> Backend:
        """Return the backend of a spec's cluster; nothing is touched yet."""


def open_backend(spec: ClusterSpec, store: Store, runner: Runner) -> Backend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    module = importlib.import_module(f"{backends.__name__}.{spec.backend}.driver")
    return cast("Driver", module).open_backend(spec, store, runner)
