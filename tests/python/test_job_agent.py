# SPDX-License-Identifier: Apache-2.0
"""The functions of the remote-shell agent, with real processes: records and the launcher's watch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nearmetal.cluster.ssh_nodes import machine_agent
from nearmetal.core.ssh import patient
from nearmetal.job.guards import lost_words, patience
from nearmetal.job.stats import cause, read_failures

AGENT = Path(__file__).parents[2] / "nearmetal/cluster/agent.sh"
KNOB = "NEARMETAL_NET_TIMEOUT_MS"
RANK = f'. {AGENT}; run_rank "$@"'


def rank(stats: Path, *argv: str) -> subprocess.Popen[bytes]:
    env = {"PATH": os.environ["PATH"], "NEARMETAL_STATS_DIR": str(stats), "PMI_RANK": "5"}
    command = ["sh", "-c", RANK, "agent", *argv]
    return subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.PIPE)


def codes(stats: Path) -> list[int]:
    return [failure.code for failure in read_failures(stats)]


@pytest.mark.parametrize(
    ("script", "end", "code"),
    [("exit 0", 0, None), ("exit 3", 3, 3), ("kill -11 $$", -11, 139), ("kill -9 $$", -9, 137)],
)
def test_the_end_of_a_rank_is_recorded(
    tmp_path: Path, script: str, end: int, code: int | None
) -> None:
    with rank(tmp_path, "sh", "-c", script) as process:
        _, words = process.communicate(timeout=20)
    assert process.returncode == end
    assert codes(tmp_path) == ([] if code is None else [code])
    assert (b"rank 5 on" in words) == (end < 0)


def test_a_rank_without_a_place_for_records_runs_as_well(tmp_path: Path) -> None:
    with rank(tmp_path / "none", "sh", "-c", "exit 3") as process:
        process.communicate(timeout=20)
    assert process.returncode == 3


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGKILL, 137), (signal.SIGTERM, 143)])
def test_a_rank_that_is_killed_with_its_agent_counts_as_killed(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    ready = tmp_path / "ready"
    with rank(tmp_path, "sh", "-c", f"touch {ready}; exec sleep 600") as process:
        while not ready.exists():
            time.sleep(0.01)
        os.killpg(process.pid, signum)
        process.communicate(timeout=20)
    assert process.returncode == -signum
    assert codes(tmp_path) == [code]


LAUNCHER = f"""
[ -z "$TRAP" ] || trap : TERM
sh -c '. {AGENT}; end_launcher n2 "$1"; exit "$1"' agent "$CODE" &
wait $!
[ -z "$ENDS" ] || exit 5
while :; do sleep 0.1; done
"""


def launcher(stats: Path, code: int, *more: str) -> int:
    env = {"PATH": os.environ["PATH"], "NEARMETAL_STATS_DIR": str(stats), "CODE": str(code)}
    env |= dict.fromkeys(more, "yes")
    return subprocess.run(["sh", "-c", LAUNCHER], env=env, check=False, timeout=30).returncode


def test_a_launcher_that_waits_for_a_killed_daemon_is_ended(tmp_path: Path) -> None:
    assert launcher(tmp_path, 137) == -signal.SIGTERM
    failure = cause(read_failures(tmp_path))
    assert failure is not None
    assert (failure.node, failure.code) == ("n2", 137)


def test_a_launcher_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    assert launcher(tmp_path, 1, "TRAP") == -signal.SIGKILL
    assert codes(tmp_path) == [], "a daemon that reports a failure was not killed"


def test_a_launcher_that_notices_ends_by_itself(tmp_path: Path) -> None:
    assert launcher(tmp_path, 137, "ENDS") == 5


@pytest.mark.parametrize(
    ("given", "interval"),
    [
        ("", 10),
        ("600000", 200),
        ("1000", 1),
        ("3600000", 1200),
        ("010000", 10),
        ("9", 10),
        ("99999999", 10),
        ("$(exit 7)", 10),
    ],
)
def test_ssh_waits_longer_than_the_provider_and_names_the_limit(
    tmp_path: Path, given: str, interval: int
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "$@"\nexit 255\n')
    ssh.chmod(0o755)
    agent = tmp_path / "agent"
    agent.write_bytes(machine_agent())
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", KNOB: given}
    # The agent ends the launcher that started it: a shell with more to do.
    command = ["sh", "-c", f"sh {agent} -x n2 prted --tree; exit $?"]
    done = subprocess.run(command, env=env, check=False, capture_output=True, timeout=30)
    assert done.returncode == 255
    options = {"ServerAliveInterval": str(interval), "ServerAliveCountMax": "4"}
    words = done.stdout.decode().split()
    assert {f"{name}={value}" for name, value in options.items()} < set(words)
    # The connections of `nearmetal run` have the same limit.
    assert patient(patience({KNOB: given})) == options
    assert done.stderr.decode() == f"nearmetal: {lost_words(['n2'], patience({KNOB: given}))}\n"
