# SPDX-License-Identifier: Apache-2.0
"""The moves that a journal holds, and their page."""

from __future__ import annotations

import html
import json
import random
import re
import time
from argparse import Namespace
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nearmetal.cli import move as move_verbs
from nearmetal.cluster.move.engine import Mover
from nearmetal.cluster.move.history import PastAction, PastMove, past_moves
from nearmetal.cluster.move.phases import MoveAction
from nearmetal.cluster.move.record import MoveRecords
from nearmetal.core.errors import UsageError
from nearmetal.core.journal import Event, Journal, Record
from nearmetal.report.move_page import JobTrace, MoveStory, render_moves, write_story
from tests.python.test_move_engine import MOVE, Killed, World

FORWARD = [
    MoveAction.PREPARE,
    MoveAction.QUIESCE,
    MoveAction.DETACH,
    MoveAction.MIGRATE,
    MoveAction.ATTACH,
    MoveAction.RESUME,
    MoveAction.RELEASE,
]


def engine(folder: Path, world: World) -> Mover:
    return Mover(world, Journal(folder), pause_s=0)


def world_in(folder: Path, at: int = -1) -> World:
    return World(MoveRecords(folder), at)


def names(move: PastMove) -> list[MoveAction]:
    return [one.action for one in move.actions]


def test_each_action_of_a_move_is_found_with_its_time(tmp_path: Path) -> None:
    engine(tmp_path, world_in(tmp_path)).move(MOVE)
    (found,) = past_moves(Journal(tmp_path).read())
    assert (found.node, found.source, found.target, found.moved) == ("n1", "h1", "h2", True)
    assert names(found) == FORWARD
    assert all(one.seconds is not None and not one.failure for one in found.actions)


def test_a_move_that_stayed_has_its_failure(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    world.stuck = MoveAction.MIGRATE
    engine(tmp_path, world).move(MOVE)
    (found,) = past_moves(Journal(tmp_path).read())
    assert found.moved is False
    (failed,) = (one for one in found.actions if one.failure)
    assert (failed.action, failed.failure) == (MoveAction.MIGRATE, "migrate is not possible")
    assert names(found)[-1] is MoveAction.GIVE_UP


@pytest.mark.parametrize("at", range(8))
def test_a_killed_move_and_its_completion_are_one_move(tmp_path: Path, at: int) -> None:
    world = world_in(tmp_path, at)
    world.how = Killed
    with pytest.raises(Killed):
        engine(tmp_path, world).move(MOVE)
    (half,) = past_moves(Journal(tmp_path).read())
    assert half.moved is None
    assert half.actions[-1].seconds is None
    world.at = -1
    engine(tmp_path, world).complete()
    (found,) = past_moves(Journal(tmp_path).read())
    assert found.moved is (world.machine["h2"].value == "running")
    assert [one for one in found.actions if one.seconds is None] == [half.actions[-1]]


def record(time_s: float, step: str, event: str, detail: str = "", verb: str = "migrate") -> Record:
    return Record(time_s, verb, step, event, detail)


def test_moves_at_the_same_time_are_kept_apart() -> None:
    records = [
        record(10, "node n1: migrate", "begin", "from h1 to h2"),
        record(11, "node n2: migrate", "begin", "from h1 to h3"),
        record(14, "node n2: migrate", "done"),
        record(15, "node n1: migrate", "done"),
    ]
    first, second = past_moves(records)
    assert (first.node, first.seconds) == ("n1", 5)
    assert (second.node, second.target, second.seconds) == ("n2", "h3", 3)


def test_a_move_whose_end_is_missing_does_not_take_the_next_one() -> None:
    records = [
        record(1, "node n1: prepare the destination", "begin", "from h1 to h2"),
        record(2, "node n1: prepare the destination", "done"),
        record(3, "node n1: migrate", "begin", "from h1 to h2"),
        record(50, "node n1: prepare the destination", "begin", "from h1 to h2"),
        record(51, "node n1: prepare the destination", "done"),
        record(60, "node n1: prepare the destination", "begin", "from h2 to h1"),
    ]
    assert [len(move.actions) for move in past_moves(records)] == [2, 1, 1]


@pytest.mark.parametrize(
    "other",
    [
        record(1, "node n1: migrate", "begin", "from h1 to h2", verb="up"),
        record(1, "node n1: explode", "begin", "from h1 to h2"),
        record(1, "node n1: migrate", "begin", "of an earlier release"),
        record(1, "node n1: migrate", "done"),
        record(1, "node N1\n: migrate", "begin", "from h1 to h2"),
    ],
)
def test_other_records_are_no_moves(other: Record) -> None:
    assert past_moves([other]) == []


def test_a_clock_that_is_set_back_gives_no_negative_time() -> None:
    records = [
        record(100, "node n1: migrate", "begin", "from h1 to h2"),
        record(90, "node n1: migrate", "done"),
    ]
    assert past_moves(records)[0].actions[0].seconds == 0


def test_an_end_that_is_recorded_twice_counts_once() -> None:
    records = [
        record(1, "node n1: migrate", "begin", "from h1 to h2"),
        record(3, "node n1: migrate", "done"),
        record(90, "node n1: migrate", "done"),
        record(95, "node n1: migrate", "failed", "late"),
    ]
    (found,) = past_moves(records)
    assert found.actions == [PastAction(MoveAction.MIGRATE, 1, 2)]


def test_any_order_of_records_is_read() -> None:
    """Lines may be lost, doubled or of several commands: then times are missing, and no more."""
    choose = random.Random(7)
    steps = [f"node n{number}: {action.value}" for number in (1, 2) for action in MoveAction]
    for _ in range(300):
        records = [
            record(
                number,
                choose.choice(steps),
                choose.choice(["begin", "done", "failed", "?"]),
                choose.choice(["from h1 to h2", "from h2 to h1", "", "no"]),
            )
            for number in range(40)
        ]
        found = past_moves(records)
        tries = [one for move in found for one in move.actions]
        begun = [r for r in records if r.event == "begin" and r.detail.startswith("from")]
        assert len(tries) == len(begun)
        assert all(one.seconds is None or 0 <= one.seconds < 40 for one in tries)
        render_moves(MoveStory("c", found))


def test_a_long_journal_is_read_in_time(tmp_path: Path) -> None:
    line = json.dumps(asdict(record(1, "node n1: migrate", "begin", "from h1 to h2"))) + "\n"
    Journal(tmp_path).path.write_text(line * 100_000)
    began = time.process_time()
    (found,) = past_moves(Journal(tmp_path).read())
    assert len(found.actions) == 100_000
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "values",
    [
        {"step": 7},
        {"detail": None},
        {"detail": ["from h1 to h2"]},
        {"verb": {}},
        {"event": 1},
        {"time_s": "1"},
        {"time_s": True},
        {"time_s": None},
        {"time_s": -1},
        {"time_s": 1e300},
        {"time_s": float("nan")},
        {"time_s": float("inf")},
        {"detail": "\ud800"},
        {"more": 1},
    ],
)
def test_a_damaged_record_is_left_out(tmp_path: Path, values: dict[str, Any]) -> None:
    good = asdict(record(1, "node n1: migrate", "begin", "from h1 to h2"))
    lines = [json.dumps(good | values), json.dumps(good | {"time_s": 2}), "[" * 100_000]
    Journal(tmp_path).path.write_text("\n".join(lines))
    assert [one.time_s for one in Journal(tmp_path).read()] == [2]


def test_a_record_after_one_that_was_cut_short_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("migrate", "node n1: migrate", Event.BEGIN, "from h1 to h2")
    journal.path.write_bytes(journal.path.read_bytes()[:-9])
    journal.write("migrate", "node n1: migrate", Event.FAILED, "bytes \udcff of a program")
    (found,) = journal.read()
    assert (found.event, found.detail) == ("failed", "bytes ? of a program")


STORY = MoveStory(
    "c<1>",
    [
        PastMove("n1", "h1", "h2", [PastAction(MoveAction.MIGRATE, 0.0, 4.0)], moved=True),
        PastMove(
            "n1", "h2", "h1", [PastAction(MoveAction.MIGRATE, 60.0, 8.0, "<lost>")], moved=False
        ),
    ],
    (
        JobTrace("no migration", 10.0, ((0, 1, 0.1), (1, 0, 0.2)), 0.5, (1_000_000,) * 20),
        JobTrace("PE", 15.0, ((0, 1, 3.5),), 0.5, (1_000_000, 0, 0, 1_000_000), 6.0),
    ),
    ("a load of 3 & more",),
)


def test_the_page_has_times_gaps_and_bandwidth() -> None:
    page = render_moves(STORY)
    assert "2 moves: 1 reached the destination, 1 stayed" in page
    assert "6.00 s (4.00 to 8.00)" in page
    assert "c&lt;1&gt;" in page
    assert "&lt;lost&gt;" in page
    assert "a load of 3 &amp; more" in page
    for title in (
        "Time of each action of a move",
        "Wall time of the same work",
        "Downtime as the job sees it",
        "Bandwidth over time",
    ):
        assert f"<h2>{title}</h2>" in page
    # The pair that PE did not report has no number there.
    assert re.search(r"rank 1 to rank 0</th><td>0\.20 s</td><td>none</td>", page)


def test_time_runs_evenly_from_zero_in_a_trace() -> None:
    page = render_moves(STORY)
    lines = re.findall(r'<polyline class="line arm-(\d)" points="([^"]*)"', page)
    places = [[tuple(map(float, p.split(","))) for p in points.split()] for _, points in lines]
    first, second = places[:2]
    steps = {round(b[0] - a[0], 0) for a, b in pairwise(first)}
    assert max(steps) - min(steps) <= 1
    # No byte came in two intervals: they lie on the axis, below all others.
    assert second[1][1] == second[2][1] > second[0][1] == second[3][1]


@pytest.mark.parametrize("received", [(), (0, 0, 0), (0,), (5,), (1 << 63,) * 4000])
def test_any_trace_can_be_drawn(received: tuple[int, ...]) -> None:
    page = render_moves(MoveStory("c", [], (JobTrace("PE", 0.0, ((0, 1, 0.0),), 0.5, received),)))
    assert ("<h2>Bandwidth over time</h2>" in page) == bool(received)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)


def test_a_page_without_moves_says_so(tmp_path: Path) -> None:
    page = write_story(MoveStory("c", []), tmp_path / "new" / "folder")
    assert "No move is recorded." in page.read_text()
    assert json.loads((page.parent / "moves.json").read_text())["moves"] == []


def test_the_data_has_all_values(tmp_path: Path) -> None:
    write_story(STORY, tmp_path)
    data = json.loads(write_story(STORY, tmp_path).with_name("moves.json").read_text())
    assert data["jobs"][1]["downtime_s"] == 3.5
    assert data["jobs"][1]["move_s"] == 6.0
    assert data["moves"][1]["actions"][0]["failure"] == "<lost>"


def test_the_command_writes_the_moves_of_the_journal(tmp_path: Path) -> None:
    engine(tmp_path, world_in(tmp_path)).move(MOVE)
    said: list[str] = []
    cluster = SimpleNamespace(name="c", journal=Journal(tmp_path))
    view = SimpleNamespace(note=said.append)
    move_verbs._write_report(cast("Any", cluster), tmp_path / "out", cast("Any", view))
    assert said == [f"report: {tmp_path}/out/report.html"]
    (found,) = json.loads((tmp_path / "out" / "moves.json").read_text())["moves"]
    assert (found["node"], found["moved"]) == ("n1", True)


@pytest.mark.parametrize("reason", ["</td><script>x()</script>", "a\nb\x1b[31m", "\u202e{{ 1 }}"])
def test_a_reason_stays_text(tmp_path: Path, reason: str) -> None:
    moves = [PastMove("n1", "h1", "h2", [PastAction(MoveAction.MIGRATE, 0.0, 4.0, reason)])]
    page = write_story(MoveStory("c", moves), tmp_path)
    assert html.escape(f"(failed: {reason})") in page.read_bytes().decode()
    (found,) = json.loads((tmp_path / "moves.json").read_text())["moves"]
    assert found["actions"][0]["failure"] == reason


def test_a_report_that_cannot_be_written_stops_the_move_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(UsageError, match="--report: cannot write into"):
            move_verbs._make_folder(folder)
    there = tmp_path / "there"
    there.mkdir()
    (there / "other").touch()
    move_verbs._make_folder(there)
    assert [path.name for path in there.iterdir()] == ["other"]


def test_a_report_of_a_plan_is_refused() -> None:
    args = Namespace(node="n1", to="h2", spec="none.yaml", plan=True, report="out")
    with pytest.raises(UsageError, match="--plan makes no move"):
        move_verbs.on_migrate(args, cast("Any", None))
