# SPDX-License-Identifier: Apache-2.0
"""A demo on a cloud in memory that is interrupted or killed at each of its requests."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openstack")

from nearmetal.cli.demo_cloud import on_servers
from nearmetal.cli.view import View
from nearmetal.cluster.apply import Cluster
from nearmetal.cluster.backends.openstack.driver import OpenstackBackend
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.visit import NAME, Visit
from nearmetal.cluster.backends.openstack.world import Catalog
from nearmetal.cluster.store import Store
from nearmetal.core.errors import Interrupted
from nearmetal.core.process import LocalRunner
from tests.python.cloud_model import KilledError, ModelCloud
from tests.python.test_slurm_servers import SilentGuests

FLAVORS = [
    SimpleNamespace(id="f", name="good", vcpus=2, ram=2048, disk=20),
    SimpleNamespace(id="r", name="reservation:r", vcpus=2, ram=2048, disk=20),
]


class DemoCloud(ModelCloud):
    """A cloud with a network, leases, and an interruption in place of a death."""

    flavor = "r"

    def __init__(self, fault: BaseException) -> None:
        super().__init__()
        self.fault, self.dead, self.leases = fault, False, list[str]()
        common = {"created_at": "0", "description": "", "tags": []}
        lab = SimpleNamespace(id="lab", name="lab", is_port_security_enabled=False, **common)
        place = SimpleNamespace(network_id="lab", cidr="10.77.0.0/24", gateway_ip=None)
        self.there["network"]["lab"] = lab
        self.there["subnet"]["sub"] = SimpleNamespace(id="sub", name="sub", **vars(place), **common)

    def step(self, effect: Callable[[], Any] = lambda: None) -> Any:
        if self.dead:
            raise KilledError
        try:
            return super().step(effect)
        except KilledError:
            self.dead = isinstance(self.fault, KilledError)
            raise self.fault from None

    def _all(self, kind: str) -> list[Any]:
        if self.dead:
            raise KilledError
        return super()._all(kind)

    def flavors(self, **_: Any) -> list[Any]:
        return FLAVORS

    # Blazar

    def offered(self) -> bool:
        if self.dead:
            raise KilledError
        return True

    def take(self, name: str, *_: Any) -> Any:
        if name not in self.leases:
            self.step(lambda: self.leases.append(name))
        return SimpleNamespace(flavor="r")

    def remove(self, name: str) -> int:
        found = name in self.leases
        if found:
            self.step(lambda: self.leases.remove(name))
        return int(found)


class ModelVisit(Visit):
    """A demo there."""

    def __init__(self, cloud: DemoCloud, store: Store) -> None:
        super().__init__("lab", store, LocalRunner(), sleep=lambda _: cloud.settle())
        self.session, self.leases = cloud, cloud  # type: ignore[assignment]

    def cluster(self, spec: OpenstackSpec) -> Cluster:
        backend = OpenstackBackend(spec, self.store, LocalRunner())
        cloud: Any = self.session
        backend._session, backend._catalog = cloud, Catalog(cloud)
        backend._guests = SilentGuests(spec, cloud, self.store.cluster(NAME), LocalRunner())
        return Cluster(NAME, backend, self.store)


class Desk:
    """A user with a state directory."""

    def __init__(self, folder: Path, fault: BaseException) -> None:
        self.store, self.cloud = Store(folder / "state"), DemoCloud(fault)
        self.before = self.cloud.names()

    def demo(self) -> None:
        args = argparse.Namespace(
            image="hpc",
            flavor=None,
            network="lab",
            outside=None,
            apart=False,
            keep=False,
            remove=False,
            yes=True,
        )
        self.store.prepare()
        visit, view = ModelVisit(self.cloud, self.store), View(as_json=True)
        assert on_servers(visit, args, view, self.work, 1) == ((), "hello")

    def work(self, *_: object) -> tuple[tuple[()], str]:
        self.cloud.step()
        return (), "hello"

    def assert_clean(self) -> None:
        assert self.cloud.names() == self.before
        assert self.cloud.leases == []
        assert ModelVisit(self.cloud, self.store).record() is None
        assert NAME not in self.store.names()


def ends(desk: Desk, at: int, how: str) -> bool:
    """Run a demo with a fault at a step; returns whether it got that far."""
    desk.cloud.die_at, desk.cloud.how = at, how
    try:
        desk.demo()
    except (KilledError, Interrupted):
        return True
    return False


@pytest.mark.parametrize("how", ["before", "after", "late"])
def test_an_interruption_at_any_request_leaves_nothing(tmp_path: Path, how: str) -> None:
    at = 1
    while True:
        desk = Desk(tmp_path / str(at), Interrupted(signal.SIGINT))
        if not ends(desk, at, how):
            break
        desk.cloud.settle()
        if ModelVisit(desk.cloud, desk.store).record() is not None:
            # The interruption was amid the removal, and its command ends it.
            ModelVisit(desk.cloud, desk.store).remove(lambda _: None, lambda *_: None)
        desk.assert_clean()
        at += 1
    assert at > 10


@pytest.mark.parametrize("how", ["before", "after", "late"])
def test_the_demo_after_a_kill_at_any_request_ends_and_leaves_nothing(
    tmp_path: Path, how: str
) -> None:
    at = 1
    while True:
        desk = Desk(tmp_path / str(at), KilledError())
        if not ends(desk, at, how):
            break
        desk.cloud.dead, desk.cloud.die_at = False, 0
        desk.cloud.settle()
        desk.demo()
        desk.assert_clean()
        at += 1
    assert at > 10


def test_a_second_interruption_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, Interrupted(signal.SIGINT))

    def again() -> None:
        raise Interrupted(signal.SIGINT)

    desk.cloud.settle = again  # type: ignore[method-assign]
    assert ends(desk, 3, "after")
    assert "remove: nearmetal demo --cloud lab --remove" in capsys.readouterr().err
    assert ModelVisit(desk.cloud, desk.store).record() is not None
