# SPDX-License-Identifier: Apache-2.0
"""Measuring nodes that are machines: their hosts, their Python, and the addresses of their agents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearmetal.check.measure import measure_cluster
from nearmetal.check.model import Gravity
from nearmetal.check.performance.classes import (
    BETWEEN_HOSTS,
    ONE_HOST,
    ONE_KERNEL,
    ClassPlace,
    NodeClasses,
)
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.run import PERFORMANCE, PerformanceRun, parse_run, run_text
from nearmetal.check.ssh_hosts import SshHosts
from nearmetal.cli.main import main
from nearmetal.core.errors import LogError
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from tests.python.check_performance_clusters import measure as measured
from tests.python.test_check_measure import HELLO, Here, agents, marked, spec_of

_SSH = """#!/bin/sh
# Runs the command here, as sshd on a host of which each has an address of its own.
while [ "$1" != -- ]; do shift; done
host=$2 number=${2#n}
case $host in loud) echo "Welcome, 2 messages";; esac
case $host in gone) echo "ssh: no route to host gone" >&2; exit 255;; esac
export SSH_CONNECTION="192.0.2.1 50000 127.0.0.$number 22"
exec sh -c "$3"
"""


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(_SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield
    assert marked() == []


@pytest.mark.usefixtures("fake_ssh")
def test_hosts_are_measured_over_ssh_at_the_addresses_of_their_logins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    words = ["check", "performance", "--hosts", "n[1-3]", "--measure", "processor,latency"]
    assert main([*words, "--output", str(kept), "--json"]) in (0, 4)
    found = json.loads(capsys.readouterr().out)
    run = parse_run((kept / PERFORMANCE).read_bytes(), PERFORMANCE)
    assert found["nodes"] == list(run.names) == ["n1", "n2", "n3"]
    assert run.failures == {}
    met = {item for turn in run.screening if turn.quantity == "latency" for item in turn.values}
    assert len(met) == 6
    assert all(words.startswith("Python 3.") for words in run.software.values())


@pytest.mark.usefixtures("fake_ssh")
def test_a_host_that_ssh_does_not_reach_is_one_finding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["check", "performance", "--hosts", "n[1-3],gone", "--measure", "processor", "--json"]
    assert main(words) == 4
    found = json.loads(capsys.readouterr().out)
    assert {(f["check"], f["value"]) for f in found["findings"] if f["nodes"] == ["gone"]} >= {
        ("performance.answer", "ssh: no route to host gone")
    }


@pytest.mark.usefixtures("fake_ssh")
def test_the_words_of_a_shell_at_a_login_are_no_number_of_processes() -> None:
    hosts = SshHosts(("n1", "loud"), "", LocalRunner())
    assert hosts.end_marked("NM_CHECK_RUN=none") == 0


def test_spec_and_hosts_contradict_and_one_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "performance"]) == 2
    assert "no nodes to measure" in capsys.readouterr().err
    assert main(["check", "performance", "spec.yaml", "--hosts", "n[1-4]"]) == 2
    assert "contradict" in capsys.readouterr().err
    assert main(["check", "performance", "--hosts", "n[1-2]"]) == 2
    assert "a cluster of 2 nodes has no majority" in capsys.readouterr().err
    assert main(["check", "performance", "--hosts", "n[1-513]"]) == 2
    assert "513 nodes are more than 512" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    [
        '"no address"',
        "7",
        '"10.0.0.1 22"',
        "null",
        '"::g"',
        '"fe80::1%a..b"',
        '"fe80::1%\\ud800"',
        f'"fe80::1%{"a" * 64}"',
    ],
)
def test_an_address_that_is_none_gives_the_agent_up(address: str) -> None:
    said = HELLO.replace("}", f', "address": {address}}}')
    with agents(Here(odd={"n2": ("sh", "-c", f"echo '{said}'; exec sleep 60")})) as running:
        assert running.failures == {("n2",): "its agent gives no address"}


def test_an_address_that_is_not_the_nodes_own_is_replaced_by_that_of_its_login() -> None:
    """As with a floating address, which is translated on the way."""

    class Floating(Here):
        def status(self) -> list[Any]:
            names = ("n1", "n2", "n3")
            return [SimpleNamespace(name=n, address="192.0.2.7", host="h1") for n in names]

        def on_node(self, node: str, argv: Any, *, env: dict[str, str]) -> Any:
            login = {"SSH_CONNECTION": f"192.0.2.1 50000 127.0.0.{node[1:]} 22"}
            return super().on_node(node, argv, env=env | (login if node != "n3" else {}))

    run = measure_cluster(
        Floating(),  # type: ignore[arg-type]
        spec_of(("n1", "n2", "n3")),
        LocalRunner(),
        ("latency",),
        NodeClasses(),
        limit_s=5.0,
        progress=Silent(),
    )
    assert {item for turn in run.screening for item in turn.values} == {("n1", "n2"), ("n2", "n1")}
    assert list(run.failures) == [("n3",)]
    assert "Cannot assign requested address" in run.failures["n3",]
    assert run.hosts == dict.fromkeys(("n1", "n2", "n3"), "h1")


def test_an_agent_that_does_not_start_in_time_is_given_up() -> None:
    late = agents(Here(odd={"n2": ("sleep", "60")}), limit_s=2.0)
    late.start_s = 1.0
    with late as running:
        assert running.failures == {("n2",): "its agent does not start in time"}


def machine(boot: str) -> ClassPlace:
    return ClassPlace(("guest",), boot, "")


def test_a_run_knows_the_hosts_of_machines() -> None:
    known = NodeClasses({name: machine(name) for name in ("a", "b", "c")})
    assert known.hop("a", "b") == BETWEEN_HOSTS
    hosts = {"a": "h1", "b": "h1", "c": "h2"}
    assert known.in_run(hosts, {}).hop("a", "b") == ONE_HOST
    assert known.in_run(hosts, {}).hop("a", "c") == BETWEEN_HOSTS
    # The snapshot of the host names its machines; of one of them it is silent.
    known.places["a"] = machine("a")._replace(host="kernel")  # type: ignore[index]
    assert known.in_run(hosts, {}).hop("a", "b") == ONE_HOST
    # Local nodes keep the kernel that they share, whatever hosts their spec has.
    one = NodeClasses({name: ClassPlace((), "k", "k") for name in ("a", "b")})
    assert one.in_run({"a": "h1", "b": "h2"}, {}).hop("a", "b") == ONE_KERNEL


def test_a_node_with_another_python_is_not_compared() -> None:
    cluster = ("a", "b", "c", "d")
    known = NodeClasses({name: machine(name) for name in cluster})
    software = dict.fromkeys(cluster, "Python 3.11.2") | {"d": "Python 3.6.8"}
    classes = known.in_run({}, software)
    slow = measured(cluster, lambda _, i: 1.5 if i == ("d",) else 1.0, classes, ("processor",))
    judged = judge_run(slow, classes)
    assert judged.findings == ()
    assert judged.not_run == {
        "performance.processor of d": "fewer than 3 nodes of its hardware and Python"
    }
    same = known.in_run({}, dict.fromkeys(cluster, "Python 3.11.2"))
    slow = measured(cluster, lambda _, i: 1.5 if i == ("d",) else 1.0, same, ("processor",))
    assert [nodes for _, nodes, _ in judge_run(slow, same).findings] == [("d",)]


def test_a_quantity_that_was_not_measured_is_named_and_nothing_is_slow() -> None:
    cluster = ("a", "b", "c")
    run = measured(cluster, lambda _q, _i: 1.0, None, ("dgemm",))
    lacking = {"dgemm": "our own loop|apt-get install it", "mpi_latency": "no MPI"}
    kept = parse_run(run_text(replace(run, lacking=lacking)).encode(), "f")
    found = judge_run(kept, NodeClasses()).findings
    assert [
        (check.name, nodes, one.about, one.grade, one.value) for check, nodes, one in found
    ] == [
        ("performance.missing", cluster, "dgemm", Gravity.NOTE, "our own loop"),
        ("performance.missing", cluster, "mpi_latency", None, "no MPI"),
    ]
    assert found[0][2].remedy == "apt-get install it"
    assert found[1][2].remedy
    data = json.loads(run_text(run))
    with pytest.raises(LogError, match="lacking: not words"):
        parse_run(json.dumps(data | {"lacking": {"luck": "none"}}).encode(), "f")


def test_hosts_and_software_are_kept_and_hostile_ones_refused() -> None:
    run = PerformanceRun(("a", "b"), hosts={"a": "h1"}, software={"b": "Python 3.13.5"})
    text = run_text(run)
    assert parse_run(text.encode(), "f") == run
    data = json.loads(text)
    for part, given in (("hosts", ["a"]), ("hosts", {"c": "h"}), ("software", "x")):
        with pytest.raises(LogError, match=f"{part}: not words of what is known"):
            parse_run(json.dumps(data | {part: given}).encode(), "f")
    escape = parse_run(json.dumps(data | {"hosts": {"a": "\x1b[2J" + "x" * 999}}).encode(), "f")
    assert "\x1b" not in escape.hosts["a"]
    assert len(escape.hosts["a"]) <= 200
    for part in ("hosts", "software", "lacking"):
        del data[part]
    assert parse_run(json.dumps(data).encode(), "f").hosts == {}
