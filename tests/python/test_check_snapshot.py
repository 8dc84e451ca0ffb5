# SPDX-License-Identifier: Apache-2.0
"""Snapshots and collections from elsewhere are hostile; and what changed between two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.check.analyse import analyse
from nearmetal.check.collection import Collection, Entry, index_text, open_collection
from nearmetal.check.diff import NodeChange, compare
from nearmetal.check.families import CHECKS
from nearmetal.check.profile import CheckProfile
from nearmetal.check.snapshot import digest_of, parse_snapshot, shown
from nearmetal.core.errors import LogError
from tests.python.check_nodes import FACTS, TODAY, content_of, facts_of, node


def nested(depth: int) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for _ in range(depth):
        facts = {"a": facts}
    return facts


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "not a snapshot of nearmetal"),
        (b'{"format": "nearmetal-snapshot", "version": 9}', "a snapshot of version 9"),
        (b'{"format": "nearmetal-snapshot", "version": 1, "facts": []}', "it has no facts"),
        (content_of({"a": float("nan")}), "NaN is not a number"),
        (content_of({"a": float("inf")}), "Infinity is not a number"),
        (content_of({"a": 10**30}), "a number out of range"),
        (content_of({"a": "x" * 2000}), "a text of more than"),
        (content_of({"k" * 300: 1}), "a key of more than"),
        (content_of(nested(11)), "nested deeper than"),
        (content_of({"a": list(range(40_000))}), "more than 30000 values"),
        (content_of({"a": 1}, more="x" * (1 << 20)), "larger than 1 MiB"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_the_file(content: bytes, why: str) -> None:
    with pytest.raises(LogError) as refused:
        parse_snapshot(content, "n1", "tuesday/x.json")
    assert refused.value.message.startswith("tuesday/x.json")
    assert why in refused.value.message


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
PLACES = list(
    json.loads(json.dumps([[a] for a in FACTS] + [[a, b] for a in FACTS for b in FACTS[a]]))
)


@settings(max_examples=150)
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=5))
def test_no_check_fails_on_facts_of_any_type(changes: list[tuple[list[str], Any]]) -> None:
    facts = facts_of(1)
    for path, value in changes:
        if len(path) == 1:
            facts[path[0]] = value
        elif isinstance(facts.get(path[0]), dict):
            facts[path[0]][path[1]] = value
    try:
        odd = parse_snapshot(content_of(facts), "odd", "odd", (-0.1, 0.1))
    except LogError:
        return
    profile = CheckProfile("all", tuple(CHECKS))
    for finding in analyse([node(1), node(2), odd], profile, silent={}, today=TODAY).findings:
        text = f"{finding.value} {finding.expected} {finding.about} {finding.reason}"
        assert text.isprintable()


@pytest.mark.parametrize("digit", ["²", "٣", "1" * 200])
def test_digits_that_are_no_numbers_fail_no_check(digit: str) -> None:
    odd = node(
        1,
        ("pci>0000:17:00.0>current_link_width", digit),
        ("processor>highest_khz", {digit: "0"}),
        ("processor>allowed_khz", {digit: "0", "1": "1"}),
        ("virtual>guests", {"u": {"name": "vm1", "pins": {"0": digit, "1": f"0-{digit}"}}}),
    )
    profile = CheckProfile("all", tuple(CHECKS))
    found = analyse([odd], profile, silent={}, today=TODAY).findings
    assert {"processor.frequency", "fabric.slot"}.isdisjoint(f.check for f in found)


def write(folder: Path, contents: dict[str, bytes], silent: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    nodes = {}
    for name, content in contents.items():
        digest = digest_of(content)
        (folder / f"{digest}.json").write_bytes(content)
        nodes[name] = Entry(digest, (-0.5, 0.5))
    (folder / "collection.json").write_text(index_text(5.0, nodes, silent or {}))
    return folder


def test_a_collection_is_read_as_it_was_written(tmp_path: Path) -> None:
    contents = {f"n{i}": content_of(facts_of(i)) for i in (1, 2)}
    found = open_collection(write(tmp_path / "c", contents, {"n3": "no answer"}))
    assert isinstance(found, Collection)
    assert (found.taken, found.silent) == (5.0, {"n3": "no answer"})
    assert [(s.name, s.early, s.late) for s in found.snapshots()] == [
        ("n1", -0.5, 0.5),
        ("n2", -0.5, 0.5),
    ]


def test_changed_content_a_link_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    content = content_of(facts_of(1))
    folder = write(tmp_path / "c", {"n1": content})
    file = folder / f"{digest_of(content)}.json"
    collection = open_collection(folder)
    assert isinstance(collection, Collection)
    file.write_bytes(content.replace(b"Model P", b"Model X"))
    with pytest.raises(LogError, match="its content is not that of its name"):
        list(collection.snapshots())
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(LogError, match="cannot read"):
        list(collection.snapshots())
    file.unlink()
    with pytest.raises(LogError, match="cannot read"):
        list(collection.snapshots())


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"format": "nearmetal-collection", "version": 1}', "it has no nodes"),
        (index_text(0, {"../x": Entry("0" * 64)}, {}), "is not the name of a node"),
        (index_text(0, {"n1": Entry("../../etc/passwd")}, {}), "has no snapshot"),
        (index_text(0, {}, {"a\x1b[31m": "x"}), "is not the name of a node"),
        (index_text(0, {}, {f"n{i}": "" for i in range(20_001)}), "more than 20000 nodes"),
        (f'{{"taken": {"9" * 400}}}', "a number out of range"),
        ('{"taken": 1e400}', "a number out of range"),
        (index_text(0, {"n1": Entry("0" * 64, (float("nan"), 0))}, {}), "NaN is not a number"),
    ],
)
def test_a_hostile_index_is_refused(index: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "collection.json").write_text(index)
    with pytest.raises(LogError, match=why):
        open_collection(tmp_path)


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot read"):
        open_collection(tmp_path)


def test_one_snapshot_has_the_name_of_its_host(tmp_path: Path) -> None:
    file = tmp_path / "mail.json"
    file.write_bytes(content_of(facts_of(7)))
    found = open_collection(file)
    assert found.name == "compute-07"  # type: ignore[union-attr]
    file.write_bytes(content_of(facts_of(7) | {"system": {"hostname": "a b\n"}}))
    assert open_collection(file).name == "node"  # type: ignore[union-attr]


def test_places_are_shown_as_people_write_them() -> None:
    assert shown(("sysctl", "vm.swappiness")) == "sysctl[vm.swappiness]"
    assert shown(("a", "b\x1b")) == "a[b\\x1b]"


def test_a_diff_folds_equal_changes_and_leaves_out_what_always_changes() -> None:
    before = [node(i) for i in (1, 2, 3)]
    after = [
        node(1, ("sysctl>vm.swappiness", "60"), ("system>uptime_s", 5000.0)),
        node(2, ("sysctl>vm.swappiness", "60"), ("storage>/>free", 17)),
        node(4),
    ]
    assert compare(before, after) == [
        NodeChange("node", "there", "absent", ("compute-03",)),
        NodeChange("node", "absent", "there", ("compute-04",)),
        NodeChange("sysctl[vm.swappiness]", "10", "60", ("compute-01", "compute-02")),
    ]


def test_a_diff_shows_error_counters_that_grew_since_the_same_boot() -> None:
    path = "fabric>mlx5_0>ports>1>counters>symbol_error"
    grown = compare([node(1, (path, 3))], [node(1, (path, 8))])
    place = "fabric.mlx5_0.ports.1.counters.symbol_error"
    assert grown == [NodeChange(place, "3", "8", ("compute-01",), grown=True)]
    assert compare([node(1, (path, 8))], [node(1, (path, 3))]) == []
    rebooted = compare([node(1, (path, 3))], [node(1, (path, 8), ("system>boot_id", "c"))])
    assert [change.place for change in rebooted] == ["system.boot_id"]
