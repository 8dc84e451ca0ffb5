# SPDX-License-Identifier: Apache-2.0
"""The family `gpudirect`: what must be there before an adapter reads the memory of a GPU. Pure.

The checks are rungs: each needs those before it, and the first missing one is named first. They
are for NVIDIA's GPUs, on nodes that also have an RDMA adapter: nodes whose own driver has the GPU,
hosts that give the GPU to a machine, and machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from nearmetal.check.expect import OWN, Expectations
from nearmetal.check.families.base import iommu_remedy, size, word
from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

_NVIDIA, _VFIO = "nvidia", "vfio-pci"
_GIB = 1 << 30
_VMWARE = "VMware"
_REDIRECT, _TRANSLATED = 0x0C, 0x40
"""Bits of ACS: requests and completions between devices go up; translated requests pass."""

_DMA_BUF_KERNEL = (5, 12)
_NO_DMA_BUF = {
    *("be2net", "cxgb4", "hfi1", "ib_mthca", "ib_qib", "mlx4_core", "qede", "usnic", "vmw_pvrdma")
}
"""Adapter drivers of Linux without `reg_user_mr_dmabuf`."""

_RDMA_DOC = "NVIDIA, GPUDirect RDMA, Supported Systems"
_MEMORY_DOC = "NVIDIA, GPU Operator, GPUDirect RDMA: nvidia-peermem, or dma-buf (Linux 5.12)"
_NCCL_DOC = "NVIDIA, NCCL, Troubleshooting, PCI Access Control Services"
_VM_DOC = "NVIDIA AI Enterprise, Optimizing VM Configuration, ATS and ACS configuration"
_VMWARE_DOC = "VMware, How to Enable NVIDIA V100 GPU in Passthrough Mode on vSphere"


def _gpus(node: Snapshot, *drivers: str) -> list[str]:
    """Return the GPUs of NVIDIA that one of these drivers has; without drivers all GPUs.

    A node without an RDMA adapter has nothing to prepare, so its GPUs are not returned. Neither are
    virtual functions of a GPU on its host: these are vGPUs.
    """
    if not _adapters(node):
        return []
    return [
        address
        for address in sorted(node.table("pci"))
        if node.text("pci", address, "ids").startswith("10de:")
        and node.text("pci", address, "class")[:2] == "03"
        and not node.text("pci", address, "physical")
        and (not drivers or node.text("pci", address, "driver") in drivers)
    ]


def _adapters(node: Snapshot) -> list[str]:
    """Return the addresses of RDMA adapters, without those of their virtual functions on a host."""
    return [a for a in _functions(node) if not node.text("pci", a, "physical")]


def _functions(node: Snapshot) -> list[str]:
    real = {
        node.text("fabric", device, "address")
        for device in node.table("fabric")
        if not node.flag("fabric", device, "software")
    }
    # An adapter that a machine has shows no RDMA device on its host.
    given = {
        a
        for a in node.table("pci")
        if node.text("pci", a, "class")[:4] == "0207"
        or (node.text("pci", a, "class")[:2] == "02" and node.text("pci", a, "driver") == _VFIO)
    }
    return sorted((real | given) - {""})


def _is_guest(node: Snapshot) -> bool:
    return node.flag("virtual", "guest")


def _driver(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    for gpu in _gpus(node):
        driver = node.text("pci", gpu, "driver")
        if driver not in (_NVIDIA, _VFIO) and not _unmapped(node, gpu):
            yield Spotted(
                printable(driver)[:40] or "no driver",
                f"{_NVIDIA}, or {_VFIO} if a machine gets the GPU",
                "the driver of NVIDIA does not have the GPU; if modprobe does not find it, install "
                "NVIDIA's open kernel modules",
                "modprobe nvidia",
                printable(gpu)[:16],
            )


def _kernel_of(node: Snapshot) -> tuple[int, ...]:
    parts = node.text("system", "kernel").split(".")[:2]
    return tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 5)  # noqa: PLR2004


def _no_dma_buf(node: Snapshot) -> str:
    """Return why the adapters cannot take a dma-buf of the GPU; "" if they can."""
    if not node.flag("gpu", "open"):
        return "the GPU's driver is not that of the open kernel modules"
    if _kernel_of(node) < _DMA_BUF_KERNEL:
        return f"the kernel {printable(node.text('system', 'kernel'))[:40]} is older than 5.12"
    drivers = {node.text("pci", adapter, "driver") for adapter in _adapters(node)}
    if drivers <= _NO_DMA_BUF:
        return f"the driver {', '.join(sorted(drivers))} of the adapters takes none"
    return ""


def _memory(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    loaded = node.table("software", "modules")
    if not _gpus(node, _NVIDIA) or "nvidia_peermem" in loaded or "nv_peer_mem" in loaded:
        return
    why = _no_dma_buf(node)
    if why:
        yield Spotted(
            "neither",
            "nvidia-peermem, or a driver and a kernel with dma-buf",
            f"no adapter can register memory of the GPU: nvidia-peermem is not loaded, and {why}",
            "modprobe nvidia-peermem  # it needs the adapter's driver of DOCA-OFED or MLNX_OFED",
        )


def _unmapped(node: Snapshot, gpu: str) -> str:
    """Return which memory of a GPU has no address, so that its driver cannot use it; "" for none."""
    unmapped = node.count("pci", gpu, "unmapped")
    if unmapped > 0:
        return f"{size(unmapped)} without an address"
    return "a region without an address" if node.flag("pci", gpu, "missing") else ""


def _region(node: Snapshot, wanted: Expectations) -> Iterator[Spotted]:
    least = wanted.value("gpu_region")
    for gpu in _gpus(node):
        unmapped, region = _unmapped(node, gpu), node.number("pci", gpu, "region")
        if unmapped:
            yield Spotted(
                unmapped,
                "an address for each memory region",
                "driver and adapters reach the GPU's memory through its regions, and the "
                + ("machine's 64-bit window is too small" if _is_guest(node) else "BIOS gave none"),
                _window_remedy(node),
                printable(gpu)[:16],
                _VMWARE_DOC if _on_vmware(node) else OWN,
            )
        elif region is not None and least is not None and region < least:
            yield Spotted(
                size(region),
                f"at least {size(least)}",
                "adapters reach only as much of the GPU's memory at a time as its BAR1 has",
                f"lspci -vv -s {word(gpu)}  # Resizable BAR: switch it on in the BIOS",
                printable(gpu)[:16],
                wanted.source("gpu_region"),
            )


def _on_vmware(node: Snapshot) -> bool:
    return _is_guest(node) and node.text("system", "dmi", "sys_vendor").startswith(_VMWARE)


def _window_remedy(node: Snapshot) -> str:
    """Return how to make room: the next power of two above the sum of the large regions.

    The small regions of the devices are in the rest. VMware has the same rule.
    """
    if not _is_guest(node):
        return "dmesg | grep 'BAR.*no space'  # then switch Above 4G Decoding on in the BIOS"
    table = sorted(node.table("pci"))
    regions = [max(node.count("pci", a, "region"), node.count("pci", a, "unmapped")) for a in table]
    gib = sum(regions) // _GIB
    hidden = any(node.flag("pci", a, "missing") for a in table) or gib >= 1 << 20
    unit, per_gib = ("GiB", 1) if _on_vmware(node) else ("MiB", 1024)
    room = "N" if hidden else str((1 << gib.bit_length()) * per_gib)
    if _on_vmware(node):
        how = (
            f"nearmetal up SPEC  # mmio: {room} GiB in SPEC, which is "
            f"pciPassthru.use64bitMMIO=TRUE, pciPassthru.64bitMMIOSizeGB={room}"
        )
    else:
        how = (
            f"virsh edit MACHINE  # qemu:commandline: -fw_cfg opt/ovmf/X-PciMmio64Mb,string={room}"
        )
    return how + (f", N: a power of two above the {unit} of all its GPUs" if hidden else "")


def _above(node: Snapshot, address: str) -> list[str]:
    return node.text("pci", address, "above").split()


def _placement(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    if _is_guest(node):
        return  # the machine's bridges are those of its hypervisor
    for gpu in _gpus(node, _NVIDIA, _VFIO):
        root = _above(node, gpu)[:1]
        if root and not _near(node, gpu):
            yield Spotted(
                f"no adapter below {printable(root[0])[:16]}",
                "an RDMA adapter below the root complex of the GPU",
                "bytes between both cross the link of the sockets, which is slow or impossible",
                "lspci -tv  # then another slot for the adapter",
                printable(gpu)[:16],
            )


def _near(node: Snapshot, gpu: str) -> list[str]:
    """Return the adapters below the root complex of a GPU."""
    root = _above(node, gpu)[:1]
    return [adapter for adapter in _adapters(node) if root and _above(node, adapter)[:1] == root]


def _between(node: Snapshot, gpu: str) -> list[str]:
    """Return the bridges between a GPU and its adapters, which may redirect what passes them."""
    found: list[str] = []
    for adapter in _near(node, gpu):
        ways = _above(node, gpu), _above(node, adapter)
        pairs = zip(*ways, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        found += [bridge for way in ways for bridge in way[common:]]
    return list(dict.fromkeys(found))


def _acs(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    seen: set[str] = set()
    away = node.count("virtual", "given") > 0
    for gpu in [] if _is_guest(node) else _gpus(node, _NVIDIA, _VFIO):
        given = node.text("pci", gpu, "driver") == _VFIO
        for bridge in _between(node, gpu):
            able = node.count("bridges", bridge, "acs")
            on = node.count("bridges", bridge, "acs_on")
            if bridge in seen or not on & _REDIRECT or (given and on & _TRANSLATED):
                continue
            seen.add(bridge)
            if given:
                yield _redirected_all(bridge, able=bool(able & _TRANSLATED))
            else:
                yield _redirected(bridge, away=away)


def _redirected(bridge: str, *, away: bool) -> Spotted:
    """A bridge above a GPU of the node itself. `away`: a machine has a device of this node.

    ACS then keeps the memory of the host apart from that machine: no remedy takes it away.
    """
    slow = "all bytes between adapter and GPU go up to the processor: transfers are slow, or hang"
    return Spotted(
        "redirects requests between devices",
        "no redirection",
        slow + ("; a machine has devices of this node, and ACS keeps it apart" if away else ""),
        "lspci -tv  # then GPU and adapter below a bridge without devices of machines"
        if away
        else f"setpci -s {word(bridge)} ECAP_ACS+6.w=0:c  # until the next boot, and not if machines "
        f"get devices: pci=disable_acs_redir={word(bridge)} at boot lasts",
        printable(bridge)[:16],
        _NCCL_DOC,
    )


def _redirected_all(bridge: str, *, able: bool) -> Spotted:
    """A bridge above a GPU that a machine has."""
    value = "redirects requests between devices"
    why = "a machine has the GPU, and this bridge sends what its adapter translated up as well"
    return Spotted(
        value + (", also translated ones" if able else ", and cannot let translated ones pass"),
        "translated requests pass",
        why if able else f"{why}; no setting changes that",
        f"setpci -s {word(bridge)} ECAP_ACS+6.w=40:40  # until the next boot: nearmetal host, "
        "with gpudirect, lasts"
        if able
        else "lspci -tv  # then slots below another switch",
        printable(bridge)[:16],
    )


def _ats(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    roots = {tuple(_above(node, gpu)[:1]) for gpu in _gpus(node, _VFIO)} - {()}
    for adapter in [] if _is_guest(node) else _functions(node):
        # What the host keeps needs no ATS: only what a machine has is translated for it.
        given = node.text("pci", adapter, "driver") == _VFIO
        state = node.text("pci", adapter, "ats")
        near = tuple(_above(node, adapter)[:1]) in roots
        if given and near and state in ("none", "off"):
            # ConnectX shows the capability only if its firmware's setting is on.
            is_set = state == "off" or not node.text("pci", adapter, "ids").startswith("15b3:")
            card = node.text("pci", adapter, "physical") or adapter
            yield Spotted(
                "no ATS" if state == "none" else "off",
                "on",
                "a machine has the GPU, and the adapter cannot translate addresses itself, so its "
                "requests go up to the IOMMU"
                + ("; a kernel with pci=noats leaves it off" if state == "off" else ""),
                f"lspci -vv -s {word(adapter)}"
                if is_set
                else f"mlxconfig -d {word(card)} set ATS_ENABLED=true  # then reboot the host",
                printable(adapter)[:16],
            )


def _iommu(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    groups = node.number("virtual", "iommu_groups")
    if _gpus(node, _VFIO) and groups == 0 and not _is_guest(node):
        yield Spotted(
            "off", "on", "without an IOMMU no machine can have the GPU", iommu_remedy(node)
        )
    for gpu in _gpus(node, _NVIDIA):
        own = [a for a in _near(node, gpu) if node.text("pci", a, "driver") != _VFIO]
        kinds = {node.text("pci", a, "iommu_type") for a in (gpu, *own)}
        translated = sorted(kinds - {"", "identity"})
        if translated:
            yield Spotted(
                printable(", ".join(translated))[:40],
                "identity, or no IOMMU",
                "the IOMMU gives devices other addresses than those of the processor, and the GPU "
                "and the adapter must see the same",
                iommu_remedy(node),
                printable(gpu)[:16],
            )


def _machine(node: Snapshot, _: Expectations) -> Iterator[Spotted]:
    """The settings of the machine, where its backend says them."""
    if _gpus(node) and node.text("virtual", "settings", "p2p") == "no":
        yield Spotted(
            "pciPassthru.allowP2P and pciPassthru.RelaxACSforP2P are not TRUE",
            "TRUE",
            "ESXi sends all bytes between the devices of the machine through its memory",
            "nearmetal up SPEC  # p2p: true in SPEC",
        )


CHECKS = (
    HealthCheck("gpudirect.driver", Gravity.WARNING, "NVIDIA's driver has the GPU", OWN, _driver),
    HealthCheck(
        "gpudirect.memory",
        Gravity.WARNING,
        "adapters can register memory of the GPU",
        _MEMORY_DOC,
        _memory,
    ),
    HealthCheck("gpudirect.region", Gravity.WARNING, "the GPU's memory is mapped", "", _region),
    HealthCheck(
        "gpudirect.placement", Gravity.WARNING, "GPU and adapter are near", _RDMA_DOC, _placement
    ),
    HealthCheck("gpudirect.acs", Gravity.WARNING, "bridges let peers pass", _VM_DOC, _acs),
    HealthCheck("gpudirect.ats", Gravity.WARNING, "adapters translate addresses", _VM_DOC, _ats),
    HealthCheck(
        "gpudirect.iommu", Gravity.WARNING, "devices see the same addresses", _RDMA_DOC, _iommu
    ),
    HealthCheck("gpudirect.machine", Gravity.WARNING, "the machine allows peers", OWN, _machine),
)
"""In the order of the rungs."""
