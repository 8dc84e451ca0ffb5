# SPDX-License-Identifier: Apache-2.0
"""Leases of Blazar, against the published form of its API."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import requests

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.leases import Lease, LeasedRoom, Leases, read_lease
from nearmetal.cluster.backends.openstack.session import CloudSession, accepted
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
        def ask(path: str, json: Any = None) -> requests.Response:
            self.requests.append((method, path, json))
            return self.answers.pop(0)

        return ask


def leases(service: Service, address: str | None = "http://blazar/v1") -> Leases:
    session = CloudSession("lab")
    config = SimpleNamespace(get_session_endpoint=lambda _kind: address)
    session.__dict__["sdk"] = SimpleNamespace(reservation=service, config=config)
    ticks = iter(range(0, 100_000, 100))
    return Leases(session, now=lambda: float(next(ticks)), sleep=lambda _s: None)


def listed(*found: dict[str, Any]) -> requests.Response:
    return answer(200, {"leases": [lease(name="other", id=FLAVOR), *found]})


def test_a_cloud_without_the_service_offers_none() -> None:
    assert leases(Service()).offered()
    assert not leases(Service(), None).offered()


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("http://b/v1", "/leases"),
        ("http://b/v1/", "/leases"),
        ("http://b/reservation", "/v1/leases"),
    ],
)
def test_a_lease_is_asked_for_in_the_form_of_the_api(address: str, path: str) -> None:
    service = Service(listed(), answer(201, {"lease": lease("PENDING")}), listed(lease()))
    found = leases(service, address).take(NAME, ROOM, 120, CLOCK)
    assert found == Lease(ID, "ACTIVE", FLAVOR)
    assert [request[:2] for request in service.requests] == [
        ("get", path),
        ("post", path),
        ("get", path),
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
    assert last == ("put", f"/leases/{ID}", {"end_date": "2026-01-03 01:30"})


@pytest.mark.parametrize(
    ("together", "reason", "hint"),
    [
        (True, "Malformed parameter affinity (only affinity = False is supported)", "--apart"),
        (True, "Not enough hosts available", "try later"),
        (False, "affinity", "try later"),
    ],
)
def test_a_refused_lease_has_a_remedy_that_fits(*, together: bool, reason: str, hint: str) -> None:
    service = Service(listed(), answer(400, {"error_code": 400, "error_message": reason}))
    with pytest.raises(BackendError, match="making a lease") as caught:
        leases(service).take(NAME, replace(ROOM, together=together), 120, CLOCK)
    assert hint in caught.value.hint


@pytest.mark.parametrize("status", ["TERMINATED", "ERROR"])
def test_a_lease_that_has_ended_is_replaced(status: str) -> None:
    service = Service(listed(lease(status)), answer(204), answer(201, {"lease": lease()}))
    leases(service).take(NAME, ROOM, 120, CLOCK)
    assert service.requests[1][:2] == ("delete", f"/leases/{ID}")
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
    assert service.requests[1] == ("delete", f"/leases/{ID}", None)


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
