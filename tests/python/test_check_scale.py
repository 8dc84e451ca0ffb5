# SPDX-License-Identifier: Apache-2.0
"""The analysis of large clusters: time and memory, with snapshots as large as real ones."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.check.collection import Entry, index_text
from nearmetal.check.performance.retest import confirm
from nearmetal.check.performance.run import Item, MeasuredTurn, PerformanceRun, parse_run, run_text
from nearmetal.check.performance.screen import screen
from nearmetal.check.snapshot import digest_of, parse_snapshot
from tests.python.check_nodes import content_of, facts_of, judged
from tests.python.check_performance_clusters import names, places

PACKAGES = {f"package-{i}": f"{i}.{i * 7 % 31}-1+deb12u{i % 9}" for i in range(900)}
PINS = {str(i): f"{i}-{i + 3}" for i in range(64)}


def contents(count: int) -> Iterator[bytes]:
    """Yield snapshots of a healthy cluster with one odd node: some 40 KiB each, as on Debian."""
    for i in range(1, count + 1):
        changes = [("software>packages", PACKAGES), ("virtual>clocks", PINS)]
        facts = facts_of(i, changes)
        facts["storage"] |= {f"/data/{n}": facts["storage"]["/"] for n in range(40)}
        if i == count // 2:
            facts["sysctl"]["vm.swappiness"] = "60"
        facts["fabric"]["mlx5_0"]["node_guid"] = f"0002:c903:{i >> 16:04x}:{i & 0xFFFF:04x}"
        facts["system"]["uptime_s"] = float(i)
        yield content_of(facts)


def test_a_thousand_snapshots_are_analysed_in_ten_seconds() -> None:
    texts = list(contents(1000))
    assert len(texts[0]) > 30_000
    begin = time.process_time()
    nodes = (parse_snapshot(text, f"n{i:05d}", "n") for i, text in enumerate(texts, 1))
    analysis = judged(nodes)
    assert time.process_time() - begin < 10
    assert [(f.about, f.folded) for f in analysis.findings] == [("sysctl[vm.swappiness]", "n00500")]


def test_a_file_with_many_slow_pairs_is_judged_in_seconds() -> None:
    nodes = names(128)
    pairs: dict[Item, float] = {
        (a, b): 50.0 if (i + j) % 7 == 0 else 100.0
        for i, a in enumerate(nodes)
        for j, b in enumerate(nodes)
        if i != j
    }
    turn = MeasuredTurn("bandwidth", pairs)
    run = PerformanceRun(nodes, screening=(turn,), retests=(turn,) * 16)
    begin = time.process_time()
    read = parse_run(run_text(run).encode(), "performance.json")
    found = confirm(read.retests, screen(read, places({"h": nodes})))
    assert time.process_time() - begin < 20
    assert {one.suspicion.item for one in found} == {p for p, value in pairs.items() if value < 99}
    assert {one.retests for one in found} == {16}


@pytest.mark.full
def test_ten_thousand_nodes_need_less_than_two_gibibytes(tmp_path: Path) -> None:
    nodes = {}
    for i, text in enumerate(contents(10_000), 1):
        digest = digest_of(text)
        (tmp_path / f"{digest}.json").write_bytes(text)
        nodes[f"n{i:05d}"] = Entry(digest)
    (tmp_path / "collection.json").write_text(index_text(1.0, nodes, {"n99999": "no answer"}))
    done = subprocess.run(
        [sys.executable, "-m", "nearmetal", "check", "analyse", str(tmp_path), "--json"],
        capture_output=True,
        check=False,
        cwd=Path(__file__).parents[2],
        timeout=280,
    )
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert len(found["nodes"]) == 10_001
    assert [(f["check"], f["folded"]) for f in found["findings"]] == [
        ("base.answer", "n99999"),
        ("uniformity.settings", "n05000"),
    ]
    most_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert most_kib < 2 << 20
