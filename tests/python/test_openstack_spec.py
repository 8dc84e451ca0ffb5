# SPDX-License-Identifier: Apache-2.0
"""Specs of OpenStack: what they say, what is refused, and how a plan compares."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nearmetal.cluster.backends.openstack.plan import Server
from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
from nearmetal.cluster.backends.openstack.stock import Quota, shortages
from nearmetal.cluster.diff import Action, make_plan
from nearmetal.cluster.registration import desired, from_canonical
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.cluster.spec import load_spec, parse_spec
from nearmetal.core.errors import SpecError

EXAMPLE = Path(__file__).parents[2] / "nearmetal/share/examples/openstack-sriov.yaml"

HEAD = "version: 1\nname: c\nbackend: openstack\ncloud: lab\nimage: hpc\nflavor: small\n"
NETWORKS = """\
networks:
  - {name: mpi, subnet: 10.77.0.0/24}
  - {name: rdma, existing: rdma, kind: direct, vfs: 8}
"""
HOSTS = """\
hosts:
  - {name: h1, nodes: [{name: n1}, {name: n2}]}
  - {name: h2, nodes: [{name: n3}]}
"""


def spec_of(more: str = "", networks: str = NETWORKS, hosts: str = HOSTS) -> OpenstackSpec:
    spec = parse_spec(HEAD + networks + more + hosts)
    assert isinstance(spec, OpenstackSpec)
    return spec


def problem_of(more: str = "", networks: str = NETWORKS, hosts: str = HOSTS) -> str:
    """Return the only problem of a spec."""
    with pytest.raises(SpecError) as caught:
        parse_spec(HEAD + networks + more + hosts, "c.yaml")
    (problem,) = caught.value.problems
    return str(problem)


def test_the_example_is_valid_and_can_be_recorded() -> None:
    spec = load_spec(EXAMPLE)
    assert isinstance(spec, OpenstackSpec)
    assert from_canonical(spec.canonical()) == spec


def test_a_plan_makes_networks_and_groups_before_servers() -> None:
    spec = spec_of("outside: public\n")
    plan = make_plan("c", desired(spec, Facts()), Observed())
    assert [str(change.key) for change in plan.coming] == [
        "cluster c",
        "network mpi",
        "host h1",
        "network router",
        "node n1",
        "node n2",
        "node n3",
    ]
    values = {item.key.name: item.values for item in desired(spec, Facts()).resources}
    first, third = values["n1"], values["n3"]
    assert isinstance(first, Server)
    assert isinstance(third, Server)
    assert (first.group, third.group) == ("h1", None)
    assert first.networks == ("mpi normal", "rdma direct")


def test_hosts_apart_are_one_group() -> None:
    hosts = "hosts:\n" + "".join(f"  - {{name: h{i}, nodes: [{{name: n{i}}}]}}\n" for i in (1, 2))
    spec = spec_of("apart: true\n", hosts=hosts)
    assert spec.groups == {"apart": "anti-affinity"}
    assert {spec.group_of(host) for host, _ in spec.nodes} == {"apart"}


@pytest.mark.parametrize(
    ("more", "networks", "hosts", "words"),
    [
        ("flavour: x\n", NETWORKS, HOSTS, "c.yaml:10:1: unknown key 'flavour'"),
        ("", "networks: []\n", HOSTS, "c.yaml:7:"),
        ("", "networks:\n  - {name: mpi}\n", HOSTS, "c.yaml:8:5: network mpi: has no subnet; add"),
        (
            "",
            "networks:\n  - {name: mpi, subnet: 10.77.0.1/24}\n",
            HOSTS,
            "is not an IPv4 subnet",
        ),
        (
            "",
            "networks:\n  - {name: a, existing: b, subnet: 10.1.0.0/24}\n",
            HOSTS,
            "network a: subnet: belongs to a network that is made, and this one exists; remove",
        ),
        (
            "",
            "networks:\n  - {name: a, subnet: 10.1.0.0/24, vlan: 7}\n",
            HOSTS,
            "network a: vlan: needs a physical network; add physical",
        ),
        (
            "",
            "networks:\n  - {name: a, kind: direct, subnet: 10.1.0.0/24}\n",
            HOSTS,
            "virtual functions are on a physical network; write existing: NAME",
        ),
        (
            "",
            "networks:\n  - {name: a, subnet: 10.1.0.0/24, vfs: 2}\n",
            HOSTS,
            "network a: vfs: needs kind: direct",
        ),
        (
            "",
            "networks:\n  - {name: a, subnet: 10.1.0.0/24}\n  - {name: b, subnet: 10.1.0.0/16}\n",
            HOSTS,
            "c.yaml:9:23: subnet 10.1.0.0/16: overlaps that of network a, 10.1.0.0/24",
        ),
        (
            "",
            "networks:\n  - {name: a, existing: x}\n  - {name: a, existing: y}\n",
            HOSTS,
            "network 'a': network 1 has the same name",
        ),
        ("", "networks:\n  - {name: router, existing: x}\n", HOSTS, "'router': is reserved"),
        (
            "",
            NETWORKS,
            HOSTS.replace("{name: n3}", "{name: n3, floating: true}"),
            "node n3: floating addresses: need an external network; add outside: NAME",
        ),
        (
            "outside: x\n",
            "networks:\n  - {name: r, existing: r, kind: direct}\n",
            HOSTS.replace("{name: n3}", "{name: n3, floating: true}"),
            "floating addresses: belong to the port in the first network, which is direct",
        ),
        ("apart: true\n", NETWORKS, HOSTS, "host h1 with apart: true: a server is in one server"),
        ('key: "a\\nb"\n', NETWORKS, HOSTS, "is not a name of OpenStack; use 1 to 255"),
        ("post:\n  - {script: /x}\n", NETWORKS, HOSTS, "c.yaml:11:5: scripts in nodes"),
        (
            "",
            "networks:\n  - {name: a, subnet: 10.1.0.0/29}\n",
            "hosts:\n  - {name: h, nodes: ["
            + ", ".join(f"{{name: n{i}}}" for i in range(6))
            + "]}\n",
            "subnet 10.1.0.0/29: has room for 4 nodes",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_its_fix(
    more: str, networks: str, hosts: str, words: str
) -> None:
    assert words in problem_of(more, networks, hosts)


def there(spec: OpenstackSpec, node: str = "", **values: object) -> Observed:
    """Return the resources of a spec as observed, with other values of one node."""
    found: list[Resource] = []
    for item in desired(spec, Facts()).resources:
        same = item.values
        if item.key == Key(Kind.NODE, node):
            same = same.model_copy(update=values)
        found.append(Resource(item.key, same, item.needs))
    return Observed(tuple(found))


@pytest.mark.parametrize(
    ("values", "in_place"),
    [
        ({"flavor": "large"}, False),
        ({"networks": ("mpi normal",)}, False),
        ({"group": None}, False),
        ({"floating": True}, True),
        ({"slots": 7}, True),
    ],
)
def test_a_difference_is_seen_and_costs_what_it_must(
    values: dict[str, object], in_place: bool
) -> None:
    spec = spec_of()
    plan = make_plan("c", desired(spec, Facts()), there(spec, "n1", **values))
    (change,) = plan.effective
    assert (change.key.name, change.action, change.in_place) == ("n1", Action.CHANGE, in_place)
    assert make_plan("c", desired(spec, Facts()), there(spec)).empty


def test_shortages_are_told_with_numbers() -> None:
    spec = spec_of(networks=NETWORKS.replace("vfs: 8", "vfs: 2"))
    needs = {"instances": 3, "cores": 6, "ports": 6}
    quotas = {"instances": Quota(10, 8), "cores": Quota(-1, 90), "ports": Quota(6, 0)}
    told = [finding.sentence for finding in shortages(spec, needs, quotas)]
    first, second = told
    assert first.startswith(
        "3 servers are needed: the quota of the project leaves 2 (8 of 10 in use); use less"
    )
    assert second.startswith(
        "network rdma: 3 virtual functions are needed: the spec says that there are 2; use fewer"
    )


PLAN = """
from nearmetal.cli.main import main
sys.exit(main(["plan", sys.argv[1]]))
"""


def planned(directory: Path, prepare: str = "") -> subprocess.CompletedProcess[str]:
    """Plan the example in a process of its own, after some lines of Python."""
    env = {
        **os.environ,
        "NEARMETAL_STATE_DIR": str(directory / "state"),
        "OS_CLIENT_CONFIG_FILE": str(directory / "clouds.yaml"),
        "HOME": str(directory),
    }
    words = [sys.executable, "-c", f"import sys\n{prepare}{PLAN}", str(EXAMPLE)]
    return subprocess.run(
        words, check=False, capture_output=True, text=True, env=env, cwd=directory
    )


def test_a_missing_sdk_is_an_error_with_its_package(tmp_path: Path) -> None:
    done = planned(tmp_path, 'sys.modules["openstack"] = None')
    assert done.returncode == 1
    assert "backend openstack needs a Python package that is missing" in done.stderr
    assert "pip install 'nearmetal[openstack]'" in done.stderr


NOT_YAML = """
import openstack, yaml
openstack.connect = lambda **_: yaml.safe_load("password: *tell-nobody")
"""


def test_a_release_of_openstacksdk_that_shows_clouds_yaml_in_its_fault_is_silenced(
    tmp_path: Path,
) -> None:
    done = planned(tmp_path, NOT_YAML)
    assert done.returncode == 1
    assert "error: cloud lab: clouds.yaml is not YAML" in done.stderr
    assert "tell-nobody" not in done.stdout + done.stderr


ENTRY = "  lab:\n    auth: {auth_url: 'http://127.0.0.1:1/v3', username: u, password: tell-nobody"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  other: {}\n", "Cloud lab was not found"),
        # Some releases of openstacksdk leave out a file that is not YAML.
        (f"{ENTRY}\n", "Cloud lab was not found|clouds.yaml is not YAML"),
        ("  lab: tell-nobody\n", "clouds.yaml has no valid entry for `lab`"),
        ("  lab: [tell-nobody]\n", "clouds.yaml has no valid entry for `lab`"),
        (f"{ENTRY}, project_name: p}}\n", "logging in: Unable to establish connection"),
        ("  lab:\n    auth: {password: tell-nobody}\n", "logging in: "),
        (
            f"{ENTRY.replace('//', '//me:tell-nobody@')}, project_name: p}}\n",
            "logging in: Unable to establish connection",
        ),
    ],
)
def test_a_cloud_that_cannot_be_used_is_an_error_without_its_values(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "clouds.yaml").write_text(f"clouds:\n{text}")
    done = planned(tmp_path)
    assert done.returncode == 1
    assert "error: cloud lab: " in done.stderr
    assert any(some in done.stderr for some in words.split("|"))
    assert "Traceback" not in done.stderr
    assert "tell-nobody" not in done.stdout + done.stderr
