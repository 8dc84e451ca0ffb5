# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from nearmetal.cli.job import parse_environment
from nearmetal.cli.main import main, run
from nearmetal.cli.verbs import VERBS, build_parser
from nearmetal.cli.view import View
from nearmetal.cluster.registration import specs
from nearmetal.cluster.spec import load_spec
from nearmetal.cluster.store import Store
from nearmetal.core.errors import Interrupted, UsageError
from nearmetal.core.journal import Event, Journal
from tests.python.parsers import choices, lines, verb_parsers

ROOT = Path(__file__).parents[2]
MAN = ROOT / "nearmetal/share/man"
TWO_NODES = str(ROOT / "nearmetal/share/examples" / "two-nodes.yaml")


PARSERS = verb_parsers()


LOG_FLAGS = ("-v", "--verbose", "--log-file")
"""Every verb has them, and nearmetal(1) tells of them."""


def man_page(verb: str) -> str:
    """Return the page of a verb; the verbs of a group share one."""
    return (MAN / f"nearmetal-{verb.split(maxsplit=1)[0]}.md").read_text()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize("verb", PARSERS)
def test_every_verb_has_json_a_summary_and_an_example(verb: str) -> None:
    text = PARSERS[verb].format_help()
    assert "--json" in text
    assert re.search(rf"^example: (?:srun [^\n]*)?nearmetal {verb}\b", text, re.MULTILINE)
    assert PARSERS[verb].description


@pytest.mark.parametrize("verb", PARSERS)
def test_every_verb_says_its_exit_codes_in_the_same_way(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = PARSERS[verb].format_help()
    codes = re.findall(r"^  (\w[\w +]*?)  +", text.partition("\nexit codes:\n")[2], re.MULTILINE)
    assert codes == list(VERBS[verb].codes())
    assert codes[:3] == ["0", "1", "2"]
    assert max(map(len, text.splitlines())) <= 100


def codes_in(page: str, name: str) -> set[str]:
    return set(re.findall(r"\b[34]\b", page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]))


def test_the_manual_and_the_help_list_the_same_exit_codes_and_summaries() -> None:
    manual = (MAN / "nearmetal.md").read_text()
    for code in ("3", "4"):
        row = re.search(rf"^\| {code} \| (.*)", manual, re.MULTILINE)
        named = re.findall(r"`([a-z ]+[a-z])(?: --[a-z-]+)?`", row[1] if row else "")
        assert named == [name for name, verb in VERBS.items() if code in verb.codes()]
    for name, verb in VERBS.items():
        own = {"3", "4"} & verb.codes().keys()
        assert own <= codes_in(man_page(name), "EXIT STATUS"), name
        if " " not in name:
            title = re.search(r"## NAME\n\n(.*?)\n\n", man_page(name), re.DOTALL)
            assert title
            assert title[1].replace("\n", " ") == f"nearmetal-{name} - {verb.summary}"


@pytest.mark.parametrize("verb", PARSERS)
def test_every_verb_and_flag_is_in_its_man_page(verb: str) -> None:
    page, common = man_page(verb), (MAN / "nearmetal.md").read_text()
    name = f"nearmetal-{verb.split(maxsplit=1)[0]}(1)"
    assert page.startswith(f"# {name}\n")
    assert verb in page
    for action in PARSERS[verb]._actions:
        for flag in action.option_strings:
            if flag not in ("-h", "--help"):
                told = common if flag in LOG_FLAGS else page
                assert re.search(rf"^(?:\| )?`.*{re.escape(flag)}\b", told, re.MULTILINE), flag
        if not action.option_strings:
            assert str(action.metavar) in page
    assert name in (MAN / "nearmetal.md").read_text()


@pytest.mark.parametrize("verb", PARSERS)
def test_no_man_page_names_a_flag_that_is_not_there(verb: str) -> None:
    page = man_page(verb)
    group = [p for name, p in PARSERS.items() if name.split()[0] == verb.split(maxsplit=1)[0]]
    known = {name for parser in group for a in parser._actions for name in a.option_strings}
    assert set(re.findall(r"^(?:\| )?`(--?[a-z][a-z-]*)", page, re.MULTILINE)) <= known


def models(model: type[BaseModel]) -> set[type[BaseModel]]:
    """Return the models of ours that a model is made of, itself among them."""
    found = {model}
    kinds: list[Any] = [field.annotation for field in model.model_fields.values()]
    while kinds:
        kind = kinds.pop()
        kinds += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= models(kind)
    return found


MODELS = {part for spec in specs().values() for part in models(spec)}


def test_every_field_of_a_spec_is_in_its_man_page() -> None:
    page = (MAN / "nearmetal-spec.md").read_text()
    for model in MODELS:
        for name in model.model_fields:
            assert f"\n`{name}`\n: " in page, name


def test_the_verbs_of_the_help_are_those_of_the_list() -> None:
    assert list(verb_parsers()) == [name for name, verb in VERBS.items() if verb.module]


@pytest.mark.parametrize(
    "group", [None, *(name for name, verb in VERBS.items() if not verb.module)]
)
def test_the_lines_of_the_help_are_the_descriptions_of_the_verbs(group: str | None) -> None:
    parser = build_parser() if group is None else choices(build_parser())[group]
    registered = {name: inner.description for name, inner in choices(parser).items()}
    shown = {name: f"{line[0].upper()}{line[1:]}." for name, line in lines(parser).items()}
    assert shown == registered


SLOW = ("pydantic", "duckdb", "rich", "jinja2", "yaml", "pyVmomi", "libvirt")


QUICK = (
    "",
    "study",
    "host",
    "slurm",
    "plan",
    "run",
    "study run",
    "study report",
    "host vf",
    "check",
)


@pytest.mark.parametrize("words", [line.split() for line in QUICK])
def test_the_help_loads_no_slow_module(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from nearmetal.cli.main import main\n"
        "try:\n"
        "    main([*sys.argv[1:], '--help'])\n"
        "finally:\n"
        f"    print(sorted(set({SLOW!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith(f"usage: {' '.join(['nearmetal', *words])} [-h]")
    assert done.stderr == "[]\n"


def test_help_before_a_verb_is_the_help_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help", "up"])
    told = capsys.readouterr().out
    assert all(
        re.search(rf"^    {verb}(?: |$)", told, re.MULTILINE) for verb in VERBS if " " not in verb
    )


def test_plan_shows_changes_and_exits_3(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    assert main(["plan", TWO_NODES]) == 3
    assert "plan: 5 to make, 0 to change, 0 to remove" in capsys.readouterr().out
    assert main(["plan", "--json", TWO_NODES]) == 3
    data = json.loads(capsys.readouterr().out)
    assert [c["action"] for c in data["changes"]] == ["create"] * 5
    assert not state.exists()


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "ClusterSpec"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "required: VERB"),
        (["fly"], "invalid choice: 'fly'"),
        (["plan"], "plan needs a SPEC"),
        (["up"], "required: SPEC"),
        (["up", "x", "--hurry"], "unrecognized arguments: --hurry"),
        (["up", "x", "--repl"], "unrecognized arguments: --repl"),
        (["--vers"], "required: VERB"),
        (["run", TWO_NODES, "-n", "many", "--", "true"], "invalid int value: 'many'"),
    ],
)
def test_wrong_usage_exits_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert expected in capsys.readouterr().err
    assert main([*words, "--json"] if "--" not in words else ["--json"]) == 2
    assert "error" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("group", "usual"), [("check", "run"), ("tune", "copies")])
def test_a_group_alone_means_its_usual_verb(group: str, usual: str) -> None:
    alone, full = (build_parser().parse_args(words) for words in ([group], [group, usual]))
    assert alone.handler is full.handler


def test_a_wrong_spec_exits_1_with_every_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("version: 1\nname: c\nbackend: mars\nhosts: []\n")
    assert main(["up", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("bad.yaml:")[2].split(":")[0] for line in lines] == ["3", "4"]
    assert main(["up", "--json", str(path)]) == 1
    problems = json.loads(capsys.readouterr().out)["error"]["problems"]
    assert [(p["line"], p["column"]) for p in problems] == [(3, 10), (4, 8)]


@pytest.mark.parametrize(
    "words",
    [
        ["exec", TWO_NODES, "n1", "--", "true"],
        ["run", TWO_NODES, "--", "true"],
        ["locality", TWO_NODES],
    ],
)
def test_verbs_that_need_a_cluster_say_how_to_get_one(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    words_of_error = capsys.readouterr().err
    assert "cluster two-nodes is not up" in words_of_error
    assert "run `nearmetal up" in words_of_error


@pytest.mark.parametrize("words", ["run SPEC", "exec SPEC n1", "slurm task"])
def test_a_second_pair_of_dashes_is_an_argument_of_the_program(words: str) -> None:
    args = build_parser().parse_args([*words.split(), "--", "sh", "-c", "echo", "--", "--json"])
    assert (args.program, args.args, args.json) == ("sh", ["-c", "echo", "--", "--json"], False)
    args = build_parser().parse_args([*words.split(), "--", "app"])
    assert (args.program, args.args) == ("app", [])


def test_status_without_a_spec_lists_the_clusters(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "no cluster exists\n"
    for name in ("b", "a"):
        (state / "clusters" / name).mkdir(parents=True)
    Store(state).record(load_spec(Path(TWO_NODES)).model_copy(update={"name": "b"}))
    Journal(state / "clusters/b").write("up", "make node n1", Event.BEGIN)
    assert main(["status"]) == 0
    assert [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()] == [
        ["cluster", "backend", "nodes", "interrupted at"],
        ["a", "-", "-", "-"],
        ["b", "local", "2", "up: make node n1"],
    ]
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clusters"] == [
        {"name": "a", "backend": "", "nodes": None, "unfinished": ""},
        {"name": "b", "backend": "local", "nodes": 2, "unfinished": "up: make node n1"},
    ]


def test_a_name_of_nothing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "no-such-cluster"]) == 1
    assert "cannot read no-such-cluster" in capsys.readouterr().err


def test_a_name_without_a_readable_record(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "clusters" / "c").mkdir(parents=True)
    assert main(["status", "c"]) == 1
    assert "is not readable" in capsys.readouterr().err


def test_environment_pairs() -> None:
    assert parse_environment(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(UsageError, match="not of the form K=V"):
        parse_environment(["A"])


def test_tables_are_as_wide_as_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    View(as_json=False).table(("a", "b"), [("1", "x" * 200), ("22", "y")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a   b", "1   " + "x" * 200, "22  y"]
    View(as_json=True).table(("a",), [("1",)])
    assert capsys.readouterr().out == ""


def test_steps_without_a_terminal_are_lines_as_they_begin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with View(as_json=True).steps("title") as steps:
        steps.step("look")
        assert re.fullmatch(r" +0\.\d s  look\n", capsys.readouterr().err)
        steps.begin(2)
        steps.step("one\x1b[2J")
        assert re.fullmatch(r" +0\.\d s  \[1/2\] one\\x1b\[2J\n", capsys.readouterr().err)
    with View(as_json=False).steps("title", lines=False) as steps:
        steps.begin(9)
        steps.step("a file")
    assert capsys.readouterr() == ("", "")


def test_steps_on_a_terminal_are_counted() -> None:
    terminal, end = os.openpty()
    code = (
        "from nearmetal.cli.view import View\n"
        "with View(as_json=False).steps('up demo') as steps:\n"
        "    steps.begin(3)\n"
        "    steps.step('node n1')\n"
        "    steps.step('node n2')\n"
    )
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=end,
        check=True,
        timeout=60,
    )
    os.close(end)
    with open(terminal, "rb") as stream:  # noqa: PTH123 - a descriptor
        shown = stream.read1(65536).decode()
    assert done.stdout == b""
    assert "2/3" in shown
    for line in (r"\[1/3\] node n1", r"\[2/3\] node n2"):
        assert re.search(rf"\d s  {line}\r?\n", shown)


def test_a_signal_inside_a_callback_of_a_library_is_still_an_interruption(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def handler(_args: object, _view: View) -> int:
        raise RuntimeError("a callback failed") from Interrupted(signal.SIGTERM)

    parser = argparse.ArgumentParser()
    parser.set_defaults(handler=handler, json=False)
    assert run([], lambda: parser) == 128 + signal.SIGTERM
    assert "interrupted by SIGTERM" in capsys.readouterr().err
