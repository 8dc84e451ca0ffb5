# SPDX-License-Identifier: Apache-2.0
"""Rules of DRS: those of a cluster are called nearmetal.CLUSTER.RULE, others are left alone."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.cluster.backends.vsphere.spec import DrsRule


def named_rules(compute: Any, cluster: str) -> dict[str, Any]:
    """Return the rules of a cluster by their names in the spec."""
    prefix = f"nearmetal.{cluster}."
    rules = compute.configurationEx.rule or []
    return {r.name.removeprefix(prefix): r for r in rules if r.name.startswith(prefix)}


def _kind(rule: Any) -> str:
    return "together" if isinstance(rule, vim.cluster.AffinityRuleSpec) else "apart"


def _word(name: str, rule: Any) -> str:
    """Return a rule as plans say it; one that is switched off is not there."""
    return f"{name}:{_kind(rule)}{':enforced' if rule.mandatory else ''}"


def rules_by_machine(rules: Mapping[str, Any]) -> dict[Any, str]:
    """Return the rules that hold for each machine, as plans say them."""
    held: dict[Any, list[str]] = defaultdict(list)
    for name, rule in rules.items():
        for machine in (rule.vm or []) if rule.enabled else []:
            held[machine].append(_word(name, rule))
    return {machine: ",".join(sorted(words)) for machine, words in held.items()}


def _wanted(cluster: str, rule: DrsRule, members: Mapping[str, Any]) -> Any:
    kind = (
        vim.cluster.AffinityRuleSpec
        if rule.kind == "together"
        else vim.cluster.AntiAffinityRuleSpec
    )
    return kind(
        name=f"nearmetal.{cluster}.{rule.name}",
        enabled=True,
        mandatory=rule.enforced,
        vm=[members[name] for name in rule.nodes if name in members],
    )


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
    """Return what to do so that a cluster has these rules and no others."""
    there = named_rules(compute, cluster)
    changes = []
    for rule in rules:
        new, old = _wanted(cluster, rule, members), there.pop(rule.name, None)
        if old is not None and _same(old, new):
            continue
        if old is not None:
            changes.append(vim.cluster.RuleSpec(operation="remove", removeKey=old.key))
        changes.append(vim.cluster.RuleSpec(operation="add", info=new))
    changes += [vim.cluster.RuleSpec(operation="remove", removeKey=r.key) for r in there.values()]
    return changes
