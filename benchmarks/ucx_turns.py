# SPDX-License-Identifier: Apache-2.0
"""Compare UCX transports by turns: ucx_perftest between two processes on two cores.

    python -m benchmarks.ucx_turns --ucx build/ucx/libucx --plugin build/c/src/ucx [--turns 7]

Each turn measures each test once with each set of transports. A line shows the lowest value of a
test for each set, of all turns, and the ratio to the first set.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETS = ("posix,cma", "nearmetal", "nearmetal,cma")
TESTS = {
    "tag_lat 8 B": ("-t", "tag_lat", "-s", "8", "-n", "20000"),
    "tag_lat 512 B": ("-t", "tag_lat", "-s", "512", "-n", "20000"),
    "tag_lat 2 KiB": ("-t", "tag_lat", "-s", "2048", "-n", "10000"),
    "tag_lat 16 KiB": ("-t", "tag_lat", "-s", "16384", "-n", "5000"),
    "tag_bw 64 KiB": ("-t", "tag_bw", "-s", "65536", "-n", "2000"),
    "tag_bw 1 MiB": ("-t", "tag_bw", "-s", "1048576", "-n", "200"),
    "am_lat 8 B": ("-t", "ucp_am_lat", "-s", "8", "-n", "20000"),
    "am_bw 8 B": ("-t", "ucp_am_bw", "-s", "8", "-n", "100000"),
    "am_bw 8 KiB": ("-t", "ucp_am_bw", "-s", "8192", "-n", "10000"),
}
# Fields of the line that `ucx_perftest -v` prints, in microseconds: the median of latencies; for
# bandwidths, whose iterations only start a transfer, the average.
MEDIAN, AVERAGE = 1, 2
PATIENCE_S = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(ucx: Path, env: dict[str, str], test: tuple[str, ...]) -> float:
    """Return the time of one iteration, in microseconds."""
    port = str(_free_port())
    program = [str(ucx / "bin/ucx_perftest"), "-v", "-p", port]
    pinned = (["taskset", "-c", "0", *program], ["taskset", "-c", "1", *program])
    with subprocess.Popen(pinned[0], env=env, stdout=subprocess.DEVNULL) as server:
        try:
            time.sleep(1)
            done = subprocess.run(
                [*pinned[1], "-f", *test, "127.0.0.1"],
                env=env,
                capture_output=True,
                text=True,
                check=True,
                timeout=PATIENCE_S,
            )
            server.wait(PATIENCE_S)
        finally:
            server.kill()
    return float(done.stdout.split()[-1].split(",")[MEDIAN if "_lat" in test[1] else AVERAGE])


def main() -> int:
    """Measure by turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucx", type=Path, required=True, help="prefix of UCX")
    parser.add_argument("--plugin", type=Path, required=True, help="directory of the transport")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    values: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as rundir:
        env = os.environ | {
            "LD_LIBRARY_PATH": str(options.ucx / "lib"),
            "UCX_PLUGIN_PATH": str(options.plugin),
            "NEARMETAL_RUNDIR": rundir,
        }
        for _ in range(options.turns):
            for name, test in TESTS.items():
                for tls in SETS:
                    value = measure(options.ucx, env | {"UCX_TLS": tls}, test)
                    values.setdefault((name, tls), []).append(value)
                    print(f"# {name}, {tls}: {value:.3f} us", flush=True)
    print(f"{'microseconds, lowest of ' + str(options.turns):<28}", *(f"{s:>20}" for s in SETS))
    for name in TESTS:
        lowest = [min(values[name, tls]) for tls in SETS]
        cells = (f"{value:.3f} ({value / lowest[0]:.2f})" for value in lowest)
        print(f"{name:<28}", *(f"{cell:>20}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
