# SPDX-License-Identifier: Apache-2.0
"""The way between memory of GPUs in the locality of nodes, by probes of which some have a GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nearmetal.cli.job import locality_columns
from nearmetal.cluster.spec import parse_spec
from nearmetal.job.locality import Meeting, measure_locality
from tests.documents import check_document
from tests.python.fake_backend import FakeBackend
from tests.python.test_job import SPEC, FakeProbe, FakeRunner


class GpuProbe(FakeProbe):
    """In n1 and n2, a driver with a GPU is there; its words are too long."""

    def send(self, line: str, timeout_s: float = 0.0) -> None:
        super().send(line, timeout_s)
        if self.node != "n3":
            answer = json.loads(self.answers.pop())
            words = {"device_reason": "staged: because" + "!" * 1000}
            self.answers.append(json.dumps(answer | words))


def meetings(
    probe: type[FakeProbe], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[str, str], Meeting]:
    tool = directory / "nearmetal-info"
    tool.touch(mode=0o755)
    monkeypatch.setenv("NEARMETAL_INFO", str(tool))
    backend = FakeBackend(cpus=(0, 1, 2), meeting=directory / "meet")
    for host in ("h", "far"):
        (backend.meeting / host).mkdir(parents=True)
    found = measure_locality(backend, parse_spec(SPEC), FakeRunner(talk=probe))
    check_document("locality", {"cluster": "c", "pairs": [asdict(m) for m in found]})
    return {(m.node, m.peer): m for m in found}


def test_the_way_between_gpus_needs_one_at_both_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = meetings(GpuProbe, tmp_path, monkeypatch)
    words = {pair: m.device_reason for pair, m in found.items()}
    assert words["n1", "n2"].startswith("staged: because!")
    assert len(words["n1", "n2"]) == 400
    assert words["n1", "n3"] == "no GPU in node n3"
    assert words["n3", "n1"] == words["n3", "n3"] == ""
    columns = locality_columns(list(found.values()))
    assert list(columns)[-2:] == ["memory of GPUs", "reason"]
    shown = dict(zip(found, columns["memory of GPUs"], strict=True))
    assert shown["n1", "n2"] == words["n1", "n2"]
    assert shown["n3", "n1"] == "no GPU in node n3"


def test_nodes_without_a_gpu_have_no_column_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = meetings(FakeProbe, tmp_path, monkeypatch)
    assert {m.device_reason for m in found.values()} == {""}
    columns = locality_columns(list(found.values()))
    before = ["from", "to", "relation", "channel", "integrity", "direct copies", "reason"]
    assert list(columns) == before
    assert {len(column) for column in columns.values()} == {9}
