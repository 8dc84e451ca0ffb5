# SPDX-License-Identifier: Apache-2.0
"""`up` killed, interrupted or raced at any moment: taken up or removed without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.system.local import ROOT, Site, site
from tests.walks import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

SPEC = """\
version: 1
name: fault
backend: local
hosts: [{name: h, nodes: [{name: n1}, {name: n2}]}]
"""
RECORDS = 14
"""Journal records of one `up` of SPEC: begin and done of seven steps."""
SIGNALS = (signal.SIGKILL, signal.SIGINT)
DELAYS_MS = (20, 200, 350, 450, 550, 650, 800)

KILLED_AT_RECORD = """\
import os, signal, sys
from pathlib import Path
from nearmetal.cluster.apply import Cluster, up
from nearmetal.core.journal import Event, Journal
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.store import Store, state_directory
from nearmetal.core.process import LocalRunner
from nearmetal.cluster.spec import load_spec

class Deadly(Journal):
    left = int(sys.argv[2])
    def write(self, verb, step, event, detail=""):
        super().write(verb, step, event, detail)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

spec = load_spec(Path(sys.argv[1]))
store = Store(state_directory())
backend = open_backend(spec, store, LocalRunner())
up(Cluster(spec.name, backend, store), spec, journal=Deadly(store.cluster(spec.name)))
"""


@pytest.fixture
def place() -> Iterator[Site]:
    with site() as made:
        yield made


@pytest.fixture
def spec(place: Site) -> str:
    return place.write("spec.yaml", SPEC)


def up_killed_at(place: Site, spec: str, record: int) -> int:
    argv = [sys.executable, "-c", KILLED_AT_RECORD, spec, str(record)]
    return subprocess.run(
        argv, env=place.environment(), cwd=ROOT, check=False, timeout=60
    ).returncode


@pytest.mark.parametrize("record", walk(range(1, RECORDS + 1)))
def test_up_killed_at_every_record_of_the_journal(place: Site, spec: str, record: int) -> None:
    assert up_killed_at(place, spec, record) == -signal.SIGKILL
    place.look(spec)
    if record % 2:
        done = place.run("up", spec)
        assert done.returncode == 0, done.stderr
        assert "an earlier `up` was interrupted at: " in done.stderr
        assert place.run("plan", spec).returncode == 0
        assert place.ok("exec", spec, "n2", "--", "hostname") == "n2\n"
        place.look(spec)
    place.ok("down", "--yes", spec)
    place.assert_no_trace()


def test_the_journal_has_that_many_records(place: Site, spec: str) -> None:
    assert up_killed_at(place, spec, RECORDS + 1) == 0


@pytest.mark.parametrize(("signum", "delay_ms"), walk(product(SIGNALS, DELAYS_MS)))
def test_up_ended_at_any_time(
    place: Site, spec: str, signum: signal.Signals, delay_ms: int
) -> None:
    with place.start("up", spec) as process:
        time.sleep(delay_ms / 1000)
        process.send_signal(signum)
        begin = time.monotonic()
        _, words = process.communicate(timeout=30)
        took = time.monotonic() - begin
    assert took < 20
    # Before the first step Python itself may be what is interrupted.
    if signum is signal.SIGINT and "KeyboardInterrupt" not in words:
        assert process.returncode in (0, -signum, 128 + signum), words
        assert (process.returncode == 128 + signum) == ("interrupted by SIGINT" in words)
    place.look(spec)
    place.ok("up", spec)
    assert place.run("plan", spec).returncode == 0
    place.look(spec)
    place.ok("down", "--yes", spec)
    place.assert_no_trace()


def test_two_ups_at_once(place: Site, spec: str) -> None:
    with place.start("up", spec) as one, place.start("up", spec) as two:
        words = [process.communicate(timeout=60)[1] for process in (one, two)]
    codes = sorted((one.returncode, two.returncode))
    assert codes in ([0, 0], [0, 1])
    if codes == [0, 1]:
        assert "is in use by process" in "".join(words)
    assert place.run("plan", spec).returncode == 0


def test_down_while_a_program_runs(place: Site, spec: str) -> None:
    place.ok("up", spec)
    place.look(spec)
    with place.start("exec", spec, "n1", "--", "sh", "-c", "echo on; sleep 60") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        place.ok("down", "--yes", spec)
        process.communicate(timeout=20)
    assert process.returncode != 0
    place.assert_no_trace()


def test_exec_interrupted_ends_its_program(place: Site, spec: str) -> None:
    place.ok("up", spec)
    argv = ("exec", spec, "n1", "--", "sh", "-c", "echo on; exec sleep 61")
    with place.start(*argv, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    listed = place.ok(
        "exec", spec, "n1", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    )
    assert "sleep 61" not in listed


def test_a_full_state_directory_is_an_error_in_words(place: Site, spec: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place.state.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=4,mode=0700", "tmpfs"]
    subprocess.run([*mount, str(place.state)], check=True)
    try:
        done = place.run("up", spec)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
    finally:
        subprocess.run(["umount", "-l", str(place.state)], check=True)


def test_no_namespaces_is_an_error_with_a_remedy(place: Site, spec: str) -> None:
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if not bare:
        pytest.skip("dropping capabilities needs root")
    done = subprocess.run(
        [*bare, *place.command("up", spec)],
        env=place.environment(),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Operation not permitted" in done.stderr
    assert "SYS_ADMIN" in done.stderr
    place.ok("down", "--yes", spec)
    place.assert_no_trace()
