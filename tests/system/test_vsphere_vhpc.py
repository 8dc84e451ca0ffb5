# SPDX-License-Identifier: Apache-2.0
"""Cluster files of all releases of vhpc-toolkit on a simulated vCenter.

Each file is imported, planned, made, planned again, changed in place and removed.
"""

from __future__ import annotations

import json
import re
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

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

FILES = sorted((Path(__file__).parents[1] / "python" / "vhpc").rglob("*.conf"))

EXPECTED: dict[str, tuple[int, tuple[str, ...]]] = {
    "gpu": (2, ()),
    "linked": (12, ()),
    "plain-scripts": (2, ()),
    "pvrdma": (4, ("distributed rdma-switch",)),
    "sriov": (8, ("vf-switch",)),
    "sriov-gpu": (8, ("vf-switch",)),
    "vgpu": (3, ()),
    "demo": (5, ("distributed lan-switch", "distributed ib-switch")),
    "macros": (4, ()),
    "many": (500, ()),
    "no-step": (2, ()),
    "ranges": (12, ()),
    "sequence": (2, ()),
    "several-pf": (4, ("distributed left-switch", "distributed right-switch")),
    "switches": (1, ("fast", "spare", "new")),
    "unicode": (5, ()),
}
"""How many machines each file asks for, and its switches."""

TREE = {
    "demo": {
        "demo-head": "adapter vmxnet3 port_group=lan",
        "demo-compute4": "adapter sriov port_group=ib-pg pf=0000:af:00.0 guest_mtu=false",
        "demo-compute1": "cores_per_socket 4",
    },
    "linked": {"lean12": "esxi esx3.lab.example", "lean1": "adapter VirtualE1000 port_group="},
}
"""Nodes in the tree of `status`, with something that they have; a linked clone is as its template."""

OFF = {"vgpu": "all", "macros": ("m2", "m3", "Big4")}
"""Machines that stay off."""


def lab(session: Session) -> None:
    """Give the simulated vCenter what the files name."""
    content = session.content
    center = content.rootFolder.childEntity[0]
    compute = center.hostFolder.childEntity[0]
    template = next(vm for vm in center.vmFolder.childEntity if vm.name == TEMPLATE)
    for thing, name in ((template, "gold"), (compute, "rack7"), (center, "north")):
        session.wait("preparing", partial(thing.Rename_Task, name))
    template.MarkAsVirtualMachine(pool=compute.resourcePool, host=template.runtime.host)
    efi = vim.vm.ConfigSpec(firmware="efi")
    session.wait("preparing", partial(template.ReconfigVM_Task, efi))
    template.MarkAsTemplate()
    for host in compute.host:
        system = host.configManager.networkSystem
        for name in ("lan", "Büro-LAN"):
            group = vim.host.PortGroup.Specification(
                name=name, vlanId=0, vswitchName="vSwitch0", policy=vim.host.NetworkPolicy()
            )
            system.AddPortGroup(group)


def nr_hosts(path: Path) -> int:
    # The simulator hangs machines on a distributed switch only where all hosts have it.
    return {"pvrdma": 2, "demo": 2, "several-pf": 2, "many": 20}.get(path.stem, 4)


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
    [
        pytest.param(
            path,
            path,
            id=path.stem,
            marks=[pytest.mark.full] if EXPECTED[path.stem][0] > 100 else [],
        )
        for path in FILES
    ],
    indirect=["vcenter"],
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
    # datastore has a name of its own, and its graphics cards an address.
    text = target.read_text().replace("datastore: fast", "datastore: LocalDS_0")
    if "gpu" in name:
        text = re.sub("0000:3[bB]:00.0", "0000:86:00.0", text)
    text = text.partition("  user: user\n")[2]
    # These machines have no guests; test_jobs_on_vsphere runs scripts.
    text = re.sub(r"(?ms)^ssh:.*?(?=^hosts:)", "", text)
    target.write_text(vcenter.head(name) + text)
    count, switches = EXPECTED[name]
    capsys.readouterr()
    assert main(["plan", "--json", str(target)]) == 3
    changes = json.loads(capsys.readouterr().out)["changes"]
    made = [change["kind"] for change in changes if change["action"] == "create"]
    assert (made.count("node"), made.count("network")) == (count, len(switches))
    assert main(["up", str(target)]) == 0
    assert main(["plan", str(target)]) == 0
    machines = machines_of(own.content, name)
    assert len(machines) == count
    off = machines if OFF.get(name) == "all" else OFF.get(name, ())
    assert {vm for vm, one in machines.items() if one.runtime.powerState == "poweredOff"} == {*off}
    now: Any = networks_of(own.content)
    check_switches(name, switches, before, now)
    check_machines(name, machines)
    capsys.readouterr()
    assert main(["status", str(target), "--tree"]) == 0
    tree = capsys.readouterr().out
    assert all(f"  node {node}, " in tree for node in TREE.get(name, {}))
    assert all(line in tree for line in TREE.get(name, {}).values())
    capsys.readouterr()
    target.write_text(vcenter.head(name) + "parallel: 16\n" + changed(name, text))
    assert main(["plan", str(target)]) == 3
    told = capsys.readouterr().out
    assert "-/+" not in told
    if {*off} != {*machines}:
        # Machines stop for a while, and there is no terminal to ask at.
        assert main(["up", str(target)]) == 2
        assert "would interrupt" in capsys.readouterr().err
    assert main(["up", str(target), "--yes"]) == 0
    assert main(["plan", str(target)]) == 0
    extra = [{o.key: o.value for o in vm.config.extraConfig} for vm in machines.values()]
    for key in ("pciPassthru.allowP2P", "pciPassthru.RelaxACSforP2P"):
        assert {options.get(key) for options in extra} == {"TRUE"}
    on = {vm for vm, one in machines.items() if one.runtime.powerState == "poweredOn"}
    assert on == ({*machines} if name == "vgpu" else {*machines} - {*off})
    assert machines_of(own.content, name) == machines
    assert main(["down", "--yes", str(target)]) == 0
    assert machines_of(own.content, name) == {}
    assert networks_of(own.content) == before
    assert not (tmp_path / "state").exists()


def changed(name: str, text: str) -> str:
    """Return a spec with another value of all machines, which changes in place.

    Machines with a vGPU are switched on, too: only then vCenter needs its profile.
    """
    head, _, rest = text.partition("machine:\n")
    if name == "vgpu":
        rest = rest.replace("power: 'off'", "power: 'on'")
    return f"{head}machine:\n  p2p: true\n{rest}"


def check_machines(name: str, machines: dict[str, Any]) -> None:
    """Check what the keys of release 1.0 made of the machines."""
    if name == "demo":
        secure = {vm: one.config.bootOptions.efiSecureBootEnabled for vm, one in machines.items()}
        assert secure == {vm: vm != "demo-head" for vm in machines}
        cores = {one.config.hardware.numCoresPerSocket for one in machines.values()}
        assert cores == {1, 4}
    elif name == "several-pf":
        kind = vim.vm.device.VirtualSriovEthernetCard
        for one in machines.values():
            cards: list[Any] = [d for d in one.config.hardware.device if isinstance(d, kind)]
            assert {card.sriovBacking.physicalFunctionBacking.id for card in cards} == {
                "0000:af:00.0",
                "0000:3b:00.0",
            }
            assert all(card.allowGuestOSMtuChange for card in cards)
            assert len({card.backing.port.switchUuid for card in cards}) == 2
    elif name == "unicode":
        assert set(machines) == {"größe1", "größe2", "机器1", "机器2", "узел"}
    elif name == "many":
        hosts = [machines[f"node{i}"].runtime.host.name for i in (1, 20, 250, 251)]
        assert hosts == [f"esx{i}.lab.example" for i in (1, 20, 10, 1)]


def check_switches(name: str, switches: tuple[str, ...], before: object, now: Any) -> None:
    if not switches:
        assert now == before
    for switch in switches:
        if not switch.startswith("distributed"):
            continue
        mtu, members, groups = now[switch]
        assert (mtu, members, [g for g in groups if g.endswith("-pg")]) == DISTRIBUTED[switch]
    if "vf-switch" in switches:
        hosts = [f"esx{i + 1}.lab.example" for i in range(4)]
        assert [now[host][switches[0]] for host in hosts] == [
            (1500, ["vmnic4"], [("vf-pg", 0)])
        ] * 4
    if name == "switches":
        first, second = (now[f"esx{i}.lab.example"] for i in (1, 2))
        assert first["fast"] == second["fast"] == (9000, ["vmnic4"], [("fast-pg", 0)])
        assert (first["spare"], first["new"]) == (
            (1500, ["vmnic5"], []),
            (1500, ["vmnic6"], [("new-pg", 0)]),
        )
        assert "spare" not in second


def _distributed(mtu: int, nics: list[str], groups: list[str]) -> tuple[int, object, list[str]]:
    return mtu, {f"esx{i}.lab.example": nics for i in (1, 2)}, groups


DISTRIBUTED = {
    "distributed rdma-switch": _distributed(1500, ["vmnic5", "vmnic6"], ["rdma-pg"]),
    "distributed lan-switch": _distributed(1500, ["vmnic5"], []),
    "distributed ib-switch": _distributed(4096, ["vmnic4"], ["ib-pg"]),
    "distributed left-switch": _distributed(9000, ["vmnic4"], ["left-pg"]),
    "distributed right-switch": _distributed(1500, ["vmnic2"], ["right-pg"]),
}


def test_secure_boot_needs_a_template_with_efi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PASSWORD, "pass")
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    for vcenter in simulator(tmp_path):
        spec = tmp_path / "spec.yaml"
        node = f"{{name: n1, template: {TEMPLATE}, secure_boot: true}}"
        spec.write_text(f"{vcenter.head('c')}hosts: [{{name: h1, nodes: [{node}]}}]\n")
        assert main(["up", str(spec)]) == 1
        told = capsys.readouterr().err
        assert f"template {TEMPLATE} boots by BIOS: secure boot needs EFI" in told
        assert "use a template with EFI, or leave secure_boot out" in told
