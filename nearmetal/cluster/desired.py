# SPDX-License-Identifier: Apache-2.0
"""From a spec and the facts to the resources the cluster should have. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.cluster.registration import registration
from nearmetal.cluster.resource import Observed

if TYPE_CHECKING:
    from nearmetal.cluster.model import ClusterSpec
    from nearmetal.cluster.resource import Facts
    from nearmetal.cluster.wanted import Desired


def desired(spec: ClusterSpec, facts: Facts, observed: Observed | None = None) -> Desired:
    """Return what `spec` asks for where these facts hold; StateError if it cannot be.

    `observed`: what is there. It decides what the spec leaves open, so that no node is moved.
    """
    return registration(spec.backend).plan(spec, facts, observed or Observed())
