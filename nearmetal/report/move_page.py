# SPDX-License-Identifier: Apache-2.0
"""The page of moves: the time of each action, and what a job saw of the moves. Pure."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nearmetal.cluster.move.history import PastMove
from nearmetal.core.files import replace_file
from nearmetal.core.text import counted
from nearmetal.report.page import Grid, GridCell, Panel, both, render
from nearmetal.report.svg import Axis, ChartBar, Mark, Series, bar_chart, line_chart

_FORMAT = 1
_MEGA = 1e6
_MOST_ARMS = 8
"""Styles of series in the style sheet."""


@dataclass(frozen=True)
class JobTrace:
    """What one job saw, in seconds. All jobs of a page do the same work.

    `gaps`: sender, receiver, and the longest time between two messages that came. `received`: bytes
    of all ranks in each interval. `move_s`: time of the move that was made meanwhile.
    """

    name: str
    wall_s: float
    gaps: tuple[tuple[int, int, float], ...]
    interval_s: float
    received: tuple[int, ...]
    move_s: float | None = None

    @property
    def downtime_s(self) -> float:
        """The longest gap of all pairs."""
        return max((gap for _, _, gap in self.gaps), default=0.0)

    def data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "name": self.name,
            "wall_s": self.wall_s,
            "downtime_s": self.downtime_s,
            "move_s": self.move_s,
            "interval_s": self.interval_s,
            "gaps": [list(gap) for gap in self.gaps],
            "received": list(self.received),
        }


@dataclass(frozen=True)
class MoveStory:
    """All that a page shows. `notes`: how and where it was measured."""

    cluster: str
    moves: Sequence[PastMove]
    jobs: Sequence[JobTrace] = ()
    notes: Sequence[str] = ()

    def data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "format": _FORMAT,
            "cluster": self.cluster,
            "moves": [move.data() for move in self.moves],
            "jobs": [job.data() for job in self.jobs],
            "notes": list(self.notes),
        }


def render_moves(story: MoveStory) -> str:
    """Return the whole page."""
    panels = [_actions(story.moves), _walls(story.jobs), _gaps(story.jobs), _bandwidth(story.jobs)]
    return render(
        "moves.html",
        story=story,
        sentence=_sentence(story),
        figures=[panel for panel in panels if panel is not None],
        tables=[grid for grid in (_move_grid(story.moves), _gap_grid(story.jobs)) if grid.rows],
    )


def write_story(story: MoveStory, folder: Path) -> Path:
    """Write moves.json and report.html, in place of earlier ones; return the page. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "moves.json", json.dumps(story.data(), indent=1) + "\n")
    page = folder / "report.html"
    replace_file(page, render_moves(story))
    return page


def _sentence(story: MoveStory) -> str:
    moves = story.moves
    if not moves:
        return f"{counted(len(story.jobs), 'job')} and no move recorded by a journal"
    moved = sum(move.moved is True for move in moves)
    stayed = sum(move.moved is False for move in moves)
    parts = [f"{counted(len(moves), 'move')}: {moved} reached the destination"]
    parts += [f"{stayed} stayed"] if stayed else []
    nr_open = len(moves) - moved - stayed
    parts += [f"{nr_open} without an end"] if nr_open else []
    return ", ".join(parts)


def _seconds(value: float | None) -> str:
    return "no end" if value is None else f"{value:.2f} s"


def _bar(label: str, style: str, values: Sequence[float]) -> ChartBar:
    middle, low, high = median(values), min(values), max(values)
    spread = f" ({low:.2f} to {high:.2f})" if len(values) > 1 else ""
    return ChartBar(label, style, middle, low, high, f"{middle:.2f} s{spread}")


def _bars(title: str, bars: Sequence[ChartBar], caption: str) -> Panel | None:
    charts = both(partial(bar_chart, title, [("", bars)]))
    return Panel(title, charts, caption) if charts else None


def _actions(moves: Sequence[PastMove]) -> Panel | None:
    times: dict[str, list[float]] = defaultdict(list)
    for move in moves:
        for one in move.actions:
            if one.seconds is not None:
                times[one.action.value].append(one.seconds)
    return _bars(
        "Time of each action of a move",
        [_bar(name, "auto", values) for name, values in times.items()],
        "Median of all tries of all moves, with the smallest and the largest value.",
    )


def _walls(jobs: Sequence[JobTrace]) -> Panel | None:
    bars = [_bar(job.name, _arm(n), [job.wall_s]) for n, job in enumerate(jobs)]
    return _bars(
        "Wall time of the same work", bars, "Each job has the same rounds and the same computation."
    )


def _gaps(jobs: Sequence[JobTrace]) -> Panel | None:
    bars = [_bar(job.name, _arm(n), [job.downtime_s]) for n, job in enumerate(jobs)]
    return _bars(
        "Downtime as the job sees it",
        bars,
        "The longest time between two messages of any pair, without the receiver's own computation.",
    )


def _arm(number: int) -> str:
    return f"arm-{number % _MOST_ARMS + 1}"


def _bandwidth(jobs: Sequence[JobTrace]) -> Panel | None:
    title = "Bandwidth over time"
    series = [Series(job.name, _arm(n), _marks(job)) for n, job in enumerate(jobs)]
    axis = Axis("time since the begin of the job in seconds", lambda ms: f"{ms / 1000:g}")
    draw = partial(
        line_chart, title, "MB/s, all ranks", series, lambda v: f"{v:g}", x_axis=axis, trace=True
    )
    charts = both(lambda layout: draw(layout=layout))
    return (
        Panel(title, charts, "Bytes that all ranks received in an interval, divided by its length.")
        if charts
        else None
    )


def _marks(job: JobTrace) -> tuple[Mark, ...]:
    """Return the rates of an interval, each at its middle."""
    marks = []
    for number, nr_bytes in enumerate(job.received):
        rate = nr_bytes / _MEGA / job.interval_s
        marks.append(Mark(round((number + 0.5) * job.interval_s * 1000), rate, rate, rate, ""))
    return tuple(marks)


def _move_grid(moves: Sequence[PastMove]) -> Grid:
    names = list(dict.fromkeys(one.action.value for move in moves for one in move.actions))
    rows = []
    for move in moves:
        times: dict[str, list[str]] = defaultdict(list)
        for one in move.actions:
            failed = f" (failed: {one.failure})" if one.failure else ""
            times[one.action.value].append(_seconds(one.seconds) + failed)
        began = move.actions[0].began
        end = {True: "moved", False: "stayed", None: "no end"}[move.moved]
        words = [
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began)),
            f"{move.source} to {move.target}",
            end,
            _seconds(move.seconds),
            *(", ".join(times[name]) for name in names),
        ]
        rows.append((GridCell(move.node), *(GridCell(text) for text in words)))
    columns = ("node", "begin (UTC)", "hosts", "end", "sum", *names)
    caption = "From the journal of the cluster. Several times of an action are several tries."
    return Grid("Moves", columns, tuple(rows), caption)


def _gap_grid(jobs: Sequence[JobTrace]) -> Grid:
    pairs = sorted({(sender, receiver) for job in jobs for sender, receiver, _ in job.gaps})
    found = [{(s, r): gap for s, r, gap in job.gaps} for job in jobs]
    rows = tuple(
        (
            GridCell(f"rank {pair[0]} to rank {pair[1]}"),
            *(GridCell(_seconds(gaps[pair]) if pair in gaps else "none") for gaps in found),
        )
        for pair in pairs
    )
    caption = "The longest time between two messages that a rank took from another one."
    return Grid("Longest gap of each pair", ("pair", *(job.name for job in jobs)), rows, caption)
