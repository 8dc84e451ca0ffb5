# SPDX-License-Identifier: Apache-2.0
"""The abilities of a hypervisor's QEMU: it lists its devices, and a probe boot shows KVM."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from nearmetal.cluster.backends.libvirt.build import domain_name
from nearmetal.cluster.backends.libvirt.efi import LIST, Firmware, choose_firmware
from nearmetal.cluster.backends.libvirt.hosts import HostShell, owner_of_files
from nearmetal.cluster.backends.libvirt.hypervisor import About, Hypervisor
from nearmetal.cluster.backends.libvirt.images import BuiltImages
from nearmetal.cluster.backends.libvirt.machine import GuestKernel, OwnerMark, VirtualMachine
from nearmetal.cluster.backends.libvirt.nodes import printable
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.backends.libvirt.vfs import NodeVfs
from nearmetal.cluster.resource import HostFacts
from nearmetal.core.errors import BackendError
from nearmetal.core.memory import Memory
from nearmetal.core.process import Runner
from nearmetal.image import cache_directory

PROBE_OK = b"nearmetal: probe ok"
SILENT_S = 600.0
"""Limit of silence of a probe's kernel. Under two levels of emulation on a busy machine, the
firmware alone was silent for six minutes."""

LIMIT_S = 1800.0
"""Limit of a probe whose kernel only complains, for example of stalls."""

AGAIN_S = 600.0
"""Life of a refusal to start the probe, because missing memory may be free the next time. All other
conditions are part of the question, see `_key`."""

_PAUSE_S = 0.1
_KEPT = 200
_WIDTH = 120
_WANTED = ("ivshmem-plain", "virtio-pmem-pci", "nvdimm", "virtio-9p-pci")
_DEVICE = re.compile(r'^name "([^"]+)"', re.MULTILINE)


def talkative(arguments: str) -> str:
    """Return the kernel's arguments for a probe, which must show progress. Pure."""
    kept = [w for w in arguments.split() if w != "quiet" and not w.startswith("loglevel=")]
    return " ".join([*kept, "nearmetal.probe"])


def _last(console: bytes) -> str:
    """Return the last line of a console for a message; "" if there is none."""
    lines = printable(console.decode("utf-8", "replace")).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its last line: {last[:_WIDTH]}" if last else ""


class Clock(Protocol):
    """The clock of the wait for a probe; the module `time` is one."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


@dataclass(frozen=True)
class Probe:
    """Asks a hypervisor's QEMU, and keeps the answers for this boot of its host."""

    hypervisor: Hypervisor
    shell: HostShell
    about: About
    memory: Path
    clock: Clock = time

    def devices(self) -> frozenset[str]:
        """Return which of the devices that matter its QEMU has."""
        key = self._key(f"devices {' '.join(_WANTED)}")
        known = self._known.recall(key)
        if known is None:
            emulator = self.about.emulator
            text = self.shell.check(
                "cannot ask QEMU for its devices", [emulator, "-device", "help"]
            )
            known = sorted(frozenset(_DEVICE.findall(text)) & frozenset(_WANTED))
            self._known.remember(key, known)
        return frozenset(map(str, known)) & frozenset(_WANTED)

    def kvm(self, images: BuiltImages) -> tuple[bool, str]:
        """Return whether KVM works there, and the reason in words."""
        if not self.about.offers_kvm:
            reason = "its libvirt offers no KVM (no /dev/kvm, or virtualization is off in its BIOS)"
            return False, reason
        key = self._key(f"{images.digest()} {self._device}")
        match self._known.recall(key):
            case [bool(works), str(reason)]:
                return works, reason
            case [bool(works), str(reason), float(when)] if self._is_recent(when):
                return works, reason
        if not images.ready():
            return False, "KVM is not proven yet: the image whose kernel probes it is not built"
        answer, times = self._boot(images)
        self._known.remember(key, [*answer, *times])
        return answer

    def _is_recent(self, when: float) -> bool:
        return when <= self.clock.monotonic() < when + AGAIN_S

    @cached_property
    def _known(self) -> Memory:
        return Memory(self.memory, _KEPT)

    @cached_property
    def _boot_id(self) -> str:
        return self.shell.check("cannot read", ["cat", "/proc/sys/kernel/random/boot_id"]).strip()

    @cached_property
    def _device(self) -> str:
        """Whether the host has KVM, and its permissions: a change of these makes a new question."""
        script = "stat -c '%a %u %g' /dev/kvm 2>/dev/null || echo none"
        return self.shell.check("cannot look for KVM", ["sh", "-c", script]).strip()

    def _key(self, what: str) -> str:
        about = self.about
        named = f"{self.hypervisor.uri} {self._boot_id} {about.qemu} {about.emulator} {what}"
        return hashlib.sha256(named.encode()).hexdigest()[:32]

    def _boot(self, images: BuiltImages) -> tuple[tuple[bool, str], list[float]]:
        """Return the answer, which holds until the host reboots, or for a while from a time."""
        kernel = images.boot(self.shell).kernel
        assert kernel is not None  # noqa: S101 - the built image has one
        directory = self.shell.check("cannot make a directory", ["mktemp", "-d"]).strip()
        name = f"nearmetal.probe-{directory.rpartition('.')[2]}"
        console = f"{directory}/console"
        owner = owner_of_files(self.about.label)
        machine = VirtualMachine(
            name=name,
            uuid="",
            owner=OwnerMark("", "probe", name),
            accel="kvm",
            memory=512 << 20,
            nr_cpus=1,
            console=console,
            disks=(),
            links=(),
            kernel=GuestKernel(kernel.kernel, kernel.initrd, talkative(kernel.arguments)),
            emulator=self.about.emulator,
            label=self.about.label,
        )
        try:
            self.shell.prepare(directory, owner)
            self.shell.write(console, b"", owner)
            self.hypervisor.start(name, machine.xml())
            return self._watch(name, console), []
        except BackendError as error:
            reason = f"a probe boot under KVM does not start: {error.message.splitlines()[0]}"
            return (False, reason), [self.clock.monotonic()]
        finally:
            self.hypervisor.end(name)
            self.shell.remove([console], directory)

    def _watch(self, name: str, console: str) -> tuple[bool, str]:
        """Wait for the line of user space: the console decides, and time only ends a hang."""
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
            # Each look takes time from a slow machine.
            self.clock.sleep(min(1.0, _PAUSE_S + (now - began) / 20))


class Hypervisors:
    """The hypervisors of one cluster: open connections, and the facts of the spec's hosts."""

    def __init__(self, spec: LibvirtSpec, directory: Path, runner: Runner) -> None:
        """`directory`: the state of the cluster on this machine."""
        self.spec = spec
        self._directory = directory
        self._runner = runner
        self._links: dict[str, Hypervisor] = {}
        self._about: dict[str, About] = {}

    def link(self, uri: str) -> Hypervisor:
        """Return the connection to a hypervisor."""
        if uri not in self._links:
            self._links[uri] = Hypervisor(uri)
        return self._links[uri]

    def about(self, uri: str) -> About:
        """Return the facts that libvirt has of itself."""
        if uri not in self._about:
            self._about[uri] = self.link(uri).about()
        return self._about[uri]

    def owner(self, uri: str) -> str:
        """Return uid:gid of QEMU's user there; "" where it is ours."""
        return owner_of_files(self.about(uri).label)

    def shell(self, host: str, uri: str) -> HostShell:
        """Return the way to commands and files of a host."""
        return HostShell(host, uri, self._runner)

    def place(self, name: str) -> str:
        """Return the directory of our files on a host of the spec."""
        host = next(h for h in self.spec.hosts if h.name == name)
        if host.directory != "auto":
            return host.directory
        if self.shell(name, host.uri).remote:
            return f"/var/lib/nearmetal/guests/{self.spec.name}/{name}"
        return str(self._directory / "hosts" / name)

    def firmware(self, host: str, uri: str) -> Firmware | None:
        """Return the EFI firmware of a host; None if it has none that fits."""
        listed = self.shell(host, uri).check("cannot list its firmware", ["sh", "-c", LIST])
        return choose_firmware(listed)

    def offer_kvm(self) -> bool:
        """Whether the spec allows KVM and any hypervisor offers it."""
        return self.spec.accel != "tcg" and any(self.about(u).offers_kvm for u in self.spec.uris)

    def _pins_of_others(self, uri: str) -> dict[str, frozenset[int]]:
        own = domain_name(self.spec.name, "")
        pins = self.link(uri).pins()
        return {name: cores for name, cores in pins.items() if not name.startswith(own)}

    def facts(
        self, images: BuiltImages, placed: LibvirtSpec, vfs_at: Callable[[str, str], NodeVfs]
    ) -> dict[str, HostFacts]:
        """Return the facts of each host; a probe boot shows whether KVM works there.

        `placed`: the spec with moved nodes on their present hosts, whose VFs they have.
        """
        found = {}
        for host, present in zip(self.spec.hosts, placed.hosts, strict=True):
            vfs = vfs_at(host.name, host.uri)
            about, shell = self.about(host.uri), self.shell(host.name, host.uri)
            ask = Probe(self.link(host.uri), shell, about, cache_directory() / "probes.json")
            kvm, reason = False, "the spec asks for TCG"
            if self.spec.accel != "tcg":
                kvm, reason = ask.kvm(images)
            needs_efi = any(node.firmware == "efi" for node in host.nodes)
            found[host.name] = HostFacts(
                uri=host.uri,
                libvirt=about.libvirt,
                qemu=about.qemu,
                emulator=about.emulator,
                devices=ask.devices(),
                kvm=kvm,
                kvm_reason=reason,
                numa=about.numa,
                cpu_vendor=about.cpu_vendor,
                directory=self.place(host.name),
                vfs=vfs.survey(present, len(about.numa)),
                efi=needs_efi and self.firmware(host.name, host.uri) is not None,
                regions=vfs.regions(present),
                pins=self._pins_of_others(host.uri),
            )
        return found
