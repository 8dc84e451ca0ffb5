# SPDX-License-Identifier: Apache-2.0
"""The verbs that move nodes between hosts: migrate and drain."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import add_spec, add_yes, open_target, seconds
from nearmetal.core.errors import ExitCode, StateError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.cluster.apply import Cluster
    from nearmetal.cluster.move.engine import MoveReport
    from nearmetal.cluster.move.record import Move
    from nearmetal.cluster.move.site import MoveSite
    from nearmetal.cluster.move.verbs import Choose, ChosenMoves

_PLAIN = (
    "the memory of the machines crosses the network without encryption; --tls encrypts it where "
    "both libvirt daemons have certificates"
)


def _common_options(parser: VerbParser) -> None:
    parser.option("--plan", "show the moves, and do nothing else")
    parser.option("--tls", "encrypt the memory of machines on its way")
    parser.option(
        "--leave SECONDS",
        "limit for the processes of a machine to leave the segment (default: 60)",
        type=lambda text: seconds(text, 1.0),
        default=60.0,
    )
    parser.option(
        "--timeout SECONDS",
        "limit of each migration (default: 600)",
        type=lambda text: seconds(text, 1.0),
        default=600.0,
    )
    parser.option(
        "--report DIR",
        "write moves.json and report.html with all moves of the cluster so far to DIR",
        type=Path,
    )
    add_yes(parser)


def migrate_options(parser: VerbParser) -> None:
    """Add the arguments of `migrate`."""
    add_spec(parser)
    parser.option(
        "node NODE", "node to move; without it, complete the moves that were interrupted", nargs="?"
    )
    parser.option("--to HOST", "host of the spec to which it moves")
    _common_options(parser)


def on_migrate(args: argparse.Namespace, view: View) -> int:
    """Move one node; exit code 1 if it stayed."""
    from nearmetal.cluster.move.verbs import to_host

    if (args.node is None) != (args.to is None):
        raise UsageError("migrate needs a NODE and --to HOST", "or neither, to complete old moves")
    return _work(args, view, None if args.node is None else to_host(args.node, args.to))


def drain_options(parser: VerbParser) -> None:
    """Add the arguments of `drain`."""
    add_spec(parser)
    parser.option("host HOST", "host of the spec that is to have no node afterwards")
    parser.option(
        "--to HOST",
        "host that may take its nodes; several times for several (default: all others)",
        action="append",
        default=[],
    )
    parser.option("--at-once N", "machines that move at the same time (default: 1)", default=1)
    _common_options(parser)


def on_drain(args: argparse.Namespace, view: View) -> int:
    """Move all nodes of a host; exit code 1 if one stayed."""
    from nearmetal.cluster.move.verbs import off_host

    return _work(args, view, off_host(args.host, args.to, args.at_once))


def _work(args: argparse.Namespace, view: View, choose: Choose | None) -> int:
    from nearmetal.cluster.move.engine import Mover
    from nearmetal.cluster.move.site import MoveOptions, site_of
    from nearmetal.cluster.move.verbs import ChosenMoves, all_moved, carry_out, chosen
    from nearmetal.core.lock import locked

    if args.report is not None and args.plan:
        raise UsageError("--plan makes no move that --report could show", "leave one of them out")
    cluster, _ = open_target(args.spec)
    if not cluster.journal.path.parent.exists():
        raise StateError(f"cluster {cluster.name} is not up", f"run `nearmetal up {args.spec}`")
    if args.report is not None:
        _make_folder(args.report)
    site = site_of(cluster.backend, MoveOptions(args.tls, args.leave, args.timeout))
    with locked(cluster.store.lock(cluster.name), f"cluster {cluster.name}"):
        reports = _complete(cluster, site, view, only_show=args.plan)
        found = ChosenMoves(()) if choose is None else chosen(site, choose)
        notes = [*found.notes, *([] if args.tls or not found.moves else [_PLAIN])]
        for note in notes:
            view.note(note)
        lines = [f"move {_text(move)}" for move in found.moves]
        if args.plan:
            view.result(_data(cluster.name, found, (), notes), lines or [_nothing(cluster.name)])
            return ExitCode.CHANGES if found.moves else ExitCode.DONE
        if found.moves:
            names = ", ".join(move.node for move in found.moves)
            view.ask(f"move {names} of cluster {cluster.name}", lines, yes=args.yes)
            with view.steps(f"move {names}") as steps:
                reports += carry_out(Mover(site, cluster.journal, steps), found)
    _show(view, reports, _data(cluster.name, found, reports, notes))
    if args.report is not None:
        _write_report(cluster, args.report, view)
    return ExitCode.DONE if all_moved(found, reports) else ExitCode.ERROR


def _make_folder(folder: Path) -> None:
    """Make the directory of a report before anything moves; raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"--report: cannot write into {folder}: {error.strerror}", "use another directory"
        ) from error


def _write_report(cluster: Cluster, folder: Path, view: View) -> None:
    from nearmetal.cluster.move.history import past_moves
    from nearmetal.report.move_page import MoveStory, write_story

    story = MoveStory(cluster.name, past_moves(cluster.journal.read()))
    view.note(f"report: {write_story(story, folder)}")


def _complete(cluster: Cluster, site: MoveSite, view: View, *, only_show: bool) -> list[MoveReport]:
    """Complete the moves that were interrupted, or only name them."""
    from nearmetal.cluster.move.engine import Mover

    pending = site.records.all()
    for move in pending:
        view.note(f"interrupted after '{move.phase.value}': {_text(move)}")
    if not pending or only_show:
        return []
    with view.steps(f"complete {cluster.name}") as steps:
        return Mover(site, cluster.journal, steps).complete()


def _show(view: View, reports: Sequence[MoveReport], data: dict[str, Any]) -> None:
    lines = [line for report in reports for line in _lines(report)]
    view.result(data, lines or [_nothing(data["cluster"])])
    for report in reports:
        for note in report.notes:
            view.warn(note)
        if not report.moved:
            view.warn(f"node {report.node} stayed on host {report.source}", report.hint)


def _nothing(cluster: str) -> str:
    return f"cluster {cluster}: nothing to move"


def _text(move: Move) -> str:
    return f"node {move.node} from host {move.source} to host {move.target}"


def _lines(report: MoveReport) -> list[str]:
    where = f"node {report.node}"
    if report.moved:
        head = f"{where} moved from host {report.source} to host {report.target}"
    else:
        head = f"{where} stayed on host {report.source}: {report.reason}"
    return [head, *(f"  {took:7.2f} s  {action.value}" for action, took in report.times)]


def _data(
    cluster: str,
    found: ChosenMoves,
    reports: Sequence[MoveReport],
    notes: Sequence[str],
) -> dict[str, Any]:
    planned = [
        {"node": move.node, "source": move.source, "target": move.target, "wave": number}
        for number, wave in enumerate(found.waves)
        for move in wave
    ]
    done = [
        {
            "node": report.node,
            "source": report.source,
            "target": report.target,
            "moved": report.moved,
            "reason": report.reason,
            "actions": [
                {"action": action.value, "seconds": round(took, 3)} for action, took in report.times
            ],
            "notes": report.notes,
        }
        for report in reports
    ]
    return {"cluster": cluster, "plan": planned, "moves": done, "notes": list(notes)}
