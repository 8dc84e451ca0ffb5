# SPDX-License-Identifier: Apache-2.0
"""The suite `gpu`: its launches, its refusals, and the tables of its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, Completed
from nearmetal.evidence import Unit, load_run, parse_log, write_manifest
from nearmetal.report.run_page import render_html, render_markdown
from nearmetal.study.runner.collect import unreachable
from nearmetal.study.runner.suite import GPU_ARMS, SUITES, schedule
from nearmetal.study.runner.two_nodes import require_gpu
from tests.python.evidence_runs import make_launch, make_run, pair
from tests.python.fake_backend import FakeBackend
from tests.python.test_bench import SPEC

COLUMNS = (
    "size_B samples batch time_p2_us time_p25_us time_p50_us time_p75_us time_p98_us "
    "bandwidth_p50_MBps copy_p50_MBps pinned_p50_MBps of_copy_p50 of_pinned_p50"
)


def log(*, of_copy: float, tables: tuple[str, ...] = ("fabric_device_DD",)) -> str:
    """Return a log in which the GPU copies 1 TB/s, and pinned copies reach 50 GB/s."""
    lines = ["# nearmetal-bench 1 fabric_device", "# provider nearmetal", "# gpu NVIDIA H100"]
    lines += ["# pcie-limit-MBps 63015"]
    for table in tables:
        lines += [f"# table {table}", COLUMNS]
        for size in (8, 1 << 20):
            rate = 1e6 * of_copy
            times = " ".join(f"{size / rate * f:.6f}" for f in (0.9, 0.95, 1, 1.1, 2))
            shares = f"{of_copy:.4f} {rate / 5e4:.4f}"
            lines.append(f"{size} 100 1 {times} {rate:.3f} 1000000.000 50000.000 {shares}")
        lines.append(f"# end {table}")
    return "\n".join([*lines, "# done fabric_device"]) + "\n"


def test_every_path_is_launched_once_in_each_block_and_nothing_else() -> None:
    suite = SUITES["gpu"]
    assert suite.arms is GPU_ARMS
    steps = schedule(suite, [], list(GPU_ARMS.values()), 20)
    orders = set()
    for block in range(20):
        arms = tuple(s.arm.name for s in steps if s.block == block and s.arm)
        assert sorted(arms) == sorted(GPU_ARMS)
        orders.add(arms)
    assert len(orders) > 3
    assert len(steps) == 20 * len(GPU_ARMS)
    assert {(s.program.file, s.mpi) for s in steps} == {("fabric_device", None)}


def test_forced_paths_leave_no_other_channel() -> None:
    assert {name for name, arm in GPU_ARMS.items() if arm.channels is None} == {"near", "apart"}
    assert {name for name, arm in GPU_ARMS.items() if arm.together} == {"near", "handle", "staged"}
    assert GPU_ARMS["staged"].env == (("NEARMETAL_CMA", "off"),)
    assert GPU_ARMS["net"].channels == ("self", "net")


def test_a_segment_needs_nodes_that_share_one() -> None:
    shm, segment = pair("n1", "n2", "shm"), pair("n1", "n2", "segment")
    assert "no segment" in unreachable(GPU_ARMS["segment"], SPEC, [shm])
    assert unreachable(GPU_ARMS["segment"], SPEC, [shm, segment]) == ""
    assert unreachable(GPU_ARMS["net"], SPEC, [shm]) == ""


class Asked:
    """A runner whose nodes answer what they have."""

    def __init__(self, code: int, text: str, error: str = "") -> None:
        self.answer = code, text.encode(), error.encode()
        self.commands: list[Command] = []

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        self.commands.append(command)
        code, text, error = self.answer
        return Completed(command, code, text, error, 0.1)


def test_a_node_without_a_gpu_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/driver")
    backend: Any = FakeBackend()
    runner: Any = Asked(1, "", "no driver of NVIDIA: libcuda.so.1: cannot\x1b[31m open\n")
    with pytest.raises(LaunchError, match=r"node n1 has no GPU .*libcuda\.so\.1: cannot") as caught:
        require_gpu(backend, SPEC, runner, Path("/p"))
    assert "\x1b" not in caught.value.message
    assert "LD_LIBRARY_PATH" in caught.value.hint
    silent: Any = Asked(139, "")
    with pytest.raises(LaunchError, match="no reason given"):
        require_gpu(backend, SPEC, silent, Path("/p"))
    there: Any = Asked(0, "NVIDIA H100\n")
    assert require_gpu(backend, SPEC, there, Path("/p")) == "NVIDIA H100"
    assert len(there.commands) == 2


def test_the_columns_have_units() -> None:
    found = parse_log(log(of_copy=0.9), "f", "nearmetal-bench")
    assert found.header["pcie-limit-MBps"] == "63015"
    (table,) = found.tables
    units = {column.metric: column.unit for column in table.columns}
    assert units["copy_p50"] is units["pinned_p50"] is Unit.MEGABYTES_PER_SECOND
    assert units["of_copy"] is units["of_pinned"] is Unit.COUNT
    assert table.rows[1].values["of_copy"] == 0.9


def test_the_report_shows_each_path_beside_its_limits(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", blocks=0)
    launches = []
    both = ("fabric_device_DD", "fabric_device_HD_both")
    for number, (arm, share) in enumerate(
        [("handle", 0.93), ("handle", 0.95), ("handle", 0.97), ("staged", 0.0065)], 1
    ):
        text = log(of_copy=share, tables=both)
        fields: dict[str, Any] = {"mpi": "", "arm": arm, "program": "device", "block": number - 1}
        launches.append(make_launch(directory, number, text, **fields))
    manifest = load_run(directory).manifest.model_copy(update={"launches": tuple(launches)})
    write_manifest(directory, manifest)
    run = load_run(directory)
    text = render_markdown(run)
    assert "## GPU to GPU\n" in text
    assert "## host to GPU, both directions\n" in text
    assert (
        "950 (0.95 [0.93, 0.97] of the GPU's copy, 19.00 [18.60, 19.40] of pinned copies)" in text
    )
    assert "6.5 (0.01 of the GPU's copy, 0.13 of pinned copies)" in text
    assert "not measured" in text
    assert "GPU to GPU" in render_html(run)


def test_a_log_without_the_shares_is_not_measured(tmp_path: Path) -> None:
    """A log of another version, or one that was edited, is no reason for a traceback."""
    directory = make_run(tmp_path / "run", blocks=0)
    text = log(of_copy=1.0).replace(" of_copy_p50 of_pinned_p50", "").replace(" 1.0000 20.0000", "")
    fields: dict[str, Any] = {"mpi": "", "arm": "handle", "program": "device", "block": 0}
    launches = (make_launch(directory, 1, text, **fields),)
    manifest = load_run(directory).manifest.model_copy(update={"launches": launches})
    write_manifest(directory, manifest)
    row = next(
        line for line in render_markdown(load_run(directory)).splitlines() if "handle |" in line
    )
    assert row.count("not measured") == 3
