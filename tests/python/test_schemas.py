# SPDX-License-Identifier: Apache-2.0
"""Each `--json` has a strict schema; conftest.py checks the results of all tests by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nearmetal.cli.main import main
from nearmetal.cli.schema import ERROR, schemas
from nearmetal.core.resources import share
from tests.documents import MAY_LACK, check_document, validator
from tests.python.parsers import verb_parsers

LACKING = {
    ("error", "problems"),
    ("image build", "disk"),
    ("status", "resources"),
    *(
        ("top", f"{way}_{what}_per_s")
        for way in ("sent", "received")
        for what in ("messages", "bytes")
    ),
}
"""Keys that are not always there: all others are required."""


def schema(verb: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(schemas()[verb].read_text())
    return found


def nested(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, (dict, list)):
            yield from nested(inner)


def test_every_json_has_a_schema_and_every_schema_a_json() -> None:
    with_json = {v for v, parser in verb_parsers().items() if "--json" in parser.format_help()}
    assert set(schemas()) == with_json | {ERROR}
    files = {path.name for path in share("schema", "result").iterdir()}
    assert files == {path.name for path in schemas().values()}


@pytest.mark.parametrize("verb", schemas())
def test_objects_have_the_keys_of_the_schema_and_no_others(verb: str) -> None:
    lacking = set()
    for part in nested(schema(verb)):
        if "properties" in part:
            assert part["additionalProperties"] is False
            assert set(part["required"]) <= set(part["properties"])
            lacking |= {(verb, key) for key in set(part["properties"]) - set(part["required"])}
        if part.get("type") == "object":
            assert "additionalProperties" in part or "$schema" in part["required"]
    assert lacking == {pair for pair in LACKING if pair[0] == verb}
    assert MAY_LACK.get(verb, set()) <= {key for _, key in lacking}


@pytest.mark.parametrize("verb", schemas())
def test_the_verb_prints_the_schema(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", *verb.split()]) == 0
    assert capsys.readouterr().out == schemas()[verb].read_text()
    assert main(["schema", *verb.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == schema(verb)
    assert "title" in schema(verb)
    validator(verb)


def test_the_list_names_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schemas"] == {verb: path.name for verb, path in schemas().items()}
    assert main(["schema"]) == 0
    assert "study judge" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["study"], ["../cluster"], ["study judge"], ["no", "verb"]])
def test_a_verb_without_a_schema_is_wrong_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["schema", *words, "--json"])
    told = json.loads(capsys.readouterr().out)
    if words == ["study judge"]:
        assert (code, told["title"]) == (0, "nearmetal study judge --json")
    else:
        assert code == 2
        check_document(ERROR, told)


def test_an_error_of_a_file_has_its_problems(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text("name: 7\nhosts: no\n")
    assert main(["plan", str(tmp_path / "bad.yaml"), "--json"]) != 0
    told = json.loads(capsys.readouterr().out)
    assert told["error"]["problems"]
    check_document("plan", told)
    del told["error"]["hint"]
    assert not validator(ERROR).is_valid(told)


@pytest.mark.parametrize("verb", ["wrap", "slurm task"])
def test_a_verb_without_a_result_has_no_document(verb: str) -> None:
    assert not validator(verb).is_valid({})
