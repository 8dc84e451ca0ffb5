# SPDX-License-Identifier: Apache-2.0
"""The specs of all backends, by the word in `backend:`."""

from __future__ import annotations

import json

from pydantic.json_schema import models_json_schema

from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.registration import backend_names, registration


def specs() -> dict[str, type[ClusterSpec]]:
    """Return the model of every backend's spec."""
    return {name: registration(name).spec for name in backend_names()}


def from_canonical(text: str) -> ClusterSpec:
    """Read back `ClusterSpec.canonical`; raises pydantic's ValidationError or ValueError."""
    data = json.loads(text)
    name = data.get("backend") if isinstance(data, dict) else None
    if name not in backend_names():
        raise ValueError(f"backend {name!r} is not supported")
    model: type[ClusterSpec] = registration(name).spec
    return model.model_validate(data)


def json_schema() -> str:
    """Return the JSON Schema of a cluster spec, for editors."""
    found = specs()
    refs, made = models_json_schema([(model, "validation") for model in found.values()])
    words = {name: refs[model, "validation"]["$ref"] for name, model in found.items()}
    schema = {
        "$defs": made["$defs"],
        "description": "A virtual cluster: what `nearmetal up` makes.",
        "discriminator": {"mapping": words, "propertyName": "backend"},
        "oneOf": [{"$ref": ref} for ref in words.values()],
        "title": "ClusterSpec",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    return json.dumps(schema, indent=2) + "\n"
