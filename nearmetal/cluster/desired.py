# SPDX-License-Identifier: Apache-2.0
"""From a spec and the facts to the resources the cluster should have. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cluster.backends.libvirt.plan import machines
from nearmetal.cluster.backends.local.plan import containers
from nearmetal.cluster.backends.vsphere.plan import vsphere_machines
from nearmetal.cluster.spec import LibvirtSpec, LocalSpec, Observed, VsphereSpec
from nearmetal.core.errors import StateError

if TYPE_CHECKING:
    from nearmetal.cluster.spec import ClusterSpec, Facts
    from nearmetal.cluster.wanted import Desired


def desired(spec: ClusterSpec, facts: Facts, observed: Observed | None = None) -> Desired:
    """Return what `spec` asks for where these facts hold; StateError if it cannot be.

    `observed`: what is there. It decides what the spec leaves open, so that nobody is moved.
    """
    if isinstance(spec, LocalSpec):
        return containers(spec, facts)
    if isinstance(spec, LibvirtSpec):
        return machines(spec, facts, observed or Observed())
    if isinstance(spec, VsphereSpec):
        return vsphere_machines(spec)
    raise StateError(f"nothing plans for backend {spec.backend}")
