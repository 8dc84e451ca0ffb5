# SPDX-License-Identifier: Apache-2.0
"""A machine that is a host of VMs: an emulated SR-IOV adapter (igb) behind an IOMMU, nearmetal in it."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from tests.system.machines import ROOT, Machine, Yard

ADAPTER = [
    "-device",
    "intel-iommu,intremap=on,caching-mode=on",
    "-device",
    "pcie-root-port,id=rp1,chassis=1,slot=1",
    "-netdev",
    "user,id=uplink,restrict=on",
    "-device",
    "igb,netdev=uplink,bus=rp1,mac=52:54:00:00:01:01,romfile=",
]
PF = "/sys/bus/pci/devices/0000:01:00.0"


class Host:
    """A machine that is a host of VMs, with nearmetal in it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.carry({"nearmetal": "nearmetal", "tests/system/programs/take_vfs.py": "take_vfs.py"})

    def carry(self, things: Mapping[str, str]) -> None:
        """Copy files and directories of the checkout to names below /opt/nm."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for source, name in things.items():
                archive.add(ROOT / source, name)
        self.machine.tell("mkdir -p /opt/nm && tar -x -C /opt/nm", "root", packed.getvalue())

    def tell(self, command: str) -> str:
        return self.machine.tell(command, "root")

    def python(self, words: str, code: int = 0) -> Any:
        done = self.machine.run(f"cd /opt/nm && python3 {words}", "root")
        assert done.returncode == code, done.stderr.decode() + done.stdout.decode()
        return json.loads(done.stdout)

    def vfs(self, verb: str, nodes: list[str], code: int = 0, **request: Any) -> Any:
        asked = json.dumps(json.dumps(request))
        return self.python(f"take_vfs.py {verb} /run/demo {asked} {' '.join(nodes)}", code)

    def adapter(self) -> dict[str, Any]:
        """What `ip` says of the adapter."""
        name = self.tell(f"ls {PF}/net")
        links = json.loads(self.tell(f"ip -json -details link show {name}"))
        return links[0]  # type: ignore[no-any-return]

    def as_found(self) -> dict[str, Any]:
        link = self.adapter()
        volatile = ("operstate", "flags", "qdisc", "carrier", "num_tx_queues")
        return {
            "files": self.tell(f"cat {PF}/sriov_numvfs {PF}/sriov_drivers_autoprobe"),
            "devices": self.tell("ls /sys/bus/pci/devices"),
            "drivers": self.tell(
                "for d in /sys/bus/pci/devices/0000:01:*; do "
                "echo ${d##*/} $(readlink $d/driver) $(cat $d/driver_override); done"
            ),
            "up": "UP" in link["flags"],
            "link": {k: v for k, v in link.items() if k not in volatile},
        }


def start_host(
    yard: Yard,
    iommu: str = "on",
    *,
    memory_mib: int = 1536,
    devices: Sequence[str] = (),
    cpus: int = 1,
) -> Host:
    """Start it; its adapter has a driver when this returns."""
    seed = yard.seed("vm1", ["vm1"])
    # A machine that is emulated on a busy one may miss the ticks by which a kernel tests its timer.
    append = f"intel_iommu={iommu} no_timer_check"
    machine = yard.start(
        "vm1", seed, [*ADAPTER, *devices], append=append, memory_mib=memory_mib, cpus=cpus
    )
    host = Host(machine.ready())
    host.tell(
        f"mkdir /run/demo; for i in 1 2 3 4 5 6 7 8 9; do [ -e {PF}/net ] && break; sleep 1; done"
    )
    return host
