# SPDX-License-Identifier: Apache-2.0
"""How long a Slurm job waits for its first rank: outside, in containers, in virtual machines; by turns.

    python -m benchmarks.slurm_start                    # as root: a Slurm of three nodes on this machine
    python -m benchmarks.slurm_start --machines 5       # with two emulated machines per node, too
    python -m benchmarks.slurm_start --site --machines 20 -- -p debug -w node7

The last measures the Slurm that this machine has, as an ordinary user; what follows `--` goes to srun.
A launch is timed from the start of srun on idle nodes to the first word of a rank in the terminal. In
each round every kind has a turn, in an order by chance.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from nearmetal.study.stats import percentile

KINDS = {
    "outside": ("-n1",),
    "container": ("-n1", "--nm-node=container"),
    "machines": ("-n2", "--nm-node=vm", "--nm-vms-per-node=2"),
}
SAY = ("sh", "-c", "echo $SLURM_PROCID on $(hostname)")
LOW_PERCENT = 10
IDLE_S = 120.0

Start = Callable[..., subprocess.Popen[str]]


def first_rank_s(start: Start, options: Sequence[str]) -> float:
    """Start a job and return after how long its first rank spoke."""
    begin = time.perf_counter()
    with start("srun", "-N1", *options, *SAY) as job:
        word = next(iter(job.stdout or ()), "")
        took = time.perf_counter() - begin
        _, said = job.communicate()
    if job.returncode or not word:
        sys.exit(f"srun {' '.join(options)} failed: {said}")
    return took


def wait_until_idle(start: Start) -> None:
    """Wait until the last job is gone: its epilog would take processors from the next."""
    deadline = time.monotonic() + IDLE_S
    while start("squeue", "-h", "--me", "-o", "%i").communicate()[0].strip():
        if time.monotonic() > deadline:
            sys.exit("jobs of yours are there: measure without them")
        time.sleep(0.05)


def measure(start: Start, rounds: dict[str, int], more: Sequence[str]) -> dict[str, list[float]]:
    """Return seconds by kind. The first round is for caches, and does not count."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS if rounds[kind]}
    for number in range(max(rounds.values()) + 1):
        due = [kind for kind in found if number <= rounds[kind]]
        for kind in random.sample(due, len(due)):
            wait_until_idle(start)
            took = first_rank_s(start, (*KINDS[kind], *more))
            if number:
                found[kind].append(took)
                print(f"{kind} {took:.3f}", flush=True)
    return found


def low(values: Sequence[float]) -> float:
    """Return what the machine takes where nothing disturbs it."""
    return percentile(values, LOW_PERCENT)


def summary(found: dict[str, list[float]]) -> Iterator[str]:
    """Return lines of a table."""
    yield f"# {'kind':9} {'launches':>8} {f'p{LOW_PERCENT}_s':>7} {'p50_s':>7} {'max_s':>7}"
    for kind, values in found.items():
        middle = statistics.median(values)
        yield f"# {kind:9} {len(values):8} {low(values):7.3f} {middle:7.3f} {max(values):7.3f}"
    for kind in [kind for kind in found if kind != "outside"]:
        pairs = list(zip(found["outside"], found[kind], strict=False))
        added = [inside - outside for outside, inside in pairs]
        yield f"# {kind} adds {low(added):.3f} (p{LOW_PERCENT}), {statistics.median(added):.3f} (p50) s"


@contextlib.contextmanager
def own_site(*, machines: bool) -> Iterator[Start]:
    """Bring up the Slurm of the tests, whose user types."""
    from tests.system.slurm_site import slurm_site  # noqa: PLC0415 - of a checkout, for root

    with slurm_site(machines=machines) as site:
        yield lambda *argv: site.start("ann", *argv)


def here(*argv: str) -> subprocess.Popen[str]:
    """Type it on this machine."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=30, help="launches outside and in containers")
    parser.add_argument("--machines", type=int, default=0, help="launches of two virtual machines")
    parser.add_argument("--site", action="store_true", help="the Slurm that this machine has")
    parser.add_argument("srun", nargs="*", help="more options of srun, after --")
    args = parser.parse_args()
    rounds = {"outside": args.rounds, "container": args.rounds, "machines": args.machines}
    if not args.rounds:
        parser.error("--rounds: give a number from 1")
    print(f"# processors {os.cpu_count()}, load before {os.getloadavg()[0]:.1f}", flush=True)
    with (
        contextlib.nullcontext(here) if args.site else own_site(machines=args.machines > 0) as start
    ):
        found = measure(start, rounds, args.srun)
    print("\n".join(summary(found)))
    print(f"# load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
