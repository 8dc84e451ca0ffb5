# SPDX-License-Identifier: Apache-2.0
"""Cluster files of vhpc-toolkit: what they mean, what is refused, and that nothing is evaluated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.cli.main import main
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.backends.vsphere.vhpc import Imported, Target, import_vhpc
from nearmetal.cluster.backends.vsphere.vhpc.ranges import parse_range, spread
from nearmetal.cluster.backends.vsphere.vhpc.text import MACHINE_KEYS, SWITCH_KEYS
from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import SpecError

HERE = Path(__file__).parent / "vhpc"
FILES = sorted(HERE.rglob("*.conf"))
TARGET = Target("c", "vc.example.org", "root", folder=Path("/site"))

BASE = "[B]\ntemplate: t\n"


def imported(text: str) -> Imported:
    return import_vhpc(text, "c.conf", TARGET)


def spec_of(text: str) -> VsphereSpec:
    spec = parse_spec(imported(text).text)
    assert isinstance(spec, VsphereSpec)
    return spec


def of_file(name: str) -> tuple[VsphereSpec, tuple[str, ...]]:
    path = next(path for path in FILES if path.stem == name)
    return spec_of(path.read_text()), imported(path.read_text()).notes


def planned(spec: VsphereSpec) -> dict[str, dict[str, str]]:
    return {r.key.name: dict(r.attributes) for r in desired(spec, Facts()).resources}


def hosts_of(spec: VsphereSpec) -> dict[str, str]:
    return {node.name: host.esxi for host, node in spec.nodes}


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        imported(text)
    return [str(problem) for problem in caught.value.problems]


def vms(*lines: str) -> str:
    return "\n".join([BASE, "[_VMS_]", *lines, ""])


def test_the_files_are_there() -> None:
    assert (len(list(HERE.glob("*.conf"))), len(FILES)) == (7, 16)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_kind_of_example_gives_a_sound_spec_that_plans(path: Path) -> None:
    spec = spec_of(path.read_text())
    assert all(attributes for attributes in planned(spec).values())


def test_a_range_in_double_braces_gives_blocks() -> None:
    spec, _ = of_file("linked")
    hosts = hosts_of(spec)
    assert [hosts[f"lean{i}"][:4] for i in range(1, 13)] == ["esx1"] * 4 + ["esx2"] * 4 + [
        "esx3"
    ] * 4
    assert spec.machine.clone == "linked"


def test_a_range_in_single_braces_goes_round() -> None:
    spec, notes = of_file("sriov")
    hosts = hosts_of(spec)
    assert [hosts[f"vf{i}"] for i in range(1, 9)] == [
        f"esx{i}.lab.example" for i in (1, 2, 3, 4, 1, 2, 3, 4)
    ]
    found = planned(spec)
    assert found["vf1"]["adapters"] == (
        "vmxnet3 port_group=lan; sriov port_group=vf-pg pf=0000:af:00.0"
    )
    assert found["vf-switch"]["esxi_members"].split(",") == [
        f"esx{i}.lab.example" for i in range(1, 5)
    ]
    assert (found["vf1"]["memory"], found["vf1"]["vcpus"]) == ("48 GiB", "12")
    assert json.loads(found["vf1"]["guest"])["dns"] == ["10.30.0.2", "10.30.0.3"]
    assert notes == ()


def test_addresses_and_a_distributed_switch() -> None:
    spec, _ = of_file("pvrdma")
    assert spec.guest_addresses() == {f"rdma{i}": f"10.30.1.{i}/16" for i in range(1, 5)}
    assert planned(spec)["rdma-switch"]["nics"] == "vmnic5,vmnic6"
    assert "pvrdma port_group=rdma-pg switch=rdma-switch" in planned(spec)["rdma3"]["adapters"]


def test_devices_bring_what_vsphere_demands_with_a_note() -> None:
    spec, notes = of_file("gpu")
    found = planned(spec)["gpu2"]
    assert (found["memory_reservation"], found["mmio"]) == ("full", "128 GiB")
    assert found["memory"] == "98816 MiB"
    assert any("memory_reservation: set to full: passthrough needs it" in note for note in notes)
    assert any(
        "gateway: 10.99.0.1 is left out: it is not in 10.30.2.0/24" in note for note in notes
    )
    assert planned(of_file("vgpu")[0])["slice3"]["power"] == "off"
    assert "256 GiB" in planned(of_file("sriov-gpu")[0])["learn1"]["mmio"]


def test_macros_and_words_override_from_left_to_right() -> None:
    text = "[A]\ntemplate: t\ncpu: 2\n[Z]\ncpu: 4\ncpu_shares:\n[_VMS_]\n"
    text += "v1: A Z\nv2: Z A\nv3: A Z cpu: 8\nv4: cpu:8 A\n"
    found = planned(spec_of(text))
    assert [found[f"v{i}"]["vcpus"] for i in range(1, 5)] == ["4", "2", "8", "2"]


def test_scripts_are_taken_over_and_passwords_are_left_out() -> None:
    text = next(path for path in FILES if path.stem == "plain-scripts").read_text()
    result = imported(text)
    told = "\n".join(result.notes)
    for word in (
        "scripts/prepare.sh is taken from /site, where the import ran",
        "by ssh with a key that cloud-init of the template gets",
        "guest_password: is left out",
    ):
        assert word in told
    assert scripts_of(spec_of(text)) == [
        ("/site/scripts/prepare.sh", 0, ["node-a"]),
        ("/site/scripts/use.sh", 1, ["node-b"]),
    ]
    assert "do-not-print-me" not in result.text + told
    spec = spec_of(text)
    assert [(n.name, n.vm) for _, n in spec.nodes] == [("node-a", "node_a"), ("node-b", "node_b")]


EVERY_KEY = """\
[ALL]
template: t
cpu: 4
memory: 8
datacenter: d
vm_folder: f
cluster: k
host: e1
datastore: ds
resource_pool: rp
port_group: pg
is_dhcp: no
ip: 10.0.0.5
guest_hostname: gh
netmask: 255.255.255.0
gateway: 10.0.0.1
domain: x.org
dns: ['10.0.0.2']
device: ['0000:3b:00.0']
latency: high
cpu_reservation: 1
memory_reservation: t
cores_per_socket: 2
secure_boot: off
allow_guest_mtu_change: 1
svs_name: standard
cpu_shares: 2000
memory_shares: 3000
guest_username: root
guest_password: secret-word
script: s.sh
barrier: 1
sequence: 2
sriov_port_group: sp
pf: 0000:af:00.0
sriov_dvs_name: isw
pvrdma_port_group: pp
vgpu: grid_v100-8q
power: on
dvs_name: sw
mmio_size: 64
linked: true
instant: yes
adapter_number: 1
[_VMS_]
v: ALL
[_SVS_]
s: host: e1 port_group: x pnic: vmnic1 mtu: 9000
"""


def test_every_key_is_taken_over_or_told() -> None:
    given = {line.partition(":")[0] for line in EVERY_KEY.splitlines() if ": " in line}
    assert given - {"v", "s"} == MACHINE_KEYS
    assert {"port_group", "host", "pnic", "datacenter", "mtu", "name"} == SWITCH_KEYS
    spec = spec_of(EVERY_KEY)
    found = planned(spec)["v"]
    expected: dict[str, Any] = {
        "template": "t",
        "vcpus": "4",
        "cores_per_socket": "2",
        "secure_boot": "no",
        "slots": "4",
        "memory": "8 GiB",
        "esxi": "e1",
        "datastore": "ds",
        "resource_pool": "rp",
        "latency": "high",
        "cpu_reservation": "full",
        "memory_reservation": "full",
        "cpu_shares": "2000",
        "memory_shares": "3000",
        "power": "on",
        "mmio": "64 GiB",
        "clone": "linked",
    }
    assert {key: found[key] for key in expected} == expected
    assert found["adapters"].split("; ") == [
        "vmxnet3 port_group=pg",
        "sriov port_group=sp switch=isw pf=0000:af:00.0 guest_mtu=true",
        "pvrdma port_group=pp switch=sw",
        "passthrough device=0000:3b:00.0",
        "vgpu profile=grid_v100-8q",
    ]
    assert json.loads(found["guest"]) == {
        "address": "10.0.0.5/24",
        "dns": ["10.0.0.2"],
        "domain": "x.org",
        "gateway": "10.0.0.1",
        "hostname": "gh",
    }
    assert (spec.datacenter, spec.folder, spec.compute) == ("d", "f", "k")
    assert planned(spec)["s"]["mtu"] == "9000"
    told = "\n".join(imported(EVERY_KEY).notes)
    left_out = ("guest_username", "guest_password", "adapter_number", "svs_name", "instant")
    for key in (*left_out, "script", "sequence"):
        assert f": {key}: " in told
    assert "secret-word" not in told


def test_a_machine_with_several_functions_has_each_on_its_switch() -> None:
    spec, notes = of_file("several-pf")
    found = planned(spec)
    assert found["pair4"]["adapters"].split("; ") == [
        "vmxnet3 port_group=lan",
        "sriov port_group=left-pg switch=left-switch pf=0000:af:00.0 guest_mtu=true",
        "sriov port_group=right-pg switch=right-switch pf=0000:3b:00.0 guest_mtu=true",
    ]
    assert (found["left-switch"]["mtu"], found["right-switch"]["mtu"]) == ("9000", "1500")
    assert any("memory_reservation: set to full: sriov needs it" in note for note in notes)


def test_the_demonstration_of_release_1_0() -> None:
    spec, notes = of_file("demo")
    found = planned(spec)
    assert {name for name in found if name.startswith("demo-")} == {
        "demo-head",
        *(f"demo-compute{i}" for i in range(1, 5)),
    }
    one = found["demo-compute3"]
    assert (one["cores_per_socket"], one["secure_boot"], one["latency"]) == ("4", "yes", "high")
    assert found["demo-head"]["secure_boot"] == "no"
    assert found["lan-switch"]["port_groups"] == ""
    assert found["ib-switch"]["mtu"] == "4096"
    told = "\n".join(notes)
    assert "lan-switch: has no port_group: machines use only port groups that others make" in told
    assert "the numbers of demo-compute{001:004} have no leading zeros" in told


def scripts_of(spec: VsphereSpec) -> list[tuple[str, int, list[str] | None]]:
    return [(entry.script, entry.step, entry.nodes) for entry in spec.post]


def test_scripts_run_in_the_order_of_the_toolkit() -> None:
    spec, notes = of_file("sequence")
    assert spec.ssh is not None
    assert scripts_of(spec) == [
        ("/site/scripts/last.sh", 1, ["step2"]),
        ("/site/scripts/three.sh", 2, ["step1"]),
        ("/site/scripts/one.sh", 3, ["step1"]),
        ("/site/scripts/three.sh", 3, ["step2"]),
    ]
    assert any("numbered again in this order: 10, 2" in note for note in notes)
    spec, notes = of_file("no-step")
    assert scripts_of(spec) == [("/site/scripts/hello.sh", 1, None)]
    assert any("0 has no effect: there is no script before it" in note for note in notes)


def test_scripts_of_customized_guests_need_a_key() -> None:
    words = "script:a sequence:3 script:/b sequence:12 ip:10.0.0.5 netmask:255.255.255.0"
    text = f"{BASE}[_VMS_]\nv: B {words}\n"
    result = imported(text)
    told = "\n".join(result.notes)
    assert "a is left out, on v in step 3: the guests are customized" in told
    assert "import with --identity KEY" in told
    assert "ssh" not in result.text
    result = import_vhpc(text, "f.conf", replace(TARGET, identity=Path("/k/root")))
    spec = parse_spec(result.text)
    assert isinstance(spec, VsphereSpec)
    assert spec.ssh is not None
    assert spec.ssh.identity == "/k/root"
    # As text, 12 is before 3.
    assert scripts_of(spec) == [("/b", 1, None), ("/site/a", 2, None)]


def test_a_script_twice_in_a_machine_runs_once() -> None:
    text = f"{BASE}[_VMS_]\nv: B script:a sequence:1 script:a sequence:2\n"
    spec = spec_of(text)
    assert scripts_of(spec) == [("/site/a", 1, None)]
    assert any("a runs once in v, in its first step" in note for note in imported(text).notes)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("v: B instant:yes", "instant: is left out: vhpc-toolkit makes a full or linked clone"),
        ("v: B power:no", "power: no means on, as in vhpc-toolkit"),
        ("v: B mmio_size:64", "mmio_size: has no meaning without a device"),
        ("v: B device:0000:3b:00.0 mmio_size:100", "set to 256 GiB as in vhpc-toolkit: 100 is not"),
        ("v: B allow_guest_mtu_change:1", "has no meaning without an SR-IOV adapter"),
        ("v: B dvs_name:s", "dvs_name: s is left out: no adapter of the machine needs it"),
        ("v: B sriov_dvs_name:s", "no adapter of the machine needs it"),
        ("v: B guest_hostname:h", "with DHCP; vhpc-toolkit does so only with ip or is_dhcp"),
        ("v: B pvrdma_port_group:p dvs_name:s", "memory_reservation: set to full: pvrdma needs it"),
        ("v: B cpu:0", "cpu: 0 means the processors of the template"),
    ],
)
def test_what_a_spec_does_not_have_is_noted_with_its_line(line: str, what: str) -> None:
    notes = imported(vms(line)).notes
    assert any(note.startswith("c.conf:5: ") and what in note for note in notes), notes


@pytest.mark.parametrize(
    ("line", "adapters"),
    [
        ("port_group:p dvs_name:s", "vmxnet3 port_group=p switch=s"),
        (
            "port_group:p sriov_port_group:v pf:0000:3b:00.0 dvs_name:s",
            "vmxnet3 port_group=p; sriov port_group=v switch=s pf=0000:3b:00.0",
        ),
        (
            "sriov_port_group:v pf:0000:3b:00.0 pvrdma_port_group:r dvs_name:s",
            "sriov port_group=v pf=0000:3b:00.0; pvrdma port_group=r switch=s",
        ),
    ],
)
def test_the_switch_of_a_machine_belongs_to_its_special_adapter(line: str, adapters: str) -> None:
    spec = spec_of(vms(f"v: B host:e1 {line}"))
    assert planned(spec)["v"]["adapters"] == adapters


def test_the_guest_has_the_name_of_its_machine() -> None:
    spec = spec_of(vms("Node1: B is_dhcp:1", "7up: B is_dhcp:1", "plain: B is_dhcp:1"))
    names = [json.loads(planned(spec)[n.name]["guest"])["hostname"] for _, n in spec.nodes]
    assert names == ["Node1", "7up", "plain"]


def test_names_of_every_script_and_500_machines_are_taken_over() -> None:
    spec, _ = of_file("unicode")
    assert [n.vm for _, n in spec.nodes] == ["größe1", "größe2", "机器1", "机器2", "узел"]
    assert len({n.name for _, n in spec.nodes}) == 5
    assert len(of_file("many")[0].nodes) == 500


BAD_RANGES = [
    ("vm{1:4: B", "a brace is not closed"),
    ("vm1:4}: B", "a brace is not closed"),
    ("vm{1:}: B", "lacks a number"),
    ("vm{:4}: B", "lacks a number"),
    ("vm{-1:4}: B", "is negative"),
    ("vm{1 :4}: B", "has a blank in it"),
    ("vm{1-4}: B", "is not a range of numbers"),
    ("vm{a:b}: B", "is not a range of numbers"),
    ("vm{4:1}: B", "goes down from 4 to 1"),
    ("vm{1:99999}: B", "has 99999 values"),
    ("vm{1:2}{1:3}: B", "has two ranges"),
    ("vm{{1:2}: B", "a brace is not closed"),
    ("vm{{1:4}}: B", "each machine has its own name"),
    ("vm{1:4}: B host: e{1:8}", "has 8 values for 4 machines"),
    ("vm{1:4}: B host: e{{1:3}}", "needs the same number of machines"),
    ("vm{1:4}: B host: e{{1:2}", "different braces"),
    ("vm{1:4}: B host: e{1:2", "a brace that is not closed"),
    ("vm{1:4}: B host: e{{{1:2}}}", "three braces in a row"),
    ("vm{1:4}: B cpu: {1:4}", "this key does not take a range"),
    ("vm1: B host: e{1:4}", "vm1 is one machine"),
]


@pytest.mark.parametrize(("line", "what"), BAD_RANGES, ids=[line for line, _ in BAD_RANGES])
def test_a_malformed_range_is_told_with_its_line(line: str, what: str) -> None:
    found = problems(vms(line))
    assert len(found) == 1
    assert found[0].startswith("c.conf:5:")
    assert what in found[0]


BAD_FILES = [
    ("key: 1\n", "c.conf:1:", "a key before any section"),
    (BASE, "c.conf:1:", "no machine"),
    ("[B\ntemplate: t\n", "c.conf:1:", "is not [NAME]"),
    (vms("v: B") + "[B]\n", "c.conf:6:", "occurs twice"),
    (vms("v: B", "v: B"), "c.conf:6:", "'v' twice in [_VMS_]"),
    (vms("v1: B", "v{1:2}: B"), "c.conf:6:", "machine 'v1' twice"),
    (vms("v: BB"), "c.conf:5:", "did you mean 'B'?"),
    (vms("v: B cpus:4"), "c.conf:5:", "did you mean 'cpu'?"),
    (vms("v: B cpu:four"), "c.conf:5:", "is not a whole number"),
    (vms("v: B memory:-1"), "c.conf:5:", "is not a number"),
    (vms("v: B linked:maybe"), "c.conf:5:", "is neither yes nor no"),
    (vms("v: B device: ['a'"), "c.conf:5:", "a list without an end"),
    (vms("v: B device: [__import__('os')]"), "c.conf:5:", "is not a list of quoted words"),
    (vms("v: B pf: 0000:3b:00.0"), "c.conf:5:", "pf without sriov_port_group"),
    (vms("v: cpu:4"), "c.conf:5:", "has no template"),
    (vms("v: B ip: 10.0.0.1"), "c.conf:5:", "no netmask"),
    (vms("v: B ip: 10.0.0.300 netmask: 255.0.0.0"), "c.conf:5:", "10.0.0.300"),
    (vms("v: B is_dhcp: no"), "c.conf:5:", "no ip"),
    (vms("v: B datacenter:a", "w: B datacenter:b"), "c.conf:6:", "a cluster has one"),
    (vms("v: B cluster: ${NAME}"), "c.conf:5:", "a placeholder ${...}; write the value of your"),
    (vms("v: B cores_per_socket:0"), "c.conf:5:", "cores_per_socket: 0: is out of range"),
    (vms("v: B latency:low"), "c.conf:5:", "latency: low: is not supported; use 'normal'"),
    (vms("v: B vgpu:a/b"), "c.conf:5:", "vgpu: a/b: is not a vGPU profile"),
    (vms("v: B datastore:a/b"), "c.conf:5:", "has a character that vCenter escapes"),
    (vms("v: B host:a/b"), "c.conf:5:", "host: a/b: has a character that vCenter escapes"),
    (vms("v: B vm_folder:a//b"), "c.conf:5:", "vm_folder: a//b: is not a name of vCenter"),
    (vms("v: B", "[_DVS_]", "s: host: e1 mtu: 900"), "c.conf:7:", "mtu: 900: is out of range"),
    (vms("v: B", "[_DVS_]", "s: pnic: eth0"), "c.conf:7:", "pnic: ['eth0']: is not an uplink"),
    (
        vms("v: B pf:0000:3b:00.0 pf:0000:af:00.0 sriov_port_group:p"),
        "c.conf:5:",
        "2 pf and 1 sriov_port_group: SR-IOV needs both; write one sriov_port_group for each pf",
    ),
    (
        vms("v: B pf:0000:3b:00.0 sriov_port_group:p sriov_dvs_name:a sriov_dvs_name:b"),
        "c.conf:5:",
        "1 pf and 2 sriov_dvs_name: each adapter is on one switch; write one sriov_dvs_name",
    ),
    (vms("v: B pf:vmnic4 sriov_port_group:p"), "c.conf:5:", "is not a PCI address"),
    (vms("v: B _VMS_"), "c.conf:5:", "as a macro"),
    (vms("v: B", "[_SVS_]", "s: host: e{{1:2}} port_group: p"), "c.conf:7:", "each host once"),
    (vms("v: B", "[_DVS_]", "s{1:2}: port_group: p"), "c.conf:7:", "its name has a range"),
    ("[DEFAULT]\ncpu: 1\n" + vms("v: B"), "c.conf:1:", "in every section"),
    (vms("v: B host: %(x)s"), "c.conf:5:", "interpolation of values is not supported"),
]


@pytest.mark.parametrize(("text", "where", "what"), BAD_FILES, ids=[w for _, _, w in BAD_FILES])
def test_what_is_wrong_is_told_with_its_line(text: str, where: str, what: str) -> None:
    found = problems(text)
    assert any(one.startswith(where) and what in one for one in found), found


def test_a_value_goes_on_in_an_indented_line() -> None:
    spec = spec_of("[B]\ntemplate: t\n[_VMS_]\nv{1:2}: B\n    cpu: 2\n  # a comment\n")
    assert planned(spec)["v2"]["vcpus"] == "2"


def test_names_become_ours_and_stay_apart() -> None:
    spec = spec_of(vms("node_1: B", "node.1: B", "7up: B", "launcher: B"))
    assert [(n.name, n.vm) for _, n in spec.nodes] == [
        ("node-1", "node_1"),
        ("node-1-2", "node.1"),
        ("n7up", "7up"),
        ("launcher-2", "launcher"),
    ]


@given(st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_a_range_gives_every_machine_a_value(nr_machines: int, nr_values: int, block: bool) -> None:
    braces = ("{{", "}}") if block else ("{", "}")
    found = parse_range(f"h{braces[0]}1:{nr_values}{braces[1]}.org")
    assert found is not None
    if nr_values > nr_machines or (block and nr_machines % nr_values):
        with pytest.raises(ValueError, match="values for"):
            spread(found, nr_machines)
        return
    values = spread(found, nr_machines)
    assert len(values) == nr_machines
    assert set(values) == set(found.values)
    if block:
        assert values == sorted(values, key=found.values.index)


def sound_or_explained(text: str) -> bool:
    try:
        return imported(text).machines > 0
    except SpecError as error:
        return all(problem.line >= 1 and problem.what for problem in error.problems)


@given(st.text(alphabet=st.sampled_from("[]_VMSvb{}:=,'\"1 \n#%"), max_size=60))
def test_any_text_gives_a_spec_or_problems(text: str) -> None:
    assert sound_or_explained(text)
    assert sound_or_explained(f"{BASE}[_VMS_]\n{text}")


def test_the_verb_writes_a_spec_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = next(path for path in FILES if path.stem == "gpu")
    target = tmp_path / "gpu.yaml"
    words = ["import", "vhpc", str(source), "--vcenter", "vc.example.org", "--output", str(target)]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "2 machines" in told.out
    assert "note" in told.err
    spec = parse_spec(target.read_text())
    assert (spec.name, len(spec.nodes)) == ("gpu", 2)
    assert main(words) == 1
    assert "exists" in capsys.readouterr().err


def test_what_vsphere_forbids_is_told_and_exits_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "c.conf"
    source.write_text(vms("v: B sriov_port_group:p pf:0000:3b:00.0"))
    words = ["import", "vhpc", str(source), "--vcenter", "vc", "--json"]
    assert main(words) == 4
    data = json.loads(capsys.readouterr().out)
    assert "a sriov adapter on any host" in data["problems"][0]
    assert data["machines"] == 1


def test_a_broken_file_exits_1_with_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "c.conf"
    source.write_text(vms("v{1:: B"))
    assert main(["import", "vhpc", str(source), "--vcenter", "vc"]) == 1
    assert f"{source}:5:1: " in capsys.readouterr().err
