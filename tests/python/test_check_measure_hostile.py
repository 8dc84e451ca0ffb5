# SPDX-License-Identifier: Apache-2.0
"""Measuring for `check performance` with nodes that answer what no agent answers."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from nearmetal.check.collect import Gathered
from nearmetal.check.measure import Agents, measure_cluster
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.findings import judge_run, unanswered
from nearmetal.check.performance.run import (
    PERFORMANCE,
    Order,
    PerformanceRun,
    parse_run,
    run_text,
)
from nearmetal.check.performance.tournament import tournament
from nearmetal.check.unmeasured import Unmeasured
from nearmetal.cli.main import main
from nearmetal.cluster.backend import Backend
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.process import LocalRunner
from nearmetal.core.progress import Silent
from tests.python.check_nodes import content_of, facts_of
from tests.python.test_check_measure import HELLO, NAMES, Here, agents, spec_of

_ODD = """
import json, sys, time
text = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
sys.stdin.buffer.readline()
print('{"version": 1, "port": 9}', flush=True)
answers = json.loads(sys.argv[1])
for line in sys.stdin.buffer:
    order = json.loads(line)
    wait, answer = answers[order["measure"]]
    time.sleep(wait)
    print(answer.replace("}", ', "number": %d}' % order["number"]), flush=True)
"""


def odd(**answers: str | tuple[float, str]) -> Sequence[str]:
    """Return a node that gives these answers to orders, some after a time."""
    given = {name: (0, a) if isinstance(a, str) else a for name, a in answers.items()}
    return (sys.executable, "-I", "-S", "-B", "-c", _ODD, json.dumps(given))


def run_of(backend: Here, *quantities: str) -> PerformanceRun:
    return measure_cluster(
        cast(Backend, backend),
        spec_of(NAMES),
        LocalRunner(),
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
    script = f"""echo '{HELLO}'; n=0
        while n=$((n + 1)); do echo '{{"value": 1, "number": '$n'}}'; done"""
    begin = time.monotonic()
    with agents(Here(odd={"n2": ("sh", "-c", script)})) as running:
        for _ in range(2000):
            if not running.ask(Order("memory", (("n2",),))).values:
                break
        assert running.failures == {("n2",): "sh does not read its input"}
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("number", ["", ', "number": 0', ', "number": 3', ', "number": "1"'])
def test_an_answer_to_another_order_is_not_taken(number: str) -> None:
    script = f"echo '{HELLO}'; echo '{{\"value\": 1{number}}}'; exec sleep 60"
    with agents(Here(odd={"n2": ("sh", "-c", script)})) as running:
        assert set(running.ask(Order("memory", (("n1",), ("n2",)))).values) == {("n1",)}
        assert running.failures == {("n2",): "it answers another order"}


def test_agents_that_ignore_the_signal_to_end_are_ended_together() -> None:
    together = threading.Barrier(len(NAMES))
    with agents(Here()) as running:
        for agent in running._running.values():
            finish = agent.dialogue.finish

            def ended(timeout_s: float, finish: Callable[[float], int] = finish) -> int:
                together.wait(30)
                return finish(timeout_s)

            agent.dialogue.finish = ended  # type: ignore[method-assign]
    assert not together.broken


def test_a_signal_while_an_agent_is_given_up_leaves_it_to_the_end_of_all() -> None:
    ends: list[float] = []

    def interrupt(running: Agents) -> None:
        dialogue = running._running["n2"].dialogue
        finish = dialogue.finish

        def interrupted(timeout_s: float) -> int:
            ends.append(timeout_s)
            if len(ends) == 1:
                raise KeyboardInterrupt
            return finish(timeout_s)

        dialogue.finish = interrupted  # type: ignore[method-assign]
        running.ask(Order("memory", (("n1",), ("n2",))))

    confused = Here(odd={"n2": odd(memory="no JSON")})
    with pytest.raises(KeyboardInterrupt), agents(confused) as running:
        interrupt(running)
    assert ends == [0.0, 0.0]


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
    seen = Unmeasured(2)
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


def late_turns(seen: Unmeasured, names: Sequence[str], silent: set[str]) -> int:
    """Return how many turns of three tournaments last their whole limit."""
    late = 0
    for round_ in 3 * tournament(names):
        pairs = [pair for pair in round_ if not seen.is_left_out("latency", pair)]
        for pair in pairs:
            if silent.isdisjoint(pair):
                seen.succeed("latency", pair)
            else:
                seen.fail("latency", pair, "no result")
                seen.was_late("latency", pair)
        late += any(not silent.isdisjoint(pair) for pair in pairs)
    return late


@pytest.mark.parametrize("count", [4, 5, 16, 200])
def test_packets_that_a_node_loses_cost_a_bounded_time(count: int) -> None:
    names = [f"n{i}" for i in range(count)]
    seen = Unmeasured(count)
    assert late_turns(seen, names, {"n3"}) <= 8
    assert "its pairs were left out" in seen.reasons()["n3",]
    assert [item for item in seen.reasons() if len(item) == 1] == [("n3",)]
    run = PerformanceRun(tuple(names), failures=seen.reasons())
    assert [nodes for _, nodes, _ in unanswered(run)] == [("n3",)]


def test_two_nodes_that_lose_packets_take_no_other_along() -> None:
    names = [f"n{i}" for i in range(5)]
    seen = Unmeasured(5)
    late_turns(seen, names, {"n0", "n3"})
    assert [item for item in seen.reasons() if len(item) == 1] == [("n0",), ("n3",)]
    assert not seen.is_left_out("latency", ("n1", "n2"))


def test_a_pair_is_left_out_after_two_time_outs_of_a_quantity() -> None:
    seen = Unmeasured(6)
    seen.was_late("latency", ("a", "b"))
    assert not seen.is_left_out("latency", ("a", "b"))
    seen.was_late("latency", ("b", "a"))
    assert seen.is_left_out("latency", ("a", "b"))
    assert not seen.is_left_out("bandwidth", ("a", "b"))
    assert not seen.is_left_out("latency", ("a", "c"))


def test_an_agent_that_never_has_a_result_is_not_asked_for_ever() -> None:
    answer = (1.1, '{"why": "no result in 1 s"}')
    with agents(Here(odd={"n3": odd(memory=answer, processor='{"value": 5}')}), limit_s=1.0) as now:
        begin = time.monotonic()
        for _ in range(20):
            assert not now.ask(Order("memory", (("n3",),))).values
        assert time.monotonic() - begin < 15
        assert now.ask(Order("processor", (("n3",),))).values == {("n3",): 5.0}
    assert now.failures == {("n3",): "memory bandwidth: no result in 1 s"}


def test_pairs_that_lose_all_packets_are_not_asked_for_ever() -> None:
    answer = (1.1, '{"why": "no result in 1 s"}')
    node = odd(latency=answer, memory='{"value": 5}')
    with agents(Here(odd={"n1": node, "n2": node}), limit_s=1.0) as now:
        begin = time.monotonic()
        for _ in range(20):
            assert not now.ask(Order("latency", (("n1", "n2"),))).values
        assert time.monotonic() - begin < 15
        assert now.ask(Order("memory", (("n1",), ("n2",)))).values
    assert set(now.failures) >= {("n1", "n2"), ("n2", "n1")}


@pytest.mark.parametrize("left", range(8))
def test_too_few_open_files_are_no_fault_of_a_node(left: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.dup(0)
    os.close(used)
    backend = Here()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, hard))
        with (
            pytest.raises(CommandError, match="this machine cannot run 3 agents: Too") as caught,
            agents(backend),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n 76" in caught.value.hint


def test_a_damaged_run_is_no_matter_of_a_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gathered = Gathered({"n1": content_of(facts_of(1))}, {"n1": (0.0, 0.0)})
    gathered.write(tmp_path / "good")
    gathered.write(tmp_path / "bad", {PERFORMANCE: "{}"})
    assert main(["check", "diff", str(tmp_path / "good"), str(tmp_path / "bad")]) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert main(["check", "analyse", str(tmp_path / "bad")]) == 1
    assert "not a run of version 1" in capsys.readouterr().err
