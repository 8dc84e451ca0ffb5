# SPDX-License-Identifier: Apache-2.0
"""The expected tax of an application: the model on made numbers, and the verb on real profiles."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.main import main
from nearmetal.core.errors import NearmetalError
from nearmetal.evidence import Unit
from nearmetal.evidence.model import Setup
from nearmetal.evidence.profiles import CallUse, Profile, SizedCalls
from nearmetal.study.curves import Curves, curves_of
from nearmetal.study.judge import compare
from nearmetal.study.model import Arm, Cell, Observation, Point
from nearmetal.study.predict import Prediction, predict
from nearmetal.study.ratios import ratio
from tests.python.study_shared import DATA

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.study.judge import Comparison

PROFILES = DATA / "profiles"
BASE = Arm("base", "bare metal", "IB", "near", 48)
TEST = Arm("test", "VM", "IB", "near", 48)
STEADY = [1.0, 1.01, 0.99, 1.02, 1.0, 0.98, 1.01, 1.0]
SIZES = [1 << i for i in range(21)]


def point(test: str, size: int | None, ranks: int = 2) -> Point:
    return Point("imb", test, "", size, ranks, 2, "time_mean", Unit.MICROSECONDS)


def cell(arm: Arm, place: Point, values: list[float]) -> Cell:
    seen = (Observation("r", i, None, v, f"{arm.name}{i}", 4) for i, v in enumerate(values))
    return Cell(arm.name, place, tuple(seen))


def compared(
    test: str = "PingPong",
    factor: float = 2.0,
    *,
    ranks: int = 2,
    sizes: list[int] | None = None,
    noise: list[float] = STEADY,
) -> list[Comparison]:
    """Return the comparison of a benchmark: 1 µs and 1 ns a byte in the base, `factor` in the test."""
    sides: list[list[Cell]] = [[], []]
    for size in SIZES if sizes is None else sizes:
        micros = 1.0 + 0.001 * size
        place = point(test, size, ranks)
        for side, arm, scale in zip(sides, (BASE, TEST), (1.0, factor), strict=True):
            side.append(cell(arm, place, [micros * scale * v for v in noise]))
    return compare((BASE, sides[0]), (TEST, sides[1]))


def curves(*found: list[Comparison]) -> Curves:
    return curves_of(one for group in found for one in group)


def use(call: str, count: float, seconds: float | None, size: float | None = 0.0) -> CallUse:
    return CallUse(call, count, seconds, (SizedCalls(size, count),), 1)


def profile(*calls: CallUse, seconds: float | None = 2.0, ranks: int | None = 2) -> Profile:
    return Profile("f", "mpip", ranks, seconds, calls)


def limits(made: Prediction) -> tuple[float, float, float]:
    assert made.tax is not None
    return (made.tax.low, made.tax.expected, made.tax.high)


def test_counts_cost_what_the_benchmark_says() -> None:
    # 1000 messages of 1 ms are 1 s of the 2 * 5 s of both ranks; twice that is 10 % more.
    found = profile(use("messages", 1000, None, 999_000), seconds=None)
    low, expected, high = limits(predict(found, curves(compared()), seconds=5.0))
    assert expected == pytest.approx(10, rel=0.02)
    # Hidden behind computation, they cost nothing. At worst both ranks wait for each.
    assert low == 0.0
    assert 20 < high < 22


def test_waiting_stays_and_messages_change() -> None:
    # 0.1 s of messages, and 0.9 s of waiting for the other rank.
    found = profile(use("Send", 100_000, 1.0, 0.0))
    low, expected, high = limits(predict(found, curves(compared(factor=1.5))))
    assert expected == pytest.approx(2.5, rel=0.02)
    assert low == 0.0
    assert 25 < high < 28


def test_messages_never_take_longer_than_the_time_in_mpi() -> None:
    # The benchmark says 1 s, the profile 0.2 s: the rest was hidden, and may not be again.
    found = profile(use("Isend", 1_000_000, 0.2, 0.0), use("Waitall", 10, 0.0))
    _, expected, high = limits(predict(found, curves(compared(factor=1.5))))
    assert expected == pytest.approx(5, rel=0.02)
    assert 25 < high < 28


def test_communication_beyond_the_run_time_cannot_be_hidden() -> None:
    # 1.6 s of 2 s, five times as long: at least 8 s of 2 s, also if all of it is hidden.
    found = profile(use("messages", 1_600_000, None, 0.0), seconds=None)
    low, expected, _ = limits(predict(found, curves(compared(factor=5.0)), seconds=1.0))
    assert expected == pytest.approx(320, rel=0.02)
    assert 285 < low < 300


def test_a_faster_arm_has_a_negative_tax() -> None:
    found = profile(use("Allreduce", 100_000, 1.0, 0.0))
    both = curves(compared("Allreduce", 0.5))
    low, expected, high = limits(predict(found, both))
    assert expected == pytest.approx(-2.5, rel=0.02)
    assert high == 0.0
    assert -27 < low < -24


def test_the_interval_is_that_of_all_sizes_together() -> None:
    draw = random.Random(1)
    noise = [draw.uniform(0.9, 1.1) for _ in range(10)]
    (group,) = predict(
        profile(*(use("Allreduce", 10, 0.09, size) for size in SIZES)),
        curves(compared("Allreduce", 2.0, noise=noise)),
    ).groups
    assert group.cost is not None
    expected = ratio([2 * v for v in noise], noise)
    assert expected is not None
    assert group.cost.ratio == pytest.approx(expected)


def test_times_between_two_sizes_lie_between_their_times() -> None:
    (curve,) = curves(compared(sizes=[1, 1024, 1 << 20])).by_test["PingPong"]
    costs = [curve.cost([(size, 1.0)]).seconds for size in (0, 1, 2, 512, 1024, 4096, 1 << 20)]
    assert costs == sorted(costs)
    assert costs[0] == costs[1]
    assert curve.cost([(1 << 22, 1.0)]).seconds == pytest.approx(4 * costs[-1])


def test_a_share_without_a_benchmark_is_told_and_limited() -> None:
    calls = [use("Send", 1000, 0.95), use("Comm_dup", 4, 0.05), use("Init", 2, 5.0)]
    found = profile(*calls, seconds=20.0)
    made = predict(found, curves(compared()))
    assert made.tax is not None
    assert made.unmapped_percent == pytest.approx(5)
    assert [(g.name, g.why) for g in made.groups if g.why] == [
        ("Comm_dup", "the study has no benchmark for it")
    ]
    made = predict(found, curves(compared()), most_unmapped=4)
    assert made.tax is None
    assert made.why.startswith(
        "no benchmark stands for 5 % of the time in MPI, at most 4 % may lack one: Comm_dup"
    )


@pytest.mark.parametrize(
    ("calls", "found", "why"),
    [
        (
            [use("Allreduce", 1, 1.0)],
            compared("Allreduce", ranks=4),
            "Allreduce has 4 ranks, the profile 2",
        ),
        (
            [use("Send", 1, 1.0, 1 << 23)],
            compared(),
            "messages of 8388608 bytes, PingPong ends at 1048576",
        ),
        (
            [use("Send", 1, 1.0, 8)],
            compared(sizes=[1024, 4096]),
            "messages of 8 bytes, PingPong begins at 1024",
        ),
        ([use("Send", 1, 1.0)], compared(noise=STEADY[:5]), "fewer than 6 launches of an arm"),
        ([use("Start", 1, 1.0)], compared(), "the study has no benchmark"),
        ([CallUse("Waitall", 1, 1.0, (), 1)], compared(), "no sizes of the messages"),
        ([use("Reduce_scatter", 1, 1.0)], compared(), "the study has no benchmark"),
    ],
)
def test_what_has_no_benchmark_is_not_predicted(
    calls: list[CallUse], found: list[Comparison], why: str
) -> None:
    made = predict(profile(*calls), curves(found))
    assert made.tax is None
    assert why in made.why


def test_arms_that_are_not_comparable_are_not_predicted() -> None:
    places = [point("PingPong", 8)._replace(setup=Setup(buffers=b)) for b in ("host", "device")]
    sides = [[cell(arm, at, STEADY)] for arm, at in zip((BASE, TEST), places, strict=True)]
    found = compare((BASE, sides[0]), (TEST, sides[1]))
    made = predict(profile(use("Send", 1, 1.0)), curves(found))
    assert made.tax is None
    assert "PingPong: the arms are not comparable" in made.why


def test_messages_of_unknown_size_have_the_ratios_of_all_sizes() -> None:
    near = compared(sizes=[1], factor=3.0)
    far = compared(sizes=[1 << 20], factor=1.2)
    (group,) = predict(profile(use("Send", 100, 1.0, None)), curves([*near, *far])).groups
    assert group.cost is not None
    low, high = group.cost.ratio.low, group.cost.ratio.high
    assert low is not None
    assert high is not None
    assert 1.1 < low < 1.2
    assert 3.0 < high < 3.3


def test_the_run_time_must_be_known_and_hold_the_time_in_mpi() -> None:
    found = profile(use("Send", 1, None), seconds=None)
    with pytest.raises(NearmetalError, match="f has no run time"):
        predict(found, curves(compared()))
    with pytest.raises(NearmetalError, match="f has no number of ranks"):
        predict(replace(found, ranks=None), curves(compared()), seconds=1.0)
    with pytest.raises(NearmetalError, match="f has 2 ranks, not 3"):
        predict(found, curves(compared()), seconds=1.0, ranks=3)
    with pytest.raises(NearmetalError, match="more time in MPI than the run time"):
        predict(profile(use("Send", 1, 3.0)), curves(compared()))


LABELS = """\
format: 1
run: lab
arms:
  a: {platform: bare metal, fabric: IB, placement: near}
  b: {platform: VM, fabric: IB, placement: near}
sources:
  - path: "{arm}/osu_{_}-{launch}.out"
    nodes: 2
    ranks: 2
"""

OTHERS = {
    "allreduce": "Allreduce",
    "bcast": "Broadcast",
    "barrier": "Barrier",
    "reduce": "Reduce",
}


def osu(test: str, first: float) -> str:
    if test == "latency":
        rows = "".join(f"{1 << i:<10}{first + 0.0001 * (1 << i):>18.2f}\n" for i in range(21))
        return f"# OSU MPI Latency Test v5.8\n# Size          Latency (us)\n{rows}"
    title = f"# OSU MPI {OTHERS[test]} Latency Test v5.8\n"
    if test == "barrier":
        return f"{title}# Avg Latency(us)\n{2 * first:>18.2f}\n"
    rows = "".join(f"{1 << i:<10}{2 * first + i:>18.2f}\n" for i in range(2, 10))
    return f"{title}# Size       Avg Latency(us)\n{rows}"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    for arm, first in (("a", 1.0), ("b", 3.0)):
        (folder / "logs" / arm).mkdir(parents=True)
        for test in ("latency", *OTHERS):
            for launch in range(6):
                text = osu(test, first * (1 + launch / 100))
                (folder / "logs" / arm / f"osu_{test}-{launch}.out").write_text(text)
    (folder / "logs" / "study-labels.yaml").write_text(LABELS)
    assert main(["study", "import", str(folder / "logs"), "--output", str(folder / "s")]) == 0
    return folder / "s"


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("lammps.mpiP", ()),
        ("lammps.ipm.xml", ()),
        ("lammps.ipm.txt", ()),
        ("openmpi-monitoring", ("--seconds", "2.7")),
    ],
)
def test_the_verb_predicts_from_each_profile(
    name: str, more: tuple[str, ...], study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "predict", str(PROFILES / name), str(study), "a", "b", *more]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tax = found["tax_percent"]
    assert tax["low"] <= tax["value"] <= tax["high"]
    assert found["ranks"] == 2
    (pairs,) = [g for g in found["groups"] if g["group"] == "point-to-point"]
    assert pairs["benchmark"] == "osu_latency"
    assert pairs["count"] >= 4060
    if "txt" not in name:
        # 4060 messages of 30 kB: 4 µs and 6 µs a message, of 5.5 s to 6.4 s.
        assert 0.1 < tax["value"] < 0.3
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert f"expected tax of b against a: {tax['value']:+.1f} % of the run time" in shown
    assert "osu_latency" in shown


def test_the_verb_says_what_it_cannot_predict(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = re.sub(r"(?m)^Send ", "Win_fence ", (PROFILES / "lammps.mpiP").read_text())
    (tmp_path / "p.mpiP").write_text(text)
    words = ["study", "predict", str(tmp_path / "p.mpiP"), str(study), "a", "b"]
    assert main(words) == 4
    out = capsys.readouterr().out
    assert "NOT PREDICTABLE: no benchmark stands for 98 % of the time in MPI" in out
    assert "Win_fence" in out
    assert main([*words, "--most-unmapped", "100"]) == 0
    capsys.readouterr()
    assert (
        main(["study", "predict", str(PROFILES / "openmpi-monitoring"), str(study), "a", "b"]) == 1
    )
    assert "has no run time" in capsys.readouterr().err
    assert main(["study", "predict", str(tmp_path), str(study), "a", "b"]) == 1
    assert "has no file *.prof" in capsys.readouterr().err
    assert main(["study", "predict", str(tmp_path / "none"), str(study), "a", "b"]) == 1
    assert "cannot read" in capsys.readouterr().err
    for wrong in (["--seconds", "0"], ["--ranks", "-1"], ["--most-unmapped", "101"]):
        assert main([*words, *wrong]) == 2


def test_a_file_of_a_directory_is_no_link(study: Path, tmp_path: Path) -> None:
    for path in (PROFILES / "openmpi-monitoring").iterdir():
        (tmp_path / path.name).symlink_to(path)
    words = ["study", "predict", str(tmp_path), str(study), "a", "b", "--seconds", "1"]
    assert main(words) == 1
