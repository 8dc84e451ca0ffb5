# SPDX-License-Identifier: Apache-2.0
"""Study files, the order of launches, and when there are enough of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.core.errors import NearmetalError, SpecError, UsageError
from nearmetal.job.mpi import Mpi, Provider
from nearmetal.study.design import (
    Design,
    LaunchesDesign,
    block,
    half_width_percent,
    load_design,
    unsettled,
)
from nearmetal.study.runner.starts import way_of
from nearmetal.study.runner.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "nearmetal/share/examples" / "studies").glob("*.yaml"))
SMALL = """\
format: 1
name: small
arms:
  a: {cluster: c.yaml, platform: p, fabric: f, placement: x}
  b: {cluster: c.yaml, way: stock, platform: p, fabric: f, placement: x}
  c: {cluster: c.yaml, way: own, platform: p, fabric: f, placement: x}
workloads:
  w1: {use: imb-pingpong}
  w2: {use: netpipe}
"""


def design(tmp_path: Path, text: str = SMALL) -> Design:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return load_design(path, WORKLOADS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_sound_and_its_clusters_exist(path: Path) -> None:
    found = load_design(path, WORKLOADS)
    for arm in found.arms.values():
        assert arm.cluster is not None
        assert (ROOT / arm.cluster).is_file()
    for workload in found.workloads.values():
        assert workload.mpi is not None
        assert Mpi(workload.mpi) in WORKLOADS[workload.use or ""].program.mpis


def test_a_block_launches_everything_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    found = design(tmp_path)
    orders = [block(found, number) for number in range(12)]
    for number, turns in enumerate(orders):
        assert len(set(turns)) == 6
        assert {turn.block for turn in turns} == {number}
        # The arms of a workload run in a row, so that they share what the machine does meanwhile.
        assert turns[0].workload == turns[1].workload == turns[2].workload
    assert len({tuple(turn[1:] for turn in turns) for turns in orders}) > 6


def test_the_same_seed_gives_the_same_order(tmp_path: Path) -> None:
    assert block(design(tmp_path), 3) == block(design(tmp_path), 3)
    other = design(tmp_path, SMALL + "seed: 2\n")
    assert any(block(design(tmp_path), n) != block(other, n) for n in range(4))


def test_enough_launches_are_those_with_narrow_intervals() -> None:
    wanted = LaunchesDesign(interval_percent=5)
    narrow = [1.0, 1.01, 0.99, 1.02, 1.0, 0.98]
    assert half_width_percent(narrow) == pytest.approx(2.0)
    assert half_width_percent(narrow[:5]) is None
    assert half_width_percent([0.0] * 6) is None
    cells: dict[tuple[object, ...], list[float]] = {
        ("narrow",): narrow,
        ("few",): narrow[:5],
        ("wide",): [1, 2, 3, 4, 5, 6],
    }
    assert unsettled(cells, wanted) == [("few",), ("wide",)]


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("name: small", "nam: small", ":2:1: unknown key 'nam'", "did you mean 'name'?"),
        ("format: 1", "format: 2", ":1:9:", "format"),
        ("use: netpipe", "use: netpip", ":9:13: no workload 'netpip'", "known: "),
        ("{use: netpipe}", "{}", ":9:", "neither or both"),
        ("{use: netpipe}", "{use: netpipe, args: [x]}", ":9:", "with use"),
        ("{use: netpipe}", "{program: ./x}", ":9:", "no log_format"),
        ("way: own", "way: OWN", ":6:", "way"),
        ("  a: {cluster: c.yaml, ", "  a: {", ":4:", "neither or both of cluster and start"),
        ("workloads:\n", "workloads: {}\nmore:\n", ":7:", "workloads"),
        (SMALL, "", ":1:1: the file is empty", "a study was expected"),
        (SMALL, "- 1\n", ":1:1: not a mapping", ""),
    ],
)
def test_a_wrong_study_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, where: str, what: str
) -> None:
    with pytest.raises(NearmetalError) as caught:
        design(tmp_path, SMALL.replace(old, new))
    said = f"{caught.value.message} {caught.value.hint}"
    assert f"study.yaml{where}" in said
    assert what in said


def test_only_some_known_workloads_take_arguments(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(SMALL.replace("{use: netpipe}", "{use: perftest-send-lat, args: [-d, mlx5_1]}"))
    with pytest.raises(SpecError, match="with use"):
        load_design(path, WORKLOADS)
    found = load_design(path, WORKLOADS, ["perftest-send-lat"])
    assert [w.args for w in found.workloads.values() if w.args] == [["-d", "mlx5_1"]]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = SMALL.replace("format: 1", "format: 2").replace("name: small", "name: SMALL")
    with pytest.raises(SpecError) as caught:
        design(tmp_path, text + "launches: {least: 7, most: 6}\n")
    assert len(caught.value.problems) == 3


class Nothing:
    """Stands where a backend or a spec is only handed on."""


def test_ways_are_arms_of_bench_or_an_mpi_s_own() -> None:
    backend, spec = Nothing(), Nothing()

    def way(name: str, mpi: Mpi) -> object:
        return way_of(name, mpi, backend, spec, ("n1",))  # type: ignore[arg-type]

    assert way_of("net", Mpi.IMPI, backend, spec, ()).channels == ("self", "net")  # type: ignore[arg-type]
    own = way_of("own", Mpi.OPENMPI5, backend, spec, ("n1",))  # type: ignore[arg-type]
    assert own.stack is not None
    assert (own.stack.name, own.provider, own.nodes) == ("sm", Provider.STOCK, ("n1",))
    assert getattr(way("posix", Mpi.MPICH5), "stack", None) is not None
    with pytest.raises(UsageError, match="openmpi5 has no way 'posix'"):
        way("posix", Mpi.OPENMPI5)


def test_a_cluster_that_is_not_up_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(ROOT)
    output = tmp_path / "run"
    assert main(["study", "run", str(EXAMPLES[0]), "--output", str(output)]) == 1
    said = capsys.readouterr().err
    assert "is not up" in said or "no MPI is installed" in said or "cannot run under" in said
    assert not (output / "manifest.json").exists()
