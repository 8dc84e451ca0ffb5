# SPDX-License-Identifier: Apache-2.0
"""Compare two builds of the provider by turns: ratios with intervals, on the same two cores.

    python -m benchmarks.versus ../before/build/c/src/provider

Both builds run the same `fabric_pingpong`. A launch starts a pair of processes of each build; a pair
sleeps between its turns (benchmarks/mpi/turns.h), and the pairs take turns in random order, so both meet
the same state of the machine. The launch is the replicate, because where memory lies stays the same
within one: two launches of one build differ by 2 to 3 % with 4 KiB messages. Each process also gets
another size of environment, which moves its stack, and another shift of its heap: where the heap
lies differs between builds, and even with the length of their paths, and alone makes streams of
4 KiB up to 9 % slower on some processors. The ratio of a launch is the 10th percentile of one
build's times divided by that of the other. The table has the median of the ratios and its interval. A
ratio above 1 means that this checkout is slower. With a directory of the same build the table shows the
resolution of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import select
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from nearmetal.study.stats import median_interval, percentile

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build/c/benchmarks/fabric_pingpong"
PROVIDER = ROOT / "build/c/src/provider"
TESTS = (
    "pingpong:8",
    "pingpong:4096",
    "pingpong:65536",
    "uniband:8",
    "uniband:4096",
    "uniband:65536",
    "uniband:1048576",
    "uniband:4194304",
)
WAYS = {"copies by the kernel allowed": {}, "sealed": {"NEARMETAL_CMA": "off"}}
LOW_PERCENT = 10
TURN_S = 0.02
WARM_UP = 0
"""Number of the turn that does not count."""
TURNS = 6
"""Turns that count in a launch."""
MOST_PADDING = 4096
"""Bytes that move a stack or a heap at most."""
PATIENCE_S = 60.0
RANKS = 2

Times = dict[tuple[str, int], list[float]]
Kinds = dict[str, tuple[Path, dict[str, str]]]
"""The provider of each kind of pair, and its variables."""


class Pair:
    """Two ranks of one build that wait for their turns."""

    def __init__(
        self,
        directory: Path,
        provider: Path,
        env: dict[str, str],
        tests: tuple[str, ...] = TESTS,
        options: tuple[str, ...] = (),
    ) -> None:
        """Start both ranks, each on a core of its own."""
        self.directory = directory
        self.tests = tests
        for name in ("turns", "rundir", "addresses"):
            (directory / name).mkdir(mode=0o700, parents=True)
        self.pipes = [self._pipe(f"order.{rank}") for rank in range(RANKS)]
        self.answer = self._pipe("answer")
        rundir = str(directory / "rundir")
        # Builds before the new layout call the rundir by another name.
        names = {"NEARMETAL_RUNDIR": rundir, "NEARMETAL_" + "SEGMENT_DIR": rundir}
        variables = {**os.environ, "FI_PROVIDER_PATH": str(provider), **names, **env}
        self.out = (directory / "out").open("w+", encoding="utf-8")
        cores = sorted(os.sched_getaffinity(0))
        self.ranks = [
            subprocess.Popen(
                [
                    *("taskset", "-c", str(cores[rank % len(cores)]), str(PROGRAM)),
                    *("-r", str(rank), "-d", str(directory / "addresses")),
                    *("-T", str(directory / "turns"), "-w", "7200"),
                    *("-s", str(random.randrange(MOST_PADDING))),  # noqa: S311 - no secret
                    *options,
                ],
                env={**variables, "VERSUS_PADDING": "x" * random.randrange(MOST_PADDING)},  # noqa: S311
                stdout=self.out if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(RANKS)
        ]

    def _pipe(self, name: str) -> int:
        path = self.directory / "turns" / name
        os.mkfifo(path, mode=0o600)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def turn(self, number: int) -> None:
        """Give one turn, and wait for its end."""
        for pipe in self.pipes:
            os.write(pipe, f"{number} {TURN_S} shared {','.join(self.tests)}\n".encode())
        if not select.select([self.answer], [], [], PATIENCE_S)[0]:
            sys.exit(f"turn {number} did not end in {PATIENCE_S:.0f} s")
        os.read(self.answer, 4096)

    def finish(self) -> Times:
        """Let both ranks end; return microseconds by test and size, without those of the warm-up."""
        for pipe in self.pipes:
            os.write(pipe, b"end\n")
        codes = [rank.wait(PATIENCE_S) for rank in self.ranks]
        if any(codes):
            sys.exit(f"fabric_pingpong ended with {codes}")
        found: Times = defaultdict(list)
        table = ""
        self.out.seek(0)
        for line in self.out:
            words = line.split()
            if line.startswith("# table"):
                table = words[2]
            elif table and words and words[0].isdecimal() and int(words[1]) != WARM_UP:
                found[table, int(words[0])].append(float(words[2]))
        return found

    def stop(self) -> None:
        """End what still runs."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        for pipe in (*self.pipes, self.answer):
            os.close(pipe)
        self.out.close()


def launch(
    kinds: Kinds,
    tests: tuple[str, ...] = TESTS,
    options: tuple[str, ...] = (),
) -> dict[str, Times]:
    """Return the times of one launch of a pair of each kind."""
    with tempfile.TemporaryDirectory(prefix="nearmetal-versus-") as scratch:
        pairs: dict[str, Pair] = {}
        try:
            for name, (provider, env) in random.sample(list(kinds.items()), len(kinds)):
                pairs[name] = Pair(Path(scratch) / name, provider, env, tests, options)
                pairs[name].turn(WARM_UP)
            for number in range(WARM_UP + 1, WARM_UP + 1 + TURNS):
                for pair in random.sample(list(pairs.values()), len(pairs)):
                    pair.turn(number)
            return {name: pair.finish() for name, pair in pairs.items()}
        finally:
            for pair in pairs.values():
                with contextlib.suppress(OSError):
                    pair.stop()


def rows(way: str, launches: list[dict[str, Times]]) -> list[str]:
    """Return the lines of the table."""
    lines = []
    for test, size in (text.split(":") for text in TESTS):
        key = (test, int(size))
        low = [
            [percentile(found[kind][key], LOW_PERCENT) for kind in ("before", "after")]
            for found in launches
        ]
        ratios = [after / before for before, after in low]
        interval = median_interval(ratios)
        spread = f"{interval.low:.3f} to {interval.high:.3f}" if interval else "too few launches"
        before, after = (median(side) for side in zip(*low, strict=True))
        lines.append(
            f"| {test} {size} B, {way} | {before:.4g} | {after:.4g} | {median(ratios):.3f} | {spread} |"
        )
    return lines


def main() -> None:
    """Measure both ways and print the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("before", type=Path, help="directory with the other build's provider")
    parser.add_argument(
        "--launches", type=int, default=30, help="launches of each build (default: 30)"
    )
    args = parser.parse_args()
    print("| time per message, µs | before | after | ratio | 95 % interval |")
    print("|---|---|---|---|---|")
    for way, env in WAYS.items():
        kinds: Kinds = {"before": (args.before.resolve(), env), "after": (PROVIDER, env)}
        launches = [launch(kinds) for _ in range(args.launches)]
        print("\n".join(rows(way, launches)), flush=True)


if __name__ == "__main__":
    main()
