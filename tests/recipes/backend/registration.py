# SPDX-License-Identifier: Apache-2.0
"""The pure half of the empty backend: the keys of its specs, and its plan."""

from __future__ import annotations

from typing import Literal

from nearmetal.cluster.model import ClusterSpec, Host
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import Facts, Kind, Observed, resource
from nearmetal.cluster.wanted import Desired


class EmptySpec(ClusterSpec):
    """A virtual cluster that exists on paper."""

    backend: Literal["empty"]
    hosts: list[Host]


def plan(spec: EmptySpec, _facts: Facts, _observed: Observed) -> Desired:
    """Return the cluster itself as its only resource."""
    return Desired((resource(Kind.CLUSTER, spec.name, {"slots": spec.slots}),))


REGISTRATION = Registration(EmptySpec, plan)
