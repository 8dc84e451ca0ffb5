# SPDX-License-Identifier: Apache-2.0
"""The benchmark of moves reads what its program prints."""

from __future__ import annotations

import json

from benchmarks.migration import trace_of


def test_the_line_of_the_program_becomes_a_trace() -> None:
    line = {"wall_s": 2.5, "interval_s": 0.25, "gaps": [[0, 1, 0.5], [1, 0, 1.5]], "bytes": [7, 0]}
    output = f"1: noise\n{json.dumps(line)}\nnearmetal: carried\n"
    trace = trace_of("PE", output, 3.0)
    assert (trace.wall_s, trace.downtime_s, trace.received) == (2.5, 1.5, (7, 0))
