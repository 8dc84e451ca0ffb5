# SPDX-License-Identifier: Apache-2.0
"""Compare the ways of large messages by turns: one copy from a heap, by the kernel, and the pool.

    python -m benchmarks.heap_turns

The processes are those of `benchmarks/versus.py`, which describes turns and launches. They differ
only in their way:

    heap      sealed: NEARMETAL_CMA=off, with libnearmetal-heap.so
    pool      sealed: NEARMETAL_CMA=off, without it
    kernel    the kernel copies, as between processes of one node

The table has the 10th percentile of the times per message, the median of launches, and the rate of
the heap divided by that of each other way, with its interval. The receiver chooses between heap and
pool by the rates that it measures, so `heap` is what a job with the library gets.

A message that its sender does not change lies in the receiver's cache after the first copy, which
favours one copy. `--written` has the sender write each message first, and its time contains that.
"""

from __future__ import annotations

import argparse
from statistics import median

from benchmarks.versus import LOW_PERCENT, PROVIDER, ROOT, Kinds, Times, launch
from nearmetal.study.stats import median_interval, percentile

LIBRARY = ROOT / "build/c/src/heap/libnearmetal-heap.so"
SIZES = (65536, 262144, 1048576, 4194304)
TESTS = tuple(f"{test}:{size}" for test in ("pingpong", "uniband") for size in SIZES)
SEALED = {"NEARMETAL_CMA": "off"}
WAYS: Kinds = {
    "heap": (PROVIDER, {**SEALED, "LD_PRELOAD": str(LIBRARY)}),
    "pool": (PROVIDER, SEALED),
    "kernel": (PROVIDER, {}),
}


def rows(launches: list[dict[str, Times]]) -> list[str]:
    """Return the lines of the table."""
    lines = []
    for test, size in (text.split(":") for text in TESTS):
        key = (test, int(size))
        low = {
            way: [percentile(found[way][key], LOW_PERCENT) for found in launches] for way in WAYS
        }
        cells = [f"{median(low[way]):.4g}" for way in WAYS]
        for way in ("pool", "kernel"):
            ratios = [other / heap for heap, other in zip(low["heap"], low[way], strict=True)]
            interval = median_interval(ratios)
            spread = f"{interval.low:.2f} to {interval.high:.2f}" if interval else "too few"
            cells.append(f"{median(ratios):.2f} ({spread})")
        lines.append(f"| {test} {size} B | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--launches", type=int, default=20, help="launches of each way (default: 20)"
    )
    parser.add_argument(
        "--written", action="store_true", help="write each message before it is sent"
    )
    args = parser.parse_args()
    options = ("-f",) if args.written else ()
    launches = [launch(WAYS, TESTS, options) for _ in range(args.launches)]
    print("| time per message, µs | heap | pool | kernel | pool / heap | kernel / heap |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows(launches)), flush=True)


if __name__ == "__main__":
    main()
