# SPDX-License-Identifier: Apache-2.0
"""`up` on a simulated vCenter, killed at each record of its journal and around each task, and run again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.apply import down, plan_up, up
from tests.system.fuse import Fuse, settle, survives
from tests.system.vcenter import PASSWORD, TEMPLATE, Simulator, opened, raised, simulator, spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

BODY = f"""\
machine:
  template: {TEMPLATE}
  memory: 64 MiB
  memory_reservation: full
  adapters: [{{kind: sriov, port_group: DC0_DVPG0, pf: '0000:3b:00.0'}}]
  guest: {{address: 10.0.0.11-10.0.0.12/24}}
parallel: 1
rules: [{{name: spread, kind: apart, nodes: [n0, n1]}}]
hosts:
  - {{name: h0, esxi: DC0_C0_H0, nodes: [{{name: n0}}]}}
  - {{name: h1, esxi: DC0_C0_H1, nodes: [{{name: n1}}]}}
"""


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture
def own(vcenter: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv(PASSWORD, "pass")
    session = vcenter.session()
    yield session
    session.close()


@pytest.mark.parametrize(
    ("light", "moments", "stride"),
    [
        ("at_records", 10, 3),
        pytest.param("at_records", 10, 1, marks=pytest.mark.full),
        pytest.param("at_tasks", 22, 1, marks=pytest.mark.full),
    ],
)
def test_up_killed_anywhere_is_taken_up(  # noqa: PLR0917 - parameters
    vcenter: Simulator, own: Session, tmp_path: Path, light: str, moments: int, stride: int
) -> None:
    text = vcenter.head("fuse") + BODY
    spec = spec_of(text)
    datacenter = own.content.rootFolder.childEntity[0]
    compute = datacenter.hostFolder.childEntity[0]
    killed = 0
    while not survives(partial(raised, text, tmp_path), getattr(Fuse(killed), light)):
        killed += stride
        settle(own.content)
        up(opened(spec, tmp_path), spec)
        assert plan_up(opened(spec, tmp_path), spec).empty
        folder = own.content.searchIndex.FindChild(datacenter.vmFolder, "fuse")
        made = {vm.name: vm for vm in folder.childEntity}
        assert sorted(made) == ["n0", "n1"]
        assert {vm.runtime.powerState for vm in made.values()} == {"poweredOn"}
        assert [made["n0"].guest.ipAddress, made["n1"].guest.ipAddress] == [
            "10.0.0.11",
            "10.0.0.12",
        ]
        (rule,) = compute.configurationEx.rule
        assert {vm.name for vm in rule.vm} == {"n0", "n1"}
        down(opened(spec, tmp_path))
        assert own.content.searchIndex.FindChild(datacenter.vmFolder, "fuse") is None
        assert not compute.configurationEx.rule
    assert killed - stride < moments <= killed
    down(opened(spec, tmp_path))
    assert not (tmp_path / "state").exists()
