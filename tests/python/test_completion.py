# SPDX-License-Identifier: Apache-2.0
"""Real shells complete the command line: what is typed with a Tab reaches the program whole."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearmetal.cli.completion import SHELLS, script
from nearmetal.cli.main import main
from nearmetal.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]
HANG_S = 60

CASES = {
    "stat\t": "status",
    "host rollb\t": "host rollback",
    "study rep\t": "study rep",  # report and reproduce: nothing to choose
    "up --repl\t x": "up --replace x",
    "host apply --by\t hosts": "host apply --by-hand-done hosts",
    "run --map-by no\t": "run --map-by node",
    "run --mpi mpi\t": "run --mpi mpich5",
    "status my-cl\t": "status my-cluster",
    "down --yes my-cl\t": "down --yes my-cluster",
    "plan my-sp\t": "plan my-spec.yaml",
    "up my-pl\t": "up my-plan.plan",
    "host plan any-f\t": "host plan any-file",
}

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
PREPARE = {
    "bash": "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; source {script}",
    "zsh": "unsetopt beep; fpath=({folder} $fpath); autoload -U compinit; compinit -u -D",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with files to complete, a cluster, and a program that prints its arguments."""
    program = tmp_path / "bin/nearmetal"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" != completion ] || exec {sys.executable} -m nearmetal "$@"\n'
        "printf '<%s>\\n' \"$*\"\n"
    )
    program.chmod(0o755)
    (tmp_path / "state/clusters/my-cluster").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    for name in ("my-spec.yaml", "my-spec.txt", "my-plan.plan", "any-file"):
        (tmp_path / "work" / name).touch()
    return tmp_path


def environment(site: Path) -> dict[str, str]:
    return {
        "PATH": f"{site}/bin:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "NEARMETAL_STATE_DIR": str(site / "state"),
        "HOME": str(site),
        "TERM": "dumb",
        "PS1": "$ ",
        "LC_ALL": "C.UTF-8",
    }


def typed(shell: str, site: Path, lines: list[str]) -> list[str]:
    """Type lines into a shell on a terminal; returns the arguments that the program got for each."""
    folder = site / shell
    folder.mkdir()
    path = folder / ("_nearmetal" if shell == "zsh" else "nearmetal")
    path.write_text(script(shell))
    ours, theirs = os.openpty()
    with subprocess.Popen(
        START[shell],
        cwd=site / "work",
        env=environment(site),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            prepare = PREPARE[shell].format(script=path, folder=folder)
            seen = answer(ours, f"{prepare}; nearmetal ready", b"<ready>")
            for line in lines:
                seen += answer(ours, f"nearmetal {line}", b">\r\n")
        finally:
            process.kill()
    os.close(ours)
    shown = seen.decode().replace("\r", "")
    return [line[1:-1] for line in shown.splitlines() if line[:1] == "<" and line[-1:] == ">"][1:]


def answer(terminal: int, line: str, end: bytes) -> bytes:
    """Type a line, and return what the terminal shows until `end`."""
    os.write(terminal, line.encode() + b"\r")
    seen, deadline = b"", time.monotonic() + HANG_S
    while end not in seen:
        left_s = deadline - time.monotonic()
        assert left_s > 0, f"{line!r}: {seen!r}"
        if select.select([terminal], [], [], left_s)[0]:
            seen += os.read(terminal, 65536)
    return seen


@pytest.mark.parametrize("shell", START)
def test_a_tab_completes_verbs_options_files_and_names(shell: str, site: Path) -> None:
    found = dict(zip(CASES, typed(shell, site, list(CASES)), strict=True))
    assert found == CASES


def fish(site: Path, line: str) -> list[str]:
    """Return what fish offers for a line."""
    path = site / "fish"
    path.write_text(script("fish"))
    code = f"source {path}; complete --do-complete 'nearmetal {line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code],
        cwd=site / "work",
        env=environment(site),
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


@pytest.mark.parametrize("line", [line for line in CASES if not line.startswith("study")])
def test_fish_offers_the_same(line: str, site: Path) -> None:
    begin, _, _ = line.partition("\t")
    complete = CASES[line][len(begin.rpartition(" ")[0]) :].split()[0]
    assert fish(site, begin) == [complete]


def test_fish_offers_every_verb(site: Path) -> None:
    offers = fish(site, "")
    assert [offer for offer in offers if offer] == sorted(v for v in VERBS if " " not in v)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_verb_and_is_valid(shell: str, tmp_path: Path) -> None:
    path = tmp_path / shell
    path.write_text(script(shell))
    subprocess.run([shell, "-n", path], check=True, timeout=HANG_S)
    text = path.read_text()
    assert [verb for verb in VERBS if verb.split()[-1] not in text] == []


def test_the_verb_prints_a_script_and_names(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(site / "state"))
    assert main(["completion", "bash"]) == 0
    assert "complete -o bashdefault" in capsys.readouterr().out
    assert main(["completion", "clusters"]) == 0
    assert capsys.readouterr().out == "my-cluster\n"
    assert main(["completion", "csh"]) == 2
