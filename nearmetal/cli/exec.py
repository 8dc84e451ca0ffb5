# SPDX-License-Identifier: Apache-2.0
"""`nearmetal exec`: run a program in one node, on the cores of that node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.target import add_spec, open_running
from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "exec",
        execute,
        "run a program in one node, on the cores of that node",
        "nearmetal exec examples/two-nodes.yaml n1 -- hostname",
    )
    add_spec(parser)
    parser.add_argument(
        "node",
        metavar="NODE",
        help="name of a node in the spec, or `launcher` for the place where MPI launchers run",
    )
    parser.add_argument(
        "command", metavar="COMMAND", nargs="+", help="program and its arguments, after `--`"
    )


def execute(args: argparse.Namespace, view: View) -> int:
    """Run it in the foreground; returns its exit code. With --json its output is captured."""
    cluster, spec = open_running(args.spec)
    names = [node.name for _, node in spec.nodes]
    if args.node not in (*names, "launcher"):
        raise UsageError(f"no node {args.node!r}", f"nodes: {', '.join(names)}, launcher")
    if args.node == "launcher":
        command = cluster.backend.on_launcher(args.command, workdir=Path.cwd())
    else:
        command = cluster.backend.on_node(args.node, args.command, workdir=Path.cwd())
    runner = LocalRunner()
    if view.as_json:
        done = runner.run(command, timeout_s=3600)
        view.result(
            {
                "node": args.node,
                "exit_code": done.code,
                "stdout": done.text,
                "stderr": done.stderr.decode("utf-8", "replace"),
            }
        )
    else:
        done = runner.attach(command, stdin=sys.stdin.buffer, foreground=True)
    return done.code if done.code >= 0 else 128 - done.code
