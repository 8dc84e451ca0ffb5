# SPDX-License-Identifier: Apache-2.0
"""The vSphere backend: virtual machines under a vCenter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from nearmetal.cluster.backends.vsphere.cluster import VsphereBackend
    from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Runner


def open_backend(spec: VsphereSpec, store: Store, _runner: Runner) -> VsphereBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    try:
        from nearmetal.cluster.backends.vsphere.cluster import VsphereBackend  # noqa: PLC0415 - needs the SDK
    except ImportError as error:
        raise BackendError(
            f"backend vsphere needs pyVmomi: {error}", "install nearmetal[vsphere]"
        ) from error
    return VsphereBackend(spec, store)
