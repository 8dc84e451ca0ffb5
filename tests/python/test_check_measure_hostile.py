# SPDX-License-Identifier: Apache-2.0
"""Measuring for `check performance` with nodes that answer what no agent answers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import cast

import pytest

from nearmetal.check.measure import measure_cluster
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.run import Order, PerformanceRun, parse_run, run_text
from nearmetal.check.unmeasured import Unmeasured
from nearmetal.cluster.backend import Backend
from nearmetal.core.errors import BackendError
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from tests.python.test_check_measure import HELLO, NAMES, Here, agents

_ODD = """
import json, sys, time
text = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
sys.stdin.buffer.readline()
print('{"version": 1, "port": 9}', flush=True)
answers = json.loads(sys.argv[1])
for line in sys.stdin.buffer:
    wait, answer = answers[json.loads(line)["measure"]]
    time.sleep(wait)
    print(answer, flush=True)
"""


def odd(**answers: str | tuple[float, str]) -> Sequence[str]:
    """Return a node that gives these answers to orders, some after a time."""
    given = {name: (0, a) if isinstance(a, str) else a for name, a in answers.items()}
    return (sys.executable, "-I", "-S", "-B", "-c", _ODD, json.dumps(given))


def run_of(backend: Here, *quantities: str) -> PerformanceRun:
    return measure_cluster(
        cast(Backend, backend),
        LocalRunner(),
        NAMES,
        quantities,
        NodeClasses(),
        limit_s=5.0,
        progress=Silent(),
    )


def test_a_value_of_one_quantity_does_not_excuse_another() -> None:
    node = odd(memory='{"why": "no room"}', processor='{"value": 200}')
    run = run_of(Here(odd={"n2": node}), "memory", "processor")
    assert run.failures == {("n2",): "memory bandwidth: no room"}
    assert parse_run(run_text(run).encode(), "run").failures == run.failures
    found = judge_run(run, NodeClasses()).findings
    assert ("performance.answer", ("n2",)) in [(check.name, nodes) for check, nodes, _ in found]


def test_a_node_that_answers_and_never_reads_is_given_up() -> None:
    script = f"echo '{HELLO}'; exec yes '{{\"value\": 1}}'"
    begin = time.monotonic()
    with agents(Here(odd={"n2": ("sh", "-c", script)})) as running:
        for _ in range(2000):
            if not running.ask(Order("memory", (("n2",),))).values:
                break
        assert running.failures == {("n2",): "sh does not read its input"}
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("value", ["5e-324", "1e-13", "2e18", "0", "-1", "true", '"7"', "null"])
def test_a_value_that_the_file_of_a_run_refuses_is_a_failure_of_the_node(value: str) -> None:
    with agents(Here(odd={"n3": odd(memory=f'{{"value": {value}}}')})) as running:
        turn = running.ask(Order("memory", (("n3",),)))
        assert running.failures["n3",] == "its value is not possible"
    run = PerformanceRun(NAMES, screening=(turn,), failures=running.failures)
    assert parse_run(run_text(run).encode(), "run") == run
    assert judge_run(run, NodeClasses()).findings


@pytest.mark.parametrize("value", ["1e-11", "3", "1e17"])
def test_a_value_that_the_file_of_a_run_takes_is_taken_from_a_node(value: str) -> None:
    with agents(Here(odd={"n2": odd(memory=f'{{"value": {value}}}')})) as running:
        turn = running.ask(Order("memory", (("n2",),)))
    assert turn.values == {("n2",): float(value)}
    run = PerformanceRun(NAMES, screening=(turn,))
    assert parse_run(run_text(run).encode(), "run") == run


class Down(Here):
    """A cluster that went down during the run."""

    def end_marked(self, marker: str) -> int:
        super().end_marked(marker)
        raise BackendError("the cluster is not up")


def test_a_cluster_that_went_down_takes_no_value_along() -> None:
    backend = Down(odd={"n2": ("sh", "-c", "echo no way in >&2; exit 127")})
    run = run_of(backend, "memory")
    assert backend.swept
    assert {item for turn in run.screening for item in turn.values} == {("n1",), ("n3",)}


def test_a_cluster_that_went_down_does_not_hide_an_interrupt() -> None:
    backend = Down()
    with pytest.raises(KeyboardInterrupt), agents(backend):
        raise KeyboardInterrupt
    assert backend.swept


def test_reasons_name_the_quantities_that_an_item_lacks() -> None:
    seen = Unmeasured()
    for quantity in ("latency", "bandwidth"):
        seen.fail(quantity, ("a", "b"), "refused")
    seen.fail("memory", ("a",), "no room")
    seen.fail("processor", ("a",), "busy")
    assert seen.reasons() == {
        ("a", "b"): "latency, bandwidth: refused",
        ("a",): "memory bandwidth: no room; speed of the processor: busy",
    }
    seen.succeed("processor", ("a",))
    seen.succeed("latency", ("b", "a"))
    assert seen.reasons()["a",] == "memory bandwidth: no room"
    assert seen.reasons()["a", "b"] == "latency, bandwidth: refused"
    assert not seen.any_given_up
    seen.give_up("a", "it hangs")
    assert seen.reasons()["a",] == "it hangs"
    assert seen.any_given_up
