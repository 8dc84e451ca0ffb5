# SPDX-License-Identifier: Apache-2.0
"""Guests of machines on vSphere, without a vCenter: addresses, keys, first boot, and what they lack."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.driver import VsphereBackend
from nearmetal.cluster.backends.vsphere.guests import (
    HOST_KEY,
    PUBLISH,
    GuestAddress,
    Guests,
    address_of,
    published_key,
)
from nearmetal.cluster.backends.vsphere.marks import Found
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, SpecError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nearmetal.cluster.ssh_nodes import Nodes

NO_ADDRESS = "VMware Tools report no IPv4 address, or not that of the spec"
KEY = "ssh-ed25519 " + "A" * 68
MAC = "00:50:56:01:02:03"


def spec_of(access: str, more: str = "", nodes: str = "{name: n1}, {name: n2}") -> VsphereSpec:
    spec = parse_spec(
        "version: 1\nname: c\nbackend: vsphere\nvcenter: {server: vc, user: u}\n"
        f"{access}machine: {{template: t{more}}}\nhosts: [{{name: h, nodes: [{nodes}]}}]\n"
    )
    assert isinstance(spec, VsphereSpec)
    return spec


def guests_of(spec: VsphereSpec, directory: Path) -> Guests:
    assert spec.ssh is not None
    return Guests(spec, spec.ssh, directory, LocalRunner())


def card(*addresses: str, mac: str = MAC, prefix: int = 24) -> object:
    several = [vim.net.IpConfigInfo.IpAddress(ipAddress=a, prefixLength=prefix) for a in addresses]
    return vim.vm.GuestInfo.NicInfo(
        macAddress=mac, ipAddress=list(addresses), ipConfig=vim.net.IpConfigInfo(ipAddress=several)
    )


def test_the_address_is_that_of_the_spec_else_the_guests_own_choice() -> None:
    cards = [card("10.1.0.5"), card("10.2.0.5", mac="00:50:56:0A:0B:0C")]
    found = {"guest.ipAddress": "10.1.0.5", "guest.net": cards}
    assert address_of(found) == GuestAddress("10.1.0.5/24", MAC)
    assert address_of(found, "10.2.0.5/24") == GuestAddress("10.2.0.5/24", "00:50:56:0a:0b:0c")
    assert address_of(found, "10.9.0.5/24") is None
    assert address_of(found, "dhcp") == GuestAddress("10.1.0.5/24", MAC)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"guest.ipAddress": "", "guest.net": []},
        {"guest.ipAddress": "fe80::1", "guest.net": [card("fe80::1")]},
        {"guest.ipAddress": "10.1.0.5; reboot", "guest.net": [card("10.1.0.5; reboot")]},
        {"guest.ipAddress": "10.1.0.5", "guest.net": [card("10.1.0.6")]},
        {"guest.ipAddress": "10.1.0.5", "guest.net": [card("10.1.0.5", mac="eth0")]},
    ],
)
def test_other_words_are_no_address(found: dict[str, object]) -> None:
    assert address_of(found) is None


def test_a_guest_that_prefers_version_6_is_reached_by_version_4() -> None:
    cards = [card("fe80::1", "169.254.1.1"), card("2001:db8::5", "10.1.0.5")]
    found = {"guest.ipAddress": "2001:db8::5", "guest.net": cards}
    assert address_of(found) == GuestAddress("10.1.0.5/24", MAC)


def test_a_prefix_that_makes_no_sense_is_not_used() -> None:
    found = {"guest.ipAddress": "10.1.0.5", "guest.net": [card("10.1.0.5", prefix=99)]}
    assert address_of(found) == GuestAddress("10.1.0.5/32", MAC)


def options(key: str) -> dict[str, object]:
    return {"config.extraConfig": [vim.option.OptionValue(key=HOST_KEY, value=key)]}


def test_only_a_public_key_is_a_published_key() -> None:
    assert published_key(options(KEY)) == KEY
    for text in ("", "ssh-ed25519", f"{KEY}\nn2 {KEY}", f"@cert-authority * {KEY}", "x" * 80):
        assert published_key(options(text)) == ""
    assert published_key({}) == ""


def test_the_first_boot_carries_no_secret(tmp_path: Path) -> None:
    given = guests_of(spec_of("ssh: {}\n"), tmp_path).first_boot("n1")
    texts = {n: base64.b64decode(v).decode() for n, v in given.items() if "encoding" not in n}
    assert {given[f"{name}.encoding"] for name in texts} == {"base64"}
    assert json.loads(texts["guestinfo.metadata"])["local-hostname"] == "n1"
    head, _, body = texts["guestinfo.userdata"].partition("\n")
    assert head == "#cloud-config"
    config = json.loads(body)
    public = (tmp_path / "keys" / "client.pub").read_text().strip()
    assert config["ssh_authorized_keys"] == [public]
    assert config["runcmd"] == [["sh", "-c", PUBLISH]]
    assert not any("PRIVATE" in text for text in texts.values())


def test_a_template_that_has_a_key_gets_none(tmp_path: Path) -> None:
    spec = spec_of("ssh: {identity: /k}\n", ", guest: {address: 10.1.0.11-10.1.0.12/24}")
    assert guests_of(spec, tmp_path).first_boot("n1") == {}
    assert not (tmp_path / "keys").exists()


def test_jobs_need_ssh_in_the_spec_and_prepared_nodes(tmp_path: Path) -> None:
    backend = VsphereBackend(spec_of(""), Store(tmp_path))
    with pytest.raises(BackendError, match="does not say how jobs reach") as caught:
        backend.on_node("n1", ["true"])
    assert "add `ssh: {}`" in caught.value.hint
    backend = VsphereBackend(spec_of("ssh: {}\n"), Store(tmp_path))
    with pytest.raises(BackendError, match="node n1: it is not prepared for jobs"):
        backend.on_node("n1", ["true"])
    off = spec_of("ssh: {}\n", nodes="{name: n1, power: off}")
    with pytest.raises(BackendError, match="node n1 is off"):
        VsphereBackend(off, Store(tmp_path)).on_node("n1", ["true"])


def test_each_machine_that_is_not_prepared_has_its_reason(tmp_path: Path) -> None:
    guests = guests_of(spec_of("ssh: {}\n", nodes="{name: n1}, {name: n2, power: off}"), tmp_path)
    found = {name: Found(None, {"config.uuid": name}) for name in ("n1", "n2")}
    assert guests.lacking(found) == {"n1": NO_ADDRESS}
    found["n1"].properties.update({"guest.ipAddress": "10.1.0.5", "guest.net": [card("10.1.0.5")]})
    assert guests.lacking(found) == {"n1": "it is not prepared for jobs"}
    record = {"n1": {"machine": "n1", "address": "10.1.0.5", "digest": "another"}}
    (tmp_path / "guests.json").write_text(json.dumps(record))
    assert "have changed" in guests.lacking(found)["n1"]
    record["n1"]["machine"] = "a machine of that name before"
    (tmp_path / "guests.json").write_text(json.dumps(record))
    assert guests.lacking(found) == {"n1": "it is not prepared for jobs"}
    (tmp_path / "guests.json").write_text('{"n1": {"machine": 7}}')
    assert guests.lacking(found) == {"n1": "it is not prepared for jobs"}


class Delivering(Guests):
    """Guests that get nothing; says whose keys are trusted meanwhile."""

    trusted = ""

    def _deliver(
        self, nodes: Nodes, places: Mapping[str, GuestAddress], some: Sequence[str]
    ) -> None:
        self.trusted = nodes.known_hosts.read_text()
        assert set(some) <= set(places)


def test_the_key_of_the_template_is_trusted_at_the_first_login_only(tmp_path: Path) -> None:
    spec = spec_of("ssh: {}\n", nodes="{name: n1}")
    assert spec.ssh is not None
    guests = Delivering(spec, spec.ssh, tmp_path, LocalRunner())
    facts = {"guest.ipAddress": "10.1.0.5", "guest.net": [card("10.1.0.5")]}
    machine = Found(None, {"config.uuid": "u1"} | facts | options(KEY))
    guests.make_nodes(lambda: {"n1": machine})
    assert [KEY in line for line in guests.trusted.splitlines()] == [False, True]
    own = (tmp_path / "known_hosts").read_text()
    assert KEY not in own
    # It gets something new later, for example another provider.
    record = {"n1": {"machine": "u1", "address": "10.1.0.5", "digest": "of before"}}
    (tmp_path / "guests.json").write_text(json.dumps(record))
    guests.make_nodes(lambda: {"n1": machine})
    assert guests.trusted == own
    # Another machine of that name.
    record["n1"]["machine"] = "u0"
    (tmp_path / "guests.json").write_text(json.dumps(record))
    guests.make_nodes(lambda: {"n1": machine})
    assert KEY in guests.trusted


def test_two_ways_to_set_a_guest_up_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        spec_of("ssh: {}\n", ", guest: {address: dhcp}")
    (problem,) = caught.value.problems
    assert "cloud-init takes only one of them" in str(problem)
    assert "identity: PATH" in str(problem)


@pytest.mark.parametrize("key", ["AAAA", "ssh-dss AAAA", f"'{KEY} me@here'"])
def test_a_host_key_is_a_type_and_its_text(key: str) -> None:
    with pytest.raises(SpecError, match="is not a public key"):
        spec_of(f"ssh: {{host_key: {key}}}\n")


def test_a_guest_that_restarts_leaves_the_other_nodes_prepared(tmp_path: Path) -> None:
    guests = guests_of(spec_of("ssh: {}\n"), tmp_path)
    found = {
        name: Found(
            None,
            {
                "config.uuid": name,
                "guest.ipAddress": f"10.1.0.{i}",
                "guest.net": [card(f"10.1.0.{i}")],
            },
        )
        for i, name in enumerate(("n1", "n2"), 1)
    }
    ips = {"n1": "10.1.0.1", "n2": "10.1.0.2"}
    record = {
        name: {
            "machine": name,
            "address": ips[name],
            "digest": guests._digest(ips, GuestAddress(f"{ips[name]}/24", MAC)),
        }
        for name in ips
    }
    (tmp_path / "guests.json").write_text(json.dumps(record))
    assert guests.lacking(found) == {}
    del found["n2"].properties["guest.ipAddress"]
    assert guests.lacking(found) == {"n2": NO_ADDRESS}
    found["n2"].properties["guest.ipAddress"] = "10.1.0.3"
    found["n2"].properties["guest.net"] = [card("10.1.0.3")]
    assert set(guests.lacking(found)) == {"n1", "n2"}
