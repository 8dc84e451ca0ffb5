# SPDX-License-Identifier: Apache-2.0
"""Clusters on a simulated vCenter: up, again, changed, drifted, repaired, down."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyVmomi import vim

from nearmetal.cli.main import main
from nearmetal.cluster.apply import Cluster, down, plan_up, up
from nearmetal.cluster.backends.vsphere.driver import VsphereBackend
from nearmetal.cluster.backends.vsphere.work import MachineWork
from nearmetal.cluster.diff import Action
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, StateError
from nearmetal.host.vcenter.session import fetch
from tests.system.vcenter import (
    PASSWORD,
    TEMPLATE,
    Simulator,
    machines_of,
    opened,
    plan_of,
    raised,
    simulator,
    spec_of,
    unchecked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearmetal.cluster.backends.vsphere.plan import VsphereMachine
    from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
    from nearmetal.host.vcenter.session import Session

pytestmark = pytest.mark.system

NODES = """\
rules:
  - {name: spread, kind: apart, nodes: [n0, n2]}
hosts:
  - name: h0
    esxi: DC0_C0_H0
    nodes:
      - {name: n0}
      - {name: n1}
  - name: h1
    esxi: DC0_C0_H1
    nodes:
      - {name: n2}
      - {name: n3, power: off}
"""

MACHINE = f"""\
machine:
  template: {TEMPLATE}
  vcpus: 2
  memory: 64 MiB
  memory_reservation: full
  adapters:
    - {{kind: vmxnet3, port_group: VM Network}}
    - {{kind: sriov, port_group: DC0_DVPG0, pf: '0000:3b:00.0', guest_mtu: true}}
  guest: {{address: 10.0.0.11-10.0.0.14/24, gateway: 10.0.0.1, domain: x.org}}
parallel: 3
"""


@pytest.fixture(scope="module")
def vcenter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    yield from simulator(tmp_path_factory.mktemp("vcenter"))


@pytest.fixture
def own(vcenter: Simulator, password: None) -> Iterator[Session]:
    del password
    session = vcenter.session()
    yield session
    session.close()


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "pass")


def rules_of(content: Any) -> dict[str, set[str]]:
    compute = content.rootFolder.childEntity[0].hostFolder.childEntity[0]
    return {r.name: {vm.name for vm in r.vm} for r in compute.configurationEx.rule or []}


def test_a_cluster_from_up_to_down(vcenter: Simulator, own: Session, tmp_path: Path) -> None:
    text = vcenter.head("life") + MACHINE + NODES
    content = own.content
    assert raised(text, tmp_path).count(Action.CREATE) == 5
    there = machines_of(content, "life")
    assert sorted(there) == ["n0", "n1", "n2", "n3"]
    config = there["n1"].config
    assert (config.hardware.numCPU, config.hardware.memoryMB) == (2, 64)
    assert config.memoryReservationLockedToMax
    cards = [type(d).__name__ for d in config.hardware.device if hasattr(d, "macAddress")]
    assert sorted(name.rpartition(".")[2] for name in cards) == [
        "VirtualSriovEthernetCard",
        "VirtualVmxnet3",
    ]
    assert {name: vm.runtime.powerState for name, vm in there.items()} == {
        "n0": "poweredOn",
        "n1": "poweredOn",
        "n2": "poweredOn",
        "n3": "poweredOff",
    }
    # Lists of devices are read without the chassis; what a machine says of itself has it all.
    key, names = "config.hardware.device", [type(d).__name__ for d in config.hardware.device]
    read = fetch(content, content.rootFolder, vim.VirtualMachine, [key])
    assert [type(d).__name__ for d in read[there["n1"]][key]] == cards
    assert "vim.vm.device.VirtualDisk" in names
    assert there["n2"].runtime.host.name == "DC0_C0_H1"
    assert there["n2"].guest.ipAddress == "10.0.0.13"
    assert rules_of(content) == {"nearmetal.life.spread": {"n0", "n2"}}
    assert raised(text, tmp_path).empty

    changed = text.replace("{name: n1}", "{name: n1, vcpus: 4}")
    plan = raised(changed, tmp_path)
    assert [(str(c.key), c.in_place) for c in plan.effective] == [("node n1", True)]
    assert machines_of(content, "life")["n1"] == there["n1"]
    assert there["n1"].config.hardware.numCPU == 4
    assert there["n1"].runtime.powerState == "poweredOn"
    assert raised(changed, tmp_path).empty

    drift(own, there)
    plan = plan_of(changed, tmp_path)
    differ = {c.key.name: {name for name, _, _ in c.differences} for c in plan.effective}
    assert differ == {"n0": {"power", "rules"}, "n2": {"adapters", "rules"}, "n3": {"vcpus"}}
    raised(changed, tmp_path)
    assert raised(changed, tmp_path).empty
    assert rules_of(content) == {"nearmetal.life.spread": {"n0", "n2"}}

    spec = spec_of(changed)
    down(opened(spec, tmp_path))
    assert machines_of(content, "life") == {}
    assert "life" not in [f.name for f in content.rootFolder.childEntity[0].vmFolder.childEntity]
    assert rules_of(content) == {}
    assert not (tmp_path / "state").exists()


def drift(own: Session, there: dict[str, Any]) -> None:
    """Change by hand: power, an adapter, processors, and the rule."""
    own.wait("meddling", there["n0"].PowerOffVM_Task)
    card = next(
        d
        for d in there["n2"].config.hardware.device
        if isinstance(d, vim.vm.device.VirtualSriovEthernetCard)
    )
    gone = vim.vm.device.VirtualDeviceSpec(operation="remove", device=card)
    own.wait(
        "meddling", lambda: there["n2"].ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[gone]))
    )
    own.wait("meddling", lambda: there["n3"].ReconfigVM_Task(vim.vm.ConfigSpec(numCPUs=1)))
    compute = own.content.rootFolder.childEntity[0].hostFolder.childEntity[0]
    (rule,) = compute.configurationEx.rule
    spec = vim.cluster.ConfigSpecEx(
        rulesSpec=[vim.cluster.RuleSpec(operation="remove", removeKey=rule.key)]
    )
    own.wait("meddling", lambda: compute.ReconfigureComputeResource_Task(spec, True))


def test_linked_clones_and_another_template_needs_replace(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    head = vcenter.head("linked")
    text = f"{head}machine: {{template: {TEMPLATE}, clone: linked}}\nhosts: [{{name: h, nodes: [{{name: n0}}]}}]\n"
    raised(text, tmp_path)
    other = text.replace("clone: linked", "clone: full")
    with pytest.raises(StateError, match="already up under another spec"):
        raised(other, tmp_path)
    before = machines_of(own.content, "linked")["n0"]
    raised(other, tmp_path, replace=True)
    assert machines_of(own.content, "linked")["n0"] != before
    down(opened(spec_of(other), tmp_path))


def test_a_session_that_expired_is_opened_again(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("again") + MACHINE + NODES
    spec = spec_of(text)
    cluster = opened(spec, tmp_path)
    assert not plan_up(cluster, spec).empty
    content = own.content
    manager = content.sessionManager
    mine = manager.currentSession.key
    keys = [s.key for s in manager.sessionList if s.key != mine]
    assert keys
    manager.TerminateSession(keys)
    up(cluster, spec)
    assert plan_up(cluster, spec).empty
    down(cluster)


def test_one_machine_that_fails_leaves_the_others_and_is_taken_up(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("part") + MACHINE + NODES
    spec = spec_of(text)
    content = own.content
    folder = content.rootFolder.childEntity[0].vmFolder
    made = folder.CreateFolder("part")
    template = next(
        v for v in content.rootFolder.childEntity[0].vmFolder.childEntity if v.name == TEMPLATE
    )
    pool = content.rootFolder.childEntity[0].hostFolder.childEntity[0].resourcePool
    place = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=pool), powerOn=False, template=False)
    own.wait("meddling", lambda: template.CloneVM_Task(made, "n1", place))
    with pytest.raises(BackendError, match="1 of 4 machines failed") as caught:
        up(unchecked(spec, tmp_path), spec)
    assert "node n1: cloning: DuplicateName" in caught.value.message
    assert "rename the node" in caught.value.hint
    assert len(machines_of(content, "part")) == 4
    with pytest.raises(BackendError, match="has objects of another owner: n1"):
        down(opened(spec, tmp_path))
    own.wait("meddling", machines_of(content, "part")["n1"].Destroy_Task)
    raised(text, tmp_path)
    assert raised(text, tmp_path).empty
    down(opened(spec, tmp_path))


class CutShort(MachineWork):
    """Clones, and gets no further."""

    def _complete(self, *_: object) -> None:
        raise BackendError("killed")


class Cutting(VsphereBackend):
    """A backend whose machines are cut short."""

    def _machine_work(self) -> MachineWork:
        return CutShort(self._session, self._places(), self.spec)


def test_a_machine_that_was_only_begun_is_completed_in_place(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    text = vcenter.head("begun") + MACHINE + NODES
    spec = spec_of(text)
    store = Store(tmp_path / "state")
    with pytest.raises(BackendError, match="4 of 4 machines failed"):
        up(Cluster(spec.name, Cutting(spec, store), store), spec)
    begun = machines_of(own.content, "begun")
    plan = plan_of(text, tmp_path)
    assert all(c.in_place for c in plan.effective)
    assert {c.why for c in plan.effective} == {"its creation was interrupted"}
    raised(text, tmp_path)
    assert machines_of(own.content, "begun") == begun
    assert raised(text, tmp_path).empty
    down(opened(spec, tmp_path))


class CountedWork(MachineWork):
    """Counts how many machines are made at a time."""

    def __init__(self, backend: Counting) -> None:
        super().__init__(backend._session, backend._places(), backend.spec)
        self._counter = backend

    def make(self, name: str, wanted: VsphereMachine) -> None:
        counter = self._counter
        with counter.lock:
            counter.busy += 1
            counter.most = max(counter.most, counter.busy)
        try:
            super().make(name, wanted)
        finally:
            with counter.lock:
                counter.busy -= 1


class Counting(VsphereBackend):
    """A backend whose work is counted."""

    def __init__(self, spec: VsphereSpec, store: Store) -> None:
        super().__init__(spec, store)
        self.lock = threading.Lock()
        self.busy = self.most = 0

    def _machine_work(self) -> MachineWork:
        return CountedWork(self)


def test_records_that_outlived_their_cluster_are_no_cluster(
    vcenter: Simulator, tmp_path: Path
) -> None:
    """`down` was killed between the folder and the records."""
    text = vcenter.head("ghost") + MACHINE + NODES
    for work in (lambda: raised(text, tmp_path), lambda: None):
        directory = tmp_path / "state" / "clusters" / "ghost"
        directory.mkdir(parents=True)
        (directory / "spec.json").write_text("{}")
        work()
        down(opened(spec_of(text), tmp_path))
        assert not (tmp_path / "state").exists()


def test_no_more_machines_at_a_time_than_the_spec_says(
    vcenter: Simulator, own: Session, tmp_path: Path
) -> None:
    nodes = "".join(f"{{name: n{i}}}, " for i in range(16))
    text = (
        vcenter.head("many")
        + f"machine: {{template: {TEMPLATE}}}\nparallel: 3\nhosts: [{{name: h, nodes: [{nodes}]}}]\n"
    )
    spec = spec_of(text)
    store = Store(tmp_path / "state")
    backend = Counting(spec, store)
    up(Cluster(spec.name, backend, store), spec)
    assert 1 < backend.most <= 3
    assert len(machines_of(own.content, "many")) == 16
    assert raised(text, tmp_path).empty
    down(opened(spec, tmp_path))


def test_a_certificate_nobody_vouches_for_is_refused(vcenter: Simulator, tmp_path: Path) -> None:
    for trust in ("", f"thumbprint: '{':'.join(['AB'] * 32)}'"):
        text = vcenter.head("tls", trust) + MACHINE + NODES
        with pytest.raises(BackendError, match="is not trusted") as caught:
            plan_of(text, tmp_path)
        assert "thumbprint" in caught.value.hint
    trusted = vcenter.head("tls", f"ca_file: {vcenter.certificate}") + MACHINE + NODES
    assert not plan_of(trusted, tmp_path).empty


def test_a_wrong_password_is_tried_once(
    vcenter: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "wrong-secret")
    spec = spec_of(vcenter.head("login") + MACHINE + NODES)
    cluster = opened(spec, tmp_path)
    for _ in range(2):
        with pytest.raises(BackendError, match="refuses user user") as caught:
            plan_up(cluster, spec)
        assert "wrong-secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (TEMPLATE, "gold", "template 'gold' is not there"),
        ("DC0_C0_H1", "esx9", "esxi 'esx9' is not there"),
        ("VM Network", "lan", "port group 'lan' is not there"),
        ("parallel: 3", "datacenter: north", "datacenter 'north' is not there"),
    ],
)
def test_what_the_spec_names_must_be_there(
    vcenter: Simulator, tmp_path: Path, old: str, new: str, what: str
) -> None:
    spec = spec_of((vcenter.head("names") + MACHINE + NODES).replace(old, new))
    with pytest.raises(BackendError, match=what) as caught:
        up(opened(spec, tmp_path), spec)
    assert "known here: " in caught.value.message + caught.value.hint
    assert not (tmp_path / "state" / "clusters" / "names").exists()


VHPC = f"""\
[BASE]
template: {TEMPLATE}
cpu: 2
memory: 0.125
datacenter: DC0
cluster: DC0_C0
[NET]
port_group: VM Network
is_dhcp: no
netmask: 255.255.255.0
[VF]
sriov_port_group: DC0_DVPG0
pf: 0000:3b:00.0
[_VMS_]
m_{{1:4}}: BASE NET VF host: DC0_C0_H{{{{0:1}}}} ip: 10.0.0.{{1:4}}
"""


def test_an_imported_cluster_file_is_made_by_the_command_line(
    vcenter: Simulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    source, target = tmp_path / "old.conf", tmp_path / "old.yaml"
    source.write_text(VHPC)
    words = ["--vcenter", "127.0.0.1", "--user", "user", "--output", str(target)]
    assert main(["import", "vhpc", str(source), *words]) == 0
    text = target.read_text()
    head, _, rest = text.partition("machine:")
    target.write_text(f"{vcenter.head('old')}machine:{rest}")
    assert "server: 127.0.0.1" in head
    assert main(["plan", str(target)]) == 3
    assert main(["up", str(target)]) == 0
    assert "cluster old is up" in capsys.readouterr().out
    assert main(["plan", str(target)]) == 0
    assert main(["status", str(target)]) == 0
    assert "running" in capsys.readouterr().out
    assert main(["exec", str(target), "m-1", "--", "true"]) == 1
    assert "its spec does not say how jobs reach the machines" in capsys.readouterr().err
    assert main(["down", "--yes", str(target)]) == 0
