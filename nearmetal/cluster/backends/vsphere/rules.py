# SPDX-License-Identifier: Apache-2.0
"""Rules of DRS: those of a cluster have names nearmetal.CLUSTER.RULE, others stay unchanged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pyVmomi import vim

from nearmetal.cluster.backends.vsphere.plan import rule_text
from nearmetal.cluster.backends.vsphere.spec import DrsRule

_KINDS = {
    "together": vim.cluster.AffinityRuleSpec,
    "apart": vim.cluster.AntiAffinityRuleSpec,
}


def _named(compute: Any, cluster: str) -> dict[str, Any]:
    """Return the rules of a cluster by their names in the spec."""
    prefix = f"nearmetal.{cluster}."
    rules = compute.configurationEx.rule or []
    return {r.name.removeprefix(prefix): r for r in rules if r.name.startswith(prefix)}


def _kind(rule: Any) -> str:
    return "together" if isinstance(rule, vim.cluster.AffinityRuleSpec) else "apart"


def rules_by_machine(compute: Any, cluster: str) -> dict[Any, tuple[str, ...]]:
    """Return the enabled rules of a cluster for each machine, in the form of its values."""
    held: dict[Any, list[str]] = defaultdict(list)
    for name, rule in _named(compute, cluster).items():
        for machine in (rule.vm or []) if rule.enabled else []:
            held[machine].append(rule_text(name, _kind(rule), enforced=bool(rule.mandatory)))
    return {machine: tuple(sorted(words)) for machine, words in held.items()}


def _same(old: Any, new: Any) -> bool:
    return (
        _kind(old) == _kind(new)
        and bool(old.enabled)
        and bool(old.mandatory) == bool(new.mandatory)
        and {str(vm) for vm in old.vm or []} == {str(vm) for vm in new.vm}
    )


def rule_changes(
    compute: Any, cluster: str, rules: Sequence[DrsRule], members: Mapping[str, Any]
) -> list[Any]:
    """Return the changes that give a cluster exactly these rules."""
    there = _named(compute, cluster)
    spec, changes = vim.cluster.RuleSpec, []
    for rule in rules:
        new = _KINDS[rule.kind](
            name=f"nearmetal.{cluster}.{rule.name}",
            enabled=True,
            mandatory=rule.enforced,
            vm=[members[name] for name in rule.nodes if name in members],
        )
        old = there.get(rule.name)
        if old is not None and _same(old, new):
            del there[rule.name]
        else:
            changes.append(spec(operation="add", info=new))
    return [spec(operation="remove", removeKey=r.key) for r in there.values()] + changes
