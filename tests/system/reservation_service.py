# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Blazar, by the form of its API (version 1): a lease makes a flavor, as Blazar does.

Its place in the catalogue, the tokens and the flavors are real.
"""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.openstack_cloud import RealCloud

_FORMAT = "%Y-%m-%d %H:%M"


@dataclass
class Reservations:
    """The leases. A new one is PENDING for two answers."""

    admin: Any
    project: str
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    prolonged: list[dict[str, Any]] = field(default_factory=list)

    def make(self, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(body)
        assert body["start_date"] == "now"
        assert datetime.strptime(body["end_date"], _FORMAT).replace(tzinfo=UTC) > datetime.now(UTC)
        assert body["name"] not in {lease["name"] for lease in self.leases.values()}
        (wanted,) = body["reservations"]
        identity, reservation = str(uuid.uuid4()), str(uuid.uuid4())
        flavor = self.admin.compute.create_flavor(
            id=reservation,
            name=f"reservation:{reservation}",
            vcpus=wanted["vcpus"],
            ram=wanted["memory_mb"],
            disk=wanted["disk_gb"],
            is_public=False,
        )
        self.admin.compute.flavor_add_tenant_access(flavor, self.project)
        made = {
            "id": identity,
            "name": body["name"],
            "status": "PENDING",
            "reservations": [{**wanted, "id": reservation, "flavor_id": reservation}],
            "looks": 0,
        }
        self.leases[identity] = made
        return made

    def all(self) -> list[dict[str, Any]]:
        for lease in self.leases.values():
            lease["looks"] += 1
            lease["status"] = "ACTIVE" if lease["looks"] > 2 else "PENDING"
        return [*self.leases.values()]

    def remove(self, identity: str) -> bool:
        lease = self.leases.pop(identity, None)
        if lease is not None:
            self.admin.compute.delete_flavor(lease["reservations"][0]["id"])
        return lease is not None


def _handler(leases: Reservations) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self, code: int, content: Any = None) -> None:
            data = b"" if content is None else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            known = self.path == "/v1/leases" and self.headers.get("X-Auth-Token")
            self._answer(200, {"leases": leases.all()}) if known else self._answer(404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(201, {"lease": leases.make(body)})

        def do_PUT(self) -> None:
            found = leases.leases[self.path.removeprefix("/v1/leases/")]
            leases.prolonged.append(
                json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            )
            self._answer(200, {"lease": found})

        def do_DELETE(self) -> None:
            found = leases.remove(self.path.removeprefix("/v1/leases/"))
            self._answer(204 if found else 404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def reservation_service(cloud: RealCloud) -> Iterator[Reservations]:
    """Run the service, with its place in the catalogue of the cloud."""
    admin = cloud.connected("admin")
    leases = Reservations(admin, cloud.connected().current_project_id)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(leases)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        kind = admin.identity.create_service(name="blazar", type="reservation")
        try:
            for interface in ("public", "internal"):
                admin.identity.create_endpoint(
                    service_id=kind.id,
                    interface=interface,
                    url=f"http://127.0.0.1:{server.server_port}/v1",
                    region_id="RegionOne",
                )
            yield leases
        finally:
            admin.identity.delete_service(kind)
            server.shutdown()
            thread.join()
