# SPDX-License-Identifier: Apache-2.0
"""What a hypervisor's QEMU can do: devices by asking it, KVM by booting a kernel under it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from nearmetal.cluster.backends.libvirt.boot import printable
from nearmetal.cluster.backends.libvirt.machine import Kernel, Machine, Owner
from nearmetal.cluster.backends.libvirt.shell import owner_of_files
from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.cluster.backends.libvirt.hypervisor import About, Hypervisor
    from nearmetal.cluster.backends.libvirt.images import Images
    from nearmetal.cluster.backends.libvirt.shell import HostShell

PROBE_OK = b"nearmetal: probe ok"
SILENT_S = 600.0
"""Ends a probe whose kernel says nothing new for so long. Under two levels of emulation on a busy
machine the firmware alone, which says nothing, took six minutes."""

LIMIT_S = 1800.0
"""Ends a probe whose kernel only ever complains, of stalls for example."""

AGAIN_S = 600.0
"""A refusal to start the probe is believed for so long: the next time there may be the memory that
lacked. What else it hangs on is part of the question, see `_key`."""

_PAUSE_S = 0.1
_KEPT = 200
_WIDTH = 120
_WANTED = ("ivshmem-plain", "virtio-pmem-pci", "nvdimm", "virtio-9p-pci")
_DEVICE = re.compile(r'^name "([^"]+)"', re.MULTILINE)


def talkative(arguments: str) -> str:
    """Return the kernel's arguments for a probe, which must be heard to live. Pure."""
    kept = [w for w in arguments.split() if w != "quiet" and not w.startswith("loglevel=")]
    return " ".join([*kept, "nearmetal.probe"])


def _last(console: bytes) -> str:
    """Return the last line of a console in words, as far as there is one."""
    lines = printable(console.decode("utf-8", "replace")).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its last words: {last[:_WIDTH]}" if last else ""


class Clock(Protocol):
    """What the wait for a probe needs of time; the module `time` is one."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


@dataclass(frozen=True)
class Probe:
    """Asks a hypervisor's QEMU, and remembers the answers for this boot of its host."""

    hypervisor: Hypervisor
    shell: HostShell
    about: About
    memory: Path
    clock: Clock = time

    def devices(self) -> frozenset[str]:
        """Return which of the devices that matter its QEMU has."""
        key = self._key(f"devices {' '.join(_WANTED)}")
        known = self._recall(key)
        if known is None:
            emulator = self.about.emulator
            text = self.shell.check(
                "cannot ask QEMU for its devices", [emulator, "-device", "help"]
            )
            known = sorted(frozenset(_DEVICE.findall(text)) & frozenset(_WANTED))
            self._remember(key, known)
        return frozenset(map(str, known)) & frozenset(_WANTED)

    def kvm(self, images: Images) -> tuple[bool, str]:
        """Return whether KVM works there, and the reason in words."""
        if not self.about.offers_kvm:
            return (
                False,
                "its libvirt offers no KVM (no /dev/kvm, or no virtualization switched on)",
            )
        key = self._key(f"{images.digest()} {self._device}")
        match self._recall(key):
            case [bool(works), str(reason)]:
                return works, reason
            case [bool(works), str(reason), float(when)] if self._is_recent(when):
                return works, reason
        if not images.ready():
            return False, "KVM is not proven yet: the image whose kernel probes it is not built"
        answer, settled = self._boot(images)
        if settled is not None:
            self._remember(key, [*answer, *settled])
        return answer

    def _is_recent(self, when: float) -> bool:
        return when <= self.clock.monotonic() < when + AGAIN_S

    @cached_property
    def _boot_id(self) -> str:
        return self.shell.check("cannot read", ["cat", "/proc/sys/kernel/random/boot_id"]).strip()

    @cached_property
    def _device(self) -> str:
        """Who may open the host's KVM, and whether it is there: one who mends that is asked anew."""
        script = "stat -c '%a %u %g' /dev/kvm 2>/dev/null || echo none"
        return self.shell.check("cannot look for KVM", ["sh", "-c", script]).strip()

    def _key(self, what: str) -> str:
        about = self.about
        named = f"{self.hypervisor.uri} {self._boot_id} {about.qemu} {about.emulator} {what}"
        return hashlib.sha256(named.encode()).hexdigest()[:32]

    def _boot(self, images: Images) -> tuple[tuple[bool, str], list[float] | None]:
        """Return the answer, and what to remember beside it.

        None: not even the answer. Empty: it holds for as long as the host runs. A time: it holds
        for a while from then.
        """
        kernel = images.boot(self.shell).kernel
        if kernel is None:
            reason = "KVM is not proven: only the built image's kernel can be booted as a probe"
            return (False, reason), None
        directory = self.shell.check("cannot make a directory", ["mktemp", "-d"]).strip()
        name = f"nearmetal.probe-{directory.rpartition('.')[2]}"
        console = f"{directory}/console"
        owner = owner_of_files(self.about.label)
        machine = Machine(
            name=name,
            uuid="",
            owner=Owner("", "probe", name),
            accel="kvm",
            memory=512 << 20,
            nr_cpus=1,
            console=console,
            disks=(),
            links=(),
            kernel=Kernel(kernel.kernel, kernel.initrd, talkative(kernel.arguments)),
            emulator=self.about.emulator,
            label=self.about.label,
        )
        try:
            self.shell.prepare(directory, owner)
            self.shell.write(console, b"", owner)
            self.hypervisor.start(name, machine.xml())
            return self._watch(name, console), []
        except BackendError as error:
            reason = error.message.splitlines()[0]
            answer = (False, f"a probe boot under KVM does not start: {reason}")
            return answer, [self.clock.monotonic()]
        finally:
            self.hypervisor.end(name)
            self.shell.remove([console], directory)

    def _watch(self, name: str, console: str) -> tuple[bool, str]:
        """Wait for a word of user space: what the kernel says decides, time only ends a hang."""
        began = since = self.clock.monotonic()
        heard = b""
        while True:
            ended = not self.hypervisor.running(name)
            seen = self.shell.read(console) or b""
            if PROBE_OK in seen:
                return True, "a probe boot under KVM reached user space"
            if ended:
                return False, f"a probe boot under KVM ended before user space{_last(seen)}"
            now = self.clock.monotonic()
            if seen != heard:
                heard, since = seen, now
            for limit, begin, what in (
                (SILENT_S, since, "said nothing more"),
                (LIMIT_S, began, "reached no user space"),
            ):
                if now - begin > limit:
                    why = f"it {what} for {limit:.0f} s{_last(seen)}"
                    return False, f"a probe boot under KVM hangs: {why}"
            # Looking takes time from a machine that is slow.
            self.clock.sleep(min(1.0, _PAUSE_S + (now - began) / 20))

    def _read(self) -> dict[str, object]:
        try:
            data = json.loads(self.memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _recall(self, key: str) -> list[Any] | None:
        known = self._read().get(key)
        return known if isinstance(known, list) else None

    def _remember(self, key: str, answer: list[Any]) -> None:
        self.memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = list(self._read().items())[-_KEPT:]
        fresh = self.memory.with_name(f"{self.memory.name}.{os.getpid()}")
        fresh.write_text(json.dumps(dict(kept) | {key: answer}), encoding="utf-8")
        fresh.rename(self.memory)
