# SPDX-License-Identifier: Apache-2.0
"""Primary endpoints: chosen by names and sizes, decided as one family, and alone in the headline."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.evidence import Unit
from nearmetal.report.study_charts import bars, curves
from nearmetal.report.study_page import cards, overview, sentence
from nearmetal.report.study_view import Anchors, Judged, StudyView, study_view
from nearmetal.study.endpoints import conclude, with_endpoints
from nearmetal.study.judge import Comparison, Verdict, compare
from nearmetal.study.model import Arm, Cell, Observation, Point
from nearmetal.study.store import Study
from tests.python.study_shared import LOGS

TCP, NEAR = Arm("tcp", "container", "TCP", "near", 2), Arm("near", "container", "near", "near", 2)
TIME = Point("imb", "PingPong", "", 8, 2, 2, "time", Unit.MICROSECONDS)
RATE = TIME._replace(metric="bandwidth", unit=Unit.MEGABYTES_PER_SECOND)
SIZES = [0, *(1 << i for i in range(23))]
QUIET = [1.0, 1.01, 0.99, 1.02, 1.0, 0.98, 1.01, 0.97]


def cell(arm: Arm, point: Point, values: list[float]) -> Cell:
    seen = (Observation("r", i, None, v, f"{arm.name}{i}", 4) for i, v in enumerate(values))
    return Cell(arm.name, point, tuple(seen))


def judged(points: dict[Point, tuple[list[float], list[float]]]) -> list[Comparison]:
    """Compare the arms at points with the values of both."""
    sides = ((TCP, 0), (NEAR, 1))
    found = compare(*((arm, [cell(arm, p, v[i]) for p, v in points.items()]) for arm, i in sides))
    return with_endpoints(found)


def at(point: Point, factor: float) -> tuple[list[float], list[float]]:
    scale = 10.0 if point.lower_is_better else 1 / 10.0
    change = factor if point.lower_is_better else 1 / factor
    return [scale * v for v in QUIET], [scale * change * v for v in QUIET]


def chosen(found: list[Comparison]) -> set[Point]:
    return {one.point for one in found if one.primary}


def test_an_arm_25_times_faster_is_accepted_although_points_are_open() -> None:
    points: dict[Point, tuple[list[float], list[float]]] = {}
    for number in range(14):
        for size in SIZES:
            points[TIME._replace(test=f"Test{number}", size=size)] = at(TIME, 1 / 25)
    wild = [1.0, 40.0, 2.0, 900.0, 1.0, 3.0, 500.0, 2.0]
    for point in random.Random(3).sample([p for p in points if p.size not in (8, 1 << 20)], 10):
        points[point] = (QUIET, wild)
    points[RATE._replace(test="Uniband", size=0)] = ([0.0] * 8, [0.0] * 8)
    for size in SIZES[1:]:
        points[RATE._replace(test="Uniband", size=size)] = at(RATE, 1 / 25)
    found = judged(points)
    assert len(found) == len(points) - 1, "a bandwidth of zero bytes is no point"
    result = conclude(found)
    assert result.verdict is Verdict.ACCEPT
    assert (result.primary[Verdict.ACCEPT], result.primary.total()) == (30, 30)
    assert result.detail[Verdict.INCONCLUSIVE] == 10
    view = StudyView("s", TCP, (Judged(NEAR, tuple(found)),), (), (), {}, {})
    assert sentence(view) == (
        "Against tcp, near is within the margin at all 30 primary endpoints "
        "(other points: 10 INCONCLUSIVE, 319 ACCEPT)"
    )


def test_an_open_endpoint_opens_the_headline_and_a_worse_one_rejects_it() -> None:
    points = {TIME._replace(test=f"Test{n}"): at(TIME, 0.5) for n in range(12)}
    open_one, worse = TIME._replace(test="Test3"), TIME._replace(test="Test5")
    assert conclude(judged(points)).verdict is Verdict.ACCEPT
    assert conclude(judged(points | {open_one: at(TIME, 1.0)})).verdict is Verdict.INCONCLUSIVE
    assert conclude(judged(points | {worse: at(TIME, 2.0)})).verdict is Verdict.REJECT


def test_the_worst_loss_is_the_largest_whatever_its_verdict() -> None:
    """An open endpoint may have a larger loss than the one that is surely beyond the margin."""
    wild = ([10 * v for v in QUIET], [9.0, 30.0, 9.1, 31.0, 28.0, 29.0, 9.2, 28.5])
    points = {TIME._replace(test="Worse"): at(TIME, 1.6), TIME._replace(test="Open"): wild}
    found = tuple(judged(points))
    assert [one.verdict.value for one in found] == ["REJECT", "INCONCLUSIVE"]
    view = StudyView("s", TCP, (Judged(NEAR, found), Judged(NEAR, found)), (), (), {}, {})
    anchors = Anchors(view, [])
    grid = overview(view, anchors)
    assert grid is not None
    worst = grid.rows[1][3]
    assert worst.words == "+183 % (Open, time, 8 B, 2 nodes, 2 ranks, INCONCLUSIVE)"
    (note,) = cards(view, anchors)[0].notes[-1]
    assert note.startswith("Largest loss beyond the margin +60.0 % at Worse")


def test_endpoints_follow_from_names_and_sizes_alone() -> None:
    points = {TIME._replace(size=size): at(TIME, 1.0) for size in SIZES}
    points |= {
        TIME._replace(test="Alltoall", size=s, metric="time_mean"): at(TIME, 1) for s in SIZES
    }
    points |= {
        TIME._replace(test="Alltoall", size=s, metric="time_max"): at(TIME, 1) for s in SIZES
    }
    expected = {TIME._replace(size=size) for size in (8, 1 << 20)}
    expected |= {
        TIME._replace(test="Alltoall", size=size, metric="time_mean") for size in (8, 1 << 20)
    }
    assert chosen(judged(points)) == expected
    source = random.Random(8)
    for _ in range(5):
        noisy = {
            p: tuple([source.lognormvariate(0, 3) for _ in QUIET] for _ in "ab") for p in points
        }
        assert chosen(judged({p: (v[0], v[1]) for p, v in noisy.items()})) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((0, 1, 4, 16), {4}),
        ((1, 2, 64), {2}),
        ((4096, 65536), {65536}),
        ((1 << 18, 1 << 24), {1 << 18}),
        ((256, 1024), {256}),
        ((8, 1 << 20, 1 << 21), {8, 1 << 20}),
        ((None,), {None}),
    ],
)
def test_near_sizes_stand_for_those_of_the_rule(
    sizes: tuple[int | None, ...], expected: set[int | None]
) -> None:
    points = {TIME._replace(size=size): at(TIME, 1.0) for size in sizes}
    assert {point.size for point in chosen(judged(points))} == expected


def test_the_largest_scale_makes_the_headline() -> None:
    point = Point("gromacs", "gromacs", "", None, None, 1, "speed", Unit.NANOSECONDS_PER_DAY)
    points = {point._replace(nodes=n): at(point, 2.0 if n == 1 else 1 / 2) for n in (1, 2, 16)}
    found = judged(points)
    assert {p.nodes for p in chosen(found)} == {16}
    result = conclude(found)
    assert (result.verdict, result.detail[Verdict.REJECT]) == (Verdict.ACCEPT, 1)


def test_one_measurement_in_several_words_is_judged_once() -> None:
    points = {TIME: at(TIME, 1.0), RATE: at(RATE, 1.0)}
    points[TIME._replace(metric="time_max")] = at(TIME, 1.0)
    assert [one.point.metric for one in judged(points)] == ["time", "time_max"]
    assert [one.point.metric for one in judged({RATE: at(RATE, 1.0)})] == ["bandwidth"]


def test_six_launches_decide_any_number_of_endpoints() -> None:
    points = {
        TIME._replace(test=f"Test{n}"): ([10 * v for v in QUIET[:6]], [f * v for v in QUIET[:6]])
        for n in range(40)
        for f in (20.0 if n % 2 else 5.0,)
    }
    verdicts = [one.verdict for one in judged(points)]
    assert set(verdicts) == {Verdict.ACCEPT, Verdict.REJECT}


def test_the_chance_of_any_wrong_rejection_is_that_of_one_point() -> None:
    source, wrong = random.Random(12), 0
    for _ in range(300):
        points = {
            TIME._replace(test=f"Test{n}"): (
                [source.gauss(10, 0.5) for _ in range(8)],
                [source.gauss(10, 0.5) for _ in range(8)],
            )
            for n in range(10)
        }
        found = with_endpoints(
            compare(
                (TCP, [cell(TCP, p, v[0]) for p, v in points.items()]),
                (NEAR, [cell(NEAR, p, v[1]) for p, v in points.items()]),
                percent=0,
            )
        )
        wrong += conclude(found).verdict is Verdict.REJECT
    assert wrong / 300 < 0.03


LABELS = """\
format: 1
run: lammps
arms:
  bare-metal: {platform: bare metal, fabric: EFA, placement: block, cores_per_node: 48}
  usernetes: {platform: container, fabric: EFA, placement: block, cores_per_node: 44}
sources:
  - path: "lammps/{arm}_lammps-{nodes}-{ranks}-{launch}.out"
  - path: "**/*"
    ignore: not part of this study
"""


@pytest.fixture(scope="module")
def lammps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of real logs that print one loop time in four ways."""
    folder = tmp_path_factory.mktemp("lammps")
    (folder / "labels.yaml").write_text(LABELS)
    words = ["study", "import", str(LOGS / "apps"), "--labels", str(folder / "labels.yaml")]
    assert main([*words, "--output", str(folder / "s")]) == 0
    return folder / "s"


def test_aliases_of_a_loop_time_are_one_verdict_and_one_chart(lammps: Path) -> None:
    metrics = {cell.point.metric for cell in Study(lammps).cells(arm="usernetes")}
    assert {"loop_time", "steps", "atom_steps"} <= metrics
    view = study_view(Study(lammps), "bare-metal", ["usernetes"], percent=None, only=None)
    assert "loop_time" in {one.point.metric for one in view.comparisons}
    assert not {"steps", "atom_steps", "speed", "hours_per_ns"} & {
        one.point.metric for one in view.comparisons
    }
    assert [one.point.metric for one in view.comparisons if one.primary] == ["loop_time"]
    anchors = Anchors(view, [])
    assert len([*curves(view, anchors), *bars(view, anchors)]) <= len(view.comparisons)


def test_judge_shows_the_headline(lammps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "judge", str(lammps), "bare-metal", "usernetes"]) == 4
    out = capsys.readouterr().out
    assert "REJECT: 1 of 1 primary endpoints decided" in out
    assert main(["study", "judge", str(lammps), "bare-metal", "usernetes", "--json"]) == 4
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "REJECT"
    assert [c["metric"] for c in data["comparisons"] if c["endpoint"]] == ["loop_time"]
