# SPDX-License-Identifier: Apache-2.0
"""`nearmetal demo --cloud` on real services, with servers that boot for real (QEMU's emulation)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("openstack")

from tests.system.machines import CACHE
from tests.system.need import need_build
from tests.system.openstack_cloud import QUIET, RealCloud, objects, running_cloud
from tests.system.openstack_guests import guest_bridge, ports_of
from tests.system.reservation_service import reservation_service
from tests.system.virtual_clusters import CommandLine

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.timeout(1800),
    *QUIET,
]

DEMO = ("demo", "--cloud", "member", "--network", "lab", "--blocks", "1", "--yes")


@dataclass(frozen=True)
class Lab(CommandLine):
    """A cloud with a network that this machine reaches."""

    cloud: RealCloud
    bridge: str

    def statuses(self) -> dict[str, str]:
        found = self.cloud.connected().compute.servers(details=True)
        return {server.id: server.status for server in found}

    def begun(self, *args: str, signum: signal.Signals) -> tuple[int, str]:
        """End a demo when its servers run; returns the exit code and the words."""
        with self.start(*args) as demo:
            for _ in self.cloud.waiting("both servers to run"):
                if [*self.statuses().values()] == ["ACTIVE", "ACTIVE"]:
                    break
                assert demo.poll() is None, demo.communicate()
            demo.send_signal(signum)
            _, err = demo.communicate(timeout=300)
        return demo.returncode, err

    def left(self) -> list[str]:
        """Return what demos have left on this machine."""
        return sorted(
            str(path) for path in (*(self.folder / "state").rglob("*"), *CACHE.glob("cloud-demo-*"))
        )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    need_build()
    folder = tmp_path_factory.mktemp("demo")
    with guest_bridge("10.85.0.1/24") as bridge, running_cloud(folder, bridge=bridge) as cloud:
        network = cloud.connected().network
        # No agent filters here, and the project keeps its rules: none of them lets ssh in.
        made = network.create_network(name="lab", is_port_security_enabled=False)
        network.create_subnet(
            network_id=made.id,
            cidr="10.85.0.0/24",
            ip_version=4,
            gateway_ip=None,
            allocation_pools=[{"start": "10.85.0.10", "end": "10.85.0.99"}],
        )
        yield Lab(folder, cloud, bridge)


def test_a_demo_that_was_killed_is_continued_in_its_lease(lab: Lab, tmp_path: Path) -> None:
    before, admin = objects(lab.cloud), lab.cloud.connected("admin")
    with reservation_service(lab.cloud) as blazar:
        lab.begun(*DEMO, signum=signal.SIGKILL)
        (lease,) = blazar.leases.values()
        out = tmp_path / "out"
        done = lab.run(*DEMO, "--json", "--output", str(out))
        assert done.returncode == 0, done.stderr
        assert "an interrupted demo is continued" in done.stderr
        # One request for a lease in both runs: room for two servers on one hypervisor.
        assert [[*change] for change in blazar.prolonged] == [["end_date"]]
        (request,) = blazar.requests
        assert request["reservations"] == [
            {
                "resource_type": "virtual:instance",
                "amount": 2,
                "vcpus": 2,
                "memory_mb": 2048,
                "disk_gb": 1,
                "affinity": True,
                "resource_properties": "",
            }
        ]
        assert blazar.leases == {}
    data: dict[str, Any] = json.loads(done.stdout)
    assert {p["channel"] for p in data["pairs"]} == {"self", "net"}
    assert "hello from 2 ranks" in data["hello"]
    assert all(v["nearmetal"] and v["tcp"] and v["network_only"] for v in data["verdicts"])
    assert Path(data["report"]).read_text().startswith("<!DOCTYPE html>")
    # The report is about servers with the flavor of the lease that the first demo took.
    spec = json.loads(json.loads((out / "manifest.json").read_text())["spec"])
    assert spec["flavor"] == lease["reservations"][0]["flavor_id"]
    assert objects(lab.cloud) == before
    assert not [f for f in admin.compute.flavors(is_public=None) if "reservation" in f.name]
    assert ports_of(lab.bridge) == []
    assert lab.left() == []


def test_an_interrupted_demo_removes_all(lab: Lab) -> None:
    before = objects(lab.cloud)
    code, err = lab.begun(*DEMO, signum=signal.SIGINT)
    assert code == 128 + signal.SIGINT, err
    assert "no lease: the cloud has no reservation service" in err
    assert "remove the servers" in err
    assert objects(lab.cloud) == before
    assert lab.left() == []


def test_what_a_kept_demo_has_left_is_removed_by_the_command_that_it_names(lab: Lab) -> None:
    before = objects(lab.cloud)
    code, err = lab.begun(*DEMO, "--keep", signum=signal.SIGTERM)
    assert code == 128 + signal.SIGTERM, err
    assert "the servers stay; remove them: nearmetal demo --cloud member --remove" in err
    assert len(lab.statuses()) == 2
    said = lab.ok("demo", "--cloud", "member", "--remove", "--yes")
    assert "removed cluster cloud-demo" in said
    assert objects(lab.cloud) == before
    assert lab.left() == []
    assert "nothing to remove" in lab.ok("demo", "--cloud", "member", "--remove")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--network", "nix"), ["network nix", "none of this name or ID"]),
        (("--network", "lab", "--flavor", "nix"), ["flavor nix", "openstack flavor list"]),
        (("--network", "lab", "--flavor", "tiny"), ["tiny", "512 MiB", "needs 1024"]),
        (("--network", "lab", "--image", "nix"), ["image nix", "none of this name or ID"]),
        (("--network", "lab", "--flavor", "huge"), ["MiB of memory are needed", "quota"]),
        ((), ["security group", "TCP port 22", "openstack security group rule create"]),
    ],
)
def test_a_refusal_names_the_reason_and_makes_nothing(
    lab: Lab, options: tuple[str, ...], words: list[str]
) -> None:
    compute = lab.cloud.connected("admin").compute
    if compute.find_flavor("tiny") is None:
        compute.create_flavor(name="tiny", ram=512, vcpus=2, disk=1)
        compute.create_flavor(name="huge", ram=1 << 20, vcpus=2, disk=1)
    before = objects(lab.cloud)
    done = lab.run("demo", "--cloud", "member", "--yes", *options)
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert objects(lab.cloud) == before
    assert lab.left() == []


def test_without_a_yes_nothing_is_made(lab: Lab) -> None:
    before = objects(lab.cloud)
    done = lab.run("demo", "--cloud", "member", "--network", "lab")
    assert done.returncode == 2
    assert "this would make 2 servers on cloud member" in done.stderr
    assert "the smallest with 2 processors, 2048 MiB of memory and 1 GiB of disk" in done.stderr
    assert objects(lab.cloud) == before
    assert lab.left() == []


@pytest.mark.parametrize(
    ("cloud", "words"),
    [
        ("nix", ["clouds.yaml", "nix was not found"]),
        ("wrong", ["Keystone refuses the credentials", "correct `wrong`"]),
    ],
)
def test_a_log_in_that_fails_is_explained(lab: Lab, cloud: str, words: list[str]) -> None:
    path = Path(os.environ["OS_CLIENT_CONFIG_FILE"])
    content = yaml.safe_load(path.read_text())
    member = content["clouds"]["member"]
    content["clouds"]["wrong"] = {**member, "auth": {**member["auth"], "password": "wrong"}}
    path.write_text(yaml.safe_dump(content))
    done = lab.run("demo", "--cloud", cloud, "--yes")
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert lab.left() == []
