# SPDX-License-Identifier: Apache-2.0
"""The Heat templates on real OpenStack services: stacks are made, grow, shrink, fail and go.

Continuous integration has one test of all templates; the others take minutes, Heat itself most.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("openstack")

from nearmetal.core.resources import share
from tests.openstack.settings import VFS
from tests.system.openstack_cloud import QUIET, SERVICES, RealCloud, objects, running_cloud

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.timeout(900),
    *QUIET,
]

LEASE = "4129fe81-0582-43be-8a38-eeef96550885"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvXYu6YpJYmS1n5eV0bNmKk2UHR3Jd4O9mIAT8y3E8x me@here"
MACHINES = [("mpi-bare-metal", "bare-metal"), ("kvm-sr-iov-host", "host"), ("big-data", "big-data")]
"""Templates of machines of their own, and what their servers say that they are."""
SITE = {
    "vm_image": "hpc",
    "bare_metal_image": "hpc",
    "host_image": "hpc",
    "bare_metal_flavor": "hpc.small",
    "outside": "outside",
    "bare_metal_fabric": "direct",
    "packages": [],
}


class Stacks:
    """A user of a cloud who types commands."""

    def __init__(self, cloud: RealCloud, directory: Path) -> None:
        self.cloud = cloud
        self.site = directory / "site.yaml"
        self.describe()

    def describe(self, **values: object) -> None:
        """Write the file of the cloud, with other values for some names."""
        self.site.write_text(yaml.safe_dump({"parameter_defaults": {**SITE, **values}}))

    def typed(self, *words: str, about: str = "stack") -> str:
        """Type `openstack stack` and words, or about something else; returns the output."""
        python = SERVICES / "venv" / "bin" / "python"
        done = subprocess.run(
            [str(python), "-W", "ignore", str(python.with_name("openstack")), about, *words],
            env={**os.environ, "OS_CLOUD": "member"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def change(self, verb: str, template: str, **parameters: object) -> None:
        """Type `openstack stack create` or `update`; the stack has the name of its template."""
        path = str(share("heat", f"{template}.yaml"))
        words = [f"--parameter={name}={value}" for name, value in parameters.items()]
        words += ["--existing"] if verb == "update" else []
        self.typed(verb, "-t", path, "-e", str(self.site), *words, template)

    def ended(self, name: str) -> tuple[str, str]:
        """Wait until the last command about a stack has ended; returns its state, and the reason."""
        sdk = self.cloud.connected()
        for _ in self.cloud.waiting(f"stack {name}"):
            found = sdk.orchestration.find_stack(name, ignore_missing=False)
            if not found.status.endswith("IN_PROGRESS"):
                return found.status, found.status_reason
        raise AssertionError

    def made(self, verb: str, template: str, **parameters: object) -> dict[str, Any]:
        """Change a stack and wait for its end; returns the outputs."""
        self.change(verb, template, **parameters)
        return self.complete(verb, template)

    def complete(self, verb: str, template: str) -> dict[str, Any]:
        """Wait for the good end of a change; returns the outputs."""
        state, reason = self.ended(template)
        assert state == f"{verb.upper()}_COMPLETE", reason
        found = self.cloud.connected().orchestration.get_stack(template)
        return {one["output_key"]: one["output_value"] for one in found.outputs}

    def removed(self, name: str) -> None:
        self.typed("delete", "--yes", "--wait", name)

    def servers(self) -> dict[str, Any]:
        sdk = self.cloud.connected()
        return {server.name: server for server in sdk.compute.servers(details=True)}

    def user_data(self, server: Any) -> dict[str, Any]:
        """Return what cloud-init reads in a server."""
        shown = self.cloud.connected("admin").compute.get_server(server.id)
        text = base64.b64decode(shown.user_data).decode()
        assert text.startswith("#cloud-config\n")
        found: dict[str, Any] = yaml.safe_load(text)
        return found

    def functions(self) -> list[tuple[str, str]]:
        """Return the virtual functions that ports have."""
        ports = self.cloud.connected("admin").network.ports()
        return [
            (port.binding_host_id, port.binding_profile["pci_slot"])
            for port in ports
            if port.binding_vnic_type == "direct" and port.binding_host_id
        ]


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    directory = tmp_path_factory.mktemp("stacks")
    with running_cloud(directory, heat=True) as cloud:
        cloud.connected("admin").compute.create_flavor(name="hpc.1.2", ram=2048, vcpus=1, disk=1)
        cloud.connected().compute.create_keypair(name="me", public_key=KEY)
        yield Stacks(cloud, directory)


def test_every_template_is_made_beside_the_others_one_grows_and_shrinks_and_all_go(
    stacks: Stacks,
) -> None:
    before = objects(stacks.cloud)
    small: dict[str, object] = {
        "vcpus_per_vm": 1,
        "memory_per_vm": 2,
        "total_nodes": 1,
        "total_vms": 1,
    }
    of_each: dict[str, dict[str, object]] = {
        "mpi-kvm-sr-iov": small,
        **{name: {"node_count": 1} for name, _ in MACHINES},
    }
    for name, parameters in of_each.items():
        stacks.change("create", name, key_name="me", **parameters)
    results = {name: stacks.complete("create", name)["deployment_results"] for name in of_each}
    # Machines of two stacks may have one name.
    servers = list(stacks.cloud.connected().compute.servers())
    names = sorted(name for found in results.values() for name in found)
    assert sorted(server.name for server in servers) == names
    assert {server.status for server in servers} == {"ACTIVE"}
    assert len(set(stacks.functions())) == len(stacks.functions()) == len(of_each)

    machines = stacks.made("update", "mpi-kvm-sr-iov", total_vms=2)["deployment_results"]
    assert sorted(machines) == ["mpi-instance-0", "mpi-instance-1"]
    assert len(set(stacks.functions())) == len(stacks.functions()) == len(of_each) + 1
    # Users cannot remove the port of a server, so it goes first.
    stacks.typed("delete", "--wait", "mpi-instance-1", about="server")
    machines = stacks.made("update", "mpi-kvm-sr-iov", total_vms=1)["deployment_results"]
    assert list(machines) == ["mpi-instance-0"]
    assert len(stacks.functions()) == len(of_each)

    stacks.typed("delete", "--yes", "--wait", *of_each)
    assert objects(stacks.cloud) == before
    assert stacks.functions() == []


@pytest.mark.full
def test_a_cluster_of_virtual_machines_grows_shrinks_and_runs_out(stacks: Stacks) -> None:
    name = "mpi-kvm-sr-iov"
    before = objects(stacks.cloud)
    same = {"key_name": "me", "vcpus_per_vm": 1, "memory_per_vm": 2, "total_nodes": 2}
    outputs = stacks.made("create", name, total_vms=3, **same)
    first = stacks.servers()
    assert set(first) == {"mpi-instance-0", "mpi-instance-1", "mpi-instance-2"}
    assert {server.status for server in first.values()} == {"ACTIVE"}
    # Two groups: machines 0 and 2 are on one hypervisor.
    assert first["mpi-instance-0"].host_id == first["mpi-instance-2"].host_id
    assert len(set(stacks.functions())) == len(stacks.functions()) == 3
    results = outputs["deployment_results"]
    for machine, server in first.items():
        found = {address["addr"] for ones in server.addresses.values() for address in ones}
        assert {results[machine]["address"], results[machine]["fabric"]} <= found
        assert server.key_name == "me"
        # Each knows all.
        assert server.metadata == {
            "nearmetal": "vm",
            **{f"nm-{n}": f"{one['address']} {one['fabric']}" for n, one in results.items()},
        }
    (floating,) = stacks.cloud.connected().network.ips()
    shown = stacks.typed(
        *("output", "show", name, "first_instance_ip", "-f", "value", "-c", "output_value")
    )
    assert shown.strip() == outputs["first_instance_ip"] == floating.floating_ip_address
    assert floating.fixed_ip_address == results["mpi-instance-0"]["address"]
    # Their user data have our program, and no secret.
    booted = stacks.user_data(first["mpi-instance-0"])
    written = {one["path"]: one["content"] for one in booted["write_files"]}
    assert written["/usr/local/sbin/nearmetal-machines"] == share("heat", "machines.py").read_text()
    assert "PRIVATE KEY" not in str(booted)
    # cloud-init refuses an empty list.
    assert set(booted) == {"runcmd", "write_files"}

    # More machines: the first stay, and learn of the new ones, which alone get other user data.
    stacks.describe(packages=["mpich"])
    results = stacks.made("update", name, total_vms=4)["deployment_results"]
    second = stacks.servers()
    assert stacks.user_data(second["mpi-instance-3"])["packages"] == ["mpich"]
    stacks.describe()
    assert {n: second[n].id for n in first} == {n: first[n].id for n in first}
    assert set(second) - set(first) == {"mpi-instance-3"}
    assert {f"nm-{n}" for n in results} < set(second["mpi-instance-0"].metadata)
    assert len(set(stacks.functions())) == 4

    # Fewer: the first machines are left. The last servers go first.
    last = sorted(stacks.servers().keys() - sorted(first)[:2])
    stacks.typed("delete", "--wait", *last, about="server")
    results = stacks.made("update", name, total_vms=2)["deployment_results"]
    third = stacks.servers()
    assert {n: third[n].id for n in third} == {n: first[n].id for n in sorted(first)[:2]}
    assert set(third["mpi-instance-0"].metadata) == {"nearmetal", *(f"nm-{n}" for n in results)}
    assert len(set(stacks.functions())) == 2

    # More than there are functions: an error names the machine and the reason.
    stacks.change("update", name, total_vms=2 * VFS + 1)
    state, reason = stacks.ended(name)
    assert state == "UPDATE_FAILED"
    assert "No valid host was found" in reason
    assert re.search(r"machines\.\d\.server", stacks.typed("failures", "list", "--long", name))
    assert len(set(stacks.functions())) <= 2 * VFS

    stacks.removed(name)
    assert objects(stacks.cloud) == before
    assert stacks.functions() == []


@pytest.mark.full
@pytest.mark.parametrize(("name", "kind"), MACHINES)
def test_machines_of_their_own_are_made_with_a_reservation_and_removed(
    stacks: Stacks, name: str, kind: str
) -> None:
    before = objects(stacks.cloud)
    outputs = stacks.made("create", name, key_name="me", node_count=2, reservation_id=LEASE)
    sdk = stacks.cloud.connected()
    machines = stacks.servers()
    assert set(outputs["deployment_results"]) == set(machines)
    assert len(set(stacks.functions())) == len(machines) == 2
    for server in machines.values():
        assert server.metadata["nearmetal"] == kind
        # Nova shows hints from this version on.
        shown = sdk.compute.get(f"/servers/{server.id}", microversion="2.100").json()["server"]
        assert shown["scheduler_hints"] == {"reservation": [LEASE]}
    stacks.removed(name)
    assert objects(stacks.cloud) == before


@pytest.mark.full
def test_a_cloud_without_the_flavor_is_named_before_anything_is_made(stacks: Stacks) -> None:
    before = objects(stacks.cloud)
    stacks.change("create", "mpi-kvm-sr-iov", key_name="me", vcpus_per_vm=7)
    state, reason = stacks.ended("mpi-kvm-sr-iov")
    assert state == "CREATE_FAILED"
    assert "hpc.7.4" in reason
    assert objects(stacks.cloud) == before
    stacks.removed("mpi-kvm-sr-iov")
