# SPDX-License-Identifier: Apache-2.0
"""The seed: what a host may tell a guest, and what can never get into one."""

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from nearmetal.image.seed import Seed, failed_line, ready_line
from tests.python.seeds import SECRET, seed_data


def changed(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(seed_data())
    *parents, last = path.split(".")
    place: Any = data
    for key in parents:
        place = place[int(key)] if key.isdigit() else place[key]
    place[last] = value
    return data


def test_a_seed_survives_the_way_to_the_guest() -> None:
    seed = Seed.model_validate(seed_data())
    assert Seed.from_json(seed.secret_json()) == seed


def test_only_the_guest_gets_the_private_keys() -> None:
    seed = Seed.model_validate(seed_data())
    assert SECRET in seed.secret_json()
    assert SECRET not in repr(seed)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("name", "vm3"),
        ("name", "a b"),
        ("name", "vm1\n"),
        ("cluster", "$(reboot)"),
        ("nodes.0.address", "10.9.0.11/24"),
        ("nodes.0.address", "300.9.0.11"),
        ("nodes.0.name", "vm2"),
        ("nodes.0.slots", 0),
        ("nodes.0.slots", "1"),
        ("nodes.0.ssh_host_key", "ssh-ed25519 AAAA\nssh-ed25519 BBBB"),
        ("interfaces.0.mac", "52-54-00-00-00-01"),
        ("interfaces.0.mac", "52:54:00:00:00:01\n"),
        ("interfaces.0.address", "10.9.0.11/24;reboot"),
        ("interfaces.0.mtu", 100),
        ("interfaces", []),
        ("interfaces.0.address", "10.9.0.13/24"),
        ("interfaces.0.address", None),
        ("ssh.authorized_keys", ['command="reboot" ssh-ed25519 ' + "A" * 68]),
        ("ssh.host_key", "none"),
        ("segment.token", "0" * 31),
        ("segment.part", 2),
        ("segment.part_size", 3 << 20),
        ("segment.part_size", 32 << 20),
        ("segment.own_pci", "00:05.0"),
        ("segment.device", "/dev/mem"),
        ("surprise", 1),
    ],
)
def test_what_a_guest_could_stumble_over_is_refused(path: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        Seed.model_validate(changed(path, value))


def test_two_interfaces_need_two_macs() -> None:
    data = seed_data()
    data["interfaces"] *= 2
    with pytest.raises(ValidationError, match="same MAC"):
        Seed.model_validate(data)


def test_a_seed_beyond_all_bounds_is_not_even_parsed() -> None:
    with pytest.raises(ValueError, match="never larger"):
        Seed.from_json(" " * (2 << 20))


def test_console_lines_tell_nodes_apart() -> None:
    assert ready_line("vm1") == "nearmetal: ready vm1"
    assert failed_line("vm1") == "nearmetal: failed vm1: "
