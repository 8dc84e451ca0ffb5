# SPDX-License-Identifier: Apache-2.0
"""The cluster spec: models and loader. All errors at once, with file:line:column."""

from nearmetal.spec.backends import from_canonical, json_schema
from nearmetal.spec.libvirt import (
    LibvirtHost,
    LibvirtNetwork,
    LibvirtNode,
    LibvirtSpec,
    SegmentSpec,
)
from nearmetal.spec.loader import load_local, load_spec, parse_spec
from nearmetal.spec.local import LocalHost, LocalNode, LocalSpec
from nearmetal.spec.model import ClusterSpec, Host, Network, Node
from nearmetal.spec.places import addresses
from nearmetal.spec.resource import (
    Attributes,
    Facts,
    HostFacts,
    Key,
    Kind,
    Observed,
    Resource,
    in_order,
    resource,
)
from nearmetal.spec.size import format_size, parse_size
from nearmetal.spec.vf import Guids, VfRequest
from nearmetal.spec.vsphere import VsphereSpec

__all__ = [
    "Attributes",
    "ClusterSpec",
    "Facts",
    "Guids",
    "Host",
    "HostFacts",
    "Key",
    "Kind",
    "LibvirtHost",
    "LibvirtNetwork",
    "LibvirtNode",
    "LibvirtSpec",
    "LocalHost",
    "LocalNode",
    "LocalSpec",
    "Network",
    "Node",
    "Observed",
    "Resource",
    "SegmentSpec",
    "VfRequest",
    "VsphereSpec",
    "addresses",
    "format_size",
    "from_canonical",
    "in_order",
    "json_schema",
    "load_local",
    "load_spec",
    "parse_size",
    "parse_spec",
    "resource",
]
