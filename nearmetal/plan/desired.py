# SPDX-License-Identifier: Apache-2.0
"""From a spec and the facts to the resources the cluster should have. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import StateError
from nearmetal.plan.libvirt import machines
from nearmetal.plan.local import containers
from nearmetal.plan.vsphere import vsphere_machines
from nearmetal.spec import LibvirtSpec, LocalSpec, Observed, VsphereSpec

if TYPE_CHECKING:
    from nearmetal.plan.wanted import Desired
    from nearmetal.spec import ClusterSpec, Facts


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
