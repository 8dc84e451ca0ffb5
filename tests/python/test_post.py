# SPDX-License-Identifier: Apache-2.0
"""Scripts in nodes: the order, what runs again, and what an interruption leaves. The nodes are this
machine, so every script really runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.cluster import as_lines
from nearmetal.cluster.apply import Cluster, plan_up, steps_of, up
from nearmetal.cluster.backends.local.spec import LocalSpec
from nearmetal.cluster.post import post_findings
from nearmetal.cluster.post_work import MAX_LOG, MAX_SCRIPT, PostScripts
from nearmetal.cluster.saved import plan_data
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, SpecError, StateError
from nearmetal.core.process import Command
from tests.python.fake_backend import FakeBackend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.cluster.diff import Plan
    from nearmetal.cluster.model import ClusterSpec

NODES = "hosts: [{name: h, nodes: [{name: n1}, {name: n2}]}]\n"


@dataclass
class HereBackend(FakeBackend):
    """Nodes that are this machine. `machines`: their identities."""

    machines: dict[str, str] = field(default_factory=lambda: {"n1": "a", "n2": "b"})
    silent: set[str] = field(default_factory=set)
    cut: int = 0
    """Bytes of a script that come; 0: all."""
    tokens: set[str] = field(default_factory=set)
    """Of the scripts that ran: other tests run scripts on this machine too."""

    def incarnations(self) -> Mapping[str, str]:
        return dict(self.machines) if self.there else {}

    def on_node(self, node: str, argv: Sequence[str], **entry: object) -> Command:
        assert entry == {"root": True}
        self.tokens.add(argv[4])
        if node in self.silent:
            return Command(("sh", "-c", "echo no route to host >&2; exit 255"))
        if self.cut:
            return Command(("sh", "-c", f'head -c {self.cut} | "$@"', "sh", *argv))
        return Command(tuple(argv))


@dataclass
class Site:
    folder: Path
    backend: HereBackend = field(default_factory=HereBackend)

    @property
    def seen(self) -> list[str]:
        """What the scripts wrote."""
        path = self.folder / "seen"
        return path.read_text().split() if path.exists() else []

    def script(self, name: str, *lines: str) -> Path:
        path = self.folder / name
        path.write_text(
            "\n".join((f"#!/bin/sh\necho {name}:$NEARMETAL_NODE >>{self.folder}/seen", *lines))
        )
        return path

    def spec(self, *entries: str) -> ClusterSpec:
        listed = "".join(f"  - {{script: {self.folder}/{entry}}}\n" for entry in entries)
        post = f"post:\n{listed}" if entries else ""
        return parse_spec(f"version: 1\nname: c\nbackend: local\n{post}{NODES}")

    @property
    def cluster(self) -> Cluster:
        return Cluster("c", self.backend, Store(self.folder / "state"))

    @property
    def state(self) -> Path:
        return self.folder / "state" / "clusters" / "c"

    def up(self, *entries: str) -> Plan:
        return up(self.cluster, self.spec(*entries))

    def left(self) -> list[str]:
        names = [f"nearmetal-post.{token}.*" for token in self.backend.tokens]
        assert names
        places = (Path("/var/lib"), Path("/tmp"))
        return [str(p) for place in places for name in names for p in place.glob(name)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_scripts_run_once_in_their_order_and_are_logged(site: Site) -> None:
    site.script("late", "echo words; echo more >&2")
    site.script("first")
    entries = ("late, step: 9", "first, step: 2, nodes: [n2]")
    plan = plan_up(site.cluster, site.spec(*entries))
    assert [line for line in as_lines(plan) if ">" in line] == [
        f"  > script {site.folder}/first on n2 (step 2)",
        f"  > script {site.folder}/late on n1, n2 (step 9)",
    ]
    assert as_lines(plan)[-1].endswith(", 2 scripts to run")
    assert plan_data(plan)["scripts"][0]["nodes"] == ["n2"]
    site.up(*entries)
    assert site.seen[0] == "first:n2"
    assert sorted(site.seen[1:]) == ["late:n1", "late:n2"]
    logs = sorted((site.state / "post").glob("*.late.*.log"))
    assert [path.read_text() for path in logs] == ["words\nmore\n"] * 2
    assert {path.stat().st_mode & 0o777 for path in logs} == {0o600}
    assert site.up(*entries).empty
    assert len(site.seen) == 3
    assert not site.left()


def test_a_changed_script_and_a_machine_that_was_made_again_run_again(site: Site) -> None:
    site.script("s")
    site.up("s")
    site.backend.machines["n2"] = "c"
    assert [run.nodes for run in site.up("s").scripts] == [("n2",)]
    site.script("s", "true")
    assert [run.nodes for run in site.up("s").scripts] == [("n1", "n2")]
    assert sorted(site.seen) == ["s:n1"] * 2 + ["s:n2"] * 3


def test_the_same_content_under_two_paths_runs_once(site: Site) -> None:
    for name in ("one", "two"):
        (site.folder / name).write_text(f"echo x >>{site.folder}/seen\n")  # no #! line
    site.up("one", "two")
    assert site.seen == ["x", "x"]


def test_a_failure_names_script_node_status_and_last_lines_and_stops_later_steps(
    site: Site,
) -> None:
    trap = f'[ "$NEARMETAL_NODE" = n1 ] || [ -e {site.folder}/good ] || {{ seq 100; exit 7; }}'
    site.script("bad", "printf 'a\\033[2J'", trap)
    site.script("after")
    entries = ("bad", "after, step: 2")
    with pytest.raises(BackendError) as raised:
        site.up(*entries)
    message = raised.value.message
    assert f"script {site.folder}/bad, step 1, in 1 of 2 nodes:" in message
    assert "node n2: it failed with exit status 7\n      89\n" in message
    assert message.endswith("\n      100")
    assert "\x1b" not in message
    assert str(site.state / "post") in raised.value.hint
    assert sorted(site.seen) == ["bad:n1", "bad:n2"]
    text = steps_of(plan_up(site.cluster, site.spec(*entries)))
    assert text == [
        f"> script {site.folder}/bad on n2 (step 1; on n2 it failed with exit status 7)",
        f"> script {site.folder}/after on n1, n2 (step 2)",
    ]
    (site.folder / "good").touch()
    site.up(*entries)
    assert sorted(site.seen) == ["after:n1", "after:n2", "bad:n1", "bad:n2", "bad:n2"]


def test_a_script_that_does_not_end_is_ended_with_all_its_processes(site: Site) -> None:
    marks = f"setsid sleep 31.25 & echo $! >>{site.folder}/pids; echo begun; sleep 30"
    site.script("slow", marks)
    begin = time.monotonic()
    with pytest.raises(BackendError, match=r"it did not end within 5 s\n      begun"):
        site.up("slow, timeout: 5, nodes: [n1]")
    assert time.monotonic() - begin < 25
    assert not alive(site)
    assert not site.left()


def alive(site: Site) -> list[int]:
    pids = (int(word) for word in (site.folder / "pids").read_text().split())
    return [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def test_a_daemon_of_a_script_lives_on_and_holds_nothing_up(site: Site) -> None:
    site.script("daemon", f"sleep 60 & echo $! >{site.folder}/pids")
    begin = time.monotonic()
    try:
        site.up("daemon, nodes: [n1]")
        assert time.monotonic() - begin < 20
        assert len(alive(site)) == 1
    finally:
        for pid in alive(site):
            os.kill(pid, signal.SIGKILL)


def test_output_without_bound_is_cut_to_its_end(site: Site) -> None:
    site.script("loud", "yes line | head -c 3000000; echo the end")
    site.up("loud, nodes: [n1]")
    (log,) = (site.state / "post").iterdir()
    assert log.stat().st_size == MAX_LOG
    assert log.read_text().endswith("line\nthe end\n")


def test_output_takes_no_room_in_the_node_while_the_script_runs(site: Site) -> None:
    measure = f"du -sk ${{0%/script}} >{site.folder}/used"
    site.script("loud", f"yes line | head -c 30000000; {measure}")
    site.up("loud, nodes: [n1]")
    assert int((site.folder / "used").read_text().split()[0]) < 2048


def test_a_daemon_that_writes_on_is_neither_ended_nor_waited_for(site: Site) -> None:
    said = site.folder / "said"
    write = f"while :; do echo more || exit; touch {said}; sleep 0.05; done"
    started = f"({write}) & echo $! >{site.folder}/pids; until [ -e {said} ]; do sleep 0.05; done"
    site.script("daemon", "echo first", started)
    try:
        site.up("daemon, nodes: [n1]")
        (log,) = (site.state / "post").iterdir()
        assert log.read_text().startswith("first\nmore\n")
        time.sleep(0.5)
        assert len(alive(site)) == 1
        assert not site.left()
    finally:
        for pid in alive(site):
            os.kill(pid, signal.SIGKILL)


def test_a_script_that_changed_after_the_plan_does_not_run(site: Site) -> None:
    site.script("s")

    def edit(_plan: Plan) -> None:
        site.script("s", "echo other")

    with pytest.raises(StateError, match="/s has changed since the plan was made"):
        up(site.cluster, site.spec("s"), agree=edit)
    assert not site.seen


def test_a_script_that_comes_in_part_does_not_run(site: Site) -> None:
    site.script("s", "echo the end")
    site.backend.cut = 20
    with pytest.raises(BackendError, match=r"20 of \d+ bytes of the script came"):
        site.up("s, nodes: [n1]")
    assert not site.seen
    assert not site.left()


@pytest.mark.parametrize("entry", ["s", "other"])
def test_a_new_version_or_another_script_first_ends_what_failed(site: Site, entry: str) -> None:
    site.script("s", f"sleep 33.25 & echo $! >{site.folder}/pids; exit 1")
    with pytest.raises(BackendError):
        site.up("s, nodes: [n1]")
    assert alive(site)
    site.script(entry, f"[ ! -e /proc/$(cat {site.folder}/pids)/exe ]")
    site.up(f"{entry}, nodes: [n1]")
    assert not alive(site)
    (state,) = json.loads((site.state / "post.json").read_text())["n1"]["scripts"].values()
    assert state["state"] == "done"


def test_processes_that_cannot_be_ended_stop_the_next_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.script("s", "exit 1")
    with pytest.raises(BackendError):
        site.up("s, nodes: [n1]")
    # No process has this number, so it cannot be killed; and each look at the clock takes long.
    for name, line in (
        ("grep", "echo /proc/4194305/environ"),
        ("date", f"echo >>{site.folder}/looks; expr 10 '*' $(wc -l <{site.folder}/looks)"),
    ):
        path = site.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{site.folder}/bin:{os.environ['PATH']}")
    with pytest.raises(BackendError, match="an earlier run is still alive: process 4194305"):
        site.up("s, nodes: [n1]")
    assert len(site.seen) == 1


def test_a_node_that_does_not_answer_is_named_and_its_script_runs_later(site: Site) -> None:
    site.script("s")
    site.backend.silent = {"n2"}
    with pytest.raises(BackendError, match="node n2: cannot be run there: no route to host"):
        site.up("s")
    token = json.loads((site.state / "post.json").read_text())["n2"]["scripts"]
    site.backend.silent = set()
    plan = site.up("s")
    assert plan.scripts[0].text.endswith("s on n2 (step 1; on n2 it was interrupted)")
    again = json.loads((site.state / "post.json").read_text())["n2"]["scripts"]
    # Whatever an earlier run has left carries the same token.
    assert [s["token"] for s in token.values()] == [s["token"] for s in again.values()]
    assert sorted(site.seen) == ["s:n1", "s:n2"]


CHILD = """
import sys
from pathlib import Path
from tests.python.test_post import HereBackend, Site
site = Site(Path(sys.argv[1]))
site.up()
site.up("long", "after, step: 2")
"""


def test_a_kill_in_the_middle_runs_it_again_and_leaves_nothing_of_the_first_run(
    site: Site,
) -> None:
    quick = f'[ "$NEARMETAL_NODE" = n2 ] || {{ [ -e {site.folder}/quick ] || sleep 32.25; }}'
    site.script("long", f"echo $$ >>{site.folder}/pids", quick)
    site.script("after")
    site.up()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(site.folder)], env=environment
    ) as child:
        record = site.state / "post.json"
        deadline = time.monotonic() + 60
        while not (record.exists() and '"done"' in record.read_text() and alive(site)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.kill()
    assert alive(site), "the script outlives the kill, as in a real node"
    (site.folder / "quick").touch()
    plan = site.up("long", "after, step: 2")
    assert "long on n1 (step 1; on n1 it was interrupted)" in plan.scripts[0].text
    assert not alive(site)
    assert sorted(site.seen) == ["after:n1", "after:n2", "long:n1", "long:n1", "long:n2"]
    assert not site.left()


class HalfOn(LocalSpec):
    def is_on(self, node: str) -> bool:
        return node == "n1"


def test_only_nodes_that_are_on_run_scripts(site: Site) -> None:
    site.script("s")
    plan = up(site.cluster, HalfOn.model_validate(site.spec("s").model_dump()))
    assert [run.nodes for run in plan.scripts] == [("n1",)]
    assert "scripts of `post` wait until these are on: n2" in plan.notes
    assert [run.nodes for run in site.up("s").scripts] == [("n2",)]


def test_scripts_that_are_not_readable_are_named_before_anything_is_made(site: Site) -> None:
    (site.folder / "large").write_bytes(b"x" * (MAX_SCRIPT + 1))
    with pytest.raises(StateError) as raised:
        site.up("missing", "large", "state/..not")
    assert "missing: No such file or directory" in raised.value.message
    assert "large: larger than 1 MiB" in raised.value.message
    assert not site.backend.steps


@pytest.mark.parametrize("text", ["{", "[]", '{"n1": {"machine": 1}}', '{"n1": {"scripts": {}}}'])
def test_a_damaged_record_is_refused(site: Site, text: str) -> None:
    site.script("s")
    site.up("s")
    (site.state / "post.json").write_text(text)
    with pytest.raises(StateError, match="record of scripts"):
        site.up("s")
    assert len(site.seen) == 2


def test_a_machine_that_is_gone_runs_nothing(site: Site) -> None:
    site.script("s")
    site.up("s")
    spec = site.spec("s")
    scripts = PostScripts(spec, site.backend, site.state, site.cluster.scripts(spec).runner)
    site.backend.machines = {"n1": "a"}
    plan = scripts.added(replace(plan_up(site.cluster, spec)))
    with pytest.raises(BackendError, match="node n2 is gone"):
        scripts.run(plan.scripts[0])


@pytest.mark.parametrize(
    ("post", "reason"),
    [
        ("[{script: s.sh}]", "is not an absolute path"),
        ("[{script: /s, nodes: [n3]}]", "node n3: the spec has no node of this name"),
        ("[{script: /s}, {script: /s, nodes: [n2]}]", "node n2: script /s twice in one node"),
        ("[{script: /s, nodes: [n1, n1]}]", "twice in one node"),
        ("[{script: /s, step: -1}]", "step"),
        ("[{script: /s, timeout: 0}]", "timeout"),
    ],
)
def test_wrong_scripts_are_refused_in_words(post: str, reason: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_spec(f"version: 1\nname: c\nbackend: local\npost: {post}\n{NODES}")
    assert reason in str(raised.value)


def test_a_spec_without_scripts_asks_for_no_identity(site: Site) -> None:
    spec = parse_spec(f"version: 1\nname: c\nbackend: local\n{NODES}")
    assert not list(post_findings(spec))
    site.backend.incarnations = None  # type: ignore[assignment, method-assign]
    up(site.cluster, spec)
    assert not (site.state / "post.json").exists()
