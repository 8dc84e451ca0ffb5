# SPDX-License-Identifier: Apache-2.0
"""Time `plan`, `up` and a second `plan` of many machines on the simulated vCenter, of two checkouts.

    git worktree add ../before 226783a
    python -m benchmarks.vsphere_machines ../before

A turn runs each checkout in random order, each with a simulator of its own (tests/vcsim of this
checkout). A step is one command. Its line has the wall time, the processor time of the command
without the simulator, and the lines that it printed. The simulator shares the machine with the command.
Without a second checkout, this one is timed alone.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.system.test_vsphere_large import body
from tests.system.vcenter import PASSWORD, simulator

ROOT = Path(__file__).resolve().parents[1]
STEPS = {"plan": 3, "up": 0, "plan again": 0}
"""Each command with its exit code."""


@dataclass(frozen=True)
class Step:
    """One command: seconds on the clock and of the processor, and printed lines."""

    wall_s: float
    cpu_s: float
    lines: int


def run(checkout: Path, verb: str, spec: Path, code: int) -> Step:
    """Return what a command of a checkout took; ends the program if it failed."""
    state = spec.with_name("state")
    variables = {**os.environ, "PYTHONPATH": str(checkout), PASSWORD: "pass"}
    variables["NEARMETAL_STATE_DIR"] = str(state)
    argv = [sys.executable, "-m", "nearmetal", verb, str(spec)]
    with tempfile.TemporaryFile() as output:
        before, wall = os.times(), time.monotonic()
        done = subprocess.run(
            argv, stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=checkout, check=False
        )
        wall, after = time.monotonic() - wall, os.times()
        output.seek(0)
        said = output.read()
    if done.returncode != code:
        sys.exit(f"{verb} of {checkout} ended with {done.returncode}:\n{said[-2000:].decode()}")
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return Step(wall, cpu, said.count(b"\n"))


def turn(checkout: Path, nr_machines: int) -> dict[str, Step]:
    """Return the steps of one checkout on a new simulator."""
    with tempfile.TemporaryDirectory(prefix="nearmetal-machines-") as place:
        spec = Path(place) / "spec.yaml"
        running = simulator(Path(place))
        try:
            spec.write_text(next(running).head("many") + body(nr_machines))
            return {
                name: run(checkout, name.partition(" ")[0], spec, code)
                for name, code in STEPS.items()
            }
        finally:
            running.close()


def main() -> None:
    """Print a table of the medians of all turns."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("before", type=Path, nargs="?", help="a second checkout, for comparison")
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    sides = {"after": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    found: dict[str, list[dict[str, Step]]] = {side: [] for side in sides}
    for number in range(args.turns):
        for side in random.sample([*sides], len(sides)):
            found[side].append(turn(sides[side], args.machines))
            print(f"turn {number + 1}, {side}: {found[side][-1]}", file=sys.stderr, flush=True)
    print(f"{args.machines} machines, {args.turns} turns, medians\n")
    print("| step | checkout | wall s | processor s | lines |\n|---|---|---|---|---|")
    for name in STEPS:
        for side in sorted(sides, reverse=True):
            steps = [steps[name] for steps in found[side]]
            wall, cpu = median(s.wall_s for s in steps), median(s.cpu_s for s in steps)
            print(f"| {name} | {side} | {wall:.1f} | {cpu:.1f} | {steps[0].lines} |")


if __name__ == "__main__":
    main()
