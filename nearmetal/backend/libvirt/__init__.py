# SPDX-License-Identifier: Apache-2.0
"""The libvirt backend: virtual machines on one or more hypervisors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.backend.libvirt.cluster import LibvirtBackend
from nearmetal.backend.libvirt.images import BuiltImages
from nearmetal.errors import BackendError

if TYPE_CHECKING:
    from nearmetal.backend.store import Store
    from nearmetal.run import Runner
    from nearmetal.spec import LibvirtSpec

__all__ = ["LibvirtBackend", "open_libvirt"]


def open_libvirt(spec: LibvirtSpec, store: Store, runner: Runner) -> LibvirtBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    if spec.image != "default":
        raise BackendError(
            f"image {spec.image}: this release boots its own image only", "write image: default"
        )
    return LibvirtBackend(spec, store, runner, BuiltImages(runner))
