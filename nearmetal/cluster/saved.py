# SPDX-License-Identifier: Apache-2.0
"""A plan of a cluster in a file: `up` carries it out only if it would still do exactly the same.

The file holds the spec with every default and all that the plan compares, present and desired. It
holds no secret: a spec names the places of passwords.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import ClusterSpec, some
from nearmetal.cluster.spec import parse_spec
from nearmetal.config import plan_file
from nearmetal.core.errors import NearmetalError, StateError
from nearmetal.core.text import printable

KIND = "cluster"

_MAX_NAME, _MAX_PATH, _DIGEST = 255, 4096, 64
"""The most characters of texts that messages show, and of a digest."""


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

    `scripts` have the digests of their contents: a changed script is another plan. `record`: the
    digest of the cluster's recorded spec when the plan was made, see `Store.digest`.
    """

    spec: ClusterSpec
    source: str
    record: str
    changes: list[dict[str, Any]]
    scripts: list[dict[str, Any]]

    def check(self, plan: Plan, record: str) -> None:
        """Raise StateError if the plan of now is another one; a plan without changes is none.

        `record`: the digest of the recorded spec now. A spec that was recorded after the plan was
        made is not replaced by the older one of the plan.
        """
        own = hashlib.sha256(self.spec.canonical().encode()).hexdigest()
        if record not in ("", self.record, own):
            raise self._outdated(f"cluster {self.spec.name} has got another spec")
        data = json.loads(json.dumps(plan_data(plan)))
        now, scripts = data["changes"], data["scripts"]
        if plan.empty or (now == self.changes and scripts == self.scripts):
            return
        names = [
            *(f"{one['kind']} {one['name']}" for one in _differing(now, self.changes)),
            *(f"script {one['script']}" for one in _differing(scripts, self.scripts)),
        ]
        raise self._outdated(some([*dict.fromkeys(names)]) or "the order of the changes")

    def _outdated(self, changed: str) -> StateError:
        source = shlex.quote(printable(self.source))
        return StateError(
            f"the plan is out of date, and nothing was changed: {printable(changed)}",
            f"make a new plan and look at it: nearmetal plan {source} --out FILE; "
            f"`nearmetal up {source}` completes an interrupted `up`",
        )


def save_plan(path: Path, spec: ClusterSpec, source: str, plan: Plan, record: str) -> None:
    """Write a plan into a new file. `record`: the digest of the recorded spec."""
    data = plan_data(plan)
    content = {
        "source": source,
        "spec": json.loads(spec.canonical()),
        "record": record,
        "changes": data["changes"],
        "scripts": data["scripts"],
    }
    plan_file.write(path, KIND, content)


def open_plan(path: Path) -> SavedClusterPlan | None:
    """Return the plan in a file; None if the file is no plan. Raises NearmetalError."""
    content = plan_file.read(path, KIND)
    if content is None:
        return None
    changes = _entries(content.get("changes"), {"kind": _MAX_NAME, "name": _MAX_NAME})
    scripts = _entries(content.get("scripts"), {"script": _MAX_PATH, "sha256": _DIGEST})
    texts = _entries([content], {"source": _MAX_PATH, "record": _DIGEST})
    if changes is None or scripts is None or texts is None:
        raise plan_file.damaged(path, "a part is missing, or is not as `plan` writes it")
    text = json.dumps(content.get("spec"), ensure_ascii=False, indent=1)
    try:
        spec = parse_spec(text, f"{path} (spec)")
    except NearmetalError as error:
        raise plan_file.damaged(path, error.message) from error
    return SavedClusterPlan(spec, content["source"], content["record"], changes, scripts)


def _entries(value: Any, texts: dict[str, int]) -> list[dict[str, Any]] | None:
    """Return a list of objects with texts of at most these lengths; None for anything else."""
    if not isinstance(value, list):
        return None
    whole = all(
        isinstance(one, dict) and isinstance(one.get(key), str) and len(one[key]) <= most
        for one in value
        for key, most in texts.items()
    )
    return value if whole else None


def _differing(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in (*one, *other) if entry not in one or entry not in other]
