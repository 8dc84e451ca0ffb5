# SPDX-License-Identifier: Apache-2.0
"""Backends by name. Each is one module, imported only when a spec names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cluster.spec import LibvirtSpec, LocalSpec, VsphereSpec
from nearmetal.core.errors import StateError

if TYPE_CHECKING:
    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.spec import ClusterSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Runner


def open_backend(spec: ClusterSpec, store: Store, runner: Runner) -> Backend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    if isinstance(spec, LocalSpec):
        from nearmetal.cluster.backends.local.cluster import LocalBackend  # noqa: PLC0415 - only when named

        return LocalBackend(spec.name, store, runner)
    if isinstance(spec, LibvirtSpec):
        from nearmetal.cluster.backends.libvirt.driver import open_libvirt  # noqa: PLC0415 - only when named

        return open_libvirt(spec, store, runner)
    if isinstance(spec, VsphereSpec):
        from nearmetal.cluster.backends.vsphere.driver import open_vsphere  # noqa: PLC0415 - only when named

        return open_vsphere(spec, store)
    raise StateError(f"no backend {spec.backend!r}")
