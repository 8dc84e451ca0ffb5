# SPDX-License-Identifier: Apache-2.0
"""Backends by name. Each is one module, imported only when a spec names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.backend.base import STAGED, Backend, NodeStatus
from nearmetal.backend.store import Store, state_directory
from nearmetal.errors import StateError
from nearmetal.spec import LibvirtSpec, LocalSpec, VsphereSpec

if TYPE_CHECKING:
    from nearmetal.run import Runner
    from nearmetal.spec import ClusterSpec

__all__ = ["STAGED", "Backend", "NodeStatus", "Store", "open_backend", "state_directory"]


def open_backend(spec: ClusterSpec, store: Store, runner: Runner) -> Backend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    if isinstance(spec, LocalSpec):
        from nearmetal.backend.local import LocalBackend  # noqa: PLC0415 - only when named

        return LocalBackend(spec.name, store, runner)
    if isinstance(spec, LibvirtSpec):
        from nearmetal.backend.libvirt import open_libvirt  # noqa: PLC0415 - only when named

        return open_libvirt(spec, store, runner)
    if isinstance(spec, VsphereSpec):
        from nearmetal.backend.vsphere import open_vsphere  # noqa: PLC0415 - only when named

        return open_vsphere(spec, store)
    raise StateError(f"no backend {spec.backend!r}")
