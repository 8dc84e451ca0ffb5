# SPDX-License-Identifier: Apache-2.0
"""What a spec of `backend: vsphere` may say: virtual machines that vCenter manages."""

from nearmetal.cluster.backends.vsphere.spec.adapters import Adapter
from nearmetal.cluster.backends.vsphere.spec.cluster import (
    ALL_VLANS,
    DrsRule,
    PortGroup,
    Switch,
    VsphereHost,
    VsphereNode,
    VsphereSpec,
)
from nearmetal.cluster.backends.vsphere.spec.guest import DHCP, GuestSettings
from nearmetal.cluster.backends.vsphere.spec.machine import Machine

__all__ = [
    "ALL_VLANS",
    "DHCP",
    "Adapter",
    "DrsRule",
    "GuestSettings",
    "Machine",
    "PortGroup",
    "Switch",
    "VsphereHost",
    "VsphereNode",
    "VsphereSpec",
]
