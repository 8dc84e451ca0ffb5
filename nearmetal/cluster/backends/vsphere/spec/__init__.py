# SPDX-License-Identifier: Apache-2.0
"""The spec of `backend: vsphere`: virtual machines that vCenter manages."""

from nearmetal.cluster.backends.vsphere.spec.cluster import (
    ALL_VLANS,
    DrsRule,
    EsxiHost,
    PortGroup,
    Switch,
    VsphereNode,
    VsphereSpec,
)
from nearmetal.cluster.backends.vsphere.spec.machine import (
    DHCP,
    NETWORK_KINDS,
    GuestSettings,
    MachineSettings,
    VmAdapter,
    adapter_text,
)

__all__ = [
    "ALL_VLANS",
    "DHCP",
    "NETWORK_KINDS",
    "DrsRule",
    "EsxiHost",
    "GuestSettings",
    "MachineSettings",
    "PortGroup",
    "Switch",
    "VmAdapter",
    "VsphereNode",
    "VsphereSpec",
    "adapter_text",
]
