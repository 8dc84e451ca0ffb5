# SPDX-License-Identifier: Apache-2.0
"""The wait for the guests of servers: where they are, what their consoles say, the first logins."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nearmetal.cluster.backends.openstack.session import BusyError, DeniedError
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.world import BUSY, RUNS, World
from nearmetal.cluster.ssh_guests import LOGIN_S, LOOK_S, GuestNode
from nearmetal.cluster.ssh_nodes import NO_WAY, OTHER_KEY, entry_failure
from nearmetal.core.errors import BackendError
from nearmetal.core.process import Completed
from nearmetal.core.text import printable
from nearmetal.image.seed import FAILED_MARK, KEY_MARK

CONSOLE_LINES = 8
"""Lines of a console that an error shows."""

_WIDTH = 160
_KEY = re.compile(rf"{KEY_MARK} (ssh-ed25519 [A-Za-z0-9+/]{{68}})(?![A-Za-z0-9+/=])")
_FAILED = re.compile(rf"{FAILED_MARK} [^\n]*")

_ENTER = "cannot be entered by ssh as root"

_REACH = (
    f"{NO_WAY}: give a node `floating: true`, and allow ssh in the default security group of the "
    "project"
)
_IMAGE = (
    "use an image with cloud-init and sshd, or one of `nearmetal image build --disk`; the next "
    "`nearmetal up` waits again, up to `ssh: {timeout: ...}`"
)
_AGAIN = "run `nearmetal up` again: it starts a server that is off, and recreates a lost one"
_CONSOLE = "the first login needs the key on its console: ask for the right to read consoles"


def console_key(text: str) -> str:
    """Return the key of sshd that a console shows last; "" for none. Pure."""
    found = _KEY.findall(text)
    return str(found[-1]) if found else ""


def console_failure(text: str) -> str:
    """Return what the guest unit says of its failure; "" for nothing. Pure."""
    found = _FAILED.findall(text)
    return printable(found[-1].strip())[: 2 * _WIDTH] if found else ""


def console_end(text: str) -> str:
    """Return the last lines of a console, for an error. Pure."""
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    shown = [f"    {printable(line)[:_WIDTH]}" for line in lines[-CONSOLE_LINES:]]
    return "\n".join(shown) or "    (nothing)"


@dataclass(frozen=True)
class GuestPlace:
    """Where a guest is: its server, its own address, and the address for logins from here.

    `through`: the node that forwards logins; "" for none.
    """

    server: str
    runs: bool
    mac: str
    address: str
    reach: str
    through: str = ""


def ipv4_of(port: Any) -> Mapping[str, Any] | None:
    """Return the first IPv4 address of a port, with its subnet; None for none. Pure."""
    for one in (port.fixed_ips if port is not None else None) or ():
        with suppress(LookupError, TypeError, ValueError):
            ipaddress.IPv4Address(one["ip_address"])
            return dict(one)
    return None


def places_of(spec: OpenstackSpec, world: World) -> dict[str, GuestPlace]:
    """Return the places of the nodes that have a server. Pure.

    Without a floating address, a node is reached through the first node that has one.
    """
    found: dict[str, GuestPlace] = {}
    for _, node in spec.nodes:
        server = world.servers.get(node.name)
        port = world.ports.get((node.name, spec.networks[0].name))
        fixed = ipv4_of(port)
        if server is None or port is None or fixed is None:
            continue
        own = str(fixed["ip_address"])
        reach = floating_of(world, node.name) or own
        mac, runs = str(port.mac_address).lower(), server.status in RUNS
        found[node.name] = GuestPlace(str(server.id), runs, mac, own, reach)
    gate = next((name for name, place in found.items() if place.reach != place.address), "")
    return {
        name: replace(place, through=gate) if place.reach == place.address else place
        for name, place in found.items()
    }


def floating_of(world: World, node: str) -> str:
    """Return the floating address of a node; "" for none."""
    for floating in world.floating.get(node, ()):
        if floating.floating_ip_address and floating.port_id:
            return str(floating.floating_ip_address)
    return ""


def began_again(record: GuestNode, key: str) -> bool:
    """Whether a machine has made another key since. Its line may have left the console. Pure."""
    return key not in {"", record.first_key}


class Entrance(Protocol):
    """What a wait needs of the guests."""

    spec: OpenstackSpec

    def records(self) -> Mapping[str, GuestNode]:
        """Return the prepared machines by node."""

    def console(self, server: str, *, whole: bool = False) -> str:
        """Return the last lines of a server's console, or all; raises DeniedError."""

    def close(self, node: str) -> None:
        """End kept connections to a guest."""

    def try_logins(
        self, places: Mapping[str, GuestPlace], names: Sequence[str], keys: Mapping[str, str]
    ) -> Sequence[Completed]:
        """Log in to these nodes as root, by the keys of nodes and these first keys."""


class Arrival:
    """One wait for the guests of a cluster. `first_keys`: the keys of machines that are no nodes."""

    def __init__(
        self,
        guests: Entrance,
        look: Callable[[], World],
        limit_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._guests, self._look, self._limit_s = guests, look, limit_s
        self._now, self._sleep = now, sleep
        self.first_keys: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._consoles: dict[str, str] = {}
        self._since: dict[str, float] = {}
        """When the first login of each node failed."""
        self._hints: dict[str, str] = {}
        self._entered_before: set[str] = set()

    def wait(self) -> dict[str, GuestPlace]:
        """Return the places of all nodes when root can enter all of them."""
        spec = self._guests.spec
        deadline, entered = self._now() + self._limit_s, set[str]()
        while True:
            left = [node.name for _, node in spec.nodes if node.name not in entered]
            try:
                places = self._places(self._look())
            except BusyError:
                # The question has no effect, so it is repeated.
                if self._now() > deadline:
                    raise
                self._sleep(LOOK_S)
                continue
            ready = [name for name in left if self._is_known(name, places[name])]
            # A node that forwards logins must answer first.
            ready = [name for name in ready if places[name].through in {"", *entered}]
            entered |= self._enter(places, ready)
            left = [name for name in left if name not in entered]
            if not left:
                return places
            if self._now() > deadline:
                lines = "".join(f"\n{self._late(name)}" for name in left)
                late = f"guests do not answer after {self._limit_s:g} s:{lines}"
                hints = (self._hints[name] for name in left if self._hints.get(name))
                raise BackendError(late, next(hints, _IMAGE))
            self._sleep(LOOK_S)

    def _places(self, world: World) -> dict[str, GuestPlace]:
        """Return the places of all nodes; raises BackendError if waiting does not give one."""
        spec = self._guests.spec
        places = places_of(spec, world)
        for _, node in spec.nodes:
            server = world.servers.get(node.name)
            if server is None:
                raise BackendError(f"node {node.name}: its server was removed meanwhile", _AGAIN)
            if server.status not in {*RUNS, *BUSY}:
                state = printable(str(server.status))
                raise BackendError(f"node {node.name}: its server is in state {state}", _AGAIN)
            if node.name not in places:
                first = spec.networks[0].name
                why = f"its port in network {first} has no IPv4 address"
                raise BackendError(f"node {node.name}: {why}", f"give {first} an IPv4 subnet")
        return places

    def _late(self, name: str) -> str:
        why = self._reasons.get(name, "the node that forwards logins does not answer")
        end = console_end(self._consoles.get(name, ""))
        return f"  node {name}: {why}; the end of its console:\n{end}"

    def _is_known(self, name: str, place: GuestPlace) -> bool:
        """Whether the key of a node is known, by its record or by its console."""
        if not place.runs:
            self._reasons[name] = "its server does not run"
            return False
        record = self._guests.records().get(name)
        before = record is not None and record.machine == place.server
        try:
            # The line of a machine that began long ago may be far above.
            whole = not before and name not in self._consoles
            whole = whole or OTHER_KEY in self._reasons.get(name, "")
            text = self._consoles[name] = self._guests.console(place.server, whole=whole)
        except DeniedError as error:
            if not before:
                raise BackendError(f"node {name}: {error.message}", _CONSOLE) from error
            text = ""
        key = console_key(text)
        if record is not None and before and not began_again(record, key):
            self._entered_before.add(name)
            self._reasons.pop(name, None)
            return True
        if key:
            if self.first_keys.get(name) != key:
                self._guests.close(name)
            self.first_keys[name] = key
            self._reasons.pop(name, None)
            return True
        if why := console_failure(text):
            raise BackendError(f"node {name}: its console says: {why}", _IMAGE)
        self._reasons[name] = "it has not shown the key of its sshd"
        return False

    def _enter(self, places: Mapping[str, GuestPlace], names: Sequence[str]) -> set[str]:
        """Log in to these nodes; returns those that answer."""
        if not names:
            return set()
        began = self._now()
        ends = self._guests.try_logins(places, names, self.first_keys)
        return {name for name, end in zip(names, ends, strict=True) if self._came(name, end, began)}

    def _came(self, name: str, end: Completed, began: float) -> bool:
        """Whether a login ended well; raises BackendError if waiting does not help."""
        if end.code == 0 and not end.timed_out:
            return True
        late = "no answer" if end.timed_out else f"exit code {end.code}"
        error = entry_failure(name, _ENTER, end.error_tail or late)
        self._reasons[name] = error.message.partition(": ")[2]
        hint = self._hints[name] = _REACH if error.hint == NO_WAY else error.hint
        since = self._since.setdefault(name, began)
        # A key on the console may be of the start before, and a node that was entered before may
        # have just started.
        waits = OTHER_KEY in error.message or name in self._entered_before
        waits = waits or self._now() - since < LOGIN_S
        if "Permission denied" in error.message or not waits:
            raise BackendError(error.message, hint)
        return False
