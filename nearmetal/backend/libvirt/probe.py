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
from typing import TYPE_CHECKING, Any

from nearmetal.backend.libvirt.machine import Kernel, Machine, Owner
from nearmetal.backend.libvirt.shell import owner_of_files
from nearmetal.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.backend.libvirt.hypervisor import About, Hypervisor
    from nearmetal.backend.libvirt.images import Images
    from nearmetal.backend.libvirt.shell import HostShell

PROBE_OK = b"nearmetal: probe ok"
PROBE_S = 20.0
"""Under KVM the kernel is there in a second; a broken KVM prints nothing or little at all."""

_PAUSE_S = 0.1
_KEPT = 200
_WANTED = ("ivshmem-plain", "virtio-pmem-pci", "nvdimm")
_DEVICE = re.compile(r'^name "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Probe:
    """Asks a hypervisor's QEMU, and remembers the answers for this boot of its host."""

    hypervisor: Hypervisor
    shell: HostShell
    about: About
    memory: Path

    def devices(self) -> frozenset[str]:
        """Return which of the devices that matter its QEMU has."""
        known = self._recall(self._key("devices"))
        if known is None:
            emulator = self.about.emulator
            text = self.shell.check(
                "cannot ask QEMU for its devices", [emulator, "-device", "help"]
            )
            known = sorted(frozenset(_DEVICE.findall(text)) & frozenset(_WANTED))
            self._remember(self._key("devices"), known)
        return frozenset(map(str, known)) & frozenset(_WANTED)

    def kvm(self, images: Images) -> tuple[bool, str]:
        """Return whether KVM works there, and the reason in words."""
        if not self.about.offers_kvm:
            return (
                False,
                "its libvirt offers no KVM (no /dev/kvm, or no virtualization switched on)",
            )
        key = self._key(images.digest())
        known = self._recall(key)
        if isinstance(known, list) and len(known) == 2:  # noqa: PLR2004 - as written below
            return bool(known[0]), str(known[1])
        if not images.ready():
            return False, "KVM is not proven yet: the image whose kernel probes it is not built"
        answer = self._boot(images)
        self._remember(key, list(answer))
        return answer

    @cached_property
    def _boot_id(self) -> str:
        return self.shell.check("cannot read", ["cat", "/proc/sys/kernel/random/boot_id"]).strip()

    def _key(self, what: str) -> str:
        about = self.about
        named = f"{self.hypervisor.uri} {self._boot_id} {about.qemu} {about.emulator} {what}"
        return hashlib.sha256(named.encode()).hexdigest()[:32]

    def _boot(self, images: Images) -> tuple[bool, str]:
        kernel = images.boot(self.shell).kernel
        if kernel is None:
            return (
                False,
                "KVM is not proven: only the built image's kernel can be booted as a probe",
            )
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
            kernel=Kernel(kernel.kernel, kernel.initrd, f"{kernel.arguments} nearmetal.probe"),
            emulator=self.about.emulator,
            label=self.about.label,
        )
        try:
            self.shell.prepare(directory, owner)
            self.shell.write(console, b"", owner)
            self.hypervisor.start(name, machine.xml())
            return self._watch(name, console)
        except BackendError as error:
            reason = error.message.splitlines()[0]
            return False, f"a probe boot under KVM does not start: {reason}"
        finally:
            self.hypervisor.end(name)
            self.shell.remove([console], directory)

    def _watch(self, name: str, console: str) -> tuple[bool, str]:
        deadline = time.monotonic() + PROBE_S
        while time.monotonic() < deadline:
            ended = not self.hypervisor.running(name)
            seen = self.shell.read(console) or b""
            if PROBE_OK in seen:
                return True, "a probe boot under KVM reached user space"
            if ended:
                return False, "a probe boot under KVM ended before user space"
            time.sleep(_PAUSE_S)
        return False, f"a probe boot under KVM did not reach user space within {PROBE_S:.0f} s"

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
