# SPDX-License-Identifier: Apache-2.0
"""Leases of Blazar, against the published form of its API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import requests

pytest.importorskip("openstack")

from keystoneauth1 import access
from keystoneauth1 import exceptions as auth_faults
from keystoneauth1.identity.access import AccessInfoPlugin
from keystoneauth1.session import Session
from openstack.connection import Connection

from nearmetal.cluster.backends.openstack.leases import Lease, LeasedRoom, Leases, read_lease
from nearmetal.cluster.backends.openstack.session import BusyError, CloudSession, accepted
from nearmetal.core.errors import BackendError

ID, FLAVOR = "6ee55c78-ac52-41a6-99af-2d2d73bcc466", "ddc45423-f863-4e4e-8e7a-51d27cfec962"
CLOCK = datetime(2026, 1, 2, 23, 30, tzinfo=UTC)
ROOM = LeasedRoom(2, 2, 4096, 20, together=True)
NAME = "nearmetal-demo-0123456789abcdef"


def lease(status: str = "ACTIVE", **values: Any) -> dict[str, Any]:
    """Return a lease as the API's documentation shows it, without the fields that are not read."""
    hosts = {"id": "087bc740-6d2d-410b-9d47-c7b2b55a9d36", "resource_type": "physical:host"}
    room = {
        "id": FLAVOR,
        "lease_id": ID,
        "status": status.lower(),
        "resource_type": "virtual:instance",
        "amount": 2,
        "affinity": True,
        "flavor_id": FLAVOR,
    }
    return {"id": ID, "name": NAME, "status": status, "reservations": [hosts, room], **values}


def answer(code: int, document: Any = None) -> requests.Response:
    """Return an answer of HTTP."""
    made = requests.Response()
    made.status_code, made.reason, made.url = code, "refused", "http://blazar/v1"
    made.request = requests.Request("GET", made.url).prepare()
    made._content = b"" if document is None else json.dumps(document).encode()
    made.headers["Content-Type"] = "application/json"
    return made


class Service:
    """A service that notes requests, and gives its answers one after another."""

    def __init__(self, *answers: requests.Response) -> None:
        self.answers, self.requests = [*answers], list[tuple[str, str, Any]]()

    def __getattr__(self, method: str) -> Any:
        def ask(url: str, json: Any = None) -> requests.Response:
            self.requests.append((method, url, json))
            return self.answers.pop(0)

        return ask


def leases(
    service: Service, address: str | None = "http://blazar/v1", login: tuple[str, ...] = ()
) -> Leases:
    session = CloudSession("lab")
    config = SimpleNamespace(
        get_session_endpoint=lambda _kind: address,
        get_auth_args=lambda: dict.fromkeys(("auth_url", *login), "x"),
    )
    session.__dict__["sdk"] = SimpleNamespace(reservation=service, config=config)
    ticks = iter(range(0, 100_000, 100))
    return Leases(session, now=lambda: float(next(ticks)), sleep=lambda _s: None)


def listed(*found: dict[str, Any]) -> requests.Response:
    return answer(200, {"leases": [lease(name="other", id=FLAVOR), *found]})


def test_a_cloud_without_the_service_offers_none() -> None:
    assert leases(Service()).offered()
    assert not leases(Service(), None).offered()


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://b/v1", "http://b/v1/leases"),
        ("http://b/v1/", "http://b/v1/leases"),
        ("http://b/reservation", "http://b/reservation/v1/leases"),
    ],
)
def test_version_1_is_asked_for_a_lease_in_its_form(address: str, url: str) -> None:
    service = Service(listed(), answer(201, {"lease": lease("PENDING")}), listed(lease()))
    found = leases(service, address).take(NAME, ROOM, 120, CLOCK)
    assert found == Lease(ID, "ACTIVE", FLAVOR)
    assert [request[:2] for request in service.requests] == [
        ("get", url),
        ("post", url),
        ("get", url),
    ]
    assert service.requests[1][2] == {
        "name": NAME,
        "start_date": "now",
        "end_date": "2026-01-03 01:30",
        "reservations": [
            {
                "resource_type": "virtual:instance",
                "amount": 2,
                "vcpus": 2,
                "memory_mb": 4096,
                "disk_gb": 20,
                "affinity": True,
                "resource_properties": "",
            }
        ],
        "events": [],
    }


@pytest.mark.parametrize("states", [["STARTING", "ACTIVE"], ["ACTIVE"]])
def test_a_lease_of_an_interrupted_demo_is_used_again_for_the_whole_time(states: list[str]) -> None:
    looks = (listed(lease(status)) for status in states)
    service = Service(*looks, answer(200, {"lease": lease()}))
    assert leases(service).take(NAME, ROOM, 120, CLOCK).status == "ACTIVE"
    *seen, last = service.requests
    assert {method for method, *_ in seen} == {"get"}
    assert last == ("put", f"http://blazar/v1/leases/{ID}", {"end_date": "2026-01-03 01:30"})


@pytest.mark.parametrize(
    ("together", "code", "reason", "hint"),
    [
        (True, 400, "Malformed parameter affinity (only affinity = False is supported)", "--apart"),
        (True, 500, "Not enough hosts available", "try later, with --apart, or"),
        (False, 500, "Not enough hosts available", "try later, or with a smaller --flavor"),
        (False, 400, "affinity", "the operator of the cloud"),
        (True, 400, "Lease duration of 7200 seconds must be less", "the operator of the cloud"),
        (True, 404, "No Freepool found", "the operator of the cloud"),
        (True, 403, "Policy doesn't allow blazar:leases:post", "the operator of the cloud"),
    ],
)
def test_a_refused_lease_has_a_remedy_that_fits(
    *, together: bool, code: int, reason: str, hint: str
) -> None:
    service = Service(listed(), answer(code, {"error_code": code, "error_message": reason}))
    with pytest.raises(BackendError, match="making a lease") as caught:
        leases(service).take(NAME, replace(ROOM, together=together), 120, CLOCK)
    assert hint in caught.value.hint
    assert type(caught.value) is BackendError


@pytest.mark.parametrize(
    ("login", "password"),
    [
        ("username", False),
        ("application_credential_id", True),
        ("application_credential_name", True),
    ],
)
def test_a_service_that_fails_may_need_another_login(login: str, *, password: bool) -> None:
    failure = answer(500, {"error_code": 500, "error_message": "Internal Server Error"})
    service = Service(listed(), failure)
    with pytest.raises(BusyError, match="making a lease") as caught:
        leases(service, login=(login,)).take(NAME, ROOM, 120, CLOCK)
    assert "repeat the command" in caught.value.hint
    assert ("a log-in with a password" in caught.value.hint) == password


def test_a_login_that_is_refused_has_its_own_remedy() -> None:
    class Expired(Service):
        def __getattr__(self, method: str) -> Any:
            if method == "post":
                raise auth_faults.Unauthorized
            return super().__getattr__(method)

    with pytest.raises(BackendError) as refused:
        leases(Expired(listed())).take(NAME, ROOM, 120, CLOCK)
    assert refused.value.hint == "correct `lab` in clouds.yaml"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (500, "Not enough hosts available"),
        (409, "Instance reservation doesn't allow to reduce/replace reserved instance slots"),
        (400, "Lease duration of 9000 seconds must be less than or equal to the maximum"),
    ],
)
def test_a_lease_that_cannot_last_longer_is_to_be_ended(code: int, reason: str) -> None:
    refusal = answer(code, {"error_code": code, "error_message": reason})
    with pytest.raises(BackendError, match="prolonging a lease") as caught:
        leases(Service(listed(lease()), refusal)).take(NAME, ROOM, 120, CLOCK)
    assert type(caught.value) is BackendError
    assert "nearmetal demo --cloud lab --remove" in caught.value.hint


@pytest.mark.parametrize("status", ["TERMINATED", "ERROR"])
def test_a_lease_that_has_ended_is_replaced(status: str) -> None:
    service = Service(listed(lease(status)), answer(204), answer(201, {"lease": lease()}))
    leases(service).take(NAME, ROOM, 120, CLOCK)
    assert service.requests[1][:2] == ("delete", f"http://blazar/v1/leases/{ID}")
    assert service.requests[2][0] == "post"


def test_a_cloud_without_room_says_so() -> None:
    service = Service(
        listed(), answer(409, {"error_code": 409, "error_message": "Not enough hosts available"})
    )
    with pytest.raises(BackendError, match=r"making a lease: .*Not enough hosts available"):
        leases(service).take(NAME, ROOM, 120, CLOCK)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([listed(lease("ERROR"))], "is ERROR"),
        ([listed()], "was removed meanwhile"),
        ([listed(lease("PENDING"))] * 9, "still PENDING after 300 s"),
    ],
)
def test_a_lease_that_does_not_start_is_named(answers: list[requests.Response], words: str) -> None:
    service = Service(listed(), answer(201, {"lease": lease("PENDING")}), *answers)
    with pytest.raises(BackendError, match=words):
        leases(service).take(NAME, ROOM, 120, CLOCK)


def test_only_leases_of_the_name_are_removed_and_a_lost_one_is_no_error() -> None:
    service = Service(listed(lease()), answer(404, {}))
    assert leases(service).remove(NAME) == 1
    assert service.requests[1] == ("delete", f"http://blazar/v1/leases/{ID}", None)


REFUSED = (500, {"error_code": 500, "error_message": "Invalid lease status."})


@pytest.mark.parametrize(
    ("first", "looks"),
    [
        # It rests, but it changed when it was to be removed.
        ("PENDING", [[lease("ACTIVE")]]),
        ("PENDING", [[lease("STARTING")], [lease("STARTING")], [lease("ACTIVE")]]),
        ("CREATING", [[lease("PENDING")]]),
        ("DELETING", [[lease("DELETING")], []]),
    ],
)
def test_a_lease_that_blazar_changes_is_removed_after_that(
    first: str, looks: list[list[dict[str, Any]]]
) -> None:
    answers = [one for look in looks for one in (answer(*REFUSED), listed(*look))]
    service = Service(listed(lease(first)), *answers, *([answer(204)] if looks[-1] else []))
    assert leases(service).remove(NAME) == 1
    assert service.answers == []
    assert {url for method, url, _ in service.requests if method == "delete"} == {
        f"http://blazar/v1/leases/{ID}"
    }


@pytest.mark.parametrize(("status", "most"), [("ACTIVE", 1), ("ERROR", 1), ("STARTING", 9)])
def test_a_lease_that_blazar_does_not_remove_is_an_error(status: str, most: int) -> None:
    look = listed(lease(status))
    service = Service(look, *(one for _ in range(most) for one in (answer(*REFUSED), look)))
    with pytest.raises(BusyError, match="removing a lease: Invalid lease status"):
        leases(service).remove(NAME)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../../servers"},
        {"id": None},
        {"status": 1},
        {"reservations": None},
        {"reservations": ["x"]},
        {"reservations": [{"resource_type": "virtual:instance", "flavor_id": "x\n"}]},
    ],
)
def test_an_answer_of_another_form_is_refused(wrong: dict[str, Any]) -> None:
    service = Service(listed({**lease(), **wrong}))
    with pytest.raises(BackendError, match="a lease: the answer is not one of OpenStack"):
        leases(service).find(NAME)


@pytest.mark.parametrize("code", [200, 500])
def test_an_answer_that_is_nested_too_deeply_is_refused(code: int) -> None:
    deep = answer(code)
    deep._content = b"[" * 100_000
    with pytest.raises(BackendError, match="cloud lab: reading the leases"):
        leases(Service(deep)).find(NAME)


def test_a_lease_without_servers_has_no_flavor() -> None:
    assert read_lease(lease(reservations=[])).flavor == ""


def test_a_network_without_addresses_is_not_called_a_conflict() -> None:
    document = {"NeutronError": {"message": "No more IP addresses available on network 7."}}
    with (
        pytest.raises(BackendError, match="No more IP addresses") as caught,
        CloudSession("lab").asking("giving node n1 a floating address"),
    ):
        accepted(answer(409, document))
    assert caught.value.hint.startswith("the network has no free address")


class Blazar(BaseHTTPRequestHandler):
    """A service without leases. It lists its versions as Blazar 18 does."""

    def do_GET(self) -> None:
        host = f"http://{self.headers['Host']}"
        states = {"v1": "CURRENT", "v2": "DEPRECATED"}
        versions = [
            {"id": f"{v}.0", "status": state, "links": [{"rel": "self", "href": f"{host}/{v}"}]}
            for v, state in states.items()
        ]
        answers: dict[str, Any] = {"/v1/leases": {"leases": []}, "/v2/leases": []}
        data = json.dumps(answers.get(self.path, {"versions": versions})).encode()
        self.send_response(200 if self.path in answers else 300)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def blazar() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Blazar) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning", "ignore::DeprecationWarning")
def test_version_1_is_asked_where_openstacksdk_would_ask_version_2(blazar: str, path: str) -> None:
    endpoint = {"id": "e", "interface": "public", "region_id": "R", "url": blazar + path}
    catalog = [{"id": "s", "type": "reservation", "name": "blazar", "endpoints": [endpoint]}]
    body = {"token": {"methods": [], "expires_at": "2999-01-01T00:00:00Z", "catalog": catalog}}
    auth = AccessInfoPlugin(access.create(body=body, auth_token="t"))
    session = CloudSession("lab")
    session.__dict__["sdk"] = Connection(session=Session(auth=auth), region_name="R")
    assert Leases(session).find(NAME) == []
