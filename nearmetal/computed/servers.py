# SPDX-License-Identifier: Apache-2.0
"""The servers of this hypervisor, by libvirt, and their devices, by QEMU's monitor."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.cluster.backends.libvirt.machine import SegmentView
from nearmetal.computed.domains import ServerDomain, empty_ports, read_server
from nearmetal.core.errors import BackendError

_RUNNING = (1, 2)
"""libvirt's states `running` and `blocked`."""

_DEVICES, _OBJECTS = "/machine/peripheral", "/objects"


@dataclass(frozen=True)
class SeenServer:
    """A domain that exists. `domain`: None if it gets no segment; `fault`: why nothing is known."""

    server: str
    run: int
    running: bool
    domain: ServerDomain | None = None
    fault: str = ""


class ServerHypervisor(Hypervisor):
    """A connection to the libvirt of this hypervisor."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake`, in another thread, after each event of a domain, and when the link breaks."""

        def on_event(*_: Any) -> None:
            wake()

        kinds = ("LIFECYCLE", "DEVICE_REMOVED", "METADATA_CHANGE")
        with self._asking("cannot watch its domains"):
            self._link.registerCloseCallback(on_event, None)
            for kind in kinds:
                number = getattr(self._api, f"VIR_DOMAIN_EVENT_ID_{kind}")
                self._link.domainEventRegisterAny(None, number, on_event, None)

    def owner(self) -> tuple[int, int]:
        """Return user and group of QEMU."""
        found = re.fullmatch(r"\+?([0-9]+):\+?([0-9]+)", self.about().label)
        if found is None:
            raise BackendError(f"{self.uri}: libvirt names no user and group of QEMU by number")
        return int(found[1]), int(found[2])

    def servers(self) -> list[SeenServer]:
        """Return all domains that exist."""
        with self._asking("cannot list its domains"):
            domains = self._link.listAllDomains(self._api.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        return list(self._seen(domains))

    def _seen(self, domains: Sequence[Any]) -> Iterator[SeenServer]:
        for domain in domains:
            server = str(domain.UUIDString())
            try:
                state, run = domain.state()[0], domain.ID()
                document = domain.XMLDesc(0)
            except self._api.libvirtError as error:
                if error.get_error_code() == self._api.VIR_ERR_NO_DOMAIN:
                    # It has ended since then.
                    continue
                # Left out, it would lose its part while it runs.
                why = error.get_error_message()
                raise BackendError(f"{self.uri}: cannot read server {server}: {why}") from error
            if run < 0:
                continue
            seen = SeenServer(server, run, state in _RUNNING)
            try:
                found = read_server(document)
            except BackendError as error:
                yield replace(seen, fault=error.message)
                continue
            if found is not None and found.server != server:
                yield replace(seen, fault="its XML has another UUID")
                continue
            yield replace(seen, domain=found)

    def _find(self, server: str) -> Any:
        with self._asking(f"cannot find server {server}"):
            return self._link.lookupByUUIDString(server)

    def has(self, server: str, views: Sequence[SegmentView]) -> bool:
        """Whether the devices of all views are plugged in."""
        with _strange():
            names = self._named(self._find(server), _DEVICES)
        return all(view.device["id"] in names for view in views)

    def empty_ports(self, domain: ServerDomain) -> tuple[str, ...]:
        """Return the ports of a server that have no device, the last first."""
        with _strange():
            return empty_ports(self._monitor(self._find(domain.server), "query-pci"), domain.ports)

    def plug_in(self, server: str, views: Sequence[SegmentView], ports: Sequence[str]) -> None:
        """Plug in each view that is missing, at the first of the ports."""
        domain = self._find(server)
        with _strange():
            there = self._named(domain, _DEVICES)
        missing = [view for view in views if view.device["id"] not in there]
        if len(ports) < len(missing):
            raise BackendError(
                f"it has {len(ports)} empty PCIe root ports for {len(missing)} devices"
            )
        pairs = zip(missing, ports, strict=False)
        moved = [SegmentView(view.memory, {**view.device, "bus": port}) for view, port in pairs]
        with _strange():
            self.plug(str(domain.name()), moved)

    def ask_back(self, server: str, views: Sequence[SegmentView]) -> bool:
        """Ask the guest to let the devices go; returns whether all have gone. Does not wait."""
        domain = self._find(server)
        gone = True
        with _strange():
            devices, objects = self._named(domain, _DEVICES), self._named(domain, _OBJECTS)
            for view in views:
                if view.device["id"] in devices:
                    gone = False
                    # The guest may be busy with the last request.
                    with contextlib.suppress(BackendError):
                        self._monitor(domain, "device_del", id=view.device["id"])
                elif view.memory["id"] in objects:
                    self._monitor(domain, "object-del", id=view.memory["id"])
        return gone


@contextlib.contextmanager
def _strange() -> Iterator[None]:
    """A QEMU that its guest has taken over may answer anything: that ends no service."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise BackendError("its QEMU gives an answer of another form") from error
