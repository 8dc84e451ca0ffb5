# SPDX-License-Identifier: Apache-2.0
"""`nearmetal top`: the traffic of running jobs by sender, receiver and channel. It only reads."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import open_running
from nearmetal.core.errors import BackendError, ExitCode, LogError
from nearmetal.core.files import replace_file
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.cluster.backend import Backend
    from nearmetal.cluster.model import ClusterSpec
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


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 3600:  # noqa: PLR2004 - a person cannot read faster than that
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return value


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
        type=_seconds,
        default=1.0,
    )
    parser.option(
        "--sort",
        "order of the lines: rate (bytes per second), bytes or messages (totals), rank, or trouble: peers that are gone, then channels given up after invalid bytes, then failed copies and sends that had to wait (default: rate)",
        choices=[s.value for s in Sort],
        default=Sort.RATE.value,
    )
    parser.option("--all", "also show processes that have ended or closed their communication")
    parser.option(
        "--prometheus FILE",
        "instead of a table, write metrics to FILE after each interval, in the text format of Prometheus's textfile collector",
    )


def _of_cluster(backend: Backend, spec: ClusterSpec) -> list[Path]:
    """Return the directories in which jobs of a running cluster leave their statistics."""
    found = []
    for host in spec.hosts:
        try:
            base = backend.meeting_directory(host.name)
            found += [base, *sorted(p for p in base.iterdir() if p.is_dir())]
        except (BackendError, OSError):
            continue  # the cluster went down meanwhile
    return found


def _of_all_clusters() -> list[Path]:
    from nearmetal.cluster.backend import open_backend
    from nearmetal.cluster.store import Store, state_directory

    store = Store(state_directory())
    found = []
    for name in store.names():
        spec = store.recorded(name)
        if spec is not None:
            found += _of_cluster(open_backend(spec, store, LocalRunner()), spec)
    return found


def directories(args: argparse.Namespace) -> list[Path]:
    """Return the directories of statistics files; jobs come and go, so each call looks again."""
    if args.dir:
        return list(args.dir)
    if args.spec:
        cluster, spec = open_running(args.spec)
        return _of_cluster(cluster.backend, spec)
    own = [os.environ.get(name, "") for name in ("NEARMETAL_STATS_DIR", "NEARMETAL_RUNDIR")]
    shm, name = Path("/dev/shm"), f"nearmetal-{os.geteuid()}"  # noqa: S108
    places = [*(Path(p) for p in own if p), shm / name, *sorted(shm.glob(f"{name}.*"))]
    return list(dict.fromkeys([*places, *_of_all_clusters()]))


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
    from nearmetal.evidence.traffic import Sort, lines, ordered, prometheus

    sort = Sort(args.sort)
    before = look(args)
    live = sys.stdout.isatty() and not args.once and not view.as_json
    if not before and args.once and not view.as_json and args.prometheus is None:
        view.note("no process of this user communicates over nearmetal now")
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
    from nearmetal.evidence.traffic import accesses, trouble
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
        trouble(peer) or (peer.reason if line.channel in {"net", "none"} else ""),
    ]


def _write(path: Path, text: str) -> None:
    """Write the metrics so that a collector never sees half of them."""
    try:
        replace_file(path, text, mode=0o644, sync=False, shared=True)
    except OSError as error:
        hint = "give a file in a directory that you may write to"
        raise LogError(f"{path}: {error.strerror}", hint) from error
