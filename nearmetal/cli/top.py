# SPDX-License-Identifier: Apache-2.0
"""`nearmetal top`: the traffic of running jobs by sender, receiver and channel. It only reads."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import open_running, seconds
from nearmetal.core.errors import ExitCode

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.evidence.counters import EndpointCounters
    from nearmetal.evidence.traffic import Line

_CLEAR = "\033[H\033[2J"
_COLUMNS = (
    "job",
    "endpoint",
    "host",
    "peer",
    "channel",
    "sent/s",
    "",
    "received/s",
    "",
    "messages",
    "bytes",
    "accesses",
    "stalls",
    "remarks",
)


def top_options(parser: VerbParser) -> None:
    """Add the arguments of `top`."""
    from nearmetal.evidence.traffic import Sort

    parser.option(
        "spec SPEC",
        "show only the jobs of this cluster: path of a spec, or name of an existing cluster (default: all jobs of this user)",
        nargs="?",
    )
    parser.option(
        "--dir DIR",
        "read the statistics files in DIR; may be repeated (default: $NEARMETAL_STATS_DIR, $NEARMETAL_RUNDIR, /dev/shm/nearmetal-UID and the rundirs of all running clusters of this user)",
        action="append",
    )
    parser.option("--once", "print one table after one interval, and exit; --json implies it")
    parser.option(
        "--interval SECONDS",
        "seconds between two readings (default: 1)",
        type=seconds,
        default=1.0,
    )
    parser.option(
        "--sort",
        "order of the lines: rate (bytes per second), bytes or messages (totals), rank, or trouble: peers that are gone, then channels given up after invalid bytes, then failed copies and sends that had to wait (default: rate)",
        choices=[s.value for s in Sort],
        default=Sort.RATE.value,
    )
    parser.option("--all", "also show processes that have ended or closed their communication")


def directories(args: argparse.Namespace) -> list[Path]:
    """Return the directories of statistics files; jobs come and go, so each call looks again."""
    if args.dir:
        return list(args.dir)
    from nearmetal.job.watched import everywhere, of_cluster

    if args.spec:
        cluster, spec = open_running(args.spec)
        return of_cluster(cluster.backend, spec)
    return everywhere()


def look(args: argparse.Namespace) -> list[EndpointCounters]:
    """Return the present counters of endpoints; of dead processes only with --all."""
    from nearmetal.job.stats import read_counters

    found = {}
    for directory in directories(args):
        for seen in read_counters(directory):
            if args.all or (seen.alive and seen.counters.state == "running"):
                found[seen.counters.id] = seen.counters
    return list(found.values())


def on_top(args: argparse.Namespace, view: View) -> int:
    """Read and show the counters again and again, until interrupted or after --once."""
    from nearmetal.evidence.traffic import Sort, lines, ordered

    sort = Sort(args.sort)
    before = look(args)
    live = sys.stdout.isatty() and not args.once and not view.as_json
    if not before and args.once and not view.as_json:
        view.note("no process of this user communicates over nearmetal now")
    while True:
        time.sleep(args.interval)
        now = look(args)
        found = ordered(lines(now, before), sort)
        if live:
            sys.stdout.write(_CLEAR)
        view.table(_COLUMNS, [_row(line) for line in found])
        view.result({"endpoints": [_data(e, found) for e in now]})
        if args.once or view.as_json:
            return ExitCode.DONE
        sys.stdout.flush()
        before = now


def _data(endpoint: EndpointCounters, found: list[Line]) -> dict[str, Any]:
    names = ("sent_messages", "sent_bytes", "received_messages", "received_bytes")
    rates = [
        {
            "peer": x.peer.id,
            "channel": x.channel,
            **{f"{name}_per_s": value for name, value in zip(names, x.rate or (), strict=False)},
        }
        for x in found
        if x.endpoint.id == endpoint.id
    ]
    return {**endpoint.data(), "rates": rates}


def _row(line: Line) -> list[str]:
    from nearmetal.evidence.traffic import accesses, remarks
    from nearmetal.report import numbers

    rate = line.rate
    traffic, peer = line.traffic, line.peer

    def messages(value: float) -> str:
        return numbers.megamessages_per_second(value / 1e6) if value else "-"

    def volume(value: float) -> str:
        return numbers.megabytes_per_second(value / 1e6) if value else "-"

    return [
        line.endpoint.job or "-",
        line.who,
        line.endpoint.host,
        peer.label or peer.id,
        f"{line.channel} ({peer.relation})",
        messages(rate[0]) if rate else "new",
        volume(rate[1]) if rate else "",
        messages(rate[2]) if rate else "new",
        volume(rate[3]) if rate else "",
        f"{traffic.sent_messages + traffic.received_messages:,}",
        numbers.data(traffic.sent_bytes + traffic.received_bytes),
        accesses(peer) or "-" if line.channel == peer.channel else "",
        f"{peer.stalls:,}",
        remarks(line),
    ]
