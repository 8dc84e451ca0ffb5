# SPDX-License-Identifier: Apache-2.0
"""The pure half of the empty backend: the keys of its specs, and its plan."""

from __future__ import annotations

from typing import Literal

from nearmetal.cluster.model import ClusterSpec, Host
from nearmetal.cluster.registration import Registration
from nearmetal.cluster.resource import Desired, Facts, Key, Kind, Observed, Resource, Values


class EmptySpec(ClusterSpec):
    """A virtual cluster that exists on paper."""

    backend: Literal["empty"]
    hosts: list[Host]


class EmptyCluster(Values):
    """The cluster; its plan shows the number of ranks."""

    slots: int


def plan(spec: EmptySpec, _facts: Facts, _observed: Observed) -> Desired:
    """Return the cluster itself as its only resource."""
    cluster = Resource(Key(Kind.CLUSTER, spec.name), EmptyCluster(slots=spec.slots))
    return Desired((cluster,))


REGISTRATION = Registration(EmptySpec, plan)
