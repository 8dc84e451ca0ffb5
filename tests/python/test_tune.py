# SPDX-License-Identifier: Apache-2.0
"""What `nearmetal tune` makes of measurements. The C reader of the file: tests/unit/test_tuning.c."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, Completed
from nearmetal.study.runner import tune

COLUMNS = (
    "size_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us time_p98_us messages "
    "rate_p50_Mps bandwidth_p50_MBps"
)


def output(placement: str, times: dict[str, float]) -> str:
    """Return what the measuring program prints; the time in us of 1 MiB, larger and smaller ones."""
    lines = [
        "# nearmetal-bench 1 limits",
        "# cores 0 1",
        "# table cacheline",
        COLUMNS,
        "8 100 50 0.0600 0.0610 0.0620 0.0630 0.1 1 1.0 1.0",
        f"# placement {placement} half_rtt_p25_ns=61.0 near_below_ns=150",
        "# end cacheline",
    ]
    for name, time in times.items():
        lines += [f"# table {name}", COLUMNS]
        for size in (4096, *tune.CLASSES):
            scaled = time * size / (1 << 20)
            lines.append(f"{size} 40 1 {scaled} {scaled * 2} {scaled * 3} 9 9 1 1.0 1.0")
        lines.append(f"# end {name}")
    return "\n".join([*lines, "# absent cma_both Operation not permitted", "# done limits", ""])


@dataclass
class FakeRunner:
    """Answers every command with the next text."""

    answers: list[str]
    commands: list[Command] = field(default_factory=list)

    def check(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        self.commands.append(command)
        return Completed(command, 0, self.answers.pop(0).encode(), b"", 0.1)


def measure_once(text: str, load: str = "stream") -> tuple[str, tune.Measured]:
    runner = FakeRunner([text])
    placement, log = tune.measure(runner, Path("limits"), load, 1)  # type: ignore[arg-type]
    assert ("-w" in runner.commands[0].argv) == (load == "lone")
    measured = tune.Measured()
    tune.collect(measured, load, log)
    return placement, measured


def test_rates_are_of_the_undisturbed_machine_and_medians_of_rounds() -> None:
    measured = tune.Measured()
    for time in (100.0, 50.0, 400.0):
        runner = FakeRunner([output("near", {"two_copy": time, "memcpy": 1.0})])
        _, log = tune.measure(runner, Path("limits"), "stream", 1)  # type: ignore[arg-type]
        tune.collect(measured, "stream", log)
    assert measured.rate(("1M", "stream", "pool")) == round((1 << 20) / 100.0)
    assert measured.half_round_trips_ns == [60.0] * 3
    assert {key[2] for key in measured.rates} == {"pool"}


def test_file_tells_machine_rates_and_evidence() -> None:
    placement, near = measure_once(output("near", {"two_copy": 40.0, "cma_read": 80.0}))
    assert placement == "near"
    placement, far = measure_once(output("far", {"streamed": 90.0}), "lone")
    far.half_round_trips_ns.append(290.0)
    here = tune.TunedMachine("Some CPU", "6.1", {2: 1 << 20})
    lines = tune.tuning_text(here, "today", {placement: far, "near": near}).splitlines()
    assert lines[:5] == [
        "nearmetal-tuning 1",
        "cpu Some CPU",
        "kernel 6.1",
        "cache 2 1048576",
        "date today",
    ]
    assert lines[-1] == "end"
    assert lines.index("placement near") < lines.index("placement far")
    assert "rate 1M stream pool 26214" in lines
    assert "rate 1M stream pull 13107" in lines
    assert "rate more lone past 11651" in lines
    assert not any(" both " in line for line in lines)
    assert any(line.startswith("evidence stream two_copy 65536 B p2_us") for line in lines)
    assert all(line.isascii() for line in lines)


def test_a_placement_must_be_told() -> None:
    with pytest.raises(LaunchError, match="how the cores are placed"):
        measure_once(output("odd", {}))


def test_machine_is_what_the_provider_takes_it_for() -> None:
    facts = {"machine": {"cpu": "C", "kernel": "6.1", "caches": {"1": 32768, "2": 0, "3": 5}}}
    found = tune.machine(FakeRunner([json.dumps(facts)]), Path("info"))  # type: ignore[arg-type]
    assert found == tune.TunedMachine("C", "6.1", {1: 32768, 3: 5})
    facts["machine"]["cpu"] = ""
    with pytest.raises(LaunchError, match="the processor model or the kernel release"):
        tune.machine(FakeRunner([json.dumps(facts)]), Path("info"))  # type: ignore[arg-type]


def test_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning"
    tune.write(path, "one\n")
    tune.write(path, "two\n")
    assert path.read_text() == "two\n"
    assert [p.name for p in path.parent.iterdir()] == ["tuning"]
    with pytest.raises(LaunchError, match="cannot write"):
        tune.write(path / "below a file", "three\n")
    with pytest.raises(UnicodeEncodeError):
        tune.write(path, "\N{SNOWMAN}")
    assert path.read_text() == "two\n"


def test_default_path_is_where_the_provider_looks() -> None:
    assert tune.default_path({"NEARMETAL_TUNE_FILE": "/x/y"}, 0) == Path("/x/y")
    ours = tune.default_path({"XDG_CONFIG_HOME": "/config", "HOME": "/h"}, 1000)
    assert ours == Path("/config/nearmetal/tuning")
    ours = tune.default_path({"XDG_CONFIG_HOME": "config", "HOME": "/h"}, 1000)
    assert ours == Path("/h/.config/nearmetal/tuning")
    none = tune.default_path({"NEARMETAL_TUNE_FILE": "none"}, 0)
    assert none == Path("/etc/nearmetal/tuning")
