# SPDX-License-Identifier: Apache-2.0
"""What a spec of `backend: vsphere` may say: virtual machines that vCenter manages."""

from nearmetal.spec.vsphere.adapters import Adapter
from nearmetal.spec.vsphere.cluster import (
    ALL_VLANS,
    DrsRule,
    PortGroup,
    Switch,
    VsphereHost,
    VsphereNode,
    VsphereSpec,
)
from nearmetal.spec.vsphere.guest import DHCP, GuestSettings
from nearmetal.spec.vsphere.machine import Machine
from nearmetal.spec.vsphere.rules import Finding, findings
from nearmetal.spec.vsphere.vcenter import Vcenter

__all__ = [
    "ALL_VLANS",
    "DHCP",
    "Adapter",
    "DrsRule",
    "Finding",
    "GuestSettings",
    "Machine",
    "PortGroup",
    "Switch",
    "Vcenter",
    "VsphereHost",
    "VsphereNode",
    "VsphereSpec",
    "findings",
]
