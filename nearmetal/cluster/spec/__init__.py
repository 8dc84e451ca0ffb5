# SPDX-License-Identifier: Apache-2.0
"""The cluster spec: models and loader. All errors at once, with file:line:column."""

from nearmetal.cluster.model import ClusterSpec, Host, Network, Node, addresses
from nearmetal.cluster.registration import from_canonical, json_schema
from nearmetal.cluster.resource import (
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
from nearmetal.cluster.spec.loader import load_spec, parse_spec

__all__ = [
    "Attributes",
    "ClusterSpec",
    "Facts",
    "Host",
    "HostFacts",
    "Key",
    "Kind",
    "Network",
    "Node",
    "Observed",
    "Resource",
    "addresses",
    "from_canonical",
    "in_order",
    "json_schema",
    "load_spec",
    "parse_spec",
    "resource",
]
