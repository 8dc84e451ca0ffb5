# SPDX-License-Identifier: Apache-2.0
"""Hypervisors as planning sees them, for tests of virtual clusters."""

from __future__ import annotations

from dataclasses import replace

from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.resource import Facts, HostFacts

HYPERVISOR = HostFacts(
    uri="qemu:///system",
    libvirt="9.0.0",
    qemu="10.0.2",
    emulator="/usr/bin/qemu-system-x86_64",
    devices=frozenset({"ivshmem-plain", "virtio-pmem-pci", "nvdimm", "virtio-9p-pci"}),
    kvm=True,
    kvm_reason="a probe boot under KVM ended as it should",
    numa=((0, 1, 2, 3), (4, 5, 6, 7)),
    cpu_vendor="Intel",
    directory="/var/lib/nearmetal/clusters/c/h1",
    efi=True,
)
"""A host of two NUMA nodes with a working KVM."""

SMALL = replace(
    HYPERVISOR,
    kvm=False,
    kvm_reason="the probe boot under KVM printed nothing within 10 s",
    numa=((0, 1),),
    cpu_vendor="AMD",
)
"""A host of two cores without KVM."""


def facts_for(spec: ClusterSpec, found: HostFacts = SMALL) -> Facts:
    """Every host of the spec as `found`; what the local backend needs beside."""
    if not isinstance(spec, LibvirtSpec):
        return Facts((0, 1))
    hosts = {
        host.name: replace(found, uri=host.uri, directory=f"/var/lib/nearmetal/{host.name}")
        for host in spec.hosts
    }
    return Facts((0, 1), hosts, image="sha256:0123456789abcdef")
