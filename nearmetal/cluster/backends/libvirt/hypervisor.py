# SPDX-License-Identifier: Apache-2.0
"""A connection to one libvirt. Only this module uses its Python API.

All our domains and networks are transient: a domain that does not run does not exist. So a reboot
of the host removes them all, and no definition is left.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

from nearmetal.cluster.backends.libvirt.machine import NAMESPACE, OwnerMark
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
    found: ModuleType = libvirt
    return found


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

    def __init__(self, uri: str) -> None:
        """Connect; raises BackendError with a remedy."""
        self.uri = uri
        self._api: Any = _module()
        try:
            self._link: Any = self._api.open(uri)
        except self._api.libvirtError as error:
            raise explain(uri, error.get_error_message() or str(error)) from error

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


def remedy(words: str) -> str:
    """Return the remedy for a refusal of libvirt or QEMU; "" if none is known. Pure."""
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
