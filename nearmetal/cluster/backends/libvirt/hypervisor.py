# SPDX-License-Identifier: Apache-2.0
"""One libvirt: connecting, looking, starting, ending. The only module that knows its Python API.

Everything we make is transient: a domain that does not run does not exist, so nothing of ours
outlives its host's reboot and no definition can be left behind.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from nearmetal.cluster.backends.libvirt.machine import NAMESPACE, Owner
from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

PREFIX = "nearmetal"
_FARTHEST = 255
"""What a kernel writes for a NUMA node that cannot be reached."""


@dataclass(frozen=True)
class Found:
    """A domain or network of ours, or of somebody with our name. `owner` None: not ours at all."""

    name: str
    owner: Owner | None
    running: bool


@dataclass(frozen=True)
class About:
    """What a hypervisor says of itself. `label`: uid:gid of QEMU with the signs libvirt writes."""

    libvirt: str
    qemu: str
    emulator: str
    cpu_vendor: str
    numa: tuple[tuple[int, ...], ...]
    label: str
    offers_kvm: bool
    distances: tuple[tuple[int, ...], ...] = ()
    """Between the NUMA nodes, as the firmware tells the kernel; () where libvirt does not know."""


def read_distances(capabilities: ET.Element) -> tuple[tuple[int, ...], ...]:
    """Return the distances between a host's NUMA nodes; () when one is missing. Pure."""
    cells = capabilities.findall("host/topology/cells/cell")
    rows = []
    for cell in cells:
        told = {s.get("id"): s.get("value", "") for s in cell.findall("distances/sibling")}
        row = [told.get(other.get("id"), "") for other in cells]
        if not all(word.isdecimal() and 0 < int(word) <= _FARTHEST for word in row):
            return ()
        rows.append(tuple(map(int, row)))
    return tuple(rows)


def _module() -> ModuleType:
    try:
        import libvirt  # noqa: PLC0415 - only where a spec names this backend
    except ImportError as error:
        raise BackendError(
            "the Python module libvirt is not installed",
            "`make setup-vm`, or: pip install libvirt-python (it needs libvirt-dev to build)",
        ) from error
    libvirt.registerErrorHandler(_silent, None)
    found: ModuleType = libvirt
    return found


def _silent(_context: object, _error: object) -> None:
    """Keep libvirt from printing: its errors are raised as well."""


def explain(uri: str, message: str) -> BackendError:
    """Turn the words of a failed connection into an error with its remedy. Pure."""
    low = message.lower()
    if "permission denied" in low and "ssh" not in uri.partition("://")[0]:
        hint = "run as root, or join the group libvirt (and log in again)"
        return BackendError(f"no permission for {uri}: {message}", hint)
    if "authentication" in low or "access denied" in low or "polkit" in low:
        hint = "run as root, or join the group libvirt (and log in again)"
        return BackendError(f"{uri} refuses us: {message}", hint)
    if uri.startswith("qemu+ssh"):
        host = uri.partition("://")[2].partition("/")[0]
        hint = f"does `ssh {host} virsh list` work from here without a password?"
        return BackendError(f"libvirt at {uri} is not reachable: {message}", hint)
    hint = (
        "is libvirtd running, and is the socket the right one? On Debian "
        "`apt install libvirt-daemon-system` starts it; without systemd, `virtlogd -d; libvirtd -d` then"
    )
    return BackendError(f"libvirt at {uri} is not reachable: {message}", hint)


def _version(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


class Hypervisor:
    """An open connection. Errors are BackendError, with the URI and libvirt's words."""

    def __init__(self, uri: str) -> None:
        """Connect; raises BackendError with what to do about it."""
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

    def domains(self) -> list[Found]:
        """Return every domain that has our name or our mark."""
        with self._asking("cannot list its domains"):
            found = [self._found(domain) for domain in self._link.listAllDomains(0)]
        return [item for item in found if item is not None]

    def _found(self, domain: Any) -> Found | None:
        try:
            owner = Owner.read(domain.XMLDesc(0))
            running = domain.state()[0] in (1, 2)  # running, or blocked
        except self._api.libvirtError:
            return None  # it ended meanwhile
        name = str(domain.name())
        if owner is None and not name.startswith(f"{PREFIX}."):
            return None
        return Found(name, owner, running)

    def networks(self) -> list[Found]:
        """Return every network that has our name or our mark."""
        result = []
        with self._asking("cannot list its networks"):
            for network in self._link.listAllNetworks(0):
                owner = Owner.read(network.XMLDesc(0))
                name = str(network.name())
                if owner is not None or name.startswith(f"{PREFIX}."):
                    result.append(Found(name, owner, bool(network.isActive())))
        return result

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
            return domain.state()[0] in (1, 2)
        return False

    def mark(self, name: str, owner: Owner) -> None:
        """Replace what a running domain says of itself."""
        with self._asking(f"cannot mark {name}"):
            domain = self._link.lookupByName(name)
            kind = self._api.VIR_DOMAIN_METADATA_ELEMENT
            live = self._api.VIR_DOMAIN_AFFECT_LIVE
            domain.setMetadata(kind, owner.text(), "nearmetal", NAMESPACE, live)

    def end(self, name: str) -> None:
        """End a domain at once; no error when there is none."""
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
        """Remove a network; no error when there is none."""
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
    """Return what to do about a refusal of libvirt or QEMU; "" when nothing is known. Pure."""
    low = words.lower()
    known = (
        ("no space left", "make room on that host, and run `nearmetal up` again"),
        ("unable to map backing store", "reserve huge pages there: sysctl vm.nr_hugepages=..."),
        ("cannot allocate memory", "give the nodes less memory, or fewer nodes"),
        ("memory locking", "the hypervisor may lock no memory: raise its memlock limit"),
        (
            "cannot limit locked memory",
            "libvirtd may not raise limits: CAP_SYS_RESOURCE, or a higher one",
        ),
        ("could not access kvm", "is /dev/kvm there, and may QEMU's user open it? or accel: tcg"),
        ("cannot get interface mtu", "make that bridge first, or leave `bridge` out"),
        ("no such device", "is the bridge there? `ip link`"),
        ("is already in use by interface", "choose another subnet in `network:`"),
        ("network is already in use", "choose another subnet in `network:`"),
        ("can't open backing store", "is QEMU confined by AppArmor there? README names its rule"),
        ("virtlogd-sock", "start virtlogd there, which keeps consoles: `virtlogd -d`"),
        ("/var/lib/libvirt/dnsmasq/", "on that host: mkdir -p /var/lib/libvirt/dnsmasq"),
        ("could not open", "may QEMU's user read that file and enter every directory above it?"),
        ("permission denied", "may QEMU's user read that file and enter every directory above it?"),
    )
    return next((hint for word, hint in known if word in low), "")
