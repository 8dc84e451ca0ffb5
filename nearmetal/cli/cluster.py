# SPDX-License-Identifier: Apache-2.0
"""The verbs of clusters: plan, up, status, down, and import vhpc."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import add_spec, add_yes, open_cluster, open_target, write_new
from nearmetal.core.errors import ExitCode, SpecError, StateError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.cluster.backend import NodeStatus
    from nearmetal.cluster.diff import Change, Plan
    from nearmetal.cluster.store import Store


MAX_SHOWN = 32
"""Nodes that `up` names at its end."""

_COLUMNS = ("node", "host", "hostname", "address", "slots", "cores", "shm", "pid", "up", "health")


def plan_options(parser: VerbParser) -> None:
    """Add the arguments of `plan`."""
    add_spec(parser, optional="; required without --schema")
    parser.option("--out PLAN", "write the plan to PLAN, a new file, for `up PLAN`")
    parser.option("--schema", "print the JSON Schema of cluster specs, and do nothing else")


def on_plan(args: argparse.Namespace, view: View) -> int:
    """Print the plan or the schema; exit code 3 if the plan has changes."""
    from nearmetal.cluster.apply import checked_plan
    from nearmetal.cluster.registration import json_schema
    from nearmetal.cluster.saved import save_plan

    if args.schema:
        schema = json_schema()
        view.result(json.loads(schema), schema.splitlines())
        return ExitCode.DONE
    if args.spec is None:
        raise UsageError("plan needs a SPEC", "nearmetal plan examples/two-nodes.yaml")
    cluster, spec = open_target(args.spec)
    plan = checked_plan(cluster, spec)
    lines = [f"cluster {plan.cluster}: nothing to do"] if plan.empty else as_lines(plan)
    if args.out is not None:
        save_plan(args.out, spec, args.spec, plan, cluster.store.digest(spec.name))
        lines.append(written(args.out, plan))
    _show_plan(plan, lines, view)
    return ExitCode.DONE if plan.empty else ExitCode.CHANGES


def written(path: Path, plan: Plan) -> str:
    """Return the line about a saved plan, with the command that carries it out."""
    return f"written: {path}; now `nearmetal up {'--replace ' if plan.rewrites else ''}{path}`"


def _show_plan(plan: Plan, lines: list[str], view: View) -> None:
    from nearmetal.cluster.saved import plan_data

    view.result(plan_data(plan), lines)
    for note in plan.notes:
        view.note(note)


def as_lines(plan: Plan) -> list[str]:
    """Return a plan for a person; --json has each of many changes of one form."""
    from nearmetal.cluster.apply import describe
    from nearmetal.cluster.diff import Action, folded
    from nearmetal.cluster.model import some

    lines = [f"cluster {plan.cluster}:"]
    for group in folded(plan.effective):
        lines.append("  " + describe(*group))
        if group[0].action is Action.CREATE:
            after = [dict(change.after) for change in group]
            for name in after[0]:
                values = dict.fromkeys(one[name] for one in after if one[name])
                lines += [f"      {name}: {some([*values])}"] if values else []
    made, changed, gone = map(plan.count, (Action.CREATE, Action.CHANGE, Action.DELETE))
    lines += [f"  {run.text}" for run in plan.scripts]
    count = f"plan: {made} to make, {changed} to change, {gone} to remove"
    return [*lines, f"{count}, {len(plan.scripts)} scripts to run" if plan.scripts else count]


def up_options(parser: VerbParser) -> None:
    """Add the arguments of `up`."""
    add_spec(parser, more="; or PLAN of `plan --out`, which is refused if anything has changed")
    add_yes(parser)
    parser.option(
        "--replace",
        "allow changes and removals in an existing cluster that has the same name and another spec (default: refuse)",
    )


def on_up(args: argparse.Namespace, view: View) -> int:
    """Make the cluster; print the changes and the nodes."""
    from nearmetal.cluster.apply import steps_of, up
    from nearmetal.cluster.model import some
    from nearmetal.cluster.saved import open_plan

    saved = open_plan(Path(args.spec))
    cluster, spec = open_target(args.spec) if saved is None else open_cluster(saved.spec)

    def agree(plan: Plan) -> None:
        if saved is not None:
            saved.check(plan, cluster.store.digest(spec.name))
        if plan.disruptive:
            _ask(plan, plan.disruptive, view, yes=args.yes)

    unfinished = cluster.journal.unfinished()
    if unfinished is not None:
        view.note(f"an earlier `{unfinished.verb}` was interrupted at: {unfinished.step}")
    with view.steps(f"up {cluster.name}") as steps:
        plan = up(cluster, spec, replace=args.replace, progress=steps, agree=agree)
    nodes = [f"{n.name} {n.address}" for n in cluster.backend.status()]
    shown = ", ".join(nodes) if len(nodes) <= MAX_SHOWN else some(nodes)
    closing = f"cluster {cluster.name} is up: {shown}"
    _show_plan(plan, [*steps_of(plan), closing], view)
    return ExitCode.DONE


def _ask(plan: Plan, changes: Sequence[Change], view: View, *, yes: bool) -> None:
    """Ask if parts of a running cluster may end or stop for a while."""
    from nearmetal.cluster.model import some

    verbs = {
        verb: [str(change.key) for change in changes if fits(change)]
        for verb, fits in (
            ("remove", lambda c: c.new is None),
            ("recreate", lambda c: c.new is not None and not c.in_place),
            ("interrupt", lambda c: c.in_place),
        )
    }
    told = " and ".join(f"{verb} {some(names)}" for verb, names in verbs.items() if names)
    view.ask(f"{told} of cluster {plan.cluster}", as_lines(plan), yes=yes)


def status_options(parser: VerbParser) -> None:
    """Add the arguments of `status`."""
    add_spec(parser, optional="; without it, list all existing clusters")
    parser.option("--tree", "show switches, hosts and nodes as a tree, with all that each has")


def on_status(args: argparse.Namespace, view: View) -> int:
    """Print the nodes; exit code 4 if the cluster is up and differs from its spec."""
    from nearmetal.cli.tree import tree_lines
    from nearmetal.cluster.apply import plan_up
    from nearmetal.cluster.store import Store, state_directory

    if args.spec is None:
        return _list_clusters(Store(state_directory()), view)
    cluster, spec = open_target(args.spec)
    nodes = cluster.backend.status()
    plan = plan_up(cluster, spec)
    state = "down" if not nodes else "up" if plan.empty else "degraded"
    closing = {
        "down": f"is down; `nearmetal up {args.spec}` makes it",
        "up": "is up as the spec says",
        "degraded": f"is not as the spec says: `nearmetal plan {args.spec}`",
    }[state]
    data = {"cluster": cluster.name, "state": state, "nodes": [asdict(node) for node in nodes]}
    lines = [f"cluster {cluster.name} {closing}"]
    if nodes and args.tree:
        resources = cluster.backend.details().resources
        data["resources"] = [
            {"kind": r.key.kind.value, "name": r.key.name, "values": dict(r.attributes)}
            for r in resources
        ]
        lines = [*tree_lines(nodes, resources), *lines]
    elif nodes:
        view.table(_COLUMNS, [_node_row(node) for node in nodes])
    view.result(data, lines)
    return ExitCode.CHECKS_FAILED if state == "degraded" else ExitCode.DONE


def _list_clusters(store: Store, view: View) -> int:
    """Print every cluster with what its record says; asks no backend."""
    from nearmetal.core.journal import Journal

    found = []
    for name in store.names():
        try:
            spec = store.recorded(name)
        except StateError:
            spec = None
        step = Journal(store.cluster(name)).unfinished()
        found.append(
            {
                "name": name,
                "backend": "" if spec is None else spec.backend,
                "nodes": None if spec is None else len(spec.nodes),
                "unfinished": "" if step is None else f"{step.verb}: {step.step}",
            }
        )
    if found:
        rows = [["-" if v in ("", None) else str(v) for v in one.values()] for one in found]
        view.table(("cluster", "backend", "nodes", "interrupted at"), rows)
    view.result({"clusters": found}, [] if found else ["no cluster exists"])
    return ExitCode.DONE


def _node_row(node: NodeStatus) -> list[str]:
    return [
        node.name,
        node.host,
        node.hostname,
        node.address,
        str(node.slots),
        ",".join(map(str, node.cpus)),
        node.shm,
        str(node.pid or "-"),
        _duration(node.uptime_s),
        node.health,
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def down_options(parser: VerbParser) -> None:
    """Add the arguments of `down`."""
    add_spec(parser)
    add_yes(parser)


def on_down(args: argparse.Namespace, view: View) -> int:
    """Remove the cluster; a cluster that is not up is no error."""
    from nearmetal.cluster.apply import described, down

    cluster, _ = open_target(args.spec)

    def agree(plan: Plan) -> None:
        _ask(plan, plan.effective, view, yes=args.yes)

    with view.steps(f"down {cluster.name}") as steps:
        plan = down(cluster, progress=steps, agree=agree)
    closing = "is down" if plan.effective else "was not up"
    lines = [*described(plan.effective), f"cluster {cluster.name} {closing}"]
    _show_plan(plan, lines, view)
    return ExitCode.DONE


def vhpc_options(parser: VerbParser) -> None:
    """Add the arguments of `import vhpc`."""
    parser.option("file FILE", "cluster file of vhpc-toolkit")
    parser.option(
        "--vcenter SERVER",
        "name or address of the vCenter; the cluster file does not contain it",
        required=True,
    )
    parser.option(
        "--user USER",
        "user of the vCenter (default: %(default)s)",
        default="administrator@vsphere.local",
    )
    parser.option(
        "--identity KEY",
        "private key that root of the templates accepts, for scripts in customized guests "
        "(default: such scripts are left out)",
        type=Path,
    )
    parser.option("--name NAME", "name of the cluster (default: the name of FILE)")
    parser.option(
        "--output SPEC",
        "path for the spec, of a new file (default: standard output)",
        type=Path,
    )


def on_vhpc(args: argparse.Namespace, view: View) -> int:
    """Write the spec; exit code 4 if vSphere's rules forbid something in it."""
    from nearmetal.cluster.backends.vsphere.vhpc import Target, import_vhpc
    from nearmetal.cluster.spec import parse_spec
    from nearmetal.config.document import read_text

    name = args.name or args.file.stem.lower().replace("_", "-")
    text = read_text(args.file, "a cluster file of vhpc-toolkit")
    identity = args.identity and args.identity.absolute()
    target = Target(name, args.vcenter, args.user, identity)
    imported = import_vhpc(text, str(args.file), target)
    problems: list[str] = []
    try:
        parse_spec(imported.text, str(args.output or "<spec>"))
    except SpecError as error:
        problems = [str(problem) for problem in error.problems]
    if args.output is not None:
        write_new(args.output, imported.text)
    data = {
        "spec": None if args.output is None else str(args.output),
        "text": imported.text,
        "machines": imported.machines,
        "notes": list(imported.notes),
        "problems": problems,
    }
    written = [f"{imported.machines} machines: {args.output}"]
    view.result(data, imported.text.splitlines() if args.output is None else written)
    for note in imported.notes:
        view.note(note)
    for problem in problems:
        view.warn(problem)
    return ExitCode.CHECKS_FAILED if problems else ExitCode.DONE
