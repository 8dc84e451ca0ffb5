# SPDX-License-Identifier: Apache-2.0
"""`nearmetal top`: what running jobs send to whom, over which channel; they are not disturbed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.target import open_running
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.spec import ClusterSpec
from nearmetal.cluster.store import Store, state_directory
from nearmetal.core.errors import BackendError, ExitCode, LogError
from nearmetal.core.process import LocalRunner
from nearmetal.evidence.traffic import Line, Sort, accesses, lines, ordered, prometheus, trouble
from nearmetal.job.counters import read_counters
from nearmetal.report import numbers

if TYPE_CHECKING:
    from nearmetal.cli.view import View
    from nearmetal.cluster.backend import Backend
    from nearmetal.evidence.counters import EndpointCounters

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


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 3600:  # noqa: PLR2004 - ten times a second is enough for people
        msg = f"{text!r} is not a number of seconds from 0.1 to 3600"
        raise argparse.ArgumentTypeError(msg)
    return value


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "top",
        show,
        "show the traffic of running jobs: sender, receiver, channel",
        "nearmetal top --once --sort bytes",
    )
    parser.add_argument(
        "spec",
        metavar="SPEC",
        nargs="?",
        help="show only the jobs of this cluster: path of a spec, or name of a cluster that is up (default: all jobs of this user)",
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        type=Path,
        action="append",
        help="read the statistics files in DIR instead; may be repeated",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one table after one interval, and exit"
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_seconds,
        default=1.0,
        help="seconds between two readings (default: 1)",
    )
    parser.add_argument(
        "--sort",
        choices=[s.value for s in Sort],
        default=Sort.RATE.value,
        help="sort order of the lines (default: rate)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show endpoints that are closed or whose process is dead",
    )
    parser.add_argument(
        "--prometheus",
        metavar="FILE",
        type=Path,
        help="write the metrics to FILE instead, in Prometheus's text format for the textfile collector",
    )


def _of_cluster(backend: Backend, spec: ClusterSpec) -> list[Path]:
    """Return the directories in which jobs of a running cluster leave their statistics."""
    found = []
    for host in spec.hosts:
        try:
            base = backend.meeting_directory(host.name)
            found += [base, *sorted(p for p in base.iterdir() if p.is_dir())]
        except (BackendError, OSError):
            continue  # it went down meanwhile
    return found


def _of_all_clusters() -> list[Path]:
    store = Store(state_directory())
    found = []
    for name in store.names():
        spec = store.recorded(name)
        if spec is not None:
            found += _of_cluster(open_backend(spec, store, LocalRunner()), spec)
    return found


def directories(args: argparse.Namespace) -> list[Path]:
    """Return where to look, anew each time: jobs come and go."""
    if args.dir:
        return list(args.dir)
    if args.spec:
        cluster, spec = open_running(args.spec)
        return _of_cluster(cluster.backend, spec)
    own = [os.environ.get(name, "") for name in ("NEARMETAL_STATS_DIR", "NEARMETAL_RUNDIR")]
    places = [*(Path(p) for p in own if p), Path(f"/dev/shm/nearmetal-{os.geteuid()}")]  # noqa: S108
    return list(dict.fromkeys([*places, *_of_all_clusters()]))


def look(args: argparse.Namespace) -> list[EndpointCounters]:
    """Return what endpoints say now; those without a living process only with --all."""
    found = {}
    for directory in directories(args):
        for seen in read_counters(directory):
            if args.all or (seen.alive and seen.counters.state == "running"):
                found[seen.counters.id] = seen.counters
    return list(found.values())


def show(args: argparse.Namespace, view: View) -> int:
    """Look, show, and again, until interrupted or after --once."""
    sort = Sort(args.sort)
    before = look(args)
    live = sys.stdout.isatty() and not args.once and not view.as_json
    if not before and args.once and not view.as_json and args.prometheus is None:
        view.note("nothing of this user communicates over nearmetal now")
    while True:
        time.sleep(args.interval)
        now = look(args)
        found = ordered(lines(now, before), sort)
        if args.prometheus is not None:
            _write(args.prometheus, prometheus(found))
        else:
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
        trouble(peer) or (peer.reason if line.channel in {"net", "none"} else ""),
    ]


def _write(path: Path, text: str) -> None:
    """Write so that a collector sees the old or the new metrics, never half of them."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        msg = f"{path}: {error.strerror}"
        raise LogError(msg, "give a file in a directory that you may write to") from error
