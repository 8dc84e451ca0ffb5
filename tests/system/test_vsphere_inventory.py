# SPDX-License-Identifier: Apache-2.0
"""Plans against a simulated vCenter that lacks things: all are named at once, before any change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cli.main import main
from nearmetal.cluster.apply import up
from nearmetal.core.errors import BackendError
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    gone,
    machines_of,
    plan_of,
    raised,
    simulator,
    spec_of,
    unchecked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.host.vcenter.session import Session

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PF = "0000:af:00.0"
"""A function with four virtual functions."""
HOST = "DC0_C0_H0"


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture(autouse=True)
def own(vcenter: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv(PASSWORD, "pass")
    session = vcenter.session()
    yield session
    session.close()


def lines(text: str, directory: Path) -> list[str]:
    """Return what a plan says is missing."""
    with pytest.raises(BackendError, match="nothing was changed") as caught:
        plan_of(text, directory)
    return [line.strip() for line in caught.value.message.splitlines()[1:]]


def body(machine: str, nodes: str, esxi: str = HOST) -> str:
    return (
        f"machine: {{template: {TEMPLATE}, memory: 64 MiB, {machine}}}\n"
        f"hosts: [{{name: h, esxi: {esxi}, nodes: [{nodes}]}}]\n"
    )


def card(pf: str) -> str:
    adapter = f"{{kind: sriov, port_group: DC0_DVPG0, pf: '{pf}'}}"
    return f"memory_reservation: full, adapters: [{adapter}]"


def numbered(count: int, first: int = 0) -> str:
    return ", ".join(f"{{name: n{i}}}" for i in range(first, first + count))


EVERYTHING = """\
machine:
  template: gold
  datastore: fast
  resource_pool: mine
  memory_reservation: full
  adapters:
    - {kind: vmxnet3, port_group: lan}
hosts:
  - {name: h0, esxi: DC0_C0_H0, nodes: [{name: n0}, {name: n1}]}
  - {name: h9, esxi: esx9, nodes: [{name: n9, template: DC0_C0_RP0_VM0}]}
  - name: h1
    esxi: DC0_C0_H1
    nodes: [{name: n2, adapters: [{kind: sriov, port_group: DC0_DVPG0, pf: '0000:99:00.0'}]}]
"""


def test_all_names_and_devices_that_are_missing_are_said_at_once(
    vcenter: Simulator,
    own: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = vcenter.head("missing") + EVERYTHING
    said = lines(text, tmp_path)
    hosts = "DC0_C0_H0, DC0_C0_H1, DC0_C0_H2, DC0_C0_H3"
    assert {line for line in said if "is not there" in line} == {
        f"nodes n0, n1, n2: template 'gold' is not there; known here: {TEMPLATE}",
        "nodes n0, n1, n9 and 1 more: datastore 'fast' is not there; known here: LocalDS_0",
        "nodes n0, n1, n9 and 1 more: resource_pool 'mine' is not there; known here: nothing",
        (
            "nodes n0, n1, n9: port group 'lan' is not there; "
            "known here: DC0_DVPG0, DVS0-DVUplinks-8, VM Network"
        ),
        f"node n9: esxi 'esx9' is not there; known here: {hosts}",
    }
    (device,) = [line for line in said if "0000:99:00.0" in line]
    assert device.startswith("node n2: host DC0_C0_H1 has no device 0000:99:00.0")
    assert "0000:3b:00.1 (MT27800 Family [ConnectX-5], 7 of 7 free)" in device
    with pytest.raises(BackendError, match="nothing was changed"):
        raised(text, tmp_path)
    assert machines_of(own.content, "missing") == {}
    # `plan` itself says it, and ends with an error.
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    assert main(["plan", str(spec)]) == 1
    assert "template 'gold' is not there" in capsys.readouterr().err
    assert main(["status", str(spec)]) == 4
    assert not (tmp_path / "state" / "clusters" / "missing").exists()


def test_without_folder_and_hosts_the_other_names_are_still_looked_up(
    vcenter: Simulator, tmp_path: Path
) -> None:
    top = "compute: north\nfolder: a/b\n"
    said = lines(vcenter.head("roots") + top + EVERYTHING, tmp_path)
    assert {line.partition(" is not there")[0] for line in said} == {
        "compute 'north'",
        "folder 'a'",
        "nodes n0, n1, n2: template 'gold'",
        "nodes n0, n1, n9 and 1 more: datastore 'fast'",
        "nodes n0, n1, n9: port group 'lan'",
    }


def test_virtual_functions_are_counted_with_those_of_others(
    vcenter: Simulator, tmp_path: Path
) -> None:
    six = vcenter.head("six") + body(card(PF), numbered(6))
    functions = f"6 virtual functions of {PF} of host {HOST}"
    others = ", ".join(
        f"{address} ({name}, {count} of {count} free)"
        for address, name, count in (
            ("0000:3b:00.0", "MT27800 Family [ConnectX-5]", 8),
            ("0000:3b:00.1", "MT27800 Family [ConnectX-5]", 7),
            *((f"0000:af:00.{i}", "Ethernet Controller X710", 4) for i in (1, 2, 3)),
        )
    )
    instead = f"other devices with virtual functions there: {others}"
    assert lines(six, tmp_path) == [
        f"nodes n0, n1, n2 and 3 more: {functions}: it has 4; {instead}"
    ]
    three = vcenter.head("three") + body(card(PF), numbered(3))
    raised(three, tmp_path)
    # Our own count once, those of another cluster are taken.
    four = three.replace("{name: n2}", "{name: n2}, {name: n3}")
    assert len(plan_of(four, tmp_path).effective) == 1
    two = vcenter.head("two") + body(card(PF), numbered(2, 7))
    (said,) = lines(two, tmp_path)
    assert f"2 virtual functions of {PF} of host {HOST}: it has 4, 3 in use by n0, n1, n2;" in said
    assert raised(two.replace("name: n7}", "name: n7, power: off}"), tmp_path).effective
    # A machine that already is as planned needs nothing more.
    assert plan_of(three, tmp_path).empty
    for text in (three, two):
        gone(text, tmp_path)
    none = vcenter.head("none") + body(card("0000:1a:00.0"), numbered(1))
    (said,) = lines(none, tmp_path)
    assert (
        "0000:1a:00.0 of host DC0_C0_H0 (MT27710 Family [ConnectX-4 Lx]): it has no active" in said
    )
    assert "`nearmetal host plan`" in said


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (
            "vcpus: 65",
            "nodes n0, n1: 65 vcpus on host DC0_C0_H0: a host has 64 logical processors; use fewer",
        ),
        (
            "memory_reservation: full, vcpus: 2",
            (
                "nodes n0, n1: 400 GiB of reserved memory on host DC0_C0_H0: there are 256 GiB, of which "
                "others reserve 0 B; reserve less, or use another host"
            ),
        ),
        (
            "cpu_reservation: full, vcpus: 20",
            (
                "nodes n0, n1: 91760 MHz of reserved processors on host DC0_C0_H0: there are 73408, of "
                "which others reserve 0; reserve less, or use another host"
            ),
        ),
    ],
)
def test_more_than_a_host_has_is_refused(
    vcenter: Simulator, tmp_path: Path, machine: str, said: str
) -> None:
    text = vcenter.head("large") + body(machine, numbered(2)).replace("64 MiB", "200 GiB")
    assert lines(text, tmp_path) == [said]
    if "vcpus: 65" in machine:
        anywhere = text.replace(f"esxi: {HOST}", "esxi: auto")
        assert lines(anywhere, tmp_path) == [
            "nodes n0, n1: 65 vcpus on all hosts: a host has 64 logical processors; use fewer"
        ]


def test_a_host_in_maintenance_mode_and_a_name_in_use_are_said(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    content: Any = own.content
    center = content.rootFolder.childEntity[0]
    host = center.hostFolder.childEntity[0].host[3]
    own.wait("meddling", lambda: host.EnterMaintenanceMode_Task(0, None, None))
    folder = own.call("meddling", lambda: center.vmFolder.CreateFolder("busy"))
    template = next(vm for vm in center.vmFolder.childEntity if vm.name == TEMPLATE)
    pool = center.hostFolder.childEntity[0].resourcePool
    place = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=pool), powerOn=False, template=False)
    own.wait("meddling", lambda: template.CloneVM_Task(folder, "n0", place))
    try:
        assert lines(vcenter.head("busy") + body("vcpus: 1", numbered(2), host.name), tmp_path) == [
            (
                f"nodes n0, n1: host {host.name} is in maintenance mode: no machine starts there; "
                "use another: DC0_C0_H0, DC0_C0_H1, DC0_C0_H2"
            ),
            (
                "node n0: machine n0 is in the folder of the cluster: it is not of this cluster; "
                "write another vm: NAME at the node, or move the machine elsewhere"
            ),
        ]
    finally:
        own.wait("meddling", lambda: host.ExitMaintenanceMode_Task(0))
        own.wait("meddling", folder.childEntity[0].Destroy_Task)
        own.wait("meddling", folder.Destroy_Task)


def test_rights_that_the_user_lacks_are_said_before_anything_is_made(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lacked = "Folder.Create,VirtualMachine.Provisioning.DeployTemplate,Network.Assign"
    lacked += ",Host.Config.Network,VirtualMachine.Config.Rename"
    running = simulator(tmp_path_factory.mktemp("poor"), without=lacked)
    poor = next(running)
    try:
        adapters = "adapters: [{kind: vmxnet3, port_group: VM Network}]"
        text = poor.head("poor") + body(adapters, numbered(2))
        role = "give the user a role with it"
        assert sorted(lines(text, tmp_path)) == [
            f"user user has no right to Folder.Create: on folder vm; {role}",
            f"user user has no right to Network.Assign: on network VM Network; {role}",
            (
                "user user has no right to VirtualMachine.Provisioning.DeployTemplate: "
                f"on template {TEMPLATE}; {role}"
            ),
        ]
        switch = "switches: [{name: near, kind: standard, port_groups: [{name: lan}]}]\n"
        text = poor.head("poor") + switch + body(adapters.replace("VM Network", "lan"), numbered(1))
        assert f"user user has no right to Host.Config.Network: on host {HOST}; {role}" in lines(
            text, tmp_path
        )
        # Another user made the machines; a change needs less than a clone.
        text = poor.head("poor") + body("vcpus: 1", numbered(2))
        spec = spec_of(text)
        up(unchecked(spec, tmp_path), spec)
        assert plan_of(text.replace("vcpus: 1", "vcpus: 2"), tmp_path).effective
        assert lines(text.replace("n1}", "n1, vm: other}"), tmp_path) == [
            "user user has no right to VirtualMachine.Config.Rename: on machine of node n1; " + role
        ]
        gone(text, tmp_path)
    finally:
        running.close()
