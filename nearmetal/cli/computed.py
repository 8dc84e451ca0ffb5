# SPDX-License-Identifier: Apache-2.0
"""The service on a hypervisor of OpenStack: computed serve, status, take and give."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import seconds
from nearmetal.core.errors import ExitCode, Interrupted, StateError, UsageError

if TYPE_CHECKING:
    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View

_LOOK_S = 0.2
_BEFORE = "QEMU refuses their live migration and suspension until `nearmetal computed take SERVER`"


def _state_option(parser: VerbParser) -> None:
    parser.option("--state DIR", "directory of the service (default: /run/nearmetal-computed)")


def _state(args: argparse.Namespace) -> Path:
    from nearmetal.computed.service import DIRECTORY

    return Path(args.state) if args.state else DIRECTORY


def serve_options(parser: VerbParser) -> None:
    """Add the arguments of `computed serve`."""
    parser.option("--settings FILE", "settings (default: /etc/nearmetal/computed.yaml)")
    _state_option(parser)


def on_serve(args: argparse.Namespace, view: View) -> int:
    """Serve until a signal; SIGTERM is the usual end."""
    from nearmetal.computed.segment_files import SegmentFiles
    from nearmetal.computed.service import ComputedService
    from nearmetal.computed.settings import SETTINGS, check_credentials, read_settings
    from nearmetal.core.extras import ExtraError
    from nearmetal.core.process import LocalRunner

    settings = read_settings(args.settings or SETTINGS)
    check_credentials(Path(settings.clouds))
    os.environ["OS_CLIENT_CONFIG_FILE"] = settings.clouds
    try:
        from nearmetal.cluster.backends.openstack.session import CloudSession
        from nearmetal.computed.groups import NovaGroups
    except ImportError as error:
        raise ExtraError("openstack", "nearmetal-computed", error) from error

    def log(text: str) -> None:
        view.note(text)
        sys.stderr.flush()

    files = SegmentFiles(LocalRunner())
    nova = NovaGroups(CloudSession(settings.cloud))
    try:
        ComputedService(settings, nova, files, log, _state(args)).serve()
    except Interrupted as error:
        # A service is ended by this signal, and that is no failure.
        if error.signum != signal.SIGTERM:
            raise
    view.result({"state": str(_state(args))})
    return ExitCode.DONE


def status_options(parser: VerbParser) -> None:
    """Add the arguments of `computed status`."""
    _state_option(parser)


def on_status(args: argparse.Namespace, view: View) -> int:
    """Print the segments, their parts, and the servers without one; 4 if the service has trouble."""
    from nearmetal.computed.service import is_served, read_status

    directory = _state(args)
    status = read_status(directory)
    running = is_served(directory)
    rows = [
        (one["project"], one["group"], str(held["part"]), held["server"], held["state"])
        for one in status["segments"]
        for held in one["parts"]
    ]
    if rows:
        view.table(("project", "group", "part", "server", "state"), rows)
    for one in status["refusals"]:
        view.warn(f"server {one['server']}: no segment: {one['why']}")
    if status["trouble"]:
        view.warn(status["trouble"])
    if not running:
        view.warn("the service does not run", "systemctl start nearmetal-computed")
    data: dict[str, Any] = {**status, "running": running}
    view.result(data, [_BEFORE if rows else "no server of this hypervisor has a segment"])
    return ExitCode.DONE if running and not status["trouble"] else ExitCode.CHECKS_FAILED


def take_options(parser: VerbParser) -> None:
    """Add the arguments of `computed take`."""
    parser.add_argument("server", metavar="SERVER", help="ID of the server")
    parser.option(
        "--wait SECONDS",
        "longest wait for its guest to let the devices go (default: 30)",
        type=seconds,
        default=30.0,
    )
    _state_option(parser)


def _server(args: argparse.Namespace) -> str:
    from nearmetal.computed.domains import is_id

    if not is_id(args.server):
        raise UsageError(
            f"{args.server!r} is not the ID of a server", "see `openstack server list`"
        )
    return str(args.server)


def on_take(args: argparse.Namespace, view: View) -> int:
    """Mark the server, and wait until the service has taken its devices."""
    from nearmetal.computed.service import holder_state, is_served, is_withheld, withhold

    directory, server = _state(args), _server(args)
    if not is_served(directory):
        raise StateError("the service does not run", "start it: systemctl start nearmetal-computed")
    withhold(directory, server)
    deadline = time.monotonic() + args.wait
    while not is_withheld(directory, server) or holder_state(directory, server):
        if time.monotonic() > deadline:
            state = holder_state(directory, server)
            if not state:
                raise StateError(
                    f"the service has not seen the request after {args.wait:g} s",
                    "see `nearmetal computed status`",
                )
            raise StateError(
                f"server {server} still has its part, in state {state}, after {args.wait:g} s",
                f"the guest must let the devices go; `nearmetal computed give {server}` gives up",
            )
        time.sleep(_LOOK_S)
    view.result(
        {"server": server}, [f"server {server} has no segment, until it leaves this hypervisor"]
    )
    return ExitCode.DONE


def give_options(parser: VerbParser) -> None:
    """Add the arguments of `computed give`."""
    parser.add_argument("server", metavar="SERVER", help="ID of the server")
    _state_option(parser)


def on_give(args: argparse.Namespace, view: View) -> int:
    """Remove the mark of `computed take`."""
    from nearmetal.computed.service import give

    server = _server(args)
    give(_state(args), server)
    view.result({"server": server}, [f"server {server} may have a segment"])
    return ExitCode.DONE
