# SPDX-License-Identifier: Apache-2.0
"""The files of nearmetal on Linux hosts: their paths and contents. Pure."""

from __future__ import annotations

import re

RULES = "/etc/udev/rules.d/90-nearmetal-sriov.rules"
VFIO = "/etc/udev/rules.d/60-nearmetal-vfio.rules"
"""Before 80-drivers.rules, which loads the devices' own drivers."""
GRUB = "/etc/default/grub.d/90-nearmetal.cfg"
POWER = "/etc/tmpfiles.d/90-nearmetal-power.conf"
_LINK = "/etc/systemd/network/60-nearmetal-{}.link"
LINKS = _LINK.format("*")

HEAD = "# Written by nearmetal host apply, which overwrites changes.\n"

_UDEV = ("udevadm", "control", "--reload")
_REFRESH: dict[str, tuple[str, ...]] = {
    RULES: _UDEV,
    VFIO: _UDEV,
    GRUB: ("update-grub",),
    POWER: ("true",),
}
_LINK_NAME = re.compile(
    re.escape(_LINK).replace(r"\{\}", r"([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f]\.[0-7])")
)
_RULE = re.compile(
    r'^ACTION==.*KERNEL=="(?P<address>[0-9a-f:.]+)".*ATTR\{sriov_numvfs\}="(?P<vfs>[0-9]{1,5})"$',
    re.MULTILINE,
)
_MTU = re.compile(
    r'^ACTION=="add", SUBSYSTEM=="net", KERNELS=="(?P<address>[0-9a-f:.]+)", '
    r'ATTR\{mtu\}="(?P<mtu>[0-9]{1,5})"$',
    re.MULTILINE,
)
_NUMBER = re.compile(r"^SR-IOVVirtualFunctions=(?P<vfs>[0-9]{1,5})$", re.MULTILINE)


def refresh(path: str) -> tuple[str, ...] | None:
    """Return the command that applies a file of nearmetal; None for any other path."""
    return _UDEV if is_link(path) else _REFRESH.get(path)


def is_link(path: str) -> bool:
    """Whether a path is a systemd.link(5) of nearmetal."""
    return _LINK_NAME.fullmatch(path) is not None


def link_file(address: str) -> str:
    """Return the path of the systemd.link(5) of a physical function."""
    return _LINK.format(address.replace(":", "-"))


def rule_line(address: str, vfs: int) -> str:
    """Return the udev rule that creates VFs as soon as a driver has the physical function."""
    return (
        f'ACTION=="add|bind", SUBSYSTEM=="pci", KERNEL=="{address}", DRIVER=="?*", '
        f'ATTR{{sriov_numvfs}}=="0", ATTR{{sriov_numvfs}}="{vfs}"\n'
    )


def vfio_line(address: str, ids: str) -> str:
    """Return the udev rule that keeps a device for vfio-pci. `ids`: its vendor and device.

    A change in the firmware can give its address to another device, which must stay with the host.
    A driver that is loaded already takes it only when it is asked to.
    """
    vendor, device = ids.split(":")
    return (
        f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{address}", ATTR{{vendor}}=="0x{vendor}", '
        f'ATTR{{device}}=="0x{device}", ATTR{{driver_override}}="vfio-pci", '
        'RUN{builtin}+="kmod load vfio-pci", '
        "RUN+=\"/bin/sh -c 'echo $kernel >$sys/bus/pci/drivers_probe'\"\n"
    )


def acs_line(bridge: str) -> str:
    """Return the udev rule that lets translated requests between devices pass a bridge (ACS)."""
    command = f"PATH=/usr/sbin:/usr/bin:/sbin:/bin setpci -s {bridge} ECAP_ACS+6.w=40:40"
    return f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{bridge}", RUN+="/bin/sh -c \'{command}\'"\n'


def mtu_lines(address: str, mtu: int) -> str:
    """Return the udev rules for the MTU of a physical function's network device and its VFs'."""
    common = 'ACTION=="add", SUBSYSTEM=="net", '
    return (
        f'{common}KERNELS=="{address}", ATTR{{mtu}}="{mtu}"\n'
        f'{common}TEST=="device/physfn", PROGRAM="/bin/readlink -f $sys$devpath/device/physfn", '
        f'RESULT=="*/{address}", ATTR{{mtu}}="{mtu}"\n'
    )


def link_text(address: str, vfs: int) -> str:
    """Return the systemd.link(5) that creates VFs, with the names of systemd's own file."""
    return (
        f"{HEAD}[Match]\nPath=pci-{address}\n\n[Link]\n"
        "NamePolicy=keep kernel database onboard slot path\n"
        "AlternativeNamesPolicy=database onboard slot path mac\n"
        f"MACAddressPolicy=none\nSR-IOVVirtualFunctions={vfs}\n"
    )


def vfs_in(path: str, text: str | None) -> dict[str, int]:
    """Return the VFs that a file of nearmetal makes at boot, by physical function."""
    if path == RULES:
        return {found["address"]: int(found["vfs"]) for found in _RULE.finditer(text or "")}
    name, number = _LINK_NAME.fullmatch(path), _NUMBER.search(text or "")
    return {":".join(name.groups()): int(number["vfs"])} if name and number else {}


def mtu_in(path: str, text: str | None) -> dict[str, int]:
    """Return the MTUs that a file of nearmetal sets at boot, by physical function."""
    rules = text or "" if path == RULES else ""
    return {found["address"]: int(found["mtu"]) for found in _MTU.finditer(rules)}
