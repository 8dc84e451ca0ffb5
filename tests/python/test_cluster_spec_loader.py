# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.cluster.backends.local.spec import LocalSpec
from nearmetal.cluster.model import addresses
from nearmetal.cluster.registration import from_canonical, json_schema
from nearmetal.cluster.spec import load_spec, parse_spec
from nearmetal.core.errors import NearmetalError, SpecError

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "nearmetal/share/examples").glob("*.yaml"))

GOOD = """\
version: 1
name: c
backend: local
hosts:
  - name: h
    nodes:
      - name: n1
"""


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "c.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_sound(path: Path) -> None:
    spec = load_spec(path)
    assert spec.name == path.stem
    jsonschema.validate(yaml.safe_load(path.read_text()), json.loads(json_schema()))


def test_the_three_examples_are_there() -> None:
    assert {path.stem for path in EXAMPLES} >= {"two-nodes", "two-by-two", "near-far"}


def test_defaults() -> None:
    spec = parse_spec(GOOD)
    assert isinstance(spec, LocalSpec)
    node = spec.hosts[0].nodes[0]
    assert (node.slots, node.cpus, node.shm, node.hostname) == (1, "auto", 512 << 20, None)
    assert (spec.network.subnet, spec.network.mtu) == ("10.77.0.0/24", 1500)


def test_every_field_is_taken() -> None:
    spec = parse_spec("""\
version: 1
name: all-of-it
backend: local
network: {subnet: 10.5.0.0/16, mtu: 9000}
show: [/tmp/programs]
hosts:
  - name: h1
    segments: 8 MiB
    nodes:
      - {name: a, slots: 2, cpus: [0, 3], shm: 1.5 GiB, hostname: same}
      - {name: b, cpus: auto, hostname: same}
""")
    assert isinstance(spec, LocalSpec)
    first = spec.hosts[0].nodes[0]
    assert (first.slots, first.cpus, first.shm, first.hostname) == (2, [0, 3], 3 << 29, "same")
    assert (spec.network.subnet, spec.network.mtu, spec.show) == (
        "10.5.0.0/16",
        9000,
        ["/tmp/programs"],
    )
    assert spec.hosts[0].segments == 8 << 20
    assert from_canonical(spec.canonical()) == spec


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("backend: local", "backend: libvrt"), "c.yaml:3:10: backend 'libvrt': is not supported"),
        (("hosts:", "hostz: 1\nhosts:"), "c.yaml:4:1: unknown key 'hostz'"),
        (("- name: n1", "- {name: n1, slotz: 1}"), "did you mean 'slots'?"),
        (("- name: n1", "- {name: n1, shm: 10 MB}"), "has the unknown unit MB; write 10 MiB"),
        (("- name: n1", "- {name: n1, slots: -2}"), "slots '-2': is out of range; use at least 1"),
        (("- name: n1", "- {name: n1}\n      - {name: n1}"), "duplicate node 'n1': line 7 has"),
        (("- name: n1", "- {name: n1}\n  - {name: h, nodes: [{name: b}]}"), "duplicate host 'h'"),
        (
            ("- name: n1", "- {name: n1, cpus: [0, 0]}"),
            "duplicate core 0: line 7 has the same core",
        ),
        (("- name: n1", "- {name: n1, cpus: all}"), "is not a list of cores; write auto"),
        (("- name: n1", "- {name: 7}"), "is not text; write it in quotes: '7'"),
        (("- name: n1", "- {name: N_1}"), "is not a valid name"),
        (("- name: n1", "- {name: launcher}"), "is reserved"),
        (("- name: n1", "- {slots: 1}"), "hosts[0].nodes[0].name is missing"),
        (("version: 1", "version: 2"), "version '2': is not supported"),
        (("backend", "show: [tmp]\nbackend"), "is not an absolute path"),
        (("backend", "show: [/tmp]\nbackend"), "is private in each node"),
        (("backend", "network: {subnet: 10.0.0.0/30}\nbackend"), "from /16 to /29"),
        (("backend", "network: {subnet: 10.0.0.1/24}\nbackend"), "is not an IPv4 subnet"),
        (("backend", "network: {mtu: 100}\nbackend"), "use at least 1280"),
        (("backend", "network: 7\nbackend"), "network '7'"),
        (("name: c", "name: c\nname: d"), "c.yaml:3:1: duplicate key 'name': line 2 has"),
        (("    nodes", "\tnodes"), "c.yaml:6:1: a tab in the indentation"),
        (("name: c", "name: &a c"), "anchor &a: anchors are not supported"),
        (("name: c", "name: *a"), "alias *a: aliases are not supported"),
        (("name: c", "name: !!str c"), "tags are not supported"),
        (("name: c", "name: [c"), "not valid YAML"),
        (("name: c", "name: \x01"), "not valid YAML"),
        (("version: 1", "? [1]\n: 2\nversion: 1"), "a key that is not a word"),
    ],
)
def test_one_problem_is_named(change: tuple[str, str], expected: str) -> None:
    assert any(expected in line for line in problems(GOOD.replace(*change, 1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml:1:1: the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- 1", "not a mapping"),
        ("---\na: 1\n---\nb: 2\n", "c.yaml:3:1: a second document"),
        ("[" * 100, "nested too deep"),
    ],
)
def test_files_that_are_no_spec(text: str, expected: str) -> None:
    assert expected in problems(text)[0]


def test_all_problems_at_once_in_the_order_of_the_file() -> None:
    lines = problems("""\
version: 1
name: c
backend: mars
hosts:
  - name: h
    nodes:
      - {name: n1, slots: 0}
      - {name: n1, shm: 5 MB}
  - name: h
    nodes: []
    colour: red
""")
    positions = [tuple(map(int, line.split(":")[1:3])) for line in lines]
    assert positions == sorted(positions)
    words = ("mars", "slots", "duplicate node", "MB", "duplicate host", "at least one", "colour")
    assert [sum(word in line for line in lines) for word in words] == [1] * len(words)


def test_a_file_over_1_mib_is_refused_before_parsing(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: [" * (10 << 18))
    with pytest.raises(SpecError, match="too large"):
        load_spec(path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"version: 1\nname: \xff\n")
    with pytest.raises(SpecError, match=r"c.yaml:2:7: the file is not UTF-8"):
        load_spec(path)


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("\ufeff" + GOOD, encoding="utf-8")
    assert load_spec(path).name == "c"


def test_a_missing_file_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(NearmetalError, match=r"cannot read .*No such file") as caught:
        load_spec(tmp_path / "none.yaml")
    _, _, examples = caught.value.hint.partition("examples are in ")
    assert Path(examples, "two-nodes.yaml").is_file()


def test_a_subnet_must_hold_the_nodes() -> None:
    nodes = ", ".join(f"{{name: n{i}}}" for i in range(6))
    text = GOOD.replace("      - name: n1", f"      [{nodes}]")
    spec = text.replace("backend", "network: {subnet: 10.0.0.0/29}\nbackend", 1)
    assert "has room for 5 nodes, and the spec has 6" in problems(spec)[0]


def test_addresses_are_distinct_and_inside() -> None:
    spec = load_spec(ROOT / "nearmetal/share/examples" / "near-far.yaml")
    assert isinstance(spec, LocalSpec)
    launcher, nodes = addresses(spec)
    assert launcher == "10.77.0.1"
    assert list(nodes.values()) == [f"10.77.0.{i}" for i in (11, 12, 13, 14)]


def test_nodes_keep_their_addresses() -> None:
    spec = load_spec(ROOT / "nearmetal/share/examples" / "near-far.yaml")
    assert isinstance(spec, LocalSpec)
    names = [node.name for _, node in spec.nodes]
    held = dict(zip(names, ("10.77.0.14", "10.77.0.14", "10.78.0.9", "none"), strict=True))
    # The second's is the first's, the third's is of another subnet, the fourth's is none.
    assert list(addresses(spec, held)[1].values()) == [
        "10.77.0.14",
        "10.77.0.11",
        "10.77.0.12",
        "10.77.0.13",
    ]
    for reserved in ("10.77.0.1", "10.77.0.0", "10.77.0.255"):
        assert addresses(spec, {names[0]: reserved})[1][names[0]] == "10.77.0.11"


def test_a_small_subnet_that_was_less_full_holds_all_it_has_room_for() -> None:
    nodes = ", ".join(f"{{name: n{i}}}" for i in range(13))
    text = GOOD.replace("      - name: n1", f"      [{nodes}]")
    spec = parse_spec(text.replace("backend", "network: {subnet: 10.0.0.0/28}\nbackend", 1))
    assert isinstance(spec, LocalSpec)
    held = {f"n{i}": f"10.0.0.{11 + i}" for i in range(4)}
    _, found = addresses(spec, held)
    assert len(set(found.values())) == 13
    assert {name: found[name] for name in held} == held


def test_the_schema_file_is_fresh() -> None:
    assert (ROOT / "nearmetal/share/schema/cluster.schema.json").read_text() == json_schema()


def made_or_explained(text: str) -> bool:
    """Whether a text gives a spec, or problems that each have a place in it."""
    try:
        return parse_spec(text).version == 1
    except SpecError as error:
        return all(problem.line >= 1 and problem.what for problem in error.problems)


@given(st.text(alphabet=st.sampled_from("ab:-[]{}, \n#'\"1&*!|>?%@\t"), max_size=60))
def test_any_text_gives_a_spec_or_problems(text: str) -> None:
    assert made_or_explained(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda children: (
            st.lists(children, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["version", "name", "backend", "hosts", "nodes", "cpus", "x", "shm"]
                ),
                children,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_structure_gives_a_spec_or_problems(data: object) -> None:
    assert made_or_explained(yaml.safe_dump(data))
