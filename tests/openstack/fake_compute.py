# SPDX-License-Identifier: Apache-2.0
"""nova-compute with Nova's own fake hypervisor and a card for MPI: one physical function with VFs."""

from __future__ import annotations

import json
import sys
from typing import Any

# It prepares the process, so it comes before the rest of Nova.
import nova.cmd.compute  # isort: skip
import nova.pci.utils
from nova.virt import fake

from tests.openstack.settings import VFS

_CARD = "0000:01:00.0"
_MAC = "52:54:00:1e:59:c6"


def _function_of(address: str) -> int:
    return int(address.rpartition(".")[2]) - 1


# Nova reads these from /sys, where there is no such card.
nova.pci.utils.get_mac_by_pci_address = lambda *_args, **_named: _MAC
nova.pci.utils.get_vf_num_by_pci_address = _function_of


class FakeHypervisor(fake.MediumFakeDriver):
    """A hypervisor whose machines exist in its memory only."""

    vcpus = 16
    memory_mb = 65536
    local_gb = 1000

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        """Return what the host has, with its PCI devices."""
        found: dict[str, Any] = super().get_available_resource(nodename)
        same: dict[str, Any] = {"vendor_id": "15b3", "status": "available", "numa_node": 0}
        card: dict[str, Any] = {
            "address": _CARD,
            "product_id": "1017",
            "dev_type": "type-PF",
            "parent_addr": None,
            "label": "label_15b3_1017",
        }
        functions: list[dict[str, Any]] = [
            {
                "address": _CARD[:-1] + str(number),
                "product_id": "1018",
                "dev_type": "type-VF",
                "parent_addr": _CARD,
                "parent_ifname": "ens1",
                "label": "label_15b3_1018",
            }
            for number in range(1, VFS + 1)
        ]
        devices = [{**same, **device} for device in (card, *functions)]
        found["pci_passthrough_devices"] = json.dumps(devices)
        return found


if __name__ == "__main__":
    sys.argv[0] = "nova-compute"
    # Nova loads drivers from its own package only.
    sys.modules["nova.virt.fake_compute"] = sys.modules["__main__"]
    nova.cmd.compute.main()
