# SPDX-License-Identifier: Apache-2.0
"""The benchmark of moves reads what its program prints."""

from __future__ import annotations

import json

import pytest

from benchmarks.migration import found_in, main, trace_of

GOOD = ["none.yaml", "n2", "--to", "h2", "--back", "h1", "--output", "out"]


def test_the_line_of_the_program_becomes_a_trace() -> None:
    line = {"wall_s": 2.5, "interval_s": 0.25, "gaps": [[0, 1, 0.5], [1, 0, 1.5]], "bytes": [7, 0]}
    output = f"1: noise\n{json.dumps(line)}\nnearmetal: carried\n"
    trace = trace_of("PE", output, 3.0)
    assert (trace.wall_s, trace.downtime_s, trace.received) == (2.5, 1.5, (7, 0))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "cannot read none.yaml"),
        (["--seconds", "nan"], "--seconds: more than 0"),
        (["--seconds", "-1"], "--seconds: more than 0"),
        (["--seconds", "1e9"], "--seconds: more than 0"),
        (["--ranks", "1"], "--ranks: at least 2"),
        (["--first", "n2"], "move another node"),
        (["--to", "h1"], "are one host"),
        (["--sec", "3"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*GOOD, *words])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("output", ["", 'x {"wall_s": 1}\n{"wall_s": 2}\n'])
def test_a_job_without_its_line_is_named(output: str) -> None:
    with pytest.raises(SystemExit, match="lines of figures instead of one"):
        found_in(output)
