# SPDX-License-Identifier: Apache-2.0
"""The energy of a launch: which counters count, their end of range, and every reason for no sum."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from nearmetal.core.errors import CommandError
from nearmetal.core.process import Command, Completed, LocalRunner
from nearmetal.evidence import Unit
from nearmetal.report.study_tables import energy_grid, launches_grid
from nearmetal.report.study_view import Judged, StudyView
from nearmetal.study.model import JOULES, LAUNCH, Arm, Cell, Observation, Point, SourceFile
from nearmetal.study.runner.energy import (
    SCRIPT,
    Energy,
    Meter,
    Reading,
    Zone,
    meter,
    parse_counters,
    read_hosts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nearmetal.cluster.backend import Backend

BOOT = "3b241101-e2bb-4255-8caf-4136c566a962"
OTHER = "3b241101-e2bb-4255-8caf-4136c566a963"
RANGE = 262_143_328_850
"""The range that Intel's servers show, in microjoules."""

TREE: Mapping[str, tuple[str, str]] = {
    "intel-rapl:0": ("package-0", "1000000"),
    "intel-rapl:0:0": ("core", "500000"),
    "intel-rapl:0:1": ("dram", "250000"),
    "intel-rapl:1": ("package-1", "2000000"),
    "intel-rapl:2": ("psys", "9000000"),
    "intel-rapl-mmio:0": ("package-0", "1000000"),
    "dtpm": ("dtpm", "1"),
}


def answer(tree: Path) -> str:
    script = SCRIPT.replace("/sys/class/powercap", str(tree))
    return subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout


def make(tree: Path) -> None:
    for zone, (name, energy) in TREE.items():
        (tree / zone).mkdir(parents=True)
        (tree / zone / "name").write_text(name + "\n")
        (tree / zone / "energy_uj").write_text(energy + "\n")
        (tree / zone / "max_energy_range_uj").write_text(f"{RANGE}\n")


def test_packages_and_their_memory_count_once(tmp_path: Path) -> None:
    make(tmp_path)
    found = parse_counters(answer(tmp_path))
    assert found is not None
    assert found.zones == {
        "intel-rapl:0": Zone("package-0", 1_000_000, RANGE),
        "intel-rapl:0:1": Zone("dram", 250_000, RANGE),
        "intel-rapl:1": Zone("package-1", 2_000_000, RANGE),
    }
    assert len(found.boot) == len(BOOT)
    assert not found.why_not


def test_no_counters_and_unreadable_ones_have_a_reason(tmp_path: Path) -> None:
    none = parse_counters(answer(tmp_path / "none"))
    assert none is not None
    assert "shows no counters in /sys/class/powercap" in none.why_not
    # A directory in place of the file cannot be read, not even by root.
    make(tmp_path)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    (tmp_path / "intel-rapl:1" / "energy_uj").mkdir()
    some = parse_counters(answer(tmp_path))
    assert some is not None
    assert "only root may read" in some.why_not
    machine = parse_counters(f"boot {BOOT}\nvirtual\n")
    assert machine is not None
    assert "a virtual machine shows no counters" in machine.why_not


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zone intel-rapl:0 package-0 1 2\n",
        f"boot {BOOT}\nzone intel-rapl:0 package-0 3 2\n",
        f"boot {BOOT}\nzone intel-rapl:0 package-0 3 -\n",
        f"boot {BOOT}\nzone intel-rapl:0 package-0 1 {1 << 63}\n",
        "boot x\n",
    ],
)
def test_an_answer_that_cannot_be_true_is_none(text: str) -> None:
    assert parse_counters(text) is None


def reading(at_s: float, *energies: int, limit: int = RANGE, boot: str = BOOT) -> Reading:
    zones = {
        (boot, f"intel-rapl:{i}"): Zone(f"package-{i}", e, limit) for i, e in enumerate(energies)
    }
    return Reading(at_s, zones)


def total(*readings: Reading) -> Energy:
    found = Energy()
    for one in readings:
        found.add(one)
    return found


def test_counters_are_added_also_past_their_end() -> None:
    found = total(reading(0, RANGE - 1_000_000, 0), reading(10, 500_000, 2_250_000))
    assert found.facts() == {JOULES: "3.750", "energy": "package-0, package-1 of 1 host"}


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (reading(10, 5, boot=OTHER), "did a host restart?"),
        (reading(10, 5, 6), "not those of the start"),
        (reading(263, 5), "package-0 may have passed its end"),
        (reading(10, 5, limit=RANGE - 1), "may have passed its end"),
        (reading(10, 1), "the counters stand still"),
        (Reading(10, {}, "n2: only root may read"), "n2: only root may read"),
    ],
)
def test_a_sum_that_may_be_wrong_is_none(last: Reading, words: str) -> None:
    facts = total(reading(0, 1), last).facts()
    assert JOULES not in facts
    assert facts["energy"].startswith("not measured: ")
    assert words in facts["energy"]


def test_small_ranges_are_read_more_often() -> None:
    # AMD's counters have a quarter of Intel's range.
    assert total(reading(0, 1, limit=65_532_610_987)).next_s == pytest.approx(32.77, abs=0.01)
    assert total(reading(0, 1)).next_s == 60
    assert total(reading(0, 1, limit=10_000_000)).next_s == 5


class Nodes:
    """A backend and a runner: each node answers with its text, and so does this machine."""

    def __init__(self, here: str, **nodes: str) -> None:
        self.texts = {"": here, **nodes}

    def on_node(self, node: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Command:
        assert argv[:2] == ["/bin/sh", "-c"]
        return Command((node,), env=env)

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        node = "" if command.argv[0] == "/bin/sh" else command.argv[0]
        return Completed(command, 0, self.texts[node].encode(), b"", timeout_s)


def read(nodes: Nodes, *names: str) -> Reading:
    backend: Backend | None = nodes if names else None  # type: ignore[assignment]
    return read_hosts(nodes, backend, names, lambda: 1.0)  # type: ignore[arg-type]


def said(boot: str, energy: str) -> str:
    return f"boot {boot}\nzone intel-rapl:0 package-0 {energy} {RANGE}\n"


def test_nodes_of_one_kernel_share_its_counters() -> None:
    # The containers may not read what this process reads.
    nodes = Nodes(said(BOOT, "7"), n1=said(BOOT, "-"), n2=said(BOOT, "-"), n3=said(OTHER, "5"))
    assert [zone.energy_uj for zone in read(nodes, "n1", "n2").zones.values()] == [7]
    assert [zone.energy_uj for zone in read(nodes, "n1", "n3").zones.values()] == [7, 5]
    # This machine counts only if a node is on it.
    assert [zone.energy_uj for zone in read(nodes, "n3").zones.values()] == [5]
    assert [zone.energy_uj for zone in read(nodes).zones.values()] == [7]


def test_a_node_without_counters_is_named() -> None:
    nodes = Nodes(said(BOOT, "7"), n1=said(OTHER, "-"), n2="", n3=f"boot {OTHER}\nvirtual\n")
    assert read(nodes, "n1").why_not.startswith("n1: only root")
    assert read(nodes, "n2").why_not == "n2 did not say its counters"
    assert read(nodes, "n3").why_not.startswith("n3: a virtual machine")
    assert read(Nodes("")).why_not == "this machine did not say its counters"


class Often(Energy):
    """Wants a reading every millisecond."""

    @property
    def next_s(self) -> float:
        return 0.001


def test_a_meter_reads_at_both_ends_and_between() -> None:
    readings = iter(reading(at, at * 1_000_000) for at in range(1, 100_000))
    taken = []

    def take() -> Reading:
        taken.append(next(readings))
        return taken[-1]

    with Meter(take, Often()) as used:
        while len(taken) < 5:
            time.sleep(0.001)
    assert used.energy.facts()[JOULES] == f"{len(taken) - 1}.000"
    count = len(taken)
    time.sleep(0.02)
    assert len(taken) == count, "it reads after the end"


def test_a_reading_that_fails_does_not_end_the_launch() -> None:
    def take() -> Reading:
        raise CommandError("n1 does not answer", "")

    with Meter(take) as used:
        pass
    assert used.energy.facts() == {"energy": "not measured: a reading failed: n1 does not answer"}


def test_an_interrupted_launch_is_not_read_again() -> None:
    taken = []

    def take() -> Reading:
        taken.append(1)
        return reading(1, 1)

    used = Meter(take)
    with pytest.raises(KeyboardInterrupt), used:
        raise KeyboardInterrupt
    assert len(taken) == 1
    assert "interrupted" in used.energy.facts()["energy"]


def test_this_machine_has_a_sum_or_a_reason() -> None:
    with meter(LocalRunner()) as used:
        pass
    assert used.energy.facts()["energy"]


def view_of(*figures: tuple[str, str]) -> StudyView:
    """Return a study whose launches have the arm and the words of each pair."""
    point = Point("osu", "osu_latency", "", 8, 2, 2, "latency", Unit.MICROSECONDS)
    arms = {"base": Arm("base"), "test": Arm("test")}
    sources, cells = {}, []
    for name in arms:
        seen = []
        for i, words in enumerate(words for arm, words in figures if arm == name):
            path = f"{name}-{i}"
            header = {LAUNCH + JOULES: words, LAUNCH + "energy": "package-0 of 1 host"}
            sources[path] = SourceFile("", path, "facts", arm=name, header=header)
            seen.append(Observation("r", i, None, 1.0, path, 1))
        cells.append(Cell(name, point, tuple(seen)))
    judged = (Judged(arms["test"], ()),)
    return StudyView("s", arms["base"], judged, tuple(cells), (), sources, {})


def test_the_report_shows_the_median_of_each_arm() -> None:
    launches = [("base", f"{100 + i}.000") for i in range(6)] + [("test", "90.500")]
    view = view_of(*launches, ("test", "nan"), ("test", "1e99"))
    grid = energy_grid(view)
    assert grid is not None
    ((name, base, test),) = grid.rows
    assert name.text == "osu_latency"
    assert (base.text, base.note) == ("102 J", "n 6, 100 to 105")
    assert (test.text, test.note) == ("90.5 J", "n 1")
    recorded = launches_grid(view)
    assert recorded is not None
    assert [row[0].text for row in recorded.rows] == ["energy"]


def test_a_study_without_figures_has_no_table() -> None:
    assert energy_grid(view_of(("base", ""), ("test", "nan"))) is None
