# SPDX-License-Identifier: Apache-2.0
"""A plan of a cluster in a file: `up` carries it out only if it would still do exactly the same.

The file holds the spec with every default and all that the plan compares, present and desired. It
holds no secret: a spec names the places of passwords.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import ClusterSpec, some
from nearmetal.cluster.spec import parse_spec
from nearmetal.config import plan_file
from nearmetal.core.errors import NearmetalError, StateError

KIND = "cluster"


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    return {
        "cluster": plan.cluster,
        "changes": [
            {
                "action": change.action.name.lower(),
                "kind": change.key.kind.value,
                "name": change.key.name,
                "before": dict(change.before),
                "after": dict(change.after),
                "reason": change.reason or change.why,
            }
            for change in plan.changes
        ],
        "scripts": [
            {
                "script": run.entry.script,
                "sha256": run.digest,
                "step": run.entry.step,
                "nodes": list(run.nodes),
                "again": dict(run.again),
            }
            for run in plan.scripts
        ],
        "notes": list(plan.notes),
    }


@dataclass(frozen=True)
class SavedClusterPlan:
    """The content of a plan file. `source`: the spec, as the user named it.

    `scripts` have the digests of their contents: a changed script is another plan.
    """

    spec: ClusterSpec
    source: str
    changes: list[dict[str, Any]]
    scripts: list[dict[str, Any]]

    def check(self, plan: Plan) -> None:
        """Raise StateError if the plan of now is another one; a plan without changes is none."""
        data = json.loads(json.dumps(plan_data(plan)))
        now, scripts = data["changes"], data["scripts"]
        if plan.empty or (now == self.changes and scripts == self.scripts):
            return
        names = [
            *(f"{one['kind']} {one['name']}" for one in _differing(now, self.changes)),
            *(f"script {one['script']}" for one in _differing(scripts, self.scripts)),
        ]
        changed = some([*dict.fromkeys(names)]) or "the order of the changes"
        raise StateError(
            f"the plan is out of date, and nothing was changed: {changed}",
            f"make a new plan and look at it: nearmetal plan {self.source} --out FILE; "
            f"`nearmetal up {self.source}` completes an interrupted `up`",
        )


def save_plan(path: Path, spec: ClusterSpec, source: str, plan: Plan) -> None:
    """Write a plan into a new file."""
    data = plan_data(plan)
    content = {
        "source": source,
        "spec": json.loads(spec.canonical()),
        "changes": data["changes"],
        "scripts": data["scripts"],
    }
    plan_file.write(path, KIND, content)


def open_plan(path: Path) -> SavedClusterPlan | None:
    """Return the plan in a file; None if the file is no plan. Raises NearmetalError."""
    content = plan_file.read(path, KIND)
    if content is None:
        return None
    changes = _entries(content.get("changes"), {"kind", "name"})
    scripts = _entries(content.get("scripts"), {"script", "sha256"})
    if changes is None or scripts is None:
        raise plan_file.damaged(path, "a part is missing")
    text = json.dumps(content.get("spec"), ensure_ascii=False, indent=1)
    try:
        spec = parse_spec(text, f"{path} (spec)")
    except NearmetalError as error:
        raise plan_file.damaged(path, error.message) from error
    return SavedClusterPlan(spec, str(content.get("source")), changes, scripts)


def _entries(value: Any, keys: set[str]) -> list[dict[str, Any]] | None:
    """Return a list of objects with these keys; None for anything else."""
    if not isinstance(value, list):
        return None
    whole = all(isinstance(one, dict) and keys <= one.keys() for one in value)
    return value if whole else None


def _differing(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in (*one, *other) if entry not in one or entry not in other]
