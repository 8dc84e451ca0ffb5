# SPDX-License-Identifier: Apache-2.0
"""The vCenter part of VMware's paper on InfiniBand SR-IOV, on a simulated vCenter.

Hosts get their virtual functions (figures 11 to 14), a distributed switch with the card as uplink
(figures 15 and 16), and 16 machines on it a virtual function each (figures 17 and 18).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cluster.diff import Action
from nearmetal.core.errors import BackendError
from tests.system.esxi_lab import PORTS, Hosts, applier, hosts_file
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    machines_of,
    networks_of,
    plan_of,
    raised,
    simulator,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SWITCH, GROUP, PF = "SRIOV-IB-DVS", "SRIOV-IB-DVS-PG", "0000:3b:00.0"
NODES = "".join(
    f"  - {{name: h{h}, esxi: esx{h}, nodes: ["
    + ", ".join(f"{{name: compute-{n:02}}}" for n in range(4 * h - 3, 4 * h + 1))
    + "]}\n"
    for h in range(1, 5)
)
BODY = f"""\
switches:
  - name: {SWITCH}
    kind: distributed
    nics: [vmnic2]
    mtu: 9000
    port_groups: [{{name: {GROUP}}}]
machine:
  template: {TEMPLATE}
  vcpus: 2
  memory: 64 MiB
  memory_reservation: full
  cpu_reservation: full
  latency: high
  adapters: [{{kind: sriov, port_group: {GROUP}, switch: {SWITCH}, pf: '{PF}', guest_mtu: true}}]
parallel: 4
hosts:
{NODES}"""


@pytest.fixture
def vcenter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    monkeypatch.setenv(PASSWORD, "pass")
    yield from simulator(tmp_path, *(f"esx{h}" for h in range(1, 5)), options="")


@pytest.fixture
def own(vcenter: Simulator) -> Iterator[Session]:
    session = vcenter.session()
    yield session
    session.close()


def functions(machine: Any) -> list[tuple[str, str]]:
    """Return the SR-IOV adapters of a machine: physical function and key of the port group."""
    kind = vim.vm.device.VirtualSriovEthernetCard
    cards: list[Any] = [d for d in machine.config.hardware.device if isinstance(d, kind)]
    return [
        (card.sriovBacking.physicalFunctionBacking.id, card.backing.port.portgroupKey)
        for card in cards
    ]


def test_sixteen_machines_with_a_function_each_from_bare_hosts_to_down(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    content, hosts = own.content, Hosts(own)
    power = "    esxi: {power: high-performance}\n"
    file = hosts_file(vcenter, "esx[1-4]", power + PORTS) + "limits: {reboots: 3}\n"
    applier(file, tmp_path / "hosts").apply()
    assert [hosts.vfs(f"esx{h}")[:2] for h in range(1, 5)] == [[8, 7]] * 4
    before = networks_of(content)

    text = vcenter.head("mpi") + BODY
    assert raised(text, tmp_path).count(Action.CREATE) == 18
    members = {f"esx{h}": ["vmnic2"] for h in range(1, 5)}
    now: Any = networks_of(content)[f"distributed {SWITCH}"]
    assert now[:2] == (9000, members)
    assert GROUP in now[2]
    group = next(n for n in content.rootFolder.childEntity[0].network if n.name == GROUP)
    there = machines_of(content, "mpi")
    assert sorted(there) == [f"compute-{n:02}" for n in range(1, 17)]
    for machine in there.values():
        assert functions(machine) == [(PF, group.key)]
        assert machine.config.memoryReservationLockedToMax
        assert machine.runtime.powerState == "poweredOn"
    assert plan_of(text, tmp_path).empty
    assert raised(text, tmp_path).empty

    changed = text.replace("vcpus: 2", "vcpus: 4")
    assert all(change.in_place for change in raised(changed, tmp_path).effective)
    assert {m.config.hardware.numCPU for m in there.values()} == {4}

    drifted = there["compute-02"]
    own.wait("meddling", drifted.PowerOffVM_Task)
    card = next(
        d
        for d in drifted.config.hardware.device
        if isinstance(d, vim.vm.device.VirtualSriovEthernetCard)
    )
    without = vim.vm.device.VirtualDeviceSpec(operation="remove", device=card)
    spec = vim.vm.ConfigSpec(deviceChange=[without])
    own.wait("meddling", lambda: drifted.ReconfigVM_Task(spec))
    switch = next(
        n for n in content.rootFolder.childEntity[0].networkFolder.childEntity if n.name == SWITCH
    )
    mtu = vim.dvs.VmwareDistributedVirtualSwitch.ConfigSpec(
        configVersion=switch.config.configVersion, maxMtu=1500
    )
    own.wait("meddling", lambda: switch.ReconfigureDvs_Task(mtu))
    plan = plan_of(changed, tmp_path)
    assert {c.key.name: {name for name, _, _ in c.differences} for c in plan.effective} == {
        "compute-02": {"power", "adapters"},
        SWITCH: {"mtu"},
    }
    raised(changed, tmp_path)
    assert functions(drifted) == [(PF, group.key)]
    assert networks_of(content)[f"distributed {SWITCH}"] == now
    assert raised(changed, tmp_path).empty

    gone(changed, tmp_path)
    assert machines_of(content, "mpi") == {}
    assert networks_of(content) == before
    assert not (tmp_path / "state").exists()


def test_a_ninth_machine_on_a_host_finds_no_function(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    """Eight of them fit the card of a host; nothing is made, and the plan says why."""
    hosts = Hosts(own)
    applier(hosts_file(vcenter, "esx[1-4]"), tmp_path / "hosts").apply()
    assert hosts.vfs("esx1") == [8, 7, 0]
    nodes = ", ".join(f"{{name: n{n}}}" for n in range(9))
    body = BODY[: BODY.index("hosts:\n")].replace(
        "kind: distributed", "kind: distributed\n    esxi: [esx1, esx2, esx3, esx4]"
    )
    text = f"{vcenter.head('nine')}{body}hosts: [{{name: h, esxi: esx1, nodes: [{nodes}]}}]\n"
    with pytest.raises(BackendError, match="nothing was changed") as caught:
        raised(text, tmp_path)
    assert (
        f"nodes n0, n1, n2 and 6 more: 9 virtual functions of {PF} of host esx1: it has 8; other "
        "devices with virtual functions there: 0000:3b:00.1 (MT27800 Family [ConnectX-5], 7 of 7 free)"
    ) in caught.value.message
    assert machines_of(own.content, "nine") == {}
