# SPDX-License-Identifier: Apache-2.0
"""A connection to one libvirt. Only this module uses its Python API.

All our domains and networks are transient: a domain that does not run does not exist. So a reboot
of the host removes them all, and no definition is left.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

from nearmetal.cluster.backends.libvirt.machine import (
    NAMESPACE,
    OwnerMark,
    SegmentView,
    hostdev_xml,
    read_hostdevs,
)
from nearmetal.cluster.backends.libvirt.remedies import remedy
from nearmetal.cluster.move.phases import Presence
from nearmetal.core.deadline import Deadline
from nearmetal.core.errors import BackendError
from nearmetal.core.extras import ExtraError

PREFIX = "nearmetal"
_JOIN = "run as root, or join the group libvirt (and log in again)"
_RUNNING = (1, 2)
"""libvirt's states `running` and `blocked`."""

_HALTED = {3: ("paused", "resume"), 7: ("suspended", "dompmwakeup")}
"""States `paused` and `pmsuspended`, with virsh's word that continues the domain as it was."""

_FARTHEST = 255
"""The distance of a NUMA node that is not reachable."""


_SMALL_PAGE = 4
"""Size of an ordinary page in KiB."""

_DEVICES, _OBJECTS = "/machine/peripheral", "/objects"
"""Places of QEMU's named devices, and of its objects."""

_PAUSE_S = 0.05


@dataclass(frozen=True)
class LinkLimits:
    """How long a hypervisor may be silent. Times in seconds."""

    open_s: float = 60.0
    """Time in which a connection is made."""
    silent_s: int = 5
    nr_questions: int = 5
    """libvirt asks every `silent_s`, and gives the connection up after this number without answer."""
    left_s: float = 10.0
    """Time for a migration to end at the source after the destination was lost."""


@dataclass(frozen=True)
class OwnedObject:
    """A domain or network with our mark or a name of ours. Its `owner` is empty without a mark.

    `halted`: how a domain stands still, and what continues it; "" for one that runs or has ended.
    """

    name: str
    owner: OwnerMark
    running: bool
    halted: str = ""


@dataclass(frozen=True)
class About:
    """Facts of a hypervisor. `label`: uid:gid of QEMU in libvirt's form."""

    libvirt: str
    qemu: str
    emulator: str
    cpu_vendor: str
    numa: tuple[tuple[int, ...], ...]
    label: str
    offers_kvm: bool
    distances: tuple[tuple[int, ...], ...] = ()
    """Distances between the NUMA nodes, from the firmware; () if libvirt does not know them."""


@dataclass(frozen=True)
class Room:
    """What a hypervisor has for another machine. Sizes in bytes; `hugepages`: free ones by size.

    `host`: libvirt's UUID of the computer; "" if it has none.
    """

    cpu: str
    features: frozenset[str]
    machine_types: frozenset[str]
    memory: int
    hugepages: dict[int, int]
    host: str = ""


def read_cpu(capabilities: ET.Element) -> tuple[str, frozenset[str]]:
    """Return the model of a host's processor, and the features beyond it. Pure."""
    features = capabilities.findall("host/cpu/feature")
    named = frozenset(name for feature in features if (name := feature.get("name")))
    return capabilities.findtext("host/cpu/model") or "", named


def read_machine_types(capabilities: ET.Element) -> frozenset[str]:
    """Return the machine types of x86-64, with the versions that its short names stand for. Pure."""
    listed = [
        machine
        for guest in capabilities.findall("guest")
        for arch in guest.findall("arch")
        if arch.get("name") == "x86_64"
        for machine in arch.iter("machine")
    ]
    names = [machine.text for machine in listed] + [m.get("canonical") for m in listed]
    return frozenset(name for name in names if name)


def read_distances(capabilities: ET.Element) -> tuple[tuple[int, ...], ...]:
    """Return the distances between a host's NUMA nodes; () if one is missing. Pure."""
    cells = capabilities.findall("host/topology/cells/cell")
    rows = []
    for cell in cells:
        found = {s.get("id"): s.get("value", "") for s in cell.findall("distances/sibling")}
        row = [found.get(other.get("id"), "") for other in cells]
        if not all(word.isdecimal() and 0 < int(word) <= _FARTHEST for word in row):
            return ()
        rows.append(tuple(map(int, row)))
    return tuple(rows)


def _module() -> ModuleType:
    try:
        import libvirt  # noqa: PLC0415 - only where a spec names this backend
    except ImportError as error:
        raise ExtraError("libvirt", "backend libvirt", error) from error
    libvirt.registerErrorHandler(_silent, None)
    _listen(libvirt)
    found: ModuleType = libvirt
    return found


_listening = threading.Lock()
_listeners: list[threading.Thread] = []


def _listen(api: Any) -> None:
    """Start the thread that runs libvirt's event loop: before the first connection, and once.

    Keepalive needs it on both sides: a daemon watches only clients that have such a loop.
    """

    def loop() -> None:
        while True:
            api.virEventRunDefaultImpl()

    with _listening:
        if not _listeners:
            api.virEventRegisterDefaultImpl()
            _listeners.append(threading.Thread(target=loop, daemon=True))
            _listeners[0].start()


def _silent(_context: object, _error: object) -> None:
    """Keep libvirt from printing its errors, which are also raised."""


def explain(uri: str, message: str) -> BackendError:
    """Return the error of a failed connection, with its remedy. Pure."""
    low = message.lower()
    if "permission denied" in low and "ssh" not in uri.partition("://")[0]:
        return BackendError(f"no permission for {uri}: {message}", _JOIN)
    if any(word in low for word in ("authentication", "access denied", "polkit")):
        return BackendError(f"{uri} refuses us: {message}", _JOIN)
    if uri.startswith("qemu+ssh"):
        host = uri.partition("://")[2].partition("/")[0]
        hint = f"check that `ssh {host} virsh list` works here without a password"
    else:
        hint = (
            "start libvirtd, and check the socket in the URI. On Debian `apt install "
            "libvirt-daemon-system` starts it; without systemd, also run `virtlogd -d; libvirtd -d`"
        )
    return BackendError(f"libvirt at {uri} is not reachable: {message}", hint)


def _version(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


class Hypervisor:
    """An open connection. Errors are BackendError, with the URI and libvirt's words."""

    def __init__(self, uri: str, limits: LinkLimits = LinkLimits()) -> None:
        """Connect; raises BackendError with a remedy."""
        self.uri = uri
        self.limits = limits
        self._api: Any = _module()
        self._link: Any = self.connect()
        self._keep_alive()

    def _keep_alive(self) -> None:
        """Let libvirt give a silent connection up; a new one that cannot do this is closed."""
        try:
            self._link.setKeepAlive(self.limits.silent_s, self.limits.nr_questions)
        except self._api.libvirtError as error:
            if error.get_error_code() != self._api.VIR_ERR_NO_SUPPORT:
                self.close()
                raise explain(self.uri, error.get_error_message() or str(error)) from error
            # A driver without a daemon.

    def connect(self) -> Any:
        """Return a new connection, without keepalive."""
        deadline, what = Deadline(self.limits.open_s), f"libvirt at {self.uri}"
        try:
            return deadline.call(self.uri, what, lambda: self._api.open(self.uri))
        except self._api.libvirtError as error:
            raise explain(self.uri, error.get_error_message() or str(error)) from error

    @property
    def alive(self) -> bool:
        """Whether the connection still stands."""
        with contextlib.suppress(self._api.libvirtError):
            return bool(self._link.isAlive())
        return False

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(self._api.libvirtError):
            self._link.close()

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._api.libvirtError as error:
            words = error.get_error_message() or str(error)
            raise BackendError(f"{self.uri}: {what}: {words}", remedy(words)) from error

    def about(self) -> About:
        """Ask for versions, cores and QEMU."""
        with self._asking("cannot read its capabilities"):
            capabilities = ET.fromstring(self._link.getCapabilities())  # noqa: S314 - libvirt's
            offered = self._link.getDomainCapabilities(None, "x86_64", "q35", "qemu", 0)
            domain = ET.fromstring(offered)  # noqa: S314 - libvirt's
            kinds = {d.get("type") for d in capabilities.findall("guest/arch/domain")}
            qemu, library = self._link.getVersion(), self._link.getLibVersion()
        cells = tuple(
            tuple(sorted(int(cpu.get("id", "0")) for cpu in cell.findall("cpus/cpu")))
            for cell in capabilities.findall("host/topology/cells/cell")
        )
        label = ""
        for model in capabilities.findall("host/secmodel"):
            if model.findtext("model") == "dac":
                label = model.findtext("baselabel") or ""
        return About(
            _version(library),
            _version(qemu),
            domain.findtext("path") or "",
            capabilities.findtext("host/cpu/vendor") or "",
            cells,
            label,
            "kvm" in kinds,
            read_distances(capabilities),
        )

    def domains(self) -> list[OwnedObject]:
        """Return every domain with our mark or a name of ours."""

        def state(domain: Any) -> tuple[bool, str]:
            number = domain.state()[0]
            if number not in _HALTED:
                return number in _RUNNING, ""
            word, verb = _HALTED[number]
            command = shlex.join(["virsh", "-c", self.uri, verb, domain.name()])
            return False, f"it is {word}; `{command}` continues it"

        return self._listed("domains", self._link.listAllDomains, state)

    def pins(self) -> dict[str, frozenset[int]]:
        """Return the cores to which virtual processors are pinned, by the name of the machine.

        Only a processor that has one core counts: any other one leaves the choice to the kernel.
        """
        found = {}
        with self._asking("cannot list its domains"):
            running = self._link.listAllDomains(self._api.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        for domain in running:
            # A machine that has ended since then pins nothing.
            with contextlib.suppress(self._api.libvirtError):
                maps = domain.vcpuPinInfo(self._api.VIR_DOMAIN_AFFECT_LIVE)
                cores = frozenset(one.index(True) for one in maps if sum(one) == 1)
                if cores:
                    found[str(domain.name())] = cores
        return found

    def networks(self) -> list[OwnedObject]:
        """Return every network with our mark or a name of ours."""
        every = self._link.listAllNetworks
        return self._listed("networks", every, lambda network: (bool(network.isActive()), ""))

    def _listed(
        self, what: str, every: Callable[[int], list[Any]], state: Callable[[Any], tuple[bool, str]]
    ) -> list[OwnedObject]:
        found = []
        with self._asking(f"cannot list its {what}"):
            objects = every(0)
        for item in objects:
            # An object that has ended since then is left out.
            with contextlib.suppress(self._api.libvirtError):
                name, owner = str(item.name()), OwnerMark.read(item.XMLDesc(0))
                if owner is not None or name.startswith(f"{PREFIX}."):
                    found.append(OwnedObject(name, owner or OwnerMark("", "", ""), *state(item)))
        return found

    def start(self, name: str, document: str) -> None:
        """Start a transient domain."""
        with self._asking(f"cannot start {name}"):
            self._link.createXML(document, 0)

    def running(self, name: str) -> bool:
        """Whether a domain runs."""
        domain = self._lookup(self._link.lookupByName, name)
        if domain is None:
            return False
        with contextlib.suppress(self._api.libvirtError):
            return domain.state()[0] in _RUNNING
        return False

    def mark(self, name: str, owner: OwnerMark) -> None:
        """Replace the mark of a running domain."""
        with self._asking(f"cannot mark {name}"):
            domain = self._link.lookupByName(name)
            kind = self._api.VIR_DOMAIN_METADATA_ELEMENT
            live = self._api.VIR_DOMAIN_AFFECT_LIVE
            domain.setMetadata(kind, owner.text(), "nearmetal", NAMESPACE, live)

    def end(self, name: str) -> None:
        """End a domain immediately; no error if there is none."""
        domain = self._lookup(self._link.lookupByName, name)
        if domain is None:
            return
        try:
            domain.destroy()
        except self._api.libvirtError as error:
            if self._lookup(self._link.lookupByName, name) is not None:
                words = error.get_error_message()
                raise BackendError(f"{self.uri}: cannot end {name}: {words}") from error

    # Moves

    def room(self) -> Room:
        """Ask for what is free, and for the properties of its processor."""
        with self._asking("cannot read its free memory"):
            capabilities = ET.fromstring(self._link.getCapabilities())  # noqa: S314 - libvirt's
            memory = self._link.getMemoryStats(self._api.VIR_NODE_MEMORY_STATS_ALL_CELLS)
            pages = capabilities.findall("host/topology/cells/cell/pages")
            listed = {int(page.get("size", "0")) for page in pages}
            sizes = sorted(size for size in listed if size > _SMALL_PAGE)
            nr_cells = len(capabilities.findall("host/topology/cells/cell"))
            cells = self._link.getFreePages(sizes, 0, nr_cells) if sizes else {}
        free = sum(memory.get(word, 0) for word in ("free", "buffers", "cached"))
        huge = {size << 10: sum(cell.get(size, 0) for cell in cells.values()) for size in sizes}
        types, uuid = read_machine_types(capabilities), capabilities.findtext("host/uuid") or ""
        return Room(*read_cpu(capabilities), types, free << 10, huge, uuid)

    def presence(self, name: str) -> Presence:
        """Return the state of a domain. One that a user or a fault has paused counts as running."""
        domain = self._lookup(self._link.lookupByName, name)
        if domain is None:
            return Presence.ABSENT
        try:
            state, reason = domain.state()
        except self._api.libvirtError as error:
            if self._lookup(self._link.lookupByName, name) is None:
                return Presence.ABSENT
            raise BackendError(f"{self.uri}: {error.get_error_message()}") from error
        if state in _RUNNING:
            return Presence.RUNNING
        if state in (self._api.VIR_DOMAIN_SHUTOFF, self._api.VIR_DOMAIN_CRASHED):
            return Presence.ABSENT
        by_move = (
            self._api.VIR_DOMAIN_PAUSED_MIGRATION,
            self._api.VIR_DOMAIN_PAUSED_STARTING_UP,
        )
        paused = state == self._api.VIR_DOMAIN_PAUSED and reason in by_move
        return Presence.PAUSED if paused else Presence.RUNNING

    def proceed(self, name: str) -> None:
        """Let a domain that stands still run."""
        with self._asking(f"cannot continue {name}"):
            self._link.lookupByName(name).resume()

    def live_xml(self, name: str) -> str:
        """Return the XML of a running domain as a migration needs it."""
        flags = self._api.VIR_DOMAIN_XML_MIGRATABLE | self._api.VIR_DOMAIN_XML_SECURE
        with self._asking(f"cannot read {name}"):
            return str(self._link.lookupByName(name).XMLDesc(flags))

    def mark_of(self, name: str) -> OwnerMark | None:
        """Return the mark of a domain; None if there is no such domain, or no mark of ours."""
        domain = self._lookup(self._link.lookupByName, name)
        if domain is None:
            return None
        with self._asking(f"cannot read {name}"):
            return OwnerMark.read(domain.XMLDesc(0))

    def migrate(
        self,
        name: str,
        target: Hypervisor,
        document: str,
        uri: str,
        *,
        tls: bool,
        limit_s: float,
        halt: threading.Event,
    ) -> None:
        """Move a running domain. `uri`: where the target takes the memory of machines.

        `halt`: cancels it from another thread. BackendError, too, if the target is lost meanwhile:
        then the machine may run there.
        """
        api = self._api
        flags = (
            api.VIR_MIGRATE_LIVE | api.VIR_MIGRATE_AUTO_CONVERGE | api.VIR_MIGRATE_ABORT_ON_ERROR
        )
        flags |= api.VIR_MIGRATE_TLS if tls else 0
        wishes = {api.VIR_MIGRATE_PARAM_DEST_XML: document, api.VIR_MIGRATE_PARAM_URI: uri}
        with self._asking(f"cannot find {name}"):
            domain = self._link.lookupByName(name)
        # If the answer is lost that the copy runs, libvirt lets the source run, too. So it never
        # learns by a keepalive that the target is lost: the other connection does.
        carrier = target.connect()
        over, failures = threading.Event(), list[Exception]()

        def copy() -> None:
            try:
                domain.migrate3(carrier, wishes, flags)
            except Exception as error:  # noqa: BLE001 - raised below, in the thread that waits
                failures.append(error)
            finally:
                over.set()

        # No signal reaches Python while it waits in libvirt.
        threading.Thread(target=copy, daemon=True).start()
        late = False
        try:
            end = time.monotonic() + limit_s
            while not (over.wait(_PAUSE_S) or halt.is_set() or late) and target.alive:
                late = time.monotonic() >= end
        finally:
            self._abort(domain, over, target)
        if not over.is_set():
            # The thread has the connection until this process ends. Then the source decides nothing
            # alone: a machine that was copied stands still there until the next command.
            raise BackendError(f"{target.uri} was lost while {name} migrated to it")
        with contextlib.suppress(api.libvirtError):
            carrier.close()
        try:
            with self._asking(f"cannot migrate {name}"):
                for failure in failures:
                    raise failure
        except BackendError as error:
            if late:
                raise BackendError(
                    f"{self.uri}: the migration of {name} did not end in {limit_s:g} s",
                    "its memory changes faster than the network carries it; use a longer --timeout",
                ) from error
            raise

    def _abort(self, domain: Any, over: threading.Event, target: Hypervisor) -> None:
        """Abort a migration, and wait until it is over; not for long if the target is lost."""
        end = math.inf
        while not over.is_set() and time.monotonic() < end:
            if end == math.inf and not target.alive:
                end = time.monotonic() + self.limits.left_s
            # Before the copy begins there is nothing to abort yet, so the request is repeated.
            with contextlib.suppress(self._api.libvirtError):
                domain.abortJob()
            over.wait(_PAUSE_S)

    def _monitor(self, domain: Any, command: str, **arguments: Any) -> Any:
        """Send a command to QEMU; return its answer."""
        import libvirt_qemu  # noqa: PLC0415 - only where a machine is moved

        text = json.dumps({"execute": command, "arguments": arguments})
        with self._asking(f"QEMU of {domain.name()} does not {command}"):
            answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, text, 0))
        if "error" in answer:
            why = answer["error"].get("desc", "no reason given")
            raise BackendError(f"{self.uri}: QEMU of {domain.name()} refuses {command}: {why}")
        return answer.get("return")

    def _named(self, domain: Any, path: str) -> set[str]:
        return {str(item["name"]) for item in self._monitor(domain, "qom-list", path=path)}

    def plug(self, name: str, views: Sequence[SegmentView]) -> bool:
        """Give a running domain the views that it does not have; returns whether one was missing."""
        with self._asking(f"cannot find {name}"):
            domain = self._link.lookupByName(name)
        missing = False
        for view in views:
            if view.memory["id"] not in self._named(domain, _OBJECTS):
                self._monitor(domain, "object-add", **view.memory)
            if view.device["id"] not in self._named(domain, _DEVICES):
                self._monitor(domain, "device_add", **view.device)
                missing = True
        return missing

    def unplug(self, name: str, views: Sequence[SegmentView], limit_s: float = 30.0) -> None:
        """Take the views from a running domain whose guest lets them go."""
        with self._asking(f"cannot find {name}"):
            domain = self._link.lookupByName(name)
        for view in views:
            device, deadline = str(view.device["id"]), time.monotonic() + limit_s
            if device in self._named(domain, _DEVICES):
                self._monitor(domain, "device_del", id=device)
            while device in self._named(domain, _DEVICES):
                if time.monotonic() > deadline:
                    raise BackendError(
                        f"{self.uri}: the guest of {name} does not let {device} go in {limit_s:g} s",
                        "a machine that was started by an earlier release has no ports for it",
                    )
                time.sleep(_PAUSE_S)
            if view.memory["id"] in self._named(domain, _OBJECTS):
                self._monitor(domain, "object-del", id=view.memory["id"])

    def attach(self, name: str, address: str) -> bool:
        """Give a running domain a PCI device of its host; returns False if it has it."""
        with self._asking(f"cannot give {address} to {name}"):
            domain = self._link.lookupByName(name)
            if address in read_hostdevs(domain.XMLDesc(0)):
                return False
            domain.attachDeviceFlags(hostdev_xml(address), self._api.VIR_DOMAIN_AFFECT_LIVE)
            return True

    def detach(self, name: str, address: str, limit_s: float = 30.0) -> None:
        """Take a PCI device of its host from a running domain whose guest lets it go."""
        end = time.monotonic() + limit_s
        with self._asking(f"cannot take {address} from {name}"):
            domain = self._link.lookupByName(name)
            if address in read_hostdevs(domain.XMLDesc(0)):
                domain.detachDeviceFlags(hostdev_xml(address), self._api.VIR_DOMAIN_AFFECT_LIVE)
            while address in read_hostdevs(domain.XMLDesc(0)):
                if time.monotonic() > end:
                    what = f"the guest of {name} does not let {address} go in {limit_s:g} s"
                    raise BackendError(f"{self.uri}: {what}")
                time.sleep(_PAUSE_S)

    def start_network(self, name: str, document: str) -> None:
        """Make a transient network."""
        with self._asking(f"cannot make network {name}"):
            self._link.networkCreateXML(document)

    def end_network(self, name: str) -> None:
        """Remove a network; no error if there is none."""
        network = self._lookup(self._link.networkLookupByName, name)
        if network is not None:
            with self._asking(f"cannot remove network {name}"):
                network.destroy()

    def _lookup(self, look: Callable[[str], Any], name: str) -> Any:
        missing = (self._api.VIR_ERR_NO_DOMAIN, self._api.VIR_ERR_NO_NETWORK)
        try:
            return look(name)
        except self._api.libvirtError as error:
            if error.get_error_code() in missing:
                return None
            raise BackendError(f"{self.uri}: {error.get_error_message()}") from error
