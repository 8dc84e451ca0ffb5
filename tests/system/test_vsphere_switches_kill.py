# SPDX-License-Identifier: Apache-2.0
"""`up` and `down` of switches on a simulated vCenter, killed at each moment, and run again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.cluster.apply import plan_up
from tests.system.fuse import Fuse, settle, survives
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    networks_of,
    opened,
    raised,
    simulator,
    spec_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

BODY = f"""\
machine:
  template: {TEMPLATE}
  memory: 64 MiB
  adapters: [{{kind: vmxnet3, port_group: lan}}, {{kind: pvrdma, port_group: rdma}}]
switches:
  - {{name: near, kind: standard, nics: [vmnic1], port_groups: [{{name: lan, vlan: 7}}]}}
  - {{name: far, kind: distributed, nics: [vmnic2], mtu: 9000, port_groups: [{{name: rdma}}]}}
hosts:
  - {{name: h0, esxi: one, nodes: [{{name: n0}}]}}
  - {{name: h1, esxi: two, nodes: [{{name: n1}}]}}
"""


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"), "one", "two")


@pytest.fixture
def own(vcenter: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv(PASSWORD, "pass")
    session = vcenter.session()
    yield session
    session.close()


@pytest.mark.parametrize(
    ("light", "moments"),
    [
        pytest.param("at_records", 14, marks=pytest.mark.full),
        pytest.param("at_calls", 18, marks=pytest.mark.full),
    ],
)
def test_switches_killed_on_their_way_up_are_taken_up(
    vcenter: Simulator, own: Session, tmp_path: Path, light: str, moments: int
) -> None:
    text = vcenter.head("fuse") + BODY
    before, killed = networks_of(own.content), 0
    while not survives(partial(raised, text, tmp_path), getattr(Fuse(killed), light)):
        killed += 1
        settle(own.content)
        raised(text, tmp_path)
        assert plan_up(opened(spec_of(text), tmp_path), spec_of(text)).empty
        found: Any = networks_of(own.content)
        for host in ("one", "two"):
            assert found[host]["near"] == (1500, ["vmnic1"], [("lan", 7)])
        assert found["distributed far"][:2] == (9000, {"one": ["vmnic2"], "two": ["vmnic2"]})
        gone(text, tmp_path)
        assert networks_of(own.content) == before
    assert killed == moments
    gone(text, tmp_path)
    assert networks_of(own.content) == before
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("moment", [pytest.param(None, marks=pytest.mark.full), 5])
def test_switches_killed_on_their_way_down_go_the_next_time(
    vcenter: Simulator, own: Session, tmp_path: Path, moment: int | None
) -> None:
    """Killed everywhere, or at the one moment where a standard switch has just lost its group."""
    text = vcenter.head("fuse") + BODY
    before, killed = networks_of(own.content), moment or 0
    raised(text, tmp_path)
    while not survives(partial(gone, text, tmp_path), Fuse(killed).at_calls):
        killed += 1
        settle(own.content)
        gone(text, tmp_path)
        assert networks_of(own.content) == before
        assert not (tmp_path / "state").exists()
        raised(text, tmp_path)
        if moment is not None:
            gone(text, tmp_path)
            break
    assert networks_of(own.content) == before
    assert killed >= 6


@pytest.mark.parametrize("moment", [pytest.param(None, marks=pytest.mark.full), 3, 5])
def test_switches_killed_on_their_way_up_go_with_a_down_straight_after(
    vcenter: Simulator, own: Session, tmp_path: Path, moment: int | None
) -> None:
    """Killed everywhere, or as soon as the first host has its switch, and then its port group."""
    text = vcenter.head("fuse") + BODY
    before, killed = networks_of(own.content), moment or 0
    while not survives(partial(raised, text, tmp_path), Fuse(killed).at_calls):
        killed += 1
        settle(own.content)
        gone(text, tmp_path)
        assert networks_of(own.content) == before
        assert not (tmp_path / "state").exists()
        if moment is not None:
            break
    assert killed == (18 if moment is None else moment + 1)
    gone(text, tmp_path)
    assert networks_of(own.content) == before
