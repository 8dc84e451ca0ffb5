# SPDX-License-Identifier: Apache-2.0
"""The local backend: containers on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cluster.backends.local.cluster import LocalBackend

if TYPE_CHECKING:
    from nearmetal.cluster.backends.local.spec import LocalSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Runner


def open_backend(spec: LocalSpec, store: Store, runner: Runner) -> LocalBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    return LocalBackend(spec.name, store, runner)
