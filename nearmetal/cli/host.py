# SPDX-License-Identifier: Apache-2.0
"""The verbs of hosts: host plan, apply, status, rollback, vf and verify."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentTypeError
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from nearmetal.cli.arguments import add_yes
from nearmetal.core.errors import ExitCode, HostError, UsageError

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.host.apply import Patience
    from nearmetal.host.fabric import FabricFinding
    from nearmetal.host.facts import Reach
    from nearmetal.host.hosts_file import HostsFile
    from nearmetal.host.parse.ibverbs import RdmaNode
    from nearmetal.host.plan import HostsPlan
    from nearmetal.host.rollback import Rollback
    from nearmetal.host.vf import Book, Machine, PfFacts, VfFacts, VfHost

DEFAULT_REBOOT_S = 900
_LEAST_ITERATIONS = 5
"""perftest takes no fewer."""
_MOST_ITERATIONS = 100_000_000
"""An int of perftest."""
_MOST_S = 86_400

_FILE = "hosts file (YAML), see nearmetal-hosts(5)"
_PF_COLUMNS = ("adapter", "pci", "driver", "link", "state", "numa", "vfs", "acs")
_VF_COLUMNS = ("vf", "adapter", "group", "driver", "mac or guid", "vlan", "owner", "since")


def plan_options(parser: VerbParser) -> None:
    """Add the arguments of `host plan`."""
    parser.option("file FILE", f"{_FILE}; required without --schema", nargs="?")
    _add_limit(parser)
    parser.option("--out PLAN", "write the plan to PLAN, a new file, for `host apply PLAN`")
    parser.option("--schema", "print the JSON Schema of hosts files, and do nothing else")


def _add_limit(parser: VerbParser) -> None:
    parser.option(
        "--limit HOSTS",
        "only these hosts of FILE: comma-separated names, ranges and patterns, for example "
        "'kvm[01-04],gpu*' (default: all)",
    )


def on_plan(args: argparse.Namespace, view: View) -> int:
    """Print the plan or the schema; exit code 3 for steps, 1 if a host is refused."""
    from nearmetal.host.facts import Reach
    from nearmetal.host.hosts_file import hosts_schema

    if args.schema:
        schema = hosts_schema()
        view.result(json.loads(schema), schema.splitlines())
        return ExitCode.DONE
    if args.file is None:
        raise UsageError("host plan needs a FILE", "nearmetal host plan examples/hosts/rack1.yaml")
    return show_plan(args.file, Reach(), view, limit=args.limit, out=args.out)


def show_plan(
    path: Path, reach: Reach, view: View, *, limit: str | None = None, out: Path | None = None
) -> int:
    """Print the plan of hosts that `reach` connects to; write it to `out`."""
    from nearmetal.host.apply import Applier
    from nearmetal.host.saved import save_plan
    from nearmetal.host.show import plan_data, plan_lines

    file = _load(path, limit)
    plan, facts = Applier(file, reach, _state_of(file)).look()
    lines = plan_lines(plan)
    if out is not None and not plan.refused:
        save_plan(out, file, path, plan, facts)
        lines.append(f"written: {out}; now `nearmetal host apply {out}`")
    view.result(plan_data(plan), lines)
    if out is not None and plan.refused:
        view.warn(f"{out} is not written: a host is refused")
    if plan.refused:
        return ExitCode.ERROR
    return ExitCode.DONE if plan.empty else ExitCode.CHANGES


def _load(path: Path, limit: str | None) -> HostsFile:
    """Return a hosts file, with only the hosts of `limit`."""
    from nearmetal.config import plan_file
    from nearmetal.host.hosts_file import load_hosts
    from nearmetal.host.names import limited
    from nearmetal.host.saved import KIND

    plan_file.refuse(path, KIND)
    file = load_hosts(path)
    return file if limit is None else limited(file, limit)


def _state_of(file: HostsFile) -> Path:
    from nearmetal.cluster.store import state_directory

    return state_directory() / "hosts" / file.name


def status_options(parser: VerbParser) -> None:
    """Add the arguments of `host status`."""
    parser.option("file FILE", _FILE)
    _add_limit(parser)


def on_status(args: argparse.Namespace, view: View) -> int:
    """Print the state of the hosts; exit code 4 if they differ from the file."""
    from nearmetal.host.facts import Reach

    return show_status(args.file, Reach(), view, limit=args.limit)


def show_status(path: Path, reach: Reach, view: View, *, limit: str | None = None) -> int:
    """Print the state of hosts that `reach` connects to."""
    from nearmetal.host.apply import Applier
    from nearmetal.host.show import status_data, status_lines

    file = _load(path, limit)
    plan, facts = Applier(file, reach, _state_of(file)).look()
    view.result(status_data(plan, facts), status_lines(plan, facts))
    return ExitCode.DONE if plan.empty else ExitCode.CHECKS_FAILED


_WRITING = """\
The command shows its steps and asks before the first one; --yes agrees. `{show}`
shows them too. Two kinds of hosts are not rebooted and count as failed: a Linux host on which
QEMU machines run, and a host on which Slurm jobs run, unless `slurm` in FILE allows to wait for
their end."""


def _add_writing(parser: VerbParser, show: str) -> None:
    _add_limit(parser)
    add_yes(parser)
    parser.add_argument_group("before you begin", _WRITING.format(show=show))
    parser.option(
        "--reboot-timeout SECONDS",
        f"seconds after which a rebooting host counts as lost (default: {DEFAULT_REBOOT_S})",
        type=_reboot_seconds,
        default=DEFAULT_REBOOT_S,
    )


def _reboot_seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MOST_S:
        raise ArgumentTypeError(f"{text[:40]!r} is not a number of seconds from 1 to {_MOST_S}")
    return int(text)


def apply_options(parser: VerbParser) -> None:
    """Add the arguments of `host apply`."""
    parser.option(
        "file FILE",
        f"{_FILE}; or PLAN of `host plan --out`, which is refused if a host has changed since",
    )
    _add_writing(parser, "host plan")
    parser.option(
        "--by-hand-done",
        "confirm that you did the manual steps of the plan on ESXi hosts; `apply` then reboots them",
    )


def on_apply(args: argparse.Namespace, view: View) -> int:
    """Apply the file; an error names the hosts that failed and those that were not begun."""
    from nearmetal.host.facts import Reach

    return apply_hosts(args, Reach(), view)


def apply_hosts(args: argparse.Namespace, reach: Reach, view: View) -> int:
    """Apply a hosts file, or a plan of it, to hosts that `reach` connects to."""
    from nearmetal.host.apply import Applier
    from nearmetal.host.saved import open_plan
    from nearmetal.host.show import plan_data

    saved = open_plan(args.file)
    if saved is not None and args.limit is not None:
        raise UsageError("--limit is for a hosts file", "a plan has the hosts that it was made for")
    file = _load(args.file, args.limit) if saved is None else saved.file
    applier = Applier(file, reach, _state_of(file), _patience(args))
    with view.steps(f"host apply {file.name}") as applier.progress:
        plan = applier.apply(partial(_agree, view, yes=args.yes), saved)
    nr_steps = sum(len(host.steps) for host in plan.hosts)
    reboots = sum(host.reboots for host in plan.hosts)
    done = f"{nr_steps} steps, {reboots} reboots" if nr_steps else "nothing to do"
    view.result(plan_data(plan), [f"hosts {plan.name}: {done}"])
    return ExitCode.DONE


def _agree(view: View, plan: HostsPlan, *, yes: bool) -> None:
    from nearmetal.host.show import plan_lines, question

    view.ask(question(plan), plan_lines(plan), yes=yes)


def _patience(args: argparse.Namespace) -> Patience:
    from nearmetal.host.apply import Patience

    by_hand_done = getattr(args, "by_hand_done", False)
    return Patience(reboot_s=args.reboot_timeout, by_hand_done=by_hand_done)


def rollback_options(parser: VerbParser) -> None:
    """Add the arguments of `host rollback`."""
    parser.option("file FILE", _FILE)
    _add_writing(parser, "host rollback --dry-run")
    parser.option("--dry-run", "show the plan; change nothing")


def on_rollback(args: argparse.Namespace, view: View) -> int:
    """Roll back, or print the plan; exit code 4 if a change cannot be undone."""
    from nearmetal.host.facts import Reach
    from nearmetal.host.rollback import Rollback

    file = _load(args.file, args.limit)
    rollback = Rollback(file, Reach(), _state_of(file), _patience(args))
    return roll_back(rollback, view, dry_run=args.dry_run, yes=args.yes)


def roll_back(rollback: Rollback, view: View, *, dry_run: bool, yes: bool = False) -> int:
    """Roll back, or print the plan of it."""
    from nearmetal.host.show import plan_data, plan_lines

    if dry_run:
        plan = rollback.plan()
    else:
        with view.steps("host rollback") as rollback.progress:
            plan = rollback.apply(partial(_agree, view, yes=yes))
    lines = plan_lines(plan, rollback.goal)
    if not plan.hosts:
        lines = [*lines[:-1], "no earlier state of the hosts of this file is recorded"]
    elif not dry_run:
        remarks = [f"{h.name}: left: {remark.text}" for h in plan.hosts for remark in h.remarks]
        lines = [f"done: {lines[-1]}", *remarks]
    left = {name: list(keys) for name, keys in rollback.left.items() if keys}
    view.result(plan_data(plan) | {"left": left}, lines)
    if dry_run and plan.refused:
        return ExitCode.ERROR
    if dry_run and not plan.empty:
        return ExitCode.CHANGES
    return ExitCode.CHECKS_FAILED if left else ExitCode.DONE


def vf_options(parser: VerbParser) -> None:
    """Add the arguments of `host vf`."""
    parser.option(
        "--reclaim",
        "return leaks (VFs whose owner is gone) to their original state; needs root",
    )
    parser.option(
        "--serve",
        "answer one question of a cluster on another machine: JSON on standard input and output",
    )


def on_vf(args: argparse.Namespace, view: View) -> int:
    """Print adapters, VFs and leaks; exit code 4 if there are leaks."""
    from nearmetal.host.vf import this_machine

    if args.serve:
        return answer_about_vfs(this_machine(), sys.stdin.buffer)
    return show_vfs(this_machine(), view, reclaim=args.reclaim)


def answer_about_vfs(host: VfHost, question: BinaryIO) -> int:
    """Answer one question of nearmetal on another machine."""
    from nearmetal.host.vf.distant import MAX_BYTES, answer

    print(answer(question.read(MAX_BYTES), host))
    return ExitCode.DONE


def show_vfs(host: VfHost, view: View, *, reclaim: bool) -> int:
    """Print the adapters, VFs and leaks of a machine."""
    returned = host.reclaim() if reclaim else ()
    machine, book = host.machine(), host.ledger.read()
    leaks = host.leaks(machine, book)
    owners = book.owners()
    data = {
        "iommu": asdict(machine.iommu) | {"on": machine.iommu.on},
        "returned": list(returned),
        "adapters": [
            asdict(pf) | {"vfs": [_vf_data(vf, book, leaks, owners) for vf in pf.vfs]}
            for pf in machine.pfs
        ],
        "leaks": leaks,
    }
    if machine.pfs:
        view.table(_PF_COLUMNS, [_pf_row(pf) for pf in machine.pfs])
    rows = [_vf_row(pf, vf, book, owners) for pf in machine.pfs for vf in pf.vfs]
    if rows and not view.as_json:
        print()
        view.table(_VF_COLUMNS, rows)
    _warn(machine, leaks, view)
    closing = [f"given back: {text}" for text in returned]
    if not machine.pfs:
        closing.append("no adapter of this machine has SR-IOV switched on")
    view.result(data, closing)
    return ExitCode.CHECKS_FAILED if leaks else ExitCode.DONE


def _warn(machine: Machine, leaks: dict[str, str], view: View) -> None:
    from nearmetal.host.vf.choose import check_iommu

    if machine.pfs:
        try:
            check_iommu(machine)
        except HostError as error:
            view.warn(error.message, error.hint)
    for address, why in leaks.items():
        found = machine.vf(address)
        pids = found[1].holders if found else ()
        held = f"end process {', '.join(map(str, pids))} first, then " if pids else ""
        view.warn(f"VF {address} leaked: {why}", f"{held}nearmetal host vf --reclaim")


def verify_options(parser: VerbParser) -> None:
    """Add the arguments of `host verify`."""
    from nearmetal.cli.arguments import add_spec

    add_spec(parser)
    parser.option("--device NAME", "RDMA device in the nodes (default: all; pairs use the first)")
    parser.option(
        "--pairs",
        "pairs of nodes that send to each other: next: each node and the next; all; none "
        "(default: next)",
        choices=["next", "all", "none"],
        default="next",
    )
    parser.option(
        "--iterations N",
        "messages of each measurement (default: 1000)",
        type=int,
        default=1000,
    )
    parser.option(
        "--timeout SECONDS",
        "time limit of one measurement (default: 60)",
        type=float,
        default=60.0,
    )
    parser.option(
        "--least SHARE",
        "least share of the line rate that is no fault (default: 0.9)",
        type=float,
        default=0.9,
    )


def on_verify(args: argparse.Namespace, view: View) -> int:
    """Judge the RDMA fabric of a cluster; exit code 4 if there is a fault."""
    from nearmetal.cli.arguments import open_running
    from nearmetal.core.process import LocalRunner
    from nearmetal.host.fabric import FabricSite, Level
    from nearmetal.job.fabric import FabricTest, verify

    if not _LEAST_ITERATIONS <= args.iterations <= _MOST_ITERATIONS:
        bounds = f"{_LEAST_ITERATIONS} to {_MOST_ITERATIONS}"
        raise UsageError(f"--iterations {args.iterations}: {bounds}")
    if not 0 < args.least <= 1:
        raise UsageError(f"--least {args.least:g}: more than 0, at most 1")
    if not 0 < args.timeout <= _MOST_S:
        raise UsageError(f"--timeout {args.timeout:g}: more than 0, at most {_MOST_S}")
    cluster, spec = open_running(args.spec)
    test = FabricTest(
        args.device or "",
        args.pairs,
        iterations=args.iterations,
        least=args.least,
        timeout_s=args.timeout,
    )
    names = [node.name for _, node in spec.nodes]
    rates = {n.name: getattr(getattr(n, "vf", None), "rate", None) or 0 for _, n in spec.nodes}
    site = FabricSite(spec.backend, rates)
    with view.steps(f"host verify {cluster.name}") as steps:
        fabric = verify(cluster.backend, LocalRunner(), names, site, test, progress=steps)
    view.result(
        {
            "nodes": {name: _rdma_data(node) for name, node in fabric.nodes.items()},
            "sends": [asdict(sends) | {"line_gbit": line} for sends, line in fabric.sends],
            "findings": [_finding_data(finding) for finding in fabric.findings],
        }
    )
    columns = ("node", "about", "level", "what", "VMW-IB")
    view.table(columns, [_finding_row(finding) for finding in fabric.findings])
    for finding in fabric.findings:
        if finding.level is not Level.OK:
            view.warn(f"{finding.node} {finding.about}: {finding.what}", finding.remedy)
    faults = any(finding.level is Level.FAULT for finding in fabric.findings)
    return ExitCode.CHECKS_FAILED if faults else ExitCode.DONE


def _rdma_data(node: RdmaNode) -> dict[str, Any]:
    limit = node.locked
    shown = "unlimited" if limit == float("inf") else limit
    return asdict(node) | {"tools": sorted(node.tools), "locked": shown}


def _finding_data(finding: FabricFinding) -> dict[str, Any]:
    data = asdict(finding)
    del data["level"]
    return data | {"severity": finding.level.value}


def _finding_row(finding: FabricFinding) -> list[str]:
    level = finding.level.value
    return [finding.node, finding.about, level, finding.what, finding.published]


def _vf_data(
    vf: VfFacts, book: Book, leaks: dict[str, str], owners: dict[str, str]
) -> dict[str, Any]:
    from nearmetal.host.vf.choose import used_by

    claim = book.claims.get(vf.address)
    return asdict(vf) | {
        "owner": None if claim is None else claim.owner.model_dump(),
        "since": None if claim is None else claim.since,
        "stage": None if claim is None else claim.stage,
        "used_by": used_by(vf, owners),
        "leak": leaks.get(vf.address, ""),
    }


def _pf_row(pf: PfFacts) -> list[str]:
    link = pf.link
    acs = {port.text for port in pf.ports} or {"-"}
    return [
        pf.name,
        pf.address,
        pf.driver or "-",
        pf.link_type or "-",
        "-" if link is None else "up" if link.carrier else "no link" if link.up else "down",
        "-" if pf.numa < 0 else str(pf.numa),
        f"{len(pf.vfs)}/{pf.total}",
        next(word for word in ("off", "unknown", "on", "-") if word in acs),
    ]


def _vf_row(pf: PfFacts, vf: VfFacts, book: Book, owners: dict[str, str]) -> list[str]:
    from nearmetal.host.vf.choose import used_by

    settings = vf.settings
    claim = book.claims.get(vf.address)
    return [
        vf.address,
        pf.name,
        "-" if vf.group is None else f"{vf.group}{' shared' if vf.group_others else ''}",
        vf.driver or "-",
        settings.port_guid or settings.mac or "-",
        str(settings.vlan or "-"),
        used_by(vf, owners) or "free",
        "-" if claim is None else time.strftime("%F %T", time.localtime(claim.since)),
    ]
