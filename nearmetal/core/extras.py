# SPDX-License-Identifier: Apache-2.0
"""Python packages that only some commands need: the extras of nearmetal."""

from __future__ import annotations

from nearmetal.core.errors import NearmetalError

_DEBIAN = {
    "libvirt": "python3-libvirt",
    "metrics": "python3-prometheus-client",
    "openstack": "python3-openstacksdk",
    "redfish": "python3-sushy",
    "study": "nearmetal-study",
    "vsphere": "nearmetal",
}
"""The Debian package with the content of an extra."""


class ExtraError(NearmetalError):
    """A command needs an extra that is not installed."""

    def __init__(self, extra: str, what: str, error: ImportError) -> None:
        """`what`: the part of nearmetal that needs the extra."""
        super().__init__(
            f"{what} needs a Python package that is missing: {error}",
            f"run `pip install 'nearmetal[{extra}]'`, or install Debian's package {_DEBIAN[extra]}",
        )
