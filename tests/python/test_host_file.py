# SPDX-License-Identifier: Apache-2.0
"""Hosts files: what they may say, and where they are wrong."""

import json
from pathlib import Path

import pytest

from nearmetal.core.errors import SpecError
from nearmetal.host.hosts_file import expand, fold, hosts_schema, load_hosts, parse_hosts

GOOD = """\
version: 1
name: rack1
hosts:
  - nodes: "kvm[01-03,07]"
    platform: linux
    domain: rack-a
    bmc: {address: "https://bmc-{host}:8443/redfish", password: {env: BMC_PASSWORD}}
    bios: {sriov: true, attributes: {BootMode: Uefi}}
    adapters:
      - {model: ConnectX-5, firmware: 16.32.1010, ports: [{link: infiniband, vfs: 8}]}
    kernel: {iommu: passthrough, arguments: [mitigations=off]}
  - {nodes: "esx[1-2]", platform: esxi}
canary: kvm02
limits: {reboots: 4, per_domain: 2}
"""


def problems(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_hosts(text, "f")
    return caught.value.message


def test_a_good_file_names_its_hosts_in_order() -> None:
    file = parse_hosts(GOOD)
    assert [name for name, _ in file.each()] == ["kvm01", "kvm02", "kvm03", "kvm07", "esx1", "esx2"]
    assert file.limits.reboots == 4
    assert fold(list(expand("kvm[01-03,07]"))) == "kvm[01-03,07]"


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(GOOD)
    assert load_hosts(path) == parse_hosts(GOOD)


def test_the_schema_knows_every_key() -> None:
    schema = json.loads(hosts_schema())
    assert set(schema["properties"]) == {"version", "name", "hosts", "canary", "limits"}
    assert {"Adapter", "Bios", "Bmc", "HostGroup", "KernelSettings", "EsxiPackage"} <= set(
        schema["$defs"]
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"kvm[01-03,07]"', '"kvm[01-"', "f:4:12: hosts[0].nodes 'kvm[01-': "),
        ('"kvm[01-03,07]"', '"kvm[1-999999999]"', "names more than 4096 hosts"),
        ('"kvm[01-03,07]"', '"a[1-99]b[1-99]"', "names more than 4096 hosts"),
        ('"kvm[01-03,07]"', "'@all'", "is not a valid node set"),
        ('"kvm[01-03,07]"', "'-oProxyCommand=x'", "is not a valid node set"),
        ('"kvm[01-03,07]"', "'-n1'", "'-n1' is not a host name"),
        ("platform: linux", "platform: windows", "f:5:15: hosts[0].platform"),
        ("bmc-{host}", "bmc-{name}", "is not the URL of a BMC; use for example https://bmc-{host}"),
        ("https://", "ftp://", "is not the URL of a BMC"),
        (
            "password: {env: BMC_PASSWORD}",
            "password: {}",
            "needs one place; write one of env, file and keyring",
        ),
        (
            "password: {env: BMC_PASSWORD}",
            "password: hunter2",
            "hosts[0].bmc.password: would hold a secret",
        ),
        ("sriov: true", "sriof: true", "did you mean 'sriov'?"),
        ("vfs: 8", "vfs: -1", "f:10:83"),
        ("firmware: 16.32.1010", "firmware: latest", "is not a version"),
        ("model: ConnectX-5, ", "", "does not name a card"),
        ("mitigations=off", '"x; reboot"', "is not a kernel argument"),
        ("canary: kvm02", "canary: kvm09", "f:13:9: canary 'kvm09': is not a host of this file"),
        ('"esx[1-2]"', "kvm03", "f:12:13: host kvm03: is already in line 4"),
        ("platform: esxi}", "platform: esxi, kernel: {iommu: 'on'}}", "is for linux"),
        ("platform: esxi}", "platform: esxi, bios: {smt: true}}", "needs a BMC"),
        (
            "platform: linux",
            "platform: linux\n    packages: [{name: mft, version: '1', file: /x}]",
            "is for esxi",
        ),
        ("firmware: 16.32.1010", f"image: {{file: /x, version: 1.2, sha256: {'0' * 64}}}", "f:10:"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, said: str) -> None:
    assert GOOD.count(old) >= 1
    assert said in problems(GOOD.replace(old, new, 1))


def test_every_problem_is_said_at_once() -> None:
    text = GOOD.replace("platform: linux", "platform: dos").replace("version: 1", "version: 2", 1)
    assert problems(text).count("\n") == 1
