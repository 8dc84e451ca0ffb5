# SPDX-License-Identifier: Apache-2.0
"""Folders, labels and specs of an adversary: nothing is evaluated, followed, waited for, or obeyed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.cli.view import View
from nearmetal.config.explain import parse_yaml
from nearmetal.core.errors import MAX_PROBLEMS, LogError, NearmetalError, SpecError
from nearmetal.core.files import read_json, read_named, read_regular
from nearmetal.core.text import printable, printable_lines
from nearmetal.evidence import read_manifest
from nearmetal.study.importer import MAX_DEPTH, derive_again, find_files, import_study
from nearmetal.study.labels import Labels, draft, fill_in, parse_labels
from nearmetal.study.pattern import Pattern
from nearmetal.study.store import FACTS, SOURCES, Study
from tests.python.evidence_runs import make_run

SECRET = "password-of-somebody"
ESCAPE = "\x1b]0;owned\x07\x9b31m"
LABELS = """\
format: 1
run: lab
arms:
  a: {platform: bare metal, fabric: IB, placement: near}
sources:
  - path: "x-{launch}.out"
    arm: a
    nodes: 2
"""
LOG = "# OSU MPI Latency Test v5.8\n# Size          Latency (us)\n1 1.00\n2 1.00\n4 1.00\n8 1.00\n"


class Silent:
    def begin(self, total: int) -> None:
        pass

    def step(self, text: str) -> None:
        pass


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "x-1.out").write_text(LOG)
    (folder / "study-labels.yaml").write_text(LABELS)
    return folder


def take(folder: Path) -> Study:
    import_study([folder], None, folder.parent / "s", Silent())
    return Study(folder.parent / "s")


# Words


@pytest.mark.parametrize(
    "template", ["{arm:>2000000000}", "{arm.__class__.__mro__}", "{arm!r:>9}", "{arm[0]}", "{", "}"]
)
def test_a_template_is_no_format_string(logs: Path, template: str) -> None:
    assert fill_in(template + "-{arm}", {"arm": "vm"}) == template + "-vm"
    text = LABELS.replace("arm: a", f"arm: {json.dumps(template)}").replace("  a:", "  b:")
    (logs / "study-labels.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        take(logs)
    assert f"arm {template!r} is not described" in caught.value.message
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("shown", [ESCAPE, "\u202egnp", "a\nerror: forged", "\udcff", "\x7f", "\r"])
def test_no_control_character_reaches_a_terminal(
    logs: Path, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / os.fsencode(f"x{shown}-1.out").decode("utf-8", "surrogateescape")).write_text("hello")
    assert main(["study", "import", str(logs), "--output", str(logs.parent / "s")]) == 1
    text = (logs / "study-labels.yaml").read_text()
    (logs / "study-labels.yaml").write_text(text.replace('"x-', '"x*-'))
    (logs / "x-1.out").unlink()
    assert main(["study", "import", str(logs), "--output", str(logs.parent / "s")]) == 1
    seen = capsys.readouterr()
    assert printable(shown) in seen.err
    assert all(line.isprintable() for line in (seen.out + seen.err).split("\n"))
    assert not any(line.startswith("error: forged") for line in seen.err.split("\n"))


def test_tables_and_results_are_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    view = View(as_json=False)
    view.table(("name",), [[f"node{ESCAPE}\n"]])
    view.result({}, [f"a\tb{ESCAPE}"])
    view.note(ESCAPE)
    view.warn("x", ESCAPE)
    seen = capsys.readouterr()
    assert seen.out == f"name\nnode{printable(ESCAPE)}\\n\na\tb{printable(ESCAPE)}\n"
    assert all(line.isprintable() for line in seen.err.split("\n"))


def test_text_without_control_characters_is_as_it_was() -> None:
    for text in ("", "µs", "naïve 漢字", "a  b"):
        assert printable(text) == text == printable_lines(text)
    assert printable_lines("a\n\tb") == "a\n\tb"
    assert printable("a\n\tb\\") == "a\\n\\tb\\"


def test_keys_of_yaml_are_escaped(tmp_path: Path) -> None:
    arms = r"""arms: {"\e]0;owned\a\nerror: forged": {platform: 1}}"""
    with pytest.raises(SpecError) as caught:
        parse_labels(f"format: 1\nrun: r\n{arms}\nsources: []\n", str(tmp_path / f"l{ESCAPE}"))
    lines = caught.value.message.split("\n")
    assert len(lines) == 4  # the name, platform, fabric and placement
    assert all(line.isprintable() and r"\x1b]0;owned\x07\nerror: forged" in line for line in lines)


def test_a_draft_matches_its_files_and_is_yaml(logs: Path) -> None:
    for name in ('quote".out', "back\\slash.out", "{arm}.out", "star*.out", f"e{ESCAPE}.out"):
        (logs / name).write_text("x")
    paths = [file.path for file in find_files([logs])]
    text = draft('a"b', paths)
    for hole, value in (("platform:", "p"), ("fabric:", "f"), ("placement:", "x")):
        text = text.replace(hole, f"{hole} {value}")
    text = text.replace("    nodes:\n", "    nodes: 1\n").replace(
        "    launch:\n", "    launch: 1\n"
    )
    labels, _ = parse_labels(text.replace("    arm:\n", "    arm: a\n"), "draft")
    patterns = [Pattern(rule.path) for rule in labels.sources]
    for path in paths:
        assert any(one.match(path) is not None for one in patterns), path


# Links, devices, FIFOs


def hostile(place: Path, kind: str) -> None:
    """Put something at a place that must not be read."""
    place.unlink(missing_ok=True)
    match kind:
        case "link":
            outside = place.parent / ".." / ".." / "secret"
            outside.write_text(SECRET)
            place.symlink_to(outside)
        case "device":
            place.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                here = Path.cwd()
                os.chdir(place.parent)  # its name may have few bytes
                server.bind(place.name)
                os.chdir(here)
        case "directory":
            place.mkdir()


KINDS = ("link", "device", "fifo", "socket", "directory")


@pytest.mark.parametrize("kind", KINDS)
def test_labels_in_a_folder_are_a_regular_file(
    logs: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile(logs / "study-labels.yaml", kind)
    assert main(["study", "import", str(logs), "--output", str(logs.parent / "s")]) == 1
    seen = capsys.readouterr().err
    assert "not a regular file" in seen
    assert SECRET not in seen
    assert not (logs.parent / "s").exists()


@pytest.mark.parametrize("kind", ["device", "fifo", "socket", "directory"])
@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["study", "run"],
        ["study", "import", "LOGS", "--labels"],
        ["study", "lint"],
        ["import", "vhpc", "--vcenter", "v"],
        ["advise", "--trace"],
        ["host", "plan"],
    ],
)
def test_a_named_file_is_a_regular_file(
    logs: Path, words: list[str], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = logs.parent / "named"
    hostile(place, kind)
    given = [str(logs) if word == "LOGS" else word for word in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(logs.parent)
        assert main([*given, str(place)]) in (1, 2)
    assert "not a regular file" in capsys.readouterr().err


SPEC = """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1}]}]
"""


@pytest.mark.parametrize("place", ["/dev/stdin", "/proc/self/fd/0", '<(printf %s "$SPEC")'])
def test_a_user_may_give_a_pipe(tmp_path: Path, place: str) -> None:
    argv = [sys.executable, "-m", "nearmetal", "plan"]
    done = subprocess.run(
        ["bash", "-c", f'printf %s "$SPEC" | "$@" {place}', "bash", *argv],
        env={"PATH": os.environ["PATH"], "SPEC": SPEC, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "+ node n1" in done.stdout, done.stderr


def test_a_pipe_is_bounded() -> None:
    inner, outer = os.pipe()
    try:
        os.write(outer, b"1234567")
        with pytest.raises(OSError, match="larger than 6 bytes"):
            read_named(f"/dev/fd/{inner}", 6)
    finally:
        os.close(inner)
        os.close(outer)
    with pytest.raises(OSError, match="No such file"):
        read_named(f"/dev/fd/{inner}", 6)


def test_a_user_may_name_a_link(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "labels").symlink_to(logs / "study-labels.yaml")
    (tmp_path / "folder").symlink_to(logs)
    import_study([tmp_path / "folder"], tmp_path / "labels", tmp_path / "s", Silent())
    assert [s.status for s in Study(tmp_path / "s").sources()] == ["facts"]


@pytest.mark.parametrize("kind", ["link", "device", "fifo", "socket"])
def test_a_log_is_a_regular_file(logs: Path, kind: str) -> None:
    hostile(logs / "x-2.out", kind)
    study = take(logs)
    (refused,) = [s for s in study.sources() if s.status == "refused"]
    assert refused.reason.endswith("not a regular file")
    assert not refused.source


def test_a_raw_folder_that_is_a_link_copies_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "first")
    (run / "raw").rename(tmp_path / "outside")
    (run / "raw").symlink_to(tmp_path / "outside")
    study = take(tmp_path / "runs")
    read = [s for s in study.sources() if s.status != "ignored"]
    assert read
    assert all("is a link" in s.reason for s in read)
    assert [p for p in (study.directory / "objects").rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path / "runs" / "first")
    hostile(run / "manifest.json", kind)
    with pytest.raises(LogError, match="not a regular file"):
        read_manifest(run)


@pytest.mark.parametrize("kind", ["link", "device", "fifo", "socket", "directory"])
@pytest.mark.parametrize("name", [FACTS, SOURCES, "object", "study-labels.yaml"])
def test_a_study_has_regular_files(logs: Path, name: str, kind: str) -> None:
    study = take(logs)
    place = study.directory / name
    if name == "object":
        place = next(p for p in (study.directory / "objects").rglob("*") if p.is_file())
    hostile(place, kind)
    with pytest.raises(NearmetalError, match=r"it has no|not a regular file"):
        derive_again(study.directory)


def test_a_study_with_linked_objects_is_not_written_to(logs: Path, tmp_path: Path) -> None:
    study = take(logs)
    folder = next((study.directory / "objects").iterdir())
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NearmetalError, match="has links"):
        derive_again(study.directory)


@pytest.mark.parametrize("name", ["s*", "s?", "s[1]", "s1'", "arm=1", "**"])
def test_the_name_of_a_study_is_no_pattern(logs: Path, tmp_path: Path, name: str) -> None:
    import_study([logs], None, tmp_path / "s1", Silent())
    (logs / "x-1.out").write_text(LOG.replace("1.00", "9.00"))
    import_study([logs], None, tmp_path / name, Silent())
    cells = list(Study(tmp_path / name).cells())
    assert [[seen.value for seen in cell.observations] for cell in cells] == [[9.0]] * 4
    assert {cell.arm for cell in cells} == {"a"}
    assert len(Study(tmp_path / name).sources()) == 1
    assert Study(tmp_path / name).cell_count(1) == 4


def test_saved_state_is_read_within_limits(tmp_path: Path) -> None:
    for kind in KINDS[1:]:
        place = tmp_path / f"{kind}.json"
        hostile(place, kind)
        assert read_json(place) is None
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert read_json(tmp_path / "deep.json") is None


def test_a_file_is_read_below_its_folder_only(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("content")
    (tmp_path / "a" / "up").symlink_to("..")
    assert read_regular("b/c", 7, below=tmp_path / "a") == b"content"
    for path in ("up/a/b/c", "../a/b/c", str(tmp_path / "a" / "b" / "c"), "b/../b/c"):
        with pytest.raises(OSError, match=r"link or not a directory|leaves its folder"):
            read_regular(path, 7, below=tmp_path / "a")
    with pytest.raises(OSError, match="larger than 6 bytes"):
        read_regular("b/c", 6, below=tmp_path / "a")


def test_a_file_that_shows_no_size_is_bounded_too() -> None:
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_regular("/proc/self/status", 10)
    assert os.fspath(Path("/proc/self/status")).encode()
    assert read_regular("/proc/self/status", 1 << 20).startswith(b"Name:")


# Sizes and depth


def test_nested_folders_are_refused_with_their_path(logs: Path) -> None:
    inner = logs
    for _ in range(MAX_DEPTH):
        inner /= "d"
    inner.mkdir(parents=True)
    (inner / "x").touch()
    assert len(find_files([logs])) == 2
    deep = os.open(inner, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deep)
        inside = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inside
    os.close(deep)
    try:
        with pytest.raises(NearmetalError, match="more than 64 folders within each other: d/d/"):
            find_files([logs])
    finally:
        # Python's own removal, which pytest uses later, descends by recursion.
        subprocess.run(["/bin/rm", "-rf", str(inner)], check=True)


def test_many_unknown_keys_are_counted() -> None:
    text = "format: 1\n" + "".join(f"key{i}: 1\n" for i in range(1000))
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "f", Labels, "labels")
    lines = caught.value.message.split("\n")
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1] == f"and {1003 - MAX_PROBLEMS} more problems"
    assert len(caught.value.problems) == MAX_PROBLEMS


def test_many_values_are_refused() -> None:
    with pytest.raises(SpecError, match="at most 100000 keys and values"):
        parse_yaml("[" + "1," * 110_000 + "]", "f", Labels, "labels")


def test_a_log_cannot_spoil_the_tables_of_the_others(logs: Path) -> None:
    hpcc = "This is the DARPA/DOE HPC Challenge Benchmark version 1\nBegin of Summary section\n"
    hpcc += "".join(f"key{i}={'v' * 5000}\n" for i in range(4000))
    texts = {
        "x-2.out": LOG.replace("8 1.00", "8 1.00\n16 1.00") + "# [ pairs: 99999999999999999999 ]\n",
        "x-3.out": LOG.replace("1 1.00\n2 1.00\n4 1.00\n8 1.00", "1e300 1.00"),
        "x-4.out": "LAMMPS (1)\nLoop time of 1 on "
        + "9" * 5000
        + " procs for 1 steps with 1 atoms\n",
        "x-5.out": hpcc + "Success=1\nEnd of Summary section\nHPL_Tflops=1\n",
        "x-6.out": f"# nearmetal-bench 1 p\n# table {'t' * 60_000}\nsize_B\n1\n"
        f"# end {'t' * 60_000}\n# done p\n",
    }
    for name, text in texts.items():
        (logs / name).write_text(text)
    study = take(logs)
    status = {s.path: s.status for s in study.sources()}
    assert status == dict.fromkeys(texts, "refused") | {"x-1.out": "facts", "x-5.out": "facts"}
    assert len(list(study.cells())) == 4


def test_a_launch_number_has_a_bound() -> None:
    with pytest.raises(SpecError, match="at most 999999999"):
        parse_labels(LABELS.replace("nodes: 2", "nodes: 2\n    launch: 5000000000"), "f")
