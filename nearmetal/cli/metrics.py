# SPDX-License-Identifier: Apache-2.0
"""`nearmetal metrics`: metrics of jobs and clusters for Prometheus. It only reads."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import seconds
from nearmetal.core.errors import ExitCode, Interrupted, LogError

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.core.metrics import Metric

_PORTS = 1 << 16


def _address(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    try:
        ipaddress.IPv4Address(address)
        if int(port) in range(_PORTS):
            return address, int(port)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not of the form 127.0.0.1:9797")


def metrics_options(parser: VerbParser) -> None:
    """Add the arguments of `metrics`."""
    parser.option(
        "--listen ADDRESS:PORT",
        "IPv4 address and port for scrapes of /metrics, without a password and encryption "
        "(default: 127.0.0.1:9797)",
        type=_address,
        default=("127.0.0.1", 9797),
    )
    parser.option(
        "--textfile FILE",
        "serve nothing; write FILE after each reading, for the textfile collector of node_exporter",
    )
    parser.option(
        "--once", "read once and print the metrics, or write FILE, and exit; --json implies it"
    )
    parser.option(
        "--interval SECONDS",
        "seconds between two readings (default: 15)",
        type=seconds,
        default=15.0,
    )
    parser.option(
        "--dir DIR",
        "read the statistics files in DIR; may be repeated (default: as `nearmetal top`, and for "
        "root also /dev/shm/nearmetal-* of all users)",
        action="append",
    )


def on_metrics(args: argparse.Namespace, view: View) -> int:
    """Read once, or serve or write the metrics until a signal; SIGTERM is the usual end."""
    from nearmetal.cluster.store import Store, state_directory
    from nearmetal.core.exposition import metrics_text, served
    from nearmetal.core.metrics import as_data
    from nearmetal.job.exporter import Exporter, keep_reading
    from nearmetal.job.watched import everywhere

    def places() -> list[Path]:
        return list(args.dir or everywhere(of_users=os.geteuid() == 0))

    exporter = Exporter(places, Store(state_directory()))
    if args.once or view.as_json:
        exporter.read()
        found, lines = exporter.metrics(), []
        if args.textfile is not None:
            _write(args.textfile, found)
        elif not view.as_json:
            lines = metrics_text(found).splitlines()
        view.result({"metrics": as_data(found)}, lines)
        return ExitCode.DONE
    try:
        exporter.read()
        if args.textfile is not None:
            keep_reading(exporter, args.interval, lambda: _write(args.textfile, exporter.metrics()))
        address, port = args.listen
        with served(address, port, exporter.metrics) as bound:
            view.note(f"metrics at http://{address}:{bound}/metrics")
            keep_reading(exporter, args.interval, lambda: None)
    except Interrupted as error:
        # A service is ended by this signal, and that is no failure.
        if error.signum != signal.SIGTERM:
            raise
    return ExitCode.DONE


def _write(path: Path, metrics: list[Metric]) -> None:
    """Write the metrics so that a collector never sees half of them."""
    from nearmetal.core.exposition import metrics_text
    from nearmetal.core.files import replace_file

    try:
        replace_file(path, metrics_text(metrics), mode=0o644, sync=False, shared=True)
    except OSError as error:
        hint = "give a file in a directory that you may write to"
        raise LogError(f"{path}: {error.strerror}", hint) from error
