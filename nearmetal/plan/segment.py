# SPDX-License-Identifier: Apache-2.0
"""Which device shows a host's segment to its virtual machines, and why. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import StateError

if TYPE_CHECKING:
    from nearmetal.spec import HostFacts, LibvirtHost

QEMU_NAMES = {
    "ivshmem": "ivshmem-plain",
    "virtio-pmem": "virtio-pmem-pci",
    "nvdimm": "nvdimm",
}
"""What QEMU calls the devices of a spec."""

_CONVENTION = "one mapping that all may write, so each keeps to its part by convention"


def _has(facts: HostFacts, device: str) -> bool:
    return QEMU_NAMES[device] in facts.devices


def choose_device(host: LibvirtHost, facts: HostFacts, accel: str) -> tuple[str, str]:
    """Return the device ("none" included) and the reason; StateError when QEMU lacks it."""
    asked = host.segment.device
    if asked == "none":
        return "none", "the spec asks for none: its nodes meet over the network"
    if asked != "auto":
        if not _has(facts, asked):
            have = [name for name in QEMU_NAMES if _has(facts, name)]
            msg = f"host {host.name}: its QEMU {facts.qemu} has no {QEMU_NAMES[asked]}"
            raise StateError(msg, f"segment devices it has: {', '.join(have) or 'none'}; or auto")
        return asked, "the spec asks for it"
    if len(host.nodes) == 1 and host.segment.parts == "auto":
        return "none", "one node only, nobody to meet"
    if not _has(facts, "ivshmem"):
        return _without_ivshmem(facts)
    if accel == "kvm" and facts.cpu_vendor == "AMD" and _has(facts, "virtio-pmem"):
        why = (
            "under KVM on AMD the guest's own caching attributes hold, which makes the memory of "
            f"a PCI device uncached; DAX is write-back. {_CONVENTION.capitalize()}"
        )
        return "virtio-pmem", why
    cached = (
        "TCG ignores caching attributes"
        if accel == "tcg"
        else "under KVM on this processor its memory is cached as the host's"
    )
    why = f"each node writes its own part only, which the hypervisor enforces; {cached}"
    return "ivshmem", why


def _without_ivshmem(facts: HostFacts) -> tuple[str, str]:
    for device in ("virtio-pmem", "nvdimm"):
        if _has(facts, device):
            return device, f"QEMU {facts.qemu} there has no ivshmem-plain; {_CONVENTION}"
    why = f"QEMU {facts.qemu} there has no device for it: nodes meet over the network"
    return "none", why
