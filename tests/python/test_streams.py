# SPDX-License-Identifier: Apache-2.0
"""Standard streams that are closed, full, or without a reader: an exit code and at most a message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FULL = "error: [Errno 28] No space left on device\n  hint: a full disk or a missing permission?\n"


def shell(line: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which $N is nearmetal, with output that waits in a buffer."""
    # No compiled file: with a limit on the size of files, it would be a damaged one.
    own = {"N": f"{sys.executable} -B -m nearmetal", "PYTHONPATH": str(ROOT)}
    own |= {"PATH": os.environ["PATH"], "NEARMETAL_STATE_DIR": str(tmp_path / "state")}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env=own | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("words", ["status", "status --json", "--version", "--help"])
@pytest.mark.parametrize("buffer", ["", "1"])
def test_a_full_disk_is_an_error(words: str, buffer: str, tmp_path: Path) -> None:
    done = shell(f"$N {words} >/dev/full", tmp_path, PYTHONUNBUFFERED=buffer)
    assert done.returncode == 1
    # Without a buffer, the document of the error meets the full disk again.
    assert done.stderr in (FULL, FULL * 2) if buffer else done.stderr == FULL


def test_a_plan_that_cannot_be_written_whole_leaves_no_file(tmp_path: Path) -> None:
    spec = ROOT / "nearmetal/share/examples/two-nodes.yaml"
    done = shell(f"ulimit -f 1; $N plan {spec} --out plan", tmp_path)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize("words", ["status", "status --json", "--help"])
def test_a_reader_that_has_left_ends_the_command_silently(words: str, tmp_path: Path) -> None:
    done = shell(f"$N {words} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_error_reaches_people_although_its_document_has_no_reader(tmp_path: Path) -> None:
    done = shell("$N status nosuch --json | true; exit ${PIPESTATUS[0]}", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot read nosuch: ")
    assert done.stderr.count("\n") == 2


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(("words", "code"), [("schema", 0), ("status nosuch", 1), ("--version", 0)])
def test_closed_streams_change_no_exit_code(
    words: str, code: int, closed: str, tmp_path: Path
) -> None:
    done = shell(f"$N {words} {closed}", tmp_path)
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_messages_do_not_go_to_the_output_where_theirs_is_closed(tmp_path: Path) -> None:
    done = shell("$N down nosuch --yes 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    done = shell("$N status --log-file log >&- 2>&-", tmp_path)
    assert done.returncode == 0
    first, last = (tmp_path / "log").read_text().splitlines()
    assert first.endswith("status --log-file log")
    assert last.endswith(" end")


def test_ctrl_c_at_a_question_ends_its_line() -> None:
    ours, theirs = os.openpty()
    code = (
        "from nearmetal.cli.main import run\n"
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "ask = lambda _, view: view.ask('reboot kvm1', yes=False)\n"
        "parser.set_defaults(handler=ask, json=False)\n"
        "raise SystemExit(run([], lambda: parser))\n"
    )
    env = os.environ | {"NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as asking:
        shown = b""
        while b"[yes/no] " not in shown:
            shown += os.read(ours, 4096)
        asking.send_signal(signal.SIGINT)
        asking.wait(timeout=60)
    os.close(theirs)
    while b"SIGINT" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert asking.returncode == 128 + signal.SIGINT
    assert "[yes/no] \nerror: interrupted by SIGINT" in shown.decode().replace("\r", "")
