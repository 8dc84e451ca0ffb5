# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from nearmetal.core.errors import CommandError
from nearmetal.core.process import AT_ONCE, Command, LocalRunner, find_program

RUNNER = LocalRunner()


def sh(script: str, *args: str) -> Command:
    return Command(("/bin/sh", "-c", script, "sh", *args))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_output_and_code() -> None:
    done = RUNNER.run(sh('echo "$1"; echo no >&2; exit 3', "a  b; $HOME"), timeout_s=20)
    assert (done.text, done.stderr, done.code) == ("a  b; $HOME\n", b"no\n", 3)
    assert done.error_tail == "no"
    assert not done.timed_out


def test_input_environment_and_directory(tmp_path: Path) -> None:
    command = Command(("/bin/sh", "-c", "cat; echo $K; pwd"), {"K": "V"}, tmp_path, b"in\n")
    assert RUNNER.run(command, timeout_s=20).text.splitlines() == ["in", "V", str(tmp_path)]


def test_a_signal_is_a_negative_code() -> None:
    assert RUNNER.run(sh("kill -9 $$"), timeout_s=20).code == -9


def test_check_tells_command_code_and_last_words() -> None:
    with pytest.raises(CommandError, match="exit code 4: /bin/sh -c") as caught:
        RUNNER.check(sh("echo reason >&2; exit 4"), timeout_s=20)
    assert caught.value.hint == "reason"
    with pytest.raises(CommandError, match=r"no end after 0\.2 s"):
        RUNNER.check(sh("exec sleep 60"), timeout_s=0.2)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(CommandError, match="cannot start no-such-program: No such file") as caught:
        RUNNER.run(Command(("no-such-program",)), timeout_s=1)
    assert "install it" in caught.value.hint
    with pytest.raises(CommandError, match="cannot start"):
        RUNNER.converse(Command(("no-such-program",)))


def test_a_time_out_ends_the_whole_session(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    begin = time.monotonic()
    done = RUNNER.run(
        sh("sleep 60 & echo $! > $1; trap '' TERM; wait; wait", str(note)), timeout_s=0.5
    )
    assert done.timed_out
    assert time.monotonic() - begin < 20
    assert_ends(int(note.read_text()))


def test_an_exception_ends_the_whole_session(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def interrupt() -> None:
        deadline = time.monotonic() + 10
        while not (note.exists() and note.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # Whoever starts the tests in the background may have told them to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        RUNNER.attach(sh("sleep 60 & echo $! > $1; wait", str(note)))
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert_ends(int(note.read_text()))


def test_commands_that_wait_for_each_other_run_side_by_side(tmp_path: Path) -> None:
    for name in "ab":
        os.mkfifo(tmp_path / name)
    meet = 'cd "$1"; if [ $2 = a ]; then echo hi >a; cat b; else cat a; echo ho >b; fi; exit $3'
    commands = [sh(meet, str(tmp_path), "a", "3"), sh(meet, str(tmp_path), "b", "4")]
    one, two = RUNNER.run_all(commands, timeout_s=60)
    assert (one.text, one.code, one.timed_out) == ("ho\n", 3, False)
    assert (two.text, two.code, two.timed_out) == ("hi\n", 4, False)
    assert (one.command, two.command) == tuple(commands)


def test_each_of_many_gets_its_input_and_keeps_its_words() -> None:
    count = AT_ONCE + 2
    script = "cat; echo $1 >&2"
    commands = [
        Command(("/bin/sh", "-c", script, "sh", str(i)), stdin=b"%d" % i) for i in range(count)
    ]
    ends = RUNNER.run_all(commands, timeout_s=60)
    assert [end.text for end in ends] == [str(i) for i in range(count)]
    assert [end.error_tail for end in ends] == [str(i) for i in range(count)]
    assert RUNNER.run_all([], timeout_s=60) == []


def test_a_late_one_of_many_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    late, other = RUNNER.run_all(
        [sh("sleep 600 & echo $! > $1; wait", str(note)), sh("echo on")], timeout_s=1
    )
    assert late.timed_out
    # A busy machine may let the other come late, too, but not with words that are not its own.
    assert (other.text, other.code) == ("on\n", 0) or other.timed_out
    if note.exists() and note.read_text().strip():
        assert_ends(int(note.read_text()))


def test_one_of_many_that_is_not_there_ends_those_that_were_started() -> None:
    like_no_other = f"60.{os.getpid()}"
    there = Command(("sleep", like_no_other))
    with pytest.raises(CommandError, match="cannot start no-such-program"):
        RUNNER.run_all([there, Command(("no-such-program",))], timeout_s=60)
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if arguments(path)[1:2] == [like_no_other]
    ]
    assert left == []


def arguments(cmdline: Path) -> list[str]:
    try:
        return cmdline.read_text(errors="replace").split("\0")
    except OSError:
        return []  # it has ended meanwhile


def test_attached_streams(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        done = RUNNER.attach(sh("read x || echo empty; echo e >&2"), stdout=out, stderr=err)
    assert done.code == 0
    assert (tmp_path / "out").read_text() == "empty\n"
    assert (tmp_path / "err").read_text() == "e\n"
    assert RUNNER.attach(sh("exec sleep 60"), timeout_s=0.2).timed_out


def test_lines_are_exchanged() -> None:
    code = "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)"
    talk = RUNNER.converse(Command((sys.executable, "-c", code)))
    talk.send("one")
    assert talk.receive(20) == "got one"
    talk.send("two")
    talk.send("three")
    assert talk.receive(20) == "got two"
    assert talk.receive(20) == "got three"
    assert talk.receive(0.1) is None
    assert talk.finish(20) == 0


def test_a_partner_that_goes_away() -> None:
    talk = RUNNER.converse(sh("exit 5"))
    assert talk.receive(20) is None
    assert talk.finish(20) == 5
    with pytest.raises(CommandError, match="ended before it read"):
        talk.send("too late")
    late = RUNNER.converse(sh("trap '' HUP; exec sleep 60"))
    assert late.finish(0.1) == -signal.SIGTERM


def test_programs_are_found_in_system_directories(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_program("sh") is not None
    assert find_program("no-such-program") is None
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("mine") == mine
