# SPDX-License-Identifier: Apache-2.0
"""The real cloud-init takes what servers of OpenStack get: clusters with `ssh`, and Heat stacks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.cluster.backends.openstack.arrival import console_key
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.resources import share
from nearmetal.image.seed import FIRST_PATH, FirstSeed, first_user_data
from tests.system.cloud_guests import FLOATING, CloudGuest, address, cloud_guest, lan, mac
from tests.system.heat_machines import heat_user_data
from tests.system.machines import Key

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(3600),
]

NAME, ADDRESS = "n1", address(1)
MACHINES = {"nearmetal": "vm", "nm-n1": f"{ADDRESS} 10.99.0.21", "nm-n2": address(2)}


def accepted(guest: CloudGuest) -> None:
    """Check that cloud-init has found the drive, and has no complaint about what it says."""
    result = json.loads(guest.booted())
    assert result["v1"]["datasource"].startswith("DataSourceConfigDrive"), result
    assert result["v1"]["errors"] == []
    status = json.loads(guest.tell("cat /run/cloud-init/status.json"))["v1"]
    assert [s for s in status.values() if isinstance(s, dict) and s["recoverable_errors"]] == []
    assert "Valid schema user-data" in guest.tell("cloud-init schema --system")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return Key.make(tmp_path_factory.mktemp("key") / "key")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Iterator[CloudGuest]:
    """A server of a cluster with `ssh`, before the first login."""
    first = FirstSeed.model_validate(
        {
            "cluster": "c",
            "name": NAME,
            "interfaces": [{"mac": mac(1), "address": f"{ADDRESS}/24"}],
            "ssh": {"authorized_keys": [key.public]},
        }
    )
    folder, data = tmp_path_factory.mktemp("node"), first_user_data(first)
    with lan() as network, cloud_guest(folder, network, 1, data) as guest:
        accepted(guest)
        yield guest


def test_a_server_of_a_cluster_is_what_its_config_drive_says(node: CloudGuest, key: Key) -> None:
    assert node.tell("hostname") == NAME
    assert f"{ADDRESS}/24" in node.tell("ip -brief address show eth0")
    # Without the command that says which user to log in as.
    assert node.tell("cat ~root/.ssh/authorized_keys") == key.public
    assert FirstSeed.model_validate_json(node.tell(f"cat {FIRST_PATH}")).name == NAME
    assert node.tell(f"stat -c '%a %U' {FIRST_PATH}") == "644 root"
    assert "passwordauthentication no" in node.tell("sshd -T").splitlines()


def test_its_console_has_the_key_by_which_the_first_login_knows_it(
    node: CloudGuest, key: Key, tmp_path: Path
) -> None:
    keys = node.tell("cat /etc/ssh/ssh_host_*_key.pub").splitlines()
    assert [" ".join(line.split()[:2]) for line in keys] == [console_key(node.console)]
    known = tmp_path / "known_hosts"
    known.write_text(f"{NAME} {console_key(node.console)}\n")
    nodes = Nodes(tmp_path, {NAME: (FLOATING, None)}, LocalRunner())
    sent = os.urandom(1 << 20)
    argv = nodes.first_login(NAME, key.private).argv("cat")
    assert LocalRunner().check(Command(argv, stdin=sent), timeout_s=300).stdout == sent


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Iterator[CloudGuest]:
    """A machine of a Heat stack, without packages from a mirror."""
    data = heat_user_data(packaged=False, spark=False)
    folder = tmp_path_factory.mktemp("machine")
    with (
        lan() as network,
        cloud_guest(folder, network, 1, data, meta=MACHINES, key=key.public) as guest,
    ):
        accepted(guest)
        yield guest


def test_a_machine_of_a_stack_has_the_files_of_the_template(machine: CloudGuest) -> None:
    program = machine.tell("cat /usr/local/sbin/nearmetal-machines; echo")
    assert program == share("heat", "machines.py").read_text().strip()
    assert machine.tell("stat -c %a /usr/local/sbin/nearmetal-machines") == "755"
    states = machine.tell("systemctl is-active nearmetal-machines.timer")
    assert states == "active"
    assert machine.tell("systemctl show -P Result nearmetal-machines.service") == "success"


def test_a_machine_of_a_stack_knows_the_others_and_greets(machine: CloudGuest, key: Key) -> None:
    assert machine.tell("cat /etc/nearmetal/machines") == f"n1 {ADDRESS} 10.99.0.21\nn2 10.87.0.12"
    assert machine.tell("getent hosts n2").split() == ["10.87.0.12", "n2"]
    assert "This stack has 2 machines" in machine.tell("cat /etc/motd.d/nearmetal")
    assert machine.tell("bash -lc 'echo $HYDRA_HOST_FILE'") == "/etc/nearmetal/hosts"
    # The key pair is for the user of the image.
    assert machine.tell("cat ~debian/.ssh/authorized_keys") == key.public
