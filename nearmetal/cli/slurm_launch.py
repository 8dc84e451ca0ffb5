# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm launch`: make the container of a job on this node; the plugin's prolog calls it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.errors import ExitCode
from nearmetal.slurm import Wish, launch

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "launch", run, "make the container of a job on this node",
        "nearmetal slurm launch --job 7 --uid 1000 --segment 67108864",
    )  # fmt: skip
    parser.add_argument("--job", type=int, required=True, help="the job")
    parser.add_argument("--uid", type=int, required=True, help="its user")
    parser.add_argument(
        "--segment", type=int, required=True, help="size of its segment directory in bytes"
    )
    parser.add_argument("--scratch", type=int, default=1 << 30,
                        help="size of its /tmp and of its /dev/shm in bytes")  # fmt: skip
    parser.add_argument("--mpi", default="", help="the MPI whose settings its tasks get")
    parser.add_argument("--channels", default="", help="channels its tasks may use")
    parser.add_argument("--partition", default="", help="the partition of the job")
    parser.add_argument("--request", default="", help="what tasks must have asked for to enter")


def run(args: argparse.Namespace, view: View) -> int:
    """Make it and tell its process 1."""
    wish = Wish(
        job=args.job,
        uid=args.uid,
        segment_bytes=args.segment,
        scratch_bytes=args.scratch,
        request=args.request,
        node=os.environ.get("SLURMD_NODENAME", ""),
        partition=args.partition,
        mpi=args.mpi,
        channels=args.channels,
    )
    pid = launch(wish)
    line = f"job {args.job}: container of user {args.uid}, process {pid}"
    view.result({"job": args.job, "pid": pid}, [line])
    return ExitCode.DONE
