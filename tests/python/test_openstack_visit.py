# SPDX-License-Identifier: Apache-2.0
"""The record of a demo on a cloud: what is continued, what is removed, and what is said if it fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cluster.backends.openstack.offer import CloudOffer, DemoChoice, Wishes, choose
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.visit import NAME, Visit
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, StateError
from nearmetal.core.process import LocalRunner
from nearmetal.core.resources import share

FLAVOR = SimpleNamespace(id="f", name="good", vcpus=2, ram=2048, disk=20)
RESERVED = "ddc45423-f863-4e4e-8e7a-51d27cfec962"


def choice(network: str = "lab") -> DemoChoice:
    return choose("lab", NAME, CloudOffer([FLAVOR]), Wishes(network=network), "hpc")


class Booked:
    """Leases of a cloud; `fault` is raised when one is removed."""

    def __init__(self, *, offers: bool = True, fault: str = "") -> None:
        self.offers, self.fault, self.names = offers, fault, list[str]()
        self.flavor = RESERVED

    def offered(self) -> bool:
        return self.offers

    def take(self, name: str, *_: Any) -> Any:
        self.names.append(name)
        return SimpleNamespace(flavor=self.flavor)

    def remove(self, name: str) -> int:
        if self.fault:
            raise BackendError(self.fault)
        count = self.names.count(name)
        self.names = []
        return count


class Given(Visit):
    """A demo on a cloud that is not there."""

    def __init__(self, cloud: str, store: Store, home: str) -> None:
        super().__init__(cloud, store, LocalRunner())
        self.session = SimpleNamespace(home=home)  # type: ignore[assignment]
        self.leases = Booked()  # type: ignore[assignment]
        self.removed = list[str]()

    def remove_cluster(self, spec: OpenstackSpec) -> bool:
        assert spec.name == NAME
        self.removed.append(spec.flavor)
        return True


def visit_of(directory: Path, cloud: str = "lab", home: str = "project p") -> Given:
    store = Store(directory / "state")
    store.prepare()
    return Given(cloud, store, home)


@pytest.fixture
def visit(tmp_path: Path) -> Given:
    return visit_of(tmp_path)


def demo(
    visit: Given, fault: BaseException | None, said: list[tuple[str, str]] | None = None
) -> None:
    """Run a demo that makes its record, and may fail."""
    notes = [] if said is None else said
    with visit.cleared(nothing, lambda *words: notes.append(words)):
        visit.begin(choice(), None)
        if fault is not None:
            raise fault


def nothing(*_: str) -> None:
    """Take words."""


def test_the_record_is_there_before_anything_and_gone_after_all(
    visit: Given, tmp_path: Path
) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(b"x")
    visit.begin(choice(), disk)
    record = visit.record()
    assert record is not None
    spec = visit.leased(choice())
    assert spec.flavor == RESERVED
    visit.settle(spec)
    # The spec that is made is in the record, so that the removal knows it.
    again = visit.record()
    assert again is not None
    assert RESERVED in again.spec
    assert RESERVED not in again.asked
    assert visit.remove(nothing, nothing) == [f"cluster {NAME}", f"lease {record.lease}", str(disk)]
    assert visit.record() is None
    assert not disk.exists()
    assert visit.remove(nothing, nothing) == []


def test_the_same_choice_is_continued_with_its_lease(visit: Given) -> None:
    visit.begin(choice(), None)
    first = visit.record()
    assert visit.continues(choice())
    assert not visit.continues(choice("other"))
    visit.begin(choice(), None)
    assert visit.record() == first
    visit.begin(choice("other"), None)
    assert visit.record() != first


def test_servers_of_a_lease_that_ended_are_removed_before_those_of_the_next(visit: Given) -> None:
    visit.begin(choice(), None)
    for _ in range(2):
        visit.settle(visit.leased(choice()))
    # The first settling ends what was begun without a lease, and the same lease ends nothing.
    assert visit.removed == ["good"]
    visit.leases.flavor = "another"  # type: ignore[attr-defined]
    visit.settle(visit.leased(choice()))
    assert visit.removed == ["good", RESERVED]
    visit.remove(nothing, nothing)
    assert visit.removed[-1] == "another"


@pytest.mark.parametrize("leased", [False, True])
def test_a_lease_that_no_service_removes_any_more_is_named(visit: Given, *, leased: bool) -> None:
    visit.begin(choice(), None)
    if leased:
        visit.leased(choice())
    visit.leases = Booked(offers=False)  # type: ignore[assignment]
    record, said = visit.record(), list[str]()
    assert record is not None
    assert visit.remove(nothing, lambda *words: said.extend(words)) == [f"cluster {NAME}"]
    assert (record.lease in " ".join(said)) is leased
    assert visit.record() is None


def test_another_project_is_not_continued_and_not_emptied(visit: Given, tmp_path: Path) -> None:
    visit.begin(choice(), None)
    other = visit_of(tmp_path, home="project q")
    assert not other.continues(choice())
    with pytest.raises(StateError, match="the demo is in project p, and cloud lab is project q"):
        other.remove(nothing, nothing)
    assert visit.record() is not None


def test_a_demo_on_another_cloud_is_named_with_the_command(visit: Given, tmp_path: Path) -> None:
    visit.begin(choice(), None)
    with pytest.raises(StateError, match="left servers on cloud lab") as caught:
        visit_of(tmp_path, "other").record()
    assert caught.value.hint.endswith("nearmetal demo --cloud lab --remove")


@pytest.mark.parametrize("text", ["", "{", '{"version": 2}', '{"lease": "x"}'])
def test_a_damaged_record_is_an_error(visit: Given, text: str) -> None:
    visit.begin(choice(), None)
    visit._path.write_text(text)
    with pytest.raises(StateError, match="is damaged"):
        visit.record()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"backend": "nix"}', "containers", "other"])
def test_a_record_with_a_damaged_spec_is_an_error(visit: Given, text: str) -> None:
    visit.begin(choice(), None)
    if text == "other":
        text = choice().spec.model_copy(update={"name": "other"}).canonical()
    elif text == "containers":
        text = load_spec(share("examples", "two-nodes.yaml")).canonical()
    record = visit.record()
    assert record is not None
    visit._write(record.model_copy(update={"spec": text}))
    with pytest.raises(StateError, match="is damaged"):
        visit.remove(nothing, nothing)


def test_a_cluster_of_the_name_that_is_not_of_a_demo_is_left_alone(visit: Given) -> None:
    visit.refuse_foreign()
    visit.store.cluster(NAME).mkdir()
    with pytest.raises(StateError, match="that no demo has made"):
        visit.refuse_foreign()
    visit.begin(choice(), None)
    visit.refuse_foreign()


def test_the_disk_of_the_next_demo_stays(visit: Given, tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(b"x")
    visit.begin(choice(), disk)
    visit.remove(nothing, nothing, keep=disk)
    assert disk.exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_removal_that_fails_names_what_removes_the_rest(visit: Given, *, fails: bool) -> None:
    """The error of the demo itself is the one that the user sees."""
    visit.leases = Booked(fault="Blazar is away")  # type: ignore[assignment]
    said: list[tuple[str, str]] = []
    expected = "the demo failed" if fails else "Blazar is away"
    with pytest.raises(BackendError, match=expected):
        demo(visit, BackendError("the demo failed") if fails else None, said)
    assert said == [
        (
            "the demo left things in the cloud: Blazar is away",
            "remove: nearmetal demo --cloud lab --remove",
        )
    ]
    assert visit.record() is not None


def test_an_interrupted_demo_clears_and_stays_interrupted(visit: Given) -> None:
    with pytest.raises(KeyboardInterrupt):
        demo(visit, KeyboardInterrupt())
    assert visit.record() is None
