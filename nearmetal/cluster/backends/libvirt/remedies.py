# SPDX-License-Identifier: Apache-2.0
"""Remedies for refusals of libvirt and QEMU. Pure."""

from __future__ import annotations


def remedy(words: str) -> str:
    """Return the remedy for a refusal of libvirt or QEMU; "" if none is known."""
    low = words.lower()
    readable = "QEMU's user must be able to read that file and to enter every directory above it"
    known = (
        ("no space left", "make room on that host, and run `nearmetal up` again"),
        ("unable to map backing store", "reserve huge pages there: sysctl vm.nr_hugepages=..."),
        ("cannot allocate memory", "reduce the memory of the nodes, or their number"),
        ("memory locking", "the hypervisor may not lock memory: raise its memlock limit"),
        (
            "cannot limit locked memory",
            "libvirtd may not raise limits: give it CAP_SYS_RESOURCE, or a higher limit",
        ),
        (
            "could not access kvm",
            "check that /dev/kvm exists and that QEMU's user can open it, or use accel: tcg",
        ),
        ("cannot get interface mtu", "make that bridge first, or remove `bridge` from the spec"),
        ("no such device", "check with `ip link` that the bridge exists"),
        ("is already in use by interface", "choose another subnet in `network:`"),
        ("network is already in use", "choose another subnet in `network:`"),
        (
            "can't open backing store",
            "if AppArmor confines QEMU there, allow it `owner /dev/shm/nearmetal-* rw,`",
        ),
        ("virtlogd-sock", "start virtlogd there, which keeps consoles: `virtlogd -d`"),
        ("/var/lib/libvirt/dnsmasq/", "on that host: mkdir -p /var/lib/libvirt/dnsmasq"),
        ("could not open", readable),
        ("permission denied", readable),
    )
    return next((hint for word, hint in known if word in low), "")
