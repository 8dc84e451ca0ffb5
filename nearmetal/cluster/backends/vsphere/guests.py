# SPDX-License-Identifier: Apache-2.0
"""The guests of a cluster's machines: their first login, their addresses, and how they become nodes.

    here                                vCenter                       guest
    public key of the cluster    ──►    guestinfo.userdata     ──►    cloud-init: root accepts it
    known_hosts                  ◄──    guestinfo.nearmetal…   ◄──    public key of its sshd
    seed, unit, provider         ───────────────  ssh as root  ──►    nearmetal-guest

No private key passes through vCenter, where other users may read a machine's configuration. The
first login trusts the key that the guest published there, or the key in the spec; later logins trust
the key that the first one brought. `guests.json` says which machine got what.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nearmetal.cluster.backends.vsphere.machine import USER_DATA
from nearmetal.cluster.backends.vsphere.marks import Found
from nearmetal.cluster.backends.vsphere.settings import DHCP, HOST_KEY_PATTERN
from nearmetal.cluster.backends.vsphere.spec import SshAccess, VsphereNode, VsphereSpec
from nearmetal.cluster.keys import known_hosts
from nearmetal.cluster.ssh_guests import (
    LOOK_S,
    NEVER,
    OTHER,
    GuestNode,
    SshGuests,
    deliver,
    until_entered,
)
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.core.errors import BackendError
from nearmetal.core.files import replace_file
from nearmetal.core.process import AT_ONCE, Command, Runner
from nearmetal.host.vcenter.session import Properties
from nearmetal.image.seed import Seed, SeedInterface, SeedNode, cloud_config

BOOT_S = 900.0
"""Limit of the time until all guests have an address: the first boot of a large machine is slow."""

ADDRESSES = ("guest.ipAddress", "guest.net")
"""Properties that VMware Tools fill."""

HOST_KEY = "guestinfo.nearmetal.host-key"
PUBLISH = (
    "key=$(cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub) && "
    f'vmware-rpctool "info-set {HOST_KEY} $key"'
)
"""The command by which a guest publishes the key of its sshd."""

_NO_ADDRESS = "VMware Tools report no IPv4 address, or not that of the spec"


@dataclass(frozen=True)
class GuestAddress:
    """The address by which a guest is reached, as `10.1.0.11/24`, and the MAC address of its card."""

    interface: str
    mac: str

    @property
    def ip(self) -> str:
        """The address alone."""
        return self.interface.partition("/")[0]


def address_of(found: Properties, wanted: str = "") -> GuestAddress | None:
    """Return the address of a guest as its tools report it; None for none. Pure.

    `wanted`: the address of the spec, "" or `dhcp` for none. Only this one counts: a guest that is
    not customized yet may still have the address of its template. Of a guest whose own choice is an
    address of version 6, the first one of version 4 counts.
    """
    fixed = "" if wanted == DHCP else wanted.partition("/")[0]
    text = fixed or str(found.get("guest.ipAddress") or "")
    cards = found.get("guest.net") or []
    if not fixed and ":" in text:
        text = next((a for card in cards for a in card.ipAddress or [] if _is_routed(a)), "")
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return None
    for card in cards:
        mac = str(card.macAddress or "").lower()
        if text in (card.ipAddress or []) and re.fullmatch("[0-9a-f]{2}(:[0-9a-f]{2}){5}", mac):
            return GuestAddress(f"{text}/{_prefix(card, text)}", mac)
    return None


def _is_routed(text: str) -> bool:
    try:
        ip = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return not (ip.is_link_local or ip.is_loopback)


def _prefix(card: Any, address: str) -> int:
    several = card.ipConfig.ipAddress if card.ipConfig else []
    lengths = [int(one.prefixLength or 0) for one in several if one.ipAddress == address]
    return lengths[0] if lengths and 0 < lengths[0] <= ipaddress.IPV4LENGTH else 32


def published_key(found: Properties) -> str:
    """Return the key of sshd that a guest published; "" for none, or for another text. Pure."""
    options = found.get("config.extraConfig") or []
    text = next((str(option.value) for option in options if option.key == HOST_KEY), "")
    return text if re.fullmatch(HOST_KEY_PATTERN, text) else ""


class Guests(SshGuests):
    """The guests of one cluster whose spec says how to log in to them."""

    def __init__(
        self, spec: VsphereSpec, access: SshAccess, directory: Path, runner: Runner
    ) -> None:
        super().__init__(directory, runner)
        self._spec, self._access = spec, access
        self._wanted = spec.guest_addresses()
        self._lock = threading.Lock()

    # The first boot

    def first_boot(self, node: str) -> dict[str, str]:
        """Return the extra configuration that a machine needs before its first boot."""
        if self._access.identity is not None:
            return {}
        with self._lock:  # several machines are made at the same time
            key = self._keys.pair("client").public
        instance = hashlib.sha256(f"{self._spec.name} {node} {key}".encode()).hexdigest()[:16]
        meta = {"instance-id": f"nearmetal-{instance}", "local-hostname": node}
        texts = {
            "guestinfo.metadata": json.dumps(meta).encode(),
            USER_DATA: cloud_config([key], PUBLISH),
        }
        options = {key: base64.b64encode(text).decode() for key, text in texts.items()}
        return options | {f"{key}.encoding": "base64" for key in texts}

    # What was brought, and what should be there

    @cached_property
    def _on(self) -> dict[str, tuple[str, VsphereNode]]:
        """The nodes that should run: the host of each in the spec, and the node."""
        machine = self._spec.machine_of
        return {n.name: (h.name, n) for h, n in self._spec.nodes if machine(n).power == "on"}

    def address(self, node: str, found: Properties) -> GuestAddress | None:
        """Return the address of a node as its tools report it."""
        return address_of(found, self._wanted.get(node, ""))

    def _addresses(self, found: Mapping[str, Found]) -> dict[str, GuestAddress]:
        pairs = ((n, self.address(n, m.properties)) for n, m in found.items() if n in self._on)
        return {node: address for node, address in pairs if address is not None}

    def _digest(self, ips: Mapping[str, str], own: GuestAddress) -> str:
        """Return a digest of what a guest gets. `ips`: the addresses of all nodes."""
        nodes = ((name, ip, self._on[name][1].slots) for name, ip in ips.items())
        return self._digest_of(nodes, own.ip, own.mac)

    def lacking(self, found: Mapping[str, Found]) -> dict[str, str]:
        """Return the reason for each running machine that is not prepared for jobs as it is now."""
        places, records = self._addresses(found), self._records.read()
        # A guest that restarts has no address for a while: the others need not care.
        same = {
            n: r for n, r in records.items() if n in found and r.machine == found[n].incarnation
        }
        ips = {name: record.address for name, record in same.items() if name in self._on}
        ips |= {name: place.ip for name, place in places.items()}
        reasons = {}
        for node in (node for node in self._on if node in found):
            if node not in places:
                reasons[node] = _NO_ADDRESS
            elif node not in same:
                reasons[node] = NEVER
            elif same[node].digest != self._digest(ips, places[node]):
                reasons[node] = OTHER
        return reasons

    # Reaching in

    def nodes(self) -> Nodes:
        """Return the prepared nodes; raises BackendError unless all of the spec are prepared."""
        records = self._records.read()
        for _, node in self._spec.nodes:
            if node.name not in self._on:
                raise BackendError(f"node {node.name} is off", "jobs need all nodes: power: on")
            if node.name not in records:
                raise BackendError(f"node {node.name}: {NEVER}", "run `nearmetal up` again")
        return self._reach({name: record.address for name, record in records.items()})

    def _reach(self, addresses: Mapping[str, str]) -> Nodes:
        where = {name: (address, None) for name, address in addresses.items()}
        return Nodes(self._directory, where, self._runner)

    # Making nodes

    def make_nodes(self, look: Callable[[], Mapping[str, Found]]) -> None:
        """Wait until all guests have an address, and make nodes of those that are not yet.

        `look`: reads the machines by node. Raises BackendError that names the guests that fail.
        """
        found = self._wait(look)
        lacking = list(self.lacking(found))
        if not lacking:
            return
        (self._directory / "m").mkdir(mode=0o700, exist_ok=True)
        # A job may run over a connection to a machine that is a node already.
        known = {node: record.machine for node, record in self._records.read().items()}
        fresh = [node for node in lacking if known.get(node) != found[node].incarnation]
        for node in fresh:
            self.close(node)
        places = self._addresses(found)
        lines = known_hosts(self._keys.host_keys(places))
        # Who knows the key of the template must not pass for a node that has its own.
        first_keys = {node: self._key_of(found[node].properties) for node in fresh}
        ips = {node: address.ip for node, address in places.items()}
        nodes = self._reach(ips)
        replace_file(nodes.known_hosts, lines + known_hosts(first_keys), sync=False)
        try:
            self._make(nodes, places, lacking, found)
        finally:
            replace_file(nodes.known_hosts, lines, sync=False)

    def _make(
        self,
        nodes: Nodes,
        places: Mapping[str, GuestAddress],
        lacking: Sequence[str],
        found: Mapping[str, Found],
    ) -> None:
        ips = {node: address.ip for node, address in places.items()}
        for first in range(0, len(lacking), AT_ONCE):
            some = lacking[first : first + AT_ONCE]
            self._deliver(nodes, places, some)
            made = {
                node: GuestNode(
                    machine=found[node].incarnation,
                    address=places[node].ip,
                    digest=self._digest(ips, places[node]),
                )
                for node in some
            }
            self._records.write(
                {n: r for n, r in self._records.read().items() if n in self._on} | made
            )

    def _key_of(self, found: Properties) -> str:
        return self._access.host_key or published_key(found)

    def _wait(self, look: Callable[[], Mapping[str, Found]]) -> Mapping[str, Found]:
        """Return the machines when all that should run can be entered."""
        deadline = time.monotonic() + BOOT_S
        while True:
            found = look()
            missing = {node: reason for node in self._on if (reason := self._missing(node, found))}
            if not missing:
                return found
            if time.monotonic() > deadline:
                listed = "; ".join(f"node {node}: {reason}" for node, reason in missing.items())
                raise BackendError(
                    f"guests are not reachable after {BOOT_S:.0f} s: {listed}",
                    "look at their consoles in vCenter; nearmetal-spec(5), `ssh`, has the needs of "
                    "the template",
                )
            time.sleep(LOOK_S)

    def _missing(self, node: str, found: Mapping[str, Found]) -> str:
        """Return what a guest lacks to be entered; "" for nothing."""
        machine = found.get(node)
        if machine is None:
            return "it is not there"
        if self.address(node, machine.properties) is None:
            return _NO_ADDRESS
        record = self._records.read().get(node)
        known = record is not None and record.machine == machine.incarnation
        if known or self._key_of(machine.properties):
            return ""
        return f"it has not published the key of its sshd as {HOST_KEY}"

    def _deliver(
        self, nodes: Nodes, places: Mapping[str, GuestAddress], some: Sequence[str]
    ) -> None:
        """Bring unit, provider and seed, and start the unit."""
        identity = self._access.identity or str(self._directory / "keys" / "client")
        logins = {node: nodes.first_login(node, identity) for node in some}
        # A guest publishes its key before its sshd starts.
        first = {node: Command(login.argv("true")) for node, login in logins.items()}
        until_entered(nodes, first, "cannot be entered by ssh as root")
        deliver(nodes, identity, {node: self._seed(places, node) for node in some}, self._parts)

    def _seed(self, places: Mapping[str, GuestAddress], node: str) -> Seed:
        keys, own = self._keys.host_keys(places), places[node]
        return Seed(
            cluster=self._spec.name,
            name=node,
            nodes=[
                SeedNode(
                    name=name,
                    address=places[name].ip,
                    slots=one.slots,
                    host=host,
                    ssh_host_key=keys[name],
                )
                for name, (host, one) in self._on.items()
                if name in places
            ],
            interfaces=[SeedInterface(mac=own.mac, address=own.interface, keep=True)],
            ssh=self._keys.seed_ssh(node),
        )
