# SPDX-License-Identifier: Apache-2.0
"""Flags: rare where launches are alike, in a whole study; present where launches really differ."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.evidence.parse import parse_log
from nearmetal.study.flags import (
    FAMILY_ERROR,
    FlagKind,
    flags,
    not_normal,
    outliers,
    resolution,
    student_tail,
)
from tests.python.study_shared import LOGS

if TYPE_CHECKING:
    from collections.abc import Callable

LAUNCHES = Path(__file__).parents[1] / "data/flags/launches.csv"
NULLS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda r: r.gauss(100, 1),
    "log-normal, mild skew": lambda r: r.lognormvariate(1, 0.1),
    "log-normal, strong skew": lambda r: r.lognormvariate(1, 0.7),
    "rounded finely": lambda r: round(r.gauss(7.5, 0.03), 2),
    "rounded to ties": lambda r: round(r.gauss(7.503, 0.008), 2),
    "MAD is zero": lambda r: round(r.gauss(7.501, 0.003), 2),
    "rounded to halves": lambda r: round(r.gauss(20, 0.4) * 2) / 2,
    "rounded to eighths": lambda r: round(r.lognormvariate(2, 0.1) * 8) / 8,
    "rounded log-normal": lambda r: round(r.lognormvariate(1, 0.3), 1),
}


def flagged(draw: Callable[[random.Random], float], cells: int, number: int, seed: str) -> int:
    """Return how many of `number` cells are flagged in a study of `cells` cells."""
    source = random.Random(seed)
    return sum(
        bool(flags([draw(source) for _ in range(source.randint(6, 30))], cells))
        for _ in range(number)
    )


@pytest.mark.parametrize("cells", [1, 20, 500])
@pytest.mark.parametrize("null", NULLS)
def test_a_study_of_alike_launches_has_a_flag_in_at_most_one_case_of_twenty(
    null: str, cells: int
) -> None:
    # 1,000 cells hold 1,000 / cells studies. The bound: the mean and three standard deviations.
    number = 1000
    studies = number / cells
    allowed = studies * FAMILY_ERROR + 3 * (studies * FAMILY_ERROR) ** 0.5
    assert flagged(NULLS[null], cells, number, f"{null} {cells}") <= allowed


@pytest.mark.parametrize("null", ["normal", "rounded to ties", "log-normal, mild skew"])
def test_whole_studies_whose_cells_share_their_launches(null: str) -> None:
    # A slow launch is slow in all its sizes: the cells are related, the bound holds.
    source, wrong, studies = random.Random(null), 0, 60
    for _ in range(studies):
        offsets = [NULLS[null](source) for _ in range(10)]
        cells = [[round(base * value, 2) for value in offsets] for base in range(1, 25)]
        wrong += any(flags(cell, len(cells)) for cell in cells)
    assert wrong <= studies * FAMILY_ERROR + 3 * (studies * FAMILY_ERROR) ** 0.5


def test_small_studies_of_normal_launches_use_the_error_that_they_have() -> None:
    # The bound is not empty: a few of 1,000 studies with one cell do get a flag.
    assert 5 <= flagged(NULLS["normal"], 1, 1000, "power") <= 60


def test_student_tail() -> None:
    # closed forms: Cauchy for one degree of freedom, 1 - t / sqrt(2 + t^2) for two
    assert student_tail(12.7062047, 1) == pytest.approx(0.05, rel=1e-6)
    assert student_tail(4.30265273, 2) == pytest.approx(0.05, rel=1e-6)
    assert student_tail(1e4, 2) == pytest.approx(1e-8, rel=1e-4)
    assert student_tail(2.04227246, 30) == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([7.46, 7.49, 7.47], 0.01),
        ([7.5, 8.0, 7.0], 0.5),
        ([0.125, 0.375, 3.0], 0.125),
        ([round(v / 0.05) * 0.05 for v in (1.03, 2.17, 9.94)], 0.05),
        ([1200.0, 1300.0], 100.0),
        ([0.0, 0.0], 0.0),
    ],
)
def test_the_grid_of_values(values: list[float], step: float) -> None:
    assert resolution(values) == pytest.approx(step)


def test_flags_name_the_launches_and_remove_none() -> None:
    steady = [10.0, 10.02, 9.99, 10.01, 10.03, 9.98, 10.0, 10.01, 9.97, 10.02]
    assert flags(steady) == ()
    kinds = {flag.kind: flag for flag in flags([40.0, *steady], 500)}
    assert kinds[FlagKind.OUTLIER].launches == (0,)
    assert FlagKind.FIRST_LAUNCH in kinds
    assert "40 far from the median" in kinds[FlagKind.OUTLIER].reason
    assert FlagKind.FIRST_LAUNCH not in {f.kind for f in flags([*steady, 40.0])}
    rising = [1.0 + i / 50 for i in range(12)]
    assert FlagKind.DRIFT in {f.kind for f in flags(rising, 500)}
    assert FlagKind.DRIFT not in {f.kind for f in flags(rising[:8], 500)}  # 8! orders are too few


def test_five_published_loop_times_of_lammps() -> None:
    times = [15.71, 14.07, 14.04, 38.28, 14.07]
    (flag,) = flags(times, 2)
    assert (flag.kind, flag.launches) == (FlagKind.OUTLIER, (3,))
    assert flags(times, 500) == ()  # five launches cannot show that much


def test_two_outliers_do_not_mask_each_other() -> None:
    steady = [10.0 + 0.013 * (i * 7 % 11) for i in range(18)]
    assert outliers([*steady, 40.0, 40.0], 1e-5) == (18, 19)
    assert outliers([*steady, 40.0, 1.0], 1e-5) == (18, 19)


def test_a_shape_that_neither_null_explains() -> None:
    uneven = [exp(exp(i / 6)) for i in range(20)]
    assert not_normal(uneven) is not None
    assert not_normal([5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.01]) is None


def test_thousands_of_values_are_judged() -> None:
    draw = random.Random(7)
    steady = [draw.gauss(100, 1) for _ in range(2000)]
    assert outliers(steady) == ()
    assert outliers([*steady, 110.0]) == (2000,)


def test_real_outliers_stay_flagged_in_a_study_of_hundreds_of_cells() -> None:
    with LAUNCHES.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == 7
    for arm, test, size, expected, *values in rows:
        kinds = {flag.kind.value for flag in flags([float(v) for v in values], 250)}
        assert kinds == set(filter(None, expected.split("+"))), (arm, test, size)


def test_real_outliers_of_repeated_osu_runs() -> None:
    cells: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for arm in ("bare-metal", "usernetes"):
        for test in ("osu_latency", "osu_bw"):
            for launch in range(1, 21):
                file = LOGS / f"osu_repeats/{arm}/{test}-{launch}.out"
                log = parse_log(file.read_text(encoding="utf-8"), file.name, "osu")
                for row in log.tables[0].rows:
                    values = row.values
                    value = next(v for name, v in values.items() if name != "size")
                    cells[arm, test, int(values["size"])].append(value)
    found = {
        key: {launch for flag in flags(values, len(cells)) for launch in flag.launches}
        for key, values in cells.items()
        if flags(values, len(cells))
    }
    assert not [key for key in found if key[0] == "bare-metal"]
    # four launches had a fifth less latency at every size up to 1 MiB: numbers 2, 10, 11, 12
    slow = [key for key in cells if key[:2] == ("usernetes", "osu_latency") and key[2] <= 1 << 20]
    assert all(found[key] == {1, 9, 10, 11} for key in slow)
    # two launches had a tenth more bandwidth: numbers 12 and 14
    bandwidths = [found[key] for key in found if key[1] == "osu_bw"]
    assert len(bandwidths) > 5
    assert {11, 13} in bandwidths
