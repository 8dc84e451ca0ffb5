# SPDX-License-Identifier: Apache-2.0
"""The Heat templates: their parameters and outputs, and what Heat's engine says of every stack."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nearmetal.core.resources import share
from tests.system.need import lacking

ROOT = Path(__file__).parents[2]
HEAT = share("heat")
PYTHON = ROOT / "build" / "openstack" / "venv" / "bin" / "python"
Verdict = tuple[dict[str, Any], str | None]
"""A stack, and what Heat has against it."""

LEASE = "4129fe81-0582-43be-8a38-eeef96550885"

COMMON: dict[str, list[Any]] = {"key_name": ["default", "me"], "reservation_id": ["", LEASE]}
MACHINES = {**COMMON, "node_count": [1, 2, 100]}
VALUES: dict[str, dict[str, list[Any]]] = {
    "mpi-bare-metal": MACHINES,
    "kvm-sr-iov-host": MACHINES,
    "big-data": MACHINES,
    "mpi-kvm-sr-iov": {
        **COMMON,
        "total_nodes": [1, 3],
        "total_vms": [1, 2, 100],
        "vcpus_per_vm": [1, 8],
        "memory_per_vm": [1, 64],
    },
}
"""The parameters that appliances of MVAPICH2 have had, with values that templates must take."""

CLOUDS: list[dict[str, Any]] = [
    {},
    {"bare_metal_fabric": "direct", "packages": []},
    {"bare_metal_fabric": "none", "dns_servers": ["203.0.113.9"]},
]

UUID = "The ID of a reservation is a UUID in lower case."
WRONG: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    ("mpi-bare-metal", {"node_count": 0}, {}, ["'node_count'", "from 1 to 100 machines"]),
    ("mpi-bare-metal", {"node_count": "two"}, {}, ["node_count", "two"]),
    ("big-data", {"node_count": 101}, {}, ["'node_count'", "from 1 to 100 machines"]),
    ("big-data", {"reservation_id": "MINE"}, {}, ["'reservation_id'", UUID]),
    ("big-data", {}, {"bare_metal_image": "lost"}, ["choice", "image", "'lost'"]),
    ("kvm-sr-iov-host", {"node_count": 101}, {}, ["'node_count'", "from 1 to 100 machines"]),
    ("mpi-kvm-sr-iov", {"total_vms": 0}, {}, ["'total_vms'", "from 1 to 100 virtual machines"]),
    ("mpi-kvm-sr-iov", {"total_nodes": -1}, {}, ["'total_nodes'", "from 1 to 100 physical"]),
    ("mpi-kvm-sr-iov", {"vcpus_per_vm": 0}, {}, ["'vcpus_per_vm'", "at least one processor"]),
    ("mpi-kvm-sr-iov", {"memory_per_vm": 0}, {}, ["'memory_per_vm'", "at least 1 GiB"]),
    ("mpi-kvm-sr-iov", {"vcpus_per_vm": 9}, {}, ["choice", "flavor", "'hpc.9.4'"]),
    ("mpi-kvm-sr-iov", {"reservation_id": "mine"}, {}, ["'reservation_id'", UUID]),
    ("mpi-kvm-sr-iov", {"vcpu_per_vm": 2}, {}, ["vcpu_per_vm"]),
    ("mpi-bare-metal", {"key_name": "lost"}, {}, ["'key_name'", "lost"]),
    ("mpi-kvm-sr-iov", {}, {"vm_image": "lost"}, ["choice", "image", "'lost'"]),
    ("mpi-bare-metal", {}, {"bare_metal_flavor": "lost"}, ["choice", "flavor", "'lost'"]),
    ("mpi-bare-metal", {}, {"outside": "lost"}, ["'outside'", "lost"]),
    ("mpi-kvm-sr-iov", {}, {"fabric": "lost"}, ["'fabric'", "lost"]),
    ("mpi-bare-metal", {}, {"subnet": "10.0.0.0/99"}, ["'subnet'", "10.0.0.0/99"]),
]


def content(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((HEAT / f"{name}.yaml").read_text())
    return found


def faults(cases: list[dict[str, Any]]) -> list[str | None]:
    """Ask Heat's engine."""
    if not PYTHON.exists():
        lacking(f"{PYTHON} is missing: run `make setup-openstack`")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-m", "tests.openstack.validate"],
        input=json.dumps(cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=300,
    )
    found: list[str | None] = json.loads(done.stdout)
    assert len(found) == len(cases)
    return found


def case(
    template: Path, parameters: dict[str, Any], defaults: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"template": str(template), "parameters": parameters, "defaults": defaults or {}}


@pytest.mark.parametrize("name", VALUES)
def test_parameters_and_outputs_have_the_names_that_users_know(name: str) -> None:
    template = content(name)
    assert set(template["parameters"]) == set(VALUES[name])
    assert set(template["outputs"]) == {"first_instance_ip", "deployment_results"}
    # All have a default, so a stack needs no more than a key pair of the name default.
    assert all("default" in parameter for parameter in template["parameters"].values())


def test_the_file_of_a_cloud_has_every_such_parameter_with_its_default() -> None:
    given = yaml.safe_load((HEAT / "site.yaml").read_text())["parameter_defaults"]
    declared = {
        key: parameter["default"]
        for name in ("cluster", "ports")
        for key, parameter in content(name)["parameters"].items()
        if "default" in parameter
    }
    lists = {"packages": ["openmpi-bin"], "dns_servers": []}
    of_the_stack = {"groups", "vcpus", "memory"}
    assert given == {k: lists.get(k, v) for k, v in declared.items() if k not in of_the_stack}


def test_no_expression_is_parsed_for_each_machine() -> None:
    """Heat makes machines in threads, and its parser mixes up what two threads parse at once."""
    found = [path.name for path in HEAT.iterdir() if "yaql:" in path.read_text()]
    assert found == ["cluster.yaml"]


MUTATIONS = [
    ("cluster.yaml", "condition: spark", "condition: sparks", "sparks"),
    ("cluster.yaml", "properties: {length: 40}", "properties: {lenght: 40}", "lenght"),
    ("machine.yaml", "{if: [secret,", "{if: [secrets,", "secrets"),
    ("machine.yaml", "OS::Nova::Server\n", "OS::Nova::Sever\n", "OS::Nova::Sever"),
    ("machine.yaml", "user_data_format: RAW", "user_data_format: ROW", "ROW"),
    ("machine.yaml", "config_drive:", "config_driver:", "config_driver"),
    (
        "ports.yaml",
        "binding:vnic_type: {if: [virtual, direct,",
        "binding:vnic_type: {if: [virtual, dirct,",
        "dirct",
    ),
    (
        "cluster.yaml",
        "router: {get_resource: router}",
        "router: {get_resource: routers}",
        "routers",
    ),
    ("cluster.yaml", "type: machine.yaml", "type: machines.yaml", "machines.yaml"),
    ("cluster.yaml", "policies: [affinity]", "policies: [afinity]", "afinity"),
    ("ports.yaml", "  address:\n", "  adress:\n", "ports: it has no output address"),
    ("ports.yaml", "value: {get_param: machine}", "value: {get_param: machin}", "machin"),
    ("ports.yaml", "value: {get_resource: network_port}", "value: {get_resource: port}", "port"),
    ("choice.yaml", "  flavor:\n    value", "  flavour:\n    value", "no output flavor"),
    ("cluster.yaml", "  first_instance_ip:", "  first_ip:", "no output first_instance_ip"),
    ("cluster.yaml", "resource.0.network_port", "resource.0.port", "no output port"),
    (
        "mpi-kvm-sr-iov.yaml",
        "groups: {get_param: total_nodes}",
        "group: {get_param: total_nodes}",
        "group",
    ),
]


def mutated(directory: Path, file: str, line: str, wrong: str) -> Path:
    """Return a template of a copy of all, with a wrong line in one."""
    directory.mkdir()
    for path in HEAT.iterdir():
        text = path.read_text()
        if path.name == file:
            assert line in text
            text = text.replace(line, wrong)
        (directory / path.name).write_text(text)
    return directory / (
        "big-data.yaml" if "spark" in line or "length" in line else "mpi-kvm-sr-iov.yaml"
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Verdict]]:
    """Ask Heat's engine about all stacks of this module at once: its start takes seconds."""
    copies = tmp_path_factory.mktemp("heat")
    cases = {
        "valid": [
            case(HEAT / f"{name}.yaml", dict(zip(values, chosen, strict=True)), cloud)
            for name, values in VALUES.items()
            for chosen in itertools.product(*values.values())
            for cloud in (CLOUDS if name != "mpi-kvm-sr-iov" else CLOUDS[:1])
        ],
        "values": [case(HEAT / f"{name}.yaml", values, cloud) for name, values, cloud, _ in WRONG],
        "lines": [
            case(mutated(copies / str(number), *mutation[:3]), {})
            for number, mutation in enumerate(MUTATIONS)
        ],
    }
    found = iter(faults([one for ones in cases.values() for one in ones]))
    return {kind: [(one, next(found)) for one in ones] for kind, ones in cases.items()}


def test_every_combination_of_parameters_is_valid(said: dict[str, list[Verdict]]) -> None:
    assert [verdict for verdict in said["valid"] if verdict[1]] == []
    assert len(said["valid"]) == 2 * 2 * (3 * 3 * 3 + 2 * 3 * 2 * 2)


def test_a_wrong_value_is_named(said: dict[str, list[Verdict]]) -> None:
    for (*_, words), (given, fault) in zip(WRONG, said["values"], strict=True):
        assert fault is not None, given
        assert all(word in fault for word in words), (given, fault)


def test_a_wrong_line_of_a_template_is_named(said: dict[str, list[Verdict]]) -> None:
    for (file, *_, word), (_, fault) in zip(MUTATIONS, said["lines"], strict=True):
        assert fault is not None, (file, word)
        assert word in fault, (file, fault)
