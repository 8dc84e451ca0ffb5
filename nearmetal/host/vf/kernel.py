# SPDX-License-Identifier: Apache-2.0
"""Where steps become real: the files of the kernel, netlink, modprobe.

`Kernel` is the seam: tests put a small model of a kernel behind it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Protocol

from nearmetal.core.errors import HostError
from nearmetal.core.journal import Event
from nearmetal.core.process import Command, LocalRunner
from nearmetal.host.vf.netlink import Netlink
from nearmetal.host.vf.steps import AwaitCarrier, LoadModule, SetLink, SetVf, Step, Write
from nearmetal.host.vf.sysfs import Sysfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nearmetal.core.journal import Journal
    from nearmetal.host.vf.model import Link

CARRIER_S = 30.0
"""For how long a link may take to come up: switches that run spanning tree take up to 30 s."""

_MODPROBE_S = 60.0


class Kernel(Protocol):
    """What is read from and written to. Errors are HostError with the kernel's reason."""

    @property
    def sysfs(self) -> Sysfs:
        """Its files."""

    @property
    def carrier_s(self) -> float:
        """For how long to wait for a link."""

    def links(self) -> Sequence[Link]:
        """Its network devices."""

    def write(self, path: str, value: str) -> None:
        """Write a file below the root."""

    def set_up(self, index: int, *, up: bool) -> None:
        """Set a network device up or down."""

    def set_vf(self, index: int, number: int, setting: str, value: Any) -> None:
        """Set one setting of a VF."""

    def load(self, module: str) -> None:
        """Load a module."""

    def pause(self) -> None:
        """Let a moment pass while waiting."""


class LinuxKernel(Netlink):
    """This machine's kernel."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self.sysfs = Sysfs()
        self.carrier_s = CARRIER_S
        self._runner = LocalRunner()

    def write(self, path: str, value: str) -> None:
        """Write in one call, as the kernel's files want it."""
        try:
            descriptor = os.open(self.sysfs.path(path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            msg = f"cannot write {value.strip()!r} to /{path}: {error.strerror}"
            raise HostError(msg, _hint(error)) from error

    def load(self, module: str) -> None:
        """Load a module with modprobe."""
        command = Command(("modprobe", "--", module))
        self._runner.check(command, timeout_s=_MODPROBE_S)

    def pause(self) -> None:
        """A tenth of a second."""
        time.sleep(0.1)


def _hint(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run as root, outside of containers that see /sys read-only"
    return "the kernel's log (dmesg) says more"


def execute(steps: Iterable[Step], kernel: Kernel, journal: Journal, verb: str) -> None:
    """Carry steps out in order, each journalled before and after; stops at the first failure."""
    for step in steps:
        journal.write(verb, step.text, Event.BEGIN)
        try:
            _execute(step, kernel)
        except HostError as error:
            journal.write(verb, step.text, Event.FAILED, error.message)
            msg = f"{step.text}: {error.message}"
            raise HostError(msg, error.hint) from error
        journal.write(verb, step.text, Event.DONE)


def _execute(step: Step, kernel: Kernel) -> None:
    match step:
        case Write(path=path, value=value):
            kernel.write(path, value)
        case LoadModule(name=name):
            kernel.load(name)
        case SetLink(index=index, up=up):
            kernel.set_up(index, up=up)
        case SetVf(index=index, number=number, setting=setting, value=value):
            kernel.set_vf(index, number, setting, value)
        case AwaitCarrier(name=name):
            _await_carrier(name, kernel)


def _await_carrier(name: str, kernel: Kernel) -> None:
    deadline = time.monotonic() + kernel.carrier_s
    while not any(link.name == name and link.carrier for link in kernel.links()):
        if time.monotonic() > deadline:
            hint = f"check the cable and the switch's port of {name}, or the subnet manager"
            raise HostError(f"no link after {kernel.carrier_s:g} s", hint)
        kernel.pause()
