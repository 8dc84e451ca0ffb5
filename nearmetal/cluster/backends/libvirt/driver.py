# SPDX-License-Identifier: Apache-2.0
"""The libvirt backend: virtual machines on one or more hypervisors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cluster.backends.libvirt.cloud import CloudImages
from nearmetal.cluster.backends.libvirt.cluster import LibvirtBackend
from nearmetal.cluster.backends.libvirt.images import BuiltImages

if TYPE_CHECKING:
    from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
    from nearmetal.cluster.store import Store
    from nearmetal.core.process import Runner

__all__ = ["LibvirtBackend", "open_backend"]


def open_backend(spec: LibvirtSpec, store: Store, runner: Runner) -> LibvirtBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    built = BuiltImages(runner)
    images = built if spec.image == "default" else CloudImages(spec.image, runner, built)
    return LibvirtBackend(spec, store, runner, images)
