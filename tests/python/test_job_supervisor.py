# SPDX-License-Identifier: Apache-2.0
"""Why the supervisor of a job ends it, with real processes; its places need a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "nearmetal/cluster/backends/local"
SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import job
node = int(sys.argv[2])
watched = {os.pidfd_open(node): "the node has ended"} if node else {}
print("ready", flush=True)
print(repr(job.wait(watched, float(sys.argv[3]), {})), flush=True)
"""
RUN_ENDED = "`nearmetal run` has ended"


def waiting(node: int = 0, deadline_s: float = 60.0) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", "-S", "-c", SCRIPT, str(HERE), str(node), str(deadline_s)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize(
    ("said", "reason"),
    [(b"done\n", ""), (b"", RUN_ENDED), (b"don", RUN_ENDED), (b"x" * 9000, RUN_ENDED)],
)
def test_the_end_of_its_input(said: bytes, reason: str) -> None:
    with waiting() as process:
        out, _ = process.communicate(said, timeout=30)
    assert out.decode().strip() == repr(reason)


# Its first thread has ended and the second one has not, so it is not dead yet.
ENDING = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
"""


def test_a_node_that_is_about_to_end_is_the_reason() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDING], stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        node.stdout.readline()
        state = Path(f"/proc/{node.pid}/stat")
        deadline = time.monotonic() + 60
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with waiting(node.pid) as process:
            out, _ = process.communicate(b"done\n", timeout=30)
        assert node.poll() is None
        node.kill()
    assert out.decode().strip() == repr("the node has ended")


def test_a_living_node_is_no_reason() -> None:
    with subprocess.Popen(["sleep", "600"]) as node, waiting(node.pid) as process:
        out, _ = process.communicate(b"done\n", timeout=30)
        node.kill()
    assert out.decode().strip() == repr("")


def test_its_deadline() -> None:
    with waiting(deadline_s=0.2) as process:
        assert process.stdout is not None
        assert process.stdout.readline().decode().strip() == repr("it still runs after 0 s")


def test_a_dead_node_is_the_reason_even_if_the_run_ends_at_once() -> None:
    with subprocess.Popen(["sleep", "600"]) as node, waiting(node.pid) as process:
        process.send_signal(signal.SIGSTOP)
        node.kill()
        node.wait()
        assert process.stdin is not None
        process.stdin.write(b"done\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=30)
    assert out.decode().strip() == repr("the node has ended")
