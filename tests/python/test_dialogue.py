# SPDX-License-Identifier: Apache-2.0
"""Partners of a dialogue that do not read, and many descriptors."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator

import pytest

from nearmetal.core.errors import CommandError
from nearmetal.core.process import Command, Dialogue, LocalRunner

RUNNER = LocalRunner()
LINE = "x" * 1023


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """A dialogue that blocks fails, and does not hang the suite."""

    def late(_number: int, _frame: object) -> None:
        raise TimeoutError("blocked")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def deaf() -> Dialogue:
    return RUNNER.converse(Command(("sleep", "60")))


def fill(talk: Dialogue, timeout_s: float) -> None:
    for _ in range(2000):
        talk.send(LINE, timeout_s)


def test_a_partner_that_does_not_read_is_given_up() -> None:
    talk = deaf()
    begin = time.monotonic()
    with pytest.raises(CommandError, match="sleep does not read its input"):
        fill(talk, 0.3)
    assert 0.2 < time.monotonic() - begin < 10
    assert talk.finish(0.0) == -signal.SIGTERM


def test_an_interrupt_while_the_pipe_is_full_ends_the_partner_at_once() -> None:
    talk = deaf()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    pid = os.fork()
    if pid == 0:
        time.sleep(0.5)
        os.kill(os.getppid(), signal.SIGUSR1)
        os._exit(0)
    try:
        with pytest.raises(KeyboardInterrupt):
            fill(talk, 60.0)
    finally:
        os.waitpid(pid, 0)
        signal.signal(signal.SIGUSR1, before)
    begin = time.monotonic()
    assert talk.finish(0.0) == -signal.SIGTERM
    assert time.monotonic() - begin < 5


def test_a_long_line_comes_whole_to_a_partner_that_reads_late() -> None:
    talk = RUNNER.converse(Command(("sh", "-c", "sleep 0.3; head -n 1 | wc -c")))
    talk.send("x" * 500_000)
    assert talk.receive(20) == "500001"
    assert talk.finish(20) == 0


def test_a_partner_may_have_a_descriptor_of_any_number() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1100:
        pytest.skip(f"the hard limit of open files is {hard}, and this needs 1100")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1030)]
    try:
        talk = RUNNER.converse(Command(("cat",)))
        talk.send("hello")
        assert talk.receive(10) == "hello"
        assert talk.finish(10) == 0
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
