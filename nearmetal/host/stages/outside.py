# SPDX-License-Identifier: Apache-2.0
"""The stages fabric, switch and guest: facts seen from the host, and tasks elsewhere. Pure.

They have no steps: other people own the subnet manager, the switch and the guest, so the plan only
states what these need.
"""

from __future__ import annotations

from nearmetal.host.cards import Pair
from nearmetal.host.hosts_file import HostGroup, Port
from nearmetal.host.model import PlatformFacts, PortFacts
from nearmetal.host.steps import Outcome, Stage

NO_GUID = "00:00:00:00:00:00:00:00"

DOWN = "Down"
"""The state of an uplink without an Ethernet link in vCenter, so of every InfiniBand port."""

_FINE = ("", "ACTIVE", DOWN)


def plan_outside(
    group: HostGroup, facts: PlatformFacts, pairs: list[Pair], outcome: Outcome
) -> None:
    """State the needs of the fabric, the switch and the guests."""
    ports = [(want, found) for p in pairs for _, want, found in p.ports()]
    links = {want.link or found.link for want, found in ports if want.vfs}
    if "infiniband" in links:
        outcome.remark(
            Stage.FABRIC,
            "a subnet manager must run and know virtual ports (OpenSM: "
            "virt_enabled 2), and partitions must hold the GUIDs of VFs",
        )
    if "ethernet" in links:
        outcome.remark(
            Stage.FABRIC,
            "for RoCE the switch ports need PFC or ECN for the class of "
            "the traffic (DSCP 26 by custom), and the MTU of the hosts",
        )
    _ports(ports, outcome)
    if not links:
        return
    if group.platform == "esxi":
        if "infiniband" in links:
            down = [found.netdev for want, found in ports if found.state == DOWN and found.netdev]
            which = f" ({', '.join(down)})" if down else ""
            outcome.remark(
                Stage.SWITCH,
                f"the vmnic of an InfiniBand port shows Down{which}: this is normal, because ESXi "
                "takes it for Ethernet",
            )
        outcome.remark(
            Stage.SWITCH,
            "create a switch with the adapter as uplink, a port group and MTU 9000 in vCenter",
        )
    outcome.remark(
        Stage.GUEST,
        "guests need the driver of the VF (rdma-core or OFED); "
        "ibv_devinfo there must show PORT_ACTIVE; `nearmetal host verify` checks it",
    )
    if facts.platform == "linux" and facts.iommu_groups == 0:
        outcome.remark(
            Stage.DRIVER,
            "the IOMMU is off now: virtual machines can get VFs only after the BIOS and the kernel "
            "have switched it on",
        )


def _ports(ports: list[tuple[Port, PortFacts]], outcome: Outcome) -> None:
    """State what single ports need."""
    for _, found in ports:
        unnamed = sum(vf.port == NO_GUID for vf in found.guids)
        if unnamed:
            outcome.remark(
                Stage.FABRIC,
                f"{unnamed} VFs of {found.address} have no port GUID yet: the program that gives "
                "them to virtual machines sets it, as nearmetal up does",
            )
    for want, found in ports:
        if (want.link or found.link) == "infiniband" and found.state not in _FINE:
            outcome.remark(
                Stage.FABRIC,
                f"{found.address} is {found.state}: the port has no cable, or no subnet manager "
                "answers",
            )
