# SPDX-License-Identifier: Apache-2.0
"""The log: every command with its time, on request, and never a secret."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.cli.view import View
from nearmetal.config.password import PasswordSource, find_password
from nearmetal.core import log
from nearmetal.core.errors import CommandError, Interrupted, NearmetalError
from nearmetal.core.process import Command, LocalRunner

ROOT = Path(__file__).parents[2]


class Blocked(io.StringIO):
    """A stream at which every write ends with an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, _text: str) -> int:
        raise self.error


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    before = set(log._known)
    log._known.clear()
    yield
    log._known.clear()
    log._known.update(before)


def test_v_shows_each_command_with_its_time_and_vv_its_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runner = LocalRunner()
    hello = Command(("sh", "-c", "echo hello; echo woe >&2; exit 3"))
    runner.run(hello, timeout_s=10)
    assert capsys.readouterr().err == ""
    with log.logging_to(1, None):
        runner.run(hello, timeout_s=10)
        runner.run(Command(("sleep", "9")), timeout_s=0.01)
        runner.attach(Command(("true",)), timeout_s=10)
        runner.converse(Command(("cat",))).finish(10)
        with pytest.raises(CommandError):
            runner.run(Command(("/no/such/program",)), timeout_s=10)
    told = capsys.readouterr().err
    clock = r"\d\d:\d\d:\d\d\.\d{3} "
    assert re.search(rf"^{clock}\d+\.\d{{3}} s, exit 3: sh -c 'echo hello;", told, re.MULTILINE)
    assert re.search(rf"^{clock}\d\.\d{{3}} s, timed out: sleep 9$", told, re.MULTILINE)
    assert re.search(r"s, exit 0: true$", told, re.MULTILINE)
    assert re.search(r"s, exit 0: cat$", told, re.MULTILINE)
    assert "cannot start (No such file or directory): /no/such/program" in told
    assert "output" not in told
    with log.logging_to(2, None):
        runner.run(hello, timeout_s=10)
    told = capsys.readouterr().err
    assert re.search(r"starts: sh -c .*\n.* exit 3: .*\n.* output:\n    hello\n", told)
    assert re.search(r"errors:\n    woe\n\Z", told)


def test_the_file_gets_everything_with_its_date_and_for_its_owner_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.log"
    view = View(as_json=False)
    for _ in range(2):
        with log.logging_to(0, path):
            LocalRunner().run(Command(("echo", "out")), timeout_s=10)
            view.warn("beware")
            with view.steps("title") as steps:
                steps.begin(1)
                steps.step("one")
    assert "echo" not in capsys.readouterr().err
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    for words in ("starts: echo out", "s, exit 0: echo out", "WARNING: beware", "step [1/1] one"):
        line = rf"^\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}} .*{re.escape(words)}$"
        assert len(re.findall(line, text, re.MULTILINE)) == 2, words
    with log.logging_to(1, None):
        view.warn("once")
    assert capsys.readouterr().err.count("once") == 1


@pytest.mark.parametrize("kind", ["directory", "fifo", "link", "absent"])
def test_a_log_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path = path / "below" / "log"
    with pytest.raises(NearmetalError, match="cannot write the log"), log.logging_to(0, path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_log_of_a_verb_has_its_command_line_errors_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "run.log"
    assert main(["status", "--log-file", str(path)]) == 0
    assert main(["status", "no-such-cluster", "--log-file", str(path)]) == 1
    text = path.read_text()
    assert re.search(r"nearmetal \S+: status --log-file", text)
    assert len(re.findall(r" end$", text, re.MULTILINE)) == 2
    assert "error: cannot read no-such-cluster" in text
    capsys.readouterr()
    assert main(["status", "-vv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"clusters": []}


SECRETS = [
    "mysql --password=hunter2 -u x",
    "curl --api-token hunter2 host",
    "tool --pass 'hunter2'",
    "env DB_PASSWORD=hunter2 app",
    '{"password": "hunter2", "a": 1}',
    "secret_key: hunter2",
    "https://user:hunter2@example.org/x",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
    "hunter2\nhunter2=\n-----END OPENSSH PRIVATE KEY-----",
    "hunter2=\n-----END RSA PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\nMIIB",
    '{"password": "ab,cd;hunter2", "a": 1}',
    "password: my secret hunter2",
    "Authorization: Basic hunter2",
    "Cookie: vmware_soap_session=hunter2",
    "curl -u admin:hunter2 host",
    "sshpass -p hunter2 ssh kvm1",
    "tool --password -hunter2",
]


@pytest.mark.parametrize("text", SECRETS)
def test_values_that_are_named_as_secrets_are_masked(text: str) -> None:
    assert "hunter2" not in log.masked(text)
    assert log.MASK in log.masked(text)


@pytest.mark.parametrize(
    "text",
    ["ssh -o PasswordAuthentication kvm1", "the token has 8 bytes", "mlxconfig -y set A=1"],
)
def test_other_words_stay(text: str) -> None:
    assert log.masked(text) == text


def test_a_secret_is_masked_although_its_name_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    script = "printf 'password: '; head -c 3000 /dev/zero | tr '\\0' x"
    with log.logging_to(0, path):
        LocalRunner().run(Command(("sh", "-c", script)), timeout_s=10)
    assert "x" * 100 not in path.read_text()


def test_an_interruption_passes_through_a_log_that_cannot_be_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with log.logging_to(0, tmp_path / "run.log"):
        (handler,) = (h for h in log._LOGGER.handlers if isinstance(h, log._Stream))
        stream, handler.stream = handler.stream, Blocked(Interrupted(signal.SIGINT))
        with pytest.raises(Interrupted):
            log.command("ssh --password hunter2")
        handler.stream = Blocked(OSError(errno.ENOSPC, "No space left on device"))
        log.command("ssh --password hunter2")
        log.command("ssh --password hunter2")
        handler.stream = stream
    told = capfd.readouterr().err
    assert told.count("the log has a gap: [Errno 28] No space left on device") == 1
    assert "hunter2" not in told


def test_an_older_log_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.touch(0o644)
    with log.logging_to(0, path):
        pass
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_password_that_was_read_is_in_no_later_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = find_password(PasswordSource(env="OURS"), "root", {"OURS": "correct horse"})
    with log.logging_to(2, None):
        LocalRunner().run(Command(("printf", "%s", f"<{value}>")), timeout_s=10)
    told = capsys.readouterr().err
    assert "correct" not in told
    assert told.count(f"<{log.MASK}>") == 3


def test_an_entry_is_bounded_and_obeys_no_control_character(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with log.logging_to(2, None):
        log.detail("\x1b[2J" + "x" * (log.MAX_LINE + 5))
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert told.endswith("... and 9 characters\n")


@pytest.mark.parametrize(
    ("env", "colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_no_colour_where_it_is_not_wanted(env: dict[str, str], colour: bool) -> None:
    terminal, end = os.openpty()
    code = (
        "from nearmetal.cli.view import View\n"
        "view = View(as_json=False)\n"
        "view.warn('beware')\n"
        "with view.steps('title') as steps:\n"
        "    steps.step('one')\n"
    )
    bare = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-c", code],
        env={**bare, "TERM": "xterm-256color", "COLUMNS": "80", **env},
        cwd=ROOT,
        stderr=end,
        check=True,
        timeout=60,
    )
    os.close(end)
    with open(terminal, "rb") as stream:  # noqa: PTH123 - a descriptor
        shown = stream.read1(65536).decode()
    assert "WARNING: beware" in shown
    assert bool(re.search("\x1b\\[[0-9;]*3[0-9][0-9;]*m", shown)) == colour
