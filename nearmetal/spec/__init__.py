# SPDX-License-Identifier: Apache-2.0
"""The cluster spec: models and loader. All errors at once, with file:line:column."""

from nearmetal.spec.loader import addresses, load_spec, parse_spec
from nearmetal.spec.model import ClusterSpec, Host, Network, Node, json_schema
from nearmetal.spec.resource import (
    Attributes,
    Facts,
    Key,
    Kind,
    Observed,
    Resource,
    in_order,
    resource,
)
from nearmetal.spec.size import format_size, parse_size

__all__ = [
    "Attributes",
    "ClusterSpec",
    "Facts",
    "Host",
    "Key",
    "Kind",
    "Network",
    "Node",
    "Observed",
    "Resource",
    "addresses",
    "format_size",
    "in_order",
    "json_schema",
    "load_spec",
    "parse_size",
    "parse_spec",
    "resource",
]
