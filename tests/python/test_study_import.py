# SPDX-License-Identifier: Apache-2.0
"""Folders of logs into a study: labels, refusals, storage, and the same tables again."""

import hashlib
import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.cli.main import main
from nearmetal.core.errors import LogError, NearmetalError, SpecError
from nearmetal.study.importer import ImportSummary, derive_again, find_files, import_study
from nearmetal.study.labels import Labeller, arms_of, draft, load_labels, natural
from nearmetal.study.pattern import Pattern
from nearmetal.study.store import FACTS, SOURCES, Study
from tests.python.evidence_runs import make_run

LABELS = """format: 1
run: lab
arms:
  vm: {platform: KVM, fabric: InfiniBand, placement: one per node, cores_per_node: 44}
  metal: {platform: bare metal, fabric: InfiniBand, placement: one per node, cores_per_node: 48}
sources:
  - path: "{arm}/latency-{launch}.out"
    nodes: 2
"""


class Unwatched:
    def begin(self, total: int) -> None:
        self.total = total

    def step(self, text: str) -> None:
        self.last = text


def osu(first: float, title: str = "Latency", version: str = "5.8") -> str:
    rows = "".join(f"{1 << i:<10}{first + i:>18.2f}\n" for i in range(4))
    return f"# OSU MPI {title} Test v{version}\n# Size          Latency (us)\n{rows}"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    for arm, base in (("vm", 2.0), ("metal", 1.0)):
        (folder / arm).mkdir(parents=True)
        for launch in range(1, 12):
            (folder / arm / f"latency-{launch}.out").write_text(osu(base + launch / 100))
    (folder / "study-labels.yaml").write_text(LABELS)
    return folder


def imported(folder: Path) -> tuple[ImportSummary, Study]:
    target = folder.parent / "study"
    return import_study([folder], None, target, Unwatched()), Study(target)


def test_values_are_found_again_by_arm_point_and_launch(logs: Path) -> None:
    summary, study = imported(logs)
    assert (summary.files, summary.read, summary.facts, summary.refused) == (22, 22, 88, {})
    cells = {cell.arm: cell for cell in study.cells(test="osu_latency", size=8)}
    assert cells["vm"].values == tuple(round(2 + 3 + n / 100, 2) for n in range(1, 12))
    seen = cells["vm"].observations[9]
    assert (seen.launch, seen.line, seen.run) == (10, 6, "lab")
    assert seen.source == "vm/latency-10.out"
    raw = study.raw(study.files()[seen.source].source).decode()
    assert raw.split("\n")[seen.line - 1].split() == ["8", "5.10"]
    point = cells["vm"].point
    assert (point.program, point.ranks, point.nodes, point.metric) == ("osu", 2, 2, "latency")
    assert point.lower_is_better


def test_launches_come_in_the_order_of_numbers(logs: Path) -> None:
    assert natural("run-10") > natural("run-9")
    _, study = imported(logs)
    assert [s.launch for s in study.sources() if s.arm == "vm"] == list(range(1, 12))


def test_the_same_input_gives_the_same_bytes_and_is_derived_again(logs: Path) -> None:
    _, study = imported(logs)
    before = {name: (study.directory / name).read_bytes() for name in (FACTS, SOURCES)}
    (logs / "vm" / "latency-1.out").unlink()
    summary = derive_again(study.directory)
    assert summary.facts == 88
    assert {name: (study.directory / name).read_bytes() for name in before} == before


def test_raw_files_are_kept_once_and_read_only(logs: Path) -> None:
    _, study = imported(logs)
    objects = [p for p in (study.directory / "objects").rglob("*") if p.is_file()]
    assert len(objects) == 22
    assert all(p.name == hashlib.sha256(p.read_bytes()).hexdigest() for p in objects)
    assert all(p.stat().st_mode & 0o777 == 0o444 for p in objects)
    objects[0].chmod(0o644)
    objects[0].write_text("edited")
    with pytest.raises(LogError, match="not what was recorded"):
        study.raw(objects[0].name)
    with pytest.raises(LogError, match="not what was recorded"):
        derive_again(study.directory)


def test_a_half_written_object_is_mended(logs: Path) -> None:
    _, study = imported(logs)
    path = next(p for p in (study.directory / "objects").rglob("*") if p.is_file())
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:7])
    imported(logs)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_what_is_missing_is_asked_for(logs: Path) -> None:
    (logs / "other").mkdir()
    (logs / "other" / "x.out").write_text(osu(1))
    with pytest.raises(
        NearmetalError, match=r"other/x\.out: arm, nodes, launch not known"
    ) as error:
        imported(logs)
    assert "--draft" in error.value.hint
    (logs / "study-labels.yaml").write_text(
        LABELS.replace("-{launch}.out", "-*.out").replace("{arm}/", "*/") + "    arm: vm\n"
        '  - path: "other/*"\n    ignore: scratch\n'
    )
    with pytest.raises(NearmetalError, match=r"latency-1\.out: launch not known"):
        imported(logs)


def test_a_draft_of_labels_can_be_filled_in(logs: Path, tmp_path: Path) -> None:
    (logs / "study-labels.yaml").unlink()
    file = tmp_path / "draft.yaml"
    assert main(["study", "import", str(logs), "--draft", str(file)]) == 0
    text = file.read_text()
    assert '- path: "vm/latency-{launch}.out"' in text
    assert main(["study", "import", str(logs), "--draft", str(file)]) == 1
    with pytest.raises(SpecError, match=r"draft\.yaml:7:14:"):
        import_study([logs], file, tmp_path / "s", Unwatched())
    for old, new in (
        ("name-of-the-arm:", "a:"),
        ("platform:", "platform: x"),
        ("fabric:", "fabric: x"),
        ("placement:", "placement: x"),
        ("    arm:\n", "    arm: a\n"),
        ("    nodes:\n", "    nodes: 2\n"),
    ):
        text = text.replace(old, new)
    filled = text.replace('"vm/', '"{arm}/').replace('"metal/', '"{arm}/')
    file.write_text(filled.replace("  a:\n", "  vm:\n").replace("    arm: a\n", ""))
    with pytest.raises(SpecError, match=r"'metal' is not described|no file matches"):
        import_study([logs], file, tmp_path / "s", Unwatched())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sources:", "sorces:", r"labels\.yaml:6:1: unknown key 'sorces'.*did you mean 'sources'"),
        ("run: lab\n", "", "run is missing"),
        ("nodes: 2", "nodes: two", r":8:.*sources\[0\].nodes"),
        ("nodes: 2", "nodes: 0", "use at least 1"),
        ("{launch}", "{lunch}", "{lunch} is unknown"),
        ("{launch}", "{arm}", "{arm} stands twice"),
        ("fabric: InfiniBand, ", "", "arms.vm.fabric is missing"),
        ("{arm}/latency", "{arm}/bandwidth", "not known"),
        ("  vm: {", "  xm: {", "arm 'vm' is not described"),
        ("cores_per_node: 44", "facts: {line_rate_gbits: 100}", "did you mean 'line_rate_gbit'"),
        ("cores_per_node: 44", "facts: {line_rate_gbit: fast}", "line_rate_gbit is 'fast'"),
        ("format: 1", "format: 2", "format '2': is not supported"),
    ],
)
def test_labels_are_checked(logs: Path, old: str, new: str, expected: str) -> None:
    assert old in LABELS
    (logs / "study-labels.yaml").write_text(LABELS.replace(old, new, 1))
    with pytest.raises(NearmetalError, match=expected):
        imported(logs)
    assert not (logs.parent / "study" / FACTS).exists()


def test_labels_that_name_missing_files(logs: Path) -> None:
    more = '  - path: "vm/bandwidth-{launch}.out"\n    nodes: 2\n'
    (logs / "study-labels.yaml").write_text(LABELS + more)
    with pytest.raises(SpecError, match=r":9:11: no file matches 'vm/bandwidth"):
        imported(logs)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"\x00\x01\x02", "a zero byte"),
        (b"hello\n", "the format is unknown"),
        (osu(2)[:-5].encode(), "values for 2 columns"),
        (osu(2).encode() + b"srun: error: task 0\n", "the run crashed"),
        ((osu(2) + osu(2, "Latency", "7.4")).encode(), "two versions are mixed"),
        (osu(2).replace("4.00", "4,00").encode(), "a decimal comma"),
        (osu(2).replace("4.00", "-4.00").encode(), "not a measured value"),
        (osu(2).replace("4.00", "NaN").encode(), "not a measured value"),
        (
            "\n".join(
                a + "\n" + b for a, b in zip(osu(2).split("\n"), osu(3).split("\n"), strict=True)
            ).encode(),
            "a second header within a test",
        ),
        (osu(2.01).encode(), "the same bytes as vm/latency-1.out"),
    ],
)
def test_bad_files_are_listed_with_their_reason_and_give_no_number(
    logs: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / "vm" / "latency-12.out").write_bytes(content)
    summary, study = imported(logs)
    assert list(summary.refused) == ["vm/latency-12.out"]
    assert reason in summary.refused["vm/latency-12.out"]
    (source,) = (s for s in study.sources() if s.path == "vm/latency-12.out")
    assert (source.status, source.arm) == ("duplicate" if "same" in reason else "refused", "vm")
    assert all(len(cell.values) == 11 for cell in study.cells())
    words = ["study", "import", str(logs), "--output", str(study.directory), "--json"]
    assert main(words) == 1
    assert reason in json.loads(capsys.readouterr().out)["refused"]["vm/latency-12.out"]
    assert main([*words, "--keep-going"]) == 0


def test_a_link_and_a_pipe_are_refused(logs: Path) -> None:
    (logs / "vm" / "latency-12.out").symlink_to(logs / "vm" / "latency-1.out")
    os.mkfifo(logs / "vm" / "latency-13.out")
    summary, _ = imported(logs)
    assert list(summary.refused) == ["vm/latency-12.out", "vm/latency-13.out"]


def test_the_log_and_its_label_may_not_contradict_each_other(logs: Path) -> None:
    (logs / "study-labels.yaml").write_text(LABELS + "    ranks: 64\n")
    summary, _ = imported(logs)
    assert len(summary.refused) == 22
    assert "2 ranks in the log, 64 in the labels" in summary.refused["vm/latency-1.out"]


def test_one_launch_in_two_files_is_a_wrong_label(logs: Path) -> None:
    (logs / "vm" / "again").mkdir()
    (logs / "vm" / "again" / "latency-3.out").write_text(osu(7))
    (logs / "study-labels.yaml").write_text(LABELS.replace("{arm}/", "{arm}/**/"))
    summary, _ = imported(logs)
    (reason,) = summary.refused.values()
    assert "osu_latency of launch 3 of vm is already in" in reason


def test_short_logs_may_agree_by_chance(logs: Path) -> None:
    for launch in (1, 2):
        text = "# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n            91.30\n"
        (logs / "vm" / f"barrier-{launch}.out").write_text(text)
    more = '  - path: "{arm}/barrier-{launch}.out"\n    nodes: 2\n    ranks: 64\n'
    (logs / "study-labels.yaml").write_text(LABELS + more)
    summary, study = imported(logs)
    assert summary.refused == {}
    (cell,) = study.cells(test="osu_barrier")
    assert (cell.values, cell.point.size, cell.point.ranks) == ((91.3, 91.3), None, 64)


def test_own_runs_need_no_labels(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    make_run(folder / "first")
    _, study = imported(folder)
    cells = list(study.cells())
    assert cells
    assert {s.status for s in study.sources()} <= {"facts", "ignored", "failed"}
    assert all(cell.point.program == "nearmetal-bench" for cell in cells)
    assert derive_again(study.directory).refused == {}
    assert [c.values for c in study.cells()] == [c.values for c in cells]


def test_a_draft_is_refused_where_nothing_is_to_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, own, file = tmp_path / "empty", tmp_path / "own", tmp_path / "draft.yaml"
    empty.mkdir()
    make_run(own / "first")
    for folder, why in ((empty, "has no files"), (own, "contain their labels")):
        assert main(["study", "import", str(folder), "--draft", str(file)]) == 1
        assert why in capsys.readouterr().err
        assert not file.exists()


def test_a_study_is_no_input_and_a_folder_no_study(logs: Path, tmp_path: Path) -> None:
    imported(logs)
    with pytest.raises(NearmetalError, match="is already a study"):
        find_files([tmp_path / "study"])
    with pytest.raises(NearmetalError, match="neither empty nor a study"):
        import_study([logs], None, logs, Unwatched())
    with pytest.raises(NearmetalError, match="is not a directory"):
        find_files([tmp_path / "nothing"])
    with pytest.raises(LogError, match="is not a study"):
        Study(tmp_path)


def test_a_killed_import_leaves_the_old_study(logs: Path) -> None:
    _, study = imported(logs)
    before = (study.directory / FACTS).read_bytes()

    class Killer(Unwatched):
        def step(self, text: str) -> None:
            if text.startswith("vm"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_study([logs], None, study.directory, Killer())
    (study.directory / ".new").mkdir()
    (study.directory / ".new" / "facts.csv").write_text("a kill -9 leaves such things")
    assert (study.directory / FACTS).read_bytes() == before
    summary, _ = imported(logs)
    assert summary.facts == 88
    assert not (study.directory / ".new").exists()


def test_damaged_tables_are_told(logs: Path) -> None:
    _, study = imported(logs)
    path = study.directory / FACTS
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(LogError, match=r"import again|Parquet|damaged"):
        list(study.cells())


@given(st.lists(st.sampled_from(["a", "b-1", "c/d 2", "e.f", "[x]", "é"]), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_a_path_without_marks_is_its_own_pattern(parts: list[str]) -> None:
    path = "/".join(parts)
    assert Pattern(path).match(path) == {}
    assert Pattern(path).match(path + "x") is None
    assert path in draft("r", [path])


def test_the_example_of_labels_is_one() -> None:
    labels, _ = load_labels(
        Path(__file__).parents[2] / "nearmetal/share/examples/logs/study-labels.yaml"
    )
    labeller = Labeller(labels)
    label = labeller.label("vm/gromacs-16n-3.log")
    assert label is not None
    assert (label.arm, label.nodes, label.launch, label.missing) == ("vm", 16, 3, ())
    label = labeller.label("bare-metal/block2/lammps-x.log")
    assert label is not None
    assert (label.arm, label.block, label.launch) == ("bare-metal", 2, 1)
    assert set(arms_of(labels)) == {"bare-metal", "vm"}


def many(folder: Path, count: int) -> None:
    rows = [(size, size / 12000) for size in (0, *(1 << i for i in range(23)))]
    for arm in ("vm", "metal"):
        (folder / arm).mkdir(parents=True)
        for launch in range(count // 2):
            base = 1 + launch % 997 / 100 + (arm == "vm")
            text = "".join(f"{size:<10}{base + more:>18.2f}\n" for size, more in rows)
            remark = f"# launcher: {arm} {launch}\n"
            head = "# OSU MPI Latency Test v5.8\n# Size          Latency (us)\n"
            (folder / arm / f"latency-{launch}.out").write_text(remark + head + text)
    (folder / "study-labels.yaml").write_text(LABELS)


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.full)])
@pytest.mark.timeout(1800)
def test_many_small_logs_stream(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "many"
    many(folder, count)
    summary, study = imported(folder)
    assert (summary.read, summary.facts) == (count, 24 * count)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20, "more than 1 GiB"
    cell = next(study.cells(arm="vm", size=1))
    assert len(cell.values) == count // 2
