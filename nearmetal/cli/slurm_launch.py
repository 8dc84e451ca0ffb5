# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm launch`: make the container of a job on this node; the plugin's prolog calls it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.errors import ExitCode
from nearmetal.slurm import Machines, ThisNode, Wanted, Wish

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
    parser.add_argument("--vfs", type=int, default=0, help="VFs of this node that it gets")
    parser.add_argument("--partition", default="", help="the partition of the job")
    parser.add_argument("--request", default="", help="what tasks must have asked for to enter")
    machines = parser.add_argument_group("virtual machines")
    machines.add_argument("--vms", type=int, default=0, help="how many; 0: none")
    machines.add_argument("--vcpus", type=int, default=1, help="processors of each")
    machines.add_argument("--memory", type=int, default=1 << 30, help="memory of each in bytes")
    machines.add_argument("--image", default="default", help="what they boot: default, or a key")
    machines.add_argument("--shares", default="", metavar="DIR[:DIR...]",
                          help="directories of this node that they see")  # fmt: skip
    machines.add_argument("--accel", default="kvm", choices=("kvm", "tcg"), help="what runs them")
    machines.add_argument("--nodes", default="", help="all nodes of the job, as Slurm writes them")
    machines.add_argument("--key", type=Path, default=Path("/etc/nearmetal/slurm.key"),
                          help="the file from which keys are derived")  # fmt: skip


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
        vfs=args.vfs,
        machines=_machines(args),
    )
    made = ThisNode().launch(wish)
    line = f"job {args.job}: container of user {args.uid}, process {made.pid}"
    if made.refusal:
        # No fault of this node: the job is told, and the node stays in service.
        line = f"job {args.job}: refused: {made.refusal}"
    view.result({"job": args.job, "pid": made.pid, "refusal": made.refusal}, [line])
    return ExitCode.DONE


def _machines(args: argparse.Namespace) -> Machines | None:
    if args.vms == 0:
        return None
    wanted = Wanted(
        image=args.image,
        nr=args.vms,
        vcpus=args.vcpus,
        memory_bytes=args.memory,
        segment_bytes=args.segment,
        shares=tuple(filter(None, args.shares.split(":"))),
        accel=args.accel,
    )
    return Machines(wanted, args.nodes, args.key)
