# SPDX-License-Identifier: Apache-2.0
"""The guests of a cluster's servers: how the first login knows them, and how they become nodes.

    here                               Nova                     guest
    public key of the cluster   ──►    user data          ──►   config drive: root accepts it
    known_hosts                 ◄──    console of a server ◄──  public key of its sshd
    seed, unit, provider        ──────────── ssh as root  ──►   nearmetal-guest

No private key passes through Nova: each process of a machine may read the user data.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nearmetal.cluster.backends.openstack.arrival import (
    Arrival,
    GuestPlace,
    began_again,
    console_key,
    ipv4_of,
    places_of,
)
from nearmetal.cluster.backends.openstack.session import CloudSession, DeniedError
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.world import Catalog, World
from nearmetal.cluster.keys import known_hosts
from nearmetal.cluster.ssh_guests import (
    LOOK_S,
    NEVER,
    OTHER,
    GuestNode,
    SshGuests,
    deliver,
)
from nearmetal.cluster.ssh_nodes import Nodes, entry_failure, login_options
from nearmetal.core.errors import BackendError
from nearmetal.core.files import replace_file
from nearmetal.core.process import AT_ONCE, Command, Completed, Runner
from nearmetal.core.ssh import NO_CONFIG, Login
from nearmetal.image.seed import (
    FirstSeed,
    FirstSsh,
    Seed,
    SeedInterface,
    SeedNode,
    SeedUser,
    first_user_data,
)

_LINES = 400
"""Lines of a console that are read."""

_SEGMENT = "/run/nearmetal/segment.conf"
"""What the guest unit writes when it has found a segment."""

_ASKED = "cannot be asked by ssh for its segment"

_ENTER_S = 120.0
_RESTARTED = "its machine has started again, and what it had got is gone"


def first_interfaces(catalog: Catalog, ports: Iterable[Any]) -> Iterator[SeedInterface]:
    """Return the interfaces of a machine by its ports, with the first router that one of them has."""
    routed = False
    for port in ports:
        mac, fixed = str(port.mac_address).lower(), ipv4_of(port)
        if fixed is None:
            yield SeedInterface(mac=mac)
            continue
        subnet = catalog.subnet(str(fixed.get("subnet_id")))
        prefix = ipaddress.IPv4Network(subnet.cidr).prefixlen
        gateway = None if routed else subnet.gateway_ip or None
        routed = routed or gateway is not None
        yield SeedInterface(mac=mac, address=f"{fixed['ip_address']}/{prefix}", gateway=gateway)


class ServerGuests(SshGuests):
    """The guests of one cluster whose spec says that jobs enter its servers."""

    def __init__(
        self,
        spec: OpenstackSpec,
        session: CloudSession,
        directory: Path,
        runner: Runner,
        user: SeedUser | None = None,
    ) -> None:
        super().__init__(directory, runner)
        self.spec, self._session, self._user = spec, session, user
        self.specs = {node.name: (host.name, node) for host, node in spec.nodes}

    # The first boot

    def user_data(self, node: str, interfaces: Sequence[SeedInterface]) -> str:
        """Return the user data of a server, as Nova takes them."""
        first = FirstSeed(
            cluster=self.spec.name,
            name=node,
            interfaces=list(interfaces),
            ssh=FirstSsh(authorized_keys=[self._keys.pair("client").public]),
        )
        return base64.b64encode(first_user_data(first)).decode()

    # What was brought, and what should be there

    def _digest(self, places: Mapping[str, GuestPlace], node: str) -> str:
        """Return a digest of what a guest gets."""
        own = places[node]
        nodes = ((n, place.address, self.specs[n][1].slots) for n, place in places.items())
        return self._digest_of(nodes, own.address, own.mac)

    def records(self) -> dict[str, GuestNode]:
        """Return the prepared machines by node."""
        return self._records.read()

    def lacking(self, world: World) -> dict[str, str]:
        """Return the reason for each running server that is not prepared for jobs as it is now."""
        places, records, reasons = places_of(self.spec, world), self.records(), {}
        for node, place in places.items():
            if not place.runs:
                continue
            record = records.get(node)
            if record is None or record.machine != place.server:
                reasons[node] = NEVER
            elif self._is_other(record, places, node):
                reasons[node] = OTHER
            elif began_again(record, self._console_key(place.server)):
                reasons[node] = _RESTARTED
        return reasons

    def _is_other(self, record: GuestNode, places: Mapping[str, GuestPlace], node: str) -> bool:
        place = places[node]
        same = (record.address, record.through) == (place.reach, place.through)
        return not same or record.digest != self._digest(places, node)

    def incarnation(self, node: str, server: str) -> str:
        """Return the identity of a machine: one that keeps nothing has another after each start."""
        record = self.records().get(node)
        if record is None or record.machine != server or not record.first_key:
            return server
        return f"{server} {hashlib.sha256(record.first_key.encode()).hexdigest()[:16]}"

    def console(self, server: str, *, whole: bool = False) -> str:
        """Return the last lines of a console, or all that Nova has; raises DeniedError.

        "" where Nova has none, as for a machine that begins.
        """
        ask, length = self._session.sdk.compute.get_server_console_output, None if whole else _LINES
        try:
            with self._session.asking("reading a console"):
                return str((ask(server, length=length) or {}).get("output") or "")
        except DeniedError:
            raise
        except BackendError:
            return ""

    def _console_key(self, server: str) -> str:
        """Return the key that a console shows; "" if the user may not read it."""
        with suppress(DeniedError):
            return console_key(self.console(server))
        return ""

    # Reaching in

    def nodes(self) -> Nodes:
        """Return the prepared nodes; raises BackendError unless all of the spec are prepared."""
        records = self.records()
        for name in self.specs:
            if name not in records:
                raise BackendError(f"node {name}: {NEVER}", "run `nearmetal up` again")
        return self._reach({n: (one.address, one.through) for n, one in records.items()})

    def _reach(self, addresses: Mapping[str, tuple[str, str]]) -> Nodes:
        hosts = self._directory / "known_hosts"
        identity = self._directory / "keys" / "client"

        def gate(name: str) -> Login | None:
            if name not in addresses:
                return None
            options = login_options(identity, hosts, name)
            return Login(addresses[name][0], "root", config=NO_CONFIG, options=options)

        where = {name: (address, gate(by)) for name, (address, by) in addresses.items()}
        return Nodes(self._directory, where, self._runner)

    # Making nodes

    def make_nodes(self, look: Callable[[], World]) -> None:
        """Wait until all guests answer, and make nodes of those that are not yet.

        `look`: reads the objects of the cluster. Raises BackendError that names a guest that fails.
        """
        assert self.spec.ssh is not None  # noqa: S101 - else nothing is made a node
        arrival = Arrival(self, look, self.spec.ssh.timeout)
        (self._directory / "m").mkdir(mode=0o700, exist_ok=True)
        try:
            places = arrival.wait()
            fresh = arrival.first_keys
            records = self.records()
            lacking = [n for n in places if n in fresh or self._is_other(records[n], places, n)]
            gates = {place.through for place in places.values()}
            # The others are reached by these.
            self._make(places, [n for n in lacking if n in gates], fresh)
            self._make(places, [n for n in lacking if n not in gates], fresh)
        finally:
            self._trust({})

    def without_segment(
        self,
        names: Sequence[str],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[str]:
        """Wait until the guest units of these nodes have found a segment; returns those without.

        Segments come from another service, so a missing one is no failure. Raises BackendError if a
        node cannot be asked.
        """
        assert self.spec.ssh is not None  # noqa: S101 - else no guest is entered
        deadline, left = now() + self.spec.ssh.segment_timeout, list(names)
        while left:
            nodes = self.nodes()
            # As root: the user of jobs may be another, see `user`.
            looks = [nodes.command(name, ["test", "-s", _SEGMENT], root=True) for name in left]
            ends = self._runner.run_all(looks, timeout_s=_ENTER_S)
            lacking = [(n, end) for n, end in zip(left, ends, strict=True) if end.code != 0]
            left = [name for name, _ in lacking]
            if not left or now() >= deadline:
                for name, end in lacking:
                    if end.code != 1 or end.timed_out:
                        raise entry_failure(name, _ASKED, end.error_tail or "no answer")
                break
            sleep(LOOK_S)
        return left

    def try_logins(
        self, places: Mapping[str, GuestPlace], names: Sequence[str], keys: Mapping[str, str]
    ) -> list[Completed]:
        """Log in to these nodes as root, by the keys of nodes and these first keys."""
        self._trust(keys)
        nodes, identity = self._at(places), self._directory / "keys" / "client"
        logins = [Command(nodes.first_login(name, identity).argv("true")) for name in names]
        return self._runner.run_all(logins, timeout_s=_ENTER_S)

    def _at(self, places: Mapping[str, GuestPlace]) -> Nodes:
        return self._reach({n: (place.reach, place.through) for n, place in places.items()})

    def _trust(self, first_keys: Mapping[str, str]) -> None:
        """Write the keys of the nodes, and those of machines that are none yet."""
        lines = known_hosts(self._keys.host_keys(self.specs)) + known_hosts(first_keys)
        replace_file(self._directory / "known_hosts", lines, sync=False)

    def _make(
        self,
        places: Mapping[str, GuestPlace],
        lacking: Sequence[str],
        first_keys: Mapping[str, str],
    ) -> None:
        identity = str(self._directory / "keys" / "client")
        nodes = self._at(places)
        for first in range(0, len(lacking), AT_ONCE):
            some = lacking[first : first + AT_ONCE]
            with self._session.asking("reading the ports"):
                seeds = {n: self._seed(places, n) for n in some}
            deliver(nodes, identity, seeds, self._parts)
            known = self.records()
            made = {
                node: GuestNode(
                    machine=places[node].server,
                    address=places[node].reach,
                    digest=self._digest(places, node),
                    through=places[node].through,
                    first_key=first_keys.get(node) or known[node].first_key,
                )
                for node in some
            }
            self._records.write({n: r for n, r in known.items() if n in self.specs} | made)

    def _seed(self, places: Mapping[str, GuestPlace], node: str) -> Seed:
        keys, own = self._keys.host_keys(places), places[node]
        return Seed(
            cluster=self.spec.name,
            name=node,
            nodes=[
                SeedNode(
                    name=name,
                    address=place.address,
                    slots=self.specs[name][1].slots,
                    host=self.specs[name][0],
                    ssh_host_key=keys[name],
                )
                for name, place in places.items()
            ],
            interfaces=[SeedInterface(mac=own.mac, address=f"{own.address}/32", keep=True)],
            ssh=self._keys.seed_ssh(node),
            user=self._user,
        )
