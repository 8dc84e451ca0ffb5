# SPDX-License-Identifier: Apache-2.0
"""What `--json` prints, checked by its schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from nearmetal.cli.schema import ERROR, schemas

LARGE = 1 << 14
"""Characters of a document that is checked as a whole only."""

MAY_LACK = {"status": {"resources"}}
"""Keys at the top that a document may lack, by verb."""


@cache
def validator(verb: str) -> Any:
    """Return the validator of a verb's documents."""
    schema = json.loads(schemas()[verb].read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_document(verb: str, data: dict[str, Any]) -> None:
    """Raise if a document of a verb is not as its schema says, or the schema is loose."""
    text = json.dumps(data, allow_nan=False)
    document = json.loads(text)
    name = ERROR if set(document) == {ERROR} else verb
    errors = sorted(validator(name).iter_errors(document), key=lambda e: e.json_path)
    assert not errors, f"{verb} --json: {errors[0].json_path}: {errors[0].message}"
    if len(text) > LARGE or "$schema" in document:
        return
    for key in set(document) - MAY_LACK.get(verb, set()):
        less = {name: value for name, value in document.items() if name != key}
        assert not validator(name).is_valid(less), f"{verb} --json: {key} may be missing"
    assert not validator(name).is_valid(document | {"no such key": 1})
