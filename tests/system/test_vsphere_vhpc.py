# SPDX-License-Identifier: Apache-2.0
"""The seven kinds of vhpc-toolkit's cluster files on a simulated vCenter: import, plan, up, plan, down."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cli.main import main
from tests.system.vcenter import PASSWORD, TEMPLATE, Simulator, machines_of, networks_of, simulator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FILES = sorted((Path(__file__).parents[1] / "python" / "vhpc").glob("*.conf"))

EXPECTED: dict[str, tuple[int, str]] = {
    "gpu": (2, ""),
    "linked": (12, ""),
    "plain-scripts": (2, ""),
    "pvrdma": (4, "distributed rdma-switch"),
    "sriov": (8, "vf-switch"),
    "sriov-gpu": (8, "vf-switch"),
    "vgpu": (3, ""),
}
"""How many machines each file asks for, and its switch."""


def lab(session: Session) -> None:
    """Give the simulated vCenter what the files name."""
    content = session.content
    center = content.rootFolder.childEntity[0]
    compute = center.hostFolder.childEntity[0]
    template = next(vm for vm in center.vmFolder.childEntity if vm.name == TEMPLATE)
    for thing, name in ((template, "gold"), (compute, "rack7"), (center, "north")):
        session.wait("preparing", partial(thing.Rename_Task, name))
    for host in compute.host:
        system = host.configManager.networkSystem
        system.AddPortGroup(
            vim.host.PortGroup.Specification(
                name="lan", vlanId=0, vswitchName="vSwitch0", policy=vim.host.NetworkPolicy()
            )
        )


def nr_hosts(path: Path) -> int:
    # The simulator hangs machines on a distributed switch only where all hosts have it.
    return 2 if path.stem == "pvrdma" else 4


@pytest.fixture
def vcenter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Simulator]:
    hosts = [f"esx{i + 1}.lab.example" for i in range(nr_hosts(request.param))]
    yield from simulator(tmp_path, *hosts)


@pytest.fixture
def own(vcenter: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Return a session of our own with the lab; what is recorded lies below the test's directory."""
    monkeypatch.setenv(PASSWORD, "pass")
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    session = vcenter.session()
    lab(session)
    yield session
    session.close()


def test_every_file_is_here() -> None:
    assert {path.stem for path in FILES} == set(EXPECTED)


@pytest.mark.parametrize(
    ("path", "vcenter"),
    [(path, path) for path in FILES],
    indirect=["vcenter"],
    ids=[path.stem for path in FILES],
)
def test_a_file_is_imported_planned_made_and_removed(
    path: Path,
    vcenter: Simulator,
    own: Session,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = networks_of(own.content)
    name, target = path.stem, tmp_path / "spec.yaml"
    words = ["--vcenter", "127.0.0.1", "--user", "user", "--name", name, "--output", str(target)]
    assert main(["import", "vhpc", str(path), *words]) == 0
    # What no cluster file holds: the port, the password's place and whom to trust. The simulator's
    # datastore has a name of its own.
    text = target.read_text().replace("datastore: fast", "datastore: LocalDS_0")
    _, line, rest = text.partition("datacenter: ")
    target.write_text(vcenter.head(name) + line + rest)
    count, switch = EXPECTED[name]
    assert main(["plan", str(target)]) == 3
    told = capsys.readouterr().out
    assert told.count("+ node ") == count
    assert ("+ network " in told) == bool(switch)
    assert main(["up", str(target)]) == 0
    assert main(["plan", str(target)]) == 0
    machines = machines_of(own.content, name).values()
    assert len(machines) == count
    power = "poweredOff" if name == "vgpu" else "poweredOn"
    assert {vm.runtime.powerState for vm in machines} == {power}
    now: Any = networks_of(own.content)
    if switch.startswith("distributed"):
        members = {f"esx{i}.lab.example": ["vmnic5", "vmnic6"] for i in (1, 2)}
        assert now[switch][1] == members
        assert "rdma-pg" in now[switch][2]
    elif switch:
        hosts = [f"esx{i + 1}.lab.example" for i in range(4)]
        assert [now[host][switch] for host in hosts] == [(1500, ["vmnic4"], [("vf-pg", 0)])] * 4
    else:
        assert now == before
    assert main(["down", str(target)]) == 0
    assert machines_of(own.content, name) == {}
    assert networks_of(own.content) == before
    assert not (tmp_path / "state").exists()
