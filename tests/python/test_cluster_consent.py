# SPDX-License-Identifier: Apache-2.0
"""Nothing of a cluster ends without a yes, and a saved plan holds only while nothing changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cli.cluster import as_lines, written
from nearmetal.cli.main import main
from nearmetal.cluster.apply import Cluster, describe, down, plan_up, up
from nearmetal.cluster.diff import Plan, make_plan
from nearmetal.cluster.model import PostScript
from nearmetal.cluster.resource import Desired, Key, Kind, Observed
from nearmetal.cluster.saved import open_plan, plan_data, save_plan
from nearmetal.cluster.spec import load_spec, parse_spec
from nearmetal.cluster.store import Store
from nearmetal.config import plan_file
from nearmetal.config.plan_file import PlanFileError
from nearmetal.core.errors import StateError
from nearmetal.core.journal import Journal
from tests.python.fake_backend import FakeBackend

EXAMPLES = Path(__file__).parents[2] / "nearmetal/share/examples"
SPECS = sorted(EXAMPLES.glob("*.yaml"))
TWO_NODES = EXAMPLES / "two-nodes.yaml"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_saved_plan_holds_the_whole_spec(path: Path, tmp_path: Path) -> None:
    spec = load_spec(path)
    save_plan(tmp_path / "plan", spec, str(path), Plan(spec.name, ()), "")
    saved = open_plan(tmp_path / "plan")
    assert saved is not None
    assert saved.spec == spec
    assert saved.spec.canonical() == spec.canonical()


def test_the_command_line_saves_a_plan_and_refuses_a_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan"
    assert main(["plan", str(TWO_NODES), "--out", str(path)]) == 3
    assert f"now `nearmetal up {path}`" in capsys.readouterr().out
    assert main(["plan", str(TWO_NODES), "--out", str(path)]) == 2
    assert main(["host", "apply", str(path), "--yes"]) == 1
    assert "it is for `nearmetal up`" in capsys.readouterr().err
    for verb in ("plan", "status", "down"):
        assert main([verb, str(path)]) == 1
        assert capsys.readouterr().err == (
            f"error: {path}: a saved plan\n  hint: it is for `nearmetal up`\n"
        )
    path.write_text(path.read_text().replace('"create"', '"delete"'))
    assert main(["up", str(path)]) == 1
    assert "damaged, or edited by hand" in capsys.readouterr().err


def test_the_next_command_says_replace_where_that_is_necessary(tmp_path: Path) -> None:
    spec = load_spec(TWO_NODES)
    cluster = Cluster(spec.name, FakeBackend(), Store(tmp_path / "state"))
    up(cluster, spec)
    other = parse_spec(TWO_NODES.read_text().replace("slots: 1", "slots: 2"), "other")
    assert "now `nearmetal up p`" in written(Path("p"), plan_up(cluster, spec))
    assert "now `nearmetal up --replace p`" in written(Path("p"), plan_up(cluster, other))


def saved_for(path: Path, plan: Plan, record: str = "") -> Any:
    save_plan(path, load_spec(TWO_NODES), "two.yaml", plan, record)
    return open_plan(path)


def test_a_plan_that_would_do_something_else_now_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    spec = load_spec(TWO_NODES)
    cluster = Cluster(spec.name, FakeBackend(), store)
    saved = saved_for(tmp_path / "plan", plan_up(cluster, spec))

    def agree(plan: Plan) -> None:
        saved.check(plan, store.digest(spec.name))

    up(cluster, spec, agree=agree)
    up(cluster, spec, agree=agree)
    cluster.backend.delete(Key(Kind.NODE, "n2"))
    seen = len(Journal(store.cluster(spec.name)).read())
    with pytest.raises(StateError, match="out of date, and nothing was changed: ") as caught:
        up(cluster, spec, agree=agree)
    assert "cluster two-nodes, network bridge, host h1" in caught.value.message
    assert "nearmetal plan two.yaml --out" in caught.value.hint
    assert len(Journal(store.cluster(spec.name)).read()) == seen


def test_a_script_with_another_content_is_another_plan(tmp_path: Path) -> None:
    script = tmp_path / "post.sh"
    script.write_text("echo harmless\n")
    text = TWO_NODES.read_text() + f"post: [{{script: {script}}}]\n"
    spec = parse_spec(text)
    cluster = Cluster(spec.name, FakeBackend(), Store(tmp_path / "state"))
    save_plan(tmp_path / "plan", spec, "two.yaml", plan_up(cluster, spec), "")
    saved = open_plan(tmp_path / "plan")
    assert saved is not None
    assert saved.spec == spec
    saved.check(plan_up(cluster, spec), "")
    script.write_text("echo something else\n")
    with pytest.raises(StateError, match=f"nothing was changed: script {script}"):
        saved.check(plan_up(cluster, spec), "")


def test_a_refusal_leaves_a_cluster_as_it_is(tmp_path: Path) -> None:
    spec = load_spec(TWO_NODES)
    cluster = Cluster(spec.name, FakeBackend(), Store(tmp_path / "state"))
    up(cluster, spec)
    before = cluster.backend.observe()

    def refuse(plan: Plan) -> None:
        raise StateError(f"no {plan.cluster}")

    with pytest.raises(StateError, match="no"):
        down(cluster, agree=refuse)
    assert cluster.backend.observe() == before
    down(cluster)
    down(cluster, agree=refuse)


def test_what_ends_or_stops_is_asked_for_and_nothing_else() -> None:
    spec = load_spec(TWO_NODES)
    cluster = Cluster(spec.name, FakeBackend(), Store(Path("/nonexistent")))
    first = plan_up(cluster, spec)
    assert first.disruptive == ()
    wanted = tuple(change.item for change in first.changes)
    node = next(item for item in wanted if item.key.kind is Kind.NODE)
    host = next(item for item in wanted if item.key.kind is Kind.HOST)

    def keys(plan: Plan) -> set[Key]:
        return {change.key for change in plan.disruptive}

    there = Observed(wanted)
    assert keys(make_plan("c", Desired(wanted), there)) == set()
    less = tuple(item for item in wanted if item is not node)
    assert keys(make_plan("c", Desired(less), there)) == {node.key}
    dead = Observed(wanted, broken=frozenset({node.key}))
    assert keys(make_plan("c", Desired(wanted), dead)) == set()
    halted = make_plan("c", Desired(wanted), Observed(wanted, halted={node.key: "it is paused"}))
    assert keys(halted) == {node.key}
    assert describe(halted.effective[0]) == f"~ {node.key} (it is paused)"
    ground = Observed(wanted, broken=frozenset({host.key}))
    above = {item.key for item in wanted if host.key in item.needs}
    assert above
    assert keys(make_plan("c", Desired(wanted), ground)) == above


HOSTILE: list[tuple[str, Any, str]] = [
    ("spec", {}, "damaged"),
    ("spec", None, "damaged"),
    ("changes", {}, "a part is missing"),
    ("changes", [1], "a part is missing"),
    ("changes", [{"kind": "node"}], "a part is missing"),
    ("scripts", None, "a part is missing"),
    ("scripts", [{"script": "/x"}], "a part is missing"),
    ("scripts", [{"script": ["/x"], "sha256": "0"}], "a part is missing"),
    ("changes", [{"kind": "node", "name": {}}], "a part is missing"),
    ("changes", [{"kind": "node", "name": "n" * 1000}], "a part is missing"),
    ("source", ["two.yaml"], "a part is missing"),
    ("source", "x" * 5000, "a part is missing"),
    ("record", None, "a part is missing"),
]


@pytest.mark.parametrize(("key", "value", "words"), HOSTILE)
def test_a_hostile_plan_file_is_an_error(tmp_path: Path, key: str, value: Any, words: str) -> None:
    path = tmp_path / "plan"
    saved_for(path, Plan("c", ()))
    document = json.loads(path.read_text())
    document["content"][key] = value
    document["sha256"] = plan_file.digest(document["content"])
    path.write_text(json.dumps(document))
    with pytest.raises(PlanFileError, match=words):
        open_plan(path)


def rewritten(path: Path, **values: Any) -> Any:
    document = json.loads(path.read_text())
    document["content"].update(values)
    document["sha256"] = plan_file.digest(document["content"])
    path.write_text(json.dumps(document))
    return open_plan(path)


def test_texts_of_a_plan_file_forge_no_line_and_no_command(tmp_path: Path) -> None:
    path, forged = tmp_path / "plan", "n1\n\x1b[2Jerror: run `sh`"
    spec = load_spec(TWO_NODES)
    saved_for(path, Plan("c", ()))
    change = {"kind": "node", "name": forged, "before": 3, "after": None, "action": [{}]}
    script = {"script": forged, "sha256": "", "nodes": 1, "again": [[]], "step": {}}
    saved = rewritten(path, source="a; rm -r b\nc", changes=[change], scripts=[script])
    plan = plan_up(Cluster(spec.name, FakeBackend(), Store(tmp_path / "state")), spec)
    with pytest.raises(StateError) as caught:
        saved.check(plan, "")
    assert (caught.value.message + caught.value.hint).isprintable()
    assert "nearmetal plan 'a; rm -r b\\nc' --out" in caught.value.hint


def test_a_plan_does_not_replace_a_spec_that_was_recorded_after_it(tmp_path: Path) -> None:
    store, spec = Store(tmp_path / "state"), load_spec(TWO_NODES)
    cluster = Cluster(spec.name, FakeBackend(), store)
    up(cluster, spec)
    newer = spec.model_copy(update={"post": [PostScript(script="/x", nodes=["n1"])]})
    saved = saved_for(tmp_path / "plan", plan_up(cluster, spec), store.digest(spec.name))
    store.record(newer)
    plan = plan_up(cluster, spec)
    assert plan.empty
    with pytest.raises(StateError, match="cluster two-nodes has got another spec"):
        saved.check(plan, store.digest(spec.name))
    # The record at the time of the plan, and that of the plan itself, are no obstacle.
    (tmp_path / "plan").unlink()
    later = saved_for(tmp_path / "plan", plan, store.digest(spec.name))
    later.check(plan, store.digest(spec.name))
    store.record(spec)
    later.check(plan, store.digest(spec.name))


def test_rules_of_a_spec_hold_for_the_one_in_a_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    saved_for(path, Plan("c", ()))
    document = json.loads(path.read_text())
    document["content"]["spec"]["hosts"][0]["nodes"] *= 2
    document["sha256"] = plan_file.digest(document["content"])
    path.write_text(json.dumps(document))
    with pytest.raises(PlanFileError, match="same node"):
        open_plan(path)


def test_what_is_no_plan_file_is_left_to_other_readers(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    other = tmp_path / "other.json"
    other.write_text('{"version": 1}')
    assert [open_plan(p) for p in (fifo, other, tmp_path, tmp_path / "no", TWO_NODES)] == [None] * 5


def test_the_data_and_the_lines_of_a_plan_name_the_same_resources() -> None:
    spec = parse_spec(TWO_NODES.read_text())
    plan = plan_up(Cluster(spec.name, FakeBackend(), Store(Path("/nonexistent"))), spec)
    for change in plan_data(plan)["changes"]:
        assert change["name"] in "\n".join(as_lines(plan))


def test_images_are_removed_with_a_yes_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "cache/images/0123456789abcdef"
    image.mkdir(parents=True)
    words = ["image", "remove", "--all", "--cache", str(tmp_path / "cache")]
    assert main(words) == 2
    assert "would remove 0123456789abcdef from" in capsys.readouterr().err
    assert image.exists()
    assert main([*words, "--yes"]) == 0
    assert not image.exists()
    assert main(words) == 0
