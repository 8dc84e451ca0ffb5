# SPDX-License-Identifier: Apache-2.0
"""The stages fabric, switch and guest: what is seen from the host, and what is done elsewhere. Pure.

They have no steps of their own: a subnet manager, a switch and a guest belong to others, so what
they need is stated beside the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.provision.steps import Outcome, Stage

if TYPE_CHECKING:
    from nearmetal.provision.cards import Pair
    from nearmetal.provision.model import HostFacts
    from nearmetal.spec.hosts import HostGroup


def plan_outside(group: HostGroup, facts: HostFacts, pairs: list[Pair], outcome: Outcome) -> None:
    """State what the fabric, the switch and the guests need."""
    ports = [(want, found) for p in pairs for _, want, found in p.ports()]
    links = {want.link or found.link for want, found in ports if want.vfs}
    if "infiniband" in links:
        outcome.remark(Stage.FABRIC, "a subnet manager must run and know virtual ports (OpenSM: "
                       "virt_enabled 2), and partitions must hold the GUIDs of VFs")  # fmt: skip
    if "ethernet" in links:
        outcome.remark(Stage.FABRIC, "for RoCE the switch ports need PFC or ECN for the class of "
                       "the traffic (DSCP 26 by custom), and the MTU of the hosts")  # fmt: skip
    for want, found in ports:
        if (want.link or found.link) == "infiniband" and found.state not in ("", "ACTIVE"):
            outcome.remark(Stage.FABRIC, f"{found.address} is {found.state}: no cable, or no "
                           "subnet manager answers")  # fmt: skip
    if not links:
        return
    if group.platform == "esxi":
        if "infiniband" in links:
            outcome.remark(Stage.SWITCH, "the vmnic of an InfiniBand port shows Down: that is "
                           "normal, as ESXi takes it for Ethernet")  # fmt: skip
        outcome.remark(Stage.SWITCH, "a switch with the adapter as uplink, a port group and MTU "
                       "9000 are made in vCenter")  # fmt: skip
    outcome.remark(Stage.GUEST, "guests need the driver of the VF (rdma-core or OFED); "
                   "ibv_devinfo there must say PORT_ACTIVE")  # fmt: skip
    if facts.platform == "linux" and facts.iommu_groups == 0:
        outcome.remark(Stage.DRIVER, "the IOMMU is off now: VFs cannot be given away before the "
                       "BIOS and the kernel have switched it on")  # fmt: skip
