# SPDX-License-Identifier: Apache-2.0
"""A mechanism of Neutron's ML2 for tests: Nova makes a tap of each port, and the test bridges it.

Each port that is bound is a file in the directory `taps`, so that only these taps are touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api
from oslo_config import cfg

from tests.openstack.hypervisor import TAPS

_NAME = 14
"""Characters of a tap's name: `tap`, and the beginning of the ID of its port."""


class TapDriver(api.MechanismDriver):
    """Binds every normal port, without an agent."""

    def initialize(self) -> None:
        """Make the directory."""
        self.taps = Path(cfg.CONF.state_path) / TAPS
        self.taps.mkdir(exist_ok=True)

    def bind_port(self, context: Any) -> None:
        """Bind a port to the first segment of its network."""
        port = context.current
        if port[portbindings.VNIC_TYPE] != portbindings.VNIC_NORMAL:
            return
        (self.taps / f"tap{port['id']}"[:_NAME]).touch()
        segment = context.segments_to_bind[0]
        context.set_binding(
            segment[api.ID], portbindings.VIF_TYPE_TAP, {}, constants.PORT_STATUS_ACTIVE
        )
