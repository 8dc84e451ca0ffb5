# SPDX-License-Identifier: Apache-2.0
"""The pure half of backends: their specs and plans. Each directory of `backends` is one.

A backend is imported when a spec names it, or when the schema of all backends is written.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic.json_schema import models_json_schema

from nearmetal.cluster import backends
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.resource import Desired, Facts, Observed

Spec = TypeVar("Spec", bound=ClusterSpec)


@dataclass(frozen=True)
class Registration(Generic[Spec]):
    """The pure half of a backend, in its `plan.py`; `driver.py` has the other half.

    `spec`: the model of a spec that says `backend: NAME`.
    `plan`: from a spec, the facts and what is there to the resources of the cluster.
    """

    spec: type[Spec]
    plan: Callable[[Spec, Facts, Observed], Desired]


@cache
def backend_names() -> tuple[str, ...]:
    """Return the name of every backend, sorted."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(backends.__path__) if m.ispkg))


@cache
def registration(name: str) -> Registration[Any]:
    """Return the registration of a backend; raises KeyError when there is no such backend."""
    if name not in backend_names():
        raise KeyError(name)
    found = importlib.import_module(f"{backends.__name__}.{name}.plan").REGISTRATION
    assert isinstance(found, Registration)  # noqa: S101 - the recipe asks for it
    return found


def desired(spec: ClusterSpec, facts: Facts, observed: Observed | None = None) -> Desired:
    """Return the resources of `spec` where these facts hold; StateError if it cannot be.

    `observed`: the resources that exist. They decide what the spec leaves open, so that no node
    is moved.
    """
    return registration(spec.backend).plan(spec, facts, observed or Observed())


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
