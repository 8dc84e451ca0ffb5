# SPDX-License-Identifier: Apache-2.0
"""Takes every step in every state of a model, breadth first, and checks what must hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tests.python.moving_model import BrokenError, Scenario, State
from tests.python.moving_steps import steps, unfinished


@dataclass(frozen=True)
class Explored:
    """What was found. `problem` is "" if all is well; `trace`: the shortest way to it, in words."""

    nr_states: int
    nr_ends: int
    problem: str = ""
    trace: tuple[str, ...] = ()


def _trace(parents: list[tuple[int, str]], at: int, last: str = "") -> tuple[str, ...]:
    words = [last] if last else []
    while at:
        at, word = parents[at]
        words.append(word)
    return tuple(reversed(words))


def _stuck(edges: list[list[int]], ends: list[int]) -> int:
    """The first state from which no end can be reached; -1: there is none."""
    back: list[list[int]] = [[] for _ in edges]
    for at, following in enumerate(edges):
        for after in following:
            back[after].append(at)
    reaches = bytearray(len(edges))
    todo = deque(ends)
    for end in ends:
        reaches[end] = 1
    while todo:
        for before in back[todo.popleft()]:
            if not reaches[before]:
                reaches[before] = 1
                todo.append(before)
    return reaches.find(0)


def explore(scenario: Scenario, limit: int = 2_000_000) -> Explored:
    """Explore all interleavings. Stops at the first problem, which is one of the nearest."""
    start = scenario.start()
    numbers: dict[State, int] = {start: 0}
    states = [start]
    parents: list[tuple[int, str]] = [(0, "")]
    edges: list[list[int]] = []
    ends: list[int] = []
    for at, state in enumerate(states):
        following: list[int] = []
        for words, make in steps(state, scenario):
            try:
                after = make()
            except BrokenError as error:
                trace = _trace(parents, at, words)
                return Explored(len(states), len(ends), str(error), trace)
            number = numbers.setdefault(after, len(states))
            if number == len(states):
                if number >= limit:
                    raise RuntimeError(f"more than {limit} states")
                states.append(after)
                parents.append((at, words))
            following.append(number)
        edges.append(following)
        if not following:
            if problem := unfinished(state, scenario):
                return Explored(len(states), len(ends), problem, _trace(parents, at))
            ends.append(at)
    if (at := _stuck(edges, ends)) >= 0:
        return Explored(len(states), len(ends), "no end can be reached", _trace(parents, at))
    return Explored(len(states), len(ends))
