# SPDX-License-Identifier: Apache-2.0
"""How objects of a project become resources of a cluster, without a cloud."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearmetal.cluster.backends.openstack.marks import ClusterMark, make_mark, read_mark
from nearmetal.cluster.backends.openstack.world import (
    Catalog,
    World,
    server_values,
    why_unfinished,
)
from nearmetal.core.errors import StateError
from tests.python.test_openstack_spec import spec_of

OURS = ClusterMark("0123456789abcdef01234567", "project p")
OTHER = ClusterMark("89abcdef0123456789abcdef", "project p")


class Known(Catalog):
    """A catalog of what a test says."""

    def __init__(self, **ids: str) -> None:
        self._ids = ids

    def get(self, kind: str, name: str) -> Any | None:
        found = self._ids.get(kind)
        return SimpleNamespace(id=found, name=name) if found is not None else None


def server(**values: Any) -> SimpleNamespace:
    metadata = {"nearmetal.host": "h1", "nearmetal.slots": "1", "nearmetal.image": "hpc"}
    same = {
        "id": "s1",
        "status": "ACTIVE",
        "metadata": metadata,
        "image": {"id": "i1"},
        "flavor": {"original_name": "small"},
        "key_name": None,
    }
    return SimpleNamespace(**{**same, **values})


def port(device: str, kind: str = "normal", network: str = "net") -> SimpleNamespace:
    return SimpleNamespace(
        id="p",
        device_id=device,
        binding_vnic_type=kind,
        network_id=network,
        is_port_security_enabled=True,
    )


def test_only_objects_with_the_mark_are_ours() -> None:
    described = SimpleNamespace(description=OURS.text("port", "n1", "mpi"))
    assert OURS.words(described) == ("port", "n1", "mpi")
    assert OTHER.words(described) is None
    assert OURS.words(SimpleNamespace(description=None)) is None
    assert OURS.words(SimpleNamespace(description="nearmetal")) is None
    assert OURS.group_name(SimpleNamespace(name=OURS.group("h1"))) == "h1"
    assert OURS.group_name(SimpleNamespace(name=OTHER.group("h1"))) is None
    marked = server(metadata={"nearmetal.mark": OTHER.token, "nearmetal.node": "n1"})
    assert (OURS.node(marked), OTHER.node(marked)) == (None, "n1")


def test_a_mark_is_made_once_and_damage_is_an_error(tmp_path: Path) -> None:
    assert read_mark(tmp_path / "none") is None
    made = make_mark(tmp_path / "c", "project p")
    assert make_mark(tmp_path / "c", "project p") == read_mark(tmp_path / "c") == made
    (tmp_path / "c" / "mark").write_text("../../x\n")
    with pytest.raises(StateError, match="damaged"):
        read_mark(tmp_path / "c")


def test_a_mark_that_is_lost_is_an_error_where_something_was_made(tmp_path: Path) -> None:
    make_mark(tmp_path / "c", "project p")
    (tmp_path / "c" / "spec.json").touch()
    (tmp_path / "c" / "mark").unlink()
    with pytest.raises(StateError, match="is missing"):
        make_mark(tmp_path / "c", "project p")


@pytest.mark.parametrize(
    ("status", "device", "networks"),
    [
        ("ACTIVE", "s1", ("mpi normal", "rdma direct")),
        ("BUILD", "", ("mpi normal", "rdma direct")),
        ("ACTIVE", "", ()),
        ("ACTIVE", "another", ()),
    ],
)
def test_the_ports_of_a_server_are_its_own_and_those_that_nova_will_take(
    status: str, device: str, networks: tuple[str, ...]
) -> None:
    ports = {("n1", "mpi"): port(device), ("n1", "rdma"): port(device, "direct")}
    world = World(servers={"n1": server(status=status)}, ports=ports)
    assert server_values(spec_of(), world, Known(network="net"), "n1").networks == networks


def test_another_network_of_the_same_name_in_the_spec_is_a_difference() -> None:
    world = World(servers={"n1": server()}, ports={("n1", "rdma"): port("s1", "direct")})
    found = server_values(spec_of(), world, Known(network="moved"), "n1")
    assert found.networks == ("rdma direct of network net",)


@pytest.mark.parametrize(
    ("ids", "made", "shown"),
    [
        ({"image": "i1"}, "hpc", "hpc"),
        # A new image of the same name: the server has the old one.
        ({"image": "i2"}, "hpc", "i1"),
        ({"image": "i2"}, "old", "old"),
        # The image is gone since: no difference.
        ({}, "hpc", "hpc"),
    ],
)
def test_an_image_is_compared_by_its_id(ids: dict[str, str], made: str, shown: str) -> None:
    metadata = {"nearmetal.image": made}
    world = World(servers={"n1": server(metadata=metadata)})
    assert server_values(spec_of(), world, Known(**ids), "n1").image == shown


def test_states_of_servers_in_words() -> None:
    assert why_unfinished(server()) == ""
    assert why_unfinished(server(status="SHUTOFF")) == "it is off: SHUTOFF"
    assert why_unfinished(server(status="BUILD")) == "Nova still works on it: BUILD"


class Listed(Catalog):
    """A catalog of services that answer a path up to its first `#` or `?`, as web services do."""

    _values: Mapping[str, Any] = {"vcpus": 1, "ram": 1, "status": "active"} | dict.fromkeys(
        ("disk", "extra_specs", "min_ram", "min_disk", "properties")
    )

    def __init__(self, *names: str) -> None:
        self._items = [
            SimpleNamespace(id=f"id-{name}", name=name, **self._values) for name in names
        ]
        service = SimpleNamespace(
            flavors=lambda **_: self._items,
            images=lambda name: [one for one in self._items if one.name == name],
            networks=lambda name: [one for one in self._items if one.name == name],
            find_image=self._by_path,
            find_network=self._by_path,
        )
        session: Any = SimpleNamespace(
            sdk=SimpleNamespace(compute=service, image=service, network=service),
            asking=lambda _what: contextlib.nullcontext(),
        )
        super().__init__(session)

    def _by_path(self, name: str, **_: Any) -> Any:
        path = re.split("[#?]", name)[0]
        return next((one for one in self._items if path == one.id), None)


@pytest.mark.parametrize("kind", ["flavor", "image", "network"])
def test_a_name_means_only_what_has_it(kind: str) -> None:
    catalog = Listed("a", "a#b", "x/y", "detail")
    for name in ("a", "a#b", "x/y", "detail", "id-a"):
        found = catalog.get(kind, name)
        assert found is not None
        assert name in (found.id, found.name)
    for name in ("id-a#b?", "id-a#z", "id-a?x=1", "../a"):
        assert catalog.get(kind, name) is None


def test_a_flavor_is_its_id_before_the_name_of_another() -> None:
    catalog = Listed("a", "id-a")
    found = catalog.get("flavor", "id-a")
    assert found is not None
    assert (found.id, catalog.several("flavor", "id-a")) == ("id-a", False)
