# SPDX-License-Identifier: Apache-2.0
"""Answers of vCenter without the devices that no spec describes.

Devices are most of what is told of a machine, most of them are its chassis, and no property path asks for
the others alone. pyVmomi builds objects of each element in Python: nearly all the time of a plan. So the
chassis is cut from the text first. Where an answer is written otherwise, nothing is cut, and all is read.
"""

from __future__ import annotations

import re
from http.client import HTTPResponse
from io import BytesIO
from typing import Any

from pyVmomi import SoapStubAdapter

_CHASSIS = (
    rb"VirtualIDEController|VirtualPS2Controller|VirtualPCIController|VirtualSIOController"
    rb"|VirtualKeyboard|VirtualPointingDevice|VirtualMachineVideoCard|VirtualMachineVMCIDevice"
    rb"|ParaVirtualSCSIController|VirtualLsiLogicController|VirtualLsiLogicSASController"
    rb"|VirtualBusLogicController|VirtualAHCIController|VirtualNVMEController"
    rb"|VirtualDisk|VirtualCdrom|VirtualFloppy"
)

_DEVICE = re.compile(
    rb'<VirtualDevice [^<>]*?type="(?:\w+:)?(?:'
    + _CHASSIS
    + rb')"[^<>]*(?<!/)>.*?</VirtualDevice>',
    re.DOTALL,
)
"""One of a list of devices: only there has it this name, and none stands within another."""


def without_chassis(answer: bytes) -> bytes:
    """Return an answer without the controllers, disks and consoles in its lists of devices."""
    return _DEVICE.sub(b"", answer)


class _Answer(HTTPResponse):
    _rest: BytesIO | None = None

    def read(self, amt: int | None = None) -> bytes:
        if self._rest is None:
            self._rest = BytesIO(without_chassis(super().read()))
        return self._rest.read(amt)


class Stub(SoapStubAdapter):  # type: ignore[misc]
    """pyVmomi's end of a connection, which reads no chassis in lists of devices.

    What is one machine's `config` comes with all of its devices.
    """

    def GetConnection(self) -> Any:  # noqa: N802 - pyVmomi's name
        """Return a connection to vCenter."""
        connection = super().GetConnection()
        connection.response_class = _Answer
        return connection
